//! The notifications of a completion queue, and the VIs that it polls. The completions themselves stay in their work
//! queues. A completion queue polls only VIs with recent traffic; the others are parked (`parking.rs`).
//!
//! Source: VIA, completion queues.

use super::endpoint::Endpoint;
use super::waiting::{AdaptiveSpin, Sleeper, WakeEvent, deadline_after, has_too_many, wait};
use crate::error::Error;
use crate::provider::WakeSource;
use longma_locks::IgnorePoison;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::Duration;

/// The number of VIs that a completion queue polls even if they have no traffic. Polling more VIs costs more than a
/// notification by the provider's thread.
const MIN_POLLED: usize = 8;
/// The number of consecutive polls without a notification after which a VI is parked, if the queue polls more than
/// [`MIN_POLLED`] VIs.
const MAX_EMPTY_POLLS: u32 = 512;

/// A work queue of a VI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

struct Contents {
    notifications: VecDeque<(u32, Queue)>,
    capacity: usize,
    waker: Option<Waker>,
    sleepers: u32,
}

/// The VIs attached to a completion queue, by number.
#[derive(Default)]
struct AttachedVis {
    all: BTreeSet<u32>,
    /// The VIs to be polled.
    polled: BTreeMap<u32, Weak<Endpoint>>,
    /// The VI polled last. Polling is round-robin, so that a busy VI cannot starve the others.
    last: u32,
}

pub(crate) struct CompletionRing {
    max_entries: usize,
    contents: Mutex<Contents>,
    has_notifications: AtomicBool,
    attached: Mutex<AttachedVis>,
    wake_event: WakeEvent,
    spin: AdaptiveSpin,
}

impl CompletionRing {
    pub(crate) fn new(capacity: usize, max_entries: usize) -> Result<CompletionRing, Error> {
        let contents = Contents {
            notifications: VecDeque::with_capacity(check_capacity(capacity, max_entries)?),
            capacity,
            waker: None,
            sleepers: 0,
        };
        Ok(CompletionRing {
            max_entries,
            contents: Mutex::new(contents),
            has_notifications: AtomicBool::new(false),
            attached: Mutex::default(),
            wake_event: WakeEvent::new(),
            spin: AdaptiveSpin::new(),
        })
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().ignore_poison()
    }

