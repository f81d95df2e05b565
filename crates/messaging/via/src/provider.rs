//! The hardware abstraction: the traits that connect the engine with a provider.
//!
//! Source: VIA, VI provider. The division of functions between NIC and VI is specific to this crate.
//!
//! The engine implements all requirements of the specification on queues: formats, protection, states, completions,
//! order. A provider moves bytes between two connected VIs. The provider implements a [`Link`] for each VI: the engine
//! calls [`Link::post`] with validated memory, and [`Link::poll`] with a [`Target`], which receives everything that
//! arrives from the peer. All checks of peer input are therefore in one place. The engine calls a link from one thread
//! at a time, under the VI's lock. Threads of a provider call the engine only through [`Poller::look`], which makes the
//! engine poll the link of a VI.

pub mod af_xdp;
mod datagram;
mod pages;
pub mod shared_memory;
pub(crate) mod slices;
pub mod udp;

/// Settings for tests of this crate. Not part of the public interface.
#[doc(hidden)]
pub mod testing {
    /// Sets the maximum sleep of the service threads of datagram NICs. With a long maximum, a missed wake-up causes a
    /// time-out instead of a delay that depends on the load of the machine.
    pub fn set_max_service_sleep(limit: std::time::Duration) {
        super::datagram::set_max_sleep(limit);
    }
}

/// The parsers of connection messages, exposed for fuzz targets. Not part of the public interface.
#[doc(hidden)]
pub mod fuzzing {
    /// Parses a control message of the shared-memory provider and checks that it survives a round trip.
    pub fn read_control_message(bytes: &[u8]) {
        if let Some(message) = super::shared_memory::control_message::ControlMessage::parse(bytes) {
            assert_eq!(
                super::shared_memory::control_message::ControlMessage::parse(&message.write()),
                Some(message)
            );
        }
    }

    /// Parses the connection parameters and the message header of the datagram providers, and checks that they survive
    /// a round trip.
    pub fn read_datagram_message(bytes: &[u8]) {
        use super::datagram::message::{ConnectionParameters, MessageHeader};
        if let Some(parameters) = ConnectionParameters::read(bytes) {
            assert_eq!(ConnectionParameters::read(&parameters.write()), Some(parameters));
        }
        if let Some((head, data)) = MessageHeader::read(bytes) {
            let again = [&head.write()[..], data].concat();
            assert_eq!(MessageHeader::read(&again), Some((head, data)));
        }
    }
}

pub use pages::Pages;

use crate::address::{Address, Credentials};
use crate::attributes::NicAttributes;
use crate::attributes::ViAttributes;
use crate::descriptor::{RemoteSegment, Segment, Status};
pub use crate::error::EndReason;
use crate::error::Error;
use crate::protection::MemoryHandle;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Appends the bytes of `slices` to `into`, for providers that buffer messages.
///
/// # Safety
/// The slices must belong to an incomplete post, or come from a target during the current poll.
pub unsafe fn gather(slices: &[Slice], into: &mut Vec<u8>) {
    slices::gather(slices, into);
}

/// Copies `bytes` to `slices` from their beginning. Bytes that do not fit are dropped.
///
/// # Safety
/// As for [`gather`]; in addition, `bytes` must not be registered memory.
pub unsafe fn scatter(slices: &[Slice], bytes: &[u8]) {
    slices::scatter(slices, bytes);
}

/// A type of NIC.
pub trait Provider: Send + Sync {
    /// The attributes of the NIC, which never change.
    fn attributes(&self) -> &NicAttributes;

    /// Called once, before anything else. The provider's threads use `poller` to call the engine.
    fn attach(&self, poller: Weak<dyn Poller>) {
        let _ = poller;
    }

    /// Called when the program has dropped its last object of this NIC. Delivers pending data before it returns. The
    /// provider is dropped later if one of its threads is using it.
    fn close(&self) {}

