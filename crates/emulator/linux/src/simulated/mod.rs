//! A process in simulated time: its clocks, its waiting and its identities come from a model instead of the host.
//! Not the model: a [`Scheduler`] knows what time it is and who runs.
//! Source: time(7), futex(2), sched(7); what shows through of the host is listed in the crate's README.

pub(crate) mod calls;
pub mod clocks;
pub(crate) mod futex;
pub mod identity;
mod polling;
mod random;
pub(crate) mod standing;
pub(crate) mod timers;
pub(crate) mod waits;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::words::bytes_of;
use longma_guest::{Errno, GuestMemory};
use longma_sim::{Duration, Time};

use identity::Identities;
use random::Random;
use standing::Standing;
use timers::Timers;

/// The arguments of a system call.
pub(crate) type Arguments = [u64; 6];
/// What one gives.
pub(crate) type Returned = Result<u64, Errno>;
/// What it gives for arguments without sense.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);

/// A guest thread's number: dense, from 0, in the order of creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(pub u32);

/// A set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSet([u64; Self::CORES / 64]);

impl CoreSet {
    /// The most cores there can be.
    pub const CORES: usize = 1024;

    /// The cores below `count`.
    pub fn first(count: usize) -> Self {
        Self::of(0..count.min(Self::CORES))
    }

    /// These cores; those beyond [`Self::CORES`] are dropped.
    pub fn of(cores: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self([0; Self::CORES / 64]);
        cores
            .into_iter()
            .filter(|core| *core < Self::CORES)
            .for_each(|core| set.0[core / 64] |= 1 << (core % 64));
        set
    }

    /// From the bytes of a `cpu_set_t`; what is beyond [`Self::CORES`] is dropped.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut set = Self([0; Self::CORES / 64]);
        for (index, byte) in bytes.iter().enumerate().take(Self::CORES / 8) {
            set.0[index / 8] |= u64::from(*byte) << (index % 8 * 8);
        }
        set
    }

    /// As the bytes of a `cpu_set_t`.
    pub fn to_bytes(self) -> [u8; Self::CORES / 8] {
        bytes_of(&self.0)
    }

    /// Whether `core` is among them.
    pub fn contains(&self, core: usize) -> bool {
        core < Self::CORES && self.0[core / 64] >> (core % 64) & 1 != 0
    }

    /// Those that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// A file a sleeping thread waits for, as poll(2) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedFile {
    /// The host's descriptor.
    pub descriptor: i32,
    /// POLLIN and its like.
    pub events: i16,
}

/// What ends a sleep. A signal that is to be delivered always does.
#[derive(Clone, Debug, Default)]
pub struct Sleep {
    /// The latest end.
    pub deadline: Option<Time>,
    /// One of these files is ready.
    pub files: Vec<AwaitedFile>,
    /// A signal was sent, whether or not it can be delivered here.
    pub any_signal: bool,
    /// The call has had an effect already: it cannot be made again from its beginning.
    pub begun: bool,
    /// What the thread waits for, in a person's words.
    pub reason: &'static str,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awoken {
    /// Somebody woke the thread, or what it waits for may be there: it looks again.
    Woken,
    /// The deadline has come.
    Late,
    /// A signal is to be delivered.
    Signalled,
    /// Something was to be done before the sleep could begin.
    NotBegun,
}

/// Decides which guest thread runs, and knows how far simulated time has come. One thread runs at a time; unless said otherwise, it
/// is the only one that may call, about itself.
pub trait Scheduler: Send + Sync {
    /// The time the running thread's core has reached.
    fn now(&self) -> Time;

    /// How long a thread has run on cores, or all of them together, those that are over included.
    fn run_time(&self, thread: Option<ThreadNumber>) -> Duration;

    /// A new thread, ready to run.
    fn add(&self, thread: ThreadNumber);

    /// The thread added last never began: the host had none for it.
    fn withdraw(&self, thread: ThreadNumber);

    /// Gives the core away until something in `sleep` happens.
    fn sleep(&self, thread: ThreadNumber, sleep: Sleep) -> Awoken;

    /// Ends the sleep of `thread`, if it sleeps.
    fn wake(&self, thread: ThreadNumber);

    /// Lets the others of the same core go first.
    fn yield_now(&self, thread: ThreadNumber);

    /// Gives the core away while `call` is made, which waits for something outside of the model.
    fn outside(&self, thread: ThreadNumber, call: &mut dyn FnMut());

    /// The running thread has sent a signal through the host: those it was for are to see it now.
    fn signals_sent(&self, sender: ThreadNumber);

    /// The running thread may have made a file ready that others wait for.
    fn files_changed(&self);

    /// `thread` handles a device's interrupts from now on: it goes first on its core, whose number this gives.
    fn handle_interrupts(&self, thread: ThreadNumber) -> usize;

    /// The number of cores.
    fn cores(&self) -> usize;

    /// The core that `thread` is on, and the NUMA node of that core.
    fn place(&self, thread: ThreadNumber) -> (usize, usize);

    /// The cores `thread` may use; `None` if there is no such thread.
    fn allowed(&self, thread: ThreadNumber) -> Option<CoreSet>;

