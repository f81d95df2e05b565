//! The locks of a process that may fork: those of the standard library, and a gate in front of all of them that a fork closes.
//! Not the guest's locks, and not those of the host's C library, which looks after its own.
//! Source: fork(2): in the child only the calling thread exists, and a lock that another one held is held for ever.
//!
//! Whoever holds one of these locks is inside the gate, and so is who waits for one. [`quiesce`] lets nobody enter and waits until
//! everybody has left: then every lock there is, is free, whoever made it and whatever the order in which they are taken. So a lock
//! that is added tomorrow is covered by its type; the standard library's are forbidden in the crates that a guest runs in
//! (`clippy.toml` beside their `Cargo.toml`).
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "these are what is to be used in their place"
)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{self, LockResult, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::host::host_call;

const FUTEX_WAIT_PRIVATE: u64 = 128;
const FUTEX_WAKE_PRIVATE: u64 = 129;

/// Waits until `word` is no longer `value`, or for no reason.
fn wait_for_change(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let arguments = [word.as_ptr() as u64, FUTEX_WAIT_PRIVATE, value.into(), limit as u64, 0, 0];
    // SAFETY: the word and the time live as long as the call; it writes to neither.
    let _ = unsafe { host_call(libc::SYS_futex, arguments) };
}

fn wake_all(word: &AtomicU32) {
    let arguments = [word.as_ptr() as u64, FUTEX_WAKE_PRIVATE, i32::MAX as u64, 0, 0, 0];
    // SAFETY: the word is alive; the call touches nothing else.
    let _ = unsafe { host_call(libc::SYS_futex, arguments) };
}

/// How many threads are inside, and [`CLOSED`].
static GATE: AtomicU32 = AtomicU32::new(0);
/// Nobody may enter: a fork is waiting, or under way.
const CLOSED: u32 = 1 << 31;

thread_local! {
    /// How many locks this host thread holds or waits for. Constant and without a destructor: fault handlers come here, too.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// This host thread is inside the gate. For as long as it holds a lock, it may take others.
#[derive(Debug)]
struct Inside(PhantomData<*const ()>);

impl Inside {
    fn enter() -> Self {
        let depth = DEPTH.get();
        if depth == 0 {
            pass_gate();
        }
        DEPTH.set(depth + 1);
        Self(PhantomData)
    }
}

fn pass_gate() {
    let mut seen = GATE.load(Ordering::Relaxed);
    loop {
        if seen & CLOSED != 0 {
            wait_for_change(&GATE, seen, None);
            seen = GATE.load(Ordering::Relaxed);
            continue;
        }
        match GATE.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 && GATE.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            wake_all(&GATE);
        }
    }
}

/// No thread of the process holds a lock, until this is dropped: in the parent and in the child.
pub struct Quiet(PhantomData<*const ()>);

/// Waits until no other thread of the process holds one of these locks, and lets none take one.
///
/// # Panics
/// When the caller holds one: it would wait for itself.
pub fn quiesce() -> Quiet {
    assert_eq!(DEPTH.get(), 0, "a thread that holds a lock forks");
    let mut seen = GATE.load(Ordering::Relaxed);
    loop {
        if seen & CLOSED != 0 {
            // Another thread forks.
            wait_for_change(&GATE, seen, None);
            seen = GATE.load(Ordering::Relaxed);
            continue;
        }
        match GATE.compare_exchange_weak(seen, seen | CLOSED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => seen = now,
        }
    }
    loop {
        let seen = GATE.load(Ordering::Acquire);
        if seen == CLOSED {
            break;
        }
        wait_for_change(&GATE, seen, None);
    }
    // The thread that forks may take any of them.
    DEPTH.set(1);
    Quiet(PhantomData)
}

impl Drop for Quiet {
    fn drop(&mut self) {
        DEPTH.set(0);
        GATE.store(0, Ordering::Release);
        wake_all(&GATE);
    }
}

fn map<G, H>(result: LockResult<G>, make: impl FnOnce(G) -> H) -> LockResult<H> {
    match result {
        Ok(guard) => Ok(make(guard)),
        Err(poisoned) => Err(PoisonError::new(make(poisoned.into_inner()))),
    }
}

/// A [`std::sync::Mutex`] that no child of a fork finds locked.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// Holds a [`Mutex`] until dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    // Dropped in this order: who leaves the gate holds nothing.
    guard: sync::MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    _inside: Inside,
}

impl<T> Mutex<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    ///
    /// # Errors
    /// A thread has panicked while it held it; the lock is taken all the same.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let inside = Inside::enter();
        map(self.0.lock(), |guard| MutexGuard { guard, mutex: self, _inside: inside })
    }

    /// What it protects: nobody else can have it.
    ///
    /// # Errors
    /// A thread has panicked while it held the lock.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A [`std::sync::RwLock`] that no child of a fork finds locked.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// Holds a [`RwLock`] for reading until dropped.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    guard: sync::RwLockReadGuard<'a, T>,
    _inside: Inside,
}

/// Holds a [`RwLock`] for writing until dropped.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    guard: sync::RwLockWriteGuard<'a, T>,
    _inside: Inside,
}

