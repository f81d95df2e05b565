//! One core's way into memory, as a timing model asks for it.
//! Not the caches behind it.
//! Source: our own boundary.

use crate::translation::Side;
use longma_sim::Cycle;

/// Where the data of an access came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Source {
    /// The core's first-level cache, or the line was on its way there already.
    Level1,
    /// The second-level cache.
    Level2,
    /// The third-level cache.
    Level3,
    /// Another core's private cache.
    Peer,
    /// Memory of the core's own NUMA node.
    LocalMemory,
    /// Memory, or a cache, of another NUMA node.
    Remote,
}

impl Source {
    /// Every source, nearest first.
    pub const ALL: [Self; 6] =
        [Self::Level1, Self::Level2, Self::Level3, Self::Peer, Self::LocalMemory, Self::Remote];
}

/// What came of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When a load's data can be used, an instruction line decoded, or a store's line written: load-to-use latency included.
    pub ready: Cycle,
    /// Where the data came from.
    pub source: Source,
    /// How much of the time was address translation beyond a first-level TLB hit, cycles.
    pub translation_cycles: u32,
}

/// One core's way into memory. Times are cycles of that core's clock. Calls of one core come in any order of `at` that an
/// out-of-order core may make; `at` of different cores differ by no more than the scheduler's quantum.
pub trait MemoryPort {
    /// Fetches the instruction line that holds guest-virtual `address`.
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer;

    /// Loads `bytes` from guest-virtual `address`; `instruction` is the load's own address, for prefetchers.
    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer;

    /// Stores `bytes` to guest-virtual `address`; also atomic read-modify-writes, which need the line exclusively.
    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer;

    /// Where TLBs are refilled by an exception: what that adds to a lone access to `bytes` from guest-virtual `address` because no TLB has an
    /// entry for them, cycles; 0 if the access goes on. The entry is there from now on: so a core asks just before it fetches, loads
    /// or stores, and in program order, because the oldest access is the one that traps. Who does not ask waits as for a walker.
    #[inline(always)]
    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        let _ = (side, address, bytes);
        0
    }

    /// Whether guest-virtual `address` is in a store of the core's own, beside the caches, which has a latency of its own.
    fn is_in_core(&self, address: u64) -> bool {
        let _ = address;
        false
    }

    /// A software prefetch: nobody waits for it.
    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle);

    /// True if it is worth saying which accesses come next: asked before each quantum.
    fn wants_notice(&mut self) -> bool {
        false
    }

    /// The program soon accesses guest-virtual `address`. Only the host gets ready for it: nothing that is modelled changes.
    fn notice(&mut self, address: u64) {
        let _ = address;
    }
}

/// A memory that always answers after the same time: for tests of cores, and for the question what an ideal memory would bring.
#[derive(Clone, Copy, Debug)]
pub struct FixedLatency {
    /// Load-to-use, cycles.
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
