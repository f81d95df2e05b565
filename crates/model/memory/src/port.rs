//! The interface between a core's timing model and the memory model.

use crate::translation::Side;
use longma_sim::Cycle;

/// The level of the memory hierarchy that supplied the data of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Source {
    /// The core's first-level cache, including a line whose fill was already in flight.
    Level1,
    /// The second-level cache.
    Level2,
    /// The third-level cache.
    Level3,
    /// Another core's private cache.
    Peer,
    /// Memory of the core's own NUMA node.
    LocalMemory,
    /// Memory or a cache of another NUMA node.
    Remote,
}

impl Source {
    /// Every source, nearest first.
    pub const ALL: [Self; 6] =
        [Self::Level1, Self::Level2, Self::Level3, Self::Peer, Self::LocalMemory, Self::Remote];
}

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The cycle at which a load's data can be used, an instruction line can be decoded, or a store has been written to
    /// its line. Includes the load-to-use latency.
    pub ready: Cycle,
    /// The level that supplied the data.
    pub source: Source,
    /// Cycles of address translation beyond a first-level TLB hit. Included in `ready`.
    pub translation_cycles: u32,
}

/// One core's interface to memory. Times are cycles of that core's clock. An out-of-order core may issue accesses in
/// any order of `at`; `at` of different cores may differ by at most the scheduler's quantum.
pub trait MemoryPort {
    /// Fetches the instruction line that contains guest virtual `address`.
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer;

    /// Loads `bytes` from guest virtual `address`. `instruction` is the address of the load instruction; prefetchers
    /// index their tables by it.
    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer;

    /// Stores `bytes` to guest virtual `address`. Atomic read-modify-write operations also use this call, because they
    /// need the line in an exclusive state.
    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer;

    /// Returns the cycles that a TLB refill exception adds to an access to `bytes` at guest virtual `address`, or 0 if
    /// a TLB holds the translation or the hardware walks the page table. The call also inserts the missing entries.
    ///
    /// A core must call it directly before each fetch, load or store and in program order, because the oldest access
    /// takes the exception. For a core that never calls it, an access waits for the refill as it would wait for a
    /// hardware walker.
    #[inline(always)]
    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        let _ = (side, address, bytes);
        0
    }

    /// Returns whether guest virtual `address` is in a store inside the core (a scratchpad), which bypasses the caches
    /// and has its own latency.
    fn is_in_core(&self, address: u64) -> bool {
        let _ = address;
        false
    }

    /// Issues a software prefetch. The core does not wait for it.
    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle);

    /// Returns whether calls to [`announce`](Self::announce) are worth their cost. The core calls this before each
    /// quantum.
    fn wants_announcements(&mut self) -> bool {
        false
    }

    /// Announces that the program will soon access guest virtual `address`, so that the implementation can prefetch its
    /// own tables on the host. Does not change any modelled state.
    fn announce(&mut self, address: u64) {
        let _ = address;
    }
}

/// A memory that answers every access after the same latency, for tests of core models and for the upper bound that an
/// ideal memory gives.
#[derive(Clone, Copy, Debug)]
pub struct FixedLatency {
    /// Load-to-use latency, cycles.
    pub latency_cycles: u64,
}

impl FixedLatency {
    fn answer(self, at: Cycle) -> Answer {
        Answer { ready: at + self.latency_cycles, source: Source::Level1, translation_cycles: 0 }
    }
}

impl MemoryPort for FixedLatency {
    fn fetch(&mut self, _: u64, at: Cycle) -> Answer {
        self.answer(at)
    }

    fn load(&mut self, _: u64, _: u32, _: u64, at: Cycle) -> Answer {
        self.answer(at)
    }

    fn store(&mut self, _: u64, _: u32, _: u64, at: Cycle) -> Answer {
        self.answer(at)
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}
