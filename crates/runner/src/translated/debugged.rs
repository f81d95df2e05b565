//! Execution of translated threads under a debugger. Threads stop at source addresses, and continue by one source
//! instruction or up to a breakpoint. Source: GDB manual, appendix E (remote protocol, all-stop mode).

use longma_core::{Core, Stop};
use longma_linux::{Outcome, Thread};
use longma_loongarch::{State, Trap};
use longma_translate::engine::CodeError;
use longma_translate::front_end::{FrontEnd, STEPPED};

use super::{Translated, Translation};
use crate::cores::Cores;

/// A thread's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebugAction {
    /// It runs freely, because the debugger has detached.
    Free,
    /// It continues to the next breakpoint. One at the current address is ignored.
    Run,
    /// It executes one instruction.
    Step,
}

/// A thread's side of a debugging session.
pub(crate) trait ThreadDebugger {
    /// Whether the debugger is still attached.
    fn is_attached(&self) -> bool;

    /// Reports the thread's stop, if any, and waits until the thread may continue.
    fn next(&mut self, state: &mut State) -> DebugAction;

    /// The thread is about to execute the instruction at the program counter.
    fn begin_instruction(&mut self);

    /// The contents of all watched ranges.
    fn watched(&self) -> Vec<Vec<u8>>;

    /// Reports a watchpoint if the last instruction changed a watched range.
    fn report_change(&mut self, state: &mut State, before: &[Vec<u8>]);

    /// A system call begins, which may block. During this time, the process can be stopped without this thread; the
    /// debugger sees `state`.
    fn enter_call(&self, state: State);

    /// The system call is complete. If the process was stopped during the call, the thread stops after it.
    fn leave_call(&mut self, state: &mut State);

    /// Raises the signal of a trap, unless the debugger discards it.
    fn raise(&mut self, thread: &mut Thread, state: &mut State, trap: Trap) -> Outcome;

    /// Delivers pending signals, unless the debugger discards them.
    fn deliver(&mut self, thread: &mut Thread, state: &mut State) -> Outcome;
}

/// A running thread, its process's cores, and the debugger.
pub(super) struct DebuggedThread<'a> {
    pub cores: &'a Cores,
    pub thread: &'a mut Thread,
    /// The debugger, if one is attached.
    pub follower: Option<&'a mut dyn ThreadDebugger>,
    /// Whether the program counter is a source address and all registers are architectural. Used only under a debugger.
    pub is_at_source: bool,
    /// The number of reported code changes when the thread last continued.
    pub noted: u64,
    /// Set if the thread is at a source address that the interpreter looks up.
    pub interpretation: Option<Interpretation>,
}

/// How a thread reached the source address at which interpretation begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Interpretation {
    /// The exit of translated code that led there.
    pub exit: Option<u64>,
}

impl<'a> DebuggedThread<'a> {
    /// A thread without a debugger.
    pub fn free(cores: &'a Cores, thread: &'a mut Thread) -> Self {
        Self { cores, thread, follower: None, is_at_source: false, noted: 0, interpretation: None }
    }

    /// Raises the signal of a trap after reporting it to the debugger.
    pub fn raise(&mut self, state: &mut State, trap: Trap) -> Outcome {
        match &mut self.follower {
            Some(follower) => follower.raise(self.thread, state, trap),
            None => self.thread.raise(state, trap),
        }
    }

    /// Delivers pending signals after reporting them to the debugger.
    pub fn deliver(&mut self, state: &mut State) -> Outcome {
        match &mut self.follower {
            Some(follower) => follower.deliver(self.thread, state),
            None => self.thread.deliver_pending(state),
        }
    }

    /// Reports a system call to the debugger. The program continues at `return_pc` afterwards.
    pub fn enter_call(&self, state: &State, return_pc: u64) {
        if let Some(follower) = &self.follower {
            follower.enter_call(State { pc: return_pc, ..state.clone() });
        }
    }

    /// Reports the end of the system call.
    pub fn leave_call(&mut self, state: &mut State) {
        if let Some(follower) = &mut self.follower {
            follower.leave_call(state);
        }
    }
}

/// The events during a single step.
#[derive(Default)]
struct SeenInStep {
    /// The thread's attention was requested.
    attention: bool,
    /// The instruction was a system call.
    system_call: bool,
}

impl<F: FrontEnd> Translated<F> {
    /// Executes one instruction of a thread whose processor traps after each, and raises that trap. A processor does
    /// not trap right after a system call.
    pub(super) fn single_step(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        if core.cpu().attention.is_requested() || !self.layout.code.contains(&core.cpu().state.pc) {
            return self.attend(on, core);
        }
        let state = &mut core.cpu().state;
        let Some(position) = self.engine().position(state.pc) else {
            return self.raise(on, state, Trap::IllegalInstruction);
        };
        match self.code_of_one(on.cores, position.pc) {
            Ok(code) => state.pc = code,
            Err(refusal) => return self.refuse(on, state, position.pc, refusal),
        }
        let mut seen = SeenInStep::default();
        let outcome = self.step_to_boundary(on, core, position.pc, &mut seen);
        on.is_at_source = false;
        if seen.attention {
            core.cpu().attention.request();
        }
        let state = &mut core.cpu().state;
        match outcome {
            Err(outcome) => outcome,
            // A handler does not single-step.
            Ok(()) if F::is_single_stepping(state) && !seen.system_call => {
                self.raise_at_source(on, state, Trap::Break(STEPPED))
            }
            Ok(()) => self.arrive(on, state, state.pc),
        }
    }

