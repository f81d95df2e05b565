//! A process in simulated time: clocks, ids and blocking calls are simulated. A [`Scheduler`] provides the time and
//! decides which thread runs. Source: time(7), futex(2), sched(7); the crate's README lists the remaining
//! dependencies on the host.

pub(crate) mod calls;
pub mod clocks;
pub(crate) mod futex;
pub mod identity;
mod polling;
pub(crate) mod sched_attributes;
pub(crate) mod timers;
pub(crate) mod waits;

use longma_locks::IgnorePoison;
use longma_random::SplitMix64;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longma_guest::host::locks::Mutex;
use longma_guest::words::bytes_of;
use longma_guest::{Errno, GuestMemory};
use longma_sim::{Duration, Time};

use identity::Identities;
use sched_attributes::SchedAttributes;
use timers::Timers;

/// The arguments of a system call.
pub(crate) type Arguments = [u64; 6];
/// The result of a system call.
pub(crate) type Returned = Result<u64, Errno>;
/// The error for invalid arguments.
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);

/// The number of a guest thread: dense, from 0, in order of creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(pub u32);

/// A set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSet([u64; Self::CORES / 64]);

impl CoreSet {
    /// The maximum number of cores.
    pub const CORES: usize = 1024;

    /// The cores below `count`.
    pub fn first_n(count: usize) -> Self {
        Self::of(0..count.min(Self::CORES))
    }

    /// A set of these cores; numbers from [`Self::CORES`] on are ignored.
    pub fn of(cores: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self([0; Self::CORES / 64]);
        cores
            .into_iter()
            .filter(|core| *core < Self::CORES)
            .for_each(|core| set.0[core / 64] |= 1 << (core % 64));
        set
    }

    /// Decodes a `cpu_set_t`; bits from [`Self::CORES`] on are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut set = Self([0; Self::CORES / 64]);
        for (index, byte) in bytes.iter().enumerate().take(Self::CORES / 8) {
            set.0[index / 8] |= u64::from(*byte) << (index % 8 * 8);
        }
        set
    }

    /// Encodes a `cpu_set_t`.
    pub fn to_bytes(self) -> [u8; Self::CORES / 8] {
        bytes_of(&self.0)
    }

    /// Whether the set contains `core`.
    pub fn contains(&self, core: usize) -> bool {
        core < Self::CORES && self.0[core / 64] >> (core % 64) & 1 != 0
    }

    /// The intersection of both sets.
    pub fn intersection(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// A file that a sleeping thread waits for, as in poll(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedFile {
    /// The host's descriptor.
    pub descriptor: i32,
    /// POLLIN and others.
    pub events: i16,
}

/// The conditions that end a sleep. A deliverable signal always ends it.
#[derive(Clone, Debug, Default)]
pub struct Sleep {
    /// The deadline.
    pub deadline: Option<Time>,
    /// Any of these files becomes ready.
    pub files: Vec<AwaitedFile>,
    /// Any signal is sent, deliverable or not.
    pub any_signal: bool,
    /// The call has already had an effect, so it cannot restart.
    pub has_side_effects: bool,
    /// A description of the wait, for diagnostics.
    pub reason: &'static str,
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// Another thread woke it, or a condition may have become true. The caller checks again.
    Woken,
    /// The deadline passed.
    TimedOut,
    /// A signal is deliverable.
    Signalled,
    /// Attention was requested before the sleep began.
    NotBegun,
}

/// Decides which guest thread runs, and maintains simulated time. One thread runs at a time. Unless stated otherwise,
/// only the running thread calls these methods, for itself.
pub trait Scheduler: Send + Sync {
    /// The current time on the running thread's core.
    fn now(&self) -> Time;

    /// The run time of a thread, or of all threads including those that have ended.
    fn run_time(&self, thread: Option<ThreadNumber>) -> Duration;

    /// Adds a new thread, which is ready to run.
    fn add(&self, thread: ThreadNumber);

    /// Removes the thread that was added last, because the host could not create it.
    fn remove_last(&self, thread: ThreadNumber);

    /// Releases the core until a condition of `sleep` is true.
    fn sleep(&self, thread: ThreadNumber, sleep: Sleep) -> Wakeup;

