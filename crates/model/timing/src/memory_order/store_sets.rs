//! Store sets: a load waits for stores with which it has collided earlier. Stores of one set need not be ordered,
//! because a load waits until the addresses of all of them are known.
//!
//! Source: Chrysos and Emer, Memory Dependence Prediction using Store Sets (ISCA 1998), sections 3 and 4.

use super::{Order, index};

/// Loads and stores between two clearings of the sets, so that old collisions do not delay loads forever: gem5's value
/// (BaseO3CPU.py, store_set_clear_period).
const CLEAR_ACCESSES: u32 = 250_000;

/// The sets. A set is identified by the table index of the load that started it.
#[derive(Debug)]
pub(crate) struct StoreSets {
    /// The set of each load and store.
    set_of: Box<[Option<u32>]>,
    /// For each set, when the addresses of its stores are known.
    known: Box<[u64]>,
    /// Loads and stores since the last clearing.
    accesses: u32,
}

impl StoreSets {
    /// Creates an empty table of `entries` loads and stores.
    pub fn new(entries: u32) -> Self {
        let entries = entries as usize;
        Self { set_of: vec![None; entries].into(), known: vec![0; entries].into(), accesses: 0 }
    }

    fn set(&mut self, pc: u64) -> &mut Option<u32> {
        &mut self.set_of[index(pc, self.set_of.len())]
    }

    /// The cycle in which the addresses of all stores in the set of `pc` are known.
    fn known(&mut self, pc: u64) -> Option<&mut u64> {
        self.accesses += 1;
        if self.accesses == CLEAR_ACCESSES {
            self.set_of.fill(None);
            self.accesses = 0;
        }
        let set = (*self.set(pc))?;
        Some(&mut self.known[set as usize])
    }
}

impl Order for StoreSets {
    fn store(&mut self, pc: u64, known_at: u64) {
        if let Some(all) = self.known(pc) {
            *all = known_at.max(*all);
        }
    }

    fn wait(&mut self, pc: u64) -> u64 {
        self.known(pc).map_or(0, |all| *all)
    }

    fn collided(&mut self, pc: u64, store: u64) {
        let set = match (*self.set(pc), *self.set(store)) {
            (None, None) => index(pc, self.set_of.len()) as u32,
            (Some(set), None) | (None, Some(set)) => set,
            // The smaller identifier wins, so that related sets merge.
            (Some(one), Some(other)) => one.min(other),
        };
        *self.set(pc) = Some(set);
        *self.set(store) = Some(set);
    }

    fn learn_from_load(&mut self, _: u64, _: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_waits_for_the_stores_that_it_has_collided_with_and_for_no_others() {
        let mut sets = StoreSets::new(64);
        sets.collided(0x200, 0x100);
        sets.store(0x100, 70);
        sets.store(0x104, 90);
        assert_eq!(sets.wait(0x200), 70);
        assert_eq!(sets.wait(0x204), 0);
    }

    #[test]
    fn conflicting_loads_and_stores_share_a_store_set() {
        let mut sets = StoreSets::new(64);
        sets.collided(0x204, 0x104);
        sets.collided(0x200, 0x100);
        sets.collided(0x204, 0x100);
        sets.store(0x100, 70);
        assert_eq!((sets.wait(0x200), sets.wait(0x204)), (70, 70));
        // The next collision adds the store to the set again.
        sets.collided(0x204, 0x104);
        sets.store(0x104, 90);
        assert_eq!(sets.wait(0x204), 90);
    }

    #[test]
    fn sets_are_cleared_periodically() {
        let mut sets = StoreSets::new(64);
        sets.collided(0x200, 0x100);
        sets.store(0x100, 70);
        let waited = (0..CLEAR_ACCESSES).filter(|_| sets.wait(0x200) == 70).count();
        assert_eq!(waited, CLEAR_ACCESSES as usize - 2);
        assert_eq!(sets.wait(0x200), 0);
    }
}
