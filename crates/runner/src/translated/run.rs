//! The run loop of a guest thread whose program is translated: what its stops mean for the program.
//! Not its system calls (see `calls.rs`).

use std::sync::atomic::Ordering;

use longma_core::{Core, Stop};
use longma_linux::{Outcome, Thread};
use longma_loongarch::{
    Access, Class, Environment, Fault, FaultCause, Instruction, Op, Operand, RegisterKind, State, Trap,
    Vector, decode,
};
use longma_translate::engine::Refusal;
use longma_translate::front_end::{
    EXIT, Exit, FrontEnd, ILLEGAL, Position, SCRATCH, SERVICE, STACK_POINTER, Served, Structures,
};

use super::steered::Steered;
use super::{Translated, Translation};
use crate::cores::Cores;

/// Where a thread's code goes on, and the general and vector registers that it needs if they are not those of the source.
pub(super) type Here = (u64, Option<Box<([u64; 32], [Vector; 32])>>);

impl<F: FrontEnd> Translated<F> {
    /// Lets the thread go on until it stops.
    pub(super) fn go(&self, on: &mut Steered, core: &mut Core) -> Outcome {
        while self.is_over.load(Ordering::Acquire) {
            std::thread::park();
        }
        self.forget_noted(on.cores);
        self.note_place(core.cpu().state.pc);
        on.noted = self.noted.load(Ordering::Acquire);
        let stop = match on.cores.in_time() {
            Some(simulated) => simulated.run(core, on.thread),
            None => core.run(),
        };
        self.stopped(on, core, stop)
    }