    /// Sets the cores `thread` may use; false if there is no such thread or no such core.
    fn allow(&self, thread: ThreadNumber, cores: CoreSet) -> bool;
}

/// How a process is to run in simulated time.
#[derive(Clone)]
pub struct SimulationConfig {
    /// Who decides.
    pub scheduler: Arc<dyn Scheduler>,
    /// Where the guest's random bytes come from.
    pub seed: u64,
    /// The memory that the guest is told of, bytes.
    pub memory_bytes: u64,
}

impl std::fmt::Debug for SimulationConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulationConfig").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// What a process in simulated time has besides a functional one.
pub struct Simulation {
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) identities: Identities,
    pub(crate) standing: Standing,
    /// The memory that it is told of, bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) futexes: Mutex<futex::Queues>,
    pub(crate) timers: Mutex<Timers>,
    pub(crate) memory: GuestMemory,
    random: Mutex<Random>,
    /// A thread that makes a saved wait again, and when that ends.
    resumed: Mutex<Option<(ThreadNumber, Time)>>,
    /// The latest time a clock has shown, in picoseconds.
    shown: AtomicU64,
    /// Files that were open before the process began: (device, inode).
    pub(crate) inherited: Vec<(u64, u64)>,
    /// Other processes may have this one's files open.
    has_forked: AtomicBool,
    /// This is a forked child, which simulated time does not know.
    left: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulation {
    pub(crate) fn new(config: &SimulationConfig, memory: &GuestMemory) -> Self {
        Self {
            scheduler: config.scheduler.clone(),
            identities: Identities::new(),
            standing: Standing::default(),
            memory_bytes: config.memory_bytes,
            futexes: Mutex::default(),
            timers: Mutex::default(),
            memory: memory.clone(),
            random: Mutex::new(Random::new(config.seed)),
            resumed: Mutex::default(),
            shown: AtomicU64::new(0),
            inherited: waits::open_now(),
            has_forked: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// True until the process is a forked child's.
    pub(crate) fn is_on(&self) -> bool {
        !self.left.load(Ordering::Relaxed)
    }

    /// In a forked child: from here on it is a functional process on the host.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        CURRENT.set(None);
    }

    /// In the parent.
    pub(crate) fn note_fork(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
    }

    /// Random bytes, the same for the same seed.
    pub(crate) fn fill_random(&self, bytes: &mut [u8]) {
        lock(&self.random).fill(bytes);
    }

    /// The time clocks show: no clock of the process ever shows less than another has shown before, though cores differ a little.
    pub(crate) fn shown_time(&self) -> Time {
        let now = self.scheduler.now().ps();
        Time::from_ps(now.max(self.shown.fetch_max(now, Ordering::Relaxed)))
    }

    /// What the stable counter shows, which counts picoseconds as CLOCK_MONOTONIC does.
    pub fn counter_ps(&self) -> u64 {
        self.shown_time().ps().saturating_add(clocks::UP_S * 1_000_000_000_000)
    }

    /// The next wait of `thread` for a length of time ends at `deadline`: it began before the process was saved.
    pub(crate) fn resume_wait(&self, thread: ThreadNumber, deadline: Time) {
        *lock(&self.resumed) = Some((thread, deadline));
    }

    /// The wait of `thread` that goes on where it was is over.
    pub(crate) fn forget_resumed(&self, thread: ThreadNumber) {
        lock(&self.resumed).take_if(|(of, _)| *of == thread);
    }

    /// When the wait ends that this host thread's guest thread makes again, if it does.
    fn take_resumed(&self) -> Option<Time> {
        let mut resumed = lock(&self.resumed);
        let (thread, deadline) = (*resumed)?;
        (current()?.thread == thread).then(|| {
            *resumed = None;
            deadline
        })
    }

    /// What the next random bytes come from.
    pub(crate) fn random_state(&self) -> u64 {
        lock(&self.random).state()
    }

    /// Goes on where a saved process was: what its next random bytes come from, the latest time its clocks have shown.
    pub(crate) fn resume(&self, random: u64, shown_ps: u64, timers: Timers) {
        *lock(&self.random) = Random::new(random);
        self.shown.store(shown_ps, Ordering::Relaxed);
        *lock(&self.timers) = timers;
    }

    /// When the next timer expires.
    pub fn next_timer(&self) -> Option<Time> {
        lock(&self.timers).next()
    }

    /// Expires the timers that are due at `now`. True if signals were sent.
    pub fn expire_timers(&self, now: Time) -> bool {
        timers::expire(self, now)
    }

    /// True if something outside of this process may make one of the files ready.
    pub fn reaches_outside(&self, files: &[AwaitedFile]) -> bool {
        files.iter().any(|file| waits::reaches_outside(self, file.descriptor))
    }
}

/// The thread of the process that this host thread runs.
#[derive(Clone)]
pub(crate) struct Context {
    pub simulation: Arc<Simulation>,
    pub thread: ThreadNumber,
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// What this host thread runs in simulated time, if it does.
pub(crate) fn current() -> Option<Context> {
    CURRENT.with_borrow(Clone::clone)
}

/// From here on this host thread runs the thread in `context`.
pub(crate) fn enter(context: Context) {
    CURRENT.set(Some(context));
}