impl<T> RwLock<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until nobody writes, and keeps everybody from it.
    ///
    /// # Errors
    /// A thread has panicked while it wrote; the lock is taken all the same.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let inside = Inside::enter();
        map(self.0.read(), |guard| RwLockReadGuard { guard, _inside: inside })
    }

    /// Waits for the lock and takes it for writing.
    ///
    /// # Errors
    /// A thread has panicked while it wrote; the lock is taken all the same.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let inside = Inside::enter();
        map(self.0.write(), |guard| RwLockWriteGuard { guard, _inside: inside })
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A [`std::sync::Condvar`] for a [`Mutex`] of this module: who waits is outside the gate.
#[derive(Debug, Default)]
pub struct Condvar(AtomicU32);

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Releases the lock, waits until somebody notifies or for no reason, and takes it again. The caller holds no other lock.
    ///
    /// # Errors
    /// A thread has panicked while it held the lock; it is taken all the same.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_at_most(guard, None)
    }

    /// Waits while `condition` holds, but not much longer than `timeout`.
    ///
    /// # Errors
    /// A thread has panicked while it held the lock; it is taken all the same.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        let begun = Instant::now();
        while condition(&mut guard) {
            let Some(rest) = timeout.checked_sub(begun.elapsed()) else { break };
            guard = self.wait_at_most(guard, Some(rest))?;
        }
        Ok(guard)
    }

    fn wait_at_most<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> LockResult<MutexGuard<'a, T>> {
        debug_assert_eq!(DEPTH.get(), 1, "a fork would wait for whoever this thread waits for");
        let mutex = guard.mutex;
        // A notification that comes once the lock is free changes the word.
        let seen = self.0.load(Ordering::Relaxed);
        drop(guard);
        wait_for_change(&self.0, seen, timeout);
        mutex.lock()
    }

    /// Wakes everybody who waits.
    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        wake_all(&self.0);
    }
}

/// A [`std::sync::LazyLock`] that no child of a fork finds half made.
pub struct Lazy<T> {
    made: OnceLock<T>,
    make: fn() -> T,
}

impl<T> Lazy<T> {
    /// One that `make` makes when it is first looked at.
    pub const fn new(make: fn() -> T) -> Self {
        Self { made: OnceLock::new(), make }
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.made.get().unwrap_or_else(|| {
            let _inside = Inside::enter();
            self.made.get_or_init(self.make)
        })
    }
}

/// A lock that fault handlers may take, for no longer than a host call or two.
#[derive(Debug, Default)]
pub struct SpinLock(AtomicBool);

/// Holds a [`SpinLock`] until dropped.
pub struct Held<'a> {
    lock: &'a SpinLock,
    _inside: Inside,
}

impl SpinLock {
    /// Waits for the lock and takes it.
    pub fn hold(&self) -> Held<'_> {
        let inside = Inside::enter();
        while self.0.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        Held { lock: self, _inside: inside }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// What threads do until they are told to stop; what the child of a fork does once.
    struct Work {
        mutex: Mutex<u64>,
        other: Mutex<u64>,
        shared: RwLock<u64>,
        spin: SpinLock,
        changed: Condvar,
    }

    impl Work {
        fn lock_each(&self) {
            *self.mutex.lock().unwrap() += 1;
            self.changed.notify_all();
            let first = self.mutex.lock().unwrap();
            // Out of order: the gate is left with the last lock, not with the first one.
            let second = self.other.lock().unwrap();
            drop(first);
            let read = self.shared.read().unwrap();
            drop(second);
            drop(self.spin.hold());
            drop(read);
        }

        fn write(&self) {
            *self.shared.write().unwrap() += 1;
        }

        fn wait(&self) {
            let seen = self.mutex.lock().unwrap();
            let before = *seen;
            let timeout = Duration::from_millis(1);
            drop(self.changed.wait_timeout_while(seen, timeout, |now| *now == before).unwrap());
        }
    }

    /// True if `act` comes to an end in a forked child.
    fn ends_in_a_child(act: impl FnOnce()) -> bool {
        let quiet = quiesce();
        // SAFETY: the child takes no lock but these and ends without the test's destructors.
        let child = unsafe { libc::fork() };
        drop(quiet);
        if child == 0 {
            // SAFETY: the alarm ends a child that hangs.
            unsafe { libc::alarm(20) };
            act();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's own, and the status is there to be filled.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        waited == child && status == 0
    }

    #[test]
    fn a_child_finds_every_lock_free_whatever_other_threads_do_with_them() {
        let work = Work {
            mutex: Mutex::new(0),
            other: Mutex::new(0),
            shared: RwLock::new(0),
            spin: SpinLock::default(),
            changed: Condvar::new(),
        };
        let stop = AtomicBool::new(false);
        let rounds = AtomicUsize::new(0);
        let until_stopped = |act: &(dyn Fn() + Sync)| {
            while !stop.load(Ordering::Relaxed) {
                act();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| until_stopped(&|| work.lock_each()));
            scope.spawn(|| until_stopped(&|| work.lock_each()));
            scope.spawn(|| until_stopped(&|| work.write()));
            scope.spawn(|| until_stopped(&|| work.wait()));
            let mut hung = 0;
            for _ in 0..50 {
                let before = rounds.load(Ordering::Relaxed);
                hung += usize::from(!ends_in_a_child(|| {
                    work.lock_each();
                    work.write();
                }));
                if hung > 0 {
                    break;
                }
                // The others go on behind the gate.
                while rounds.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(hung, 0, "children hung");
        });
    }

    #[test]
    fn what_is_made_once_is_whole_in_a_child() {
        static STARTED: AtomicBool = AtomicBool::new(false);
        static MADE: Lazy<u64> = Lazy::new(|| {
            STARTED.store(true, Ordering::Release);
            // Long enough for the fork to be waiting.
            std::thread::sleep(Duration::from_millis(20));
            7
        });
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*MADE, 7));
            while !STARTED.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(ends_in_a_child(|| assert_eq!(*MADE, 7)), "the child hung");
        });
    }

    #[test]
    fn two_forks_at_once_wait_for_each_other() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20).for_each(|_| assert!(ends_in_a_child(|| {}))));
            }
        });
    }
}
