//! Passes the turn between guest threads, so that one runs at a time. `thread_table` chooses the next thread, `waiting`
//! suspends and wakes the others, `idle` waits for external events, and `calls` implements the interface to system
//! calls.

mod calls;
mod waiting;

use longma_locks::IgnorePoison;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use longma_guest::host::locks::{Condvar, Mutex, MutexGuard};
use longma_guest::host::parker::Parker;
use longma_linux::simulated::{self as linux, CoreSet, Sleep, ThreadNumber, Wakeup};
use longma_linux::{Process, Sink};
use longma_sim::Time;

use super::idle;
use super::thread_table::{Switch, ThreadTable, ThreadTableImage, Turn};
use crate::kernel_model::{Kernel, Work};

/// Called at the start of each turn.
pub type Log = Arc<dyn Fn(Turn) + Send + Sync>;

/// Devices that act in simulated time independently of threads.
pub trait DeviceClock: Send + Sync {
    /// The time of the next device event; `None` if all devices are waiting.
    fn next_event(&self) -> Option<Time>;

    /// Advances the devices to `limit`, or to the first event that makes a file ready.
    fn advance(&self, limit: Time);

    /// The time at which files first became ready since the last call, and the core that was interrupted.
    fn take_ready(&self) -> Option<(Time, usize)>;
}

/// The configuration of a scheduler.
#[derive(Clone, Default)]
pub struct SchedulerConfig {
    /// The NUMA node of each core. The number of entries is the number of cores; at least one.
    pub nodes: Vec<usize>,
    /// The CPU affinity of the first thread, which others inherit; all cores if `None`.
    pub allowed: Option<CoreSet>,
    /// Called at the start of each turn, in order.
    pub log: Option<Log>,
    /// Receives a message if all threads wait for each other.
    pub diagnostics: Option<Sink>,
}

impl SchedulerConfig {
    fn complete(&mut self) {
        if self.nodes.is_empty() {
            self.nodes.push(0);
        }
        self.nodes.truncate(CoreSet::CORES);
    }
}

/// The state of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Running or runnable.
    Ready,
    /// Waiting for an event in the model.
    Asleep,
    /// Waiting on the host for an external event.
    Outside,
    /// Exited.
    Gone,
}

#[derive(Debug)]
struct Member {
    parker: Arc<Parker>,
    phase: Phase,
    sleep: Sleep,
    awoken: Wakeup,
    /// Signals that arrived before the sleep began and do not end it.
    arrived_before: u64,
    /// Whether external events can make its files ready; computed on demand.
    reaches_outside: Option<bool>,
    /// The value of `State::signals` when the thread last checked for signals.
    seen_signals: u64,
    /// Whether the thread is in a system call that gave up its core.
    in_call: bool,
    /// Whether another thread has called execve(2), so that this thread executes no more instructions.
    is_retired: bool,
}

impl Member {
    fn new(phase: Phase, seen_signals: u64) -> Self {
        Self {
            parker: Arc::default(),
            phase,
            sleep: Sleep::default(),
            awoken: Wakeup::Woken,
            arrived_before: 0,
            reaches_outside: None,
            seen_signals,
            in_call: false,
            is_retired: false,
        }
    }
}

/// The state of a thread while all threads are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoppedState {
    /// Between two instructions.
    Between,
    /// In a system call that can be restarted, with this deadline.
    Waits(Option<Time>),
    /// In a system call that already had an effect.
    Begun(&'static str),
    /// In a system call of the host.
    Outside,
}

/// The owner of the current turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Thread(u32),
    /// No thread can run before an external event.
    Idler,
    /// The first turn has not begun.
    NotStarted,
}

