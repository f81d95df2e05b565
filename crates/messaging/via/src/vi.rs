//! Virtual interfaces: a send queue and a receive queue, connected to those of one peer.
//!
//! Source: VIA, virtual interfaces, VI connection and disconnection.

use crate::address::{Address, Credentials};
use crate::attributes::{ViAttributes, ViState};
use crate::connection::ConnectionRequest;
use crate::descriptor::{Completion, Descriptor, Segment};
use crate::engine::connect::PeerRequest;
use crate::engine::endpoint::{Endpoint, Side};
use crate::engine::futures::CompletionFuture;
use crate::engine::nic::OpenNic;
use crate::error::{EndReason, Error};
use std::sync::Arc;
use std::time::Duration;

/// A virtual interface. Threads may share it; calls on the same VI are serialized.
pub struct Vi {
    endpoint: Arc<Endpoint>,
    /// Dropped after the endpoint.
    _nic: OpenNic,
}

impl Vi {
    pub(crate) fn new(endpoint: Arc<Endpoint>, nic: OpenNic) -> Vi {
        Vi { endpoint, _nic: nic }
    }

    /// The number of the VI in its NIC, used by completion queues and error callbacks.
    pub fn number(&self) -> u32 {
        self.endpoint.number()
    }

    /// The current state.
    pub fn state(&self) -> ViState {
        self.endpoint.state()
    }

    /// The attributes.
    pub fn attributes(&self) -> ViAttributes {
        self.endpoint.attributes()
    }

    /// Changes the attributes (VipSetViAttributes). Permitted only while idle.
    ///
    /// # Errors
    /// [`Error::InvalidState`] if the VI is not idle; the errors of [`Nic::create_vi`](crate::Nic::create_vi) for
    /// unsupported attributes.
    pub fn set_attributes(&self, attributes: ViAttributes) -> Result<(), Error> {
        self.endpoint.set_attributes(attributes)
    }

    /// Whether the send queue has no posted descriptor left to collect, and the same for the receive queue
    /// (VipQueryVi).
    pub fn queues_empty(&self) -> (bool, bool) {
        self.endpoint.queues_empty()
    }

    /// Requests a connection to the VI waiting at `remote`, and waits for the answer up to `timeout` (`None`:
    /// indefinitely). Returns the attributes of the peer's VI.
    ///
    /// # Errors
    /// `NoMatch`, `Rejected`, `Refused`, `Timeout`, `InvalidReliability`, `InvalidState`.
    pub fn connect(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<ViAttributes, Error> {
        self.endpoint.connect(local, remote, timeout)
    }

    /// Connects to a VI that makes the same call with the addresses exchanged (peer-to-peer model). The VI is connect
    /// pending for up to `timeout`; requests from other addresses than `remote` are rejected. If both discriminators
    /// are equal, `local` and `remote` must name the two hosts as the other side does.
    ///
    /// # Errors
    /// Those of [`Vi::request_peer`] and [`PeerRequest::finish`].
    pub fn connect_peer(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<ViAttributes, Error> {
        self.request_peer(local, remote)?.finish(timeout)
    }

    /// The first half of [`Vi::connect_peer`]: the VI is connect pending when this returns, and [`PeerRequest::finish`]
    /// waits for the peer, in any thread. Disconnecting the VI aborts the wait.
    ///
    /// # Errors
    /// [`Error::InvalidState`] if the VI is not idle; [`Error::InvalidParameter`] if `remote` is the address of this
    /// VI.
    pub fn request_peer(&self, local: &Address, remote: &Address) -> Result<PeerRequest, Error> {
        self.endpoint.request_peer(local, remote)
    }

    /// Accepts a connection request like [`ConnectionRequest::accept`]. If this VI cannot be connected to the peer
    /// because of its state, its attributes or its NIC, the peer is not informed, and the request is returned for
    /// another VI or another answer.
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

    /// The credentials of the connected peer's process. `None` if the VI is not connected or the provider cannot
    /// determine them (networks).
    pub fn peer_credentials(&self) -> Option<Credentials> {
        self.endpoint.peer_credentials()
    }

    /// Why the last connection ended. `None` before the first connection, and from the next attempt to connect on.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.endpoint.end_reason()
    }

    /// Disconnects, or leaves the error state. The VI becomes idle, and posted descriptors are flushed.
    ///
    /// # Errors
    /// [`Error::InvalidState`] in a forked child, to which the VI does not belong.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.endpoint.disconnect()
    }

