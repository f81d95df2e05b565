//! The state that all clients of a server share.

use crate::command::Lengths;
use crate::commit::{CommitCounts, Queue};
use crate::cursors::Cursors;
use crate::limits::{Budget, Limits};
use crate::security::Password;
use crate::watch::Watches;
use longma_locks::IgnorePoison;
use longma_zoned::Store;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The number of clients that may read from the map at once, because each may hold a large value.
const READERS: usize = 16;
/// The number of clients that may scan at once. Other reads do not wait for them.
const SCANNERS: usize = 4;

/// The state that all clients share.
pub(crate) struct Shared<D> {
    pub store: Store<D>,
    pub lengths: Lengths,
    pub limits: Limits,
    pub password: Option<Password>,
    pub budget: Arc<Budget>,
    pub queue: Queue,
    pub watches: Watches,
    pub cursors: Cursors,
    pub readers: Gate,
    pub scanners: Gate,
    pub counts: Counts,
    pub commits: CommitCounts,
    pub sync_every: Option<Duration>,
    pub port: u16,
    pub started: Instant,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections refused because there were too many.
    pub refused: AtomicU64,
    /// Clients connected now.
    pub clients: AtomicU64,
    /// Requests.
    pub requests: AtomicU64,
    /// Clients disconnected for missing a deadline or exceeding a limit.
    pub disconnected: AtomicU64,
}

/// A semaphore: a limited number of threads may run `pass` at once.
#[derive(Debug)]
pub(crate) struct Gate {
    free: Mutex<usize>,
    is_free: Condvar,
}

impl Gate {
    fn new(threads: usize) -> Self {
        Self { free: Mutex::new(threads), is_free: Condvar::new() }
    }

    /// Runs `work` as soon as fewer threads than the limit are inside.
    pub fn pass<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Leaves the gate, even after a panic.
        struct Permit<'g>(&'g Gate);
        impl Drop for Permit<'_> {
            fn drop(&mut self) {
                *self.0.free.lock().ignore_poison() += 1;
                self.0.is_free.notify_one();
            }
        }
        let mut free = self.free.lock().ignore_poison();
        while *free == 0 {
            free = self.is_free.wait(free).ignore_poison();
        }
        *free -= 1;
        drop(free);
        let _permit = Permit(self);
        work()
    }
}

impl<D: longma_zoned::ZonedDevice> Shared<D> {
    /// The initial state of a server.
    pub fn new(
        store: Store<D>,
        limits: Limits,
        password: Option<Password>,
        sync_every: Option<Duration>,
        port: u16,
    ) -> Self {
        let (key, value) = store.limits();
        Self {
            lengths: Lengths { key, value },
            limits,
            password,
            budget: Budget::new(limits.buffer_bytes),
            queue: Queue::default(),
            watches: Watches::default(),
            cursors: Cursors::default(),
            readers: Gate::new(READERS),
            scanners: Gate::new(SCANNERS),
            counts: Counts::default(),
            commits: CommitCounts::default(),
            sync_every,
            port,
            started: Instant::now(),
            store,
        }
    }

    /// The text of INFO.
    pub fn info(&self) -> String {
        let (counts, commits) = (&self.counts, &self.commits);
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let durability = if self.sync_every.is_some() { "relaxed" } else { "each_reply" };
        let mut text = String::new();
        for (section, fields) in [
            (
                "Server",
                vec![
                    ("longma_version", env!("CARGO_PKG_VERSION").to_string()),
                    ("process_id", std::process::id().to_string()),
                    ("tcp_port", self.port.to_string()),
                    ("uptime_in_seconds", self.started.elapsed().as_secs().to_string()),
                ],
            ),
            (
                "Clients",
                vec![
                    ("connected_clients", of(&counts.clients).to_string()),
                    ("maxclients", self.limits.clients.to_string()),
                ],
            ),
            (
                "Memory",
                vec![
                    ("buffer_bytes", (self.limits.buffer_bytes - self.budget.free()).to_string()),
                    ("buffer_bytes_limit", self.limits.buffer_bytes.to_string()),
                ],
            ),
            (
                "Persistence",
                vec![
                    ("durability", durability.to_string()),
                    ("changes_are_refused", u8::from(commits.is_stopped.load(Ordering::Relaxed)).to_string()),
                    ("commits", of(&commits.groups).to_string()),
                    ("committed_commands", of(&commits.units).to_string()),
                ],
            ),
            (
                "Stats",
                vec![
                    ("total_connections_received", of(&counts.connections).to_string()),
                    ("rejected_connections", of(&counts.refused).to_string()),
                    ("total_commands_processed", of(&counts.requests).to_string()),
                    ("limit_disconnections", of(&counts.disconnected).to_string()),
                ],
            ),
            ("Keyspace", vec![("db0", format!("keys={},expires=0", self.store.len()))]),
        ] {
            let _ = write!(text, "# {section}\r\n");
            for (name, value) in fields {
                let _ = write!(text, "{name}:{value}\r\n");
            }
            text.push_str("\r\n");
        }
        text
    }
}
