//! Memory-order prediction by a saturating counter per load: a load passes stores with unknown addresses only if its
//! counter is saturated. The patent's watchdog, which disables prediction during phases of many errors, is not
//! modelled.
//!
//! Source: the saturation counters of Krimer et al., Counter-based memory disambiguation techniques for selectively
//! predicting load/store conflicts (US patent 8,549,263). The maximum count is an estimate.

use super::{Order, index};

/// Maximum count. Estimate: four bits.
const SATURATED: u8 = 15;

/// The counters.
#[derive(Debug)]
pub(crate) struct Counters {
    /// For each load, the number of executions since it last depended on a pending store, up to [`SATURATED`].
    harmless: Box<[u8]>,
    /// When the addresses of all stores are known.
    all_known: u64,
}

impl Counters {
    /// Creates counters at zero: initially every load waits.
    pub fn new(entries: u32) -> Self {
        Self { harmless: vec![0; entries as usize].into(), all_known: 0 }
    }

    fn counter(&mut self, pc: u64) -> &mut u8 {
        &mut self.harmless[index(pc, self.harmless.len())]
    }
}

impl Order for Counters {
    fn store(&mut self, _: u64, known_at: u64) {
        self.all_known = self.all_known.max(known_at);
    }

    fn wait(&mut self, pc: u64) -> u64 {
        if *self.counter(pc) == SATURATED { 0 } else { self.all_known }
    }

    fn collided(&mut self, pc: u64, _: u64) {
        *self.counter(pc) = 0;
    }

    fn learn_from_load(&mut self, pc: u64, passes: bool) {
        let counter = self.counter(pc);
        *counter = if passes { (*counter + 1).min(SATURATED) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_waits_for_all_stores_until_its_counter_is_saturated() {
        let mut counters = Counters::new(64);
        counters.store(0x100, 70);
        counters.store(0x104, 50);
        for _ in 0..SATURATED {
            assert_eq!(counters.wait(0x200), 70);
            counters.learn_from_load(0x200, true);
        }
        assert_eq!(counters.wait(0x200), 0);
        assert_eq!(counters.wait(0x204), 70, "another load is not trained");
        counters.collided(0x200, 0x100);
        assert_eq!(counters.wait(0x200), 70);
    }

    #[test]
    fn a_conflicting_load_issues_again() {
        let mut counters = Counters::new(64);
        counters.store(0x100, 70);
        (0..SATURATED).for_each(|_| counters.learn_from_load(0x200, true));
        counters.learn_from_load(0x200, false);
        assert_eq!(counters.wait(0x200), 70);
    }
}