    /// Converts the host part of an address to the canonical form of this NIC. An empty host is this NIC's own.
    ///
    /// # Errors
    /// If `host` is not a valid host.
    fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(if host.is_empty() { self.attributes().local_address.clone() } else { host.to_vec() })
    }

    /// The host part of one of this NIC's own addresses, in the form that peers use.
    ///
    /// # Errors
    /// If `host` is ambiguous.
    fn named_host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        self.host(host)
    }

    /// The hosts that this NIC knows on its network, starting with its own.
    fn known_hosts(&self) -> Vec<Vec<u8>> {
        vec![self.attributes().local_address.clone()]
    }

    /// Starts to listen at `local`.
    ///
    /// # Errors
    /// If the address cannot be used, for example because another process uses it.
    fn listen(&self, local: &Address) -> Result<(), Error>;

    /// Stops listening at `local`. Pending requests are refused, and current waits end with `Error::InvalidState`.
    fn stop_listening(&self, local: &Address);

    /// Waits until a peer requests a connection to `local` or `deadline` passes (`Error::Timeout`; `None` waits
    /// indefinitely). The provider keeps listening at `local` between calls, so that no requests are lost.
    fn wait(&self, local: &Address, deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error>;

    /// Requests a connection from the VI waiting at `remote` and waits for the answer.
    ///
    /// # Errors
    /// `Error::NoMatch` if no VI is waiting there; `Error::Rejected`, or `Error::Refused` with the reason.
    fn request(&self, ask: &OutgoingRequest<'_>, deadline: Option<Instant>) -> Result<Established, Error>;

    /// Allocates page-aligned, zeroed memory of the type that the provider moves most efficiently. `None` if the
    /// provider has no preference.
    fn allocate(&self, length: usize) -> Result<Option<Arc<dyn Memory>>, Error> {
        let _ = length;
        Ok(None)
    }

    /// Called when a region has been registered.
    fn register_region(&self, region: &RegionInfo) {
        let _ = region;
    }

    /// Called when the attributes of a region have changed. On an error, peers keep their previous access.
    fn update_region(&self, region: &RegionInfo) -> Result<(), Error> {
        self.register_region(region);
        Ok(())
    }

    /// Called when a region has been deregistered.
    fn deregister_region(&self, handle: MemoryHandle) {
        let _ = handle;
    }
}

/// Lets a provider's thread make the engine poll a VI that the program is not polling, for example when the peer is
/// lost or when data must be stored without a call by the program.
pub trait Poller: Send + Sync {
    /// Polls the link of VI number `vi` under its lock. The caller must not hold a lock that any `Link` method takes.
    fn poll(&self, vi: u32);
}

/// Memory allocated by a provider. It is unmapped when dropped. The engine keeps it as long as any descriptor may use
/// it.
pub trait Memory: Send + Sync {
    /// The first byte.
    fn base(&self) -> *mut u8;
    /// The length, bytes.
    fn length(&self) -> usize;
    /// The provider's own type, for use in `registered`.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A registered region, as described to a provider.
#[derive(Clone)]
pub struct RegionInfo {
    /// The handle that descriptors on both sides use.
    pub handle: MemoryHandle,
    /// The first address.
    pub address: u64,
    /// The length, bytes.
    pub length: u64,
    /// The number of the protection tag.
    pub tag: u32,
    /// Whether peers may write to the region.
    pub rdma_write: bool,
    /// Whether peers may read from the region.
    pub rdma_read: bool,
    /// The memory, if the provider allocated it.
    pub memory: Option<Arc<dyn Memory>>,
}

/// An outgoing connection request.
pub struct OutgoingRequest<'a> {
    /// The number of the local VI.
    pub vi: u32,
    /// The local address, reported to the peer.
    pub local: &'a Address,
    /// The address to connect to.
    pub remote: &'a Address,
    /// The attributes of the local VI.
    pub attributes: &'a ViAttributes,
    /// The number of the protection tag, which determines the memory that the peer may access.
    pub tag: u32,
}

/// An established connection.
pub struct Established {
    /// The link to the peer.
    pub link: Box<dyn Link>,
    /// The attributes of the peer's VI.
    pub remote_attributes: ViAttributes,
}

/// An incoming connection request. Dropping it without an answer rejects it.
pub trait Incoming: Send {
    /// The address of the peer.
    fn remote(&self) -> &Address;
    /// The attributes of the peer's VI.
    fn remote_attributes(&self) -> &ViAttributes;
    /// The credentials of the peer's process, if the kernel reports them.
    fn credentials(&self) -> Option<Credentials> {
        None
    }
    /// Accepts the request. The engine has already compared the attributes of both sides.
    fn accept(self: Box<Self>, vi: u32, attributes: &ViAttributes, tag: u32) -> Result<Box<dyn Link>, Error>;
    /// Rejects the request.
    fn reject(self: Box<Self>);
}

/// Validated local memory of a descriptor: registered, with the VI's tag, and inside its region.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// The first byte. A slice of a post is valid until the post completes; a slice from a target, until the poll
    /// returns.
    pub address: *mut u8,
    /// The length, bytes.
    pub length: u32,
    /// The region that contains the slice.
    pub handle: MemoryHandle,
    /// Whether the region is in memory allocated by the provider and peers may read from it.
    pub readable_by_peer: bool,
}