    /// Wakes `thread`, if it is sleeping.
    fn wake(&self, thread: ThreadNumber);

    /// Lets other threads of the core run first.
    fn yield_now(&self, thread: ThreadNumber);

    /// Releases the core during `call`, which waits for an event outside the model.
    fn run_blocking(&self, thread: ThreadNumber, call: &mut dyn FnMut());

    /// Notifies threads that the running thread has sent them signals through the host. They check for pending signals.
    fn signals_sent(&self, sender: ThreadNumber);

    /// Notifies the scheduler that the running thread may have made files ready for which other threads wait.
    fn files_changed(&self);

    /// Ends all threads except the running thread `thread`, which calls execve(2). The others execute no more
    /// instructions; a thread in a host call ends when the call returns. Returns the numbers of the ended threads.
    fn retire_others(&self, thread: ThreadNumber) -> Vec<ThreadNumber>;

    /// Waits until the retired threads have returned from calls of the host, and makes `thread` the only thread. The thread
    /// gets number 0 and keeps its core and its time.
    fn become_only(&self, thread: ThreadNumber);

    /// Makes `thread` the handler of a device's interrupts, which runs first on its core. Returns the core number.
    fn handle_interrupts(&self, thread: ThreadNumber) -> usize;

    /// The number of cores.
    fn cores(&self) -> usize;

    /// The core of `thread` and the NUMA node of that core.
    fn core_and_node(&self, thread: ThreadNumber) -> (usize, usize);

    /// The affinity of `thread`; `None` if it does not exist.
    fn affinity(&self, thread: ThreadNumber) -> Option<CoreSet>;

    /// Sets the affinity of `thread`. Returns false if the thread or a core does not exist.
    fn set_affinity(&self, thread: ThreadNumber, cores: CoreSet) -> bool;
}

/// The configuration of simulated time.
#[derive(Clone)]
pub struct SimulationConfig {
    /// The scheduler.
    pub scheduler: Arc<dyn Scheduler>,
    /// The seed of the guest's random bytes.
    pub seed: u64,
    /// The memory size reported to the guest, in bytes.
    pub memory_bytes: u64,
}

impl std::fmt::Debug for SimulationConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulationConfig").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// The state of a process in simulated time: ids, futexes, timers and random numbers.
pub struct Simulation {
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) identities: Identities,
    pub(crate) sched_attributes: SchedAttributes,
    /// The memory size reported to the guest, in bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) futexes: Mutex<futex::Queues>,
    pub(crate) timers: Mutex<Timers>,
    pub(crate) memory: GuestMemory,
    random: Mutex<SplitMix64>,
    /// The thread that repeats an interrupted wait after a restore, and the deadline of that wait.
    resumed_wait: Mutex<Option<(ThreadNumber, Time)>>,
    /// The latest time that a clock has shown, in picoseconds.
    shown: AtomicU64,
    /// Device and inode of files that were open at the start.
    pub(crate) inherited: Vec<(u64, u64)>,
    /// Whether other processes may have this process's files open.
    has_forked: AtomicBool,
    /// Set in a forked child, which is not in simulated time.
    disabled: AtomicBool,
}

impl Simulation {
    /// The state after execve(2) for the new program in `memory`. The clock and the random numbers continue from `self`.
    pub(crate) fn succeeded_by(&self, config: &SimulationConfig, memory: &GuestMemory) -> Self {
        Self {
            random: Mutex::new(SplitMix64::new(self.random_state())),
            shown: AtomicU64::new(self.shown.load(Ordering::Relaxed)),
            inherited: self.inherited.clone(),
            has_forked: AtomicBool::new(self.has_forked.load(Ordering::Relaxed)),
            ..Self::new(config, memory)
        }
    }

    /// Takes over the timers that survive execve(2), and the scheduling attributes of `thread`, from `previous`, the state
    /// before the call.
    pub(crate) fn take_over(&self, previous: &Self, thread: ThreadNumber) {
        let timers = std::mem::take(&mut *previous.timers.lock().ignore_poison());
        *self.timers.lock().ignore_poison() = timers.kept_across_exec();
        self.sched_attributes.take_over(&previous.sched_attributes, thread);
    }

