//! System calls of a translated program, and the initial state of its new threads.

use std::cell::Cell;

use longma_core::Core;
use longma_guest::{Errno, words::words_of};
use longma_linux::{Outcome, Thread};
use longma_loongarch::{Access, Fault, FaultCause, State, Trap};
use longma_translate::front_end::{CallResult, FrontEnd, SCRATCH, STACK_POINTER, SyscallAction, UserMemory};

use super::debugged::DebuggedThread;
use super::{Translated, memory_for};
use crate::cores::Cores;

// Registers and numbers of LoongArch system calls.
const NUMBER: u8 = 11;
const ARGUMENTS: [u8; 6] = [4, 5, 6, 7, 8, 9];
const RT_SIGRETURN: u64 = 139;
const CLONE: u64 = 220;
const CLONE3: u64 = 435;
const CLONE_SETTLS: u64 = 0x8_0000;
/// CLONE_ARGS_SIZE_VER0: the size of the first version of clone3's structure.
const CLONE_ARGS_BYTES: usize = 64;
/// Errors are the values from -4095 to -1.
const LAST_ERROR: u64 = -4095i64 as u64;

thread_local! {
    /// The program's registers during the call that this host thread is making, and the thread pointer that the call
    /// gives to a new thread.
    static CALLER: Cell<Option<([u64; 32], Option<u64>)>> = const { Cell::new(None) };
    /// The address of this host thread's buffer for structures in guest memory; 0 if not allocated.
    static CALL_BUFFER: Cell<u64> = const { Cell::new(0) };
}

/// The buffer for the structures of a call. It is not below the stack pointer, because the memory there may be unmapped
/// or belong to another stack.
fn call_buffer<F: FrontEnd>(cores: &Cores) -> Result<u64, Errno> {
    if CALL_BUFFER.get() == 0 {
        CALL_BUFFER.set(memory_for(cores.process().address_space(), F::CALL_BUFFER_BYTES)?);
    }
    Ok(CALL_BUFFER.get())
}

/// Frees the buffer of a thread that has exited.
fn free_call_buffer<F: FrontEnd>(cores: &Cores) {
    let buffer = CALL_BUFFER.replace(0);
    if buffer != 0 {
        // Fails if the program has unmapped the pages itself.
        let _ = cores.process().address_space().unmap(buffer, F::CALL_BUFFER_BYTES);
    }
}

/// Allocates spill slots for a new thread, with the contents of its creator's.
fn copy_slots<F: FrontEnd>(cores: &Cores, view: &dyn UserMemory, slots: u64) -> Option<u64> {
    if F::SLOT_BYTES == 0 {
        return Some(0);
    }
    let own = memory_for(cores.process().address_space(), F::SLOT_BYTES).ok()?;
    let mut bytes = vec![0; F::SLOT_BYTES as usize];
    (view.read(slots, &mut bytes) && view.write(own, &bytes)).then_some(own)
}

/// Saves a thread's spill slots before a call that may create a process. A vfork child shares the parent's memory, but
/// the slots are registers, which the child must not change in the parent.
fn save_slots<F: FrontEnd>(view: &dyn UserMemory, slots: u64, number: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; F::SLOT_BYTES as usize];
    let may_borrow = F::SLOT_BYTES != 0 && matches!(number, CLONE | CLONE3);
    (may_borrow && view.read(slots, &mut bytes)).then_some(bytes)
}

/// The thread pointer that a call gives to a new thread or process, if it does.
fn new_thread_pointer(view: &dyn UserMemory, number: u64, arguments: [u64; 6]) -> Option<u64> {
    let (flags, thread_pointer) = match (number, arguments) {
        (CLONE, [flags, _, _, _, thread_pointer, _]) => (flags, thread_pointer),
        (CLONE3, [structure, ..]) => {
            let mut bytes = [0; CLONE_ARGS_BYTES];
            let [flags, .., thread_pointer] =
                view.read(structure, &mut bytes).then(|| words_of::<{ CLONE_ARGS_BYTES / 8 }>(&bytes))?;
            (flags, thread_pointer)
        }
        _ => return None,
    };
    (flags & CLONE_SETTLS != 0).then_some(thread_pointer)
}

/// Frees the spill slots of a thread that has exited.
fn free_slots<F: FrontEnd>(cores: &Cores, state: &State) {
    if F::SLOT_BYTES != 0 {
        let _ = cores.process().address_space().unmap(state.r(F::SLOTS), F::SLOT_BYTES);
    }
}

impl<F: FrontEnd> Translated<F> {
    /// Handles the system call at the program counter.
    pub(super) fn call(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
        let cores = on.cores;
        let state = &mut core.cpu().state;
        let Some(position) = self.engine().position(state.pc) else {
            return self.raise(on, state, Trap::IllegalInstruction);
        };
        let code = state.pc;
        let source = position.pc;
        let view = self.view(cores);
        // r1 is free between two source instructions. `resume` expects a handler's return address or 0 there.
        state.set_r(SCRATCH, 0);
        let before = state.x;
        state.pc = source;
        let step = match call_buffer::<F>(cores) {
            Ok(buffer) => F::call(state, buffer, &view),
            Err(Errno(error)) => SyscallAction::Done(Err(error as u64)),
        };
        let is_made_here = !matches!(step, SyscallAction::Call(..) | SyscallAction::SignalReturn);
        if let Some(simulated) = cores.in_time().filter(|_| is_made_here) {
            simulated.enter_kernel(on.thread);
        }
        let mut is_there = true;
        let result = match step {
            SyscallAction::Done(result) => result.map(|value| (value, None)),
            SyscallAction::ThreadPointer(value) => {
                F::set_thread_pointer(state, value);
                Ok((0, None))
            }
            SyscallAction::Flush(start, bytes) => {
                self.forget(cores, start..start.saturating_add(bytes));
                Ok((0, None))
            }
            SyscallAction::SignalReturn => {
                return self.return_from_handler(on, core);
            }
            SyscallAction::Call(number, arguments, after) => {
                on.enter_call(state, source + F::SYSCALL_BYTES);
                match self.make_process_call(on, core, (code, before), (number, arguments, after)) {
                    Ok((result, still)) => {
                        is_there = still;
                        result
                    }
                    Err(outcome) => return outcome,
                }
            }
        };
        let state = &mut core.cpu().state;
        F::put_result(state, result);
        state.pc = source + F::SYSCALL_BYTES;
        self.release_area(on);
        on.leave_call(state);
        if core.cpu().attention.is_requested() {
            // Deliver signals before anything else is executed. The call may need a restart, or may have set a
            // temporary signal mask for a handler.
            on.thread.set_restart_registers(before);
            core.cpu().attention.clear();
            return self.deliver(on, core, is_there.then_some((code + 4, None)));
        }
        if on.follower.is_some() || !is_there {
            let state = &mut core.cpu().state;
            return self.arrive(on, state, state.pc);
        }
        core.cpu().state.pc = code + 4;
        Outcome::Continue
    }

