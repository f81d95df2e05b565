//! The device tree of the machine, with the nodes that QEMU's machine `virt` has for the same devices. Source: Devicetree
//! specification 0.4; Linux, Documentation/devicetree/bindings.

use vm_fdt::{Error, FdtWriter};

use crate::core::COUNTER_HZ;
use crate::platform::{POWER_OFF, RESET, map};

const CORE_INTERRUPTS: u32 = 2;
const EXTENDED_INTERRUPTS: u32 = 3;
const PCH_PIC: u32 = 4;
const POWER: u32 = 5;
const MESSAGES: u32 = 6;
/// The phandle of core 0. The phandles of the other cores follow.
const CPU: u32 = 16;
/// The interrupt type of a level-triggered, active-high interrupt.
const LEVEL_HIGH: u32 = 4;

/// Builds the tree of a machine with the given number of cores, memory ranges (start and length) and initial RAM disk
/// (start and end).
///
/// # Errors
/// vm-fdt refuses a node, which does not happen for the names and values here.
pub fn build(count: usize, memory: &[(u64, u64)], initrd: Option<(u64, u64)>) -> Result<Vec<u8>, Error> {
    let mut tree = FdtWriter::new()?;
    let root = tree.begin_node("")?;
    tree.property_string("compatible", "linux,dummy-loongson3")?;
    tree.property_u32("#address-cells", 2)?;
    tree.property_u32("#size-cells", 2)?;
    chosen(&mut tree, initrd)?;
    cores(&mut tree, count as u32)?;
    for (start, length) in memory {
        let node = tree.begin_node(&format!("memory@{start:x}"))?;
        tree.property_string("device_type", "memory")?;
        tree.property_array_u64("reg", &[*start, *length])?;
        tree.end_node(node)?;
    }
    interrupt_controllers(&mut tree)?;
    pci(&mut tree)?;
    devices(&mut tree)?;
    tree.end_node(root)?;
    tree.finish()
}

fn chosen(tree: &mut FdtWriter, initrd: Option<(u64, u64)>) -> Result<(), Error> {
    let node = tree.begin_node("chosen")?;
    tree.property_string("stdout-path", &format!("/serial@{:x}", map::UART))?;
    if let Some((start, end)) = initrd {
        tree.property_u64("linux,initrd-start", start)?;
        tree.property_u64("linux,initrd-end", end)?;
    }
    tree.end_node(node)
}

fn cores(tree: &mut FdtWriter, count: u32) -> Result<(), Error> {
    let cpus = tree.begin_node("cpus")?;
    tree.property_u32("#address-cells", 1)?;
    tree.property_u32("#size-cells", 0)?;
    for number in 0..count {
        let cpu = tree.begin_node(&format!("cpu@{number:x}"))?;
        tree.property_string("device_type", "cpu")?;
        tree.property_string("compatible", "loongarch,Loongson-3A5000")?;
        tree.property_u32("reg", number)?;
        tree.property_phandle(CPU + number)?;
        tree.end_node(cpu)?;
    }
    let cpu_map = tree.begin_node("cpu-map")?;
    let socket = tree.begin_node("socket0")?;
    for number in 0..count {
        let core = tree.begin_node(&format!("core{number}"))?;
        tree.property_u32("cpu", CPU + number)?;
        tree.end_node(core)?;
    }
    tree.end_node(socket)?;
    tree.end_node(cpu_map)?;
    tree.end_node(cpus)
}

fn interrupt_controllers(tree: &mut FdtWriter) -> Result<(), Error> {
    let core = tree.begin_node("cpuic")?;
    tree.property_string("compatible", "loongson,cpu-interrupt-controller")?;
    tree.property_null("interrupt-controller")?;
    tree.property_u32("#interrupt-cells", 1)?;
    tree.property_phandle(CORE_INTERRUPTS)?;
    tree.end_node(core)?;

    let extended = tree.begin_node("eiointc@1400")?;
    tree.property_string("compatible", "loongson,ls2k2000-eiointc")?;
    tree.property_array_u64("reg", &[0x1400, 0x800])?;
    tree.property_null("interrupt-controller")?;
    tree.property_u32("#interrupt-cells", 1)?;
    tree.property_u32("interrupt-parent", CORE_INTERRUPTS)?;
    tree.property_u32("interrupts", map::EXTENDED_LINE)?;
    tree.property_phandle(EXTENDED_INTERRUPTS)?;
    tree.end_node(extended)?;

    let bridge = tree.begin_node(&format!("platic@{:x}", map::PCH_PIC))?;
    tree.property_string("compatible", "loongson,pch-pic-1.0")?;
    tree.property_array_u64("reg", &[map::PCH_PIC, map::PCH_PIC_BYTES])?;
    tree.property_null("interrupt-controller")?;
    tree.property_u32("#interrupt-cells", 2)?;
    tree.property_u32("interrupt-parent", EXTENDED_INTERRUPTS)?;
    tree.property_u32("loongson,pic-base-vec", 0)?;
    tree.property_phandle(PCH_PIC)?;
    tree.end_node(bridge)
}

