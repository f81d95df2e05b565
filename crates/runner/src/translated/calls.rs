//! The system calls of a translated program, and what its new threads begin with.
//! Not what calls become (the front ends, `longma_translate_x86` and its kin), nor what they do.

use std::cell::Cell;

use longma_core::Core;
use longma_guest::Errno;
use longma_linux::{Outcome, Thread};
use longma_loongarch::{Access, Fault, FaultCause, State, Trap};
use longma_translate::front_end::{CallResult, FrontEnd, SCRATCH, STACK_POINTER, Step, Structures};

use super::steered::Steered;
use super::{Translated, memory_for};
use crate::cores::Cores;

// The number and the arguments of LoongArch's calls.
const NUMBER: u8 = 11;
const ARGUMENTS: [u8; 6] = [4, 5, 6, 7, 8, 9];
const RT_SIGRETURN: u64 = 139;
const CLONE: u64 = 220;
const CLONE3: u64 = 435;
const CLONE_SETTLS: u64 = 0x8_0000;
/// Errors are the negative numbers from -1 to this.
const LAST_ERROR: u64 = -4095i64 as u64;

thread_local! {
    /// The program's registers at the call that this host thread is making, and the arguments that the call has here.
    static CALLER: Cell<Option<([u64; 32], [u64; 6])>> = const { Cell::new(None) };
    /// Where in the program's memory the calls of this host thread have their structures; 0: nowhere yet.
    static ROOM: Cell<u64> = const { Cell::new(0) };
}

/// Room for the structures of a call. Not below the stack pointer: another stack may lie there, or nothing.
fn room<F: FrontEnd>(cores: &Cores) -> Result<u64, Errno> {
    if ROOM.get() == 0 {
        ROOM.set(memory_for(cores.process().address_space(), F::ROOM_BYTES)?);
    }
    Ok(ROOM.get())
}

/// Gives the room back of a thread that has ended.
fn leave_room<F: FrontEnd>(cores: &Cores) {
    let room = ROOM.replace(0);
    if room != 0 {
        // Pages that the program has unmapped itself are not there any more.
        let _ = cores.process().address_space().unmap(room, F::ROOM_BYTES);
    }
}

/// Slots of a thread's own, in which is what is in those of the thread that makes it.
fn slots_like<F: FrontEnd>(cores: &Cores, view: &dyn Structures, slots: u64) -> Option<u64> {
    if F::SLOT_BYTES == 0 {
        return Some(0);
    }
    let own = memory_for(cores.process().address_space(), F::SLOT_BYTES).ok()?;
    let mut bytes = vec![0; F::SLOT_BYTES as usize];
    (view.read(slots, &mut bytes) && view.write(own, &bytes)).then_some(own)
}

/// What is in a thread's slots before a call that may make a process. They are registers, which a child that borrows the memory
/// (vfork) has of its own, but it sends back what it has put there.
fn kept_slots<F: FrontEnd>(view: &dyn Structures, slots: u64, number: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; F::SLOT_BYTES as usize];
    let may_borrow = F::SLOT_BYTES != 0 && matches!(number, CLONE | CLONE3);
    (may_borrow && view.read(slots, &mut bytes)).then_some(bytes)
}

/// Gives the slots back of a thread that has ended.
fn leave_slots<F: FrontEnd>(cores: &Cores, state: &State) {
    if F::SLOT_BYTES != 0 {
        let _ = cores.process().address_space().unmap(state.r(F::SLOTS), F::SLOT_BYTES);
    }
}

impl<F: FrontEnd> Translated<F> {
    /// The system call at the program counter.
    pub(super) fn call(&self, on: &mut Steered, core: &mut Core) -> Outcome {
        let cores = on.cores;
        let state = &mut core.cpu().state;
        let Some(position) = self.engine().position(state.pc) else {
            return self.raise(on, state, Trap::IllegalInstruction);
        };
        let code = state.pc;
        let source = position.pc;
        let view = self.view(cores);
        // Nothing is in r1 between two source instructions, and `resume` takes what it finds there for the address handlers return to.
        state.set_r(SCRATCH, 0);
        let before = state.x;
        let step = match room::<F>(cores) {
            Ok(room) => F::call(state, room, &view),
            Err(Errno(error)) => Step::Done(Err(error as u64)),
        };
        let is_made_here = !matches!(step, Step::Call(..) | Step::SignalReturn);
        if let Some(simulated) = cores.in_time().filter(|_| is_made_here) {
            simulated.enter_kernel(on.thread);
        }
        let mut is_there = true;
        let result = match step {
            Step::Done(result) => result.map(|value| (value, None)),
            Step::ThreadPointer(value) => {
                F::set_thread_pointer(state, value);
                Ok((0, None))
            }
            Step::Flush(start, bytes) => {
                self.forget(cores, start..start.saturating_add(bytes));
                Ok((0, None))
            }
            Step::SignalReturn => {
                state.pc = source;
                return self.return_from_handler(on, core);
            }
            Step::Call(number, arguments, after) => {
                state.pc = source;
                on.enter_call(state, source + F::SYSCALL_BYTES);
                match self.through_process(on, core, (code, before), (number, arguments, after)) {
                    Ok((result, still)) => {
                        is_there = still;
                        result
                    }
                    Err(over) => return over,
                }
            }
        };
        let state = &mut core.cpu().state;
        F::put_result(state, result);
        state.pc = source + F::SYSCALL_BYTES;
        self.note_hold(on);
        on.leave_call(state);
        if core.cpu().attention.is_requested() {
            // Before anything else is executed: the call may have to be made again, or have given a handler its mask.
            on.thread.make_again_with(before);
            core.cpu().attention.clear();
            return self.deliver(on, core, is_there.then_some((code + 4, None)));
        }
        if on.follower.is_some() || !is_there {
            let state = &mut core.cpu().state;
            return self.go_on(on, state, state.pc);
        }
        core.cpu().state.pc = code + 4;
        Outcome::Continue
    }

