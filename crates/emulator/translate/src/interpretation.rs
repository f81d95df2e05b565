//! Interpretation of cold blocks instead of their translation. Most code of a program runs a few times, so it would be
//! translated at a loss. The engine decodes each block once and counts the visits; hot code is translated. Source:
//! mixed-mode execution, as in the HotSpot virtual machine and in V8's Ignition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use crate::engine::{CodeError, Engine, fetch};
use crate::front_end::{FrontEnd, Memory};
use crate::hotness::PAGE;
use crate::optimizations::Optimization;

/// A decoded block.
#[derive(Debug)]
pub struct ColdBlock<S> {
    /// Its instructions; at least one.
    pub steps: Box<[S]>,
    visits: AtomicU32,
}

impl<S> ColdBlock<S> {
    /// Counts a visit unless the block has become hot: then the engine must look for translated code. Threads may lose
    /// counts, which only delays translation.
    pub fn visit(&self, hot: u32) -> bool {
        let visits = self.visits.load(Ordering::Relaxed) + 1;
        let is_cold = visits < hot;
        if is_cold {
            self.visits.store(visits, Ordering::Relaxed);
        }
        is_cold
    }
}

/// Changes whenever a block is discarded, so that threads can keep blocks. No value occurs twice in a process, not even
/// in different engines.
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

/// How execution continues at a source address.
#[derive(Clone, Debug)]
pub enum Continuation<S> {
    /// With translated code, at this host address.
    Code(u64),
    /// With a block for [`FrontEnd::interpret`].
    Block(Arc<ColdBlock<S>>),
}

impl<F: FrontEnd> Engine<F> {
    /// Lets [`Self::continue_at`] return blocks to interpret while code is cold, and returns their generation. Requires
    /// two-stage translation; see [`Self::set_hot_threshold`].
    pub fn interpret_cold_code(&mut self) -> Generation {
        let generation = Generation::default();
        self.interpreted = Some(ColdBlocks { blocks: FxHashMap::default(), generation: generation.clone() });
        generation
    }

    /// How to continue at `pc`, where all registers are architectural. Counts a visit.
    ///
    /// # Errors
    /// As for [`Self::code_of`].
    pub fn continue_at(&mut self, pc: u64, memory: &dyn Memory) -> Result<Continuation<F::Step>, CodeError> {
        let is_interpreting = self.interpreted.is_some()
            && !self.is_debugged
            && self.breakpoints.is_empty()
            && self.options.has(Optimization::Units);
        if !is_interpreting {
            return self.code_of(pc, memory).map(Continuation::Code);
        }
        if let Some(code) = self.hot_code(pc, false, memory)? {
            return Ok(Continuation::Code(code));
        }
        let block = self.interpreted.as_ref().and_then(|interpreted| interpreted.blocks.get(&pc));
        if let Some(block) = block {
            let visits = block.visits.load(Ordering::Relaxed) + 1;
            block.visits.store(visits, Ordering::Relaxed);
            if !self.is_hot_after(visits, pc) {
                return Ok(Continuation::Block(block.clone()));
            }
            return self.translate_after_visit(pc, true, false, memory).map(Continuation::Code);
        }
        if !self.cold.contains_key(&pc)
            && let Some(block) = self.interpretable_block(pc, memory)?
        {
            return Ok(Continuation::Block(block));
        }
        let is_hot = self.count_visit(pc);
        self.translate_after_visit(pc, is_hot, false, memory).map(Continuation::Code)
    }

    /// Like [`Self::continue_at`] for `pc`, the target of the exit at host address `exit`. Links the exit to hot code.
    ///
    /// # Errors
    /// As for [`Self::code_of`].
    pub fn follow_exit(
        &mut self,
        exit: u64,
        pc: u64,
        memory: &dyn Memory,
    ) -> Result<Continuation<F::Step>, CodeError> {
        let continuation = self.continue_at(pc, memory)?;
        if let Continuation::Code(code) = continuation {
            self.link(exit, pc, code, memory)?;
        }
        Ok(continuation)
    }

    /// The code of an instruction that the interpreter refused to execute.
    ///
    /// # Errors
    /// As for [`Self::code_of`].
    pub fn code_of_refused(&mut self, pc: u64, memory: &dyn Memory) -> Result<u64, CodeError> {
        match self.hot_code(pc, false, memory)? {
            Some(code) => Ok(code),
            None => self.translate_after_visit(pc, false, false, memory),
        }
    }

    /// Decodes the block at `pc`, if its first instruction can be interpreted.
    fn interpretable_block(
        &mut self,
        pc: u64,
        memory: &dyn Memory,
    ) -> Result<Option<Arc<ColdBlock<F::Step>>>, CodeError> {
        if pc >= self.layout.limit || !pc.is_multiple_of(F::ALIGNMENT) {
            return Ok(None);
        }
        let mut block = F::decode_block(pc, &|pc| fetch::<F>(pc, memory).ok());
        if block.steps.is_empty() {
            return Ok(None);
        }
        if block.reads_flags_after_call {
            self.keep_flags_across_calls(memory)?;
        }
        self.hotness.note_interpreted(pc, &block);
        for page in pc / PAGE..=(pc + block.bytes - 1) / PAGE {
            self.readers.entry(page).or_default().push(pc);
        }
        let steps = std::mem::take(&mut block.steps).into();
        let block = Arc::new(ColdBlock { steps, visits: AtomicU32::new(1) });
        if let Some(interpreted) = &mut self.interpreted {
            interpreted.blocks.insert(pc, block.clone());
        }
        Ok(Some(block))
    }

    /// Discards the block at `pc`, whose source may have changed.
    pub(crate) fn forget_interpreted(&mut self, pc: u64) {
        if let Some(interpreted) = &mut self.interpreted
            && interpreted.blocks.remove(&pc).is_some()
        {
            interpreted.generation.advance();
        }
    }

    /// Discards all blocks.
    pub(crate) fn discard_interpreted(&mut self) {
        if let Some(interpreted) = &mut self.interpreted {
            interpreted.blocks.clear();
            interpreted.generation.advance();
        }
    }
}
