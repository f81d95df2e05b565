//! Virtual interfaces: a send queue and a receive queue, connected to those of one peer.
//! Not the machinery behind them, which is `engine::endpoint`.
//! Source: VIA, virtual interfaces, VI states, reliability levels.

use crate::connection::{Address, ConnectionRequest, Credentials};
use crate::descriptor::{Completion, Descriptor, Segment};
use crate::engine::endpoint::{Endpoint, Side};
use crate::engine::futures::CompletionFuture;
use crate::engine::meeting::PeerRequest;
use crate::error::Error;
use crate::memory::ProtectionTag;
use std::sync::Arc;
use std::time::Duration;

/// What a VI promises about delivery (VIA, reliability levels). The values are VIPL's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Reliability {
    /// A message arrives at most once, or is lost; errors of the network are not reported.
    Unreliable = 1,
    /// A message arrives exactly once, in order; an error ends the connection. A send completes when it is on its way.
    ReliableDelivery = 2,
    /// As reliable delivery, and a send completes only when its data is in the peer's memory.
    ReliableReception = 4,
}

impl Reliability {
    /// All levels.
    pub const ALL: [Reliability; 3] =
        [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception];

    /// The level of that VIPL bit.
    pub fn from_bits(bits: u16) -> Option<Reliability> {
        Reliability::ALL.into_iter().find(|level| *level as u16 == bits)
    }
}

/// What a VI is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViAttributes {
    /// What is promised; both ends need the same.
    pub reliability: Reliability,
    /// The largest message, bytes; both ends of a connection keep to the smaller.
    pub max_transfer_bytes: u32,
    /// The tag of the memory that its descriptors use.
    pub tag: ProtectionTag,
    /// The peer may write into memory of this tag that allows it.
    pub rdma_write: bool,
    /// The peer may read from memory of this tag that allows it.
    pub rdma_read: bool,
}

impl ViAttributes {
    /// Reliable delivery, the largest transfers, both kinds of RDMA.
    pub fn new(tag: ProtectionTag) -> ViAttributes {
        ViAttributes {
            reliability: Reliability::ReliableDelivery,
            max_transfer_bytes: u32::MAX,
            tag,
            rdma_write: true,
            rdma_read: true,
        }
    }

    /// With another reliability level; unreliable has no RDMA read.
    pub fn with_reliability(self, reliability: Reliability) -> ViAttributes {
        ViAttributes {
            reliability,
            rdma_read: self.rdma_read && reliability != Reliability::Unreliable,
            ..self
        }
    }
}

/// Where a VI is in its life (VIA, VI states).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ViState {
    /// Not connected. Receives may be posted and wait; sends are flushed.
    Idle = 0,
    /// Connected to a peer's VI.
    Connected = 1,
    /// A connection was asked for and not answered yet.
    ConnectPending = 2,
    /// The connection broke; everything posted was flushed. `disconnect` leads back to idle.
    Error = 3,
}

/// A virtual interface. May be shared by threads; calls on one VI take turns.
pub struct Vi {
    endpoint: Arc<Endpoint>,
}

impl Vi {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Vi {
        Vi { endpoint }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Its number in its NIC; completion queues and error callbacks name it so.
    pub fn number(&self) -> u32 {
        self.endpoint.number()
    }

    /// The state it is in.
    pub fn state(&self) -> ViState {
        self.endpoint.state()
    }

    /// What it is like.
    pub fn attributes(&self) -> ViAttributes {
        self.endpoint.attributes()
    }

    /// Makes it like that (VipSetViAttributes); only while idle.
    pub fn set_attributes(&self, attributes: ViAttributes) -> Result<(), Error> {
        self.endpoint.set_attributes(attributes)
    }

    /// Whether nothing posted to the send queue is left to collect, and the same for the receive queue (VipQueryVi).
    pub fn queues_empty(&self) -> (bool, bool) {
        self.endpoint.queues_empty()
    }