    /// Makes the system call at host address `code`. `before` are the program's registers. Returns the result and
    /// whether the code at `code` still exists, or the outcome if the thread does not continue.
    fn make_process_call(
        &self,
        on: &mut DebuggedThread,
        core: &mut Core,
        (code, before): (u64, [u64; 32]),
        (number, arguments, after): (u64, [u64; 6], F::ResultConversion),
    ) -> Result<(CallResult, bool), Outcome> {
        let cores = on.cores;
        let view = self.view(cores);
        let saved_slots = save_slots::<F>(&view, before[usize::from(F::SLOTS)], number);
        let thread_pointer = new_thread_pointer(&view, number, arguments);
        let (outcome, is_there) =
            self.outside_area(code, || make(cores, core, on.thread, (number, arguments), thread_pointer));
        if let Some(saved_slots) = saved_slots {
            let _ = view.write(before[usize::from(F::SLOTS)], &saved_slots);
        }
        let state = &mut core.cpu().state;
        let stack = state.r(STACK_POINTER);
        let returned = state.r(ARGUMENTS[0]);
        state.x = before;
        state.set_r(STACK_POINTER, stack);
        if outcome != Outcome::Continue {
            if let Outcome::ExitThread(_) | Outcome::Execute = outcome {
                free_call_buffer::<F>(cores);
                free_slots::<F>(cores, state);
            }
            return Err(outcome);
        }
        if let Some(thread_pointer) = thread_pointer.filter(|_| returned == 0) {
            F::set_thread_pointer(state, thread_pointer);
        }
        // Invalidate once more the code that the call has moved or unmapped: another thread may have translated it just
        // before.
        if let Some(changed) = F::changed(after, returned) {
            self.forget(cores, changed);
        }
        let result = match returned {
            LAST_ERROR.. => Err(returned.wrapping_neg()),
            _ => F::finish(after, returned, &self.view(cores)),
        };
        Ok((result, is_there))
    }

    fn return_from_handler(&self, on: &mut DebuggedThread, core: &mut Core) -> Outcome {
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

/// Makes a system call with LoongArch numbering.
fn make(
    cores: &Cores,
    core: &mut Core,
    thread: &mut Thread,
    (number, arguments): (u64, [u64; 6]),
    thread_pointer: Option<u64>,
) -> Outcome {
    let state = &mut core.cpu().state;
    CALLER.set(Some((state.x, thread_pointer)));
    state.set_r(NUMBER, number);
    for (register, argument) in ARGUMENTS.into_iter().zip(arguments) {
        state.set_r(register, argument);
    }
    let outcome = answer(cores, core, thread);
    CALLER.set(None);
    outcome
}

/// Performs the call. In simulated time, accounts for its duration.
fn answer(cores: &Cores, core: &mut Core, thread: &mut Thread) -> Outcome {
    match cores.in_time() {
        Some(simulated) => simulated.system_call(core, thread),
        None => thread.syscall(&mut core.cpu().state),
    }
}

impl<F: FrontEnd> Translated<F> {
    /// Sets the initial state of a thread that the calling thread is creating. The process has set `state` to the
    /// source address and the registers of a LoongArch call. Returns false if the thread cannot start.
    pub(super) fn begin_spawn(&self, cores: &Cores, state: &mut State) -> bool {
        let Some((mut caller, thread_pointer)) = CALLER.get() else { return false };
        let stack = state.r(STACK_POINTER);
        let Some(slots) = copy_slots::<F>(cores, &self.view(cores), caller[usize::from(F::SLOTS)]) else {
            return false;
        };
        if let Some(thread_pointer) = thread_pointer {
            F::set_thread_pointer(state, thread_pointer);
            caller[usize::from(F::THREAD_POINTER)] = state.r(F::THREAD_POINTER);
        }
        state.x = caller;
        state.set_r(STACK_POINTER, stack);
        state.set_r(F::TABLE, self.layout.table);
        state.set_r(F::SLOTS, slots);
        F::put_result(state, Ok((0, None)));
        // The process assumed a LoongArch system-call instruction, which has four bytes.
        let return_pc = state.pc.wrapping_sub(4).wrapping_add(F::SYSCALL_BYTES);
        // The new thread reports a breakpoint here after it has started.
        match self.code_past_breakpoint(cores, return_pc) {
            Ok(code) => {
                // The new thread is recorded in this area until the creator's call has returned.
                self.area_usage.begin_spawn();
                state.pc = code;
                true
            }
            Err(_) => false,
        }
    }
}
