//! Locks for a process that may fork: the locks of the standard library, with a common gate that a fork closes. Source:
//! fork(2): only the calling thread exists in the child, and locks that other threads hold stay locked.
//!
//! A thread enters the gate before it waits for a lock and leaves it after releasing its last lock. [`quiesce`] closes
//! the gate and waits until all threads have left. Then every lock is free, regardless of lock order. `clippy.toml` of
//! the crates that run a guest forbids the lock types of the standard library, so that new locks use these.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "the replacements wrap them")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{self, LockResult, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::host::host_call;

const FUTEX_WAIT_PRIVATE: u64 = 128;
const FUTEX_WAKE_PRIVATE: u64 = 129;

/// Waits until `word` differs from `value`; may wake spuriously.
fn wait_for_change(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let arguments = [word.as_ptr() as u64, FUTEX_WAIT_PRIVATE, value.into(), limit as u64, 0, 0];
    // SAFETY: the word and the timeout are live during the call, which writes to neither.
    let _ = unsafe { host_call(libc::SYS_futex, arguments) };
}

fn wake_all(word: &AtomicU32) {
    let arguments = [word.as_ptr() as u64, FUTEX_WAKE_PRIVATE, i32::MAX as u64, 0, 0, 0];
    // SAFETY: the word is live, and the call accesses nothing else.
    let _ = unsafe { host_call(libc::SYS_futex, arguments) };
}

/// The number of threads inside the gate, and the flag [`CLOSED`].
static GATE: AtomicU32 = AtomicU32::new(0);
/// Set while a fork is pending or in progress; no thread may enter.
const CLOSED: u32 = 1 << 31;

thread_local! {
    /// The number of locks that this host thread holds or waits for. It is constant-initialized and has no destructor,
    /// because fault handlers access it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Proof that this host thread is inside the gate. A thread inside may take further locks.
#[derive(Debug)]
struct GateGuard(PhantomData<*const ()>);

impl GateGuard {
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
    let mut state = GATE.load(Ordering::Relaxed);
    loop {
        if state & CLOSED != 0 {
            wait_for_change(&GATE, state, None);
            state = GATE.load(Ordering::Relaxed);
            continue;
        }
        match GATE.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => state = now,
        }
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 && GATE.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            wake_all(&GATE);
        }
    }
}

/// While this value exists, no other thread holds a lock, in the parent and in the child.
pub struct Quiesced(PhantomData<*const ()>);

/// Waits until no other thread holds one of these locks, and keeps other threads from taking one.
///
/// # Panics
/// If the caller holds a lock, because it would wait for itself.
pub fn quiesce() -> Quiesced {
    assert_eq!(DEPTH.get(), 0, "a thread forks while it holds a lock");
    let mut state = GATE.load(Ordering::Relaxed);
    loop {
        if state & CLOSED != 0 {
            // Another thread is forking.
            wait_for_change(&GATE, state, None);
            state = GATE.load(Ordering::Relaxed);
            continue;
        }
        match GATE.compare_exchange_weak(state, state | CLOSED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => state = now,
        }
    }
    loop {
        let state = GATE.load(Ordering::Acquire);
        if state == CLOSED {
            break;
        }
        wait_for_change(&GATE, state, None);
    }
    // The forking thread may take any lock.
    DEPTH.set(1);
    Quiesced(PhantomData)
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        DEPTH.set(0);
        GATE.store(0, Ordering::Release);
        wake_all(&GATE);
    }
}

fn map_guard<G, H>(result: LockResult<G>, make: impl FnOnce(G) -> H) -> LockResult<H> {
    match result {
        Ok(guard) => Ok(make(guard)),
        Err(poisoned) => Err(PoisonError::new(make(poisoned.into_inner()))),
    }
}

/// A [`std::sync::Mutex`] that a forked child never finds locked.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The guard of a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    // Fields drop in this order: the lock is released before the thread leaves the gate.
    guard: sync::MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    _inside: GateGuard,
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Acquires the lock.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the lock is acquired nevertheless.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let inside = GateGuard::enter();
        map_guard(self.0.lock(), |guard| MutexGuard { guard, mutex: self, _inside: inside })
    }

    /// Accesses the value without locking, since the borrow is exclusive.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
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

/// A [`std::sync::RwLock`] that a forked child never finds locked.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// The read guard of a [`RwLock`].
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    guard: sync::RwLockReadGuard<'a, T>,
    _inside: GateGuard,
}

/// The write guard of a [`RwLock`].
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    guard: sync::RwLockWriteGuard<'a, T>,
    _inside: GateGuard,
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Acquires the lock for reading.
    ///
    /// # Errors
    /// A thread panicked while it wrote; the lock is acquired nevertheless.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let inside = GateGuard::enter();
        map_guard(self.0.read(), |guard| RwLockReadGuard { guard, _inside: inside })
    }

    /// Acquires the lock for writing.
    ///
    /// # Errors
    /// A thread panicked while it wrote; the lock is acquired nevertheless.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let inside = GateGuard::enter();
        map_guard(self.0.write(), |guard| RwLockWriteGuard { guard, _inside: inside })
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

