//! A guest thread under a debugger: checks for breakpoints before each instruction and stops on request. Without
//! breakpoints and watchpoints, the thread runs at full speed. Threads of translated programs also run at full speed
//! between breakpoints (see `translated`). Source: GDB manual, appendix E (remote protocol, all-stop mode); ptrace(2)
//! for the handling of signals.

use std::sync::{Arc, atomic::Ordering};

use longma_core::{Core, Stop};
use longma_guest::host::locks::MutexGuard;
use longma_linux::{Outcome, Thread};
use longma_loongarch::{State, Trap};

use super::{
    session::{Activity, Control, Event, Order, Plan, Session, ThreadRecord},
    signals::is_reported,
};
use crate::cores::Cores;
use crate::translated::{DebugAction, ThreadDebugger};

/// A guest thread's side of a session.
pub(crate) struct Follower {
    session: Arc<Session>,
    cores: Arc<Cores>,
    tid: i32,
    plan: Plan,
    order: Order,
    /// Ignore a breakpoint at this address: it was reported already, or a step starts there.
    skip: Option<u64>,
    /// The instruction of a step has executed.
    stepped: bool,
    /// A signal that the debugger sent to this thread.
    sent: Option<i32>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.session.is_attached() {
            self.session.lock().threads.remove(&self.tid);
            self.session.notify();
        }
    }
}

impl Follower {
    /// Registers a thread with its process's session. `None` if the debugger has detached.
    pub fn of(session: &Arc<Session>, cores: &Arc<Cores>, tid: i32, state: &State) -> Option<Self> {
        if !session.is_attached() {
            return None;
        }
        let mut control = session.lock();
        let record = ThreadRecord {
            state: state.clone(),
            activity: Activity::Running,
            order: Order::Continue,
            signal: None,
            reported_at: None,
        };
        control.threads.insert(tid, record);
        let plan = control.plan.clone();
        drop(control);
        Some(Self {
            session: session.clone(),
            cores: cores.clone(),
            tid,
            plan,
            order: Order::Continue,
            skip: None,
            stepped: false,
            sent: None,
        })
    }

    /// Runs like [`Core::run`], with breakpoints and watchpoints.
    pub fn run(&mut self, core: &mut Core) -> Stop {
        loop {
            let next = self.next(&mut core.cpu().state);
            if next == DebugAction::Free || next == DebugAction::Run && self.plan.is_empty() {
                return core.run();
            }
            let watched = self.watched();
            let stop = core.step();
            if stop != Some(Stop::Attention) {
                self.begin_instruction();
            }
            if let Some(stop) = stop {
                return stop;
            }
            self.report_change(&mut core.cpu().state, &watched);
        }
    }

    fn steps(&self) -> bool {
        matches!(self.order, Order::Step(_))
    }

    fn is_stepping_on(&self, pc: u64) -> bool {
        matches!(&self.order, Order::Step(range) if range.contains(&pc))
    }

    /// Performs a system call, which may block. During this time, the process can be stopped without this thread.
    pub fn call(&mut self, thread: &mut Thread, state: &mut State, trap: Trap) -> Outcome {
        self.enter_call(State { pc: state.pc.wrapping_add(4), ..state.clone() });
        let outcome = thread.raise(state, trap);
        self.leave_call(state);
        outcome
    }

    /// Sends a signal on the debugger's behalf. The signal is not reported back to the debugger.
    fn send(&mut self, signal: i32) {
        self.sent = Some(signal);
        // SAFETY: the call takes no pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.tid, signal) };
    }

    /// Reports a signal to the debugger. Returns the signal to deliver. If the debugger has detached, all signals are
    /// delivered.
    fn report_signal(&mut self, state: &mut State, signal: i32) -> Option<i32> {
        let event = Event::Signal { tid: self.tid, signal };
        while self.session.is_attached() {
            if let Some(passed) = self.report(state, event) {
                return if self.session.is_attached() { passed } else { Some(signal) };
            }
        }
        Some(signal)
    }

    /// Stops the process because of `event` and returns the signal to deliver. If the process is stopped already, only
    /// stops this thread, and returns `None` because the event was not reported.
    fn report(&mut self, state: &mut State, event: Event) -> Option<Option<i32>> {
        let session = self.session.clone();
        let mut control = session.lock();
        let first = control.running && control.event.is_none() && session.is_attached();
        if first {
            control.event = Some(event);
            session.stop(&mut control, &self.cores);
            if let Some(record) = control.threads.get_mut(&self.tid) {
                record.reported_at = Some(state.pc);
            }
        }
        let passed = self.park(control, state);
        first.then_some(passed)
    }

    fn stop_here(&mut self, state: &mut State) {
        let session = self.session.clone();
        if let Some(signal) = self.park(session.lock(), state) {
            self.send(signal);
        }
    }

