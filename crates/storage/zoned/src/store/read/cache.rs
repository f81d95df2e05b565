//! The cache of nodes: clock replacement over the leaves of the tree in key order. An inner node is evicted once none of its
//! children is in memory.
//!
//! Source: Corbató, "A Paging Experiment with the Multics System", 1968 (the clock algorithm).

use crate::device::ZonedDevice;
use crate::store::Shared;
use crate::store::tree::nodes::InnerSlot;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

impl<D: ZonedDevice> Shared<D> {
    /// Evicts nodes until the cache is within its limit. Returns immediately if another thread is already evicting.
    pub fn shrink_cache(&self) {
        let from = self.shrink_from.load(Ordering::Relaxed).max(self.options.cache_bytes);
        if self.io.resident_bytes() <= from {
            return;
        }
        let mut clock_hand = match self.clock_hand.try_lock() {
            Ok(clock_hand) => clock_hand,
            Err(TryLockError::Poisoned(clock_hand)) => clock_hand.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let root = Arc::clone(&self.published.load().tree.root);
        self.all_resident.store(false, Ordering::Release);
        // Evict slightly more than necessary, so that not every leaf read starts a sweep.
        let target = self.options.cache_bytes - self.options.cache_bytes / 16;
        // The first sweep starts in the middle, so three sweeps are at least two full rounds. In the first round, every
        // leaf may be referenced; the round then only clears the flags.
        for _ in 0..3 {
            let from = std::mem::take(&mut *clock_hand);
            if self.sweep(&root, &from, target, &mut clock_hand).is_break() {
                self.shrink_from.store(0, Ordering::Relaxed);
                return;
            }
        }
        // The remaining leaves cannot be evicted before a checkpoint writes them. Raise the threshold, so that not
        // every leaf read starts a useless sweep.
        let later = self.io.resident_bytes() + self.options.cache_bytes / 16;
        self.shrink_from.store(later, Ordering::Relaxed);
    }

    /// Sweeps the leaves from key `from` on. Breaks when the target is reached; `clock_hand` is then the key at which the
    /// next sweep starts.
    fn sweep(&self, slot: &InnerSlot, from: &[u8], target: u64, clock_hand: &mut Vec<u8>) -> ControlFlow<()> {
        // An inner node that is not in memory has no leaves in memory.
        let Some(inner) = slot.loaded() else { return ControlFlow::Continue(()) };
        let first = inner.keys.child(from);
        for below in inner.inners().iter().skip(first) {
            self.sweep(below, from, target, clock_hand)?;
            below.evict_if_unused();
        }
        for (index, leaf) in inner.leaves().iter().enumerate().skip(first) {
            if self.io.resident_bytes() <= target {
                clock_hand.extend_from_slice(inner.keys.get(index));
                return ControlFlow::Break(());
            }
            leaf.evict_if_unused();
        }
        ControlFlow::Continue(())
    }
}
