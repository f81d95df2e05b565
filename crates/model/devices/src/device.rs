//! What every device is to the machine: registers that are read and written at a time, and work that it does by itself.
//! Not a bus: see `bus`.
//! Source: fixed configuration, state and behaviour apart, as in Akita.

use crate::Bus;
use crate::registers::RegisterMap;
use longma_sim::{Duration, Time};

/// What a device gives for a read of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The value; 0 where there is no register.
    pub value: u64,
    /// How long the access takes, beside the way between core and device.
    pub takes: Duration,
}

/// Something that a device has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// What it is called among the device's counts.
    pub name: &'static str,
    /// How many, since the device was made.
    pub value: u64,
    /// Of what.
    pub unit: &'static str,
    /// What it says.
    pub about: &'static str,
}

impl Count {
    /// A count of `value`.
    pub const fn new(name: &'static str, value: u64, unit: &'static str, about: &'static str) -> Self {
        Self { name, value, unit, about }
    }
}

/// A device. Its state is plain data, so a copy of it is a checkpoint.
///
/// The caller keeps time: it calls [`Device::advance`] before `next_event` passes, and at latest before an access. Times never go
/// back; a call with an earlier one than the last is taken as being at the last one.
///
/// Whatever software writes is answered: no offset, width or value makes a device panic or hang.
pub trait Device: Send {
    /// Its registers.
    fn registers(&self) -> &'static RegisterMap;

    /// Reads `width` (1, 2, 4 or 8) bytes of registers at `offset`, after everything that happens up to `at`.
    fn read(&mut self, offset: u64, width: u32, at: Time, bus: &mut dyn Bus) -> Answer;

    /// Writes the low `width` bytes of `value` to registers at `offset`, after everything that happens up to `at`; says how long
    /// that takes.
    fn write(&mut self, offset: u64, width: u32, value: u64, at: Time, bus: &mut dyn Bus) -> Duration;

    /// When it next does something by itself; `None` while it waits for software or the outside.
    fn next_event(&self) -> Option<Time>;

    /// Does everything that happens up to `until`, in order.
    fn advance(&mut self, until: Time, bus: &mut dyn Bus);

    /// What it has counted, the same counts in the same order whenever it is asked.
    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }

    /// Whether it ever raises an interrupt.
    fn interrupts(&self) -> bool {
        true
    }

    /// Whether it may do all that it does until another device's next event at once: nothing of it concerns other devices.
    fn acts_alone(&self) -> bool {
        false
    }
}
