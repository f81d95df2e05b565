//! A connection of an endpoint, with its unfinished operations.

use super::address::Name;
use super::buffer::Buffer;
use super::link::Link;
use super::operation::{Intent, Operation, Receive};
use super::slots::CREDITS;
use super::wire::Frame;
use crate::abi::constants::ADDR_NOTAVAIL;
use longma_via::MemoryRegion;
use slab::Slab;
use std::collections::VecDeque;

/// A descriptor in the send queue of the VI. The VI completes its descriptors in order.
pub(crate) enum Posted {
    /// A frame in a slot. `intent` is reported when the frame has been sent.
    Frame { slot: usize, length: usize, intent: Option<Intent> },
    /// An RDMA read of a pull; `is_last` if no other read of the pull follows.
    Read { pull: usize, is_last: bool },
}

/// A request that the peer has not answered.
pub(crate) enum Request {
    /// A message, whose bytes the peer may be reading.
    Offer { intent: Intent, length: usize, _registered: Vec<MemoryRegion> },
    /// A write, whose bytes the peer may be reading.
    Write { intent: Intent, length: usize, _registered: Vec<MemoryRegion> },
    /// A read or an atomic; the result goes to the buffer.
    Fetch { intent: Intent, result: Buffer },
    /// A fetch whose result this side is reading from a grant.
    Pulling,
}

/// Bytes that this side reads from the peer's memory by RDMA.
pub(crate) struct Pull {
    pub(crate) registered: Vec<MemoryRegion>,
    pub(crate) purpose: Purpose,
}

/// The operation that a pull serves.
pub(crate) enum Purpose {
    /// A message for a receive, which the peer numbers `id`.
    Receive { id: u32, receive: Receive, tag: u64, data: Option<u64>, length: usize },
    /// A write to the region with this key.
    Write { id: u32, key: u64, data: Option<u64>, length: usize },
    /// The result of a read of this side.
    Fetch { id: u32, grant: u32, intent: Intent, length: usize },
}

/// Memory that the peer may read as the result of its read.
pub(crate) struct Grant {
    /// Keeps the memory registered.
    pub(crate) _registered: Vec<MemoryRegion>,
    pub(crate) key: u64,
}

/// A connection. Its registrations are dropped before the link that owns their tag.
pub(crate) struct Connection {
    /// The peer; `None` if its process belongs to another user and could therefore claim any name.
    pub(crate) peer: Option<Name>,
    /// The peer's number in the address vector.
    pub(crate) source: u64,
    /// Frames that this side may send.
    pub(crate) credits: u16,
    /// Frames that the peer may send.
    pub(crate) granted: u16,
    /// Processed frames whose credits have not been returned.
    pub(crate) freed: u16,
    /// Requests of the peer, except offers, that are unanswered or whose grants the peer still uses.
    pub(crate) owed: usize,
    /// Offers of the peer that have not been answered.
    pub(crate) offered: usize,
    /// Unanswered requests of this side, except offers.
    pub(crate) asked: usize,
    /// Operations that wait for the connection, for credits, or for earlier operations.
    pub(crate) waiting: VecDeque<Operation>,
    /// Frames without credits that wait for a slot.
    pub(crate) replies: VecDeque<(Frame, Vec<u8>)>,
    pub(crate) posted: VecDeque<Posted>,
    pub(crate) requests: Slab<Request>,
    pub(crate) pulls: Slab<Pull>,
    pub(crate) grants: Slab<Grant>,
    /// Slots and lengths of received frames that exceed the memory for unexpected messages.
    pub(crate) held: VecDeque<(usize, usize)>,
    /// Whether the connection is ending: it receives frames that have arrived, but sends none.
    pub(crate) is_ending: bool,
    /// `None` while it connects.
    pub(crate) link: Option<Link>,
}

impl Connection {
    pub(crate) fn new(peer: Option<Name>, link: Option<Link>) -> Self {
        Self {
            peer,
            source: ADDR_NOTAVAIL,
            credits: CREDITS,
            granted: CREDITS,
            freed: 0,
            owed: 0,
            offered: 0,
            asked: 0,
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
            posted: VecDeque::new(),
            requests: Slab::new(),
            pulls: Slab::new(),
            grants: Slab::new(),
            held: VecDeque::new(),
            is_ending: false,
            link,
        }
    }

    /// Whether all operations are sent and answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.replies.is_empty()
            && self.posted.is_empty()
            && self.requests.is_empty()
    }
}
