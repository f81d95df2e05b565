//! The run loop of a translated guest thread, and the handling of its stops.

use std::sync::atomic::Ordering;

use longma_core::{Core, Stop};
use longma_linux::{Outcome, Thread};
use longma_loongarch::{
    Access, Environment, Fault, FaultCause, Instruction, Op, State, Trap, Vector, decode,
};
use longma_translate::engine::CodeError;
use longma_translate::front_end::{
    EXIT, Exit, FrontEnd, ILLEGAL, Memory, Position, SCRATCH, SERVICE, STACK_POINTER, ServiceResult,
    UserMemory,
};

use super::debugged::{DebuggedThread, Interpretation};
use super::{Translated, Translation, expect_invalidated};
use crate::cores::Cores;

/// The host address at which a thread continues, and its general and vector registers if they differ from the
/// architectural ones.
pub(super) type HostPosition = (u64, Option<Box<([u64; 32], [Vector; 32])>>);

impl<F: FrontEnd> Translated<F> {
    /// Runs the thread until it stops, and handles the stop.
    pub(super) fn run_until_stop(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        while self.is_over.load(Ordering::Acquire) {
            std::thread::park();
        }
        self.forget_noted(on.cores);
        self.record_area(core.cpu().state.pc);
        on.noted = self.noted.load(Ordering::Acquire);
        if F::is_single_stepping(&core.cpu().state) {
            return self.single_step(on, core);
        }
        let stop = match on.cores.in_time() {
            Some(simulated) => simulated.run(core, on.thread),
            None => core.run(),
        };
        self.stopped(on, core, stop)
    }

    /// Handles a stop.
    pub(super) fn stopped(&self, on: &mut DebuggedThread, core: &mut Core, stop: Stop) -> Outcome {
        let cores = on.cores;
        let pc = core.cpu().state.pc;
        match stop {
            Stop::Trap(Trap::Syscall(_)) if self.layout.code.contains(&pc) => {
                let outcome = self.call(on, core);
                cores.process().memory().invalidate_changed_shared_code();
                outcome
            }
            Stop::Trap(Trap::Break(code))
                if self.layout.code.contains(&pc) && [EXIT, SERVICE, ILLEGAL].contains(&(code as i32)) =>
            {
                let outcome = self.handle_exit(on, &mut core.cpu().state, code);
                if code as i32 == SERVICE {
                    // Service instructions include those that synchronize the instruction stream, such as CPUID.
                    cores.process().memory().invalidate_changed_shared_code();
                }
                outcome
            }
            Stop::Trap(trap) => match self.without_tag(core, trap) {
                Ok(()) => Outcome::Continue,
                Err(trap) => self.trapped(on, &mut core.cpu().state, trap),
            },
            Stop::Attention => self.attend(on, core),
            Stop::Quantum | Stop::Magic(_) => {
                // In simulated time, instructions not counted yet are counted with later ones.
                if cores.in_time().is_none() {
                    core.clear_trace();
                    cores.sample(core, on.thread, |state| self.registers(cores, state));
                }
                Outcome::Continue
            }
        }
    }

    /// Repeats an access without the address bits that the source's processor ignores.
    ///
    /// # Errors
    /// The original trap, or that of the second access.
    fn without_tag(&self, core: &mut Core, trap: Trap) -> Result<(), Trap> {
        let Trap::Memory(fault) = trap else { return Err(trap) };
        let tag = fault.address & F::IGNORED_ADDRESS_BITS;
        let pc = core.cpu().state.pc;
        let is_ours = tag != 0 && fault.access != Access::Execute && self.layout.code.contains(&pc);
        let word = is_ours.then(|| core.cpu().guest().fetch(pc).ok().and_then(decode)).flatten();
        // All memory instructions have their base register in `j`. Another operand may be the same register.
        let Some(instruction @ Instruction { op, j: base @ 1.., d, k, .. }) = word else { return Err(trap) };
        let spare = (1..=5).find(|spare| ![d, base, k].contains(spare)).unwrap_or(SCRATCH);
        let state = &mut core.cpu().state;
        let saved = state.r(spare);
        state.set_r(spare, state.r(base).wrapping_sub(tag));
        // A conditional store compares the whole address with the reserved one.
        if is_store_conditional(op) && state.reservation.address & F::IGNORED_ADDRESS_BITS == tag {
            state.reservation.address -= tag;
        }
        let stop = core.step_as(&Instruction { j: spare, ..instruction });
        let state = &mut core.cpu().state;
        state.set_r(spare, saved);
        if stop.is_none() && is_load_linked(op) {
            state.reservation.address |= tag;
        }
        match stop {
            Some(Stop::Trap(trap)) => Err(trap),
            _ => Ok(()),
        }
    }

