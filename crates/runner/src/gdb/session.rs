//! The state shared between guest threads and the GDB server: which threads run, and why the process stopped.
//! Breakpoints do not modify guest memory; threads compare addresses before they execute. Source: GDB manual, appendix
//! E (remote protocol, all-stop mode).

use longma_locks::IgnorePoison;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use longma_guest::host::locks::{Condvar, Mutex, MutexGuard};
use longma_loongarch::State;
use rustix::fd::OwnedFd;

use crate::{cores::Cores, ending::Ending};

/// How long an ending process waits until the debugger has been informed.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A debugging session. The process starts stopped.
pub(crate) struct Session {
    /// Whether the debugger is attached. If not, the rest of the session is unused.
    attached: AtomicBool,
    /// Asks all threads to stop.
    pub(super) stopping: AtomicBool,
    control: Mutex<Control>,
    changed: Condvar,
    /// Becomes readable when the server has an event to process.
    pub(super) wake: OwnedFd,
}

/// The state of the process and its threads.
#[derive(Default)]
pub(super) struct Control {
    pub running: bool,
    pub threads: BTreeMap<i32, ThreadRecord>,
    /// The next event to report.
    pub event: Option<Event>,
    /// How the process ended, and whether the debugger has been informed.
    pub ended: Option<Ending>,
    pub is_reported: bool,
    pub plan: Plan,
}

/// Breakpoints and watchpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub breakpoints: BTreeSet<u64>,
    /// Ranges watched for changes. A range occurs once for each time that it was set.
    pub watchpoints: Vec<Range<u64>>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.breakpoints.is_empty() && self.watchpoints.is_empty()
    }
}

/// A thread as the debugger sees it.
pub(super) struct ThreadRecord {
    /// The registers, valid while the thread does not run.
    pub state: State,
    pub activity: Activity,
    pub order: Order,
    /// The signal to deliver when the thread resumes (Linux number).
    pub signal: Option<i32>,
    /// The program counter at which the thread reported the event that stopped the process.
    pub reported_at: Option<u64>,
}

/// The activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Running,
    /// In a system call: its registers can be read, and it stops before its next instruction.
    InCall,
    Stopped,
}

/// A thread's action when the process resumes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) enum Order {
    #[default]
    Continue,
    /// Executes one instruction, and continues while the program counter is in the range.
    Step(Range<u64>),
    /// Stays stopped.
    Stay,
}

/// Why the process stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Breakpoint {
        tid: i32,
    },
    Watchpoint {
        tid: i32,
        address: u64,
    },
    /// A signal (Linux number); SIGTRAP after a completed step.
    Signal {
        tid: i32,
        signal: i32,
    },
}

impl Session {
    pub(super) fn new(wake: OwnedFd) -> Self {
        Self {
            attached: AtomicBool::new(true),
            stopping: AtomicBool::new(true),
            control: Mutex::default(),
            changed: Condvar::new(),
            wake,
        }
    }

    /// Whether a debugger is attached. Async-signal-safe, and safe in a forked child.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().ignore_poison()
    }

    pub(super) fn wait<'a>(&self, control: MutexGuard<'a, Control>) -> MutexGuard<'a, Control> {
        self.changed.wait(control).ignore_poison()
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
        // The write fails if the counter is full; the server is awake then.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Detaches a forked child. The debugger stays with the parent.
    pub(crate) fn detach_child(&self, cores: &Cores) {
        if self.attached.swap(false, Ordering::AcqRel) {
            self.stopping.store(false, Ordering::Release);
            cores.process().intercept_signals(false);
        }
    }

    /// Detaches the debugger. The process continues without it.
    pub(super) fn detach(&self, cores: &Cores) {
        let mut control = self.lock();
        control.is_reported = true;
        control.running = true;
        control.event = None;
        if self.attached.swap(false, Ordering::AcqRel) {
            cores.process().intercept_signals(false);
        }
        self.stopping.store(false, Ordering::Release);
        drop(control);
        self.notify();
    }

    /// Asks all threads to stop at their next safe point. [`Self::wait_until_stopped`] waits until they have.
    pub(super) fn stop(&self, control: &mut Control, cores: &Cores) {
        control.running = false;
        self.stopping.store(true, Ordering::SeqCst);
        cores.request_attention();
    }

    /// Waits until no thread runs or the process has ended.
    pub(super) fn wait_until_stopped<'a>(
        &self,
        mut control: MutexGuard<'a, Control>,
    ) -> MutexGuard<'a, Control> {
        while control.ended.is_none()
            && control.threads.values().any(|thread| thread.activity == Activity::Running)
        {
            control = self.wait(control);
        }
        control
    }

    /// Resumes the process according to the threads' orders.
    pub(super) fn resume(&self) {
        let mut control = self.lock();
        control.event = None;
        control.running = true;
        self.stopping.store(false, Ordering::SeqCst);
        drop(control);
        self.notify();
    }

    /// Informs the debugger that the process ends. Returns when it has been informed, or after a timeout.
    pub(crate) fn end(&self, ending: Ending) {
        if !self.is_attached() {
            return;
        }
        let mut control = self.lock();
        control.ended = Some(ending);
        self.notify();
        let guard =
            self.changed.wait_timeout_while(control, DISCONNECT_TIMEOUT, |control| !control.is_reported);
        drop(guard);
    }

    pub(super) fn set_reported(&self) {
        self.lock().is_reported = true;
        self.notify();
    }
}