pub(super) struct State {
    thread_table: ThreadTable,
    members: Vec<Member>,
    deadlines: BTreeSet<(Time, u32)>,
    pub holder: Holder,
    outside: usize,
    /// The number of times signals were sent.
    signals: u64,
    /// The number of sleeping threads that have not yet checked for signals.
    pending_signal_checks: usize,
    /// Whether the thread that chooses the next turn waits for these checks, and then continues its choice.
    is_checking_signals: bool,
    /// Whether the deadlock was reported.
    is_reported: bool,
    /// The thread that waits until all other runnable threads are between two instructions.
    draining: Option<u32>,
    /// The number of retired threads that have not stopped yet.
    pending_retirements: usize,
}

impl State {
    /// A state without running threads, deadlines and threads outside the model.
    fn at_rest(thread_table: ThreadTable, members: Vec<Member>) -> Self {
        Self {
            thread_table,
            members,
            deadlines: BTreeSet::new(),
            holder: Holder::NotStarted,
            outside: 0,
            signals: 0,
            pending_signal_checks: 0,
            is_checking_signals: false,
            is_reported: false,
            draining: None,
            pending_retirements: 0,
        }
    }
}

/// The state of a thread, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    /// The thread.
    pub thread: ThreadNumber,
    /// The current or last core.
    pub core: usize,
    /// The event that the thread waits for; `None` if it is runnable.
    pub waits_for: Option<&'static str>,
}

