//! The connections of a datagram NIC, and for which of them there is something to do.
//! Not how they come about (see `connecting.rs`), nor what their messages mean.

use super::super::medium::Medium;
use super::Peer;
use longma_reliable::{Connection, Event};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Events that wait for one VI to be polled. Messages beyond stay in the connection, which then shuts the peer's window.
pub(super) const MOST_EVENTS: usize = 64;

/// How long a connection that is left may take to deliver what is under way.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// All connections, and which of them there is something to do for: a turn costs what happens, not what there is.
#[derive(Default)]
pub(super) struct Paths {
    pub(super) by_tag: BTreeMap<u64, Path>,
    /// Those that were accepted, by who asked and his tag.
    pub(super) accepted: BTreeMap<(Peer, u64), u64>,
    /// When each has something to do next.
    due: BTreeSet<(Duration, u64)>,
    /// Those whose VI has not taken all events.
    pub(super) holding: BTreeSet<u64>,
}

/// A connection with its peer.
pub(super) struct Path {
    pub(super) connection: Connection,
    pub(super) peer: Peer,
    /// The VI it belongs to; none before it is accepted or after it was left.
    pub(super) vi: Option<u32>,
    pub(super) events: VecDeque<Event>,
    /// Something found no room: when there is some again, the VI is told.
    pub(super) wants_room: bool,
    /// Its time in `Paths::due`.
    due: Option<Duration>,
    /// Since when it is left: it delivers what is under way, then closes.
    pub(super) left: Option<Duration>,
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

    /// Notes when the connection has something to do next.
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

    /// When there is something to do next for one of them.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The connections for which it is time.
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
            // There may be more than there was room for, which nothing else would bring to the VI: no datagram need come any more.
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
    pub(super) fn new(connection: Connection, peer: Peer, vi: u32) -> Path {
        let events = VecDeque::new();
        Path { connection, peer, vi: Some(vi), events, wants_room: false, due: None, left: None }
    }

    pub(super) fn transmit(&mut self, now: Duration, medium: &mut dyn Medium, out: &mut Vec<u8>) {
        let delivered = self.connection.is_drained();
        if self.left.is_some_and(|at| delivered || now.saturating_sub(at) > LINGER) {
            self.connection.close(now);
        }
        out.clear();
        while self.connection.transmit(now, out) {
            medium.send(self.peer, out);
            out.clear();
        }
    }

    /// Takes what happened; says whether the VI has to be told.
    pub(super) fn listen(&mut self) -> bool {
        let before = self.events.len();
        while self.events.len() < MOST_EVENTS
            && let Some(event) = self.connection.take_event()
        {
            if self.vi.is_some() && !matches!(event, Event::Delivered(_)) {
                self.events.push_back(event);
            }
        }
        let has_room = self.wants_room && !self.connection.is_full();
        self.wants_room &= !has_room;
        has_room || self.events.len() > before
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        // What closes already has its own times.
        let linger = self.left.filter(|_| self.connection.is_open()).map(|at| at + LINGER);
        self.connection.deadline().into_iter().chain(linger).min()
    }

    /// Whether something that was sent is still on its way.
    pub(super) fn delivers(&self) -> bool {
        self.connection.is_open() && !self.connection.is_drained()
    }

    pub(super) fn is_over(&self) -> bool {
        self.connection.is_over() && self.left.is_some()
    }
}
