//! A translated program under a debugger: its threads stop at source addresses, and go on from there by one source instruction or many.
//! Not what the debugger says (see `gdb`), nor what stops mean for the program (`run.rs`).
//! Source: GDB manual, appendix E (remote protocol, all-stop mode).

use longma_core::{Core, Stop};
use longma_linux::{Outcome, Thread};
use longma_loongarch::{State, Trap};
use longma_translate::engine::Refusal;
use longma_translate::front_end::FrontEnd;

use super::{Translated, Translation};
use crate::cores::Cores;

/// What becomes of a thread at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Whoever steered it has let go.
    Free,
    /// It goes on to the next breakpoint, across the one that may be here.
    Run,
    /// It executes one instruction.
    Step,
}

/// Who steers a thread: a debugger, by the thread's side of its session.
pub(crate) trait Steers {
    /// Whether it has not let go.
    fn is_attached(&self) -> bool;

    /// Tells what is to be told of the place where the thread is, and waits while it is to; gives what becomes of it then.
    fn next(&mut self, state: &mut State) -> Next;

    /// The instruction at the program counter is executed.
    fn begin_instruction(&mut self);

    /// The bytes under watch.
    fn watched(&self) -> Vec<Vec<u8>>;

    /// Tells if the last instruction changed something under watch.
    fn report_change(&mut self, state: &mut State, before: &[Vec<u8>]);

    /// A system call begins, which may take long: meanwhile the process can be stopped without this thread, and this is what is seen of it.
    fn enter_call(&self, state: State);

    /// It is over; if the process has been stopped meanwhile, the thread stops behind it.
    fn leave_call(&mut self, state: &mut State);

    /// A trap: the signal is seen first, and may be taken away.
    fn raise(&mut self, thread: &mut Thread, state: &mut State, trap: Trap) -> Outcome;

    /// Delivers what has arrived: a signal is seen first, and may be taken away.
    fn deliver(&mut self, thread: &mut Thread, state: &mut State) -> Outcome;
}

/// A thread that runs, its process's cores, and who steers it.
pub(super) struct Steered<'a> {
    pub cores: &'a Cores,
    pub thread: &'a mut Thread,
    /// Who steers it, if anybody does.
    pub follower: Option<&'a mut dyn Steers>,
    /// The program counter is a source address, every register is in its place, and the debugger may look. Nobody's but a follower's.
    pub is_at_source: bool,
    /// How often changes of the source's code had been told of when the thread went on last.
    pub noted: u64,
}

impl<'a> Steered<'a> {
    /// A thread that nobody steers.
    pub fn free(cores: &'a Cores, thread: &'a mut Thread) -> Self {
        Self { cores, thread, follower: None, is_at_source: false, noted: 0 }
    }

    /// Raises the signal of a trap, once the debugger has seen it.
    pub fn raise(&mut self, state: &mut State, trap: Trap) -> Outcome {
        match &mut self.follower {
            Some(follower) => follower.raise(self.thread, state, trap),
            None => self.thread.raise(state, trap),
        }
    }

    /// Delivers what has arrived, once the debugger has seen it.
    pub fn deliver(&mut self, state: &mut State) -> Outcome {
        match &mut self.follower {
            Some(follower) => follower.deliver(self.thread, state),
            None => self.thread.deliver_pending(state),
        }
    }

    /// A system call begins, behind which the program goes on at `behind`.
    pub fn enter_call(&self, state: &State, behind: u64) {
        if let Some(follower) = &self.follower {
            follower.enter_call(State { pc: behind, ..state.clone() });
        }
    }

    /// It is over, and the thread behind it.
    pub fn leave_call(&mut self, state: &mut State) {
        if let Some(follower) = &mut self.follower {
            follower.leave_call(state);
        }
    }
}

