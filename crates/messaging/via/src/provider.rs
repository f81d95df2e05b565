//! The hardware boundary: what the engine asks of a provider, and what a provider may do to the engine.
//! Not a transport itself: those are the folders below, one a kind of hardware.
//! Source: VIA, VI provider; the division into NIC and VI functions is ours.
//!
//! The engine owns everything that the specification says about queues: formats, protection, states, completions, order.
//! A provider moves bytes between two connected VIs. Its view of a VI is a [`Link`]: the engine calls [`Link::post`] with
//! memory that has been checked already, and [`Link::poll`] with a [`Target`], through which everything that comes from the
//! peer has to pass, so that what is checked about a peer is checked in one place.
//! The engine calls a link from one thread at a time (under the VI's lock). A provider may have threads of its own; they reach
//! the engine only by [`Attention::look`], which makes the engine poll that VI's link.

pub mod af_xdp;
mod datagram;
mod pages;
pub mod shared_memory;
pub(crate) mod slices;
pub mod udp;

/// The parsers of what peers say while they connect, for fuzz targets; no program needs it.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a letter of the shared-memory provider's control socket. What is one reads the same after it was written again.
    pub fn read_letter(bytes: &[u8]) {
        if let Some(letter) = super::shared_memory::letters::Letter::parse(bytes) {
            assert_eq!(super::shared_memory::letters::Letter::parse(&letter.write()), Some(letter));
        }
    }

    /// The same of the greeting and of the head of a message of the datagram providers.
    pub fn read_datagram_words(bytes: &[u8]) {
        use super::datagram::message::{Greeting, Head};
        if let Some(greeting) = Greeting::read(bytes) {
            assert_eq!(Greeting::read(&greeting.write()), Some(greeting));
        }
        if let Some((head, data)) = Head::read(bytes) {
            let again = [&head.write()[..], data].concat();
            assert_eq!(Head::read(&again), Some((head, data)));
        }
    }
}

pub use pages::Pages;

use crate::address::{Address, Credentials};
use crate::attributes::NicAttributes;
use crate::attributes::ViAttributes;
use crate::descriptor::{RemoteSegment, Segment, Status};
use crate::error::Error;
use crate::protection::MemoryHandle;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Appends the bytes of `slices` to `into`, for a provider that keeps messages.
///
/// # Safety
/// The slices are of a post that is not complete, or a target gave them in the poll that goes on.
pub unsafe fn gather(slices: &[Slice], into: &mut Vec<u8>) {
    slices::gather(slices, into);
}

/// Stores `bytes` into `slices`, from their beginning; what does not fit is dropped.
///
/// # Safety
/// As for [`gather`], and `bytes` is no registered memory.
pub unsafe fn scatter(slices: &[Slice], bytes: &[u8]) {
    slices::scatter(slices, bytes);
}

/// A kind of NIC.
pub trait Provider: Send + Sync {
    /// What it can do; constant over its life.
    fn attributes(&self) -> &NicAttributes;

    /// Called once, before anything else: how the provider's own threads get the engine's attention.
    fn attach(&self, attention: Weak<dyn Attention>) {
        let _ = attention;
    }

