//! Completion queues, which collect notifications of completions on many work queues. A notification names the work
//! queue; the completion itself stays there.
//!
//! Source: VIA, completion queues.

use crate::engine::completion_ring::{CompletionRing, Queue};
use crate::engine::futures::NotificationFuture;
use crate::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// A completion queue. Work queues are attached to it when their VI is created.
pub struct CompletionQueue {
    pub(crate) ring: Arc<CompletionRing>,
}

impl CompletionQueue {
    /// Takes the next notification: the VI's number and the queue that has a completion.
    pub fn done(&self) -> Option<(u32, Queue)> {
        self.ring.done()
    }

    /// Waits for the next notification: spins briefly, then sleeps. `None` waits indefinitely.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(u32, Queue), Error> {
        self.ring.wait(timeout)
    }

    /// The next notification as a future, for any executor.
    pub fn notification(&self) -> NotificationFuture<'_> {
        NotificationFuture::new(&self.ring)
    }

    /// Whether any VI is attached.
    pub fn has_vis(&self) -> bool {
        self.ring.has_vis()
    }

    /// The capacity, notifications.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Changes the capacity. It cannot be less than the number of notifications in the queue.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for 0 entries; [`Error::Resource`] for more than the NIC supports or fewer than the
    /// queue holds.
    pub fn resize(&self, entries: usize) -> Result<(), Error> {
        self.ring.resize(entries)
    }
}