    /// Writes pending registers, and returns the position at the program counter.
    fn settled(&self, cores: &Cores, state: &mut State) -> Option<Position<F::Pending>> {
        let position = self.engine().position_of_fault(state.pc)?;
        if let Some(pending) = position.pending {
            F::settle(pending, state, &self.view(cores));
        }
        Some(position)
    }

    /// Handles a `break` of translated code.
    fn handle_exit(&self, on: &mut DebuggedThread, state: &mut State, code: u32) -> Outcome {
        let cores = on.cores;
        let pc = state.pc;
        let engine = self.engine();
        match engine.exit_at(pc) {
            Some(Exit::To(target)) => {
                drop(engine);
                self.look_up(on, state, target, Some(pc))
            }
            Some(Exit::Leave(target)) => {
                let position = engine.position(pc);
                drop(engine);
                if let Some(pending) = position.and_then(|position| position.pending) {
                    F::settle(pending, state, &self.view(cores));
                }
                self.arrive(on, state, target)
            }
            Some(Exit::Service(instruction)) => {
                drop(engine);
                let change_count = self.noted.load(Ordering::Acquire);
                match F::serve(instruction, state, &self.view(cores)) {
                    ServiceResult::Trap(trap) => return self.raise(on, state, trap),
                    ServiceResult::TrapAfter(trap, next_pc) => {
                        let _ = self.settled(cores, state);
                        state.pc = next_pc;
                        return self.raise_at_source(on, state, trap);
                    }
                    ServiceResult::Done => {}
                    ServiceResult::Again => {
                        return match self.settled(cores, state) {
                            Some(position) => self.arrive(on, state, position.pc),
                            None => self.raise(on, state, Trap::IllegalInstruction),
                        };
                    }
                    ServiceResult::ExactFloats { next_pc } => {
                        if let Some(outcome) = self.use_exact_floats(on, state, next_pc) {
                            return outcome;
                        }
                    }
                    ServiceResult::Step(next) => {
                        let _ = self.settled(cores, state);
                        return self.arrive(on, state, next);
                    }
                    ServiceResult::Changed(address) => self.forget(cores, address..address.saturating_add(1)),
                }
                state.pc = pc + 4;
                if F::IS_COHERENT
                    && self.noted.load(Ordering::Acquire) != change_count
                    && self.reach_boundary(cores, state).is_some()
                {
                    return self.arrive(on, state, state.pc);
                }
                Outcome::Continue
            }
            Some(Exit::Illegal) => {
                drop(engine);
                self.raise(on, state, Trap::IllegalInstruction)
            }
            None => {
                drop(engine);
                // Another thread has replaced the exit by a jump in the meantime.
                let word = cores.process().memory().fetch(pc).ok().and_then(decode);
                if word.is_some_and(|word| word.op == Op::Break && word.imm == code as i32) {
                    return self.raise(on, state, Trap::IllegalInstruction);
                }
                Outcome::Continue
            }
        }
    }

    /// Retranslates the code with exact floating-point modes, and continues after the current instruction. Returns
    /// `None` if the code is already exact.
    fn use_exact_floats(
        &self,
        on: &mut DebuggedThread,
        state: &mut State,
        next_pc: Option<u64>,
    ) -> Option<Outcome> {
        let changed = self.engine().use_exact_floats(&self.view(on.cores));
        if matches!(changed, Ok(false)) {
            return None;
        }
        expect_invalidated(changed.map(|_| ()));
        Some(match self.settled(on.cores, state) {
            Some(position) => {
                let next_pc = next_pc.unwrap_or(position.pc.wrapping_add(F::ALIGNMENT));
                self.arrive(on, state, next_pc)
            }
            None => self.raise(on, state, Trap::IllegalInstruction),
        })
    }

    fn trapped(&self, on: &mut DebuggedThread, state: &mut State, trap: Trap) -> Outcome {
        let target = if !self.layout.code.contains(&state.pc) {
            Some(self.target(state))
        } else if let Trap::Memory(_) = trap {
            self.target_out_of_reach(on.cores, state)
        } else {
            None
        };
        if let Some(target) = target {
            let target = target & !F::IGNORED_ADDRESS_BITS;
            if let Some(outcome) = self.refuse_jump(on, state, target) {
                return outcome;
            }
            self.engine().note_indirect(target);
            return self.arrive(on, state, target);
        }
        if let Some(outcome) = self.serve_instead(on, state, &trap) {
            return outcome;
        }
        if let Trap::Memory(Fault { address, cause: FaultCause::BeyondFile, .. }) = trap {
            on.thread.process().report_orphaned_access(address);
        }
        self.raise(on, state, trap)
    }

