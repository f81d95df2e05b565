//! The memory side of an in-order core: queues of loads and stores, forwarding between them, and what they ask of memory.
//! Not when an access issues.
//! Source: a store buffer as in Hennessy and Patterson, section 3.6.

use longma_memory::MemoryPort;
use longma_sim::Cycle;

use super::{
    super::{
        front_end::Place,
        program::BlockCounts,
        queues::Entries,
        stack::Cause,
        stores::{Found, Stores},
    },
    Value,
};

/// Loads and stores under way.
#[derive(Debug)]
pub(super) struct Accesses {
    pub loads: Entries,
    pub store_buffer: Entries,
    pub stores: Stores,
    /// When the last load or atomic operation had its data.
    pub last_access: u64,
    last_drain: u64,
    load_cycles: u64,
    /// Loads that took their data from a store under way.
    pub forwarded: u64,
}

impl Accesses {
    /// None under way, and queues of so many entries. `load_cycles` is what a load takes whose data is forwarded.
    pub fn new(load_entries: u32, store_entries: u32, load_cycles: u64) -> Self {
        Self {
            loads: Entries::new(load_entries),
            store_buffer: Entries::new(store_entries),
            stores: Stores::new(),
            last_access: 0,
            last_drain: 0,
            load_cycles,
            forwarded: 0,
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
        let value = self.data(at, bytes, place, counts, port);
        self.loads.take_until(value.ready);
        self.last_access = self.last_access.max(value.ready);
        value
    }

    #[inline(always)]
    fn data(
        &mut self,
        at: u64,
        bytes: u32,
        Place { pc, address }: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let from = match self.stores.find(address, bytes, at) {
            Found::Data(data) => {
                self.forwarded += 1;
                let ready = at.max(data) + self.load_cycles;
                return Value { ready, cause: Cause::Level1, translation_cycles: 0 };
            }
            Found::Part(drained) => at.max(drained),
            Found::Nothing => at,
        };
        let answer = port.load(address, bytes, pc, Cycle(from));
        counts.note(answer.source);
        let translation_cycles = answer.translation_cycles;
        Value { ready: answer.ready.0, cause: Cause::of(answer.source), translation_cycles }
    }

    /// A store whose data is there at `done`.
    #[inline]
    pub fn store(
        &mut self,
        done: u64,
        bytes: u32,
        Place { pc, address }: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) {
        // One store a cycle goes from the buffer to the cache, in program order.
        let drain = (self.last_drain + 1).max(done);
        let answer = port.store(address, bytes, pc, Cycle(drain));
        counts.note(answer.source);
        self.last_drain = drain;
        let drained = answer.ready.0.max(self.stores.last_drained());
        self.stores.push(address, bytes, done, drained);
        self.store_buffer.take_until(drained);
    }
}
