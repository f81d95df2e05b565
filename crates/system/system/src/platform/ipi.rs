//! Inter-processor interrupts and mailboxes of one core. Source: Loongson 3A5000 user manual, volume 1, chapter 10
//! (inter-processor interrupts and communication).

/// Status, enable and mailboxes.
#[derive(Debug, Default)]
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

    /// Status in the low half, enable in the high half.
    pub fn control(&self) -> u64 {
        u64::from(self.enable) << 32 | u64::from(self.status)
    }

    /// Sets the enabled interrupts. The status is read-only.
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

    /// What firmware does when an interrupt wakes a core that has not started: acknowledges it, and returns the address in
    /// mailbox 0 unless it is 0.
    pub fn take_start(&mut self) -> Option<u64> {
        (std::mem::take(&mut self.status) != 0 && self.mailboxes[0] != 0).then_some(self.mailboxes[0])
    }

    /// Mailbox `number`, 0 to 3.
    pub fn mailbox(&mut self, number: usize) -> &mut u64 {
        &mut self.mailboxes[number & 3]
    }
}