    /// Raises the exception of a jump to `target`, if it raises one itself.
    fn refuse_jump(&self, on: &mut DebuggedThread, state: &mut State, target: u64) -> Option<Outcome> {
        let position = self.engine().position_of_fault(state.pc)?;
        let view = self.view(on.cores);
        let trap = F::refuse_jump(target, position.pc, state, &|address| view.fetch(address).ok())?;
        state.pc = position.pc;
        Some(self.raise_at_source(on, state, trap))
    }

    /// Executes the source instruction at the program counter if its processor does not raise `trap`.
    fn serve_instead(&self, on: &mut DebuggedThread, state: &mut State, trap: &Trap) -> Option<Outcome> {
        let position = self.engine().position_of_fault(state.pc)?;
        let (instruction, next_pc) =
            F::permitted(trap, position.pc, &|address| self.view(on.cores).fetch(address).ok())?;
        self.settled(on.cores, state);
        Some(match F::serve(instruction, state, &self.view(on.cores)) {
            ServiceResult::Trap(trap) => {
                state.pc = position.pc;
                self.raise_at_source(on, state, trap)
            }
            _ => self.arrive(on, state, next_pc),
        })
    }

    /// The source address of a jump that missed in the lookup table.
    fn target(&self, state: &State) -> u64 {
        let engine = self.engine();
        F::missed_target(state, &|link| engine.call_before(link))
    }

    /// The target of a jump that failed because it is beyond the lookup table.
    fn target_out_of_reach(&self, cores: &Cores, state: &State) -> Option<u64> {
        let word = decode(cores.process().memory().fetch(state.pc).ok()?)?;
        F::lookup_target(state, &word)
    }

    /// Raises the signal of a trap in translated code.
    pub(super) fn raise(&self, on: &mut DebuggedThread, state: &mut State, trap: Trap) -> Outcome {
        if let Some(position) = self.settled(on.cores, state) {
            state.pc = position.pc;
        }
        self.raise_at_source(on, state, trap)
    }

    /// Raises the signal of a trap at a source address.
    pub(super) fn raise_at_source(&self, on: &mut DebuggedThread, state: &mut State, trap: Trap) -> Outcome {
        state.set_r(SCRATCH, 0);
        let pc = state.pc;
        self.release_area(on);
        match on.raise(state, F::trap(trap)) {
            Outcome::Continue => self.resume(on, state),
            over => {
                match (over, trap) {
                    (Outcome::KilledBy(libc::SIGILL), _) => {
                        self.report_illegal_instruction(on.cores, on.thread, pc);
                    }
                    (
                        Outcome::KilledBy(libc::SIGBUS),
                        Trap::Memory(Fault { address, cause: FaultCause::Misaligned, .. }),
                    ) => {
                        let text = self.describe(on.cores, pc);
                        on.thread.process().report(&format!(
                            "misaligned access to {address:#x} at {pc:#x}: {text}; the architecture requires an aligned address here, even where the host does not"
                        ));
                    }
                    _ => {}
                }
                over
            }
        }
    }

    /// Explains why an illegal instruction killed the program.
    fn report_illegal_instruction(&self, cores: &Cores, thread: &Thread, pc: u64) {
        let mut bytes = [0; 8];
        let is_read = self.view(cores).read(pc, &mut bytes);
        let code = bytes.map(|byte| format!("{byte:02x}")).join(" ");
        let code = if is_read { code } else { "not readable".into() };
        let text = self.describe(cores, pc);
        thread.process().report(&format!(
            "illegal or unsupported instruction at {pc:#x}: {text} ({code}); the book's page 'Other instruction sets' lists unsupported instructions"
        ));
    }

    /// The text of the instruction at a source address.
    fn describe(&self, cores: &Cores, pc: u64) -> String {
        F::describe(pc, &|address| {
            let mut word = [0; 4];
            self.view(cores).read(address, &mut word).then(|| u32::from_le_bytes(word))
        })
        .1
    }

    /// Handles an error of a lookup of the code at source address `target`.
    pub(super) fn refuse(
        &self,
        on: &mut DebuggedThread,
        state: &mut State,
        target: u64,
        refusal: CodeError,
    ) -> Outcome {
        match refusal {
            CodeError::Fault(fault) => {
                state.pc = target;
                self.raise_at_source(on, state, Trap::Memory(fault))
            }
            CodeError::Breakpoint => {
                if on.follower.is_none() {
                    // The process was forked from one under a debugger, but is not debugged itself.
                    self.set_debug_mode(on.cores, false);
                }
                self.arrive(on, state, target)
            }
            CodeError::Full => {
                on.thread.process().report_once(
                    "the area for translated code (--translation-room) is full: the program is killed with SIGKILL. The area is not reused with --stats, --profile or in simulated time",
                );
                Outcome::KilledBy(libc::SIGKILL)
            }
        }
    }

