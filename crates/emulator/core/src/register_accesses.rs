//! Learns which instructions access device registers. After several host faults, translated code passes an instruction
//! that accesses device registers directly to the run loop. The owner of the devices performs the accesses. Source:
//! emulators commonly patch instructions that fault on device memory.

use longma_locks::IgnorePoison;
use std::sync::atomic::{AtomicBool, Ordering};

use longma_guest::host::locks::RwLock;
use rustc_hash::FxHashMap;

/// The number of accesses after which an instruction is assumed to access registers. Until then each access costs a
/// host fault; afterwards the instruction is slower for ordinary memory.
const LEARN_THRESHOLD: u32 = 8;
/// The maximum number of entries, so that a hostile program cannot exhaust memory.
const MAX_ENTRIES: usize = 1 << 14;

/// Access counts by instruction address.
#[derive(Debug, Default)]
pub(crate) struct RegisterAccesses {
    any: AtomicBool,
    counts: RwLock<FxHashMap<u64, u32>>,
}

impl RegisterAccesses {
    /// Counts a register access by the instruction at `pc`. Returns whether the instruction is now passed to the run
    /// loop.
    pub fn note(&self, pc: u64) -> bool {
        let mut counts = self.counts.write().ignore_poison();
        if counts.len() >= MAX_ENTRIES && !counts.contains_key(&pc) {
            return false;
        }
        let count = counts.entry(pc).or_default();
        *count = count.saturating_add(1);
        if *count == LEARN_THRESHOLD {
            self.any.store(true, Ordering::Relaxed);
        }
        *count == LEARN_THRESHOLD
    }

    /// Whether the instruction at `pc` is passed to the run loop.
    pub fn is_known(&self, pc: u64) -> bool {
        self.any.load(Ordering::Relaxed)
            && self.counts.read().ignore_poison().get(&pc).is_some_and(|n| *n >= LEARN_THRESHOLD)
    }
}