    /// Makes a call of the process's, which stands at `code`, for a program whose registers were `before`: what comes of it for the program
    /// and whether the code is still there, or the outcome if the thread does not go on.
    fn through_process(
        &self,
        on: &mut Steered,
        core: &mut Core,
        (code, before): (u64, [u64; 32]),
        (number, arguments, after): (u64, [u64; 6], F::After),
    ) -> Result<(CallResult, bool), Outcome> {
        let cores = on.cores;
        let view = self.view(cores);
        let kept = kept_slots::<F>(&view, before[usize::from(F::SLOTS)], number);
        let (outcome, is_there) = self.away(code, || make(cores, core, on.thread, number, arguments));
        if let Some(kept) = kept {
            let _ = view.write(before[usize::from(F::SLOTS)], &kept);
        }
        let state = &mut core.cpu().state;
        let stack = state.r(STACK_POINTER);
        let returned = state.r(ARGUMENTS[0]);
        state.x = before;
        state.set_r(STACK_POINTER, stack);
        if outcome != Outcome::Continue {
            if let Outcome::ExitThread(_) = outcome {
                leave_room::<F>(cores);
                leave_slots::<F>(cores, state);
            }
            return Err(outcome);
        }
        if number == CLONE && returned == 0 && arguments[0] & CLONE_SETTLS != 0 {
            F::set_thread_pointer(state, arguments[4]);
        }
        // What a call has put elsewhere is forgotten once more: somebody may have translated it just before it went.
        if let Some(changed) = F::changed(after, returned) {
            self.forget(cores, changed);
        }
        let result = match returned {
            LAST_ERROR.. => Err(returned.wrapping_neg()),
            _ => F::finish(after, returned, &self.view(cores)),
        };
        Ok((result, is_there))
    }

    fn return_from_handler(&self, on: &mut Steered, core: &mut Core) -> Outcome {
        let cores = on.cores;
        let state = &mut core.cpu().state;
        let at = state.r(STACK_POINTER);
        let Some(frame) = F::leave(state, &self.view(cores)) else {
            let fault = Fault { address: at, access: Access::Read, cause: FaultCause::Unmapped };
            return self.raise_at_source(on, state, Trap::Memory(fault));
        };
        state.set_r(NUMBER, RT_SIGRETURN);
        let outcome = answer(cores, core, on.thread);
        if outcome != Outcome::Continue {
            return outcome;
        }
        let state = &mut core.cpu().state;
        F::after_leaving(state, frame, &self.view(cores));
        self.resume(on, state)
    }
}

/// Makes a call of the process's.
fn make(cores: &Cores, core: &mut Core, thread: &mut Thread, number: u64, arguments: [u64; 6]) -> Outcome {
    let state = &mut core.cpu().state;
    CALLER.set(Some((state.x, arguments)));
    state.set_r(NUMBER, number);
    for (register, argument) in ARGUMENTS.into_iter().zip(arguments) {
        state.set_r(register, argument);
    }
    let outcome = answer(cores, core, thread);
    CALLER.set(None);
    outcome
}

/// The kernel answers, which takes its time where that is simulated.
fn answer(cores: &Cores, core: &mut Core, thread: &mut Thread) -> Outcome {
    match cores.in_time() {
        Some(simulated) => simulated.system_call(core, thread),
        None => thread.syscall(&mut core.cpu().state),
    }
}

impl<F: FrontEnd> Translated<F> {
    /// Gives a thread that the calling one has just made what it begins with: `state` is as the process has left it, at a source address
    /// and with the registers of LoongArch's call. False if it cannot begin there.
    pub(super) fn bear(&self, cores: &Cores, state: &mut State) -> bool {
        let Some((mut caller, [flags, _, _, _, thread_pointer, _])) = CALLER.get() else { return false };
        let stack = state.r(STACK_POINTER);
        let Some(slots) = slots_like::<F>(cores, &self.view(cores), caller[usize::from(F::SLOTS)]) else {
            return false;
        };
        if flags & CLONE_SETTLS != 0 {
            F::set_thread_pointer(state, thread_pointer);
            caller[usize::from(F::THREAD_POINTER)] = state.r(F::THREAD_POINTER);
        }
        state.x = caller;
        state.set_r(STACK_POINTER, stack);
        state.set_r(F::TABLE, self.layout.table);
        state.set_r(F::SLOTS, slots);
        F::put_result(state, Ok((0, None)));
        // The process takes the call for one of LoongArch's, of four bytes.
        let behind = state.pc.wrapping_sub(4).wrapping_add(F::SYSCALL_BYTES);
        // A stop that is there is told when the thread has begun.
        match self.code_past_stop(cores, behind) {
            Ok(code) => {
                // This thread, too, has its place there until its call is over.
                self.places.bear();
                state.pc = code;
                true
            }
            Err(_) => false,
        }
    }
}
