//! One datagram NIC: its medium, its connections, who waits to be connected, and the thread that keeps all of them going.
//! Not the medium, and not what messages mean.
//! Source: our own; connecting after VIA, VI connection and disconnection.

#[cfg(test)]
mod backlog;
mod given;

use self::given::{Given, Stage};
use super::link::DatagramLink;
use super::medium::{Medium, Peer, Resolve};
use super::message::{Greeting, HEAD_BYTES};
use super::pump::{self, Wakeup};
use crate::address::Address;
use crate::attributes::ViAttributes;
use crate::error::Error;
use crate::provider::{Attention, Established, Incoming, Link};
use crate::reliable::{
    Config, Connection, Event, Kind, MIN_DATAGRAM, Opening, Packet, SendError, answer_stray, ask_again,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Datagrams that one look at the medium takes.
const BATCH: usize = 64;

/// Requests that wait at one address, in all and of one host; more are refused.
const MOST_REQUESTS: usize = 1024;
const MOST_REQUESTS_OF_HOST: usize = 64;

/// How long what a peer is given to show that it hears us is good for: between this and twice this.
const PROOF_PERIOD: Duration = Duration::from_secs(10);

/// Rejections that are remembered, to be said again when the request comes again.
const MOST_REJECTIONS: usize = 64;

/// Events that wait for one VI to be polled. Messages beyond stay in the connection, which then shuts the peer's window.
const MOST_EVENTS: usize = 64;

/// How long a connection that is left may take to deliver what is under way.
const LINGER: Duration = Duration::from_secs(2);
/// How often a NIC that is closed looks whether what was sent has arrived.
const CLOSING_LOOK: Duration = Duration::from_millis(1);

/// What the peer is told when nobody waits where it asks.
const NOBODY: &[u8] = b"nobody";
const REFUSED: &[u8] = b"refused";

/// A datagram NIC.
pub(super) struct Node {
    state: Mutex<State>,
    /// Taken before `state`.
    turn: Mutex<()>,
    /// Something about connecting changed: how often, and whoever waits for it.
    changes: Mutex<u64>,
    changed: Condvar,
    pub(super) attention: OnceLock<Weak<dyn Attention>>,
    pub(super) wakeup: Wakeup,
    pub(super) is_closed: AtomicBool,
    /// Called without the lock: it may take long.
    resolve: Resolve,
    begin: Instant,
    config: Config,
}

pub(super) struct State {
    medium: Box<dyn Medium>,
    paths: Paths,
    waiting: BTreeMap<Vec<u8>, VecDeque<Wish>>,
    /// Requests that the program was given: what comes of them again is no other request.
    given: Given,
    rejections: VecDeque<(Peer, u64, Vec<u8>)>,
    /// The key of what peers show that they hear us with: SipHash under a key from the system's generator.
    proofs: RandomState,
    datagram: Vec<u8>,
    out: Vec<u8>,
    /// Connections that a turn has to do with.
    tags: Vec<u64>,
    /// VIs that have news which nobody polled for yet.
    news: Vec<u32>,
    /// Threads that sleep until there are news.
    pub(super) sleepers: u32,
    /// When a program polled last.
    pub(super) polled: Duration,
    /// Until when the node's thread sleeps if nothing wakes it; zero while it works.
    pub(super) sleeps_until: Duration,
    /// There are requests that nobody who waits for one was told of.
    has_wishes: bool,
}

/// All connections, and which of them there is something to do for: a turn costs what happens, not what there is.
#[derive(Default)]
struct Paths {
    by_tag: BTreeMap<u64, Path>,
    /// Those that were accepted, by who asked and his tag.
    accepted: BTreeMap<(Peer, u64), u64>,
    /// When each has something to do next.
    due: BTreeSet<(Duration, u64)>,
    /// Those whose VI has not taken all events.
    holding: BTreeSet<u64>,
}

/// A connection with its peer.
struct Path {
    connection: Connection,
    peer: Peer,
    /// The VI it belongs to; none before it is accepted or after it was left.
    vi: Option<u32>,
    events: VecDeque<Event>,
    /// Something found no room: when there is some again, the VI is told.
    wants_room: bool,
    /// Its time in `Paths::due`.
    due: Option<Duration>,
    /// Since when it is left: it delivers what is under way, then closes.
    left: Option<Duration>,
}

struct Wish {
    peer: Peer,
    opening: Opening,
    greeting: Greeting,
}

impl Node {
    pub(super) fn new(medium: Box<dyn Medium>, config: Config) -> Result<Arc<Self>, Error> {
        let resolve = medium.resolve();
        let state = State {
            medium,
            paths: Paths::default(),
            waiting: BTreeMap::new(),
            given: Given::default(),
            rejections: VecDeque::new(),
            proofs: RandomState::new(),
            datagram: Vec::new(),
            out: Vec::new(),
            tags: Vec::new(),
            news: Vec::new(),
            sleepers: 0,
            polled: Duration::ZERO,
            sleeps_until: Duration::ZERO,
            has_wishes: false,
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            turn: Mutex::new(()),
            changes: Mutex::new(0),
            changed: Condvar::new(),
            attention: OnceLock::new(),
            wakeup: Wakeup::new()?,
            is_closed: AtomicBool::new(false),
            resolve,
            begin: Instant::now(),
            config,
        }))
    }

    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Whoever waits for the state has the turn, and nobody comes before him: a thread that looks again and again would otherwise find the
    /// state free each time before one that has just been woken for it, on a busy machine for seconds.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, u64> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has whoever waits for a change look.
    fn tell_of_change(&self) {
        let mut changes = self.changes();
        *changes = changes.wrapping_add(1);
        self.changed.notify_all();
    }

    /// Waits for a change, up to a time, without the lock.
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

    /// The configuration of a connection to `peer`: its largest datagram, and a window that the medium has room for.
    fn config_for(&self, state: &State, peer: Peer) -> Config {
        let max_datagram = state.medium.max_datagram(peer).max(MIN_DATAGRAM as u16);
        let window = (state.medium.room() / usize::from(max_datagram)).clamp(4, 256) as u16;
        Config { max_datagram, window, ..self.config }
    }

    // ---- connecting -------------------------------------------------------------------------------------------------

    /// The host part of an address, in the form in which peers are told of.
    pub(super) fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        let peer = (self.resolve)(host)?;
        Ok(self.lock().medium.host(peer))
    }

    /// The same of an address of our own; one that stands for all of this host's addresses is none that a peer knows.
    pub(super) fn named_host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        match (self.resolve)(host)? {
            Peer::Socket(any) if any.ip().is_unspecified() => Err(Error::InvalidParameter(format!(
                "{any} stands for every address of this host: name the one that the peer knows in the local address"
            ))),
            named => Ok(self.lock().medium.host(named)),
        }
    }

    pub(super) fn wait(
        self: &Arc<Self>,
        local: &Address,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Incoming>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(wish) = state.waiting.entry(local.discriminator.clone()).or_default().pop_front() {
                let from = wish.greeting.address(state.medium.host(wish.peer));
                let asked = (wish.peer, wish.opening.from);
                state.given.give(asked);
                let (node, wish) = (self.clone(), Some(wish));
                return Ok(Box::new(Asked { node, from, asked, wish }));
            }
            state = self.pause(state, deadline)?;
        }
    }

    /// A turn by a thread of the program.
    fn turn(&self, state: &mut State, now: Duration) {
        state.turn(now);
        if std::mem::take(&mut state.has_wishes) {
            self.tell_of_change();
        }
    }

    /// After something was sent or taken: the node's thread has to know when it is time for more, since the program may not call again.
    fn wake_in_time(&self, state: &mut State) {
        if state.next_due().is_some_and(|at| at + pump::LEAVE_TO_PROGRAMS < state.sleeps_until) {
            state.sleeps_until = Duration::ZERO;
            self.wakeup.ring();
        }
    }

    /// Waits for a change, while the node's thread works. An error when the deadline has passed.
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

    pub(super) fn request(
        self: &Arc<Self>,
        vi: u32,
        local: &Address,
        remote: &Address,
        attributes: &ViAttributes,
        deadline: Option<Instant>,
    ) -> Result<Established, Error> {
        let peer = (self.resolve)(&remote.host)?;
        let mut state = self.lock();
        let greeting = Greeting {
            asked: remote.discriminator.clone(),
            asking: local.discriminator.clone(),
            attributes: *attributes,
        };
        let tag = state.fresh_tag()?;
        let connection = Connection::open(self.config_for(&state, peer), tag, &greeting.write(), self.now());
        state.paths.insert(tag, Path::new(connection, peer, vi));
        self.wakeup.ring();
        let answer = loop {
            self.turn(&mut state, self.now());
            if !state.news.is_empty() {
                // They are other VIs': the node's thread tells them.
                self.wakeup.ring();
            }
            if let Some(answer) = state.paths.take_event(tag) {
                break answer;
            }
            match self.pause(state, deadline) {
                Ok(again) => state = again,
                Err(error) => {
                    self.leave(tag);
                    return Err(error);
                }
            }
        };
        let outcome = match answer {
            Event::Opened(words) => Greeting::read(&words).ok_or(Error::Rejected),
            Event::Rejected(words) if words == NOBODY => Err(Error::NoMatch(remote.to_string())),
            Event::Rejected(_) => Err(Error::Rejected),
            // Silence: no process has that socket, or the network is cut.
            _ => Err(Error::NoMatch(remote.to_string())),
        };
        drop(state);
        match outcome {
            Ok(greeting) => {
                let link = DatagramLink::new(self.clone(), tag, attributes.reliability);
                Ok(Established { link: Box::new(link), remote_attributes: greeting.attributes })
            }
            Err(error) => {
                self.leave(tag);
                Err(error)
            }
        }
    }

    // ---- a link's side ----------------------------------------------------------------------------------------------

    pub(super) fn send(&self, tag: u64, parts: &[&[u8]]) -> Result<u64, SendError> {
        let now = self.now();
        let mut state = self.lock();
        state.polled = now;
        let State { medium, paths, out, .. } = &mut *state;
        let path = paths.by_tag.get_mut(&tag).ok_or(SendError::NotOpen)?;
        let sent = path.connection.send(parts);
        path.wants_room |= sent == Err(SendError::Full);
        path.transmit(now, &mut **medium, out);
        paths.schedule(tag);
        self.wake_in_time(&mut state);
        sent
    }

    /// Whether a connection would not refuse a message as one too many. If it would, its VI is told when that ends.
    pub(super) fn has_room(&self, tag: u64) -> bool {
        let mut state = self.lock();
        let Some(path) = state.paths.by_tag.get_mut(&tag) else { return true };
        path.wants_room = path.connection.is_full();
        !path.wants_room
    }

    /// What happened on a connection; with `looks`, the medium is looked at before.
    pub(super) fn poll(&self, tag: u64, looks: bool) -> Option<Event> {
        let mut state = self.lock();
        if looks && !state.paths.holding.contains(&tag) {
            let now = self.now();
            state.polled = now;
            self.turn(&mut state, now);
            // There is room for its events again.
            state.settle(now, tag);
            if !state.news.is_empty() {
                // Some are other VIs': the node's thread tells them.
                let own = state.paths.by_tag.get(&tag).and_then(|path| path.vi);
                state.news.retain(|vi| Some(*vi) != own);
                if !state.news.is_empty() {
                    self.wakeup.ring();
                }
                self.tell_of_change();
            }
        }
        let event = state.paths.take_event(tag);
        self.wake_in_time(&mut state);
        event
    }

    /// A thread sleeps from now on, or does no longer.
    pub(super) fn arm(&self, sleeps: bool) {
        let mut state = self.lock();
        if sleeps {
            state.sleepers += 1;
            drop(state);
            self.wakeup.ring();
        } else {
            state.sleepers = state.sleepers.saturating_sub(1);
        }
    }

    /// Nobody cares for the connection any more: it delivers what is under way, then closes.
    pub(super) fn leave(&self, tag: u64) {
        let now = self.now();
        let mut state = self.lock();
        if let Some(path) = state.paths.by_tag.get_mut(&tag) {
            (path.vi, path.left) = (None, Some(now));
            path.events.clear();
            state.settle(now, tag);
        }
        drop(state);
        self.wakeup.ring();
    }

    /// Works until nothing is to be done now; gives the VIs that have news.
    pub(super) fn work(&self) -> Vec<u32> {
        let mut state = self.lock();
        let now = self.now();
        state.sleeps_until = Duration::ZERO;
        state.turn(now);
        state.has_wishes = false;
        let mut news = std::mem::take(&mut state.news);
        // Whoever polled last may have gone to sleep before it took all.
        let paths = &state.paths;
        news.extend(paths.holding.iter().filter_map(|tag| paths.by_tag.get(tag)?.vi));
        news.sort_unstable();
        news.dedup();
        self.tell_of_change();
        news
    }

    /// Says goodbye on every connection, as soon as what was sent has arrived, or as late as a peer that does not take it allows.
    pub(super) fn close(&self) {
        let begin = self.now();
        let mut state = self.lock();
        loop {
            let now = self.now();
            self.turn(&mut state, now);
            if now.saturating_sub(begin) >= LINGER || !state.paths.by_tag.values().any(Path::delivers) {
                break;
            }
            // The node's thread works meanwhile, and may end before it says so.
            state = self.wait_for_change(state, Some(CLOSING_LOOK));
        }
        let now = self.now();
        let State { medium, paths, out, .. } = &mut *state;
        for path in paths.by_tag.values_mut() {
            path.connection.close(now);
            path.transmit(now, &mut **medium, out);
        }
        self.is_closed.store(true, Ordering::Release);
        self.wakeup.ring();
    }
}