    pub(crate) fn new(config: &SimulationConfig, memory: &GuestMemory) -> Self {
        Self {
            scheduler: config.scheduler.clone(),
            identities: Identities::new(),
            sched_attributes: SchedAttributes::default(),
            memory_bytes: config.memory_bytes,
            futexes: Mutex::default(),
            timers: Mutex::default(),
            memory: memory.clone(),
            random: Mutex::new(SplitMix64::new(config.seed)),
            resumed_wait: Mutex::default(),
            shown: AtomicU64::new(0),
            inherited: waits::blocking_files(),
            has_forked: AtomicBool::new(false),
            disabled: AtomicBool::new(false),
        }
    }

    /// Whether the process is in simulated time. False in a forked child.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.disabled.load(Ordering::Relaxed)
    }

    /// Disables simulated time in a forked child, which runs in the host's time.
    pub(crate) fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
        CURRENT.set(None);
    }

    /// Records a fork in the parent.
    pub(crate) fn record_fork(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
    }

    /// Fills `bytes` with random bytes that depend on the seed.
    pub(crate) fn fill_random(&self, bytes: &mut [u8]) {
        self.random.lock().ignore_poison().fill_bytes(bytes);
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// The time for clocks. It never decreases, even if cores differ slightly.
    pub(crate) fn shown_time(&self) -> Time {
        let now = self.scheduler.now().ps();
        Time::from_ps(now.max(self.shown.fetch_max(now, Ordering::Relaxed)))
    }

    /// The time of the stable counter in picoseconds, which equals CLOCK_MONOTONIC.
    pub fn counter_ps(&self) -> u64 {
        self.shown_time().ps().saturating_add(clocks::UP_S * 1_000_000_000_000)
    }

    /// Sets the deadline of the next timed wait of `thread`, which began before the checkpoint.
    pub(crate) fn resume_wait(&self, thread: ThreadNumber, deadline: Time) {
        *self.resumed_wait.lock().ignore_poison() = Some((thread, deadline));
    }

    /// Clears the deadline of the repeated wait of `thread`.
    pub(crate) fn clear_resumed_wait(&self, thread: ThreadNumber) {
        self.resumed_wait.lock().ignore_poison().take_if(|(of, _)| *of == thread);
    }

    /// Takes the deadline of the repeated wait of the current thread, if there is one.
    fn take_resumed_deadline(&self) -> Option<Time> {
        let mut resumed = self.resumed_wait.lock().ignore_poison();
        let (thread, deadline) = (*resumed)?;
        (current()?.thread == thread).then(|| {
            *resumed = None;
            deadline
        })
    }

    /// The state of the random number generator.
    pub(crate) fn random_state(&self) -> u64 {
        self.random.lock().ignore_poison().state()
    }

    /// Restores the state of a checkpoint: random number generator, latest clock time and timers.
    pub(crate) fn resume(&self, random: u64, shown_ps: u64, timers: Timers) {
        *self.random.lock().ignore_poison() = SplitMix64::new(random);
        self.shown.store(shown_ps, Ordering::Relaxed);
        *self.timers.lock().ignore_poison() = timers;
    }

    /// The expiry of the next timer.
    pub fn next_timer(&self) -> Option<Time> {
        self.timers.lock().ignore_poison().next()
    }

    /// Expires timers due at `now`. Returns whether signals were sent.
    pub fn expire_timers(&self, now: Time) -> bool {
        timers::expire(self, now)
    }

    /// Whether another process or the network may make one of the files ready.
    pub fn reaches_outside(&self, files: &[AwaitedFile]) -> bool {
        files.iter().any(|file| waits::reaches_outside(self, file.descriptor))
    }
}

/// The guest thread that this host thread runs.
#[derive(Clone)]
pub(crate) struct Context {
    pub simulation: Arc<Simulation>,
    pub thread: ThreadNumber,
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// The guest thread that this host thread runs in simulated time, if any.
pub(crate) fn current() -> Option<Context> {
    CURRENT.with_borrow(Clone::clone)
}

/// Sets the guest thread that this host thread runs.
pub(crate) fn enter(context: Context) {
    CURRENT.set(Some(context));
}