    /// Posts a send, an RDMA write or an RDMA read. Problems of the descriptor are reported in its completion.
    ///
    /// # Errors
    /// If the descriptor was not posted: the queue is full, or the operation does not belong to a send queue.
    pub fn post_send(&self, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        self.endpoint.post_send(descriptor)
    }

    /// Posts a receive. Permitted in every state; in the error state it is flushed.
    ///
    /// # Errors
    /// [`Error::Resource`] if the queue is full; [`Error::InvalidParameter`] if the operation does not belong to a
    /// receive queue.
    pub fn post_receive(&self, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        self.endpoint.post_receive(descriptor)
    }

    /// Registers a callback for completions of descriptors posted from now on. `callback` is called for each completion, in
    /// queue order, before the completion can be collected. It is called by any call on this VI, and by a thread of the
    /// NIC while the program makes no calls. It runs under the VI's lock and must not call the VI. It replaces the
    /// previous callback. If the memory of a descriptor's [`Descriptor::context_memory`] is no longer registered, the error
    /// callback is called instead (`ErrorCode::CompletionProtection`).
    ///
    /// # Panics
    /// A call on the VI panics if `callback`, called during it, panics or calls the VI. The message concerned is still
    /// received exactly once. Panics in a thread of the NIC, and while a VI is dropped, are ignored.
    pub fn on_completion(&self, callback: impl Fn(&Completion) + Send + 'static) {
        self.endpoint.on_completion(Box::new(callback));
    }

    /// Whether a segment is in registered memory of the VI's NIC, with any tag.
    pub fn is_registered(&self, segment: &Segment) -> bool {
        self.endpoint.is_registered(segment)
    }

    /// Moves pending data without collecting completions. Every call that looks for a completion does this too.
    pub fn progress(&self) {
        self.endpoint.poll_unlocked();
    }

    /// Collects the oldest descriptor of the send queue, if it is complete.
    pub fn send_done(&self) -> Option<Completion> {
        self.endpoint.done(Side::Send)
    }

    /// Collects the oldest descriptor of the receive queue, if it is complete.
    pub fn receive_done(&self) -> Option<Completion> {
        self.endpoint.done(Side::Receive)
    }

    /// Waits for the oldest descriptor of the send queue: spins briefly, then sleeps. `None` waits indefinitely.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::ConnectionEnded`] if the connection has ended and the queue is empty.
    pub fn send_wait(&self, timeout: Option<Duration>) -> Result<Completion, Error> {
        self.endpoint.wait(Side::Send, timeout)
    }

    /// Waits for the oldest descriptor of the receive queue: spins briefly, then sleeps. `None` waits indefinitely.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::ConnectionEnded`] if the connection has ended and the queue is empty.
    pub fn receive_wait(&self, timeout: Option<Duration>) -> Result<Completion, Error> {
        self.endpoint.wait(Side::Receive, timeout)
    }

    /// The next completion of the send queue as a future, for any executor. Its errors are those of
    /// [`Vi::send_wait`].
    pub fn send_completion(&self) -> CompletionFuture<'_> {
        CompletionFuture::new(&self.endpoint, Side::Send)
    }

    /// The next completion of the receive queue as a future, for any executor. Its errors are those of
    /// [`Vi::receive_wait`].
    pub fn receive_completion(&self) -> CompletionFuture<'_> {
        CompletionFuture::new(&self.endpoint, Side::Receive)
    }
}

impl ConnectionRequest {
    /// Connects the peer to `vi`, which must be idle and have the same reliability level. On an error the peer is
    /// rejected.
    pub fn accept(self, vi: &Vi) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.nic, vi.endpoint.nic()) {
            return Err(Error::InvalidParameter("the VI belongs to another NIC".into()));
        }
        vi.endpoint.accept(self.incoming)
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        if self.endpoint.nic().is_forked_child() {
            // In a forked child the endpoint is leaked: dropping it would end the parent's connection.
            return std::mem::forget(self.endpoint.clone());
        }
        self.endpoint.destroy();
    }
}
