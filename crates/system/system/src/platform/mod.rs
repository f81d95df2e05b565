//! The platform: dispatches accesses to devices, and devices' interrupt lines to the interrupt controllers. An access
//! to any address with any value affects only the modelled machine.

mod extended;
mod iocsr;
mod ipi;
mod lane;
pub mod map;
mod pch_pic;
mod pci;
mod rtc;
mod saved;
mod uart;
mod virtio;

use std::time::Duration;

use vm_memory::GuestMemoryMmap;

use crate::exception::line;
use extended::ExtendedInterrupts;
use ipi::Ipi;
use pch_pic::PchPic;
use pci::PciHost;
pub use pci::{Effects, MAX_DEVICES};
use rtc::Rtc;
pub use saved::SavedPlatform;
use uart::Uart;
pub use virtio::{Disk, DiskError, DiskOptions, Format, SharedFolder, TagError, Transport};

/// A request of software to the power controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRequest {
    /// Power off.
    Off,
    /// Reset the machine.
    Reset,
}

/// The value that powers off when it is written to the first byte of the power registers. QEMU's device tree states
/// this value and [`RESET`] for the sleep and reset registers of ACPI's reduced hardware.
pub const POWER_OFF: u64 = 0x34;
/// The value that resets when it is written to the third byte of the power registers.
pub const RESET: u64 = 0x42;

/// The devices and interrupt controllers.
#[derive(Debug)]
pub struct Platform {
    /// The IPI registers of each core.
    ipi: Vec<Ipi>,
    extended: ExtendedInterrupts,
    pch_pic: PchPic,
    uart: Uart,
    rtc: Rtc,
    pci: PciHost,
    power: Option<PowerRequest>,
    exit_status: u8,
    mark: Option<u8>,
}

impl Platform {
    /// Creates the devices in their reset state for a machine with `cores` cores. `start_s` is its start date, in
    /// seconds since 1970.
    pub fn new(cores: usize, start_s: u64) -> Self {
        Self {
            ipi: std::iter::repeat_with(Ipi::default).take(cores).collect(),
            extended: ExtendedInterrupts::new(cores),
            pch_pic: PchPic::new(),
            uart: Uart::new(),
            rtc: Rtc::new(start_s),
            pci: PciHost::default(),
            power: None,
            exit_status: 0,
            mark: None,
        }
    }

    /// Reads `bytes` (1, 2, 4 or 8) bytes at a physical address; `None` if no device answers.
    pub fn read(&mut self, address: u64, bytes: usize, elapsed_ns: u64) -> Option<u64> {
        let (device, offset) = Device::at(address)?;
        let value = match device {
            Device::PchPic => self.pch_pic.read(offset, bytes),
            Device::Rtc => self.rtc.read(offset, bytes, elapsed_ns),
            Device::Power => {
                if offset == 1 {
                    self.exit_status.into()
                } else {
                    0
                }
            }
            Device::Uart => self.uart.read(offset, bytes),
            Device::Messages => 0,
            Device::PciConfig => self.pci.read_config(offset, bytes),
            Device::PciMemory => self.pci.read(address, bytes),
        };
        self.route_interrupts();
        Some(value)
    }

    /// Writes `bytes` (1, 2, 4 or 8) bytes at a physical address; `None` if no device answers. Returns the effects of
    /// devices, whose messages have already been delivered.
    pub fn write(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        memory: &GuestMemoryMmap,
    ) -> Option<Effects> {
        let mut effects = Effects::default();
        let (device, offset) = Device::at(address)?;
        match device {
            Device::PchPic => self.pch_pic.write(offset, bytes, value),
            Device::Rtc => self.rtc.write(offset, bytes, value),
            Device::Power => match (offset, value & 0xff) {
                (0, POWER_OFF) => self.power = Some(PowerRequest::Off),
                (1, status) => self.exit_status = status as u8,
                (2, RESET) => self.power = Some(PowerRequest::Reset),
                (3, mark) => self.mark = Some(mark as u8),
                _ => {}
            },
            Device::Uart => self.uart.write(offset, bytes, value),
            Device::Messages => self.receive_message(value as u32),
            Device::PciConfig => self.pci.write_config(offset, bytes, value, &mut effects),
            Device::PciMemory => self.pci.write(address, bytes, value, memory, &mut effects),
        }
        self.deliver(&mut effects);
        Some(effects)
    }

