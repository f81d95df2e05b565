//! The notifications of a completion queue, and the VIs whose links it has to look at to get more.
//! Not the completions: they stay in their work queues. Nor all VIs that are tied to it: of thousands it looks at those for which something
//! came lately, and the others are parked (`parking.rs`).
//! Source: VIA, completion queues.

use super::endpoint::Endpoint;
use super::waiting::{AdaptiveSpin, LocalBell, Sleeper, deadline_after, has_too_many, wait};
use crate::error::Error;
use crate::provider::Bell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

/// VIs that are looked at, and slept on, however long nothing came for them. More cost more than the provider's thread takes to tell.
const KEPT: usize = 8;
/// How often beyond those a VI is looked at in vain before it is parked.
const VAIN_LOOKS: u32 = 512;

/// Which queue of a VI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Its send queue.
    Send,
    /// Its receive queue.
    Receive,
}

struct Contents {
    notifications: VecDeque<(u32, Queue)>,
    capacity: usize,
    waker: Option<Waker>,
    sleepers: u32,
}

/// The VIs tied to a queue, by their numbers.
#[derive(Default)]
struct Tied {
    all: BTreeSet<u32>,
    /// Those to look at.
    hot: BTreeMap<u32, Weak<Endpoint>>,
    /// The one looked at last. It goes round: who always has something holds up nobody else.
    last: u32,
}

pub(crate) struct CompletionRing {
    most: usize,
    contents: Mutex<Contents>,
    has_some: AtomicBool,
    tied: Mutex<Tied>,
    bell: LocalBell,
    spin: AdaptiveSpin,
}

impl CompletionRing {
    pub(crate) fn new(capacity: usize, most: usize) -> Result<CompletionRing, Error> {
        let contents = Contents {
            notifications: VecDeque::with_capacity(checked(capacity, most)?),
            capacity,
            waker: None,
            sleepers: 0,
        };
        Ok(CompletionRing {
            most,
            contents: Mutex::new(contents),
            has_some: AtomicBool::new(false),
            tied: Mutex::default(),
            bell: LocalBell::new(),
            spin: AdaptiveSpin::new(),
        })
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tied(&self) -> MutexGuard<'_, Tied> {
        self.tied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.contents().capacity
    }

    pub(crate) fn resize(&self, capacity: usize) -> Result<(), Error> {
        checked(capacity, self.most)?;
        let mut contents = self.contents();
        let held = contents.notifications.len();
        if capacity < held {
            return Err(Error::Resource(format!(
                "{held} notifications are in the queue, {capacity} would be its size"
            )));
        }
        contents.notifications.reserve(capacity - held);
        contents.capacity = capacity;
        Ok(())
    }

    pub(super) fn tie(&self, number: u32) {
        self.tied().all.insert(number);
    }

    pub(crate) fn is_tied(&self) -> bool {
        !self.tied().all.is_empty()
    }

    /// A VI is gone, and with it what was notified of it.
    pub(super) fn untie(&self, number: u32) {
        let mut tied = self.tied();
        tied.all.remove(&number);
        tied.hot.remove(&number);
        drop(tied);
        self.contents().notifications.retain(|(other, _)| *other != number);
    }

    /// Looks at that VI from now on. Under the VI's lock, as `cool`.
    pub(super) fn heat(&self, number: u32, endpoint: &Weak<Endpoint>) {
        let mut tied = self.tied();
        if tied.all.contains(&number) {
            tied.hot.entry(number).or_insert_with(|| endpoint.clone());
        }
    }

    /// Looks at it no more.
    pub(super) fn cool(&self, number: u32) {
        self.tied().hot.remove(&number);
    }

    /// Whether somebody sleeps, or a future waits, until there is something in the queue.
    pub(super) fn is_awaited(&self) -> bool {
        let contents = self.contents();
        contents.sleepers > 0 || contents.waker.is_some()
    }

    /// Has whoever waits look again.
    pub(super) fn rouse(&self) {
        let (sleepers, waker) = {
            let mut contents = self.contents();
            (contents.sleepers, contents.waker.take())
        };
        if sleepers > 0 {
            self.bell.ring();
        }
        waker.into_iter().for_each(Waker::wake);
    }

