//! One guest thread: what the kernel knows of it.
//! Not its registers: those travel beside it as a `State`.
//! Source: clone(2), set_tid_address(2), get_robust_list(2).

use std::sync::Arc;

use longma_loongarch::State;

use crate::Process;
use crate::host::{faults, masks};
use crate::signals::ThreadSignals;

/// One guest thread.
#[derive(Debug)]
pub struct Thread {
    pub(crate) process: Arc<Process>,
    /// The thread's id; guest threads have the id of the host thread that runs them.
    pub(crate) tid: i32,
    pub(crate) signals: ThreadSignals,
    /// The guest address to clear and wake at exit; 0 if none.
    pub(crate) clear_child_tid: u64,
    /// The guest address of the robust list's head and its length; 0 if none.
    pub(crate) robust_list: (u64, u64),
    /// The call that a signal interrupted before it did anything.
    pub(crate) interrupted: Option<Interrupted>,
}

/// A system call that returned without effect because of a signal. `state.pc` names the instruction after it and a0 holds
/// -EINTR; to make it again, set a0 back and step `state.pc` back by four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted {
    /// a0 as it was at the call.
    pub a0: u64,
}

impl Thread {
    pub(crate) fn first(process: Arc<Process>) -> Self {
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::gettid() };
        Self {
            process,
            tid,
            signals: ThreadSignals::new(masks::current()),
            clear_child_tid: 0,
            robust_list: (0, 0),
            interrupted: None,
        }
    }

    /// The process this thread belongs to.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// To be called first on the host thread that runs this guest thread.
    pub fn begin(&mut self, state: &mut State) {
        let _ = state;
        // SAFETY: as above.
        self.tid = unsafe { libc::gettid() };
        faults::prepare_thread();
        self.signals.attach();
        self.signals.release();
    }
}
