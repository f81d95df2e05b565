//! The state of a datagram NIC: its medium and its connections, shared by the program's threads and the NIC's thread.
//! `connecting.rs` establishes connections.

#[cfg(test)]
mod backlog;
mod connecting;
mod paths;
mod taken_requests;

use self::connecting::PendingRequest;
use self::paths::{Path, Paths};
use self::taken_requests::TakenRequests;
use super::TimeLimits;
use super::medium::{Medium, Peer, Resolve};
use super::service_thread::{self, Wakeup};
use crate::error::Error;
use crate::provider::Poller;
use longma_locks::IgnorePoison;
use longma_reliable::{Event, Kind, Packet, SendError, answer_stray};
use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The maximum number of datagrams received per turn.
const BATCH: usize = 64;

/// The interval at which closing a NIC checks whether all data has been delivered.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A datagram NIC.
pub(super) struct Node {
    state: Mutex<State>,
    /// Acquired before `state`, so that waiting threads are served in turn.
    turn: Mutex<()>,
    /// A counter of changes to connections and requests, with a condition variable for waiters.
    changes: Mutex<u64>,
    changed: Condvar,
    pub(super) poller: OnceLock<Weak<dyn Poller>>,
    pub(super) wakeup: Wakeup,
    pub(super) is_closed: AtomicBool,
    /// Called without the lock because it may take long.
    resolve: Resolve,
    begin: Instant,
    limits: TimeLimits,
    /// The process that opened the NIC.
    creator_pid: u32,
}

pub(super) struct State {
    medium: Box<dyn Medium>,
    paths: Paths,
    waiting: BTreeMap<Vec<u8>, VecDeque<PendingRequest>>,
    /// Requests that the program has taken. Duplicates of them are ignored.
    taken_requests: TakenRequests,
    rejections: VecDeque<(Peer, u64, Vec<u8>)>,
    /// The key for connection cookies: SipHash with a random key.
    cookie_key: RandomState,
    datagram: Vec<u8>,
    out: Vec<u8>,
    /// The connections that the current turn must process.
    tags: Vec<u64>,
    /// VIs with events that no program has polled for yet.
    vis_with_events: Vec<u32>,
    /// The number of sleeping threads.
    pub(super) sleepers: u32,
    /// When a program polled last.
    pub(super) polled: Duration,
    /// The time until which the NIC's thread sleeps unless it is woken; zero while it works.
    pub(super) sleeps_until: Duration,
    /// Whether there are new requests that waiting threads have not been notified of.
    has_new_requests: bool,
}

