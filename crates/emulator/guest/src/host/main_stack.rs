//! A stack for the program's own first thread where the user's limit leaves it too little: a model needs more than most guests do.
//! Not the guest's stack, which is as large as the limit says.
//! Source: getrlimit(2) (RLIMIT_STACK bounds the first thread's stack alone), System V ABI for AMD64, 3.2 (the stack's alignment).

use std::any::Any;
use std::arch::asm;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::stacks::Stack;

/// What every part of this program runs with, as on a Linux host with its usual limit.
const BYTES: usize = 8 << 20;

/// RLIMIT_STACK's soft limit in bytes; `u64::MAX` if there is none.
pub fn limit_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is there to be filled.
    match unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => BYTES as u64,
    }
}

/// Runs `work` on the calling thread, the program's first one, with at least 8 MiB of stack whatever the limit: where it is lower, on
/// memory of this program's own.
pub fn with_enough<T>(work: impl FnOnce() -> T) -> T {
    if limit_bytes() >= BYTES as u64 {
        return work();
    }
    match Stack::allocate(BYTES) {
        Ok(stack) => on(&stack, work),
        // There is little, but it may do.
        Err(_) => work(),
    }
}

/// Left free above what is used: who walks the frames of a panic takes the caller's for one of this stack's, and finds zeros there.
const ABOVE_BYTES: usize = 4096;

/// What is to be done on another stack, and what came of it.
struct Task<F, T> {
    work: Option<F>,
    done: Option<Result<T, Box<dyn Any + Send>>>,
}

fn on<T, F: FnOnce() -> T>(stack: &Stack, work: F) -> T {
    let mut task = Task { work: Some(work), done: None };
    let top = (stack.usable().end - ABOVE_BYTES) & !15;
    // SAFETY: the memory below `top` is unused and stays until the call is over; `perform` gets the task that it expects, and never
    // unwinds. The old stack pointer is in a register that the callee preserves.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {perform}",
            "mov rsp, r12",
            out("r12") _,
            top = in(reg) top,
            perform = in(reg) perform::<F, T> as extern "sysv64" fn(*mut Task<F, T>),
            in("rdi") &raw mut task,
            clobber_abi("sysv64"),
        );
    }
    match task.done {
        Some(Ok(value)) => value,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("the task has been done"),
    }
}

extern "sysv64" fn perform<F: FnOnce() -> T, T>(task: *mut Task<F, T>) {
    // SAFETY: `on` passes the address of a task that nobody else uses meanwhile.
    let task = unsafe { &mut *task };
    if let Some(work) = task.work.take() {
        task.done = Some(catch_unwind(AssertUnwindSafe(work)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of a local variable.
    #[inline(never)]
    fn here() -> usize {
        let local = 0u8;
        std::hint::black_box(&raw const local).addr()
    }

    /// Sums up by a recursion that takes about 100 bytes a step.
    fn deep(steps: u64) -> u64 {
        let frame = std::hint::black_box([steps; 8]);
        if steps == 0 { 0 } else { deep(steps - 1) + frame[7] }
    }

    #[test]
    fn work_runs_on_the_given_stack_and_gives_its_result() {
        let stack = Stack::allocate(BYTES).expect("memory");
        let (text, place, sum) = on(&stack, || (String::from("result"), here(), deep(10_000)));
        assert_eq!((text.as_str(), sum), ("result", 50_005_000));
        assert!(stack.usable().contains(&place));
        assert!(!stack.usable().contains(&here()));
    }

    #[test]
    fn a_panic_on_the_given_stack_goes_on_in_the_caller() {
        let stack = Stack::allocate(BYTES).expect("memory");
        let caught = catch_unwind(AssertUnwindSafe(|| on(&stack, || panic!("as asked"))));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"as asked"));
        assert!(!stack.usable().contains(&here()));
    }
}
