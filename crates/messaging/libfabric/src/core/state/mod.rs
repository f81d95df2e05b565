//! The state of an endpoint: connections, posted receives, and unexpected messages. One lock protects it.

mod ending;
#[cfg(test)]
mod hostile_tests;
mod receiving;
mod remote_memory;
mod sending;

use super::address::Name;
use super::address_vector::AddressVector;
use super::completion::{Completed, CompletionQueue};
use super::connection::Connection;
use super::counter::Counter;
use super::error::Failure;
use super::link::Link;
use super::matching::MatchList;
use super::memory_keys::MemoryKeys;
use super::operation::{Intent, Receive};
use super::wire::Window;
use crate::abi::constants::{
    ADDR_NOTAVAIL, READ, RECV, REMOTE_CQ_DATA, REMOTE_READ, REMOTE_WRITE, SEND, TAGGED, WRITE,
};
use longma_via::Nic;
use slab::Slab;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

pub(crate) use sending::MAX_WAITING;

/// A message that matches no posted receive.
pub(crate) enum Unexpected {
    /// Its bytes have been received.
    Message { data: Option<u64>, bytes: Vec<u8> },
    /// A message whose bytes are in the sender's memory.
    Offer { id: u32, data: Option<u64>, window: Window },
}

impl Unexpected {
    /// The length of the message, bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Message { bytes, .. } => bytes.len(),
            Self::Offer { window, .. } => window.len(),
        }
    }

    pub(crate) fn data(&self) -> Option<u64> {
        match self {
            Self::Message { data, .. } | Self::Offer { data, .. } => *data,
        }
    }

    /// The memory that it occupies.
    fn memory(&self) -> usize {
        size_of::<Self>() + if let Self::Message { bytes, .. } = self { bytes.len() } else { 0 }
    }
}

pub(crate) type Arrived = super::matching::Arrived<Unexpected>;

/// The state that a domain's endpoints share.
pub(crate) struct Shared {
    pub(crate) nic: Nic,
    pub(crate) keys: MemoryKeys,
    /// Held during an atomic operation on the domain's memory.
    pub(crate) atomics: Mutex<()>,
    /// The names of the endpoints. The NIC itself would let two endpoints listen at the same name.
    pub(crate) names: Arc<Mutex<HashSet<Name>>>,
}

/// The configuration of an endpoint.
pub(crate) struct Setup {
    pub(crate) name: Name,
    /// Endpoints of type MSG have none.
    pub(crate) vector: Option<Arc<AddressVector>>,
    pub(crate) transmit: Option<Arc<CompletionQueue>>,
    pub(crate) receive: Option<Arc<CompletionQueue>>,
    /// Counters, with the operations that they count.
    pub(crate) counters: Vec<(u64, Arc<Counter>)>,
    /// The limit of the memory for unexpected messages, bytes.
    pub(crate) max_unexpected: usize,
    /// Called, under the endpoint's lock, when the connection of an endpoint of type MSG is established or has ended.
    pub(crate) notify: Option<Notify>,
}

/// A change of the connection of an endpoint of type MSG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    Connected,
    /// It was not established.
    Failed(Failure),
    Ended,
}

pub(crate) type Notify = Box<dyn Fn(Notice) + Send>;

impl Setup {
    /// Reports a completion.
    fn report(&self, completed: Completed, reports: bool) {
        let failed = completed.failure.is_some();
        let kinds = completed.flags & (SEND | RECV | READ | WRITE | REMOTE_READ | REMOTE_WRITE);
        for (counted, counter) in &self.counters {
            if counted & kinds != 0 {
                counter.count(failed);
            }
        }
        let is_receive = completed.flags & (RECV | REMOTE_READ | REMOTE_WRITE) != 0;
        let queue = if is_receive { &self.receive } else { &self.transmit };
        if let (true, Some(queue)) = (reports || failed, queue) {
            queue.push(completed);
        }
    }

    /// Reports the end of an operation of this side.
    fn report_sent(&self, intent: &Intent, length: usize, failure: Option<Failure>) {
        let completed = Completed {
            context: intent.context,
            flags: intent.flags,
            length,
            buffer: 0,
            data: 0,
            tag: 0,
            source: ADDR_NOTAVAIL,
            failure: failure.map(|failure| (failure, 0)),
        };
        self.report(completed, intent.reports);
    }

    /// Reports the end of a receive.
    fn report_received(&self, receive: &Receive, received: Received, failure: Option<Failure>) {
        let Received { length, tag, data, source } = received;
        let capacity = receive.buffer.len();
        let failure = failure.or((length > capacity).then_some(Failure::TRUNCATED));
        let completed = Completed {
            context: receive.intent.context,
            flags: receive.intent.flags | if data.is_some() { REMOTE_CQ_DATA } else { 0 },
            length: length.min(capacity),
            buffer: receive.buffer.address(),
            data: data.unwrap_or(0),
            tag,
            source,
            failure: failure.map(|failure| (failure, length.saturating_sub(capacity))),
        };
        self.report(completed, receive.intent.reports);
    }
}