/// Schedules the guest threads of a process.
pub struct Scheduler {
    state: Mutex<State>,
    signals_checked: Condvar,
    retired: Condvar,
    now_ps: AtomicU64,
    /// The number of threads that sleep until a file is ready.
    file_sleepers: AtomicUsize,
    process: Mutex<Weak<Process>>,
    devices: OnceLock<Arc<dyn DeviceClock>>,
    kernel: OnceLock<Arc<Kernel>>,
    pub(super) wake_event: OwnedFd,
    config: SchedulerConfig,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Scheduler {
    /// Creates a scheduler with the process's first thread, at time 0. [`Self::begin`] starts the first turn.
    ///
    /// # Errors
    /// The host cannot provide a descriptor.
    pub fn new(mut config: SchedulerConfig) -> io::Result<Arc<Self>> {
        config.complete();
        let state = State::at_rest(ThreadTable::new(config.nodes.len()), Vec::new());
        let scheduler = Self::with(config, state)?;
        linux::Scheduler::add(&scheduler, ThreadNumber(0));
        Ok(Arc::new(scheduler))
    }

    fn with(config: SchedulerConfig, state: State) -> io::Result<Self> {
        Ok(Self {
            state: Mutex::new(state),
            signals_checked: Condvar::new(),
            retired: Condvar::new(),
            now_ps: AtomicU64::new(0),
            file_sleepers: AtomicUsize::new(0),
            process: Mutex::default(),
            devices: OnceLock::new(),
            kernel: OnceLock::new(),
            wake_event: idle::wake_event()?,
            config,
        })
    }

    /// Restores a saved scheduler. `alive` are the threads that have not exited.
    pub(crate) fn restored(
        mut config: SchedulerConfig,
        thread_table: &ThreadTableImage,
        alive: &[u32],
        now: Time,
    ) -> io::Result<Arc<Self>> {
        config.complete();
        let phase = |thread: u32| if alive.contains(&thread) { Phase::Ready } else { Phase::Gone };
        let members =
            (0..thread_table.threads.len() as u32).map(|thread| Member::new(phase(thread), 0)).collect();
        let state = State::at_rest(ThreadTable::restored(config.nodes.len(), thread_table, alive), members);
        let scheduler = Self::with(config, state)?;
        scheduler.set_now(now);
        Ok(Arc::new(scheduler))
    }

    /// Sets the devices. Only the first call has an effect.
    pub(crate) fn set_devices(&self, devices: Arc<dyn DeviceClock>) {
        // A process runs on a single machine.
        let _ = self.devices.set(devices);
    }

    /// Sets the kernel model. Only the first call has an effect.
    pub(crate) fn set_kernel(&self, kernel: Arc<Kernel>) {
        // A process has a single kernel.
        let _ = self.kernel.set(kernel);
    }

    /// Posts kernel work on `core` at `at`. Returns the time at which it is done.
    fn post(&self, core: usize, at: Time, work: Work) -> Time {
        self.kernel.get().map_or(at, |kernel| kernel.post(core, at, work))
    }

    /// The core of the running thread.
    fn running_core(&self, state: &State) -> Option<usize> {
        match state.holder {
            Holder::Thread(thread) => Some(state.thread_table.core_of(thread)),
            Holder::Idler | Holder::NotStarted => None,
        }
    }

    /// Starts the first turn. All threads must exist.
    pub(crate) fn begin(&self) {
        self.hand_over(self.lock(), None);
    }

    /// The serializable form, and the current time.
    pub(crate) fn image(&self) -> (ThreadTableImage, Time) {
        (self.lock().thread_table.image(), linux::Scheduler::now(self))
    }

    /// Returns when all other runnable threads are between two instructions, which may take any time.
    pub(crate) fn drain(&self, thread: ThreadNumber) {
        self.lock().draining = Some(thread.0);
        self.pass(thread);
        self.lock().draining = None;
    }

    /// The states of all live threads while they are stopped.
    pub(crate) fn stopped_states(&self) -> Vec<(ThreadNumber, StoppedState)> {
        let state = self.lock();
        let standing = |member: &Member| match member.phase {
            Phase::Ready if member.in_call => Some(StoppedState::Begun("a system call that is about to end")),
            Phase::Ready => Some(StoppedState::Between),
            Phase::Asleep if member.sleep.has_side_effects => Some(StoppedState::Begun(member.sleep.reason)),
            Phase::Asleep => Some(StoppedState::Waits(member.sleep.deadline)),
            Phase::Outside => Some(StoppedState::Outside),
            Phase::Gone => None,
        };
        let members = (0u32..).zip(&state.members);
        members.filter_map(|(number, member)| Some((ThreadNumber(number), standing(member)?))).collect()
    }

    /// Sets the process and starts the idle thread. Call it once.
    ///
    /// # Errors
    /// The host cannot create a thread.
    pub(crate) fn start(self: &Arc<Self>, process: &Arc<Process>) -> io::Result<()> {
        self.set_process(process);
        idle::start(self)
    }

    /// Sets the process: at first, and for each program that it executes.
    pub(crate) fn set_process(&self, process: &Arc<Process>) {
        *self.process.lock().ignore_poison() = Arc::downgrade(process);
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().ignore_poison()
    }

    fn process(&self) -> Option<Arc<Process>> {
        self.process.lock().ignore_poison().upgrade()
    }

    fn set_now(&self, now: Time) {
        self.now_ps.store(now.ps(), Ordering::Relaxed);
    }

    /// The states of all live threads.
    pub fn status(&self) -> Vec<ThreadStatus> {
        let state = self.lock();
        let alive = state.members.iter().enumerate().filter(|(_, member)| member.phase != Phase::Gone);
        alive
            .map(|(number, member)| ThreadStatus {
                thread: ThreadNumber(number as u32),
                core: state.thread_table.core_of(number as u32),
                waits_for: match member.phase {
                    Phase::Ready | Phase::Gone => None,
                    Phase::Asleep => Some(member.sleep.reason),
                    Phase::Outside => Some("something outside the model"),
                },
            })
            .collect()
    }

    /// Waits on the thread's host thread for its first turn.
    pub(crate) fn wait_for_first_turn(&self, thread: ThreadNumber) {
        let parker = self.lock().members[thread.0 as usize].parker.clone();
        self.wait_ready(&parker);
        self.check_signals_at_turn(thread.0);
    }

    /// The core and time of the running thread.
    pub(crate) fn turn(&self, thread: ThreadNumber) -> Turn {
        let core = self.lock().thread_table.core_of(thread.0);
        Turn { at: linux::Scheduler::now(self), core, thread: thread.0 }
    }

    /// Whether only the running thread can act before its next system call.
    pub(crate) fn is_alone(&self, thread: ThreadNumber) -> bool {
        let state = self.lock();
        let has_others = (0u32..).zip(&state.members).any(|(n, m)| n != thread.0 && m.phase != Phase::Gone);
        !has_others && state.draining.is_none() && self.next_event(&state).is_none()
    }

    /// Advances the running thread's core to `time`.
    pub(crate) fn advance(&self, thread: ThreadNumber, time: Time) {
        let mut state = self.lock();
        state.thread_table.charge(thread.0, time);
        self.set_now(time.max(linux::Scheduler::now(self)));
    }

    /// Ends a quantum: another thread runs if it is next. Returns when the caller is scheduled again.
    pub(crate) fn pass(&self, thread: ThreadNumber) {
        let state = self.lock();
        let parker = state.members[thread.0 as usize].parker.clone();
        if !self.hand_over(state, Some(thread.0)) {
            self.wait_ready(&parker);
            self.check_signals_at_turn(thread.0);
        }
    }

    /// Removes the running thread, which has exited.
    pub(crate) fn leave(&self, thread: ThreadNumber) {
        let mut state = self.lock();
        state.thread_table.dequeue(thread.0);
        state.members[thread.0 as usize].phase = Phase::Gone;
        self.hand_over(state, None);
    }

    /// Passes the turn to the next thread. Returns true if that is the caller, `me`.
    pub(super) fn hand_over<'a>(&'a self, state: Guard<'a>, me: Option<u32>) -> bool {
        let (mut state, next) = self.decide(state, me, false);
        match next {
            Some(thread) if me == Some(thread) => {
                state.holder = Holder::Thread(thread);
                true
            }
            Some(thread) => {
                Self::give(state, thread);
                false
            }
            None => {
                state.holder = Holder::Idler;
                idle::signal(&self.wake_event);
                false
            }
        }
    }

