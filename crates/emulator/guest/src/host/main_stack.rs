//! Runs the main thread on a larger stack if the user's stack limit is below 8 MiB, because timing models need more
//! stack than most guests. The guest's stack still follows the limit. Source: getrlimit(2) (RLIMIT_STACK limits only
//! the main thread's stack), System V ABI for AMD64, 3.2 (stack alignment).

use std::any::Any;
use std::arch::asm;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::stacks::Stack;

/// The minimum stack size, equal to the usual limit of Linux.
const BYTES: usize = 8 << 20;

/// The soft limit of RLIMIT_STACK in bytes; `u64::MAX` if unlimited.
pub fn limit_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes.
    match unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => BYTES as u64,
    }
}

/// Runs `work` on the calling thread, which must be the main thread, with at least 8 MiB of stack. If the limit is
/// lower, it runs on a stack that this process allocates.
pub fn with_stack<T>(work: impl FnOnce() -> T) -> T {
    if limit_bytes() >= BYTES as u64 {
        return work();
    }
    match Stack::allocate(BYTES) {
        Ok(stack) => on(&stack, work),
        // The existing stack is small but may suffice.
        Err(_) => work(),
    }
}

/// Unused space above the used part of the stack. An unwinder that mistakes the caller's frame for one on this stack
/// reads zeros there.
const ABOVE_BYTES: usize = 4096;

/// The closure to run on another stack, and its result.
struct Task<F, T> {
    work: Option<F>,
    result: Option<Result<T, Box<dyn Any + Send>>>,
}

fn on<T, F: FnOnce() -> T>(stack: &Stack, work: F) -> T {
    let mut task = Task { work: Some(work), result: None };
    let top = (stack.usable().end - ABOVE_BYTES) & !15;
    // SAFETY: the memory below `top` is unused and stays valid until the call returns; `perform` gets the task type
    // that it expects and never unwinds. The old stack pointer is in a register that the callee preserves.
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
    match task.result {
        Some(Ok(value)) => value,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("the task has run"),
    }
}

extern "sysv64" fn perform<F: FnOnce() -> T, T>(task: *mut Task<F, T>) {
    // SAFETY: `on` passes the address of a task that no other code uses until `on` returns.
    let task = unsafe { &mut *task };
    if let Some(work) = task.work.take() {
        task.result = Some(catch_unwind(AssertUnwindSafe(work)));
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

    /// Adds up by a recursion that uses about 100 bytes a step.
    fn deep(steps: u64) -> u64 {
        let frame = std::hint::black_box([steps; 8]);
        if steps == 0 { 0 } else { deep(steps - 1) + frame[7] }
    }

    #[test]
    fn work_runs_on_the_given_stack_and_returns_its_result() {
        let stack = Stack::allocate(BYTES).expect("memory");
        let (text, address, sum) = on(&stack, || (String::from("result"), here(), deep(10_000)));
        assert_eq!((text.as_str(), sum), ("result", 50_005_000));
        assert!(stack.usable().contains(&address));
        assert!(!stack.usable().contains(&here()));
    }

    #[test]
    fn a_panic_on_the_given_stack_propagates_to_the_caller() {
        let stack = Stack::allocate(BYTES).expect("memory");
        let caught = catch_unwind(AssertUnwindSafe(|| on(&stack, || panic!("as asked"))));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"as asked"));
        assert!(!stack.usable().contains(&here()));
    }
}