impl Node {
    pub(super) fn new(medium: Box<dyn Medium>, limits: TimeLimits) -> Result<Arc<Self>, Error> {
        let resolve = medium.resolve();
        let state = State {
            medium,
            paths: Paths::default(),
            waiting: BTreeMap::new(),
            taken_requests: TakenRequests::default(),
            rejections: VecDeque::new(),
            cookie_key: RandomState::new(),
            datagram: Vec::new(),
            out: Vec::new(),
            tags: Vec::new(),
            vis_with_events: Vec::new(),
            sleepers: 0,
            polled: Duration::ZERO,
            sleeps_until: Duration::ZERO,
            has_new_requests: false,
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            turn: Mutex::new(()),
            changes: Mutex::new(0),
            changed: Condvar::new(),
            poller: OnceLock::new(),
            wakeup: Wakeup::new()?,
            is_closed: AtomicBool::new(false),
            resolve,
            begin: Instant::now(),
            limits,
            creator_pid: std::process::id(),
        }))
    }

    /// Whether this is a forked child (fork(2)). It must not send in its parent's name, and a thread of the parent may
    /// have held the lock at the fork.
    pub(super) fn is_forked_child(&self) -> bool {
        std::process::id() != self.creator_pid
    }

    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Acquires the turn and then the state. Waiting for the turn prevents starvation: a thread that polls continuously
    /// could otherwise reacquire the state each time before a thread that has just been woken, for seconds on a busy
    /// machine.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let _turn = self.turn.lock().ignore_poison();
        self.state.lock().ignore_poison()
    }

    fn changes(&self) -> MutexGuard<'_, u64> {
        self.changes.lock().ignore_poison()
    }

    /// Wakes the threads that wait for a change.
    fn notify_change(&self) {
        let mut changes = self.changes();
        *changes = changes.wrapping_add(1);
        self.changed.notify_all();
    }

    /// Waits for a change without holding the lock, for at most the given time.
    fn wait_for_change<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let seen = *self.changes();
        drop(state);
        let same = |changes: &mut u64| *changes == seen;
        match left {
            Some(left) => drop(self.changed.wait_timeout_while(self.changes(), left, same)),
            None => drop(self.changed.wait_while(self.changes(), same)),
        }
        self.lock()
    }

    /// Performs a turn on a thread of the program.
    fn turn(&self, state: &mut State, now: Duration) {
        state.turn(now);
        if std::mem::take(&mut state.has_new_requests) {
            self.notify_change();
        }
    }

    /// Wakes the NIC's thread if the next deadline is earlier than its wakeup, because the program may not poll again.
    fn wake_for_deadline(&self, state: &mut State) {
        if state.next_due().is_some_and(|at| at + service_thread::LEAVE_TO_PROGRAMS < state.sleeps_until) {
            state.sleeps_until = Duration::ZERO;
            self.wakeup.signal();
        }
    }

    /// Waits for a change while the NIC's thread works.
    ///
    /// # Errors
    /// If the deadline has passed.
    fn pause<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::Timeout);
        }
        Ok(self.wait_for_change(state, left))
    }

    // ---- called by links -------------------------------------------------------------------------------------------

    pub(super) fn send(&self, tag: u64, parts: &[&[u8]]) -> Result<u64, SendError> {
        let now = self.now();
        let mut state = self.lock();
        state.polled = now;
        let State { medium, paths, out, .. } = &mut *state;
        let path = paths.by_tag.get_mut(&tag).ok_or(SendError::NotOpen)?;
        let sent = path.connection.send(parts);
        path.wants_space |= sent == Err(SendError::Full);
        path.transmit(now, &mut **medium, out);
        paths.schedule(tag);
        self.wake_for_deadline(&mut state);
        sent
    }

    /// Whether the connection has space for a message. If not, its VI is notified when it has.
    pub(super) fn has_space(&self, tag: u64) -> bool {
        let mut state = self.lock();
        let Some(path) = state.paths.by_tag.get_mut(&tag) else { return true };
        path.wants_space = path.connection.is_full();
        !path.wants_space
    }

    /// Returns the next event of a connection. If `looks`, receives from the medium first.
    pub(super) fn poll(&self, tag: u64, looks: bool) -> Option<Event> {
        let mut state = self.lock();
        if looks && !state.paths.holding.contains(&tag) {
            let now = self.now();
            state.polled = now;
            self.turn(&mut state, now);
            // The connection has space for events again.
            state.settle(now, tag);
            if !state.vis_with_events.is_empty() {
                // Other VIs have events: let the NIC's thread notify them.
                let own = state.paths.by_tag.get(&tag).and_then(|path| path.vi);
                state.vis_with_events.retain(|vi| Some(*vi) != own);
                if !state.vis_with_events.is_empty() {
                    self.wakeup.signal();
                }
                self.notify_change();
            }
        }
        let event = state.paths.take_event(tag);
        self.wake_for_deadline(&mut state);
        event
    }

    /// Called when the path of a connection drops large datagrams.
    pub(super) fn shrink(&self, tag: u64) {
        let State { medium, paths, .. } = &mut *self.lock();
        if let Some(path) = paths.by_tag.get(&tag) {
            medium.shrink(path.peer);
        }
    }

    /// Registers or unregisters a sleeping thread.
    pub(super) fn arm(&self, sleeps: bool) {
        let mut state = self.lock();
        if sleeps {
            state.sleepers += 1;
            drop(state);
            self.wakeup.signal();
        } else {
            state.sleepers = state.sleepers.saturating_sub(1);
        }
    }

    /// Abandons a connection: it delivers pending data and then closes.
    pub(super) fn leave(&self, tag: u64) {
        let now = self.now();
        let mut state = self.lock();
        if let Some(path) = state.paths.by_tag.get_mut(&tag) {
            (path.vi, path.left) = (None, Some(now));
            path.events.clear();
            state.settle(now, tag);
        }
        drop(state);
        self.wakeup.signal();
    }

    /// Performs a turn on the NIC's thread and returns the VIs that have events.
    pub(super) fn poll_for_service(&self) -> Vec<u32> {
        let mut state = self.lock();
        let now = self.now();
        state.sleeps_until = Duration::ZERO;
        state.turn(now);
        state.has_new_requests = false;
        let mut vis_with_events = std::mem::take(&mut state.vis_with_events);
        // The thread that polled last may have gone to sleep before it took all events.
        let paths = &state.paths;
        vis_with_events.extend(paths.holding.iter().filter_map(|tag| paths.by_tag.get(tag)?.vi));
        vis_with_events.sort_unstable();
        vis_with_events.dedup();
        self.notify_change();
        vis_with_events
    }

    /// Closes all connections, after pending data has been delivered or the linger time has passed.
    pub(super) fn close(&self) {
        let begin = self.now();
        let mut state = self.lock();
        loop {
            let now = self.now();
            self.turn(&mut state, now);
            if now.saturating_sub(begin) >= self.limits.linger
                || !state.paths.by_tag.values().any(Path::has_undelivered)
            {
                break;
            }
            // Wait with a timeout, because the NIC's thread may end without a notification.
            state = self.wait_for_change(state, Some(CLOSE_CHECK_INTERVAL));
        }
        let now = self.now();
        let State { medium, paths, out, .. } = &mut *state;
        for path in paths.by_tag.values_mut() {
            path.connection.close(now);
            path.transmit(now, &mut **medium, out);
        }
        self.is_closed.store(true, Ordering::Release);
        self.wakeup.signal();
    }
}

