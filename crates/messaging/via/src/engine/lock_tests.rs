//! Tests of the lock with real threads. `tests/ring_model.rs` checks all interleavings of a few steps.

use super::asymmetric::is_available;
use super::lock::Lock;
use std::time::Duration;

fn increment_concurrently(threads: u64, rounds: u64) {
    let lock = Lock::new(0u64);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..rounds).for_each(|_| *lock.lock() += 1));
        }
    });
    assert_eq!(*lock.lock(), threads * rounds);
}

#[test]
fn increments_under_the_lock_are_not_lost() {
    increment_concurrently(2, 20_000);
    increment_concurrently(4, 20_000);
}

#[test]
fn increments_are_not_lost_while_the_lock_changes_its_owner() {
    // The threads are short-lived, so that the lock has an owner during most increments.
    (0..300).for_each(|_| increment_concurrently(3, 20));
}

#[test]
fn the_only_user_of_a_lock_owns_it_after_the_first_use() {
    let lock = Lock::new(0);
    assert!(!lock.lock().by_owner());
    assert_eq!(lock.lock().by_owner(), is_available());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!lock.lock().by_owner());
            assert_eq!(lock.lock().by_owner(), is_available());
        });
    });
}

/// Whether taking the lock again in the thread that holds it panics.
fn relocking_panics(lock: &Lock<u32>) -> bool {
    let _guard = lock.lock();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| *lock.lock() += 1)).is_err()
}

#[test]
fn the_lock_is_not_reentrant_for_any_kind_of_acquisition() {
    let lock = Lock::new(0);
    // The first acquisition exchanges the lock word; in the second, the thread is the owner.
    assert!(relocking_panics(&lock) && relocking_panics(&lock));
    for _ in 0..2 * super::lock::MAX_OWNERS {
        // The thread takes over ownership if a slot is free.
        std::thread::scope(|scope| {
            _ = scope.spawn(|| assert!(relocking_panics(&lock) && relocking_panics(&lock)))
        });
    }
    assert_eq!(*lock.lock(), 0);
}

#[test]
fn the_lock_is_not_reentrant_while_another_thread_waits() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lock = Lock::new(0);
        // From the second acquisition on, this thread is the owner.
        drop(lock.lock());
        std::thread::scope(|scope| {
            let guard = lock.lock();
            let other = scope.spawn(|| *lock.lock() += 1);
            // Give the other thread time to take over ownership.
            std::thread::sleep(Duration::from_millis(100));
            let again = || _ = lock.lock();
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(again)).is_err();
            drop(guard);
            other.join().unwrap();
            sender.send(panicked).unwrap();
        });
    });
    assert_eq!(
        receiver.recv_timeout(Duration::from_secs(20)),
        Ok(true),
        "a thread that holds the lock waits for itself"
    );
}
