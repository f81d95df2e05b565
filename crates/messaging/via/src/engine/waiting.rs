//! Adaptive waiting: spins for a short time learned from earlier waits, then sleeps until it is woken.
//!
//! Source: futex(2), futex_waitv (Linux 5.16, Documentation/userspace-api/futex2.rst), poll(2); adaptive spinning as in
//! Karlin et al., "Empirical studies of competitive spinning for a shared-memory multiprocessor", SOSP 1991.

use crate::futex::wake_all;
use crate::provider::WakeSource;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest spin, ns: about the cost of going to sleep and waking up.
const MAX_SPIN_NS: u32 = 30_000;
/// The shortest spin, ns: one round of polling.
const MIN_SPIN_NS: u32 = 500;
/// The maximum sleep if the kernel cannot wake the thread for all events that it waits for.
const MAX_BLIND_SLEEP: Duration = Duration::from_millis(1);
/// The kernel waits for at most 128 futexes at once; one is that of the [`WakeEvent`].
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

/// Wakes a sleeper from other threads of this process, including the provider's.
pub(crate) struct WakeEvent {
    word: AtomicU32,
    /// An eventfd, for sleepers that wait on file descriptors.
    event: OnceLock<OwnedFd>,
}

impl WakeEvent {
    pub(crate) fn new() -> WakeEvent {
        WakeEvent { word: AtomicU32::new(0), event: OnceLock::new() }
    }

    pub(crate) fn value(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    pub(crate) fn signal(&self) {
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
    fn wake_event(&self) -> &WakeEvent;
    /// Announces the sleep and adds the sources to sleep on.
    fn arm(&mut self, wake_sources: &mut Vec<WakeSource>);
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
    let mut wake_sources = Vec::new();
    loop {
        let seen = sleeper.wake_event().value();
        wake_sources.clear();
        sleeper.arm(&mut wake_sources);
        let mut found = ready();
        if found.is_none() {
            sleep(sleeper.wake_event(), seen, &wake_sources, deadline);
            found = ready();
        }
        sleeper.disarm();
        if found.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return found;
        }
    }
}

/// Whether there are more futex words than the kernel can wait for at once. Further words can only be polled.
pub(crate) fn has_too_many(wake_sources: &[WakeSource]) -> bool {
    wake_sources.len() > MAX_WORDS && matches!(wake_sources.last(), Some(WakeSource::Word { .. }))
}

/// Sleeps until one of the sources has an event, the value of `local` differs from `seen`, or the deadline passes. May return
/// early.
pub(crate) fn sleep(local: &WakeEvent, seen: u32, wake_sources: &[WakeSource], deadline: Option<Instant>) {
    if wake_sources.iter().any(|source| matches!(source, WakeSource::None)) {
        return;
    }
    if wake_sources.iter().any(|source| matches!(source, WakeSource::Readable(_))) {
        return sleep_on_files(local, seen, wake_sources, deadline);
    }
    let words = wake_sources.iter().filter_map(|source| match source {
        WakeSource::Word { word, value } => Some((*word, *value)),
        _ => None,
    });
    sleep_on_words(local, seen, words, wake_sources.len() > MAX_WORDS, deadline);
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
    local: &WakeEvent,
    seen: u32,
    words: impl Iterator<Item = (*const AtomicU32, u32)>,
    too_many: bool,
    deadline: Option<Instant>,
) {
    let mut waits = Vec::with_capacity(MAX_WORDS + 1);
    let own = FutexWait {
        value: u64::from(seen),
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

fn sleep_on_files(local: &WakeEvent, seen: u32, wake_sources: &[WakeSource], deadline: Option<Instant>) {
    let mut files: Vec<libc::pollfd> = wake_sources
        .iter()
        .filter_map(|source| match source {
            WakeSource::Readable(fd) => Some(libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }),
            _ => None,
        })
        .collect();
    let mut limit = deadline;
    match local.event() {
        Some(event) => files.push(libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 }),
        None => limit = earlier(limit, Instant::now() + MAX_BLIND_SLEEP),
    }
    if local.value() != seen {
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
