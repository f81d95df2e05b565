//! What guest threads and the debugger's server share: who runs, who is stopped and why.
//! Not the protocol (see `target.rs`). Guest memory is never changed for a breakpoint: threads look before they execute.
//! Source: GDB manual, appendix E (remote protocol, all-stop mode).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use longma_guest::host::locks::{Condvar, Mutex, MutexGuard};
use longma_loongarch::State;
use rustix::fd::OwnedFd;

use crate::{cores::Cores, ending::Ending};

/// How long a process that ends waits until the debugger has been told.
const FAREWELL: Duration = Duration::from_secs(5);

/// A debugging session. The process starts stopped.
pub(crate) struct Session {
    /// False once the debugger has let go of the process: then everything here is left alone.
    attached: AtomicBool,
    /// Asks threads to stop.
    pub(super) stopping: AtomicBool,
    control: Mutex<Control>,
    changed: Condvar,
    /// Readable when the server has something to look at.
    pub(super) wake: OwnedFd,
}

/// Who runs and who does not.
#[derive(Default)]
pub(super) struct Control {
    pub running: bool,
    pub threads: BTreeMap<i32, ThreadPlace>,
    /// What the server is to tell next.
    pub event: Option<Event>,
    /// How the process ended, and whether the debugger knows.
    pub ended: Option<Ending>,
    pub told: bool,
    pub plan: Plan,
}

/// What threads look out for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub breakpoints: BTreeSet<u64>,
    /// Watched for change, with the number of times each was set.
    pub watchpoints: Vec<Range<u64>>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.breakpoints.is_empty() && self.watchpoints.is_empty()
    }
}

/// One thread as the debugger sees it.
pub(super) struct ThreadPlace {
    /// Its registers while it does not run.
    pub state: State,
    pub activity: Activity,
    pub order: Order,
    /// The signal (Linux's number) it goes on with.
    pub signal: Option<i32>,
    /// Where it was when it reported what stopped the process.
    pub reported_at: Option<u64>,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Running,
    /// In a system call: its registers can be read, and it stops before the next instruction.
    InCall,
    Stopped,
}

/// What a thread does when the process goes on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) enum Order {
    #[default]
    Continue,
    /// One instruction, and on while the program counter is in the range.
    Step(Range<u64>),
    /// Nothing.
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
    /// Linux's number; SIGTRAP when a step is done.
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

    /// Whether a debugger has the process. Async-signal-safe, and safe in a forked child.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, control: MutexGuard<'a, Control>) -> MutexGuard<'a, Control> {
        self.changed.wait(control).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
        // A full counter has woken the server already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// In a forked child: the debugger stays with the parent.
    pub(crate) fn leave_child(&self, cores: &Cores) {
        if self.attached.swap(false, Ordering::AcqRel) {
            self.stopping.store(false, Ordering::Release);
            cores.process().intercept_signals(false);
        }
    }

    /// The debugger lets go: the process runs on alone.
    pub(super) fn detach(&self, cores: &Cores) {
        let mut control = self.lock();
        control.told = true;
        control.running = true;
        control.event = None;
        if self.attached.swap(false, Ordering::AcqRel) {
            cores.process().intercept_signals(false);
        }
        self.stopping.store(false, Ordering::Release);
        drop(control);
        self.notify();
    }

    /// Has every thread stop at its next safe point; [`Self::wait_until_stopped`] waits for that.
    pub(super) fn stop(&self, control: &mut Control, cores: &Cores) {
        control.running = false;
        self.stopping.store(true, Ordering::SeqCst);
        cores.request_all();
    }

    /// Waits until no thread runs, or the process has ended.
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

    /// The process goes on as the threads' orders say.
    pub(super) fn resume(&self) {
        let mut control = self.lock();
        control.event = None;
        control.running = true;
        self.stopping.store(false, Ordering::SeqCst);
        drop(control);
        self.notify();
    }

    /// The process ends; returns when the debugger knows, or does not answer.
    pub(crate) fn end(&self, ending: Ending) {
        if !self.is_attached() {
            return;
        }
        let mut control = self.lock();
        control.ended = Some(ending);
        self.notify();
        let told = self.changed.wait_timeout_while(control, FAREWELL, |control| !control.told);
        drop(told);
    }

    pub(super) fn tell_ended(&self) {
        self.lock().told = true;
        self.notify();
    }
}
