//! The decoded blocks that are interpreted while they are cold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustc_hash::FxHashMap;

/// A decoded block.
#[derive(Debug)]
pub struct ColdBlock<S> {
    /// Its instructions; at least one.
    pub steps: Box<[S]>,
    visits: AtomicU32,
}

impl<S> ColdBlock<S> {
    /// The number of visits.
    pub(crate) fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Counts a visit, and returns the number of visits.
    pub(crate) fn count_visit(&self) -> u32 {
        let visits = self.visits.load(Ordering::Relaxed).saturating_add(1);
        self.visits.store(visits, Ordering::Relaxed);
        visits
    }

    /// Counts a visit and returns true while the block is cold. Returns false once it is hot: the engine must then look
    /// for translated code. Threads may lose counts, which only delays translation.
    pub fn visit(&self, hot: u32) -> bool {
        let visits = self.visits.load(Ordering::Relaxed) + 1;
        let is_cold = visits < hot;
        if is_cold {
            self.visits.store(visits, Ordering::Relaxed);
        }
        is_cold
    }
}

/// A number that changes whenever a block is discarded. Threads that keep blocks compare it to detect that their blocks
/// are out of date. No value occurs twice in a process, not even in different engines.
#[derive(Clone, Debug)]
pub struct Generation(Arc<AtomicU64>);

impl Generation {
    fn next() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The current value.
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn advance(&self) {
        self.0.store(Self::next(), Ordering::Release);
    }
}

impl Default for Generation {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(Self::next())))
    }
}

/// The blocks of an engine.
#[derive(Debug)]
pub(crate) struct ColdBlocks<S> {
    blocks: FxHashMap<u64, Arc<ColdBlock<S>>>,
    generation: Generation,
}

impl<S> Default for ColdBlocks<S> {
    fn default() -> Self {
        Self { blocks: FxHashMap::default(), generation: Generation::default() }
    }
}

impl<S> ColdBlocks<S> {
    /// Shares the generation of these blocks.
    pub fn generation(&self) -> Generation {
        self.generation.clone()
    }

    /// The block at a source address.
    pub fn get(&self, pc: u64) -> Option<&Arc<ColdBlock<S>>> {
        self.blocks.get(&pc)
    }

    /// Adds a block that is visited for the first time.
    pub fn insert(&mut self, pc: u64, steps: Vec<S>) -> Arc<ColdBlock<S>> {
        let block = Arc::new(ColdBlock { steps: steps.into(), visits: AtomicU32::new(1) });
        self.blocks.insert(pc, block.clone());
        block
    }

    /// Discards the block at `pc`, whose source may have changed.
    pub fn forget(&mut self, pc: u64) {
        if self.blocks.remove(&pc).is_some() {
            self.generation.advance();
        }
    }

    /// Discards all blocks.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.generation.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_cold_until_it_has_been_visited_often() {
        let block = ColdBlocks::default().insert(0x1000, vec!['a']);
        assert!(block.visit(3) && !block.visit(3) && !block.visit(3));
        assert_eq!((block.count_visit(), block.count_visit()), (3, 4));
    }

    #[test]
    fn the_generation_changes_when_a_block_is_discarded() {
        let mut blocks = ColdBlocks::default();
        let other = ColdBlocks::<char>::default();
        let generation = blocks.generation();
        let mut values = vec![generation.current(), other.generation().current()];
        blocks.insert(0x1000, vec!['a']);
        blocks.forget(0x2000);
        assert_eq!(generation.current(), values[0]);
        blocks.forget(0x1000);
        assert!(blocks.get(0x1000).is_none());
        values.push(generation.current());
        blocks.clear();
        values.push(generation.current());
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), 4);
    }
}
