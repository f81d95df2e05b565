//! The PCI host of the bridge chip: one bus with a device in each slot, a window of memory for their registers, and
//! messages as interrupts. Software may move a window while it is in use: an access reaches what is there at that time.
//! Source: PCI Local Bus Specification 3.0, chapter 6 (configuration space); Linux, drivers/pci/controller/pci-loongson.c
//! (addresses of registers).

mod config;
mod msix;

use vm_memory::GuestMemoryMmap;

use super::virtio::Transport;
pub use config::Config;
pub use msix::{Message, Vectors};

/// Devices that the bus has room for. Slot 0 is empty.
pub const MOST_DEVICES: usize = 8;
/// Bytes of a device's window: its registers, the table of messages and that of pending ones.
pub const WINDOW_BYTES: u64 = 0x8000;

/// Where the parts of a window are.
pub mod window {
    /// The configuration that virtio devices have in common.
    pub const COMMON: u32 = 0;
    /// The interrupt status.
    pub const STATUS: u32 = 0x1000;
    /// The configuration of the kind of device.
    pub const DEVICE: u32 = 0x2000;
    /// Notifications, four bytes for each queue.
    pub const NOTIFY: u32 = 0x3000;
    /// The table of messages.
    pub const MESSAGES: u32 = 0x4000;
    /// The table of pending messages.
    pub const PENDING: u32 = 0x5000;
    /// Bytes from one part to the next.
    pub const PART: u32 = 0x1000;
}

/// What devices did to memory and to the machine during an access.
#[derive(Debug, Default)]
pub struct Effects {
    /// Ranges of memory that may have changed: start and end.
    pub written: Vec<(u64, u64)>,
    /// Cycles that the accessing core waited.
    pub cycles: u64,
    /// Messages to send.
    pub messages: Vec<Message>,
}

/// Ranges that are kept apart. A hostile driver may send any number.
const MOST_RANGES: usize = 256;

impl Effects {
    /// A range of memory may have changed.
    pub fn write(&mut self, start: u64, bytes: u64) {
        let mut range = (start, start.saturating_add(bytes));
        if range.0 == range.1 {
            return;
        }
        if self.written.len() == MOST_RANGES {
            range = self.written.drain(..).fold(range, |all, part| (all.0.min(part.0), all.1.max(part.1)));
        }
        self.written.push(range);
    }
}

/// A device: what PCI defines, and the device itself.
#[derive(Debug)]
struct Function {
    config: Config,
    vectors: Vectors,
    device: Transport,
}

/// The host and the devices on its bus.
#[derive(Debug, Default)]
pub struct PciHost {
    functions: Vec<Function>,
}

impl PciHost {
    /// Puts a device into the next slot. Returns whether there was one.
    pub fn attach(&mut self, device: Transport) -> bool {
        let has_room = self.functions.len() < MOST_DEVICES;
        if has_room {
            let vectors = Vectors::new(device.vectors());
            let config = Config::virtio(device.kind(), vectors.count());
            self.functions.push(Function { config, vectors, device });
        }
        has_room
    }

    /// Reads configuration space. Where no device is, all bits are ones.
    pub fn read_config(&self, offset: u64, bytes: usize) -> u64 {
        let absent = u64::MAX >> (64 - 8 * bytes.clamp(1, 8));
        let Some((slot, register)) = config_address(offset) else { return absent };
        self.functions.get(slot).map_or(absent, |function| function.config.read(register, bytes))
    }

    /// Writes configuration space.
    pub fn write_config(&mut self, offset: u64, bytes: usize, value: u64, effects: &mut Effects) {
        let Some((slot, register)) = config_address(offset) else { return };
        let Some(function) = self.functions.get_mut(slot) else { return };
        function.config.write(register, bytes, value);
        function.send_pending(effects);
    }

    /// Reads the window of devices. Where none answers, all bits are ones.
    pub fn read(&mut self, address: u64, bytes: usize) -> u64 {
        let Some((function, offset)) = self.function_at(address) else {
            return u64::MAX >> (64 - 8 * bytes.clamp(1, 8));
        };
        match offset & !(window::PART - 1) {
            window::MESSAGES => function.vectors.read(offset - window::MESSAGES, bytes),
            window::PENDING => function.vectors.read_pending(offset - window::PENDING, bytes),
            _ => function.device.read(offset, bytes),
        }
    }

    /// Writes the window of devices.
    pub fn write(
        &mut self,
        address: u64,
        bytes: usize,
        value: u64,
        memory: &GuestMemoryMmap,
        effects: &mut Effects,
    ) {
        let Some((function, offset)) = self.function_at(address) else { return };
        match offset & !(window::PART - 1) {
            window::MESSAGES => function.vectors.write(offset - window::MESSAGES, bytes, value),
            // A device that is not master of the bus must not access memory.
            window::NOTIFY if !function.config.is_master() => {}
            _ => {
                let vector = function.device.write(offset, bytes, value, memory, effects);
                if let Some(vector) = vector {
                    function.vectors.raise(vector);
                }
            }
        }
        function.send_pending(effects);
    }

    /// The device whose window contains an address, and the offset in it.
    fn function_at(&mut self, address: u64) -> Option<(&mut Function, u32)> {
        self.functions.iter_mut().find_map(|function| {
            let offset = address.checked_sub(function.config.window()?)?;
            (offset < WINDOW_BYTES).then_some((function, offset as u32))
        })
    }
}

impl Function {
    fn send_pending(&mut self, effects: &mut Effects) {
        if self.config.is_master() && self.config.sends_messages() {
            effects.messages.extend(self.vectors.take_pending());
        }
    }
}

/// The slot and the register of an address in configuration space: bits 7 to 0 and 27 to 24 are the register's, bits 15
/// to 11 those of the slot, 10 to 8 those of the function, and others those of the bus. Slot 0 of the bus is empty.
fn config_address(offset: u64) -> Option<(usize, usize)> {
    let register = offset & 0xff | offset >> 16 & 0xf00;
    let is_present = offset & !0x0f00_f8ff == 0;
    let slot = (offset >> 11 & 0x1f).checked_sub(1)?;
    is_present.then_some((slot as usize, register as usize))
}
