//! Counters of completed operations.

use super::completion::Watched;
use crate::abi::constants::EAVAIL;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter.
#[derive(Default)]
pub(crate) struct Counter {
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) watched: Watched,
}

impl Counter {
    /// Counts an operation.
    pub(crate) fn count(&self, has_failed: bool) {
        let counter = if has_failed { &self.failed } else { &self.completed };
        counter.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until `threshold` operations are complete. `None` waits indefinitely.
    ///
    /// # Errors
    /// `ETIMEDOUT`; `EAVAIL` if an operation fails in the meantime.
    pub(crate) fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<(), i32> {
        let failed = self.failed.load(Ordering::Acquire);
        let outcome = || {
            if self.completed.load(Ordering::Acquire) >= threshold {
                return Some(Ok(()));
            }
            (self.failed.load(Ordering::Acquire) != failed).then_some(Err(EAVAIL))
        };
        self.watched.wait_for(timeout, outcome).unwrap_or(Err(libc::ETIMEDOUT))
    }
}
