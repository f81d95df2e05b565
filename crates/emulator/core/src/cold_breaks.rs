//! Counts executions of `break` instructions. Translated code of other architectures exits through a `break` until the
//! exit is linked. A `break` is decoded as a block only after it has executed as often as code that is translated.

use crate::profile::HOT_THRESHOLD;

/// The number of slots, a power of two.
const SLOTS: usize = 1024;

/// The latest breaks and their execution counts, indexed by a hash of the address. A collision only costs time.
pub(crate) struct ColdBreaks(Box<[(u64, u32); SLOTS]>);

impl Default for ColdBreaks {
    fn default() -> Self {
        Self(Box::new([(0, 0); SLOTS]))
    }
}

impl ColdBreaks {
    fn slot_index(pc: u64) -> usize {
        (pc >> 2) as usize % SLOTS
    }

    /// Whether the last instruction seen at `pc` was a cold `break`.
    pub fn has(&self, pc: u64) -> bool {
        let (address, visits) = self.0[Self::slot_index(pc)];
        address == pc && (1..HOT_THRESHOLD).contains(&visits)
    }

    /// Counts an execution of the `break` at `pc`. Returns false if it is no longer cold.
    pub fn visit(&mut self, pc: u64) -> bool {
        let slot = &mut self.0[Self::slot_index(pc)];
        *slot = if slot.0 == pc { (pc, slot.1.saturating_add(1)) } else { (pc, 1) };
        slot.1 < HOT_THRESHOLD
    }

    /// Forgets `pc`, where there is no `break` any more.
    pub fn forget(&mut self, pc: u64) {
        if self.has(pc) {
            self.0[Self::slot_index(pc)] = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_break_is_cold_until_it_has_executed_often_or_is_forgotten() {
        let mut breaks = ColdBreaks::default();
        assert!(!breaks.has(0) && !breaks.has(0x1000));
        for _ in 1..HOT_THRESHOLD {
            assert!(breaks.visit(0x1000) && breaks.has(0x1000));
        }
        assert!(!breaks.visit(0x1000) && !breaks.has(0x1000));
        assert!(breaks.visit(0x2004));
        breaks.forget(0x2004);
        assert!(!breaks.has(0x2004));
    }

    #[test]
    fn colliding_addresses_evict_each_other() {
        let mut breaks = ColdBreaks::default();
        let other = 0x1000 + 4 * SLOTS as u64;
        assert!(breaks.visit(0x1000) && breaks.visit(other));
        assert!(breaks.has(other) && !breaks.has(0x1000));
        breaks.forget(0x1000);
        assert!(breaks.has(other));
    }
}
