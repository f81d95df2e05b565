//! How a process ended, and how this program ends the same way.
//! Not what there is to say of it then (see `report.rs`).

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Ending {
    /// Ends this program so.
    pub(crate) fn carry_out(self) -> ! {
        match self {
            // SAFETY: ends the process at once; the guest's threads have no destructors of ours to wait for.
            Self::Exit(status) => unsafe { libc::_exit(status) },
            Self::Signal(signal) => longma_guest::host::die_by(signal),
        }
    }
}
