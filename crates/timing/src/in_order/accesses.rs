//! Loads and stores of an in-order core, and the queues whose entries they hold.
//! Not when an access issues, and not what it asks of memory (see `../accesses.rs`).
//! Source: a store buffer as in Hennessy and Patterson, section 3.6.

use longma_memory::MemoryPort;

use crate::{accesses::Accesses, front_end::Place, program::BlockCounts, queues::Entries, value::Value};

/// Loads and stores under way, each with an entry of its queue until it is complete.
#[derive(Debug)]
pub(super) struct QueuedAccesses {
    pub loads: Entries,
    pub store_buffer: Entries,
    pub under_way: Accesses,
}

impl QueuedAccesses {
    /// None under way, and queues of so many entries. `load_cycles` is what a load takes whose data is forwarded; lines have `line_bytes`.
    pub fn new(load_entries: u32, store_entries: u32, load_cycles: u64, line_bytes: u64) -> Self {
        Self {
            loads: Entries::new(load_entries),
            store_buffer: Entries::new(store_entries),
            // And an atomic operation, which has no entry of the buffer.
            under_way: Accesses::new(load_cycles, store_entries.saturating_add(1), line_bytes),
        }
    }

    /// A load that issues at `at`: its data.
    #[inline(always)]
    pub fn load(
        &mut self,
        at: u64,
        bytes: u32,
        place: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let value = self.under_way.load(at, bytes, place, counts, port);
        self.loads.take_until(value.ready);
        value
    }

    /// A store whose data is there at `done`.
    #[inline]
    pub fn store(
        &mut self,
        done: u64,
        bytes: u32,
        place: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) {
        let drained = self.under_way.store((done, done), bytes, place, counts, port);
        self.store_buffer.take_until(drained);
    }
}
