//! Limits on the resources of clients, and the budget of all clients' buffers.

use crate::error::ServerError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Memory that each client may use outside the budget for its read buffer and short requests, bytes.
pub(crate) const FREE_BYTES: usize = 64 << 10;

/// The least limit on commands and replies, bytes.
const MIN_BYTES: usize = 1 << 10;

/// Limits on the resources of clients. The limits on commands and replies must be at least 1 KiB, that on buffers 64
/// KiB.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connected clients.
    pub clients: usize,
    /// Length of a command, and of the commands of a transaction together, bytes. A word is counted as 32 bytes plus
    /// its length.
    pub command_bytes: usize,
    /// Length of a reply, bytes. A client with this many unread bytes is not served until it reads.
    pub reply_bytes: usize,
    /// The maximum number of commands of a transaction, of watched keys, and of pipelined changes committed together.
    pub pipeline: usize,
    /// Memory of all clients' commands and replies, beyond 64 KiB of each for each client, bytes.
    pub buffer_bytes: usize,
    /// A client is disconnected if it takes longer to send or read 64 KiB, or the rest of a command or reply.
    pub stall: Duration,
    /// A client is disconnected if it takes longer to complete the TLS handshake and authenticate.
    pub login: Duration,
}

impl Default for Limits {
    /// 1000 clients, commands and replies of 16 MiB, 1000 pipelined changes, 256 MiB of buffers, 30 s for 64 KiB, 10 s to
    /// authenticate.
    fn default() -> Self {
        Self {
            clients: 1000,
            command_bytes: 16 << 20,
            reply_bytes: 16 << 20,
            pipeline: 1000,
            buffer_bytes: 256 << 20,
            stall: Duration::from_secs(30),
            login: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Checks that a server with these limits can serve clients.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        for (what, given, least) in [
            ("clients", self.clients, 1),
            ("command_bytes", self.command_bytes, MIN_BYTES),
            ("reply_bytes", self.reply_bytes, MIN_BYTES),
            ("pipeline", self.pipeline, 1),
            ("buffer_bytes", self.buffer_bytes, FREE_BYTES),
        ] {
            if given < least {
                return Err(ServerError::Limit { what, given, least });
            }
        }
        Ok(())
    }
}

/// The memory of all clients' buffers.
#[derive(Debug)]
pub(crate) struct Budget {
    free: AtomicUsize,
}

impl Budget {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: AtomicUsize::new(bytes) })
    }

    /// The free bytes.
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}

/// A client's share of the budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    taken: usize,
}

impl Share {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), taken: 0 }
    }

    /// An empty share of the same budget.
    pub fn sibling(&self) -> Self {
        Self::new(&self.budget)
    }

    /// Grows or shrinks the share to `bytes`. Returns false and changes nothing if the budget is exhausted.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let needed = bytes.saturating_sub(FREE_BYTES);
        if needed > self.taken {
            let more = needed - self.taken;
            let taken = self
                .budget
                .free
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(more));
            if taken.is_err() {
                return false;
            }
        } else {
            self.budget.free.fetch_add(self.taken - needed, Ordering::Relaxed);
        }
        self.taken = needed;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_are_returned() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (Share::new(&budget), Share::new(&budget));
        assert!(one.resize(FREE_BYTES) && other.resize(10));
        assert_eq!(budget.free(), 100);
        assert!(one.resize(FREE_BYTES + 60));
        assert!(!other.resize(FREE_BYTES + 41));
        assert!(other.resize(FREE_BYTES + 40));
        assert_eq!(budget.free(), 0);
        drop(one);
        assert_eq!(budget.free(), 60);
        assert!(other.resize(0));
        assert_eq!(budget.free(), 100);
    }
}
