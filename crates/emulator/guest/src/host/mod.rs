//! Host support: signal handlers, safe points, interruptible system calls, reserved descriptors, threads, stacks and
//! fork-safe locks. Source: sigaction(2), sigaltstack(2); Linux arch/x86/kernel/signal.c (how an interrupted call
//! restarts).

pub mod attention;
pub mod calls;
pub mod descriptors;
pub mod event_count;
pub mod faults;
pub mod locks;
pub mod main_stack;
pub mod masks;
pub mod parker;
pub mod pinned_file;
mod raw;
pub mod reception;
pub mod resources;
pub mod schedule_fuzz;
pub mod stacks;
mod termination;
pub mod workers;

pub use raw::host_call;
pub use termination::terminate_by_signal;
