//! The connections of a datagram NIC, and which of them need processing.

use super::super::medium::Medium;
use super::Peer;
use longma_reliable::{Connection, Event};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The maximum number of events waiting for one VI to be polled. Further messages stay in the connection, which closes
/// the peer's window.
pub(super) const MAX_EVENTS: usize = 64;

/// All connections, with indexes of those that need processing, so that the cost of a turn depends on activity and not
/// on the number of connections.
#[derive(Default)]
pub(super) struct Paths {
    pub(super) by_tag: BTreeMap<u64, Path>,
    /// Accepted connections by peer and peer tag.
    pub(super) accepted: BTreeMap<(Peer, u64), u64>,
    /// The next deadline of each connection.
    due: BTreeSet<(Duration, u64)>,
    /// Connections whose VI has not taken all events.
    pub(super) holding: BTreeSet<u64>,
}

/// A connection with its peer.
pub(super) struct Path {
    pub(super) connection: Connection,
    pub(super) peer: Peer,
    /// The VI of the connection. `None` before it is accepted and after it is abandoned.
    pub(super) vi: Option<u32>,
    pub(super) events: VecDeque<Event>,
    /// Whether a message did not fit, so that the VI must be notified when there is space again.
    pub(super) wants_space: bool,
    /// The deadline stored in `Paths::due`.
    due: Option<Duration>,
    /// When the connection was abandoned. It delivers pending data and then closes.
    pub(super) left: Option<Duration>,
    /// The time limit for that delivery.
    linger: Duration,
}

impl Paths {
    pub(super) fn insert(&mut self, tag: u64, path: Path) {
        self.by_tag.insert(tag, path);
        self.schedule(tag);
    }

    pub(super) fn remove(&mut self, tag: u64) {
        let Some(path) = self.by_tag.remove(&tag) else { return };
        self.holding.remove(&tag);
        if let Some(at) = path.due {
            self.due.remove(&(at, tag));
        }
        let asked = (path.peer, path.connection.peer());
        if self.accepted.get(&asked) == Some(&tag) {
            self.accepted.remove(&asked);
        }
    }

    /// Updates the deadline of a connection.
    pub(super) fn schedule(&mut self, tag: u64) {
        let Some(path) = self.by_tag.get_mut(&tag) else { return };
        let at = path.deadline();
        if let Some(before) = path.due.filter(|before| Some(*before) != at) {
            self.due.remove(&(before, tag));
        }
        if let Some(at) = at.filter(|at| path.due != Some(*at)) {
            self.due.insert((at, tag));
        }
        path.due = at;
    }

    /// The next deadline of any connection.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Moves the connections whose deadline has passed to `tags`.
    pub(super) fn take_due(&mut self, now: Duration, tags: &mut Vec<u64>) {
        while let Some((at, tag)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, tag));
            if let Some(path) = self.by_tag.get_mut(&tag) {
                path.due = None;
            }
            tags.push(tag);
        }
    }

    pub(super) fn take_event(&mut self, tag: u64) -> Option<Event> {
        let path = self.by_tag.get_mut(&tag)?;
        let event = path.events.pop_front();
        if path.events.is_empty() && event.is_some() {
            // Fetch the events that did not fit before. No further datagram may arrive to trigger this.
            path.listen();
            if path.events.is_empty() {
                self.holding.remove(&tag);
            }
            self.schedule(tag);
        }
        event
    }
}

impl Path {
    pub(super) fn new(connection: Connection, peer: Peer, vi: u32, linger: Duration) -> Path {
        let events = VecDeque::new();
        Path { connection, peer, vi: Some(vi), events, wants_space: false, due: None, left: None, linger }
    }

    pub(super) fn transmit(&mut self, now: Duration, medium: &mut dyn Medium, out: &mut Vec<u8>) {
        let delivered = self.connection.is_drained();
        if self.left.is_some_and(|at| delivered || now.saturating_sub(at) > self.linger) {
            self.connection.close(now);
        }
        out.clear();
        while self.connection.transmit(now, out) {
            medium.send(self.peer, out);
            out.clear();
        }
    }

    /// Takes events from the connection. Returns whether the VI must be notified.
    pub(super) fn listen(&mut self) -> bool {
        let before = self.events.len();
        while self.events.len() < MAX_EVENTS
            && let Some(event) = self.connection.take_event()
        {
            if self.vi.is_some() && !matches!(event, Event::Delivered(_)) {
                self.events.push_back(event);
            }
        }
        let has_space = self.wants_space && !self.connection.is_full();
        self.wants_space &= !has_space;
        has_space || self.events.len() > before
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        // A closing connection has its own timeouts.
        let linger = self.left.filter(|_| self.connection.is_open()).map(|at| at + self.linger);
        self.connection.deadline().into_iter().chain(linger).min()
    }

    /// Whether sent data has not been acknowledged yet.
    pub(super) fn has_undelivered(&self) -> bool {
        self.connection.is_open() && !self.connection.is_drained()
    }

    pub(super) fn is_over(&self) -> bool {
        self.connection.is_over() && self.left.is_some()
    }
}
