//! Which execution units of an in-order core are taken now, and until when.
//! Not the units of a core that issues out of order: those are taken ahead of time, see `calendar.rs`.

/// Units that a mask can name.
const MOST_UNITS: usize = u32::BITS as usize;

/// Execution units. Operations ask in program order, for cycles that never go back.
#[derive(Debug)]
pub(crate) struct Units {
    cycle: u64,
    /// Units taken in `cycle`, a bit each.
    busy: u32,
    /// Those of them that may be taken longer.
    held: u32,
    /// When each unit that is held is free again.
    until: [u64; MOST_UNITS],
}

impl Units {
    /// All free.
    pub fn new() -> Self {
        Self { cycle: 0, busy: 0, held: 0, until: [0; _] }
    }

    /// Takes one of `units`, which are not none, for `interval` cycles, at the first cycle at or after `ready` in which one is
    /// free; returns that cycle.
    #[inline]
    pub fn issue(&mut self, ready: u64, units: u32, interval: u16) -> u64 {
        if ready > self.cycle {
            self.begin(ready);
        }
        while units & !self.busy == 0 {
            self.begin(self.cycle + 1);
        }
        // The highest, because operations that only some units execute take the lowest.
        let unit = (units & !self.busy).ilog2();
        self.busy |= 1 << unit;
        if interval > 1 {
            self.held |= 1 << unit;
            self.until[unit as usize] = self.cycle + u64::from(interval);
        }
        self.cycle
    }

    /// The units taken in `cycle`, which is not before the last one asked about, and those of them that are taken longer, a bit each.
    pub fn taken_at(&mut self, cycle: u64) -> (u32, u32) {
        if cycle > self.cycle {
            self.begin(cycle);
        }
        (self.busy, self.held)
    }

    /// The cycle in which `unit`, which is taken longer, is free again.
    pub fn held_until(&self, unit: u8) -> u64 {
        self.until[usize::from(unit) % MOST_UNITS]
    }

    /// Makes the units `busy` taken in `cycle`, and those of `held` until the cycles that it says.
    pub fn take_at(&mut self, cycle: u64, busy: u32, held: impl Iterator<Item = (u8, u64)>) {
        (self.cycle, self.busy, self.held) = (cycle, busy, 0);
        for (unit, until) in held {
            self.held |= 1 << unit;
            self.until[usize::from(unit) % MOST_UNITS] = until;
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
        fn in_program_order_it_says_what_the_calendar_says(
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