    /// A host part of an address in the one form that all of this NIC's addresses have. Empty: this NIC's own host.
    /// An error where it is none.
    fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(if host.is_empty() { self.attributes().local_address.clone() } else { host.to_vec() })
    }

    /// The host part of an address of this NIC's own, as its peers name it. An error where it leaves open which that is.
    fn named_host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        self.host(host)
    }

    /// The hosts of the network that this NIC knows without being told, its own first.
    fn known_hosts(&self) -> Vec<Vec<u8>> {
        vec![self.attributes().local_address.clone()]
    }

    /// Waits until a peer asks to be connected to `local`, or `deadline` passes (`Error::Timeout`; `None` waits for ever).
    /// A provider keeps listening at `local` between calls, so that requests made meanwhile are not lost.
    fn wait(&self, local: &Address, deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error>;

    /// Asks the VI waiting at `remote` for a connection with a local VI of `attributes`, and waits for the answer.
    /// Nobody there: `Error::NoMatch`; refused: `Error::Rejected`, or `Error::Refused` with the reason.
    fn request(&self, ask: &Ask<'_>, deadline: Option<Instant>) -> Result<Established, Error>;

    /// Memory of the kind that the provider moves best, page-aligned and zeroed. `None`: it has no preference.
    fn allocate(&self, length: usize) -> Result<Option<Arc<dyn Memory>>, Error> {
        let _ = length;
        Ok(None)
    }

    /// A region was registered.
    fn registered(&self, region: &RegionFacts) {
        let _ = region;
    }

    /// The attributes of a region changed. An error: what peers could do before they can do still.
    fn changed(&self, region: &RegionFacts) -> Result<(), Error> {
        self.registered(region);
        Ok(())
    }

    /// A region was deregistered.
    fn deregistered(&self, handle: MemoryHandle) {
        let _ = handle;
    }
}

/// How a provider's thread makes the engine poll a VI whose program does not: when the peer is lost, or when data has to be
/// placed that no call waits for.
pub trait Attention: Send + Sync {
    /// Polls the link of VI number `vi`, under its lock. Not to be called with a lock held that any `Link` method takes.
    fn look(&self, vi: u32);
}

/// Memory that a provider allocated. Unmapped when dropped; the engine keeps it as long as any descriptor may touch it.
pub trait Memory: Send + Sync {
    /// Where it begins.
    fn base(&self) -> *mut u8;
    /// Bytes.
    fn length(&self) -> usize;
    /// The provider's own type, for its `registered`.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// What a provider is told of a registered region.
#[derive(Clone)]
pub struct RegionFacts {
    /// Its handle, which descriptors of both sides name it by.
    pub handle: MemoryHandle,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// The protection tag's number.
    pub tag: u32,
    /// Peers may store into it.
    pub rdma_write: bool,
    /// Peers may load from it.
    pub rdma_read: bool,
    /// If the provider allocated it: its memory.
    pub memory: Option<Arc<dyn Memory>>,
}

/// The connecting side's question.
pub struct Ask<'a> {
    /// The local VI's number.
    pub vi: u32,
    /// Where the answer is to go; what the peer is told.
    pub local: &'a Address,
    /// Who is asked.
    pub remote: &'a Address,
    /// What the local VI is like.
    pub attributes: &'a ViAttributes,
    /// The protection tag's number, which decides what the peer may see.
    pub tag: u32,
}

/// A connection that stands.
pub struct Established {
    /// The path to the peer.
    pub link: Box<dyn Link>,
    /// What the peer's VI is like.
    pub remote_attributes: ViAttributes,
}

/// A peer's wish to be connected, not answered yet. Dropped unanswered, it is a rejection.
pub trait Incoming: Send {
    /// Who asks.
    fn remote(&self) -> &Address;
    /// What the peer's VI is like.
    fn remote_attributes(&self) -> &ViAttributes;
    /// Whose process asks, if the system says.
    fn credentials(&self) -> Option<Credentials> {
        None
    }
    /// Connects. The engine has compared the attributes of both sides before.
    fn accept(self: Box<Self>, vi: u32, attributes: &ViAttributes, tag: u32) -> Result<Box<dyn Link>, Error>;
    /// Refuses.
    fn reject(self: Box<Self>);
}

/// A piece of local memory that a descriptor names, checked: registered, under the VI's tag, inside its region.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// Where it begins. A slice of a post is valid until the post completes; a slice that a target gives, until the poll returns.
    pub address: *mut u8,
    /// Bytes.
    pub length: u32,
    /// Its region.
    pub handle: MemoryHandle,
    /// The region lies in memory that the provider allocated, and peers may load from it.
    pub readable_by_peer: bool,
}

// SAFETY: a slice is an address and a length; who may dereference it, and until when, is said by the link's contract.
unsafe impl Send for Slice {}

/// What a link is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A message for the peer's receive queue.
    Send,
    /// A store at the peer's address.
    RdmaWrite(RemoteSegment),
    /// A load from the peer's address.
    RdmaRead(RemoteSegment),
}

/// A work request on its way out.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// What.
    pub request: Request,
    /// The engine's name for it: `Target::completed` says it back. Consecutive for consecutive posts that were taken.
    pub token: u32,
    /// Sum of the slices' lengths.
    pub length: u32,
    /// Travels along (never with an RDMA read).
    pub immediate: Option<u32>,
    /// From where (send, write) or to where (read).
    pub slices: &'a [Slice],
}

/// What became of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// Complete for this VI's reliability level; the slices are free again. The engine completes the descriptor.
    Done,
    /// Taken, and the slices are in use until `Target::completed` names the token. Completions come in the order of posts.
    Pending,
    /// Nothing was done, no room now; the engine asks again after a poll, before anything later.
    Full,
    /// Refused for good, with this error; nothing was moved. The engine completes the descriptor and breaks the connection.
    Failed(Status),
}

/// One connected VI's path to its peer. Dropping it disconnects without ado.
pub trait Link: Send {
    /// Whose process is at the other end, if the system says.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Hands over a work request. Never blocks.
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted;

    /// Whether [`Link::receive_posted`] wants to be called: the NIC holds receive descriptors itself.
    fn holds_receives(&self) -> bool {
        false
    }

    /// A receive descriptor with these segments was posted, or had been before the connection stood.
    fn receive_posted(&mut self, segments: &[Segment]) {
        let _ = segments;
    }