    /// Asks the VI that waits at `remote` for a connection, and waits for its answer up to `timeout` (`None`: for ever).
    /// Gives the peer's attributes. Errors: `NoMatch`, `Rejected`, `Refused`, `Timeout`, `InvalidReliability`, `InvalidState`.
    pub fn connect(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<ViAttributes, Error> {
        self.endpoint.connect(local, remote, timeout)
    }

    /// Connects to a VI that does the same from its side, with the addresses exchanged (peer-to-peer model). Waits up to `timeout`,
    /// connect pending; who asks from another address than `remote` is refused. Where both discriminators are the same, `local` and
    /// `remote` must name the two hosts as the other side does.
    pub fn connect_peer(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<ViAttributes, Error> {
        self.request_peer(local, remote)?.finish(timeout)
    }

    /// The first half of [`Vi::connect_peer`]: the VI is connect pending when it returns, and [`PeerRequest::finish`] waits for the
    /// peer, in any thread. Disconnecting the VI ends that.
    pub fn request_peer(&self, local: &Address, remote: &Address) -> Result<PeerRequest, Error> {
        self.endpoint.request_peer(local, remote)
    }

    /// Connects the peer that asks, as [`ConnectionRequest::accept`] does; but where this VI cannot be connected to that peer, for its
    /// state, its attributes or its NIC, the peer hears nothing, and the request is given back for another VI or another answer.
    pub fn accept(&self, request: ConnectionRequest) -> Result<(), (Error, Option<ConnectionRequest>)> {
        if !Arc::ptr_eq(&request.nic, self.endpoint.nic()) {
            let error = Error::InvalidParameter("the VI belongs to another NIC".into());
            return Err((error, Some(request)));
        }
        match self.endpoint.begin_accept(request.remote_attributes()) {
            Ok(attempt) => {
                self.endpoint.finish_accept(&attempt, request.incoming).map_err(|error| (error, None))
            }
            Err(error) => Err((error, Some(request))),
        }
    }

    /// Whose process the VI is connected to. `None`: it is not connected, or the provider cannot know (a network).
    pub fn peer_credentials(&self) -> Option<Credentials> {
        self.endpoint.peer_credentials()
    }

    /// Ends the connection, or leaves the error state: the VI is idle, and what was posted is flushed.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.endpoint.disconnect()
    }

    /// Posts a send, an RDMA write or an RDMA read. What is wrong with the descriptor is said by its completion;
    /// an error here means that it was not posted (queue full, not a descriptor for this queue).
    pub fn post_send(&self, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        self.endpoint.post_send(descriptor)
    }

    /// Posts a receive; allowed in every state but error, where it is flushed.
    pub fn post_receive(&self, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        self.endpoint.post_receive(descriptor)
    }

    /// Has `tell` hear of each completion of descriptors posted from now on, in the order of their queue, before it can be collected:
    /// in any call for this VI, and from a thread of the NIC while the program makes none. It is called under the VI's lock, must
    /// not call the VI, and takes the place of the one before. Of a descriptor whose [`Descriptor::home`] is no longer registered
    /// the error callback hears instead (`ErrorCode::CompletionProtection`).
    ///
    /// # Panics
    /// The call of the VI in which `tell` calls the VI, or panics itself; the message it was told of is taken nevertheless, once. In a
    /// thread of the NIC, and while a VI is dropped, nothing comes of it.
    pub fn tell_completions(&self, tell: impl Fn(&Completion) + Send + 'static) {
        self.endpoint.tell_completions(Box::new(tell));
    }

    /// Whether a segment lies in registered memory of the VI's NIC, under whatever tag.
    pub fn is_registered(&self, segment: &Segment) -> bool {
        self.endpoint.is_registered(segment)
    }

    /// Moves what can be moved now, and collects nothing. Every call that looks for a completion does this too.
    pub fn progress(&self) {
        self.endpoint.look();
    }

    /// The oldest descriptor of the send queue, if it is complete.
    pub fn send_done(&self) -> Option<Completion> {
        self.endpoint.done(Side::Send)
    }

    /// The oldest descriptor of the receive queue, if it is complete.
    pub fn receive_done(&self) -> Option<Completion> {
        self.endpoint.done(Side::Receive)
    }

    /// Waits for the oldest descriptor of the send queue: spins shortly, then sleeps. `None` waits for ever.
    pub fn send_wait(&self, timeout: Option<Duration>) -> Result<Completion, Error> {
        self.endpoint.wait(Side::Send, timeout)
    }

    /// Waits for the oldest descriptor of the receive queue: spins shortly, then sleeps. `None` waits for ever.
    pub fn receive_wait(&self, timeout: Option<Duration>) -> Result<Completion, Error> {
        self.endpoint.wait(Side::Receive, timeout)
    }

    /// The next completion of the send queue, as a future for any executor.
    pub fn send_completion(&self) -> CompletionFuture<'_> {
        CompletionFuture::new(&self.endpoint, Side::Send)
    }

    /// The next completion of the receive queue, as a future for any executor.
    pub fn receive_completion(&self) -> CompletionFuture<'_> {
        CompletionFuture::new(&self.endpoint, Side::Receive)
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        if self.endpoint.nic().is_a_childs() {
            // Kept for good: its end would be the parent's connection's.
            return std::mem::forget(self.endpoint.clone());
        }
        self.endpoint.destroy();
    }
}
