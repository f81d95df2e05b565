//! The host side of signals: handlers, safe points, system calls that lose no signal.
//! Not what a signal means to the guest: that is `signals`.
//! Source: sigaction(2), sigaltstack(2); Linux arch/x86/kernel/signal.c (how an interrupted call is restarted).

pub mod attention;
pub mod calls;
pub mod descriptors;
pub(crate) mod event_count;
pub mod faults;
pub mod locks;
pub mod main_stack;
pub(crate) mod masks;
pub(crate) mod reception;
pub mod seat;
pub mod shake;
pub mod stacks;
pub mod workers;
