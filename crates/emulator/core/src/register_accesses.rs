//! Which instructions access registers of devices: after some faults of the host, translated code hands them over without one.
//! Not the accesses, which whoever keeps the devices makes.
//! Source: emulators commonly patch instructions that fault on device memory.

use std::sync::{
    PoisonError,
    atomic::{AtomicBool, Ordering},
};

use longma_guest::host::locks::RwLock;
use rustc_hash::FxHashMap;

/// So many accesses make it likely that an instruction is there for registers: it costs a fault each until then, and ordinary memory
/// is slower from there afterwards.
const SURE: u32 = 8;
/// A hostile program must not make the list grow without end.
const MOST: usize = 1 << 14;

/// Instructions that access registers, by address, with how often they did.
#[derive(Debug, Default)]
pub(crate) struct RegisterAccesses {
    any: AtomicBool,
    counts: RwLock<FxHashMap<u64, u32>>,
}

impl RegisterAccesses {
    /// The instruction at `pc` has accessed registers; true if it is to be handed over from now on.
    pub fn note(&self, pc: u64) -> bool {
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST && !counts.contains_key(&pc) {
            return false;
        }
        let count = counts.entry(pc).or_default();
        *count = count.saturating_add(1);
        if *count == SURE {
            self.any.store(true, Ordering::Relaxed);
        }
        *count == SURE
    }

    /// Whether the instruction at `pc` is handed over.
    pub fn is_known(&self, pc: u64) -> bool {
        self.any.load(Ordering::Relaxed)
            && self.counts.read().unwrap_or_else(PoisonError::into_inner).get(&pc).is_some_and(|n| *n >= SURE)
    }
}
