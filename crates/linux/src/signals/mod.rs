//! Signals: actions, masks, frames, delivery, and the system calls about them.
//! Not the host's signal handlers: those are in `host`.
//! Source: Linux arch/loongarch/kernel/signal.c, kernel/signal.c; signal(7).

pub(crate) mod calls;
mod deliver;
mod frame;