impl<F: FrontEnd> Translated<F> {
    /// Lets a thread go on under a debugger until that has let go of it, or the thread is over.
    pub(super) fn go_steered(
        &self,
        cores: &Cores,
        core: &mut Core,
        thread: &mut Thread,
        follower: &mut dyn Steers,
    ) -> Outcome {
        if !follower.is_attached() {
            return self.go(&mut Steered::free(cores, thread), core);
        }
        let mut on = Steered { cores, thread, follower: Some(follower), is_at_source: false, noted: 0 };
        self.note_place(core.cpu().state.pc);
        let mut outcome = self.attend(&mut on, core);
        while outcome == Outcome::Continue && on.follower.is_some() {
            outcome = self.turn(&mut on, core);
        }
        outcome
    }

    /// One turn of a thread: it waits at a source address until the debugger has it go on, and goes on to another.
    fn turn(&self, on: &mut Steered, core: &mut Core) -> Outcome {
        if !on.is_at_source {
            self.note_place(core.cpu().state.pc);
            let stop = core.run();
            return self.stopped(on, core, stop);
        }
        // Until code is looked for, the thread has an address of the source only.
        self.places.set(None);
        let state = &mut core.cpu().state;
        let next = on.follower.as_mut().map_or(Next::Free, |follower| follower.next(state));
        if next == Next::Free {
            on.follower = None;
            self.watch(on.cores, false);
            return self.go_on(on, state, state.pc);
        }
        if core.cpu().attention.is_requested() {
            core.cpu().attention.clear();
            return self.deliver(on, core, None);
        }
        self.forget_noted(on.cores);
        match next {
            Next::Run => self.set_off(on, core),
            _ => self.step(on, core),
        }
    }

    /// Goes on from a source address, across the stop that may be there.
    fn set_off(&self, on: &mut Steered, core: &mut Core) -> Outcome {
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
            Err(Refusal::Stop) => self.step(on, core),
            Err(refusal) => self.refuse(on, state, state.pc, refusal),
        }
    }

    /// Executes one source instruction.
    fn step(&self, on: &mut Steered, core: &mut Core) -> Outcome {
        let state = &mut core.cpu().state;
        let start = state.pc;
        let code = match self.code_past_stop(on.cores, start) {
            Ok(code) => code,
            Err(refusal) => return self.refuse(on, state, start, refusal),
        };
        state.pc = code;
        on.is_at_source = false;
        let watched = on.follower.as_mut().map(|follower| {
            follower.begin_instruction();
            follower.watched()
        });
        let mut was_asked = false;
        let outcome = self.step_to_boundary(on, core, start, &mut was_asked);
        if was_asked {
            core.cpu().attention.request();
        }
        if let Ok(()) = outcome
            && let (Some(follower), Some(watched)) = (&mut on.follower, watched)
        {
            follower.report_change(&mut core.cpu().state, &watched);
        }
        outcome.err().unwrap_or(Outcome::Continue)
    }

    /// Executes the words of the instruction at `start`; of one that repeats, those of a round.
    ///
    /// # Errors
    /// It did not end by itself, but in a trap or a system call: what comes of that.
    fn step_to_boundary(
        &self,
        on: &mut Steered,
        core: &mut Core,
        start: u64,
        was_asked: &mut bool,
    ) -> Result<(), Outcome> {
        let mut has_begun = false;
        loop {
            let word = core.cpu().state.pc;
            match core.step() {
                None => {}
                Some(Stop::Attention) => {
                    core.cpu().attention.clear();
                    *was_asked = true;
                    continue;
                }
                Some(stop) => {
                    let outcome = self.stopped(on, core, stop);
                    if on.is_at_source || outcome != Outcome::Continue {
                        return Err(outcome);
                    }
                }
            }
            // What leads to itself is over where it begins again, but not before its own words; others are over where another begins.
            has_begun |= self.engine().source_instructions(word, 1) != 0;
            let state = &mut core.cpu().state;
            let place = self.engine().position(state.pc);
            let may_be_over = has_begun || place.is_some_and(|place| place.pc != start);
            if may_be_over && self.reach_boundary(on.cores, state).is_some() {
                on.is_at_source = true;
                return Ok(());
            }
        }
    }
}
