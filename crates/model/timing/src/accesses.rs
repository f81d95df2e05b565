//! The memory side of a core: loads and stores under way, forwarding between them, and what they ask of memory.
//! Not when an access issues, and not the entries of queues that it takes (see `queues.rs`).
//! Source: a store buffer as in Hennessy and Patterson, section 3.6.

use longma_memory::MemoryPort;
use longma_sim::Cycle;

use crate::{
    front_end::Place,
    program::BlockCounts,
    stack::Cause,
    stores::{Found, Stores},
    value::Value,
};

/// Loads and stores under way.
#[derive(Debug)]
pub(crate) struct Accesses {
    pub stores: Stores,
    /// When the last load or atomic operation had its data.
    pub last_access: u64,
    last_drain: u64,
    load_cycles: u64,
    /// Bytes of a line; a power of two.
    line_bytes: u64,
    /// Loads that took their data from a store under way.
    pub forwarded: u64,
}

impl Accesses {
    /// None under way. `load_cycles` is what a load takes at least, and one whose data is forwarded just so; no more than `stores` stores are under way at once;
    /// lines of the cache have `line_bytes`.
    pub fn new(load_cycles: u64, stores: u32, line_bytes: u64) -> Self {
        let stores = Stores::new(stores);
        Self { stores, last_access: 0, last_drain: 0, load_cycles, line_bytes, forwarded: 0 }
    }

    /// True if an access lies in two lines: it looks into the cache twice. Estimate: one look behind the other, as in cores that publish it
    /// (Fog, The microarchitecture of Intel, AMD and VIA CPUs, 2023); nothing is known of Loongson's.
    #[inline]
    pub fn crosses(&self, address: u64, bytes: u8) -> bool {
        (address & (self.line_bytes - 1)) + u64::from(bytes) > self.line_bytes
    }

    /// When all that are under way are complete.
    pub fn complete_at(&self) -> u64 {
        self.last_access.max(self.stores.last_drained())
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
                return Value::new(at.max(data) + self.load_cycles, Cause::Level1);
            }
            Found::Part(drained) => at.max(drained),
            Found::Nothing => at,
        };
        let answer = port.load(address, bytes, pc, Cycle(from));
        counts.note(answer.source);
        let translation_cycles = answer.translation_cycles;
        let (mut ready, least) = (answer.ready.0, from + self.load_cycles);
        // What is near the core is as quick as it says.
        if ready < least && !port.is_in_core(address) {
            ready = least;
        }
        Value { ready, cause: Cause::of(answer.source), translation_cycles }
    }

    /// A store whose data can be forwarded at `ready` and leaves for the cache at `from` or later: when it is there.
    #[inline]
    pub fn store(
        &mut self,
        (ready, from): (u64, u64),
        bytes: u32,
        Place { pc, address }: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> u64 {
        // One store a cycle, in program order; their misses overlap, as if each asked for its line when it leaves.
        let at = (self.last_drain + 1).max(from);
        let answer = port.store(address, bytes, pc, Cycle(at));
        counts.note(answer.source);
        self.last_drain = at + u64::from(self.crosses(address, bytes as u8));
        let drained = answer.ready.0.max(self.stores.last_drained());
        self.stores.push(address, bytes, ready, drained);
        drained
    }
}
