//! Virtual interfaces: a send queue and a receive queue, connected to those of one peer.
//! Not the machinery behind them, which is `engine::endpoint`, nor what they are like, which is in `attributes.rs`.
//! Source: VIA, virtual interfaces, VI connection and disconnection.

use crate::address::{Address, Credentials};
use crate::attributes::{ViAttributes, ViState};
use crate::connection::ConnectionRequest;
use crate::descriptor::{Completion, Descriptor, Segment};
use crate::engine::endpoint::{Endpoint, Side};
use crate::engine::futures::CompletionFuture;
use crate::engine::meeting::PeerRequest;
use crate::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// A virtual interface. May be shared by threads; calls on one VI take turns.
pub struct Vi {
    endpoint: Arc<Endpoint>,
}

impl Vi {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Vi {
        Vi { endpoint }
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

impl ConnectionRequest {
    /// Connects the peer to `vi`, which must be idle and of the same reliability level. On an error the peer is rejected.
    pub fn accept(self, vi: &Vi) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.nic, vi.endpoint.nic()) {
            return Err(Error::InvalidParameter("the VI belongs to another NIC".into()));
        }
        vi.endpoint.accept(self.incoming)
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
