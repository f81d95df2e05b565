//! The reasons why a core stops.

use longma_loongarch::Trap;

use crate::magic::Magic;

/// Why [`Core::run`](crate::Core::run) returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The instruction at the program counter trapped.
    Trap(Trap),
    /// The attention flag is set.
    Attention,
    /// The trace has the length of the quantum, or the next instruction reads the clock and the trace is not empty.
    /// Process the trace and clear it ([`clear_trace`](crate::Core::clear_trace)) before continuing.
    Quantum,
    /// A magic instruction was executed; the program counter is after it.
    Magic(Magic),
}

impl From<Trap> for Stop {
    fn from(trap: Trap) -> Self {
        Self::Trap(trap)
    }
}

/// Whether the core executed the instruction at which it stopped.
pub(crate) fn is_executed(result: &Result<(), Stop>) -> bool {
    !matches!(result, Err(Stop::Trap(trap)) if !matches!(trap, Trap::Syscall(_) | Trap::Break(_)))
}