    /// Waits while the process is stopped. Then takes over the registers and orders that the debugger set, and returns
    /// the signal to deliver.
    fn park(&mut self, mut control: MutexGuard<'_, Control>, state: &mut State) -> Option<i32> {
        let session = self.session.clone();
        let record = control.threads.get_mut(&self.tid)?;
        record.state = state.clone();
        record.activity = Activity::Stopped;
        session.notify();
        let stays = |control: &Control| {
            !control.running
                || control.threads.get(&self.tid).is_some_and(|record| record.order == Order::Stay)
        };
        while session.is_attached() && stays(&control) {
            control = session.wait(control);
        }
        self.plan = control.plan.clone();
        let record = control.threads.get_mut(&self.tid)?;
        *state = record.state.clone();
        record.activity = Activity::Running;
        self.order = record.order.clone();
        let reported = record.reported_at.take() == Some(state.pc);
        let signal = record.signal.take();
        self.skip = (self.steps() || reported).then_some(state.pc);
        signal
    }
}

impl ThreadDebugger for Follower {
    fn is_attached(&self) -> bool {
        self.session.is_attached()
    }

    fn next(&mut self, state: &mut State) -> DebugAction {
        loop {
            if !self.session.is_attached() {
                return DebugAction::Free;
            }
            if self.session.stopping.load(Ordering::SeqCst) || self.order == Order::Stay {
                self.stop_here(state);
                continue;
            }
            if std::mem::take(&mut self.stepped) && !self.is_stepping_on(state.pc) {
                self.report(state, Event::Signal { tid: self.tid, signal: libc::SIGTRAP });
                continue;
            }
            if self.plan.breakpoints.contains(&state.pc) && self.skip != Some(state.pc) {
                self.report(state, Event::Breakpoint { tid: self.tid });
                continue;
            }
            let looks = self.steps() || !self.plan.watchpoints.is_empty();
            return if looks { DebugAction::Step } else { DebugAction::Run };
        }
    }

    fn begin_instruction(&mut self) {
        self.skip = None;
        self.stepped = self.steps();
    }

    fn watched(&self) -> Vec<Vec<u8>> {
        let read = |range: &std::ops::Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            // Unreadable memory is treated as unchanged.
            let _ = self.cores.process().memory().read(range.start, &mut bytes);
            bytes
        };
        self.plan.watchpoints.iter().map(read).collect()
    }

    fn report_change(&mut self, state: &mut State, before: &[Vec<u8>]) {
        if before.is_empty() {
            return;
        }
        let after = self.watched();
        let changed = before.iter().zip(&after).position(|(before, after)| before != after);
        if let Some(range) = changed.and_then(|index| self.plan.watchpoints.get(index)) {
            let event = Event::Watchpoint { tid: self.tid, address: range.start };
            self.stepped = false;
            self.report(state, event);
        }
    }

    fn enter_call(&self, state: State) {
        if !self.session.is_attached() {
            return;
        }
        let mut control = self.session.lock();
        if let Some(record) = control.threads.get_mut(&self.tid) {
            record.state = state;
            record.activity = Activity::InCall;
        }
        drop(control);
        self.session.notify();
    }

    fn leave_call(&mut self, state: &mut State) {
        // A forked child must not use the lock, which another thread of the parent may have held.
        if self.session.is_attached() {
            let session = self.session.clone();
            let control = session.lock();
            let is_new = control.threads.get(&self.tid).is_some_and(|record| record.order != self.order);
            self.park(control, state);
            self.stepped |= is_new && self.steps();
        }
    }

    fn raise(&mut self, thread: &mut Thread, state: &mut State, trap: Trap) -> Outcome {
        let Some(signal) = thread.signal_of(state, trap) else { return self.call(thread, state, trap) };
        self.stepped = false;
        let before = state.pc;
        match self.report_signal(state, signal) {
            Some(passed) if passed == signal && state.pc == before => {
                self.stepped = self.steps();
                thread.raise(state, trap)
            }
            Some(other) => {
                self.send(other);
                Outcome::Continue
            }
            None => Outcome::Continue,
        }
    }

    // If several signals are pending, only the first is reported.
    fn deliver(&mut self, thread: &mut Thread, state: &mut State) -> Outcome {
        let sent = self.sent.take();
        if self.session.is_attached()
            && let Some(signal) = thread.next_signal()
            && is_reported(signal)
            && sent != Some(signal)
        {
            let passed = self.report_signal(state, signal);
            if passed != Some(signal) {
                thread.discard_signal(signal);
                if let Some(other) = passed {
                    self.send(other);
                }
            }
        }
        thread.deliver_pending(state)
    }
}