// SAFETY: a slice is an address and a length. The contract of `Link` determines who may dereference it and until when.
unsafe impl Send for Slice {}

/// The type of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A message for the peer's receive queue.
    Send,
    /// A write to the peer's memory.
    RdmaWrite(RemoteSegment),
    /// A read from the peer's memory.
    RdmaRead(RemoteSegment),
}

/// An outgoing work request.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The type of the request.
    pub request: Request,
    /// The engine's identifier for the request, passed back to `Target::completed`. Accepted posts have consecutive
    /// tokens.
    pub token: u32,
    /// The total length of the slices.
    pub length: u32,
    /// Immediate data (never with an RDMA read).
    pub immediate: Option<u32>,
    /// The source (send, write) or destination (read).
    pub slices: &'a [Slice],
}

/// The result of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// Complete for the reliability level of the VI. The slices are no longer in use. The engine completes the
    /// descriptor.
    Done,
    /// Accepted. The slices are in use until `Target::completed` is called with the token. Posts complete in order.
    Pending,
    /// Not accepted because there is no space. The engine retries after a poll, before any later post.
    Full,
    /// Rejected with this error; nothing was moved. The engine completes the descriptor and breaks the connection.
    Failed(Status),
}

/// The connection of a VI to its peer. Dropping it disconnects immediately.
pub trait Link: Send {
    /// The credentials of the peer's process, if the kernel reports them.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Submits a work request. Never blocks.
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted;

    /// Whether the NIC stores receive descriptors itself, so that [`Link::receive_posted`] must be called.
    fn holds_receives(&self) -> bool {
        false
    }

    /// Called for each receive descriptor: when it is posted, or when the connection is established if it was posted
    /// before.
    fn receive_posted(&mut self, segments: &[Segment]) {
        let _ = segments;
    }

    /// Moves pending data and reports it to `target`; handles at most about `budget` messages. Never blocks.
    ///
    /// # Errors
    /// If the connection has ended. The engine then moves the VI to the error state and drops the link.
    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), EndReason>;

    /// Announces that this side is about to sleep, and returns the object to sleep on. The engine then polls once more
    /// and sleeps only if that poll found nothing, so a message from the peer is either seen by that poll or wakes the
    /// sleeper.
    fn arm(&mut self) -> WakeSource;

    /// Announces that this side is awake again.
    fn disarm(&mut self);

    /// Announces that this link is not polled for now. The provider must call [`Poller::look`] for each message that
    /// arrives from here on; the engine polls once afterwards. Returns `false` if something has already arrived or if
    /// the provider does not support parking; the link must then be polled.
    fn park(&mut self) -> bool {
        false
    }

    /// Announces that this side polls again.
    fn unpark(&mut self) {}

    /// Notifies the peer that this side disconnects in an orderly way. Earlier posts are still delivered if the peer
    /// polls.
    fn disconnect(&mut self);
}