    /// What a stop means for the program.
    pub(super) fn stopped(&self, on: &mut Steered, core: &mut Core, stop: Stop) -> Outcome {
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
                let outcome = self.come_out(on, &mut core.cpu().state, code);
                if code as i32 == SERVICE {
                    // Instructions that make others' stores to code seen, such as CPUID, are among these.
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
                // In simulated time, what has run since it was last counted is counted with what comes.
                if cores.in_time().is_none() {
                    core.clear_trace();
                }
                Outcome::Continue
            }
        }
    }

    /// Makes an access once more without the bits of its address that the source's processor ignores.
    ///
    /// # Errors
    /// The trap, or that of the second access.
    fn without_tag(&self, core: &mut Core, trap: Trap) -> Result<(), Trap> {
        let Trap::Memory(fault) = trap else { return Err(trap) };
        let tag = fault.address & F::IGNORED_ADDRESS_BITS;
        let pc = core.cpu().state.pc;
        let is_ours = tag != 0 && fault.access != Access::Execute && self.layout.code.contains(&pc);
        let word = is_ours.then(|| core.cpu().guest().fetch(pc).ok().and_then(decode)).flatten();
        // Whatever accesses memory has its base there.
        let Some(Instruction { op, j: base @ 1.., d, .. }) = word else { return Err(trap) };
        let tagged = core.cpu().state.r(base);
        core.cpu().state.set_r(base, tagged.wrapping_sub(tag));
        let stop = core.step();
        if stop.is_some() || d != base || !loads_general(op) {
            core.cpu().state.set_r(base, tagged);
        }
        match stop {
            Some(Stop::Trap(trap)) => Err(trap),
            _ => Ok(()),
        }
    }

    /// What stands at the program counter, and what it says of registers that are yet to be written is done.
    fn settled(&self, cores: &Cores, state: &mut State) -> Option<Position<F::Pending>> {
        let position = self.engine().position_of_fault(state.pc)?;
        if let Some(pending) = position.pending {
            F::settle(pending, state, &self.view(cores));
        }
        Some(position)
    }

    /// A word that only translated code has.
    fn come_out(&self, on: &mut Steered, state: &mut State, code: u32) -> Outcome {
        let cores = on.cores;
        let pc = state.pc;
        let engine = self.engine();
        match engine.exit_at(pc) {
            Some(Exit::To(target)) => {
                drop(engine);
                match self.follow(cores, pc, target) {
                    Ok(code) => {
                        state.pc = code;
                        Outcome::Continue
                    }
                    Err(refusal) => self.refuse(on, state, target, refusal),
                }
            }
            Some(Exit::Leave(target)) => {
                let position = engine.position(pc);
                drop(engine);
                if let Some(pending) = position.and_then(|position| position.pending) {
                    F::settle(pending, state, &self.view(cores));
                }
                self.go_on(on, state, target)
            }
            Some(Exit::Service(instruction)) => {
                drop(engine);
                let noted = self.noted.load(Ordering::Acquire);
                match F::serve(instruction, state, &self.view(cores)) {
                    Served::Trap(trap) => return self.raise(on, state, trap),
                    Served::TrapBehind(trap, behind) => {
                        let _ = self.settled(cores, state);
                        state.pc = behind;
                        return self.raise_at_source(on, state, trap);
                    }
                    Served::Done => {}
                    Served::Again => {
                        return match self.settled(cores, state) {
                            Some(position) => self.go_on(on, state, position.pc),
                            None => self.raise(on, state, Trap::IllegalInstruction),
                        };
                    }
                    Served::Changed(address) => self.forget(cores, address..address.saturating_add(1)),
                }
                state.pc = pc + 4;
                if F::IS_COHERENT
                    && self.noted.load(Ordering::Acquire) != noted
                    && self.reach_boundary(cores, state).is_some()
                {
                    return self.go_on(on, state, state.pc);
                }
                Outcome::Continue
            }
            Some(Exit::Illegal) => {
                drop(engine);
                self.raise(on, state, Trap::IllegalInstruction)
            }
            None => {
                drop(engine);
                // Another thread has been here at the same time and put a jump there.
                let word = cores.process().memory().fetch(pc).ok().and_then(decode);
                if word.is_some_and(|word| word.op == Op::Break && word.imm == code as i32) {
                    return self.raise(on, state, Trap::IllegalInstruction);
                }
                Outcome::Continue
            }
        }
    }

    fn trapped(&self, on: &mut Steered, state: &mut State, trap: Trap) -> Outcome {
        let target = if !self.layout.code.contains(&state.pc) {
            Some(self.target(state))
        } else if let Trap::Memory(_) = trap {
            self.target_out_of_reach(on.cores, state)
        } else {
            None
        };
        if let Some(target) = target {
            let target = target & !F::IGNORED_ADDRESS_BITS;
            self.engine().note_indirect(target);
            return self.go_on(on, state, target);
        }
        if let Trap::Memory(Fault { address, cause: FaultCause::BeyondFile, .. }) = trap {
            on.thread.process().note_orphaned_access(address);
        }
        self.raise(on, state, trap)
    }

    /// The source address that a jump has led to whose entry in the table is empty.
    fn target(&self, state: &State) -> u64 {
        let engine = self.engine();
        F::missed(state, &|link| engine.call_before(link))
    }

    /// The source address that a jump was to lead to, if its entry could not be read because the table has none for it.
    fn target_out_of_reach(&self, cores: &Cores, state: &State) -> Option<u64> {
        let word = decode(cores.process().memory().fetch(state.pc).ok()?)?;
        F::looked_up(state, &word)
    }

    /// Raises the signal of a trap in translated code.
    pub(super) fn raise(&self, on: &mut Steered, state: &mut State, trap: Trap) -> Outcome {
        if let Some(position) = self.settled(on.cores, state) {
            state.pc = position.pc;
        }
        self.raise_at_source(on, state, trap)
    }

    /// Raises the signal of a trap of the instruction at a source address.
    pub(super) fn raise_at_source(&self, on: &mut Steered, state: &mut State, trap: Trap) -> Outcome {
        state.set_r(SCRATCH, 0);
        let pc = state.pc;
        self.note_hold(on);
        match on.raise(state, F::trap(trap)) {
            Outcome::Continue => self.resume(on, state),
            over => {
                if over == Outcome::KilledBy(libc::SIGILL) {
                    self.tell_illegal(on.cores, on.thread, pc);
                }
                over
            }
        }
    }

    /// Why a program that does not expect it dies of an instruction.
    fn tell_illegal(&self, cores: &Cores, thread: &Thread, pc: u64) {
        let mut bytes = [0; 8];
        let is_read = self.view(cores).read(pc, &mut bytes);
        let code = bytes.map(|byte| format!("{byte:02x}")).join(" ");
        let code = if is_read { code } else { "nothing that can be read".into() };
        thread.process().say(&format!(
            "the program dies of the instruction at {pc:#x} ({code}), which is invalid or not supported: the book's page 'Other instruction sets' lists what is not supported"
        ));
    }

    /// What becomes of a thread for which there is no code at a source address.
    pub(super) fn refuse(
        &self,
        on: &mut Steered,
        state: &mut State,
        target: u64,
        refusal: Refusal,
    ) -> Outcome {
        match refusal {
            Refusal::Fault(fault) => {
                state.pc = target;
                self.raise_at_source(on, state, Trap::Memory(fault))
            }
            Refusal::Stop => {
                if on.follower.is_none() {
                    // The process has been forked off one that is debugged, which it is not.
                    self.watch(on.cores, false);
                }
                self.go_on(on, state, target)
            }
            Refusal::Full => {
                on.thread.process().say_once(
                    "the room for translated code is full, and the program is ended by SIGKILL: it has executed more code than --translation-room holds, and where it is counted what code executes (--stats, --profile, simulated time) none of it is used again",
                );
                Outcome::KilledBy(libc::SIGKILL)
            }
        }
    }

    /// Goes on at a source address. A thread that a debugger steers is there now, and goes on when it says so.
    pub(super) fn go_on(&self, on: &mut Steered, state: &mut State, pc: u64) -> Outcome {
        if on.follower.is_some() {
            state.pc = pc;
            on.is_at_source = true;
            return Outcome::Continue;
        }
        match self.code_of(on.cores, pc) {
            Ok(code) => {
                state.pc = code;
                Outcome::Continue
            }
            Err(refusal) => self.refuse(on, state, pc, refusal),
        }
    }

    /// Goes on at the source address that the process has left the thread at: in a handler, maybe, which gets its own frame first.
    pub(super) fn resume(&self, on: &mut Steered, state: &mut State) -> Outcome {
        let back = state.r(SCRATCH);
        if back != 0 && !F::enter(state, back, &self.view(on.cores)) {
            state.set_r(SCRATCH, 0);
            let address = state.r(STACK_POINTER);
            let fault = Fault { address, access: Access::Write, cause: FaultCause::Unmapped };
            return self.raise_at_source(on, state, Trap::Memory(fault));
        }
        state.set_r(F::TABLE, self.layout.table);
        self.go_on(on, state, state.pc)
    }

    /// Signals have arrived, or code has changed. Goes on to where the source's registers are all in place first.
    pub(super) fn attend(&self, on: &mut Steered, core: &mut Core) -> Outcome {
        core.cpu().attention.clear();
        loop {
            let pc = core.cpu().state.pc;
            if !self.layout.code.contains(&pc) {
                let target = self.target(&core.cpu().state);
                core.cpu().state.pc = target;
                return self.deliver(on, core, None);
            }
            if let Some(here) = self.reach_boundary(on.cores, &mut core.cpu().state) {
                // The thread's own stores to code take effect on what it executes next.
                let is_old = F::IS_COHERENT && self.noted.load(Ordering::Acquire) != on.noted;
                return self.deliver(on, core, Some(here).filter(|_| !is_old));
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

    /// Where the program counter is between two source instructions: brings every register into its place, and the program counter to the
    /// source address.
    pub(super) fn reach_boundary(&self, cores: &Cores, state: &mut State) -> Option<Here> {
        let position = self.engine().position(state.pc).filter(|position| position.is_boundary)?;
        let here = (state.pc, position.pending.map(|_| Box::new((state.x, state.v))));
        if let Some(pending) = position.pending {
            F::settle(pending, state, &self.view(cores));
        }
        state.pc = position.pc;
        Some(here)
    }

    /// Delivers what has arrived; the thread is at a source address, whose code is at `here` if that is known: where nothing becomes of
    /// it, the thread goes on there, and the address need not become one that is jumped to.
    pub(super) fn deliver(&self, on: &mut Steered, core: &mut Core, here: Option<Here>) -> Outcome {
        let state = &mut core.cpu().state;
        state.set_r(SCRATCH, 0);
        let source = state.pc;
        let here = here.filter(|_| on.follower.is_none() && !self.places.are_awaited());
        self.note_hold(on);
        let (outcome, here) = match here {
            Some(here) => {
                let (outcome, is_there) = self.away(here.0, || on.deliver(state));
                (outcome, Some(here).filter(|_| is_there))
            }
            None => (on.deliver(state), None),
        };
        match (outcome, here) {
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

/// Whether an instruction's first operand is a general register that it loads.
fn loads_general(op: Op) -> bool {
    let row = op.row();
    let is_general = matches!(row.operands.first(), Some(Operand::Register(RegisterKind::General, _)));
    is_general && matches!(row.class, Class::Load | Class::Atomic)
}
