//! Interpretation of cold blocks instead of their translation. Most code of a program runs only a few times, so that
//! its translation would cost more than it saves. The engine decodes each block once, counts its visits, and translates
//! only hot code. Source: mixed-mode execution, as in the HotSpot virtual machine and in V8's Ignition.

use std::ops::Range;
use std::sync::Arc;

use crate::cold_blocks::{ColdBlock, ColdBlocks, Generation};
use crate::engine::{CodeError, Engine, fetch};
use crate::front_end::{FrontEnd, Memory};
use crate::hotness::PAGE;
use crate::optimizations::Optimization;

/// The maximum number of additional entry points of a function.
const MAX_WARM_BLOCKS: usize = 32;

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
        self.interpreted.insert(ColdBlocks::default()).generation()
    }

    /// How to continue at `pc`, where all registers are architectural. Counts a visit.
    ///
    /// # Errors
    /// As for [`Self::code_of`].
    pub fn continue_at(
        &mut self,
        pc: u64,
        memory: &dyn Memory,
    ) -> Result<Continuation<F::DecodedInstruction>, CodeError> {
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
        if let Some(block) = self.interpreted.as_ref().and_then(|interpreted| interpreted.get(pc)) {
            let visits = block.count_visit();
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
    ) -> Result<Continuation<F::DecodedInstruction>, CodeError> {
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

    /// The interpreted blocks of a function that are likely to become hot. Each becomes an entry point of the
    /// function's translation, so that the engine need not translate the function again for it.
    pub(crate) fn warm_blocks(&self, function: &Range<u64>) -> impl Iterator<Item = u64> {
        let pages = function.start / PAGE..function.end.div_ceil(PAGE);
        let readers = pages.filter_map(|page| self.readers.get(&page)).flatten().copied();
        let is_warm = |pc: &u64| {
            let block = self.interpreted.as_ref().and_then(|interpreted| interpreted.get(*pc));
            block.is_some_and(|block| self.hotness.is_warm_after(block.visits()))
        };
        readers.filter(|pc| function.contains(pc)).filter(is_warm).take(MAX_WARM_BLOCKS)
    }

    /// Decodes the block at `pc`, if its first instruction can be interpreted.
    fn interpretable_block(
        &mut self,
        pc: u64,
        memory: &dyn Memory,
    ) -> Result<Option<Arc<ColdBlock<F::DecodedInstruction>>>, CodeError> {
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
        // Whether the block reads returned flags depends on the callee and on the code after the call.
        let inspected = [Some(pc + block.bytes - 1), block.called, block.return_address];
        let mut pages: Vec<u64> = inspected.into_iter().flatten().chain([pc]).map(|at| at / PAGE).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.readers.entry(page).or_default().push(pc);
        }
        let steps = std::mem::take(&mut block.steps);
        Ok(self.interpreted.as_mut().map(|interpreted| interpreted.insert(pc, steps)))
    }
}
