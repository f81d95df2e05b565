//! One guest thread: its state in the kernel. Its registers are passed separately as a `State`. Source: clone(2),
//! set_tid_address(2), get_robust_list(2).

use longma_locks::IgnorePoison;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use longma_guest::host::locks::Mutex;
use longma_guest::host::{faults, masks};
use longma_loongarch::State;
use longma_sim::Time;

use super::{Outcome, Process, ThreadSignals, VforkChild};
use crate::simulated::identity::Identities;
use crate::simulated::{self, Context, ThreadNumber};

/// The id of the calling host thread.
pub(crate) fn host_id() -> i32 {
    // SAFETY: gettid takes no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Whether the host id belongs to this process or one of its threads.
pub(crate) fn is_own_task(number: i32) -> bool {
    number == std::process::id() as i32 || Path::new(&format!("/proc/self/task/{number}")).exists()
}

/// The guest's id of thread `number`, which the calling host thread runs.
fn guest_id(process: &Process, number: ThreadNumber) -> i32 {
    if process.simulation().is_some() { Identities::of(number) } else { host_id() }
}

/// One guest thread.
#[derive(Debug)]
pub struct Thread {
    pub(crate) process: Arc<Process>,
    /// Its number within the process.
    pub(crate) number: ThreadNumber,
    /// Its id in the guest. It equals the id of the host thread, except in simulated time.
    pub(crate) tid: i32,
    pub(crate) signals: ThreadSignals,
    /// The guest address to clear and wake at its exit; 0 if none.
    pub(crate) clear_child_tid: u64,
    /// The guest address of the robust list's head; 0 if none.
    pub(crate) robust_list: u64,
    /// The call that a signal interrupted before it had any effect.
    pub(crate) interrupted: Option<Interrupted>,
    /// Leaves a signal that interrupts a call pending instead of delivering it.
    pub(crate) leaves_signals: bool,
    /// The end of the wait that a restored thread repeats with its first call.
    pub(crate) resumes_until: Option<Time>,
    /// The name to set when it starts.
    pub(crate) name: Option<Vec<u8>>,
    /// Actions that must happen before it runs.
    pub(crate) startup: Option<Arc<StartupActions>>,
    /// The connection of a vforked process to its parent.
    pub(crate) vfork_child: Option<VforkChild>,
    /// The first thread of the program that this thread has executed, and its registers.
    pub(crate) executed: Option<Box<(Thread, State)>>,
}

/// A system call that a signal interrupted before it had any effect. `state.pc` is after the instruction, and a0 holds
/// -EINTR. To restart the call, restore a0 and subtract four from `state.pc`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted {
    /// a0 before the call.
    pub a0: u64,
    /// Whether it restarts regardless of the signal's action.
    pub always: bool,
    /// All general registers for the restart, if a translated program made the call.
    pub registers: Option<[u64; 32]>,
}

/// How a call that controls the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Sets a0 to this value.
    Value(u64),
    /// Leaves the registers as the call has set them.
    RegistersSet(Outcome),
}

/// Actions that must happen before a new thread runs and before clone(2) returns. The first of both threads performs
/// them.
#[derive(Debug)]
pub(crate) struct StartupActions {
    /// Guest addresses that receive the thread id; 0 for none.
    pub tid_addresses: [u64; 2],
    pub is_done: Mutex<bool>,
}

impl StartupActions {
    /// Writes the thread id once. A later write could hit memory that has been reused.
    pub(crate) fn perform(&self, process: &Process, tid: i32) {
        let mut is_done = self.is_done.lock().ignore_poison();
        if *is_done {
            return;
        }
        *is_done = true;
        for address in self.tid_addresses {
            // As in the kernel, a write to an invalid address is ignored.
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
            startup: None,
            vfork_child: None,
            executed: None,
        }
    }

    /// The process this thread belongs to.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Its number within the process.
    pub fn number(&self) -> ThreadNumber {
        self.number
    }

    /// After [`Outcome::Execute`]: the only thread of the new program, with its process and registers. The new program
    /// begins on the same host thread, after [`Self::leave`].
    pub fn take_executed(&mut self) -> Option<(Thread, State)> {
        self.executed.take().map(|executed| *executed)
    }

    /// Ends the thread because its process executes another program. Its pending signals stay pending.
    pub fn leave(self) {
        self.signals.transfer_to_host();
    }

    /// The thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Sets the general registers for the restart of a call that a signal interrupted, see
    /// [`Self::leave_signals_pending`]. For engines that make calls with registers other than the program's.
    pub fn set_restart_registers(&mut self, registers: [u64; 32]) {
        if let Some(interrupted) = &mut self.interrupted {
            interrupted.registers = Some(registers);
        }
    }

    /// Starts the thread. Called first on each host thread that runs a guest thread, including the main thread, after
    /// the engine has registered its [`Attention`](longma_guest::host::attention::Attention). From here on signals
    /// arrive.
    pub fn begin(&mut self, state: &mut State) {
        let _ = state;
        self.tid = guest_id(&self.process, self.number);
        if let Some(simulation) = self.process.simulation() {
            simulation.identities.set(self.number, host_id());
            simulated::enter(Context { simulation: simulation.clone(), thread: self.number });
        }
        faults::prepare_thread();
        if let Some(name) = self.name.take().and_then(|name| CString::new(name).ok()) {
            // SAFETY: the string is terminated, and the kernel reads at most 16 bytes.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        }
        self.signals.attach();
        if let Some(startup) = self.startup.take() {
            startup.perform(&self.process, self.tid);
        }
        self.signals.release();
    }
}