    /// Exchanges frames of NICs with their networks at the guest's time `now_ns`. If none arrives, waits up to `wait` of
    /// the host's time. Returns the effects, whose messages have already been delivered.
    pub fn exchange(&mut self, now_ns: u64, wait: Duration, memory: &GuestMemoryMmap) -> Effects {
        let mut effects = Effects::default();
        self.pci.exchange(now_ns, wait, memory, &mut effects);
        self.deliver(&mut effects);
        effects
    }

    /// Delivers messages. Those to other addresses are lost.
    fn deliver(&mut self, effects: &mut Effects) {
        for message in effects.messages.drain(..).filter(|message| message.address == map::MESSAGES) {
            self.receive_message(message.content);
        }
        self.route_interrupts();
    }

    /// Receives a message, whose content is the number of a vector.
    fn receive_message(&mut self, vector: u32) {
        if (map::FIRST_MESSAGE..map::FIRST_MESSAGE + map::MESSAGE_VECTORS).contains(&vector) {
            self.extended.receive(vector as usize);
        }
    }

    /// Attaches a device to the PCI bus. Returns whether the bus had a free slot.
    pub fn attach(&mut self, device: Transport) -> bool {
        self.pci.attach(device)
    }

    /// The interrupt lines of a core that devices assert, as bits of ESTAT.IS.
    pub fn lines(&self, core: usize) -> u64 {
        self.extended.asserted(core) << line::HARDWARE | u64::from(self.ipi[core].asserts()) << line::IPI
    }

    /// The start address of a core that has not started, if another core has sent one.
    pub fn take_start(&mut self, core: usize) -> Option<u64> {
        self.ipi[core].take_start()
    }

    /// Takes the pending request to the power controller.
    pub fn take_power_request(&mut self) -> Option<PowerRequest> {
        self.power.take()
    }

    /// Takes the mark that software wrote last.
    pub fn take_mark(&mut self) -> Option<u8> {
        self.mark.take()
    }

    /// The exit status that software has set; 0 by default.
    pub fn exit_status(&self) -> u8 {
        self.exit_status
    }

    /// Takes the bytes that the serial port has sent.
    pub fn take_console_output(&mut self) -> Vec<u8> {
        self.uart.take_sent()
    }

    /// Sends bytes to the serial port. Returns how many fit in its buffer.
    pub fn type_on_console(&mut self, bytes: &[u8]) -> usize {
        let taken = self.uart.receive(bytes);
        self.route_interrupts();
        taken
    }

    fn route_interrupts(&mut self) {
        self.pch_pic.set_level(map::UART_INPUT, self.uart.asserts());
        self.extended.set_inputs(self.pch_pic.asserted());
    }
}

/// A device at a range of physical addresses.
#[derive(Clone, Copy)]
enum Device {
    PchPic,
    Rtc,
    Power,
    Uart,
    Messages,
    PciConfig,
    PciMemory,
}

impl Device {
    /// The device at a physical address, and the offset in its range.
    fn at(address: u64) -> Option<(Self, u64)> {
        let ranges = [
            (map::UART, map::UART_BYTES, Self::Uart),
            (map::PCH_PIC, map::PCH_PIC_BYTES, Self::PchPic),
            (map::RTC, map::RTC_BYTES, Self::Rtc),
            (map::POWER, map::POWER_BYTES, Self::Power),
            (map::MESSAGES, map::MESSAGES_BYTES, Self::Messages),
            (map::PCI_CONFIG, map::PCI_CONFIG_BYTES, Self::PciConfig),
            (map::PCI_EXTENDED, map::PCI_EXTENDED_BYTES, Self::PciConfig),
            (map::PCI_MEMORY, map::PCI_MEMORY_BYTES, Self::PciMemory),
        ];
        ranges.into_iter().find_map(|(start, length, device)| {
            let offset = address.wrapping_sub(start);
            (offset < length).then_some((device, offset))
        })
    }
}