/// The object on which a thread sleeps until a link has an event.
#[derive(Debug, Clone, Copy)]
pub enum WakeSource {
    /// A futex word, possibly shared with the peer: sleep while it holds `value`. It lives as long as the link.
    Word {
        /// The address of the word.
        word: *const AtomicU32,
        /// The value of the word when the link was armed.
        value: u32,
    },
    /// A file descriptor that becomes readable when there is an event. It stays open as long as the link.
    Readable(RawFd),
    /// No object: the thread must keep polling. A modelled NIC needs this, because its time advances only while it is
    /// polled.
    None,
}

/// The header of a message from the peer. The target validates every field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The operation: a send, or an RDMA write to a local address.
    pub request: Request,
    /// The length of the data, bytes.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// The reason why a message from the peer was not accepted. Which errors the provider reports to the peer depends on
/// the reliability level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No receive descriptor is posted. An unreliable VI drops the message; otherwise the connection breaks.
    NoDescriptor,
    /// The message is longer than the segments of the receive descriptor.
    Length,
    /// The memory of the receive descriptor is no longer valid.
    Protection,
    /// The address is not in memory that the peer may write to (or read from).
    RdmaProtection,
    /// The header is inconsistent or violates the attributes of the VI.
    Malformed,
}

impl Refusal {
    /// The status of the peer's descriptor, if the reliability level reports it.
    pub fn remote_status(self) -> Status {
        match self {
            Refusal::RdmaProtection => Status::RDMA_PROTECTION_ERROR,
            Refusal::Malformed => Status::TRANSPORT_ERROR,
            Refusal::NoDescriptor | Refusal::Length | Refusal::Protection => Status::REMOTE_DESCRIPTOR_ERROR,
        }
    }
}

/// The engine's side of a poll, which receives everything that arrives from the peer. Messages are delivered one at a
/// time: `begin`, then the data, then `end`; or all at once by `deliver`.
///
/// When the target refuses a message, the engine has already recorded the error. With unreliable delivery the provider
/// continues; otherwise it informs the peer and returns `Err(EndReason::MessageRefused)` from its poll.
pub trait Target {
    /// Validates the header and returns the destination of the data. For a send, this uses the oldest receive
    /// descriptor.
    fn begin(&mut self, header: &Header) -> Result<&[Slice], Refusal>;

    /// Returns the destination of the current message after validating it again. The slices returned by `begin` are
    /// valid only until the poll returns, because the program may deregister memory between two polls. `None` if the
    /// destination is no longer valid; the provider then ends the message with an error.
    fn resume(&mut self) -> Option<&[Slice]>;

    /// Stores `bytes` at `offset` of the current message. Bytes beyond the announced length or in memory that has been
    /// deregistered are skipped.
    fn put(&mut self, offset: u32, bytes: &[u8]);

    /// Ends the current message: complete (`Status::DONE`) or aborted (an error status).
    fn end(&mut self, status: Status);

    /// Delivers a complete message whose data is in memory of this process.
    fn deliver(&mut self, header: &Header, bytes: &[u8]) -> Result<(), Refusal> {
        self.begin(header)?;
        self.put(0, bytes);
        self.end(Status::DONE);
        Ok(())
    }

    /// Validates a read by the peer of `length` bytes at `remote`, a local address, and returns the source.
    fn readable(&mut self, remote: RemoteSegment, length: u32) -> Result<Slice, Refusal>;

    /// The destination of the data for a local RDMA read posted as `token`. `None` if there is no such read.
    fn reading(&mut self, token: u32) -> Option<&[Slice]>;

    /// Completes all pending posts up to and including `token`: `token` with `status`, the earlier ones successfully.
    fn completed(&mut self, token: u32, status: Status);
}
