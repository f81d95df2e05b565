//! Establishes the connections of a datagram NIC: outgoing and incoming requests and their answers.
//!
//! Source: VIA, VI connection and disconnection.

use super::super::link::DatagramLink;
use super::super::message::{ConnectionParameters, HEAD_BYTES};
use super::super::{MAX_TRANSFER_BYTES, TimeLimits};
use super::paths::Path;
use super::taken_requests::Stage;
use super::{Node, Peer, State};
use crate::address::Address;
use crate::attributes::ViAttributes;
use crate::error::Error;
use crate::provider::{Established, Incoming, Link};
use longma_reliable::{Config, Connection, Event, MIN_DATAGRAM, Opening, Packet, request_cookie};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of requests waiting at an address, in total and from one host. Further requests are rejected.
const MAX_REQUESTS: usize = 1024;
const MAX_REQUESTS_PER_HOST: usize = 64;

/// A connection cookie is valid for one to two of these periods.
const COOKIE_PERIOD: Duration = Duration::from_secs(10);

/// The number of rejections remembered, to be repeated when a request is repeated.
const MAX_REJECTIONS: usize = 64;

/// Reasons in rejections: no process is waiting at the address, or the request was rejected.
const NO_LISTENER: &[u8] = b"nobody";
const REFUSED: &[u8] = b"refused";

/// While a client waits for the answer, it repeats its request at least once in this time.
const REPETITION_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct PendingRequest {
    peer: Peer,
    opening: Opening,
    parameters: ConnectionParameters,
    /// When the request was received last.
    received: Duration,
}

impl PendingRequest {
    /// Whether the client may still wait for the answer.
    fn is_current(&self, now: Duration) -> bool {
        now.saturating_sub(self.received) < REPETITION_LIMIT
    }
}