/// A [`std::sync::Condvar`] for a [`Mutex`] of this module. Waiting threads are outside the gate.
#[derive(Debug, Default)]
pub struct Condvar(AtomicU32);

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Releases the lock, waits for a notification, and acquires the lock again; may wake spuriously. The caller must
    /// hold no other lock.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the lock is acquired nevertheless.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_with_timeout(guard, None)
    }

    /// Waits while `condition` is true, but not much longer than `timeout`.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the lock is acquired nevertheless.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        let start = Instant::now();
        while condition(&mut guard) {
            let Some(rest) = timeout.checked_sub(start.elapsed()) else { break };
            guard = self.wait_with_timeout(guard, Some(rest))?;
        }
        Ok(guard)
    }

    fn wait_with_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> LockResult<MutexGuard<'a, T>> {
        debug_assert_eq!(DEPTH.get(), 1, "a fork would deadlock: this thread waits while it holds a lock");
        let mutex = guard.mutex;
        // A notification after the lock is released changes the word, so the wait below returns at once.
        let notifications = self.0.load(Ordering::Relaxed);
        drop(guard);
        wait_for_change(&self.0, notifications, timeout);
        mutex.lock()
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        wake_all(&self.0);
    }
}

/// A [`std::sync::LazyLock`] that a forked child never finds half initialized.
pub struct Lazy<T> {
    value: OnceLock<T>,
    init: fn() -> T,
}

impl<T> Lazy<T> {
    /// Creates a value that `init` computes on first access.
    pub const fn new(init: fn() -> T) -> Self {
        Self { value: OnceLock::new(), init }
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.get().unwrap_or_else(|| {
            let _inside = GateGuard::enter();
            self.value.get_or_init(self.init)
        })
    }
}

/// A lock that fault handlers may take. It must be held only for one or two host calls.
#[derive(Debug, Default)]
pub struct SpinLock(AtomicBool);

/// The guard of a [`SpinLock`].
pub struct SpinGuard<'a> {
    lock: &'a SpinLock,
    _inside: GateGuard,
}

impl SpinLock {
    /// Acquires the lock.
    pub fn lock(&self) -> SpinGuard<'_> {
        let inside = GateGuard::enter();
        while self.0.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        SpinGuard { lock: self, _inside: inside }
    }
}

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        self.lock.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// The lock operations of the test threads, which also run once in each forked child.
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
            // Release out of order: the thread leaves the gate with its last lock, not with the first.
            let second = self.other.lock().unwrap();
            drop(first);
            let read = self.shared.read().unwrap();
            drop(second);
            drop(self.spin.lock());
            drop(read);
        }

        fn write(&self) {
            *self.shared.write().unwrap() += 1;
        }

        fn wait(&self) {
            let guard = self.mutex.lock().unwrap();
            let old_value = *guard;
            let timeout = Duration::from_millis(1);
            drop(self.changed.wait_timeout_while(guard, timeout, |now| *now == old_value).unwrap());
        }
    }

    /// Whether `act` completes in a forked child.
    fn completes_in_child(act: impl FnOnce()) -> bool {
        let quiesced = quiesce();
        // SAFETY: the child takes only these locks and exits without running the destructors of the test.
        let child = unsafe { libc::fork() };
        drop(quiesced);
        if child == 0 {
            // SAFETY: the alarm terminates a child that hangs.
            unsafe { libc::alarm(20) };
            act();
            // SAFETY: terminates the child immediately.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child belongs to this process, and `status` is valid for writes.
        let result = unsafe { libc::waitpid(child, &mut status, 0) };
        result == child && status == 0
    }

    #[test]
    fn every_lock_is_free_in_a_forked_child() {
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
                let rounds_before = rounds.load(Ordering::Relaxed);
                hung += usize::from(!completes_in_child(|| {
                    work.lock_each();
                    work.write();
                }));
                if hung > 0 {
                    break;
                }
                // Wait until the other threads make progress again.
                while rounds.load(Ordering::Relaxed) == rounds_before {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(hung, 0, "children hung");
        });
    }

    #[test]
    fn a_lazy_value_is_complete_in_a_forked_child() {
        static STARTED: AtomicBool = AtomicBool::new(false);
        static MADE: Lazy<u64> = Lazy::new(|| {
            STARTED.store(true, Ordering::Release);
            // Long enough for the fork to wait at the gate.
            std::thread::sleep(Duration::from_millis(20));
            7
        });
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*MADE, 7));
            while !STARTED.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(completes_in_child(|| assert_eq!(*MADE, 7)), "the child hung");
        });
    }

    #[test]
    fn two_forks_at_once_wait_for_each_other() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20).for_each(|_| assert!(completes_in_child(|| {}))));
            }
        });
    }
}
