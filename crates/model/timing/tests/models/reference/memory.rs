//! What a load waits for: the stores before it that are not in the cache yet, byte by byte; and a memory that takes a time of its
//! own for each line.

use std::collections::{HashMap, HashSet};

use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::Cycle;

use super::{Executed, LINE_BYTES, Window, front_end::line_late, happened};

/// What a load, or a store's line, takes, cycles.
pub fn data_cycles(address: u64) -> u64 {
    match (address / 64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 {
        0 => 60,
        1 => 25,
        2 => 14,
        _ => 4,
    }
}

/// Pages are small, so that programs use several.
const PAGE_BYTES: u64 = 128;

/// Pages that have a translation: those of instructions and those of data.
#[derive(Default)]
pub struct Translated {
    pages: [HashSet<u64>; 2],
    /// What an exception costs; 0 if every page has a translation.
    refill_cycles: u64,
}

impl Translated {
    pub fn new(refill_cycles: u64) -> Self {
        Self { refill_cycles, ..Self::default() }
    }

    /// What an access adds that lies on a page for the first time.
    pub fn refill(&mut self, side: Side, address: u64, bytes: u64) -> u64 {
        let pages = address / PAGE_BYTES..=(address + bytes - 1) / PAGE_BYTES;
        let new = pages.filter(|page| self.pages[side as usize].insert(*page)).count();
        new as u64 * self.refill_cycles
    }
}

/// That memory, as the models ask it.
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

/// The same with a cache: a line takes its time once, and then what the first-level cache takes.
pub struct Cached {
    memory: Memory,
    /// When each line is there.
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
        let alone = at.0 + data_cycles(address);
        let line = self.ready.entry(address / LINE_BYTES).or_insert(alone);
        // Who asks for an earlier cycle may have it earlier.
        *line = alone.min(*line);
        Answer {
            ready: Cycle(alone.min((at.0 + 4).max(*line))),
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

/// Where a load's data comes from.
pub enum From {
    Cache,
    /// All of it from this store.
    Store(usize),
    /// Part of it from one of these stores, or from several: the load asks the cache when they are there.
    CacheAfter(Vec<usize>),
}

impl Window<'_> {
    /// Where the load `index` finds its data in `cycle`.
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

    /// True if the load `index` is in flight without what one of its bytes should have come from: a store that becomes known in `cycle`.
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

    /// The youngest store before `index` that wrote a byte and is not in the cache.
    fn writer_of_byte(&self, index: usize, byte: u64, cycle: u64) -> Option<usize> {
        self.program[..index].iter().zip(&self.stages).rposition(|(it, stages)| {
            let wrote = (it.address..it.address + it.operation.bytes).contains(&byte);
            it.is_store() && wrote && !happened(stages.drained, cycle)
        })
    }

    /// When the data of the load `index` is there, which issued at `issued` and takes it from `from`; `None` if that is not known yet.
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

    /// When the cache has the data of a load that asks for it in `cycle`, and the core has it.
    fn cache_answers(&self, address: u64, cycle: u64) -> u64 {
        cycle + data_cycles(address).max(self.sizes.load_latency)
    }

    /// True if the older stores of that kind are in the cache.
    pub fn are_in_cache(&self, index: usize, cycle: u64, wanted: impl Fn(&Executed) -> bool) -> bool {
        let mut older = self.program[..index].iter().zip(&self.stages);
        older.all(|(it, stages)| !it.is_store() || !wanted(it) || happened(stages.drained, cycle))
    }

    /// When the stores before `index` have all left for the cache, of those that have: one line a cycle.
    pub fn next_leaves(&self, index: usize) -> u64 {
        let older = self.program[..index].iter().zip(&self.stages);
        older.filter_map(|(it, stages)| Some(stages.left? + it.looks())).max().unwrap_or(1)
    }

    /// When a store that leaves for the cache in `cycle` is there: never before an older one.
    pub fn drained_at(&self, index: usize, cycle: u64) -> u64 {
        let older = self.stages[..index].iter().filter_map(|stages| stages.drained).max();
        (cycle + data_cycles(self.program[index].address)).max(older.unwrap_or(0))
    }
}
