//! Group commit: one thread executes the changes of all clients in order of arrival. It commits all changes that
//! arrived during the last flush as one transaction of the map, and clients get their replies when the transaction is
//! durable.
//!
//! Other threads read in the meantime, and see only durable changes. The transaction never conflicts, because no other
//! thread changes the map.

use crate::command::Command;
use crate::execute::write;
use crate::output::Output;
use crate::watch::{WatchedKeys, Watches};
use longma_locks::IgnorePoison;
use longma_zoned::{Store, Transaction, ZonedDevice};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A group has at most this many bytes of commands, except for a single longer job.
const GROUP_BYTES: usize = 4 << 20;

/// The commands of a job.
#[derive(Debug)]
pub(crate) enum Work {
    /// Independent commands, each with its own reply.
    Separate(Vec<Command>),
    /// A transaction. It has one reply, and changes nothing if a watched key has changed.
    Atomic { commands: Vec<Command>, watched: WatchedKeys },
}

/// Changes of one client. The thread that commits them appends the replies to `output`, and sends the job back.
#[derive(Debug)]
pub(crate) struct Job {
    pub work: Work,
    pub bytes: usize,
    pub output: Output,
    pub done: SyncSender<Job>,
}

/// A part of a job that succeeds or fails as a whole.
#[derive(Clone, Copy)]
enum Unit {
    Command(usize),
    Transaction,
}

/// Why a unit is not committed: a message for the client.
type Refusal = String;

impl Job {
    fn units(&self) -> Vec<Unit> {
        match &self.work {
            Work::Separate(commands) => (0..commands.len()).map(Unit::Command).collect(),
            Work::Atomic { .. } => vec![Unit::Transaction],
        }
    }
}

/// Waiting jobs, at most one per client.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    jobs: Mutex<Waiting>,
    is_ready: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// The queue's answer to the committer.
enum Next {
    Group(Vec<Job>),
    /// No job arrived before the time limit.
    Idle,
    Closed,
}

impl Queue {
    /// Adds a job, or drops it if the queue is closed.
    pub fn push(&self, job: Job) {
        let mut waiting = self.jobs.lock().ignore_poison();
        if !waiting.is_closed {
            waiting.jobs.push_back(job);
            self.is_ready.notify_one();
        }
    }

    /// Ends the committer when all jobs are done.
    pub fn close(&self) {
        self.jobs.lock().ignore_poison().is_closed = true;
        self.is_ready.notify_one();
    }

    /// The jobs of the next group.
    fn next(&self, limit: Option<Duration>) -> Next {
        let mut waiting = self.jobs.lock().ignore_poison();
        let deadline = limit.map(|limit| Instant::now() + limit);
        while waiting.jobs.is_empty() {
            if waiting.is_closed {
                return Next::Closed;
            }
            let Some(deadline) = deadline else {
                waiting = self.is_ready.wait(waiting).ignore_poison();
                continue;
            };
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Next::Idle };
            waiting = self.is_ready.wait_timeout(waiting, left).ignore_poison().0;
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(job) = waiting.jobs.front() {
            bytes += job.bytes;
            if bytes > GROUP_BYTES && !group.is_empty() {
                break;
            }
            group.extend(waiting.jobs.pop_front());
        }
        Next::Group(group)
    }
}

/// Drops the waiting jobs when the committer ends, even by a panic, so that no client waits for ever.
struct Abandon<'q>(&'q Queue);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.0.jobs.lock().ignore_poison().jobs.clear();
    }
}

/// Counts of commits.
#[derive(Debug, Default)]
pub(crate) struct CommitCounts {
    /// Transactions of the map.
    pub groups: AtomicU64,
    /// Commands and transactions of clients.
    pub units: AtomicU64,
    /// Whether a failed write has stopped the map. A stopped map accepts no changes until it is opened again.
    pub is_stopped: AtomicBool,
}

/// The thread that changes the map.
pub(crate) struct Committer<'s, D> {
    pub store: &'s Store<D>,
    pub queue: &'s Queue,
    pub watches: &'s Watches,
    pub counts: &'s CommitCounts,
    /// The interval at which changes become durable; `None` if every commit is durable.
    pub sync_every: Option<Duration>,
}

