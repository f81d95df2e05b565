//! The publisher's slots: which are free, and which were overwritten but may still be held by a subscriber.

/// The number of overwritten slots to accumulate before checking which of them subscribers hold.
pub(crate) const BATCH: u32 = 4;

/// The slots that are neither loaned nor in the ring.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free slots. The last one is used next, because it is likely to be cached.
    free: Vec<u32>,
    /// Slots whose message was overwritten.
    retired: Vec<u32>,
    /// The first slot that was never used. Unused slots occupy no memory.
    fresh: u32,
    total: u32,
}

impl Pool {
    /// All `total` slots are free.
    pub(crate) fn new(total: u32) -> Self {
        Self { free: Vec::new(), retired: Vec::new(), fresh: 0, total }
    }

    /// Allocates a slot that no subscriber holds. `collect_holds` returns all held slots; it is called at most once. Returns
    /// `None` if all slots are in use, which cannot happen with a topic's number of slots.
    pub(crate) fn take(&mut self, collect_holds: impl FnOnce() -> Vec<u32>) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let has_fresh = self.fresh < self.total;
        if self.retired.len() >= BATCH as usize || !has_fresh {
            let holds = collect_holds();
            let free = &mut self.free;
            self.retired.retain(|slot| {
                let is_held = holds.contains(slot);
                if !is_held {
                    free.push(*slot);
                }
                is_held
            });
            if let Some(slot) = self.free.pop() {
                return Some(slot);
            }
        }
        has_fresh.then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// Frees a slot that was never visible to subscribers.
    pub(crate) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Frees a slot whose message was withdrawn and may still be held.
    pub(crate) fn retire(&mut self, slot: u32) {
        self.retired.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    proptest! {
        /// Subscribers hold and release slots at random, up to their limit. The publisher always gets a slot, which is
        /// neither in the ring nor held.
        #[test]
        fn a_slot_is_always_available_and_never_one_in_use(
            depth in 1u32..6, max_held in 1u32..5, steps in proptest::collection::vec((any::<u8>(), any::<u8>()), 1..300),
        ) {
            let mut pool = Pool::new(depth + 1 + max_held + BATCH);
            let (mut ring, mut holds) = (VecDeque::new(), Vec::<u32>::new());
            for (what, which) in steps {
                match what % 3 {
                    0 if holds.len() < max_held as usize && !ring.is_empty() => holds.push(ring[which as usize % ring.len()]),
                    1 if !holds.is_empty() => { holds.swap_remove(which as usize % holds.len()); }
                    _ => {
                        let slot = pool.take(|| holds.clone());
                        prop_assert!(slot.is_some());
                        let slot = slot.unwrap();
                        prop_assert!(!holds.contains(&slot) && !ring.contains(&slot));
                        if which % 5 == 0 {
                            pool.free(slot);
                            continue;
                        }
                        if ring.len() == depth as usize {
                            pool.retire(ring.pop_front().unwrap());
                        }
                        ring.push_back(slot);
                    }
                }
            }
            let in_ring: BTreeSet<_> = ring.iter().collect();
            prop_assert_eq!(in_ring.len(), ring.len());
        }

        #[test]
        fn without_holds_few_slots_are_ever_used(depth in 1u32..50, messages in 1usize..500) {
            let mut pool = Pool::new(1000);
            let mut ring = VecDeque::new();
            for _ in 0..messages {
                let slot = pool.take(Vec::new).unwrap();
                if ring.len() == depth as usize {
                    pool.retire(ring.pop_front().unwrap());
                }
                ring.push_back(slot);
            }
            prop_assert!(pool.fresh <= depth + BATCH + 1, "{} slots for {}", pool.fresh, depth);
        }
    }
}
