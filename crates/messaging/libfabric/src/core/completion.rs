//! Completion queues.

use super::endpoint::Endpoint;
use super::error::Failure;
use crate::abi::constants::EAVAIL;
use longma_locks::IgnorePoison;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The completion of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completed {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    /// The bytes transferred.
    pub(crate) length: usize,
    /// The address of a receive buffer.
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The number of the source in the address vector, or `ADDR_NOTAVAIL`.
    pub(crate) source: u64,
    /// Why the operation failed, and the number of bytes that did not fit.
    pub(crate) failure: Option<(Failure, usize)>,
}

/// The endpoints on which a read of a queue or counter makes progress.
#[derive(Default)]
pub(crate) struct Watched {
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
}

impl Watched {
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock().ignore_poison();
        if !endpoints.iter().any(|other| Arc::ptr_eq(other, endpoint)) {
            endpoints.push(endpoint.clone());
        }
    }

    pub(crate) fn remove(&self, endpoint: &Arc<Endpoint>) {
        self.endpoints.lock().ignore_poison().retain(|other| !Arc::ptr_eq(other, endpoint));
    }

    /// Whether any endpoint uses the queue.
    pub(crate) fn is_used(&self) -> bool {
        !self.endpoints.lock().ignore_poison().is_empty()
    }

    /// Makes progress on all endpoints.
    pub(crate) fn progress(&self) {
        self.endpoints.lock().ignore_poison().iter().for_each(|endpoint| endpoint.progress());
    }

    /// Waits for an event of the endpoints, at most a millisecond.
    fn pause(&self, remaining: Duration) {
        let limit = remaining.min(Duration::from_millis(1));
        let only = match &self.endpoints.lock().ignore_poison()[..] {
            [endpoint] => Some(endpoint.clone()),
            _ => None,
        };
        match only {
            Some(endpoint) => endpoint.wait(limit),
            None => std::thread::sleep(limit.min(Duration::from_micros(50))),
        }
    }

    /// Makes progress until `result` returns `Some`, or the time limit is reached. `None` waits indefinitely.
    pub(crate) fn wait_for<T>(
        &self,
        timeout: Option<Duration>,
        mut result: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.progress();
            if let Some(result) = result() {
                return Some(result);
            }
            let remaining = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if remaining.is_zero() {
                return None;
            }
            self.pause(remaining);
        }
    }
}

/// A thread that polls an empty queue yields the processor after this many reads, and then every `YIELD_INTERVAL`
/// reads. If each process has a core, this costs a system call every ten microseconds, beginning after a hundred
/// microseconds without a message.
const IDLE_READS: usize = 1024;
const YIELD_INTERVAL: usize = 64;

/// A completion queue.
#[derive(Default)]
pub(crate) struct CompletionQueue {
    entries: Mutex<VecDeque<Completed>>,
    /// The number of entries, readable without the lock.
    length: AtomicUsize,
    /// The number of reads since the last completion.
    idle_reads: AtomicUsize,
    is_signalled: AtomicBool,
    pub(crate) watched: Watched,
}

impl CompletionQueue {
    pub(crate) fn push(&self, completed: Completed) {
        let mut entries = self.entries.lock().ignore_poison();
        entries.push_back(completed);
        self.length.store(entries.len(), Ordering::Release);
    }

    /// Passes up to `count` completions to `take`, and returns their number.
    ///
    /// # Errors
    /// `EAGAIN` if there is none, `EAVAIL` if the next one is a failure.
    pub(crate) fn read(&self, count: usize, take: impl FnMut(usize, &Completed)) -> Result<usize, i32> {
        if self.length.load(Ordering::Acquire) == 0 {
            self.watched.progress();
        }
        let outcome = self.collect(count, take);
        match outcome {
            Err(libc::EAGAIN) => {
                let reads = self.idle_reads.load(Ordering::Relaxed);
                self.idle_reads.store(reads.wrapping_add(1), Ordering::Relaxed);
                if reads > IDLE_READS && reads.is_multiple_of(YIELD_INTERVAL) {
                    // If there are fewer cores than processes, the peer may need this core.
                    std::thread::yield_now();
                }
            }
            _ => self.idle_reads.store(0, Ordering::Relaxed),
        }
        outcome
    }

    fn collect(&self, count: usize, mut take: impl FnMut(usize, &Completed)) -> Result<usize, i32> {
        if self.length.load(Ordering::Acquire) == 0 {
            return Err(libc::EAGAIN);
        }
        let mut entries = self.entries.lock().ignore_poison();
        let mut taken = 0;
        let outcome = loop {
            match entries.front() {
                _ if taken == count => break Ok(taken),
                None if taken == 0 => break Err(libc::EAGAIN),
                Some(completed) if completed.failure.is_some() && taken == 0 => break Err(EAVAIL),
                Some(completed) if completed.failure.is_none() => take(taken, completed),
                _ => break Ok(taken),
            }
            entries.pop_front();
            taken += 1;
        };
        self.length.store(entries.len(), Ordering::Release);
        outcome
    }

    /// Like `read`, but waits for a completion. `None` waits indefinitely. [`CompletionQueue::signal`] ends the wait.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn wait(
        &self,
        count: usize,
        timeout: Option<Duration>,
        mut take: impl FnMut(usize, &Completed),
    ) -> Result<usize, i32> {
        let attempt = || match self.collect(count, &mut take) {
            Err(libc::EAGAIN) if !self.is_signalled.swap(false, Ordering::AcqRel) => None,
            outcome => Some(outcome),
        };
        self.watched.wait_for(timeout, attempt).unwrap_or(Err(libc::EAGAIN))
    }

    /// Ends a wait.
    pub(crate) fn signal(&self) {
        self.is_signalled.store(true, Ordering::Release);
    }

    /// Takes the next completion if it is a failure.
    pub(crate) fn take_failure(&self) -> Option<Completed> {
        let mut entries = self.entries.lock().ignore_poison();
        let is_failed = entries.front().is_some_and(|completed| completed.failure.is_some());
        let failed = if is_failed { entries.pop_front() } else { None };
        self.length.store(entries.len(), Ordering::Release);
        failed
    }
}
