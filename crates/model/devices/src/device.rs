//! The interface between a device and the machine: timed register accesses and autonomous events.
//!
//! Source: the separation of configuration, state and behaviour follows Akita.

use crate::Bus;
use crate::registers::RegisterMap;
use longma_sim::{Duration, Time};

/// The result of a register read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The value; 0 if there is no register.
    pub value: u64,
    /// Duration of the access, excluding the path between core and device.
    pub takes: Duration,
}

/// An event count of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Name among the device's counts.
    pub name: &'static str,
    /// Number of events since the device was created.
    pub value: u64,
    /// Unit of the count.
    pub unit: &'static str,
    /// Description.
    pub about: &'static str,
}

impl Count {
    /// Creates a count.
    pub const fn new(name: &'static str, value: u64, unit: &'static str, about: &'static str) -> Self {
        Self { name, value, unit, about }
    }
}

/// A device. Its state is plain data, so a copy is a checkpoint.
///
/// The caller drives time: it calls [`Device::advance`] no later than the time of `next_event`, and before every
/// access. Time never decreases; a call with an earlier time than the previous call is processed at the time of the
/// previous call.
///
/// A device accepts any access by software: no offset, width or value makes it panic or hang.
pub trait Device: Send {
    /// The register map.
    fn registers(&self) -> &'static RegisterMap;

    /// Reads `width` (1, 2, 4 or 8) bytes of registers at `offset`, after all events up to `at`.
    fn read(&mut self, offset: u64, width: u32, at: Time, bus: &mut dyn Bus) -> Answer;

    /// Writes the low `width` bytes of `value` to registers at `offset`, after all events up to `at`. Returns the
    /// duration of the access.
    fn write(&mut self, offset: u64, width: u32, value: u64, at: Time, bus: &mut dyn Bus) -> Duration;

    /// Time of the next autonomous event; `None` while the device waits for software or an external event.
    fn next_event(&self) -> Option<Time>;

    /// Processes all events up to `until`, in order.
    fn advance(&mut self, until: Time, bus: &mut dyn Bus);

    /// Event counts. Every call returns the same counts in the same order.
    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }

    /// Whether the device ever raises an interrupt.
    fn interrupts(&self) -> bool {
        true
    }

    /// Whether the device's events affect no other device, so that they may be processed at once up to another device's
    /// next event.
    fn acts_alone(&self) -> bool {
        false
    }
}
