//! Executes instructions, and decides when to check for interrupts.

use longma_core::system::{Exit, Frame};
use longma_loongarch::{Location, State, Trap};

use super::code::{Block, CodePage, DecodedInstruction, check};
use super::{Core, Record};
use crate::exception::Exception;
use crate::memory::PAGE_BYTES;
use crate::platform::PowerRequest;

/// Why a core stopped executing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The turn is over.
    End,
    /// The core has not started, or waits for an interrupt that its timer will not raise.
    Idle,
    /// Software used the power controller.
    Power(PowerRequest),
    /// The debugger waits for this event.
    Debugger,
    /// Software wrote this mark.
    Mark(u8),
}

impl Core {
    /// Runs until the cycle `end` or until there is another reason to pause.
    pub(crate) fn run(&self, frame: &mut Frame, end: u64) -> Pause {
        // The last turn may have ended inside a block; do not translate the rest as a separate block.
        let mut is_resumed = true;
        loop {
            if let Some(request) = self.take_power_request() {
                return Pause::Power(request);
            }
            if let Some(mark) = self.take_mark() {
                return Pause::Mark(mark);
            }
            if self.bus.debug.has_event() {
                return Pause::Debugger;
            }
            if self.is_parked() {
                return Pause::Idle;
            }
            if self.clock() >= end {
                return Pause::End;
            }
            self.update_timer();
            let pending = self.pending_interrupt();
            if self.is_idle() {
                match (pending, self.next_event()) {
                    // An interrupt ends the wait even if CRMD.IE is 0.
                    (Some(_), _) => self.set_idle(false),
                    (None, Some(event)) => {
                        let wait = event.min(end).saturating_sub(self.clock());
                        self.advance_clock(wait);
                        continue;
                    }
                    (None, None) => return Pause::Idle,
                }
            }
            let is_stepping = self.bus.debug.is_stepping(self.number);
            if let Some(line) = pending.filter(|_| self.interrupts_enabled() && !is_stepping) {
                self.bus.debug.leave_breakpoint(self.number);
                self.enter(&mut frame.state, Exception::Interrupt(line), Record::default());
                self.advance_clock(1);
                continue;
            }
            self.grant(end);
            self.execute(frame, std::mem::take(&mut is_resumed));
        }
    }

    /// Executes instructions until the core must check for interrupts or its turn is over. If `is_resumed`, the first
    /// block may be the rest of one.
    fn execute(&self, frame: &mut Frame, is_resumed: bool) {
        let mut must_interpret = is_resumed;
        while !self.is_due() {
            let pc = frame.state.pc;
            if self.is_debugged(pc) {
                self.execute_debugged(frame);
                must_interpret = true;
                continue;
            }
            match self.code_page(pc) {
                Ok(page) => match self.host_code(frame, &page, pc).filter(|_| !must_interpret) {
                    // Translated code executes whole blocks only.
                    Some(host) => must_interpret = self.run_translated(frame, host) == Exit::Budget,
                    None => {
                        let is_part = std::mem::take(&mut must_interpret);
                        self.execute_page(&mut frame.state, &page, is_part);
                    }
                },
                Err(exception) => {
                    self.advance_clock(1);
                    let record = Record { address: pc, word: None };
                    self.enter(&mut frame.state, exception, record);
                }
            }
        }
    }

    /// Interprets instructions of one page until control leaves it, a block should be translated, or the core must check
    /// its state, as after a store to the page or a new mapping. If `is_part`, the first block may be a part of one.
    fn execute_page(&self, state: &mut State, page: &CodePage, mut is_part: bool) {
        let start = state.pc & !(PAGE_BYTES - 1);
        let mut is_first = true;
        loop {
            let offset = state.pc.wrapping_sub(start);
            // A misaligned program counter also leaves the page, and raises an exception.
            if offset & !(PAGE_BYTES - 4) != 0 {
                return;
            }
            let block = page.block((offset / 4) as usize, |address| self.word(address));
            if !is_part && self.count_run(block) && !is_first {
                return;
            }
            is_first = false;
            let alone = match self.can_run(block) {
                true => self.run_block(state, block),
                false => block.steps.first(),
            };
            is_part = alone.is_some_and(|step| !step.sets_program_counter);
            if let Some(step) = alone
                && !self.execute_step(state, page.address, step)
            {
                return;
            }
            if self.is_due() {
                return;
            }
        }
    }