/// A received message, without its bytes.
#[derive(Debug, Clone, Copy)]
struct Received {
    length: usize,
    tag: u64,
    data: Option<u64>,
    source: u64,
}

/// The state of an endpoint.
pub(crate) struct State {
    pub(crate) setup: Setup,
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Slab<Connection>,
    /// The connections by the numbers of their VIs.
    by_vi: HashMap<u32, usize>,
    /// The connection on which messages to a peer are sent.
    by_name: HashMap<Name, usize>,
    /// The connections of `by_name`, by the peers' numbers in the address vector at `generation`.
    by_number: Vec<Option<usize>>,
    generation: u64,
    /// The peers whose connection has ended, with the reasons.
    ended: HashMap<Name, Failure>,
    /// The only connection of an endpoint of type MSG.
    pub(crate) only: Option<usize>,
    /// Why the connection in `only` has ended. `None` once the endpoint has another connection.
    only_ended: Option<Failure>,
    pub(crate) messages: MatchList<Receive, Unexpected>,
    pub(crate) tagged: MatchList<Receive, Unexpected>,
    /// The memory of unexpected messages, bytes.
    unexpected_bytes: usize,
    /// Messages that a peek has claimed, with the context of the claim.
    claimed: Vec<(usize, Arrived)>,
    /// Connections with descriptors in their send queue, frames that wait, or held frames.
    busy: Vec<usize>,
}

/// A connection that a thread must establish.
pub(crate) struct Wanted {
    pub(crate) connection: usize,
    pub(crate) peer: Name,
    /// Whether to retry while the peer does not listen yet.
    pub(crate) may_start: bool,
}

impl State {
    pub(crate) fn new(setup: Setup, shared: Arc<Shared>) -> Self {
        Self {
            setup,
            shared,
            connections: Slab::new(),
            by_vi: HashMap::new(),
            by_name: HashMap::new(),
            by_number: Vec::new(),
            generation: u64::MAX,
            ended: HashMap::new(),
            only: None,
            only_ended: None,
            messages: MatchList::default(),
            tagged: MatchList::default(),
            unexpected_bytes: 0,
            claimed: Vec::new(),
            busy: Vec::new(),
        }
    }

    /// Adopts changes of the address vector.
    pub(crate) fn refresh(&mut self) {
        let Some(vector) = &self.setup.vector else { return };
        let generation = vector.generation();
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        self.by_number.clear();
        for (_, connection) in &mut self.connections {
            connection.source =
                connection.peer.and_then(|peer| vector.number(&peer)).unwrap_or(ADDR_NOTAVAIL);
        }
        for list in [&mut self.messages, &mut self.tagged] {
            for arrived in list.unexpected() {
                if let Some(connection) = arrived.connection.and_then(|key| self.connections.get(key)) {
                    arrived.source = connection.source;
                }
            }
        }
    }

    /// The connection to a peer, and whether it must be established.
    ///
    /// # Errors
    /// `EINVAL` if the address vector does not have the number; `ENOTCONN`.
    pub(crate) fn connection_to(&mut self, number: u64) -> Result<(usize, Option<Wanted>), i32> {
        let Some(vector) = &self.setup.vector else {
            return self.only.map(|key| (key, None)).ok_or(libc::ENOTCONN);
        };
        let vector = vector.clone();
        self.refresh();
        let place = usize::try_from(number).map_err(|_| libc::EINVAL)?;
        if let Some(&Some(key)) = self.by_number.get(place) {
            return Ok((key, None));
        }
        let peer = vector.name(number).ok_or(libc::EINVAL)?;
        let (key, wanted) = match self.by_name.get(&peer) {
            Some(&key) => (key, None),
            None => {
                let key = self.connections.insert(Connection::new(Some(peer), None));
                self.connections[key].source = number;
                self.by_name.insert(peer, key);
                let may_start = !self.ended.contains_key(&peer);
                (key, Some(Wanted { connection: key, peer, may_start }))
            }
        };
        if self.by_number.len() <= place {
            self.by_number.resize(place + 1, None);
        }
        self.by_number[place] = Some(key);
        Ok((key, wanted))
    }

