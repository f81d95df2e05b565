//! Reference for memory accesses: which pending stores a load depends on, byte by byte, and a memory with a fixed
//! latency for each line.

use std::collections::{HashMap, HashSet};

use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::Cycle;

use super::{Executed, LINE_BYTES, Window, front_end::line_late, happened};

/// Latency of the line of a load or store, cycles.
pub fn data_cycles(address: u64) -> u64 {
    match (address / 64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 {
        0 => 60,
        1 => 25,
        2 => 14,
        _ => 4,
    }
}

/// Small, so that programs use several pages.
const PAGE_BYTES: u64 = 128;

/// Pages with a translation: those of instructions and those of data.
#[derive(Default)]
pub struct Translated {
    pages: [HashSet<u64>; 2],
    /// Cost of an exception; 0 if every page has a translation.
    refill_cycles: u64,
}

impl Translated {
    pub fn new(refill_cycles: u64) -> Self {
        Self { refill_cycles, ..Self::default() }
    }

    /// Cost of the first access to a page.
    pub fn refill(&mut self, side: Side, address: u64, bytes: u64) -> u64 {
        let pages = address / PAGE_BYTES..=(address + bytes - 1) / PAGE_BYTES;
        let new = pages.filter(|page| self.pages[side as usize].insert(*page)).count();
        new as u64 * self.refill_cycles
    }
}

/// The memory as a port for the models.
pub struct Memory(pub Translated);

impl MemoryPort for Memory {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        Answer { ready: at + 4 + line_late(address), source: Source::Level2, translation_cycles: 0 }
    }

    fn load(&mut self, address: u64, _: u32, _: u64, at: Cycle) -> Answer {
        Answer { ready: at + data_cycles(address), source: Source::Level2, translation_cycles: 0 }
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.load(address, bytes, instruction, at)
    }

    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        self.0.refill(side, address, bytes.into()) as u32
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

/// [`Memory`] with a cache: the first access of a line has the memory's latency, later ones that of the first-level
/// cache.
pub struct Cached {
    memory: Memory,
    /// When each line arrives.
    ready: HashMap<u64, u64>,
}

impl Cached {
    pub fn new(refill_cycles: u64) -> Self {
        Self { memory: Memory(Translated::new(refill_cycles)), ready: HashMap::new() }
    }
}

impl MemoryPort for Cached {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.memory.fetch(address, at)
    }

    fn load(&mut self, address: u64, _: u32, _: u64, at: Cycle) -> Answer {
        let unloaded = at.0 + data_cycles(address);
        let line = self.ready.entry(address / LINE_BYTES).or_insert(unloaded);
        // A request with an earlier cycle may get the line earlier.
        *line = unloaded.min(*line);
        Answer {
            ready: Cycle(unloaded.min((at.0 + 4).max(*line))),
            source: Source::Level2,
            translation_cycles: 0,
        }
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.load(address, bytes, instruction, at)
    }

    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        self.memory.refill(side, address, bytes)
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

/// The source of a load's data.
pub enum From {
    Cache,
    /// All of it from this store.
    Store(usize),
    /// Partially from these stores: the load accesses the cache when they are written.
    CacheAfter(Vec<usize>),
}

impl Window<'_> {
    /// The source of the data of load `index` in `cycle`.
    pub fn source_of(&self, index: usize, cycle: u64) -> From {
        let load = &self.program[index];
        let bytes = load.address..load.address + load.operation.bytes;
        let writers: Vec<_> = bytes.map(|byte| self.writer_of_byte(index, byte, cycle)).collect();
        match writers.iter().flatten().max() {
            None => From::Cache,
            Some(store) if writers.iter().all(|writer| *writer == Some(*store)) => From::Store(*store),
            Some(_) => From::CacheAfter(writers.into_iter().flatten().collect()),
        }
    }

    /// Returns whether load `index` has issued without the data of a store whose address becomes known in `cycle`.
    pub fn collides(&self, index: usize, cycle: u64) -> bool {
        let load = &self.program[index];
        let Some(issued) = self.stages[index].issued.filter(|issued| *issued < cycle) else { return false };
        let mut bytes = load.address..load.address + load.operation.bytes;
        load.is_load()
            && self.translated[index]
            && bytes.any(|byte| {
                let writer = self.writer_of_byte(index, byte, issued);
                writer.is_some_and(|store| self.known(store) == Some(cycle))
            })
    }

    /// The youngest store before `index` that wrote the byte and is not in the cache.
    fn writer_of_byte(&self, index: usize, byte: u64, cycle: u64) -> Option<usize> {
        self.program[..index].iter().zip(&self.stages).rposition(|(executed, stages)| {
            let wrote = (executed.address..executed.address + executed.operation.bytes).contains(&byte);
            executed.is_store() && wrote && !happened(stages.drained, cycle)
        })
    }

    /// The cycle in which load `index`, issued at `issued`, has its data from `from`; `None` if not decided yet.
    pub fn data_at(&self, index: usize, issued: u64, from: &From) -> Option<u64> {
        let load = &self.program[index];
        Some(match from {
            From::Cache => self.cache_answers(load.address, issued),
            From::Store(store) => issued.max(self.stages[*store].done?) + self.sizes.load_latency,
            From::CacheAfter(stores) => {
                let drained = stores.iter().map(|store| self.stages[*store].drained);
                let drained: Option<Vec<u64>> = drained.collect();
                self.cache_answers(load.address, drained?.into_iter().fold(issued, u64::max))
            }
        })
    }

    /// When the core has the data of a load that accesses the cache in `cycle`.
    fn cache_answers(&self, address: u64, cycle: u64) -> u64 {
        cycle + data_cycles(address).max(self.sizes.load_latency)
    }

    /// Returns whether the older stores selected by `predicate` are in the cache.
    pub fn are_in_cache(&self, index: usize, cycle: u64, predicate: impl Fn(&Executed) -> bool) -> bool {
        let mut older = self.program[..index].iter().zip(&self.stages);
        older.all(|(executed, stages)| {
            !executed.is_store() || !predicate(executed) || happened(stages.drained, cycle)
        })
    }

    /// The first cycle in which store `index` can leave for the cache, after older stores: one line leaves per cycle.
    pub fn next_leaves(&self, index: usize) -> u64 {
        let older = self.program[..index].iter().zip(&self.stages);
        older.filter_map(|(executed, stages)| Some(stages.left? + executed.looks())).max().unwrap_or(1)
    }

    /// The cycle in which a store that leaves in `cycle` reaches the cache; never before an older one.
    pub fn drained_at(&self, index: usize, cycle: u64) -> u64 {
        let older = self.stages[..index].iter().filter_map(|stages| stages.drained).max();
        (cycle + data_cycles(self.program[index].address)).max(older.unwrap_or(0))
    }
}
