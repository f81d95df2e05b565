//! A lock that fault handlers may take.
//! Not for anything longer than a host call or two.
//! Source: none.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};

/// A spin lock.
#[derive(Debug, Default)]
pub(super) struct SpinLock(AtomicBool);

/// Holds a [`SpinLock`] until dropped.
pub(super) struct Held<'a>(&'a SpinLock);

impl SpinLock {
    /// Waits for the lock and takes it.
    pub fn hold(&self) -> Held<'_> {
        while self.0.swap(true, Ordering::Acquire) {
            hint::spin_loop();
        }
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}
