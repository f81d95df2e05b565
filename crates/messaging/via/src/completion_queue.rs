//! Completion queues: one place to look for the completions of many work queues.
//! Not where completions are kept: a notification says which queue of which VI has one.
//! Source: VIA, completion queues.

use crate::engine::completion_ring::{CompletionRing, Queue};
use crate::engine::futures::NotificationFuture;
use crate::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// A completion queue. Work queues are tied to it when a VI is created.
pub struct CompletionQueue {
    pub(crate) ring: Arc<CompletionRing>,
}

impl CompletionQueue {
    /// The next notification: the VI's number and which of its queues has a completion to collect.
    pub fn done(&self) -> Option<(u32, Queue)> {
        self.ring.done()
    }

    /// Waits for the next notification: spins shortly, then sleeps. `None` waits for ever.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(u32, Queue), Error> {
        self.ring.wait(timeout)
    }

    /// The next notification, as a future for any executor.
    pub fn notification(&self) -> NotificationFuture<'_> {
        NotificationFuture::new(&self.ring)
    }

    /// Whether a VI is tied to it.
    pub fn has_vis(&self) -> bool {
        self.ring.is_tied()
    }

    /// How many notifications it holds.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Makes it hold `entries`; not fewer than are in it now.
    pub fn resize(&self, entries: usize) -> Result<(), Error> {
        self.ring.resize(entries)
    }
}
