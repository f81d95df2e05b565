//! How a process ended, and how to end the host process in the same way.

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exit(i32),
    /// A signal killed it.
    Signal(i32),
}

impl Ending {
    /// Ends the host process in the same way.
    pub(crate) fn carry_out(self) -> ! {
        match self {
            // SAFETY: ends the process immediately; guest threads have no destructors that must run.
            Self::Exit(status) => unsafe { libc::_exit(status) },
            Self::Signal(signal) => longma_guest::host::terminate_by_signal(signal),
        }
    }
}
