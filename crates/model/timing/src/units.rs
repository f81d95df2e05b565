//! The execution units of an in-order core: which are in use, and until when. `calendar.rs` models units of an
//! out-of-order core, which are reserved in advance.

/// Maximum number of units, the bits of a mask.
const MAX_UNITS: usize = u32::BITS as usize;

/// The execution units. Operations issue in program order, so the cycles never decrease.
#[derive(Debug)]
pub(crate) struct Units {
    cycle: u64,
    /// Mask of the units in use in `cycle`.
    busy: u32,
    /// Mask of those that may be in use for longer.
    held: u32,
    /// For each held unit, when it is free again.
    until: [u64; MAX_UNITS],
}

impl Units {
    /// Creates units that are all free.
    pub fn new() -> Self {
        Self { cycle: 0, busy: 0, held: 0, until: [0; _] }
    }

    /// Occupies one of `units` (not empty) for `interval` cycles, in the first cycle at or after `ready` in which one
    /// is free. Returns that cycle.
    #[inline]
    pub fn issue(&mut self, ready: u64, units: u32, interval: u16) -> u64 {
        if ready > self.cycle {
            self.begin(ready);
        }
        while units & !self.busy == 0 {
            self.begin(self.cycle + 1);
        }
        // Choose the highest-numbered unit, because operations that only some units execute use the lowest.
        let unit = (units & !self.busy).ilog2();
        self.busy |= 1 << unit;
        if interval > 1 {
            self.held |= 1 << unit;
            self.until[unit as usize] = self.cycle + u64::from(interval);
        }
        self.cycle
    }

    /// Masks of the units in use in `cycle` and of the units held beyond it. `cycle` must not be less than in the last
    /// call.
    pub fn taken_at(&mut self, cycle: u64) -> (u32, u32) {
        if cycle > self.cycle {
            self.begin(cycle);
        }
        (self.busy, self.held)
    }

    /// The cycle in which a held unit is free again.
    pub fn held_until(&self, unit: u8) -> u64 {
        self.until[usize::from(unit) % MAX_UNITS]
    }

    /// Marks the units of `busy` as in use in `cycle`, and the units in `held_units` until the given cycles.
    pub fn take_at(&mut self, cycle: u64, busy: u32, held_units: impl Iterator<Item = (u8, u64)>) {
        (self.cycle, self.busy, self.held) = (cycle, busy, 0);
        for (unit, until) in held_units {
            self.held |= 1 << unit;
            self.until[usize::from(unit) % MAX_UNITS] = until;
        }
    }

    #[inline]
    fn begin(&mut self, cycle: u64) {
        self.cycle = cycle;
        if self.held != 0 {
            self.release();
        }
        self.busy = self.held;
    }

    #[cold]
    fn release(&mut self) {
        let mut held = self.held;
        while held != 0 {
            let unit = held.trailing_zeros();
            held &= held - 1;
            if self.until[unit as usize] <= self.cycle {
                self.held &= !(1 << unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::{Calendar, QUEUES};
    use proptest::prelude::*;

    #[test]
    fn an_unpipelined_unit_is_passed_around() {
        let mut units = Units::new();
        assert_eq!(units.issue(0, 0b1, 5), 0);
        assert_eq!(units.issue(0, 0b11, 1), 0, "another one is free");
        assert_eq!(units.issue(0, 0b11, 1), 1);
        assert_eq!(units.issue(1, 0b1, 1), 5);
    }

    proptest! {
        #[test]
        fn in_program_order_it_matches_the_calendar(
            asked in prop::collection::vec((0u64..4, 1u32..16, prop_oneof![4 => Just(1u16), 1 => 2u16..30]), 1..300),
        ) {
            let (mut units, mut calendar) = (Units::new(), Calendar::new(u8::MAX, [u32::MAX; QUEUES]));
            let mut cycle = 0;
            for (later, mask, interval) in asked {
                calendar.pass_to(cycle);
                let expected = calendar.issue(cycle + later, mask, interval.into(), 0);
                cycle = units.issue(cycle + later, mask, interval);
                prop_assert_eq!(cycle, expected);
            }
        }
    }
}