    /// Runs a thread under a debugger until the debugger detaches or the thread exits.
    pub(super) fn run_under_debugger(
        &self,
        cores: &Cores,
        core: &mut Core,
        thread: &mut Thread,
        follower: &mut dyn ThreadDebugger,
    ) -> Outcome {
        if !follower.is_attached() {
            return self.run_freely(cores, core, thread);
        }
        let mut on = DebuggedThread {
            cores,
            thread,
            follower: Some(follower),
            is_at_source: false,
            noted: 0,
            interpretation: None,
        };
        self.record_area(core.cpu().state.pc);
        let mut outcome = self.attend(&mut on, core);
        while outcome == Outcome::Continue && on.follower.is_some() {
            outcome = self.turn(&mut on, core);
        }
        self.interpret_pending(&mut on, core, outcome)
    }

    /// Waits at a source address until the debugger resumes the thread, then continues to another one.
    fn turn(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        if !on.is_at_source {
            self.record_area(core.cpu().state.pc);
            let stop = core.run();
            return self.stopped(on, core, stop);
        }
        // The thread holds no host address until it looks up its code.
        self.area_usage.set(None);
        let state = &mut core.cpu().state;
        let next = on.follower.as_mut().map_or(DebugAction::Free, |follower| follower.next(state));
        if next == DebugAction::Free {
            on.follower = None;
            self.set_debug_mode(on.cores, false);
            return self.arrive(on, state, state.pc);
        }
        if core.cpu().attention.is_requested() {
            core.cpu().attention.clear();
            return self.deliver(on, core, None);
        }
        self.forget_noted(on.cores);
        match next {
            DebugAction::Run => self.resume_from(on, core),
            _ => self.step(on, core),
        }
    }

    /// Continues from a source address. A breakpoint there is ignored.
    fn resume_from(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        let state = &mut core.cpu().state;
        match self.code_of(on.cores, state.pc) {
            Ok(code) => {
                state.pc = code;
                on.is_at_source = false;
                if let Some(follower) = &mut on.follower {
                    follower.begin_instruction();
                }
                Outcome::Continue
            }
            Err(CodeError::Breakpoint) => self.step(on, core),
            Err(refusal) => self.refuse(on, state, state.pc, refusal),
        }
    }

    /// Executes one source instruction.
    fn step(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        let state = &mut core.cpu().state;
        let start = state.pc;
        let code = match self.code_past_breakpoint(on.cores, start) {
            Ok(code) => code,
            Err(refusal) => return self.refuse(on, state, start, refusal),
        };
        state.pc = code;
        on.is_at_source = false;
        let watched = on.follower.as_mut().map(|follower| {
            follower.begin_instruction();
            follower.watched()
        });
        let mut seen = SeenInStep::default();
        let outcome = self.step_to_boundary(on, core, start, &mut seen);
        if seen.attention {
            core.cpu().attention.request();
        }
        if let Ok(()) = outcome
            && let (Some(follower), Some(watched)) = (&mut on.follower, watched)
        {
            follower.report_change(&mut core.cpu().state, &watched);
        }
        outcome.err().unwrap_or(Outcome::Continue)
    }

    /// Executes the code of the instruction at `start`. If the instruction repeats itself, executes one iteration.
    ///
    /// # Errors
    /// The outcome, if the instruction ends in a trap or a system call.
    fn step_to_boundary(
        &self,
        on: &mut DebuggedThread,
        core: &mut Core,
        start: u64,
        seen: &mut SeenInStep,
    ) -> Result<(), Outcome> {
        let mut has_begun = false;
        loop {
            let word = core.cpu().state.pc;
            match core.step() {
                None => {}
                Some(Stop::Attention) => {
                    core.cpu().attention.clear();
                    seen.attention = true;
                    continue;
                }
                Some(stop) => {
                    seen.system_call |= matches!(stop, Stop::Trap(Trap::Syscall(_)));
                    let outcome = self.stopped(on, core, stop);
                    let is_at_source = on.is_at_source || on.interpretation.is_some();
                    if is_at_source || outcome != Outcome::Continue {
                        return Err(outcome);
                    }
                }
            }
            // A repeating instruction is complete when it begins again after at least one counted word. Others are
            // complete when another instruction begins.
            has_begun |= self.engine().source_instructions(word, 1) != 0;
            let state = &mut core.cpu().state;
            let position = self.engine().position(state.pc);
            let may_be_over = has_begun || position.is_some_and(|position| position.pc != start);
            if may_be_over && self.reach_boundary(on.cores, state).is_some() {
                on.is_at_source = true;
                return Ok(());
            }
        }
    }
}
