//! Which leaves stay in memory: a clock whose hand goes over the tree's leaves in the order of their keys.
//! Not inner nodes: they stay.
//! Source: Corbató, "A Paging Experiment with the Multics System", 1968 (the clock).

use super::Shared;
use super::tree::InnerSlot;
use crate::device::ZonedDevice;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

impl<D: ZonedDevice> Shared<D> {
    /// Drops leaves from memory until they take what they may, if nobody else is at it.
    pub fn shrink_cache(&self) {
        let from = self.shrink_from.load(Ordering::Relaxed).max(self.options.cache_bytes);
        if self.io.resident_bytes() <= from {
            return;
        }
        let mut hand = match self.hand.try_lock() {
            Ok(hand) => hand,
            Err(TryLockError::Poisoned(hand)) => hand.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let root = Arc::clone(&self.newest.load().tree.root);
        self.all_resident.store(false, Ordering::Release);
        // A little more, so that it is not for every leaf that is read.
        let target = self.options.cache_bytes - self.options.cache_bytes / 16;
        // Twice around: the first time may find all leaves touched.
        for _ in 0..3 {
            let from = std::mem::take(&mut *hand);
            if self.sweep(&root, &from, target, &mut hand).is_break() {
                self.shrink_from.store(0, Ordering::Relaxed);
                return;
            }
        }
        // The rest waits for a checkpoint: looking again for each leaf that is read would only take time.
        let later = self.io.resident_bytes() + self.options.cache_bytes / 16;
        self.shrink_from.store(later, Ordering::Relaxed);
    }

    /// Goes over the leaves from `from` on; breaks when enough was dropped, and then `hand` is where it goes on.
    fn sweep(&self, slot: &InnerSlot, from: &[u8], target: u64, hand: &mut Vec<u8>) -> ControlFlow<()> {
        // What is not in memory has no leaves in memory.
        let Some(inner) = slot.node.get() else { return ControlFlow::Continue(()) };
        let first = inner.keys.child(from);
        for below in inner.inners().iter().skip(first) {
            self.sweep(below, from, target, hand)?;
        }
        for (index, leaf) in inner.leaves().iter().enumerate().skip(first) {
            if self.io.resident_bytes() <= target {
                hand.extend_from_slice(inner.keys.get(index));
                return ControlFlow::Break(());
            }
            leaf.drop_if_unused();
        }
        ControlFlow::Continue(())
    }
}
