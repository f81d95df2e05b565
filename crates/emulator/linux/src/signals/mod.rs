//! Signals: frames, delivery, and the system calls about them.
//! Not actions and masks, which are in `process`, nor the host's signal handlers, which are in `host`.
//! Source: Linux arch/loongarch/kernel/signal.c, kernel/signal.c; signal(7).

pub(crate) mod calls;
mod deliver;
mod frame;