    /// Whether the block can run without checks between its instructions.
    #[inline]
    pub(super) fn can_run(&self, block: &Block) -> bool {
        // Most blocks have no checks.
        block.checks == 0 || self.permits(block.checks)
    }

    /// Whether the state of the core satisfies `checks`.
    fn permits(&self, checks: u8) -> bool {
        let missing = checks & check::UNITS & !self.units();
        missing == 0
            && checks & check::ALONE == 0
            && (checks & check::VECTOR == 0 || self.alignment.get() == 0)
    }

    /// Executes a block without checks between its instructions, up to the core's next event. Returns the step that
    /// must be executed alone because it traps, accesses a device or writes code. The returned step has had no effect
    /// yet.
    #[inline]
    fn run_block<'a>(&self, state: &mut State, block: &'a Block) -> Option<&'a DecodedInstruction> {
        let first = state.pc;
        let length = block.steps.len() as u64;
        let count = length.min(self.until.get().saturating_sub(self.clock.get()));
        // Only the last instruction may read the program counter.
        state.pc = first.wrapping_add(4 * (length - 1));
        for (index, step) in block.steps.iter().take(count as usize).enumerate() {
            if (step.run)(state, &step.instruction, self).is_err() {
                state.pc = first.wrapping_add(4 * index as u64);
                self.advance_clock(index as u64);
                return Some(step);
            }
        }
        self.advance_clock(count);
        if count < length || !block.sets_program_counter {
            state.pc = first.wrapping_add(4 * count);
        }
        None
    }

    /// Executes one instruction of the physical page `page` with all checks and effects. Returns whether execution may
    /// continue in the page.
    pub(super) fn execute_step(&self, state: &mut State, page: u64, step: &DecodedInstruction) -> bool {
        self.advance_clock(1);
        self.is_alone.set(true);
        let outcome = match step.checks & !check::ALONE {
            0 => (step.run)(state, &step.instruction, self),
            _ => self.run_checked(state, step),
        };
        self.is_alone.set(false);
        if let Err(trap) = outcome {
            self.enter_for(state, page, step, trap);
            return false;
        }
        if !step.sets_program_counter {
            state.pc = state.pc.wrapping_add(4);
        }
        true
    }

    /// Enters the handler of the exception that a step raised.
    #[cold]
    fn enter_for(&self, state: &mut State, page: u64, step: &DecodedInstruction, trap: Trap) {
        let word = self.word(page + state.pc % PAGE_BYTES);
        let (exception, record) = match self.refusal(state, step) {
            Some(exception) => (exception, Record { address: state.r(step.instruction.j), word: Some(word) }),
            None => self.exception_of_trap(state, &step.instruction, word, trap),
        };
        self.enter(state, exception, record);
    }

    /// Executes an instruction that needs checks. If [`Self::refusal`] returns an exception, the instruction traps; the
    /// trap's value does not matter, since the caller asks `refusal` again.
    fn run_checked(&self, state: &mut State, step: &DecodedInstruction) -> Result<(), Trap> {
        if self.refusal(state, step).is_some() {
            return Err(Trap::IllegalInstruction);
        }
        let alignment = self.alignment.get();
        if step.checks & check::VECTOR != 0 {
            self.alignment.set(0);
        }
        let outcome = (step.run)(state, &step.instruction, self);
        self.alignment.set(alignment);
        outcome
    }

    /// The exception of an instruction whose unit is disabled, that may not read the counter, or whose write would be
    /// refused after its read.
    fn refusal(&self, state: &State, step: &DecodedInstruction) -> Option<Exception> {
        let missing = step.checks & check::UNITS & !self.units();
        if missing & check::VECTOR256 != 0 {
            return Some(Exception::Vector256Disabled);
        } else if missing & check::VECTOR128 != 0 {
            return Some(Exception::Vector128Disabled);
        } else if missing & check::FLOAT != 0 {
            return Some(Exception::FloatDisabled);
        } else if missing & check::TRANSLATION != 0 {
            return Some(Exception::TranslationDisabled);
        }
        if step.checks & check::COUNTER != 0 && self.forbids_counter() {
            return Some(Exception::PrivilegedInstruction);
        }
        let i = &step.instruction;
        // If rd = rj, the instruction is illegal, which its semantics report.
        if step.checks & check::MODIFIES != 0 && i.d != i.j {
            let bytes = i.op.row().writes.iter().find_map(|location| match location {
                Location::Memory(bytes) => Some(usize::from(*bytes)),
                _ => None,
            })?;
            return self.refused_store(state.r(i.j), bytes);
        }
        None
    }
}