    /// Adds `count` notifications. Says whether all had room, and whom to wake.
    pub(super) fn push(&self, number: u32, queue: Queue, count: u32) -> (bool, Option<Waker>) {
        let mut contents = self.contents();
        let room = contents.capacity - contents.notifications.len();
        let fit = (count as usize).min(room);
        contents.notifications.extend(std::iter::repeat_n((number, queue), fit));
        self.has_some.store(true, Ordering::Release);
        let (sleepers, waker) = (contents.sleepers, contents.waker.take());
        drop(contents);
        if sleepers > 0 {
            self.bell.ring();
        }
        (fit == count as usize, waker)
    }

    fn pop(&self) -> Option<(u32, Queue)> {
        if !self.has_some.load(Ordering::Acquire) {
            return None;
        }
        let mut contents = self.contents();
        let first = contents.notifications.pop_front();
        self.has_some.store(!contents.notifications.is_empty(), Ordering::Release);
        first
    }

    pub(crate) fn done(&self) -> Option<(u32, Queue)> {
        if let Some(notification) = self.pop() {
            return Some(notification);
        }
        // One round of the VIs. The lock of the list is not held while a VI is looked at.
        let count = self.tied().hot.len();
        for _ in 0..count {
            let Some(endpoint) = self.next_hot()? else { continue };
            endpoint.look_for_queue();
            if let Some(notification) = self.pop() {
                endpoint.quiet_looks.store(0, Ordering::Relaxed);
                return Some(notification);
            }
            // Two threads may count one look between them.
            let quiet = endpoint.quiet_looks.load(Ordering::Relaxed).saturating_add(1);
            endpoint.quiet_looks.store(quiet, Ordering::Relaxed);
            if count > KEPT && quiet > VAIN_LOOKS {
                endpoint.park();
            }
        }
        self.pop()
    }

    /// The VI whose turn it is. `None`: there is none to look at.
    fn next_hot(&self) -> Option<Option<Arc<Endpoint>>> {
        let mut tied = self.tied();
        let after = (Bound::Excluded(tied.last), Bound::Unbounded);
        let next = tied.hot.range(after).next().or_else(|| tied.hot.first_key_value());
        let (number, endpoint) = next.map(|(number, endpoint)| (*number, endpoint.upgrade()))?;
        tied.last = number;
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
        // The end of a waker is the program's code, which may call for the queue: none is dropped under the lock.
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

    /// Parks what can be parked, but for those for which something came last. Gives the rest, which have to be waited for.
    pub(crate) fn unparked(&self) -> Vec<Arc<Endpoint>> {
        let mut hot: Vec<_> = self.tied().hot.values().filter_map(Weak::upgrade).collect();
        if hot.len() > KEPT {
            // Cached: others count meanwhile.
            hot.sort_by_cached_key(|endpoint| endpoint.quiet_looks.load(Ordering::Relaxed));
            let rest = hot.split_off(KEPT);
            hot.extend(rest.into_iter().filter(|endpoint| !endpoint.park()));
        }
        hot
    }
}

fn checked(capacity: usize, most: usize) -> Result<usize, Error> {
    if capacity == 0 {
        return Err(Error::InvalidParameter("a completion queue of no entries".into()));
    }
    if capacity > most {
        return Err(Error::Resource(format!(
            "a completion queue has at most {most} entries, {capacity} were asked for"
        )));
    }
    Ok(capacity)
}

/// Somebody asleep on a completion queue.
struct RingSleeper<'a> {
    ring: &'a CompletionRing,
    armed: Vec<Arc<Endpoint>>,
}

impl Sleeper for RingSleeper<'_> {
    fn bell(&self) -> &LocalBell {
        &self.ring.bell
    }

    fn arm(&mut self, bells: &mut Vec<Bell>) {
        self.ring.contents().sleepers += 1;
        for endpoint in self.ring.unparked() {
            // More words than the kernel waits for at once are looked at every now and then: those VIs need not hear that we sleep.
            if has_too_many(bells) {
                return;
            }
            endpoint.arm(bells);
            self.armed.push(endpoint);
        }
    }

    fn disarm(&mut self) {
        self.armed.drain(..).for_each(|endpoint| endpoint.disarm());
        self.ring.contents().sleepers -= 1;
    }
}
