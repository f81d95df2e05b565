//! Inter-processor interrupts and mailboxes of one core. Source: Loongson 3A5000 user manual, volume 1, chapter 10
//! (inter-processor interrupts and communication).

use serde::{Deserialize, Serialize};

/// The IPI registers of a core: status, enable and mailboxes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipi {
    status: u32,
    enable: u32,
    mailboxes: [u64; 4],
}

impl Ipi {
    /// Whether the core's IPI line is asserted.
    pub fn asserts(&self) -> bool {
        self.status & self.enable != 0
    }

    /// The status in the low half and the enable bits in the high half.
    pub fn control(&self) -> u64 {
        u64::from(self.enable) << 32 | u64::from(self.status)
    }

    /// Sets the enable bits. The status is read-only.
    pub fn set_control(&mut self, value: u64) {
        self.enable = (value >> 32) as u32;
    }

    /// Sets status bits.
    pub fn send(&mut self, bits: u32) {
        self.status |= bits;
    }

    /// Clears status bits.
    pub fn clear(&mut self, bits: u32) {
        self.status &= !bits;
    }

    /// Starts a core as firmware does when an interrupt wakes it: clears the status, and returns the address in mailbox
    /// 0 unless it is 0.
    pub fn take_start(&mut self) -> Option<u64> {
        (std::mem::take(&mut self.status) != 0 && self.mailboxes[0] != 0).then_some(self.mailboxes[0])
    }

    /// The mailbox `number`, 0 to 3.
    pub fn mailbox(&mut self, number: usize) -> &mut u64 {
        &mut self.mailboxes[number & 3]
    }
}