/// The PCI host and its MSI controller. The first cell of a range marks 32-bit memory space.
fn pci(tree: &mut FdtWriter) -> Result<(), Error> {
    let messages = tree.begin_node(&format!("msi@{:x}", map::MESSAGES))?;
    tree.property_string("compatible", "loongson,pch-msi-1.0")?;
    tree.property_array_u64("reg", &[map::MESSAGES, map::MESSAGES_BYTES])?;
    tree.property_null("interrupt-controller")?;
    tree.property_null("msi-controller")?;
    tree.property_u32("loongson,msi-base-vec", map::FIRST_MESSAGE)?;
    tree.property_u32("loongson,msi-num-vecs", map::MESSAGE_VECTORS)?;
    tree.property_u32("interrupt-parent", EXTENDED_INTERRUPTS)?;
    tree.property_phandle(MESSAGES)?;
    tree.end_node(messages)?;

    const MEMORY: u32 = 0x0200_0000;
    let (start, bytes) = (map::PCI_MEMORY as u32, map::PCI_MEMORY_BYTES as u32);
    let host = tree.begin_node(&format!("pci@{:x}", map::PCI_CONFIG))?;
    tree.property_string("compatible", "loongson,ls7a-pci")?;
    tree.property_string("device_type", "pci")?;
    tree.property_u32("#address-cells", 3)?;
    tree.property_u32("#size-cells", 2)?;
    tree.property_array_u32("bus-range", &[0, 0])?;
    let config = [map::PCI_CONFIG, map::PCI_CONFIG_BYTES];
    tree.property_array_u64("reg", &[config, [map::PCI_EXTENDED, map::PCI_EXTENDED_BYTES]].concat())?;
    tree.property_array_u32("ranges", &[MEMORY, 0, start, 0, start, 0, bytes])?;
    tree.property_u32("msi-parent", MESSAGES)?;
    tree.property_null("dma-coherent")?;
    tree.end_node(host)
}

fn devices(tree: &mut FdtWriter) -> Result<(), Error> {
    let serial = tree.begin_node(&format!("serial@{:x}", map::UART))?;
    tree.property_string("compatible", "ns16550a")?;
    tree.property_array_u64("reg", &[map::UART, map::UART_BYTES])?;
    tree.property_u32("clock-frequency", COUNTER_HZ)?;
    tree.property_array_u32("interrupts", &[map::UART_INPUT, LEVEL_HIGH])?;
    tree.property_u32("interrupt-parent", PCH_PIC)?;
    tree.end_node(serial)?;

    let clock = tree.begin_node(&format!("rtc@{:x}", map::RTC))?;
    tree.property_string("compatible", "loongson,ls7a-rtc")?;
    tree.property_array_u64("reg", &[map::RTC, map::RTC_BYTES])?;
    tree.property_array_u32("interrupts", &[map::RTC_INPUT, LEVEL_HIGH])?;
    tree.property_u32("interrupt-parent", PCH_PIC)?;
    tree.end_node(clock)?;

    let power = tree.begin_node(&format!("ged@{:x}", map::POWER))?;
    tree.property_string("compatible", "syscon")?;
    tree.property_array_u64("reg", &[map::POWER, map::POWER_BYTES])?;
    tree.property_u32("reg-shift", 0)?;
    tree.property_u32("reg-io-width", 1)?;
    tree.property_phandle(POWER)?;
    tree.end_node(power)?;
    let requests = [("poweroff", "syscon-poweroff", 0, POWER_OFF), ("reboot", "syscon-reboot", 2, RESET)];
    for (name, compatible, offset, value) in requests {
        let node = tree.begin_node(name)?;
        tree.property_string("compatible", compatible)?;
        tree.property_u32("regmap", POWER)?;
        tree.property_u32("offset", offset)?;
        tree.property_u32("value", value as u32)?;
        tree.end_node(node)?;
    }
    Ok(())
}