    /// Passes the turn to the waiting thread `thread`.
    pub(super) fn give(mut state: Guard<'_>, thread: u32) {
        state.holder = Holder::Thread(thread);
        let parker = state.members[thread as usize].parker.clone();
        // Unlock first, because the thread locks the state immediately.
        drop(state);
        parker.post(waiting::RUN);
    }

    /// Processes all events before the next turn and returns the thread that runs next; `None` if only an external
    /// event can make a thread runnable. `has_waited` is true if host time has already passed up to the next event.
    pub(super) fn decide<'a>(
        &'a self,
        mut state: Guard<'a>,
        me: Option<u32>,
        mut has_waited: bool,
    ) -> (Guard<'a>, Option<u32>) {
        if let Some(requester) = state.draining {
            let busy = |member: &Member| member.phase == Phase::Ready && member.in_call;
            let next = state.members.iter().position(busy).map_or(requester, |number| number as u32);
            return (state, Some(next));
        }
        loop {
            self.wake_for_devices(&mut state);
            if state.thread_table.next().is_none() {
                let now = linux::Scheduler::now(self);
                self.wake_for_files(&mut state, now, None);
            }
            let turn = state.thread_table.next();
            let event = self.next_event(&state);
            match (turn, event) {
                (Some(turn), event) if event.is_none_or(|event| event > turn.at) => {
                    match state.thread_table.begin(turn) {
                        Switch::None => {}
                        Switch::Thread => drop(self.post(turn.core, turn.at, Work::ContextSwitch)),
                        Switch::Handler => drop(self.post(turn.core, turn.at, Work::Softirq)),
                    }
                    self.set_now(turn.at);
                    if let Some(log) = &self.config.log {
                        log(turn);
                    }
                    return (state, Some(turn.thread));
                }
                (None, Some(_)) if !has_waited && self.awaits_external_event(&mut state) => {
                    return (state, None);
                }
                (turn, Some(event)) => {
                    has_waited = false;
                    if !self.devices_act(&state, event, turn) {
                        state = self.process_due_events(state, event, me);
                    }
                }
                (None, None) => {
                    self.report_deadlock(&mut state);
                    return (state, None);
                }
                (Some(_), None) => unreachable!("a turn without an event before it is taken above"),
            }
        }
    }

    /// The time of the next deadline, timer or device event.
    pub(super) fn next_event(&self, state: &State) -> Option<Time> {
        let device = self.devices.get().and_then(|devices| devices.next_event());
        [self.next_end(state), device].into_iter().flatten().min()
    }

    /// The time of the next deadline or timer.
    fn next_end(&self, state: &State) -> Option<Time> {
        let deadline = state.deadlines.first().map(|(time, _)| *time);
        let timer = self.process().and_then(|process| process.simulation()?.next_timer());
        [deadline, timer].into_iter().flatten().min()
    }

    /// Advances the devices, if the event at `event` is theirs, to the next turn, deadline, timer or interrupt. Returns
    /// false if it is not theirs.
    fn devices_act(&self, state: &State, event: Time, turn: Option<Turn>) -> bool {
        let Some(devices) = self.devices.get() else { return false };
        let end = self.next_end(state);
        if devices.next_event() != Some(event) || end.is_some_and(|end| end <= event) {
            return false;
        }
        let limit = [turn.map(|turn| turn.at), end].into_iter().flatten().min();
        devices.advance(limit.unwrap_or(Time::from_ps(u64::MAX)));
        true
    }

    /// Wakes threads whose files a device has made ready.
    fn wake_for_devices(&self, state: &mut State) {
        let Some(devices) = self.devices.get() else { return };
        if let Some((at, core)) = devices.take_ready() {
            self.wake_for_files(state, at, Some(core));
        }
    }

    /// Ends the sleeps and expires the timers that are due at `time`.
    fn process_due_events<'a>(&'a self, mut state: Guard<'a>, time: Time, me: Option<u32>) -> Guard<'a> {
        self.set_now(time.max(linux::Scheduler::now(self)));
        while let Some(&(deadline, thread)) =
            state.deadlines.first().filter(|(deadline, _)| *deadline <= time)
        {
            let core = state.thread_table.core_of(thread);
            self.post(core, deadline, Work::Interrupt);
            self.wake_sleeper(&mut state, thread, (Wakeup::TimedOut, deadline), Some(core));
        }
        let process = self.process();
        let simulation = process.as_ref().and_then(|process| process.simulation());
        if let Some(simulation) = simulation.filter(|s| s.next_timer().is_some_and(|next| next <= time)) {
            if simulation.expire_timers(time) {
                state = self.check_all_signals(state, me, time);
            }
            self.wake_for_files(&mut state, time, None);
        }
        state
    }

    /// Whether an external event can make a thread runnable.
    fn awaits_external_event(&self, state: &mut State) -> bool {
        if state.outside > 0 {
            return true;
        }
        let process = self.process();
        let Some(simulation) = process.as_ref().and_then(|process| process.simulation()) else {
            return false;
        };
        let sleepers = state.members.iter_mut().filter(|member| member.phase == Phase::Asleep);
        sleepers.filter(|member| !member.sleep.files.is_empty()).any(|member| {
            *member.reaches_outside.get_or_insert_with(|| simulation.reaches_outside(&member.sleep.files))
        })
    }

    fn report_deadlock(&self, state: &mut State) {
        let Some(sink) = &self.config.diagnostics else { return };
        if state.is_reported || self.awaits_external_event(state) {
            return;
        }
        state.is_reported = true;
        let waiting = state.members.iter().enumerate().filter(|(_, member)| member.phase == Phase::Asleep);
        let list: Vec<String> =
            waiting.map(|(number, member)| format!("thread {number} for {}", member.sleep.reason)).collect();
        if !list.is_empty() {
            sink(&format!("deadlock: every thread waits, and no event can wake one: {}", list.join(", ")));
        }
    }
}