    /// Continues at a source address. A thread under a debugger stays there until the debugger resumes it.
    pub(super) fn arrive(&self, on: &mut DebuggedThread, state: &mut State, pc: u64) -> Outcome {
        if on.follower.is_some() {
            state.pc = pc;
            on.is_at_source = true;
            return Outcome::Continue;
        }
        self.look_up(on, state, pc, None)
    }

    /// Continues at a source address, which the thread reached through `exit` in translated code if given.
    fn look_up(&self, on: &mut DebuggedThread, state: &mut State, pc: u64, exit: Option<u64>) -> Outcome {
        if self.interprets && on.follower.is_none() && !F::is_single_stepping(state) {
            state.pc = pc;
            on.interpretation = Some(Interpretation { exit });
            return Outcome::Continue;
        }
        let code = match exit {
            Some(exit) => self.follow(on.cores, exit, pc),
            None => self.code_of(on.cores, pc),
        };
        match code {
            Ok(code) => {
                state.pc = code;
                Outcome::Continue
            }
            Err(refusal) => self.refuse(on, state, pc, refusal),
        }
    }

    /// Continues at the source address that the process set. If that is a signal handler, builds the source's signal
    /// frame first.
    pub(super) fn resume(&self, on: &mut DebuggedThread, state: &mut State) -> Outcome {
        let return_address = state.r(SCRATCH);
        if return_address != 0 && !F::enter(state, return_address, &self.view(on.cores)) {
            state.set_r(SCRATCH, 0);
            let address = state.r(STACK_POINTER);
            let fault = Fault { address, access: Access::Write, cause: FaultCause::Unmapped };
            return self.raise_at_source(on, state, Trap::Memory(fault));
        }
        state.set_r(F::TABLE, self.layout.table);
        self.arrive(on, state, state.pc)
    }

    /// Handles an attention request: signals have arrived or code has changed. First continues to a position at which
    /// all registers are architectural.
    pub(super) fn attend(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        core.cpu().attention.clear();
        loop {
            let pc = core.cpu().state.pc;
            if !self.layout.code.contains(&pc) {
                let target = self.target(&core.cpu().state);
                core.cpu().state.pc = target;
                return self.deliver(on, core, None);
            }
            if let Some(interrupted) = self.reach_boundary(on.cores, &mut core.cpu().state) {
                // A thread's own stores to code take effect at its next instruction.
                let is_old = F::IS_COHERENT && self.noted.load(Ordering::Acquire) != on.noted;
                return self.deliver(on, core, Some(interrupted).filter(|_| !is_old));
            }
            match core.step() {
                None => {}
                Some(Stop::Attention) => core.cpu().attention.clear(),
                Some(stop) => {
                    core.cpu().attention.request();
                    return self.stopped(on, core, stop);
                }
            }
        }
    }

    /// If the program counter is between two source instructions, writes pending registers and sets the program counter
    /// to the source address.
    pub(super) fn reach_boundary(&self, cores: &Cores, state: &mut State) -> Option<HostPosition> {
        let position = self.engine().position(state.pc).filter(|position| position.is_boundary)?;
        let interrupted = (state.pc, position.pending.map(|_| Box::new((state.x, state.v))));
        if let Some(pending) = position.pending {
            F::settle(pending, state, &self.view(cores));
        }
        state.pc = position.pc;
        Some(interrupted)
    }

    /// Delivers pending signals at a source address. If none is delivered, continues at host address `interrupted`, if
    /// given, so that the source address does not become an entry point.
    pub(super) fn deliver(
        &self,
        on: &mut DebuggedThread,
        core: &mut Core,
        interrupted: Option<HostPosition>,
    ) -> Outcome {
        let state = &mut core.cpu().state;
        state.set_r(SCRATCH, 0);
        let source = state.pc;
        let interrupted =
            interrupted.filter(|_| on.follower.is_none() && !self.area_usage.is_drain_requested());
        self.release_area(on);
        let (outcome, interrupted) = match interrupted {
            Some(interrupted) => {
                let (outcome, is_there) = self.outside_area(interrupted.0, || on.deliver(state));
                (outcome, Some(interrupted).filter(|_| is_there))
            }
            None => (on.deliver(state), None),
        };
        match (outcome, interrupted) {
            (Outcome::Continue, Some((code, registers))) if state.r(SCRATCH) == 0 && state.pc == source => {
                if let Some(registers) = registers {
                    (state.x, state.v) = *registers;
                }
                state.pc = code;
                Outcome::Continue
            }
            (Outcome::Continue, _) => self.resume(on, state),
            (over, _) => over,
        }
    }
}

fn is_load_linked(op: Op) -> bool {
    matches!(op, Op::LlW | Op::LlD | Op::LlacqW | Op::LlacqD)
}

fn is_store_conditional(op: Op) -> bool {
    matches!(op, Op::ScW | Op::ScD | Op::ScrelW | Op::ScrelD | Op::ScQ)
}
