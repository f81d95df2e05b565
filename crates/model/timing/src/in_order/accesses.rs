//! Loads and stores of an in-order core and the queue entries they hold.
//!
//! Source: a store buffer as in Hennessy and Patterson, section 3.6.

use longma_memory::MemoryPort;

use super::DISPATCH_CYCLES;
use crate::{
    accesses::{Accesses, DataAccess},
    front_end::AccessSite,
    parameters::Parameters,
    program::BlockCounts,
    queues::Entries,
    value::Value,
};

/// Loads and stores in flight. A load holds its queue entry until it and all older instructions are complete, a store
/// or an atomic operation until it is in the cache.
#[derive(Debug)]
pub(super) struct QueuedAccesses {
    /// For each load queue entry, the cycle at which a new access can use it.
    pub loads: Entries,
    /// `None` if stores share the load queue.
    store_buffer: Option<Entries>,
    pub in_flight: Accesses,
}

impl QueuedAccesses {
    /// Creates empty queues of the sizes in `parameters`. `load_cycles` is the minimum latency of a load; lines have
    /// `line_bytes` bytes.
    pub fn new(parameters: &Parameters, load_cycles: u64, line_bytes: u64) -> Self {
        let stores = (!parameters.joint_load_store_queue).then(|| Entries::new(parameters.store_entries));
        Self {
            loads: Entries::new(parameters.load_entries),
            store_buffer: stores,
            in_flight: Accesses::new(load_cycles, parameters.store_entries, line_bytes),
        }
    }

    /// The queue of stores.
    #[inline]
    pub fn stores(&mut self) -> &mut Entries {
        self.store_buffer.as_mut().unwrap_or(&mut self.loads)
    }

    /// Performs a load and returns its result. Older instructions are complete at `older`.
    #[inline(always)]
    pub fn load(
        &mut self,
        access: DataAccess,
        older: u64,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let value = self.in_flight.load(access, counts, port);
        self.loads.allocate_until(value.ready.max(older) + DISPATCH_CYCLES);
        value
    }

    /// Records an atomic operation that completes at `ready`, after all older instructions.
    pub fn atomic(&mut self, access: DataAccess, ready: u64) {
        let DataAccess { site: AccessSite { address, .. }, bytes, .. } = access;
        self.in_flight.last_access = self.in_flight.last_access.max(ready);
        self.in_flight.stores.push_atomic(address, bytes, ready);
        self.stores().allocate_until(ready + DISPATCH_CYCLES);
    }

    /// Performs a store. It leaves for the cache when older instructions are complete, at `older`.
    #[inline]
    pub fn store(
        &mut self,
        access: DataAccess,
        older: u64,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) {
        let drained = self.in_flight.store(access, access.at.max(older), counts, port);
        self.stores().allocate_until(drained + DISPATCH_CYCLES);
    }
}