    /// Moves what can be moved now and tells `target`; at most about `budget` messages. Never blocks.
    /// `Err` when the connection is gone for good; the engine then moves the VI to the error state and drops the link.
    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), Gone>;

    /// Says that this side wants to sleep, and on what. After it, the engine polls once more, and sleeps only if that
    /// brought nothing: a peer's message is either seen by that poll or rings.
    fn arm(&mut self) -> Bell;

    /// Says that this side is awake again.
    fn disarm(&mut self);

    /// Says that nobody polls this link for now: whatever comes from here on gets [`Attention::look`], which polls it. After it, the
    /// engine polls once. `false`: something has come already, or the provider cannot have it looked at; the link has to be polled.
    fn park(&mut self) -> bool {
        false
    }

    /// Says that this side polls again.
    fn unpark(&mut self) {}

    /// Tells the peer that this side disconnects in good order; what was posted before is delivered first if the peer polls.
    fn disconnect(&mut self);
}

/// What to sleep on until a link has news.
#[derive(Debug, Clone, Copy)]
pub enum Bell {
    /// A futex word, possibly shared with the peer: sleep while it holds `value`. It lives as long as the link.
    Word {
        /// Where it is.
        word: *const AtomicU32,
        /// What it held when armed.
        value: u32,
    },
    /// Readable when there is news. Open as long as the link.
    Readable(RawFd),
    /// Nothing to sleep on, poll again (a modelled NIC, whose time passes while it is polled).
    None,
}

/// Why a link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// The peer disconnected in good order.
    Disconnected,
    /// The peer died, cannot be reached any more, or broke the protocol.
    Lost,
}

/// What arrives: the head of a message from the peer, every field of which the target checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the peer asks for: a send, or an RDMA write at an address of ours.
    pub request: Request,
    /// Bytes that follow.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// Why a message from the peer was not taken. What a provider tells the peer of it depends on the reliability level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No receive descriptor. Unreliable: dropped and forgotten. Otherwise the connection ends.
    NoDescriptor,
    /// Longer than the receive descriptor's segments.
    Length,
    /// The receive descriptor's memory is no longer what it was.
    Protection,
    /// The address is not in memory that this VI's peer may write to (or read from).
    RdmaProtection,
    /// The header contradicts itself or the VI's attributes.
    Malformed,
}

impl Refusal {
    /// What the peer's descriptor is completed with, where the reliability level lets the peer know.
    pub fn remote_status(self) -> Status {
        match self {
            Refusal::RdmaProtection => Status::RDMA_PROTECTION_ERROR,
            Refusal::Malformed => Status::TRANSPORT_ERROR,
            Refusal::NoDescriptor | Refusal::Length | Refusal::Protection => Status::REMOTE_DESCRIPTOR_ERROR,
        }
    }
}

/// The engine's side of a poll: where everything goes that comes from the peer. One message at a time: `begin`, then the bytes,
/// then `end`; or all of it at once with `deliver`.
///
/// After a refusal the engine has recorded the error on its side: with unreliable delivery the provider goes on, else it tells
/// the peer and returns `Err(Gone::Lost)` from its poll.
pub trait Target {
    /// Checks the header and says where the bytes go. For a send this takes the oldest receive descriptor.
    fn begin(&mut self, header: &Header) -> Result<&[Slice], Refusal>;

    /// Where the bytes of the message begun go, checked again: what `begin` gave holds only until the poll returns, since the
    /// program may deregister memory between two polls. `None`: no longer anywhere; the provider ends it with an error.
    fn resume(&mut self) -> Option<&[Slice]>;

    /// Stores `bytes` at `offset` of the message begun. Bytes beyond the announced length, and memory deregistered meanwhile,
    /// are passed over.
    fn put(&mut self, offset: u32, bytes: &[u8]);

    /// The message begun is whole (`Status::DONE`) or failed half way (an error status).
    fn end(&mut self, status: Status);

    /// A whole message that lies in memory of this process.
    fn deliver(&mut self, header: &Header, bytes: &[u8]) -> Result<(), Refusal> {
        self.begin(header)?;
        self.put(0, bytes);
        self.end(Status::DONE);
        Ok(())
    }

    /// The peer wants to load `length` bytes at `remote`, an address of ours: where they are, checked.
    fn readable(&mut self, remote: RemoteSegment, length: u32) -> Result<Slice, Refusal>;

    /// Data for an RDMA read of ours, posted as `token`: where its bytes go. `None` if no such read is under way.
    fn reading(&mut self, token: u32) -> Option<&[Slice]>;

    /// All pending posts up to and including `token` are complete, this one with `status` (the earlier ones well).
    fn completed(&mut self, token: u32, status: Status);
}