impl State {
    /// The next deadline of any connection.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.paths.next_due()
    }

    pub(super) fn readable(&self) -> std::os::fd::RawFd {
        self.medium.readable()
    }

    /// Receives datagrams and sends the packets that are due.
    fn turn(&mut self, now: Duration) {
        let mut datagram = std::mem::take(&mut self.datagram);
        let mut tags = std::mem::take(&mut self.tags);
        for _ in 0..BATCH {
            let Some(peer) = self.medium.receive(&mut datagram) else { break };
            if let Ok(packet) = Packet::parse(&datagram) {
                tags.extend(self.arrived(now, peer, &packet));
            }
        }
        self.datagram = datagram;
        self.paths.take_due(now, &mut tags);
        // Process each connection once: packets of one connection tend to arrive in a row.
        tags.dedup();
        tags.drain(..).for_each(|tag| self.settle(now, tag));
        self.tags = tags;
    }

    /// Updates a connection after an event or a deadline.
    fn settle(&mut self, now: Duration, tag: u64) {
        let Self { medium, paths, out, vis_with_events, .. } = self;
        let Some(path) = paths.by_tag.get_mut(&tag) else { return };
        if path.left.is_some() || path.deadline().is_some_and(|at| at <= now) {
            path.transmit(now, &mut **medium, out);
        }
        if path.listen() {
            vis_with_events.extend(path.vi);
        }
        if path.is_over() {
            return paths.remove(tag);
        }
        if path.vi.is_some() && !path.events.is_empty() {
            paths.holding.insert(tag);
        } else {
            paths.holding.remove(&tag);
        }
        paths.schedule(tag);
    }

    /// Processes a packet and returns the connection that it belongs to.
    fn arrived(&mut self, now: Duration, peer: Peer, packet: &Packet) -> Option<u64> {
        if packet.kind == Kind::Open {
            return self.handle_request(now, peer, packet);
        }
        match self.paths.by_tag.get_mut(&packet.to) {
            Some(path) if path.peer == peer => {
                path.connection.receive(now, packet);
                return Some(packet.to);
            }
            Some(_) => {}
            None => {
                self.out.clear();
                if answer_stray(packet, &mut self.out) {
                    self.medium.send(peer, &self.out);
                }
            }
        }
        None
    }
}
