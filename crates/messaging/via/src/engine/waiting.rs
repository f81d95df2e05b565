//! Adaptive waiting: spins for a short time learned from earlier waits, then sleeps until a bell rings.
//!
//! Source: futex(2), futex_waitv (Linux 5.16, Documentation/userspace-api/futex2.rst), poll(2); adaptive spinning as in
//! Karlin et al., "Empirical studies of competitive spinning for a shared-memory multiprocessor", SOSP 1991.

use crate::futex::wake_all;
use crate::provider::Bell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest spin, ns: about the cost of going to sleep and waking up.
const MAX_SPIN_NS: u32 = 30_000;
/// The shortest spin, ns: one round of polling.
const MIN_SPIN_NS: u32 = 500;
/// The maximum sleep where the kernel cannot wake the thread for everything that it waits for.
const MAX_BLIND_SLEEP: Duration = Duration::from_millis(1);
/// The kernel waits for at most 128 futexes at once; one is the local bell.
const MAX_WORDS: usize = 127;

/// The deadline of a timeout that starts now. `None` means no deadline.
pub(crate) fn deadline_after(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// The spin time before sleeping, learned from previous waits.
pub(crate) struct AdaptiveSpin {
    ns: AtomicU32,
}

impl AdaptiveSpin {
    pub(crate) fn new() -> AdaptiveSpin {
        AdaptiveSpin { ns: AtomicU32::new(MAX_SPIN_NS) }
    }

    fn limit(&self) -> Duration {
        Duration::from_nanos(u64::from(self.ns.load(Ordering::Relaxed)))
    }

    fn learn(&self, spinning_was_enough: bool) {
        let ns = self.ns.load(Ordering::Relaxed);
        let ns = if spinning_was_enough { (ns * 2).min(MAX_SPIN_NS) } else { (ns / 2).max(MIN_SPIN_NS) };
        self.ns.store(ns, Ordering::Relaxed);
    }
}

/// A bell within this process. Other threads and the provider's threads wake a sleeper with it.
pub(crate) struct LocalBell {
    word: AtomicU32,
    /// An eventfd, for sleepers that wait on file descriptors.
    event: OnceLock<OwnedFd>,
}

impl LocalBell {
    pub(crate) fn new() -> LocalBell {
        LocalBell { word: AtomicU32::new(0), event: OnceLock::new() }
    }

    pub(crate) fn value(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    pub(crate) fn ring(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
        wake_all(&self.word, true);
        if let Some(event) = self.event.get() {
            let one = 1u64.to_ne_bytes();
            // SAFETY: writes eight bytes of a local array to an event descriptor owned by `self`.
            unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    fn event(&self) -> Option<&OwnedFd> {
        if self.event.get().is_none() {
            // SAFETY: only creates a new descriptor.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd >= 0 {
                // SAFETY: the descriptor was just opened and has no other owner.
                let _ = self.event.set(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        self.event.get()
    }
}

/// A waiter that can announce its sleep.
pub(crate) trait Sleeper {
    fn bell(&self) -> &LocalBell;
    /// Announces the sleep and adds the bells to sleep on.
    fn arm(&mut self, bells: &mut Vec<Bell>);
    /// Withdraws the announcement.
    fn disarm(&mut self);
}

/// Waits until `ready` returns a value or the deadline passes: spins first, then sleeps.
pub(crate) fn wait<T>(
    spin: &AdaptiveSpin,
    deadline: Option<Instant>,
    mut ready: impl FnMut() -> Option<T>,
    mut sleeper: impl Sleeper,
) -> Option<T> {
    let begin = Instant::now();
    let spin_end = begin + spin.limit();
    loop {
        for _ in 0..16 {
            if let Some(found) = ready() {
                spin.learn(true);
                return Some(found);
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return None;
        }
        if now >= spin_end {
            break;
        }
    }
    spin.learn(false);
    let mut bells = Vec::new();
    loop {
        let heard = sleeper.bell().value();
        bells.clear();
        sleeper.arm(&mut bells);
        let mut found = ready();
        if found.is_none() {
            sleep(sleeper.bell(), heard, &bells, deadline);
            found = ready();
        }
        sleeper.disarm();
        if found.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return found;
        }
    }
}

/// Whether there are more futex words than the kernel can wait for at once. Further words can only be polled.
pub(crate) fn has_too_many(bells: &[Bell]) -> bool {
    bells.len() > MAX_WORDS && matches!(bells.last(), Some(Bell::Word { .. }))
}

/// Sleeps until one of the bells rings, the local bell's value differs from `heard`, or the deadline passes. May return
/// early.
pub(crate) fn sleep(local: &LocalBell, heard: u32, bells: &[Bell], deadline: Option<Instant>) {
    if bells.iter().any(|bell| matches!(bell, Bell::None)) {
        return;
    }
    if bells.iter().any(|bell| matches!(bell, Bell::Readable(_))) {
        return sleep_on_files(local, heard, bells, deadline);
    }
    let words = bells.iter().filter_map(|bell| match bell {
        Bell::Word { word, value } => Some((*word, *value)),
        _ => None,
    });
    sleep_on_words(local, heard, words, bells.len() > MAX_WORDS, deadline);
}

/// The kernel's `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FutexWait {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const FUTEX2_SIZE_U32: u32 = 2;
const FUTEX2_PRIVATE: u32 = 128;

fn sleep_on_words(
    local: &LocalBell,
    heard: u32,
    words: impl Iterator<Item = (*const AtomicU32, u32)>,
    too_many: bool,
    deadline: Option<Instant>,
) {
    let mut waits = Vec::with_capacity(MAX_WORDS + 1);
    let own = FutexWait {
        value: u64::from(heard),
        address: local.word.as_ptr() as u64,
        flags: FUTEX2_SIZE_U32 | FUTEX2_PRIVATE,
        reserved: 0,
    };
    waits.push(own);
    waits.extend(words.take(MAX_WORDS).map(|(word, value)| FutexWait {
        value: u64::from(value),
        address: word as u64,
        flags: FUTEX2_SIZE_U32,
        reserved: 0,
    }));
    let deadline = if too_many { earlier(deadline, Instant::now() + MAX_BLIND_SLEEP) } else { deadline };
    let until = deadline.map(monotonic);
    let timeout = until.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel only reads the array and compares the words. If the memory of a word has been unmapped, the
    // call fails and the caller polls again.
    let outcome = unsafe {
        libc::syscall(libc::SYS_futex_waitv, waits.as_ptr(), waits.len(), 0, timeout, libc::CLOCK_MONOTONIC)
    };
    if outcome < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        sleep_on_one(waits.get(1).unwrap_or(&own), deadline);
    }
}

/// For kernels without futex_waitv: sleeps on one word with a short timeout, so that the others are polled.
fn sleep_on_one(wait: &FutexWait, deadline: Option<Instant>) {
    let pause = deadline.map_or(MAX_BLIND_SLEEP, |deadline| {
        deadline.saturating_duration_since(Instant::now()).min(MAX_BLIND_SLEEP)
    });
    let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
    // SAFETY: the kernel only compares the word, as above.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            wait.address,
            libc::FUTEX_WAIT,
            wait.value as u32,
            &raw const pause,
            0,
            0,
        );
    }
}

fn sleep_on_files(local: &LocalBell, heard: u32, bells: &[Bell], deadline: Option<Instant>) {
    let mut files: Vec<libc::pollfd> = bells
        .iter()
        .filter_map(|bell| match bell {
            Bell::Readable(fd) => Some(libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }),
            _ => None,
        })
        .collect();
    let mut limit = deadline;
    match local.event() {
        Some(event) => files.push(libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 }),
        None => limit = earlier(limit, Instant::now() + MAX_BLIND_SLEEP),
    }
    if local.value() != heard {
        return;
    }
    let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array is valid for the given length; a closed descriptor is reported in its entry.
    unsafe { libc::ppoll(files.as_mut_ptr(), files.len() as libc::nfds_t, timeout, std::ptr::null()) };
    if let Some(event) = local.event.get() {
        let mut count = [0u8; 8];
        // SAFETY: reads eight bytes into a local array; the descriptor is nonblocking.
        unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

fn earlier(deadline: Option<Instant>, other: Instant) -> Option<Instant> {
    Some(deadline.map_or(other, |deadline| deadline.min(other)))
}

/// The deadline on the kernel's monotonic clock.
fn monotonic(deadline: Instant) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the given structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let left = deadline.saturating_duration_since(Instant::now());
    let ns = now.tv_nsec + i64::from(left.subsec_nanos());
    libc::timespec {
        tv_sec: now
            .tv_sec
            .saturating_add(i64::try_from(left.as_secs()).unwrap_or(i64::MAX))
            .saturating_add(ns / 1_000_000_000),
        tv_nsec: ns % 1_000_000_000,
    }
}
