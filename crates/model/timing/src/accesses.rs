//! The memory side of a core: loads and stores in flight, and store-to-load forwarding.
//!
//! Source: a store buffer as in Hennessy and Patterson, section 3.6.

use longma_memory::MemoryPort;
use longma_sim::Cycle;

use crate::{
    front_end::AccessSite,
    program::BlockCounts,
    stack::Cause,
    stores::{Found, Stores},
    value::Value,
};

/// A load, store or atomic operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataAccess {
    pub site: AccessSite,
    pub bytes: u32,
    /// The cycle in which it issues; for a store, the cycle in which its data is available.
    pub at: u64,
}

/// Loads and stores in flight.
#[derive(Debug)]
pub(crate) struct Accesses {
    pub stores: Stores,
    /// Completion of the last load or atomic operation.
    pub last_access: u64,
    last_drain: u64,
    load_cycles: u64,
    /// Line length, bytes; a power of two.
    line_bytes: u64,
    /// Loads that got their data from a store in flight.
    pub forwarded: u64,
}

impl Accesses {
    /// Creates an empty state. `load_cycles` is the minimum latency of a load, which also applies to forwarding; at
    /// most `stores` stores are in flight; cache lines have `line_bytes` bytes.
    pub fn new(load_cycles: u64, stores: u32, line_bytes: u64) -> Self {
        let stores = Stores::new(stores);
        Self { stores, last_access: 0, last_drain: 0, load_cycles, line_bytes, forwarded: 0 }
    }

    /// Returns whether an access spans two lines and thus needs two cache lookups. Estimate: the second lookup follows
    /// the first, as in cores that publish it (Fog, The microarchitecture of Intel, AMD and VIA CPUs, 2023); for
    /// Loongson's cores this is unknown.
    #[inline]
    pub fn crosses(&self, address: u64, bytes: u8) -> bool {
        (address & (self.line_bytes - 1)) + u64::from(bytes) > self.line_bytes
    }

    /// The cycle in which all accesses in flight are complete.
    pub fn complete_at(&self) -> u64 {
        self.last_access.max(self.stores.last_drained())
    }

    /// Performs a load and returns its result.
    #[inline(always)]
    pub fn load(
        &mut self,
        access: DataAccess,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let value = self.data(access, counts, port);
        self.last_access = self.last_access.max(value.ready);
        value
    }

    #[inline(always)]
    fn data(&mut self, access: DataAccess, counts: &mut BlockCounts, port: &mut impl MemoryPort) -> Value {
        let DataAccess { site: AccessSite { pc, address }, bytes, at } = access;
        let from = match self.stores.find(address, bytes, at) {
            Found::Data(data) => {
                self.forwarded += 1;
                return Value::new(at.max(data) + self.load_cycles, Cause::Level1);
            }
            Found::Part(drained) => at.max(drained),
            Found::Nothing => at,
        };
        let answer = port.load(address, bytes, pc, Cycle(from));
        counts.note(answer.source);
        let translation_cycles = answer.translation_cycles;
        let (mut ready, earliest) = (answer.ready.0, from + self.load_cycles);
        // A store inside the core has its own latency, which may be shorter than a load's minimum.
        if ready < earliest && !port.is_in_core(address) {
            ready = earliest;
        }
        Value { ready, cause: Cause::of(answer.source), translation_cycles }
    }

    /// Performs a store. Its data can be forwarded from `access.at` on, and it is written to the cache at `from` or
    /// later. Returns the time at which it is in the cache.
    #[inline]
    pub fn store(
        &mut self,
        access: DataAccess,
        from: u64,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> u64 {
        let DataAccess { site: AccessSite { pc, address }, bytes, at: ready } = access;
        // One store per cycle leaves for the cache, in program order. The misses of stores overlap, as if each store
        // requested its line when it leaves.
        let at = (self.last_drain + 1).max(from);
        let answer = port.store(address, bytes, pc, Cycle(at));
        counts.note(answer.source);
        self.last_drain = at + u64::from(self.crosses(address, bytes as u8));
        let drained = answer.ready.0.max(self.stores.last_drained());
        self.stores.push(address, bytes, ready, drained);
        drained
    }
}