impl Node {
    /// The host part of an address in canonical form.
    pub(in super::super) fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        let peer = (self.resolve)(host)?;
        Ok(self.lock().medium.host(peer))
    }

    /// Like [`Node::host`], for an address of this NIC. Refuses the unspecified address, which peers cannot use.
    pub(in super::super) fn named_host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        match (self.resolve)(host)? {
            Peer::Socket(any) if any.ip().is_unspecified() => Err(Error::InvalidParameter(format!(
                "{any} is the unspecified address: give the address that the peer uses as the local address"
            ))),
            named => Ok(self.lock().medium.host(named)),
        }
    }

    pub(in super::super) fn listen(&self, local: &Address) {
        self.lock().waiting.entry(local.discriminator.clone()).or_default();
    }

    pub(in super::super) fn stop_listening(&self, local: &Address) {
        let mut state = self.lock();
        for PendingRequest { peer, opening, .. } in
            state.waiting.remove(&local.discriminator).unwrap_or_default()
        {
            state.reject(peer, &opening, NO_LISTENER);
        }
        drop(state);
        self.notify_change();
    }

    pub(in super::super) fn wait(
        self: &Arc<Self>,
        local: &Address,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Incoming>, Error> {
        self.listen(local);
        let mut state = self.lock();
        loop {
            let Some(waiting) = state.waiting.get_mut(&local.discriminator) else {
                return Err(Error::not_listening(local));
            };
            let now = self.now();
            waiting.retain(|pending| pending.is_current(now));
            if let Some(pending) = waiting.pop_front() {
                let from = pending.parameters.address(state.medium.host(pending.peer));
                let id = (pending.peer, pending.opening.from);
                state.taken_requests.give(id);
                let (node, pending) = (self.clone(), Some(pending));
                return Ok(Box::new(IncomingRequest { node, from, id, pending }));
            }
            state = self.pause(state, deadline)?;
        }
    }

    pub(in super::super) fn request(
        self: &Arc<Self>,
        vi: u32,
        local: &Address,
        remote: &Address,
        attributes: &ViAttributes,
        deadline: Option<Instant>,
    ) -> Result<Established, Error> {
        let peer = (self.resolve)(&remote.host)?;
        let mut state = self.lock();
        let parameters = ConnectionParameters {
            requested: remote.discriminator.clone(),
            requesting: local.discriminator.clone(),
            attributes: *attributes,
        };
        let tag = state.fresh_tag()?;
        let config = self.config_for(&state, peer, attributes);
        let connection = Connection::open(config, tag, &parameters.write(), self.now());
        state.paths.insert(tag, Path::new(connection, peer, vi, self.limits.linger));
        self.wakeup.signal();
        let answer = loop {
            self.turn(&mut state, self.now());
            if !state.vis_with_events.is_empty() {
                // Other VIs have events: let the NIC's thread notify them.
                self.wakeup.signal();
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
            Event::Opened(words) => ConnectionParameters::read(&words).ok_or(Error::Rejected),
            Event::Rejected(words) if words == NO_LISTENER => Err(Error::NoMatch(remote.to_string())),
            Event::Rejected(_) => Err(Error::Rejected),
            // No answer: no process has that socket, or the network is down.
            _ => Err(Error::NoMatch(remote.to_string())),
        };
        drop(state);
        match outcome {
            Ok(parameters) => {
                let link = DatagramLink::new(self.clone(), tag, attributes.reliability);
                Ok(Established { link: Box::new(link), remote_attributes: parameters.attributes })
            }
            Err(error) => {
                self.leave(tag);
                Err(error)
            }
        }
    }

    /// The configuration of a connection to `peer`: its maximum datagram size, a window that fits the receive buffer,
    /// and the maximum message size of the VI.
    fn config_for(&self, state: &State, peer: Peer, attributes: &ViAttributes) -> Config {
        let max_datagram = state.medium.max_datagram(peer).max(MIN_DATAGRAM as u16);
        let window = (state.medium.send_capacity() / usize::from(max_datagram)).clamp(4, 256) as u16;
        let max_message = attributes.max_transfer_bytes.min(MAX_TRANSFER_BYTES) + HEAD_BYTES as u32;
        let TimeLimits { give_up_after, blocked_after, .. } = self.limits;
        Config { max_datagram, window, max_message, give_up_after, blocked_after, ..Config::default() }
    }
}

impl State {
    /// A random tag that cannot be predicted from earlier ones.
    fn fresh_tag(&self) -> Result<u64, Error> {
        loop {
            let tag = getrandom::u64()
                .map_err(|error| Error::system("drawing a connection's tag", error.into()))?;
            if tag != 0 && !self.paths.by_tag.contains_key(&tag) {
                return Ok(tag);
            }
        }
    }

    /// Handles a connection request. Returns the tag of its connection if it has already been accepted.
    pub(super) fn handle_request(&mut self, now: Duration, peer: Peer, packet: &Packet) -> Option<u64> {
        if let Some(tag) = self.paths.accepted.get(&(peer, packet.from)).copied() {
            self.paths.by_tag.get_mut(&tag)?.connection.receive(now, packet);
            return Some(tag);
        }
        if let Some((_, _, answer)) = self.rejections.iter().find(|r| (r.0, r.1) == (peer, packet.from)) {
            self.medium.send(peer, answer);
            return None;
        }
        let opening = Opening::read(packet)?;
        let parameters = ConnectionParameters::read(&opening.request)?;
        if !self.has_valid_cookie(now, peer, packet) {
            self.out.clear();
            request_cookie(packet, self.cookie(now, peer, packet.from), &mut self.out);
            self.medium.send(peer, &self.out);
            return None;
        }
        match self.taken_requests.find(&(peer, packet.from)) {
            Some(Stage::Open) => return None,
            Some(Stage::Answered) => {
                self.reject(peer, &opening, REFUSED);
                return None;
            }
            None => {}
        }
        let Some(queue) = self.waiting.get_mut(&parameters.requested) else {
            self.reject(peer, &opening, NO_LISTENER);
            return None;
        };
        let is_same = |w: &&mut PendingRequest| (w.peer, w.opening.from) == (peer, packet.from);
        if let Some(pending) = queue.iter_mut().find(is_same) {
            pending.received = now;
            return None;
        }
        queue.retain(|pending| pending.is_current(now));
        let of_host = |pending: &&PendingRequest| pending.peer.of_host() == peer.of_host();
        if queue.len() < MAX_REQUESTS && queue.iter().filter(of_host).count() < MAX_REQUESTS_PER_HOST {
            queue.push_back(PendingRequest { peer, opening, parameters, received: now });
            self.has_new_requests = true;
        } else {
            self.reject(peer, &opening, REFUSED);
        }
        None
    }

    /// The connection cookie, which is known only to a peer that receives datagrams at `peer`. Never 0.
    fn cookie(&self, at: Duration, peer: Peer, from: u64) -> u64 {
        self.cookie_key.hash_one((at.as_secs() / COOKIE_PERIOD.as_secs(), peer, from)).max(1)
    }

    /// Whether the sender of an `Open` packet has received our cookie, so that its source address is not forged.
    /// Without this check, forged requests could crowd out genuine ones.
    fn has_valid_cookie(&self, now: Duration, peer: Peer, packet: &Packet) -> bool {
        [now, now.saturating_sub(COOKIE_PERIOD)]
            .into_iter()
            .any(|at| packet.to == self.cookie(at, peer, packet.from))
    }

    fn reject(&mut self, peer: Peer, opening: &Opening, words: &[u8]) {
        // Without a tag no answer is sent; the peer repeats its request.
        let Ok(tag) = self.fresh_tag() else { return };
        let mut answer = Vec::new();
        opening.reject(tag, words, &mut answer);
        self.medium.send(peer, &answer);
        if self.rejections.len() == MAX_REJECTIONS {
            self.rejections.pop_front();
        }
        self.rejections.push_back((peer, opening.from, answer));
    }
}

/// An incoming request.
struct IncomingRequest {
    node: Arc<Node>,
    from: Address,
    id: (Peer, u64),
    pending: Option<PendingRequest>,
}

/// The attributes reported for a request that has been answered already.
static NO_ATTRIBUTES: ViAttributes = ViAttributes {
    reliability: crate::attributes::Reliability::Unreliable,
    max_transfer_bytes: 0,
    tag: crate::protection::ProtectionTag(0),
    rdma_write: false,
    rdma_read: false,
};

impl Incoming for IncomingRequest {
    fn remote(&self) -> &Address {
        &self.from
    }

    fn remote_attributes(&self) -> &ViAttributes {
        self.pending.as_ref().map_or(&NO_ATTRIBUTES, |pending| &pending.parameters.attributes)
    }

    fn accept(
        mut self: Box<Self>,
        vi: u32,
        attributes: &ViAttributes,
        _tag: u32,
    ) -> Result<Box<dyn Link>, Error> {
        let Some(pending) = self.pending.take() else {
            return Err(Error::NoMatch("the request has already been answered".into()));
        };
        let parameters = ConnectionParameters { attributes: *attributes, ..pending.parameters.clone() };
        let node = self.node.clone();
        let now = node.now();
        let mut state = node.lock();
        let tag = state.fresh_tag()?;
        let config = node.config_for(&state, pending.peer, attributes);
        let connection = Connection::accept(config, tag, &pending.opening, &parameters.write(), now);
        let mut path = Path::new(connection, pending.peer, vi, node.limits.linger);
        let State { medium, out, paths, .. } = &mut *state;
        path.transmit(now, &mut **medium, out);
        paths.insert(tag, path);
        paths.accepted.insert((pending.peer, pending.opening.from), tag);
        drop(state);
        node.wakeup.signal();
        Ok(Box::new(DatagramLink::new(node, tag, attributes.reliability)))
    }

    fn reject(self: Box<Self>) {}
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        if self.node.is_forked_child() {
            return;
        }
        let mut state = self.node.lock();
        // Until then a copy of the request has a valid cookie and must be recognized; later its cookie is rejected.
        state.taken_requests.answer(self.id, self.node.now(), 2 * COOKIE_PERIOD);
        if let Some(pending) = self.pending.take() {
            state.reject(pending.peer, &pending.opening, REFUSED);
        }
    }
}