impl<D: ZonedDevice> Committer<'_, D> {
    /// Commits jobs until the queue is closed.
    pub fn run(&self) {
        let _abandon = Abandon(self.queue);
        let (mut last_sync, mut is_dirty) = (Instant::now(), false);
        loop {
            let limit =
                self.sync_every.filter(|_| is_dirty).map(|every| every.saturating_sub(last_sync.elapsed()));
            match self.queue.next(limit) {
                Next::Closed => return,
                Next::Idle => {}
                Next::Group(jobs) => {
                    self.commit(jobs);
                    is_dirty = true;
                }
            }
            if self.sync_every.is_some_and(|every| is_dirty && last_sync.elapsed() >= every) {
                // A failed flush stops the map: the next commit reports it.
                let _ = self.store.sync();
                (last_sync, is_dirty) = (Instant::now(), false);
            }
        }
    }

    /// Commits a group, or if that fails, each of its units, so that one client's failure does not affect the others.
    fn commit(&self, mut jobs: Vec<Job>) {
        let starts: Vec<usize> = jobs.iter_mut().map(|job| job.output.begin()).collect();
        let units: usize = jobs.iter().map(|job| job.units().len()).sum();
        if self.commit_together(&mut jobs).is_err() {
            for (job, start) in jobs.iter_mut().zip(starts) {
                job.output.truncate(start);
                for unit in job.units() {
                    self.commit_alone(job, unit);
                }
            }
        }
        self.counts.units.fetch_add(units as u64, Ordering::Relaxed);
        for job in jobs {
            let done = job.done.clone();
            // Ignore clients that have disconnected.
            let _ = done.send(job);
        }
    }

    fn commit_together(&self, jobs: &mut [Job]) -> Result<(), Refusal> {
        let mut transaction = self.store.transaction();
        let mut changed = HashSet::new();
        for job in jobs {
            for unit in job.units() {
                self.execute(&mut transaction, job, unit, &mut changed)?;
            }
        }
        self.finish(transaction)?;
        self.watches.changed(changed.iter().map(Vec::as_slice));
        Ok(())
    }

    fn commit_alone(&self, job: &mut Job, unit: Unit) {
        let start = job.output.begin();
        let mut transaction = self.store.transaction();
        let mut changed = HashSet::new();
        let committed =
            self.execute(&mut transaction, job, unit, &mut changed).and_then(|()| self.finish(transaction));
        match committed {
            Ok(()) => self.watches.changed(changed.iter().map(Vec::as_slice)),
            Err(refusal) => {
                job.output.truncate(start);
                job.output.error(&format!("ERR {refusal}"));
            }
        }
    }

    fn finish(&self, transaction: Transaction<D>) -> Result<(), Refusal> {
        self.counts.groups.fetch_add(u64::from(transaction.changes() > 0), Ordering::Relaxed);
        transaction.commit().map(|_| ()).map_err(|error| {
            if matches!(error, longma_zoned::Error::Stopped { .. }) {
                self.counts.is_stopped.store(true, Ordering::Relaxed);
            }
            error.to_string()
        })
    }

    /// Executes a unit in a transaction of the map, and appends its replies. `changed` are the keys that earlier units
    /// of the same transaction have changed; those of this unit are added.
    fn execute(
        &self,
        transaction: &mut Transaction<D>,
        job: &mut Job,
        unit: Unit,
        changed: &mut HashSet<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let Job { work, output, .. } = job;
        output.begin();
        let commands = match (&*work, unit) {
            (Work::Separate(commands), Unit::Command(index)) => &commands[index..=index],
            (Work::Separate(commands), Unit::Transaction) => commands,
            (Work::Atomic { commands, watched }, _) => {
                let is_valid = watched.is_empty()
                    || (self.watches.are_unchanged(watched)
                        && !watched.keys().any(|key| changed.contains(key)));
                if is_valid {
                    output.array(commands.len());
                    &commands[..]
                } else {
                    output.null_array();
                    &[][..]
                }
            }
        };
        for command in commands {
            write(transaction, command, output, changed).map_err(|error| error.to_string())?;
            if output.overflow().is_some() {
                break;
            }
        }
        match output.overflow() {
            Some(reason) => Err(format!("nothing was changed: {reason}")),
            None => Ok(()),
        }
    }
}
