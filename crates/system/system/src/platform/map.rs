//! The physical address map, that of QEMU's machine `virt` for LoongArch64, so that a kernel finds the same devices. PCI
//! configuration space is at other addresses: Debian's kernel has only the driver of Loongson's own PCI host built in.

/// Bytes of memory from address 0. What exceeds it is at [`HIGH_MEMORY`].
pub const LOW_MEMORY_BYTES: u64 = 0x1000_0000;
/// Memory above the devices.
pub const HIGH_MEMORY: u64 = 0x8000_0000;
/// The interrupt controller of the bridge chip (PCH-PIC).
pub const PCH_PIC: u64 = 0x1000_0000;
/// Its length in bytes.
pub const PCH_PIC_BYTES: u64 = 0x400;
/// The real-time clock.
pub const RTC: u64 = 0x100d_0100;
/// Its length in bytes.
pub const RTC_BYTES: u64 = 0x100;
/// The register block for power-off and reset. Its first byte switches off, its third one resets, and the second one is
/// the status that the machine ends with.
pub const POWER: u64 = 0x100e_001c;
/// Its length in bytes.
pub const POWER_BYTES: u64 = 3;
/// The serial port.
pub const UART: u64 = 0x1fe0_01e0;
/// Its length in bytes.
pub const UART_BYTES: u64 = 0x100;
/// Where PCI devices write messages that are interrupts (PCH-MSI).
pub const MESSAGES: u64 = 0x2ff0_0000;
/// The length of that register in bytes.
pub const MESSAGES_BYTES: u64 = 8;
/// The first vector of messages. Those below are of the PCH-PIC's inputs.
pub const FIRST_MESSAGE: u32 = 32;
/// The number of vectors of messages.
pub const MESSAGE_VECTORS: u32 = 224;
/// PCI configuration space: 256 bytes of each device. It is the same as [`PCI_EXTENDED`], as drivers expect two.
pub const PCI_CONFIG: u64 = 0x2000_0000;
/// Its length in bytes.
pub const PCI_CONFIG_BYTES: u64 = 0x100_0000;
/// PCI configuration space: 4096 bytes of each device.
pub const PCI_EXTENDED: u64 = 0x3000_0000;
/// Its length in bytes.
pub const PCI_EXTENDED_BYTES: u64 = 0x1000_0000;
/// The registers of PCI devices, at addresses that software chooses.
pub const PCI_MEMORY: u64 = 0x4000_0000;
/// Its length in bytes.
pub const PCI_MEMORY_BYTES: u64 = 0x4000_0000;

/// The input of the PCH-PIC that the serial port is wired to.
pub const UART_INPUT: u32 = 2;
/// The input of the PCH-PIC that the real-time clock is wired to. It never asserts it.
pub const RTC_INPUT: u32 = 6;
/// The hardware interrupt line of the extended interrupt controller, as the device tree states it (a bit of ESTAT.IS).
pub const EXTENDED_LINE: u32 = 3;