impl Paths {
    fn insert(&mut self, tag: u64, path: Path) {
        self.by_tag.insert(tag, path);
        self.schedule(tag);
    }

    fn remove(&mut self, tag: u64) {
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
    fn schedule(&mut self, tag: u64) {
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

    /// The connections for which it is time.
    fn take_due(&mut self, now: Duration, tags: &mut Vec<u64>) {
        while let Some((at, tag)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, tag));
            if let Some(path) = self.by_tag.get_mut(&tag) {
                path.due = None;
            }
            tags.push(tag);
        }
    }

    fn take_event(&mut self, tag: u64) -> Option<Event> {
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
    fn new(connection: Connection, peer: Peer, vi: u32) -> Path {
        let events = VecDeque::new();
        Path { connection, peer, vi: Some(vi), events, wants_room: false, due: None, left: None }
    }

    fn transmit(&mut self, now: Duration, medium: &mut dyn Medium, out: &mut Vec<u8>) {
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
    fn listen(&mut self) -> bool {
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

    fn deadline(&self) -> Option<Duration> {
        // What closes already has its own times.
        let linger = self.left.filter(|_| self.connection.is_open()).map(|at| at + LINGER);
        self.connection.deadline().into_iter().chain(linger).min()
    }

    /// Whether something that was sent is still on its way.
    fn delivers(&self) -> bool {
        self.connection.is_open() && !self.connection.is_drained()
    }

    fn is_over(&self) -> bool {
        self.connection.is_over() && self.left.is_some()
    }
}

impl State {
    /// A tag that nobody can tell from those that were seen before: from the system's generator.
    fn fresh_tag(&self) -> Result<u64, Error> {
        loop {
            let tag = getrandom::u64()
                .map_err(|error| Error::system("drawing a connection's tag", error.into()))?;
            if tag != 0 && !self.paths.by_tag.contains_key(&tag) {
                return Ok(tag);
            }
        }
    }

    /// When there is something to do next for one of the connections.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.paths.due.first().map(|(at, _)| *at)
    }

    pub(super) fn readable(&self) -> std::os::fd::RawFd {
        self.medium.readable()
    }

    /// Takes what has come, and sends what is due.
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
        // Once each: packets of one connection come in rows.
        tags.dedup();
        tags.drain(..).for_each(|tag| self.settle(now, tag));
        self.tags = tags;
    }

    /// Does what is to be done for a connection to which something has happened, or for which it is time.
    fn settle(&mut self, now: Duration, tag: u64) {
        let Self { medium, paths, out, news, .. } = self;
        let Some(path) = paths.by_tag.get_mut(&tag) else { return };
        if path.left.is_some() || path.deadline().is_some_and(|at| at <= now) {
            path.transmit(now, &mut **medium, out);
        }
        if path.listen() {
            news.extend(path.vi);
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

    /// Takes a packet in; gives the connection that it is for.
    fn arrived(&mut self, now: Duration, peer: Peer, packet: &Packet) -> Option<u64> {
        if packet.kind == Kind::Open {
            return self.asked(now, peer, packet);
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

    /// Somebody asks for a connection; gives the one that he has already.
    fn asked(&mut self, now: Duration, peer: Peer, packet: &Packet) -> Option<u64> {
        if let Some(tag) = self.paths.accepted.get(&(peer, packet.from)).copied() {
            self.paths.by_tag.get_mut(&tag)?.connection.receive(now, packet);
            return Some(tag);
        }
        if let Some((_, _, answer)) = self.rejections.iter().find(|r| (r.0, r.1) == (peer, packet.from)) {
            self.medium.send(peer, answer);
            return None;
        }
        let opening = Opening::read(packet)?;
        let greeting = Greeting::read(&opening.request)?;
        if !self.proves_itself(now, peer, packet) {
            self.out.clear();
            ask_again(packet, self.proof(now, peer, packet.from), &mut self.out);
            self.medium.send(peer, &self.out);
            return None;
        }
        match self.given.find(&(peer, packet.from)) {
            Some(Stage::Open) => return None,
            Some(Stage::Answered) => {
                self.reject(peer, &opening, REFUSED);
                return None;
            }
            None => {}
        }
        let of_host = |wish: &&Wish| wish.peer.of_host() == peer.of_host();
        let wishes = self.waiting.get_mut(&greeting.asked);
        match wishes {
            Some(wishes) if wishes.iter().any(|w| (w.peer, w.opening.from) == (peer, packet.from)) => {}
            Some(wishes)
                if wishes.len() < MOST_REQUESTS
                    && wishes.iter().filter(of_host).count() < MOST_REQUESTS_OF_HOST =>
            {
                wishes.push_back(Wish { peer, opening, greeting });
                self.has_wishes = true;
            }
            Some(_) => self.reject(peer, &opening, REFUSED),
            None => self.reject(peer, &opening, NOBODY),
        }
        None
    }

    /// What only somebody who gets datagrams at `peer` knows. Never 0.
    fn proof(&self, at: Duration, peer: Peer, from: u64) -> u64 {
        self.proofs.hash_one((at.as_secs() / PROOF_PERIOD.as_secs(), peer, from)).max(1)
    }

    /// Whether the sender of an `Open` has had our answer, and does not only give an address that is somebody else's: requests
    /// that cost nothing to forge must not take the places of others.
    fn proves_itself(&self, now: Duration, peer: Peer, packet: &Packet) -> bool {
        [now, now.saturating_sub(PROOF_PERIOD)]
            .into_iter()
            .any(|at| packet.to == self.proof(at, peer, packet.from))
    }

    fn reject(&mut self, peer: Peer, opening: &Opening, words: &[u8]) {
        // Without a tag the peer hears nothing, and asks again.
        let Ok(tag) = self.fresh_tag() else { return };
        let mut answer = Vec::new();
        opening.reject(tag, words, &mut answer);
        self.medium.send(peer, &answer);
        if self.rejections.len() == MOST_REJECTIONS {
            self.rejections.pop_front();
        }
        self.rejections.push_back((peer, opening.from, answer));
    }
}

/// A peer that asks.
struct Asked {
    node: Arc<Node>,
    from: Address,
    asked: (Peer, u64),
    wish: Option<Wish>,
}

/// What the engine is told of a peer that was answered already.
static NOTHING: ViAttributes = ViAttributes {
    reliability: crate::attributes::Reliability::Unreliable,
    max_transfer_bytes: 0,
    tag: crate::protection::ProtectionTag(0),
    rdma_write: false,
    rdma_read: false,
};

impl Incoming for Asked {
    fn remote(&self) -> &Address {
        &self.from
    }

    fn remote_attributes(&self) -> &ViAttributes {
        self.wish.as_ref().map_or(&NOTHING, |wish| &wish.greeting.attributes)
    }

    fn accept(
        mut self: Box<Self>,
        vi: u32,
        attributes: &ViAttributes,
        _tag: u32,
    ) -> Result<Box<dyn Link>, Error> {
        let Some(wish) = self.wish.take() else {
            return Err(Error::NoMatch("the request was answered already".into()));
        };
        let greeting = Greeting { attributes: *attributes, ..wish.greeting.clone() };
        let node = self.node.clone();
        let now = node.now();
        let mut state = node.lock();
        let tag = state.fresh_tag()?;
        let config = node.config_for(&state, wish.peer);
        let connection = Connection::accept(config, tag, &wish.opening, &greeting.write(), now);
        let mut path = Path::new(connection, wish.peer, vi);
        let State { medium, out, paths, .. } = &mut *state;
        path.transmit(now, &mut **medium, out);
        paths.insert(tag, path);
        paths.accepted.insert((wish.peer, wish.opening.from), tag);
        drop(state);
        node.wakeup.ring();
        Ok(Box::new(DatagramLink::new(node, tag, attributes.reliability)))
    }

    fn reject(self: Box<Self>) {}
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.node.lock();
        // Whoever asked has to show by then that it still hears us.
        state.given.answer(self.asked, self.node.now(), 2 * PROOF_PERIOD);
        if let Some(wish) = self.wish.take() {
            state.reject(wish.peer, &wish.opening, REFUSED);
        }
    }
}

/// The longest message that a connection carries for a transfer of `bytes`.
pub(super) const fn message_bytes(bytes: u32) -> u32 {
    bytes + HEAD_BYTES as u32
}
