//! The slots of a core's last stage, cycle by cycle, each charged to a cause.

use crate::stack::{Cause, CpiStack};

/// The progress of retirement.
#[derive(Debug)]
pub(crate) struct Timeline {
    cycle: u64,
    /// Slots of `cycle` that are used or lost.
    used: u64,
    width: u64,
    stack: CpiStack,
    pub instructions: u64,
}

impl Timeline {
    /// Starts at cycle 0 with `width` slots a cycle.
    pub fn new(width: u64) -> Self {
        Self { cycle: 0, used: 0, width, stack: CpiStack::new(width), instructions: 0 }
    }

    /// The cycle of the last slot.
    #[inline]
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// The first cycle with no slot used or lost.
    pub fn now(&self) -> u64 {
        self.cycle + u64::from(self.used > 0)
    }

    /// The cycle of the next slot.
    #[inline]
    pub fn next(&self) -> u64 {
        self.cycle + u64::from(self.used == self.width)
    }

    /// Number of slots since time zero.
    #[inline]
    pub fn position(&self) -> u64 {
        self.cycle * self.width + self.used
    }

    /// Slots of the current cycle that are used or lost.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Advances by `cycles`; `used` slots of the last cycle are used or lost. In these cycles, `instructions` were
    /// executed and the slots in `lost` were lost.
    #[inline]
    pub fn repeat(&mut self, cycles: u64, used: u64, instructions: u64, lost: &[(Cause, u64)]) {
        self.cycle += cycles;
        self.used = used;
        self.instructions += instructions;
        lost.iter().for_each(|&(cause, slots)| self.stack.add(cause, slots));
    }

    /// The slots lost so far, by cause.
    pub fn lost(&self) -> &CpiStack {
        &self.stack
    }

    /// Counts every slot before `cycle` as lost to `cause`.
    #[inline]
    pub fn wait(&mut self, cycle: u64, cause: Cause) {
        if cycle > self.cycle {
            self.stack.add(cause, (cycle - self.cycle) * self.width - self.used);
            (self.cycle, self.used) = (cycle, 0);
        }
    }

    /// Skips all slots before `cycle` without counting them. The rest of the current cycle is treated as used.
    pub fn pass(&mut self, cycle: u64) {
        if cycle > self.cycle {
            let rest = if self.used > 0 { self.width - self.used } else { 0 };
            self.stack.add(Cause::Base, rest);
            (self.cycle, self.used) = (cycle, 0);
        }
    }

    /// Like [`wait`](Self::wait), but charges up to `translation_cycles` of the wait to address translation.
    #[inline]
    pub fn wait_for_memory(&mut self, cycle: u64, cause: Cause, translation_cycles: u32) {
        if translation_cycles > 0 {
            self.wait(cycle.min(self.cycle + u64::from(translation_cycles)), Cause::Translation);
        }
        self.wait(cycle, cause);
    }

    /// Uses the next slot for an instruction and returns its cycle.
    #[inline]
    pub fn take(&mut self) -> u64 {
        if self.used == self.width {
            self.cycle += 1;
            self.used = 0;
        }
        self.used += 1;
        self.instructions += 1;
        self.cycle
    }

    /// The stack. The rest of the last cycle is treated as used, so that the sum is a whole number of cycles.
    pub fn stack(&self) -> CpiStack {
        let mut stack = self.stack.clone();
        stack.add(Cause::Base, self.instructions);
        let rest = stack.total_slots().next_multiple_of(self.width) - stack.total_slots();
        stack.add(Cause::Base, rest);
        stack
    }

    /// Resets the counts. Time continues.
    pub fn clear_counts(&mut self) {
        self.stack.clear();
        self.instructions = 0;
    }
}
