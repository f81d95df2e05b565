//! Why a core stops.
//! Not what is to be done then: that is the caller's.

use longma_loongarch::Trap;

use crate::magic::Magic;

/// Why [`Core::run`](crate::Core::run) came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The instruction at the program counter trapped.
    Trap(Trap),
    /// The attention flag was raised.
    Attention,
    /// The trace has reached the quantum's length, or the next instruction reads the clock and the trace is not empty: take note of
    /// the trace and clear it ([`clear_trace`](crate::Core::clear_trace)), then go on.
    Quantum,
    /// A magic instruction was executed; the program counter is behind it.
    Magic(Magic),
}

impl From<Trap> for Stop {
    fn from(trap: Trap) -> Self {
        Self::Trap(trap)
    }
}

/// True if the instruction after which a core stopped counts as executed.
pub(crate) fn is_executed(done: &Result<(), Stop>) -> bool {
    !matches!(done, Err(Stop::Trap(trap)) if !matches!(trap, Trap::Syscall(_) | Trap::Break(_)))
}
