//! The baton: which guest thread runs, and how it passes from one to the next.
//! Not the choice itself, which is `roster`'s, nor how the others wait (`waiting`), not waiting for the outside world, which is in `idle`,
//! and not what system calls ask of it.

mod calls;
mod waiting;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use longma_guest::host::locks::{Condvar, Mutex, MutexGuard};
use longma_guest::host::parker::Parker;
use longma_linux::simulated::{self as linux, CoreSet, Sleep, ThreadNumber, Wakeup};
use longma_linux::{Process, Sink};
use longma_sim::Time;

use super::idle;
use super::roster::{Roster, RosterImage, Switch, Turn};
use crate::kernel::{Kernel, Work};

/// Told of every turn that begins.
pub type Log = Arc<dyn Fn(Turn) + Send + Sync>;

/// Devices that act by themselves in simulated time, beside threads.
pub trait DeviceClock: Send + Sync {
    /// When the next of them does something; `None` if all of them wait.
    fn next_event(&self) -> Option<Time>;

    /// Lets them act up to `limit`, or up to the first moment at which a file becomes ready.
    fn advance(&self, limit: Time);

    /// When files have become ready since this was asked last: the first moment, and the core that was interrupted then.
    fn take_ready(&self) -> Option<(Time, usize)>;
}

/// What a scheduler decides for.
#[derive(Clone, Default)]
pub struct SchedulerConfig {
    /// The NUMA node of each core; as many cores as entries, at least one.
    pub nodes: Vec<usize>,
    /// The cores that the first thread may use, and those it makes; all of them if left out.
    pub allowed: Option<CoreSet>,
    /// Told of every turn that begins, in order.
    pub log: Option<Log>,
    /// Told when every thread waits for another one and nothing can change that.
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

/// What a thread is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It runs or can run.
    Ready,
    /// It waits for something in the model.
    Asleep,
    /// It waits on the host for something outside of the model.
    Outside,
    /// It is over.
    Gone,
}

#[derive(Debug)]
struct Member {
    parker: Arc<Parker>,
    phase: Phase,
    sleep: Sleep,
    awoken: Wakeup,
    /// Signals that had arrived before the sleep began: they do not end it.
    arrived_before: u64,
    /// Whether its files can become ready from outside; found out when somebody asks.
    reaches_outside: Option<bool>,
    /// How many times signals had been sent when it last looked.
    seen_signals: u64,
    /// It is in a call that gave its core away.
    in_call: bool,
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
        }
    }
}

/// Where a thread stands while none runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Between two instructions.
    Between,
    /// In a call that it can make again, which waits until then.
    Waits(Option<Time>),
    /// In a call that has had an effect.
    Begun(&'static str),
    /// In a call of the host's.
    Outside,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Thread(u32),
    /// Nobody can run before something happens outside.
    Idler,
    /// The first turn has not begun.
    Nobody,
}

pub(super) struct State {
    roster: Roster,
    members: Vec<Member>,
    deadlines: BTreeSet<(Time, u32)>,
    pub holder: Holder,
    outside: usize,
    /// How many times signals have been sent.
    signals: u64,
    /// Sleeping threads that have not looked yet.
    looks_due: usize,
    /// Somebody waits for them in the middle of deciding, and goes on deciding when they have.
    settling: bool,
    /// The deadlock has been told.
    told: bool,
    /// This thread waits until all others that can run are between two instructions.
    draining: Option<u32>,
}

impl State {
    /// Nobody runs, waits for a time, or is outside.
    fn at_rest(roster: Roster, members: Vec<Member>) -> Self {
        Self {
            roster,
            members,
            deadlines: BTreeSet::new(),
            holder: Holder::Nobody,
            outside: 0,
            signals: 0,
            looks_due: 0,
            settling: false,
            told: false,
            draining: None,
        }
    }
}

/// What a thread is doing, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    /// The thread.
    pub thread: ThreadNumber,
    /// The core it is on or was on last.
    pub core: usize,
    /// What it waits for; `None` if it can run.
    pub waits_for: Option<&'static str>,
}

