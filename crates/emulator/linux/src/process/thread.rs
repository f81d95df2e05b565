//! One guest thread: what the kernel knows of it.
//! Not its registers: those travel beside it as a `State`.
//! Source: clone(2), set_tid_address(2), get_robust_list(2).

use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use longma_guest::host::locks::Mutex;
use longma_guest::host::{faults, masks};
use longma_loongarch::State;
use longma_sim::Time;

use super::{Borrowed, Outcome, Process, ThreadSignals};
use crate::simulated::identity::Identities;
use crate::simulated::{self, Context, ThreadNumber};

/// The id of this host thread.
pub(crate) fn host_id() -> i32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Whether the host's id is that of this process or one of its threads.
pub(crate) fn is_own_task(number: i32) -> bool {
    number == std::process::id() as i32 || Path::new(&format!("/proc/self/task/{number}")).exists()
}

/// What the guest calls thread `number`, which this host thread runs.
fn guest_id(process: &Process, number: ThreadNumber) -> i32 {
    if process.simulation().is_some() { Identities::of(number) } else { host_id() }
}

/// One guest thread.
#[derive(Debug)]
pub struct Thread {
    pub(crate) process: Arc<Process>,
    /// Its number among the process's threads.
    pub(crate) number: ThreadNumber,
    /// The thread's id as the guest knows it: that of the host thread that runs it, but in simulated time.
    pub(crate) tid: i32,
    pub(crate) signals: ThreadSignals,
    /// The guest address to clear and wake at exit; 0 if none.
    pub(crate) clear_child_tid: u64,
    /// The guest address of the robust list's head; 0 if none.
    pub(crate) robust_list: u64,
    /// The call that a signal interrupted before it did anything.
    pub(crate) interrupted: Option<Interrupted>,
    /// A call that a signal interrupts does not deliver it.
    pub(crate) leaves_signals: bool,
    /// When the wait ends that the thread, brought back, makes again with its first call.
    pub(crate) resumes_until: Option<Time>,
    /// What it is to be called, once it begins.
    pub(crate) name: Option<Vec<u8>>,
    /// What must happen before it does anything.
    pub(crate) birth: Option<Arc<Birth>>,
    /// What a vforked process owes its parent.
    pub(crate) borrowed: Option<Borrowed>,
}

/// A system call that returned without effect because of a signal. `state.pc` names the instruction after it and a0 holds
/// -EINTR; to make it again, set a0 back and step `state.pc` back by four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted {
    /// a0 as it was at the call.
    pub a0: u64,
    /// True if it is made again whatever the signal's action says.
    pub always: bool,
    /// All the general registers as they are to be then, if the call was made for a program for another architecture.
    pub registers: Option<[u64; 32]>,
}

/// How a call that steers the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// With this result in a0.
    Value(u64),
    /// As the call has left the registers.
    AsLeft(Outcome),
}

/// What must have happened before a new thread does anything and before clone(2) returns: whichever comes first sees to it.
#[derive(Debug)]
pub(crate) struct Birth {
    /// Guest addresses that get the thread's id; 0 for none.
    pub tell: [u64; 2],
    pub told: Mutex<bool>,
}

impl Birth {
    /// Writes the thread's id where it is wanted, once: later, the memory may be another's.
    pub(crate) fn tell(&self, process: &Process, tid: i32) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told {
            return;
        }
        *told = true;
        for address in self.tell {
            // As the kernel: an address that cannot be written is the program's own fault.
            let _ = process.memory().write_optional(address, &tid.to_le_bytes());
        }
    }
}

impl Thread {
    pub(crate) fn new(process: Arc<Process>, number: ThreadNumber, mask: masks::SignalSet) -> Self {
        Self {
            tid: guest_id(&process, number),
            process,
            number,
            signals: ThreadSignals::new(mask),
            clear_child_tid: 0,
            robust_list: 0,
            interrupted: None,
            leaves_signals: false,
            resumes_until: None,
            name: None,
            birth: None,
            borrowed: None,
        }
    }

    /// The process this thread belongs to.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Its number among the threads of the process.
    pub fn number(&self) -> ThreadNumber {
        self.number
    }

    /// The thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// After a call that a signal interrupted, see [`Self::leave_signals_pending`]: if it is made again, all the general registers are
    /// these. For engines that make calls with other registers than the program's.
    pub fn make_again_with(&mut self, registers: [u64; 32]) {
        if let Some(interrupted) = &mut self.interrupted {
            interrupted.registers = Some(registers);
        }
    }

    /// To be called first on the host thread that runs this guest thread, the first one's included, after the engine has
    /// registered its [`Attention`](longma_guest::host::attention::Attention) there. From here on signals arrive.
    pub fn begin(&mut self, state: &mut State) {
        let _ = state;
        self.tid = guest_id(&self.process, self.number);
        if let Some(simulation) = self.process.simulation() {
            simulation.identities.set(self.number, host_id());
            simulated::enter(Context { simulation: simulation.clone(), thread: self.number });
        }
        faults::prepare_thread();
        if let Some(name) = self.name.take().and_then(|name| CString::new(name).ok()) {
            // SAFETY: a string with its end, of which the kernel takes 16 bytes at most.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        }
        self.signals.attach();
        if let Some(birth) = self.birth.take() {
            birth.tell(&self.process, self.tid);
        }
        self.signals.release();
    }
}
