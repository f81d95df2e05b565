//! The notifications of a completion queue, and the VIs whose links it has to look at to get more.
//! Not the completions: they stay in their work queues.
//! Source: VIA, completion queues.

use super::endpoint::Endpoint;
use super::waiting::{AdaptiveSpin, LocalBell, Sleeper, deadline_after, has_too_many, wait};
use crate::completion_queue::Queue;
use crate::error::Error;
use crate::provider::Bell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

struct Contents {
    notifications: VecDeque<(u32, Queue)>,
    capacity: usize,
    waker: Option<Waker>,
    sleepers: u32,
}

pub(crate) struct CompletionRing {
    most: usize,
    contents: Mutex<Contents>,
    has_some: AtomicBool,
    tied: Mutex<Vec<(u32, Weak<Endpoint>)>>,
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

    fn tied(&self) -> MutexGuard<'_, Vec<(u32, Weak<Endpoint>)>> {
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

    pub(super) fn tie(&self, endpoint: &Arc<Endpoint>) {
        let mut tied = self.tied();
        if !tied.iter().any(|(number, _)| *number == endpoint.number()) {
            tied.push((endpoint.number(), Arc::downgrade(endpoint)));
        }
    }

    pub(crate) fn is_tied(&self) -> bool {
        !self.tied().is_empty()
    }

    /// A VI is gone, and with it what was notified of it.
    pub(super) fn untie(&self, number: u32) {
        self.tied().retain(|(other, _)| *other != number);
        self.contents().notifications.retain(|(other, _)| *other != number);
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
        // One pass over the VIs. The list is copied by index, so that its lock is not held while a VI is looked at.
        let mut index = 0;
        loop {
            let endpoint = match self.tied().get(index) {
                None => return None,
                Some((_, endpoint)) => endpoint.upgrade(),
            };
            index += 1;
            let Some(endpoint) = endpoint else { continue };
            endpoint.look();
            if let Some(notification) = self.pop() {
                return Some(notification);
            }
        }
    }

    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<(u32, Queue), Error> {
        if let Some(notification) = self.done() {
            return Ok(notification);
        }
        let sleeper = RingSleeper { ring: self, armed: Vec::new() };
        wait(&self.spin, deadline_after(timeout), || self.done(), sleeper).ok_or(Error::Timeout)
    }

    pub(crate) fn poll_done(&self, waker: &Waker) -> Option<(u32, Queue)> {
        self.contents().waker = Some(waker.clone());
        let notification = self.done();
        if notification.is_some() {
            self.contents().waker = None;
        }
        notification
    }

    pub(crate) fn has_waker(&self) -> bool {
        self.contents().waker.is_some()
    }

    pub(crate) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.tied().iter().filter_map(|(_, endpoint)| endpoint.upgrade()).collect()
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

/// Somebody asleep on all VIs of a completion queue.
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
        let mut index = 0;
        // More words than the kernel waits for at once are looked at every now and then: those VIs need not hear that we sleep.
        while !has_too_many(bells) {
            let endpoint = match self.ring.tied().get(index) {
                None => return,
                Some((_, endpoint)) => endpoint.upgrade(),
            };
            index += 1;
            let Some(endpoint) = endpoint else { continue };
            endpoint.arm(bells);
            self.armed.push(endpoint);
        }
    }

    fn disarm(&mut self) {
        self.armed.drain(..).for_each(|endpoint| endpoint.disarm());
        self.ring.contents().sleepers -= 1;
    }
}
