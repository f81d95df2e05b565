//! Interprets a thread's cold code until it reaches translated code.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longma_core::Core;
use longma_guest::GuestMemory;
use longma_linux::{Outcome, Thread};
use longma_translate::cold_blocks::ColdBlock;
use longma_translate::front_end::{DataMemory, FrontEnd, Interpreted};
use longma_translate::interpretation::Continuation;

use super::Translated;
use super::debugged::DebuggedThread;
use crate::cores::Cores;

/// Guest memory, as interpreted instructions access it.
struct InterpreterMemory<'a> {
    memory: &'a GuestMemory,
    has_changed: &'a AtomicBool,
}

impl DataMemory for InterpreterMemory<'_> {
    fn load(&self, address: u64, bytes: u8) -> Option<u64> {
        match bytes {
            1 => self.memory.load::<u8>(address).map(u64::from),
            2 => self.memory.load::<u16>(address).map(u64::from),
            4 => self.memory.load::<u32>(address).map(u64::from),
            _ => self.memory.load::<u64>(address),
        }
        .ok()
    }

    fn store(&self, address: u64, bytes: u8, value: u64) -> bool {
        match bytes {
            1 => self.memory.store(address, value as u8),
            2 => self.memory.store(address, value as u16),
            4 => self.memory.store(address, value as u32),
            _ => self.memory.store(address, value),
        }
        .is_ok()
    }

    fn load_wide(&self, address: u64) -> Option<[u64; 2]> {
        let value = self.memory.load::<u128>(address).ok()?;
        Some([value as u64, (value >> 64) as u64])
    }

    fn store_wide(&self, address: u64, [low, high]: [u64; 2]) -> bool {
        self.memory.store(address, u128::from(low) | u128::from(high) << 64).is_ok()
    }

    fn code_has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Acquire)
    }
}

/// The number of blocks that a thread keeps; a power of two.
const KEPT_BLOCKS: usize = 2048;

/// A block that a thread keeps, so that it need not ask the engine.
struct KeptBlock<S> {
    pc: u64,
    /// The generation of blocks in which it is valid.
    generation: u64,
    block: Option<Arc<ColdBlock<S>>>,
}

/// The blocks that a thread keeps, by address.
struct KeptBlocks<S>(Box<[KeptBlock<S>]>);

impl<S> Default for KeptBlocks<S> {
    fn default() -> Self {
        let empty = || KeptBlock { pc: 0, generation: 0, block: None };
        Self((0..KEPT_BLOCKS).map(|_| empty()).collect())
    }
}

thread_local! {
    /// The thread's [`KeptBlocks`]. Their type depends on the program's architecture.
    static KEPT: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

impl<S: 'static> KeptBlocks<S> {
    /// Calls `work` with the thread's blocks.
    fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut kept = KEPT.take().and_then(|kept| kept.downcast::<Self>().ok()).unwrap_or_default();
        let result = work(&mut kept);
        KEPT.set(Some(kept));
        result
    }

    fn slot(&mut self, pc: u64) -> &mut KeptBlock<S> {
        // Blocks are a few bytes long.
        &mut self.0[((pc >> 2) ^ (pc >> 13)) as usize % KEPT_BLOCKS]
    }
}

impl<F: FrontEnd> Translated<F> {
    /// Runs a thread without a debugger until it stops, handles the stop, and interprets cold code that follows.
    pub(super) fn run_freely(&self, cores: &Cores, core: &mut Core, thread: &mut Thread) -> Outcome {
        let mut on = DebuggedThread::free(cores, thread);
        let outcome = self.run_until_stop(&mut on, core);
        self.interpret_pending(&mut on, core, outcome)
    }

    /// Interprets if the thread is to continue at a source address.
    pub(super) fn interpret_pending(
        &self,
        on: &mut DebuggedThread,
        core: &mut Core,
        mut outcome: Outcome,
    ) -> Outcome {
        while outcome == Outcome::Continue
            && let Some(interpretation) = on.interpretation.take()
        {
            outcome = self.interpret(on, core, interpretation.exit);
        }
        outcome
    }

    /// Interprets blocks from the source address in the program counter on, up to one that has translated code. `exit`
    /// is the exit of translated code through which the thread reached the address, if there was one.
    fn interpret(&self, on: &mut DebuggedThread, core: &mut Core, exit: Option<u64>) -> Outcome {
        KeptBlocks::<F::DecodedInstruction>::with(|kept| self.interpret_blocks(kept, on, core, exit))
    }

    fn interpret_blocks(
        &self,
        kept: &mut KeptBlocks<F::DecodedInstruction>,
        on: &mut DebuggedThread,
        core: &mut Core,
        mut exit: Option<u64>,
    ) -> Outcome {
        let cores = on.cores;
        let memory = InterpreterMemory { memory: cores.process().memory(), has_changed: &self.has_changed };
        let mut is_indirect = false;
        loop {
            let cpu = core.cpu();
            let pc = cpu.state.pc;
            if cpu.attention.is_requested() {
                cpu.attention.clear();
                return self.deliver(on, core, None);
            }
            let exit = exit.take();
            let slot = kept.slot(pc);
            let generation = self.generation.current();
            let is_kept = (slot.pc, slot.generation) == (pc, generation) && !memory.code_has_changed();
            let block = match slot.block.as_ref().filter(|block| is_kept && block.visit(self.hot)) {
                Some(block) => block,
                None => match self.continue_at(cores, exit, pc, is_indirect) {
                    Ok(Continuation::Block(block)) => {
                        // If blocks were discarded since, the next look-up asks the engine again.
                        (slot.pc, slot.generation) = (pc, generation);
                        slot.block.insert(block)
                    }
                    Ok(Continuation::Code(code)) => {
                        cpu.state.pc = code;
                        return Outcome::Continue;
                    }
                    Err(refusal) => return self.refuse(on, &mut cpu.state, pc, refusal),
                },
            };
            while self.is_over.load(Ordering::Acquire) {
                std::thread::park();
            }
            (cpu.state.pc, is_indirect) = match F::interpret(&block.steps, &mut cpu.state, &memory) {
                Interpreted::Next(next) => (next, false),
                Interpreted::Indirect(next) => (next & !F::IGNORED_ADDRESS_BITS, true),
                Interpreted::Refused(at) => {
                    cpu.state.pc = at;
                    return self.continue_translated(on, core);
                }
            };
        }
    }

    /// Continues at the source address in the program counter in translated code.
    fn continue_translated(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        let state = &mut core.cpu().state;
        match self.code_of_refused(on.cores, state.pc) {
            Ok(code) => {
                state.pc = code;
                Outcome::Continue
            }
            Err(refusal) => self.refuse(on, state, state.pc, refusal),
        }
    }
}