    fn attached(&self) -> MutexGuard<'_, AttachedVis> {
        self.attached.lock().ignore_poison()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.contents().capacity
    }

    pub(crate) fn resize(&self, capacity: usize) -> Result<(), Error> {
        check_capacity(capacity, self.max_entries)?;
        let mut contents = self.contents();
        let queued = contents.notifications.len();
        if capacity < queued {
            return Err(Error::Resource(format!(
                "the queue holds {queued} notifications, more than the requested size {capacity}"
            )));
        }
        contents.notifications.reserve(capacity - queued);
        contents.capacity = capacity;
        Ok(())
    }

    pub(super) fn attach_vi(&self, number: u32) {
        self.attached().all.insert(number);
    }

    pub(crate) fn has_vis(&self) -> bool {
        !self.attached().all.is_empty()
    }

    /// Detaches a VI and removes its notifications.
    pub(super) fn detach_vi(&self, number: u32) {
        let mut attached = self.attached();
        attached.all.remove(&number);
        attached.polled.remove(&number);
        drop(attached);
        self.contents().notifications.retain(|(other, _)| *other != number);
    }

    /// Starts polling a VI. Called under the VI's lock, like `stop_polling`.
    pub(super) fn start_polling(&self, number: u32, endpoint: &Weak<Endpoint>) {
        let mut attached = self.attached();
        if attached.all.contains(&number) {
            attached.polled.entry(number).or_insert_with(|| endpoint.clone());
        }
    }

    /// Stops polling a VI.
    pub(super) fn stop_polling(&self, number: u32) {
        self.attached().polled.remove(&number);
    }

    /// Whether a thread or a future waits for a notification.
    pub(super) fn is_awaited(&self) -> bool {
        let contents = self.contents();
        contents.sleepers > 0 || contents.waker.is_some()
    }

    /// Makes all waiters check again.
    pub(super) fn rouse(&self) {
        let (sleepers, waker) = {
            let mut contents = self.contents();
            (contents.sleepers, contents.waker.take())
        };
        if sleepers > 0 {
            self.wake_event.signal();
        }
        waker.into_iter().for_each(Waker::wake);
    }

    /// Adds `count` notifications. Returns whether all of them fitted, and the waker to call.
    pub(super) fn push(&self, number: u32, queue: Queue, count: u32) -> (bool, Option<Waker>) {
        let mut contents = self.contents();
        let free = contents.capacity - contents.notifications.len();
        let fit = (count as usize).min(free);
        contents.notifications.extend(std::iter::repeat_n((number, queue), fit));
        self.has_notifications.store(true, Ordering::Release);
        let (sleepers, waker) = (contents.sleepers, contents.waker.take());
        drop(contents);
        if sleepers > 0 {
            self.wake_event.signal();
        }
        (fit == count as usize, waker)
    }

    fn pop(&self) -> Option<(u32, Queue)> {
        if !self.has_notifications.load(Ordering::Acquire) {
            return None;
        }
        let mut contents = self.contents();
        let first = contents.notifications.pop_front();
        self.has_notifications.store(!contents.notifications.is_empty(), Ordering::Release);
        first
    }

    pub(crate) fn done(&self) -> Option<(u32, Queue)> {
        if let Some(notification) = self.pop() {
            return Some(notification);
        }
        // Poll each VI once. The lock of the list is not held while a VI is polled.
        let count = self.attached().polled.len();
        for _ in 0..count {
            let Some(endpoint) = self.next_polled()? else { continue };
            endpoint.poll_for_queue();
            if let Some(notification) = self.pop() {
                endpoint.empty_polls.store(0, Ordering::Relaxed);
                return Some(notification);
            }
            // The counter is not exact: two threads may count one poll between them.
            let empty_polls = endpoint.empty_polls.load(Ordering::Relaxed).saturating_add(1);
            endpoint.empty_polls.store(empty_polls, Ordering::Relaxed);
            if count > MIN_POLLED && empty_polls > MAX_EMPTY_POLLS {
                endpoint.park();
            }
        }
        self.pop()
    }

    /// The next VI in turn: `None` if there is none to poll, `Some(None)` if the program has destroyed it.
    fn next_polled(&self) -> Option<Option<Arc<Endpoint>>> {
        let mut attached = self.attached();
        let after = (Bound::Excluded(attached.last), Bound::Unbounded);
        let next = attached.polled.range(after).next().or_else(|| attached.polled.first_key_value());
        let (number, endpoint) = next.map(|(number, endpoint)| (*number, endpoint.upgrade()))?;
        attached.last = number;
        Some(endpoint)
    }

    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<(u32, Queue), Error> {
        if let Some(notification) = self.done() {
            return Ok(notification);
        }
        let sleeper = RingSleeper { ring: self, armed: Vec::new() };
        wait(&self.spin, deadline_after(timeout), || self.done(), sleeper).ok_or(Error::Timeout)
    }

    pub(crate) fn poll_done(&self, waker: &Waker) -> Option<(u32, Queue)> {
        // Dropping a waker runs code of the program, which may call this queue, so no waker is dropped under the lock.
        let waker = waker.clone();
        let before = self.contents().waker.replace(waker);
        drop(before);
        let notification = self.done();
        if notification.is_some() {
            let unused = self.contents().waker.take();
            drop(unused);
        }
        notification
    }

    pub(crate) fn has_waker(&self) -> bool {
        self.contents().waker.is_some()
    }

    /// Parks the VIs that can be parked, except those with the most recent traffic. Returns the VIs that are not parked,
    /// which the caller must wait for.
    pub(crate) fn unparked(&self) -> Vec<Arc<Endpoint>> {
        let mut unparked: Vec<_> = self.attached().polled.values().filter_map(Weak::upgrade).collect();
        if unparked.len() > MIN_POLLED {
            // Cached keys, because the counters change concurrently.
            unparked.sort_by_cached_key(|endpoint| endpoint.empty_polls.load(Ordering::Relaxed));
            let rest = unparked.split_off(MIN_POLLED);
            unparked.extend(rest.into_iter().filter(|endpoint| !endpoint.park()));
        }
        unparked
    }
}

fn check_capacity(capacity: usize, max_entries: usize) -> Result<usize, Error> {
    if capacity == 0 {
        return Err(Error::InvalidParameter("a completion queue needs at least one entry".into()));
    }
    if capacity > max_entries {
        return Err(Error::Resource(format!(
            "a completion queue has at most {max_entries} entries, {capacity} were requested"
        )));
    }
    Ok(capacity)
}

/// A thread that sleeps on a completion queue.
struct RingSleeper<'a> {
    ring: &'a CompletionRing,
    armed: Vec<Arc<Endpoint>>,
}

impl Sleeper for RingSleeper<'_> {
    fn wake_event(&self) -> &WakeEvent {
        &self.ring.wake_event
    }

    fn arm(&mut self, wake_sources: &mut Vec<WakeSource>) {
        self.ring.contents().sleepers += 1;
        for endpoint in self.ring.unparked() {
            // The kernel cannot wait for more words at once. The remaining VIs are polled at intervals and need not be
            // armed.
            if has_too_many(wake_sources) {
                return;
            }
            endpoint.arm(wake_sources);
            self.armed.push(endpoint);
        }
    }

    fn disarm(&mut self) {
        self.armed.drain(..).for_each(|endpoint| endpoint.disarm());
        self.ring.contents().sleepers -= 1;
    }
}