/// Decides which guest thread runs.
pub struct Scheduler {
    state: Mutex<State>,
    looked: Condvar,
    now_ps: AtomicU64,
    /// Threads that sleep until a file is ready.
    file_sleepers: AtomicUsize,
    process: OnceLock<Weak<Process>>,
    devices: OnceLock<Arc<dyn DeviceClock>>,
    kernel: OnceLock<Arc<Kernel>>,
    pub(super) bell: OwnedFd,
    config: SchedulerConfig,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Scheduler {
    /// A scheduler with the process's first thread, at time 0. Whoever runs the process begins the first turn.
    ///
    /// # Errors
    /// The host has no descriptor to give.
    pub fn new(mut config: SchedulerConfig) -> io::Result<Arc<Self>> {
        config.complete();
        let state = State::at_rest(Roster::new(config.nodes.len()), Vec::new());
        let made = Self::with(config, state)?;
        linux::Scheduler::add(&made, ThreadNumber(0));
        Ok(Arc::new(made))
    }

    fn with(config: SchedulerConfig, state: State) -> io::Result<Self> {
        Ok(Self {
            state: Mutex::new(state),
            looked: Condvar::new(),
            now_ps: AtomicU64::new(0),
            file_sleepers: AtomicUsize::new(0),
            process: OnceLock::new(),
            devices: OnceLock::new(),
            kernel: OnceLock::new(),
            bell: idle::bell()?,
            config,
        })
    }

    /// A scheduler that goes on where a saved one was; `alive` are its threads.
    pub(crate) fn restored(
        mut config: SchedulerConfig,
        roster: &RosterImage,
        alive: &[u32],
        now: Time,
    ) -> io::Result<Arc<Self>> {
        config.complete();
        let phase = |thread: u32| if alive.contains(&thread) { Phase::Ready } else { Phase::Gone };
        let members = (0..roster.threads.len() as u32).map(|thread| Member::new(phase(thread), 0)).collect();
        let state = State::at_rest(Roster::restored(config.nodes.len(), roster, alive), members);
        let made = Self::with(config, state)?;
        made.set_now(now);
        Ok(Arc::new(made))
    }

    /// There are devices that act by themselves; only the first call counts.
    pub(crate) fn attend_to(&self, devices: Arc<dyn DeviceClock>) {
        // A process is on one machine.
        let _ = self.devices.set(devices);
    }

    /// What the kernel does for threads is work of cores; only the first call counts.
    pub(crate) fn work_for(&self, kernel: Arc<Kernel>) {
        // A process has one kernel.
        let _ = self.kernel.set(kernel);
    }

    /// `core` has work of the kernel's to do from `at` on: when that is done.
    fn post(&self, core: usize, at: Time, work: Work) -> Time {
        self.kernel.get().map_or(at, |kernel| kernel.post(core, at, work))
    }

    /// The core of the thread whose turn it is.
    fn running_core(&self, state: &State) -> Option<usize> {
        match state.holder {
            Holder::Thread(thread) => Some(state.roster.core_of(thread)),
            Holder::Idler | Holder::Nobody => None,
        }
    }

    /// The first turn begins: every thread is there.
    pub(crate) fn begin(&self) {
        self.hand_over(self.lock(), None);
    }

    /// As plain data, and what time it is.
    pub(crate) fn image(&self) -> (RosterImage, Time) {
        (self.lock().roster.image(), linux::Scheduler::now(self))
    }

    /// Comes back when every other thread that can run is between two instructions, however long that takes.
    pub(crate) fn drain(&self, thread: ThreadNumber) {
        self.lock().draining = Some(thread.0);
        self.pass(thread);
        self.lock().draining = None;
    }

    /// Where the threads that are alive stand.
    pub(crate) fn standing(&self) -> Vec<(ThreadNumber, Standing)> {
        let state = self.lock();
        let standing = |member: &Member| match member.phase {
            Phase::Ready if member.in_call => Some(Standing::Begun("a call that is about to end")),
            Phase::Ready => Some(Standing::Between),
            Phase::Asleep if member.sleep.begun => Some(Standing::Begun(member.sleep.reason)),
            Phase::Asleep => Some(Standing::Waits(member.sleep.deadline)),
            Phase::Outside => Some(Standing::Outside),
            Phase::Gone => None,
        };
        let members = (0u32..).zip(&state.members);
        members.filter_map(|(number, member)| Some((ThreadNumber(number), standing(member)?))).collect()
    }

    /// Says whose threads these are, and gets ready to wait for the outside world.
    ///
    /// # Errors
    /// The host has no thread to give.
    pub(crate) fn start(self: &Arc<Self>, process: &Arc<Process>) -> io::Result<()> {
        if self.process.set(Arc::downgrade(process)).is_ok() {
            idle::start(self)?;
        }
        Ok(())
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> Option<Arc<Process>> {
        self.process.get().and_then(Weak::upgrade)
    }

    fn set_now(&self, now: Time) {
        self.now_ps.store(now.ps(), Ordering::Relaxed);
    }

    /// What every thread that is not over is doing.
    pub fn status(&self) -> Vec<ThreadStatus> {
        let state = self.lock();
        let alive = state.members.iter().enumerate().filter(|(_, member)| member.phase != Phase::Gone);
        alive
            .map(|(number, member)| ThreadStatus {
                thread: ThreadNumber(number as u32),
                core: state.roster.core_of(number as u32),
                waits_for: match member.phase {
                    Phase::Ready | Phase::Gone => None,
                    Phase::Asleep => Some(member.sleep.reason),
                    Phase::Outside => Some("something outside of the model"),
                },
            })
            .collect()
    }

    /// Waits on the thread's own host thread until its first turn begins.
    pub(crate) fn take_seat(&self, thread: ThreadNumber) {
        let parker = self.lock().members[thread.0 as usize].parker.clone();
        self.wait_ready(&parker);
        self.see_signals(thread.0);
    }

    /// Where the running thread is, and what time it is there.
    pub(crate) fn turn(&self, thread: ThreadNumber) -> Turn {
        let core = self.lock().roster.core_of(thread.0);
        Turn { at: linux::Scheduler::now(self), core, thread: thread.0 }
    }

    /// True if nothing but the running thread can do anything before it makes a system call.
    pub(crate) fn is_alone(&self, thread: ThreadNumber) -> bool {
        let state = self.lock();
        let others = (0u32..).zip(&state.members).any(|(n, m)| n != thread.0 && m.phase != Phase::Gone);
        !others && state.draining.is_none() && self.next_event(&state).is_none()
    }

    /// The running thread has brought its core to `time`.
    pub(crate) fn advance(&self, thread: ThreadNumber, time: Time) {
        let mut state = self.lock();
        state.roster.charge(thread.0, time);
        self.set_now(time.max(linux::Scheduler::now(self)));
    }

    /// The end of a quantum: another thread goes on if it is its turn. Comes back when it is the caller's again.
    pub(crate) fn pass(&self, thread: ThreadNumber) {
        let state = self.lock();
        let parker = state.members[thread.0 as usize].parker.clone();
        if !self.hand_over(state, Some(thread.0)) {
            self.wait_ready(&parker);
            self.see_signals(thread.0);
        }
    }

    /// The running thread is over.
    pub(crate) fn leave(&self, thread: ThreadNumber) {
        let mut state = self.lock();
        state.roster.dequeue(thread.0);
        state.members[thread.0 as usize].phase = Phase::Gone;
        self.hand_over(state, None);
    }

    /// Gives the turn to whoever is next; true if that is the caller, `me`.
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
                idle::ring(&self.bell);
                false
            }
        }
    }

    /// Gives the turn to `thread`, which waits for it.
    pub(super) fn give(mut state: Guard<'_>, thread: u32) {
        state.holder = Holder::Thread(thread);
        let parker = state.members[thread as usize].parker.clone();
        // It needs the state at once, and should not find it locked.
        drop(state);
        parker.post(waiting::GO);
    }

    /// Whose turn it is, after everything that happens before; `None` if only the outside world can bring somebody to run.
    /// `waited`: it has been waited for until the next event.
    pub(super) fn decide<'a>(
        &'a self,
        mut state: Guard<'a>,
        me: Option<u32>,
        mut waited: bool,
    ) -> (Guard<'a>, Option<u32>) {
        if let Some(requester) = state.draining {
            let busy = |member: &Member| member.phase == Phase::Ready && member.in_call;
            let next = state.members.iter().position(busy).map_or(requester, |number| number as u32);
            return (state, Some(next));
        }
        loop {
            self.look_at_devices(&mut state);
            if state.roster.next().is_none() {
                let now = linux::Scheduler::now(self);
                self.look_at_files(&mut state, now, None);
            }
            let turn = state.roster.next();
            let event = self.next_event(&state);
            match (turn, event) {
                (Some(turn), event) if event.is_none_or(|event| event > turn.at) => {
                    match state.roster.begin(turn) {
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
                (None, Some(_)) if !waited && self.awaits_outside(&mut state) => return (state, None),
                (turn, Some(event)) => {
                    waited = false;
                    if !self.devices_act(&state, event, turn) {
                        state = self.happen(state, event, me);
                    }
                }
                (None, None) => {
                    self.tell_deadlock(&mut state);
                    return (state, None);
                }
                (Some(_), None) => unreachable!("a turn without an event before it is taken above"),
            }
        }
    }

    /// When the next sleep or timer ends, or a device acts.
    pub(super) fn next_event(&self, state: &State) -> Option<Time> {
        let device = self.devices.get().and_then(|devices| devices.next_event());
        [self.next_end(state), device].into_iter().flatten().min()
    }

    /// When the next sleep or timer ends.
    fn next_end(&self, state: &State) -> Option<Time> {
        let deadline = state.deadlines.first().map(|(time, _)| *time);
        let timer = self.process().and_then(|process| process.simulation()?.next_timer());
        [deadline, timer].into_iter().flatten().min()
    }

    /// Lets devices act whose turn it is at `event`, until a thread's turn, a sleep's end or an interrupt; false if it is not theirs.
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

    /// Rouses those who wait for files that devices have made ready.
    fn look_at_devices(&self, state: &mut State) {
        let Some(devices) = self.devices.get() else { return };
        if let Some((at, core)) = devices.take_ready() {
            self.look_at_files(state, at, Some(core));
        }
    }

    /// Ends the sleeps and expires the timers that are due at `time`.
    fn happen<'a>(&'a self, mut state: Guard<'a>, time: Time, me: Option<u32>) -> Guard<'a> {
        self.set_now(time.max(linux::Scheduler::now(self)));
        while let Some(&(deadline, thread)) =
            state.deadlines.first().filter(|(deadline, _)| *deadline <= time)
        {
            let core = state.roster.core_of(thread);
            self.post(core, deadline, Work::Interrupt);
            self.rouse(&mut state, thread, (Wakeup::Late, deadline), Some(core));
        }
        let process = self.process();
        let simulation = process.as_ref().and_then(|process| process.simulation());
        if let Some(simulation) = simulation.filter(|s| s.next_timer().is_some_and(|next| next <= time)) {
            if simulation.expire_timers(time) {
                state = self.settle(state, me, time);
            }
            self.look_at_files(&mut state, time, None);
        }
        state
    }

    /// True if something outside of the model can bring a thread to run.
    fn awaits_outside(&self, state: &mut State) -> bool {
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

    fn tell_deadlock(&self, state: &mut State) {
        let Some(sink) = &self.config.diagnostics else { return };
        if state.told || self.awaits_outside(state) {
            return;
        }
        state.told = true;
        let waiting = state.members.iter().enumerate().filter(|(_, member)| member.phase == Phase::Asleep);
        let list: Vec<String> =
            waiting.map(|(number, member)| format!("thread {number} for {}", member.sleep.reason)).collect();
        if !list.is_empty() {
            sink(&format!("every thread waits and nothing is left that could wake one: {}", list.join(", ")));
        }
    }
}
