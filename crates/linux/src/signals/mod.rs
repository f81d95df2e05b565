//! Signals: dispositions, masks, frames, delivery.
//! Not the host's signal handlers: those are in `host`.
//! Source: Linux arch/loongarch/kernel/signal.c (frame layout), signal(7).

use longma_loongarch::{State, Trap};

use crate::{Outcome, Thread};

/// The signal state of one thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadSignals {}

/// The signal actions all threads of a process share.
#[derive(Debug, Default)]
pub(crate) struct Dispositions {}

impl Thread {
    /// A synchronous trap at `state.pc`: builds a signal frame, or the process dies as under Linux.
    pub fn raise(&mut self, state: &mut State, trap: Trap) -> Outcome {
        let _ = state;
        match trap {
            Trap::Memory(_) | Trap::BoundCheck => Outcome::KilledBy(libc::SIGSEGV),
            Trap::IllegalInstruction | Trap::PrivilegedInstruction => Outcome::KilledBy(libc::SIGILL),
            Trap::Break(6 | 7) | Trap::FloatingPoint => Outcome::KilledBy(libc::SIGFPE),
            _ => Outcome::KilledBy(libc::SIGTRAP),
        }
    }

    /// Delivers the signals that have arrived since the last safe point.
    pub fn deliver_pending(&mut self, state: &mut State) -> Outcome {
        let _ = state;
        Outcome::Continue
    }
}
