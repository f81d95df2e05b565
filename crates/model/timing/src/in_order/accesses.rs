//! Loads and stores of an in-order core, and the queues whose entries they hold.
//! Not when an access issues, and not what it asks of memory (see `../accesses.rs`).
//! Source: a store buffer as in Hennessy and Patterson, section 3.6.

use longma_memory::MemoryPort;

use super::DISPATCH_CYCLES;
use crate::{
    accesses::Accesses, front_end::Place, parameters::Parameters, program::BlockCounts, queues::Entries,
    value::Value,
};

/// Loads and stores under way, each with an entry of its queue: a load until it and all that is older is complete, a store or an
/// atomic operation until it is in the cache.
#[derive(Debug)]
pub(super) struct QueuedAccesses {
    /// From when on an access can issue that takes the next entry.
    pub loads: Entries,
    /// `None` where stores share the entries of loads.
    store_buffer: Option<Entries>,
    pub under_way: Accesses,
}

impl QueuedAccesses {
    /// None under way, and queues as `parameters` say. `load_cycles` is what a load takes at least; lines have `line_bytes`.
    pub fn new(parameters: &Parameters, load_cycles: u64, line_bytes: u64) -> Self {
        let stores = (!parameters.joint_load_store_queue).then(|| Entries::new(parameters.store_entries));
        Self {
            loads: Entries::new(parameters.load_entries),
            store_buffer: stores,
            under_way: Accesses::new(load_cycles, parameters.store_entries, line_bytes),
        }
    }

    /// The entries that stores hold.
    #[inline]
    pub fn stores(&mut self) -> &mut Entries {
        self.store_buffer.as_mut().unwrap_or(&mut self.loads)
    }

    /// A load that issues at `at`, when all that is older is complete at `older`: its data.
    #[inline(always)]
    pub fn load(
        &mut self,
        (at, older): (u64, u64),
        bytes: u32,
        place: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let value = self.under_way.load(at, bytes, place, counts, port);
        self.loads.take_until(value.ready.max(older) + DISPATCH_CYCLES);
        value
    }

    /// An atomic operation that is done at `ready`, behind all that is older.
    pub fn atomic(&mut self, ready: u64, bytes: u32, address: u64) {
        self.under_way.last_access = self.under_way.last_access.max(ready);
        self.under_way.stores.push_atomic(address, bytes, ready);
        self.stores().take_until(ready + DISPATCH_CYCLES);
    }

    /// A store whose data is there at `done`, when all that is older is complete at `older`: then it leaves for the cache.
    #[inline]
    pub fn store(
        &mut self,
        (done, older): (u64, u64),
        bytes: u32,
        place: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) {
        let drained = self.under_way.store((done, done.max(older)), bytes, place, counts, port);
        self.stores().take_until(drained + DISPATCH_CYCLES);
    }
}
