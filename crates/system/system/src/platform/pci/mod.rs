//! The PCI host of the bridge chip: one bus with a device in each slot, a window of memory for the registers of each
//! device, and interrupts as messages (MSI-X). Software may move a window at any time; an access uses the current
//! addresses. Source: PCI Local Bus Specification 3.0, chapter 6 (configuration space); Linux,
//! drivers/pci/controller/pci-loongson.c (addresses of registers).

mod config;
mod msix;
mod saved;

use std::time::Duration;

use vm_memory::GuestMemoryMmap;

use super::virtio::Transport;
pub use config::Config;
pub use msix::{Message, Vectors};
pub use saved::SavedFunction;

/// The maximum number of devices on the bus. Slot 0 is empty.
pub const MAX_DEVICES: usize = 8;
/// Bytes of a device's window: the registers, the MSI-X table and the pending bits.
pub const WINDOW_BYTES: u64 = 0x8000;

/// Offsets of the parts of a window.
pub mod window {
    /// The configuration common to all virtio devices.
    pub const COMMON: u32 = 0;
    /// The interrupt status.
    pub const STATUS: u32 = 0x1000;
    /// The configuration specific to the type of device.
    pub const DEVICE: u32 = 0x2000;
    /// The notification registers: four bytes for each queue.
    pub const NOTIFY: u32 = 0x3000;
    /// The MSI-X table.
    pub const MESSAGES: u32 = 0x4000;
    /// The MSI-X pending bits.
    pub const PENDING: u32 = 0x5000;
    /// Bytes from one part to the next.
    pub const PART: u32 = 0x1000;
}

/// The effects of an access on memory and the machine.
#[derive(Debug, Default)]
pub struct Effects {
    /// Ranges of memory that devices may have written: start and end.
    pub written: Vec<(u64, u64)>,
    /// Cycles that the access takes.
    pub cycles: u64,
    /// Messages to deliver.
    pub messages: Vec<Message>,
}

/// The maximum number of separate ranges, since a driver may send any number of descriptors. Beyond it, ranges are
/// merged into one.
const MAX_RANGES: usize = 256;

impl Effects {
    /// Records that a device may have written a range of memory.
    pub fn write(&mut self, start: u64, bytes: u64) {
        let mut range = (start, start.saturating_add(bytes));
        if range.0 == range.1 {
            return;
        }
        if self.written.len() == MAX_RANGES {
            range = self.written.drain(..).fold(range, |all, part| (all.0.min(part.0), all.1.max(part.1)));
        }
        self.written.push(range);
    }
}

/// A device: its PCI registers and the virtio device behind them.
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
    /// Attaches a device to the next slot. Returns whether one was free.
    pub fn attach(&mut self, device: Transport) -> bool {
        let has_room = self.functions.len() < MAX_DEVICES;
        if has_room {
            let vectors = Vectors::new(device.vectors());
            let config = Config::virtio(device.kind(), vectors.count());
            self.functions.push(Function { config, vectors, device });
        }
        has_room
    }

    /// Reads configuration space. Returns all ones if no device answers.
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

    /// Reads memory space. Returns all ones if no device answers.
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

    /// Writes memory space.
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
            // A device that is not a bus master must not access memory.
            window::NOTIFY if !function.config.is_master() => {}
            _ => {
                let vectors = function.device.write(offset, bytes, value, memory, effects);
                vectors.into_iter().for_each(|vector| function.vectors.raise(vector));
            }
        }
        function.send_pending(effects);
    }

    /// Exchanges frames of NICs with their networks; see [`Transport::exchange`].
    pub fn exchange(&mut self, now_ns: u64, wait: Duration, memory: &GuestMemoryMmap, effects: &mut Effects) {
        for function in &mut self.functions {
            function.device.exchange(now_ns, wait);
            if function.config.is_master() {
                if let Some(vector) = function.device.receive(memory, effects) {
                    function.vectors.raise(vector);
                }
                function.send_pending(effects);
            }
        }
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

/// The slot, counted from the first device, and the register of an address in configuration space. Bits 7 to 0 and 27
/// to 24 select the register, bits 15 to 11 the slot, bits 10 to 8 the function, and the other bits the bus. Slot 0 is
/// empty.
fn config_address(offset: u64) -> Option<(usize, usize)> {
    let register = offset & 0xff | offset >> 16 & 0xf00;
    let is_present = offset & !0x0f00_f8ff == 0;
    let slot = (offset >> 11 & 0x1f).checked_sub(1)?;
    is_present.then_some((slot as usize, register as usize))
}
