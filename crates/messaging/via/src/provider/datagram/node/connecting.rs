//! How the connections of a datagram NIC come about: who is asked, who asks, and what is answered.
//! Not the connections (see `paths.rs`), nor the words (see `message.rs`).
//! Source: VIA, VI connection and disconnection.

use super::super::MAX_TRANSFER_BYTES;
use super::super::link::DatagramLink;
use super::super::message::{Greeting, HEAD_BYTES};
use super::given::Stage;
use super::paths::Path;
use super::{Node, Peer, State};
use crate::address::Address;
use crate::attributes::ViAttributes;
use crate::error::Error;
use crate::provider::{Established, Incoming, Link};
use longma_reliable::{Config, Connection, Event, MIN_DATAGRAM, Opening, Packet, ask_again};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that wait at one address, in all and of one host; more are refused.
const MOST_REQUESTS: usize = 1024;
const MOST_REQUESTS_OF_HOST: usize = 64;

/// How long what a peer is given to show that it hears us is good for: between this and twice this.
const PROOF_PERIOD: Duration = Duration::from_secs(10);

/// Rejections that are remembered, to be said again when the request comes again.
const MOST_REJECTIONS: usize = 64;

/// What the peer is told when nobody waits where it asks.
const NOBODY: &[u8] = b"nobody";
const REFUSED: &[u8] = b"refused";

pub(super) struct Wish {
    peer: Peer,
    opening: Opening,
    greeting: Greeting,
}

impl Node {
    /// The host part of an address, in the form in which peers are told of.
    pub(in super::super) fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        let peer = (self.resolve)(host)?;
        Ok(self.lock().medium.host(peer))
    }

    /// The same of an address of our own; one that stands for all of this host's addresses is none that a peer knows.
    pub(in super::super) fn named_host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        match (self.resolve)(host)? {
            Peer::Socket(any) if any.ip().is_unspecified() => Err(Error::InvalidParameter(format!(
                "{any} stands for every address of this host: name the one that the peer knows in the local address"
            ))),
            named => Ok(self.lock().medium.host(named)),
        }
    }

    pub(in super::super) fn wait(
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
        let greeting = Greeting {
            asked: remote.discriminator.clone(),
            asking: local.discriminator.clone(),
            attributes: *attributes,
        };
        let tag = state.fresh_tag()?;
        let config = self.config_for(&state, peer, attributes);
        let connection = Connection::open(config, tag, &greeting.write(), self.now());
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

    /// The configuration of a connection to `peer`: its largest datagram, a window that the medium has room for, and no longer messages
    /// than the VI takes.
    fn config_for(&self, state: &State, peer: Peer, attributes: &ViAttributes) -> Config {
        let max_datagram = state.medium.max_datagram(peer).max(MIN_DATAGRAM as u16);
        let window = (state.medium.room() / usize::from(max_datagram)).clamp(4, 256) as u16;
        let max_message = attributes.max_transfer_bytes.min(MAX_TRANSFER_BYTES) + HEAD_BYTES as u32;
        Config { max_datagram, window, max_message, ..Config::default() }
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

    /// Somebody asks for a connection; gives the one that he has already.
    pub(super) fn asked(&mut self, now: Duration, peer: Peer, packet: &Packet) -> Option<u64> {
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
        let config = node.config_for(&state, wish.peer, attributes);
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
        if self.node.is_a_childs() {
            return;
        }
        let mut state = self.node.lock();
        // Whoever asked has to show by then that it still hears us.
        state.given.answer(self.asked, self.node.now(), 2 * PROOF_PERIOD);
        if let Some(wish) = self.wish.take() {
            state.reject(wish.peer, &wish.opening, REFUSED);
        }
    }
}