    /// The reason for the end of the last connection to a peer. `None` if a connection exists, or if there has never
    /// been one, so that the peer may still connect. For an endpoint of type MSG, `number` has no meaning.
    fn why_ended(&self, number: u64) -> Option<Failure> {
        let Some(vector) = &self.setup.vector else { return self.only_ended };
        if number == ADDR_NOTAVAIL || self.ended.is_empty() {
            return None;
        }
        let peer = vector.name(number)?;
        if self.by_name.contains_key(&peer) { None } else { self.ended.get(&peer).copied() }
    }

    /// Adopts a connection that a peer has established. `peer` is its name, if it can be trusted.
    pub(crate) fn adopt(&mut self, peer: Option<Name>, link: Link) -> usize {
        let vi = link.vi.number();
        let key = self.connections.insert(Connection::new(peer, Some(link)));
        self.by_vi.insert(vi, key);
        let vector = self.setup.vector.as_ref();
        if let (Some(peer), Some(vector)) = (peer, vector) {
            self.connections[key].source = vector.number(&peer).unwrap_or(ADDR_NOTAVAIL);
            // If both sides connect, messages are sent on the first connection only, so that they stay in order.
            self.by_name.entry(peer).or_insert(key);
            self.ended.remove(&peer);
        }
        self.receive_unannounced(key);
        key
    }

    /// Adopts the outcome of connecting.
    pub(crate) fn connected(&mut self, key: usize, outcome: Result<Link, Failure>) {
        match outcome {
            Ok(link) => {
                let Some(connection) = self.connections.get_mut(key) else { return };
                self.by_vi.insert(link.vi.number(), key);
                connection.link = Some(link);
                if let Some(peer) = connection.peer {
                    self.ended.remove(&peer);
                }
                if self.only == Some(key) {
                    self.notify(Notice::Connected);
                }
                self.mark_busy(key);
                self.pump(key);
                self.receive_unannounced(key);
            }
            Err(failure) => self.end(key, failure),
        }
    }

    /// Makes a connection the only one of an endpoint of type MSG.
    ///
    /// # Errors
    /// `EISCONN`.
    pub(crate) fn set_only(&mut self, connection: Connection) -> Result<usize, i32> {
        if self.only.is_some() {
            return Err(libc::EISCONN);
        }
        if let Some(link) = &connection.link {
            self.by_vi.insert(link.vi.number(), self.connections.vacant_key());
        }
        let key = self.connections.insert(connection);
        self.only = Some(key);
        self.only_ended = None;
        Ok(key)
    }

    pub(crate) fn notify(&self, notice: Notice) {
        if let Some(notify) = &self.setup.notify {
            notify(notice);
        }
    }

    /// Processes frames whose notifications came before the connection was known.
    pub(crate) fn receive_unannounced(&mut self, key: usize) {
        while self.receive_frame(key) {}
    }

    pub(crate) fn key_of_vi(&self, vi: u32) -> Option<usize> {
        self.by_vi.get(&vi).copied()
    }

    fn mark_busy(&mut self, key: usize) {
        if !self.busy.contains(&key) {
            self.busy.push(key);
        }
    }

    /// Continues waiting sends and held frames.
    pub(crate) fn continue_busy(&mut self) {
        let mut place = 0;
        while let Some(&key) = self.busy.get(place) {
            self.process_held(key);
            self.pump(key);
            let is_busy = self.connections.get(key).is_some_and(|connection| {
                let is_waiting = !connection.waiting.is_empty() || !connection.replies.is_empty();
                !connection.posted.is_empty() || is_waiting || !connection.held.is_empty()
            });
            // The end of a connection may have changed the list.
            match self.busy.get(place) {
                Some(&other) if other != key => {}
                Some(_) if is_busy => place += 1,
                Some(_) => drop(self.busy.swap_remove(place)),
                None => {}
            }
        }
    }

    /// Whether sends wait for an event without a notification.
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Whether all sent data has left this side.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.iter().all(|(_, connection)| connection.is_idle())
    }

    /// The list of tagged or other messages.
    fn list(&mut self, is_tagged: bool) -> &mut MatchList<Receive, Unexpected> {
        if is_tagged { &mut self.tagged } else { &mut self.messages }
    }

    /// Withdraws the oldest receive with this context; true if there was one.
    pub(crate) fn cancel(&mut self, context: usize) -> bool {
        for is_tagged in [true, false] {
            let withdrawn = self.list(is_tagged).withdraw(|_, receive| receive.intent.context == context);
            if let Some((pattern, receive)) = withdrawn {
                let tag = if is_tagged { pattern.tag } else { 0 };
                debug_assert_eq!(is_tagged, receive.intent.flags & TAGGED != 0);
                let received = Received { length: 0, tag, data: None, source: ADDR_NOTAVAIL };
                self.setup.report_received(&receive, received, Some(Failure::CANCELLED));
                return true;
            }
        }
        false
    }
}
