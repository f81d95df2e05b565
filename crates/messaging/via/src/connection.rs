//! Pending connection requests. [`crate::Vi::accept`] accepts them.
//!
//! Source: VIA, VI connection and disconnection.

use crate::address::{Address, Credentials};
use crate::attributes::ViAttributes;
use crate::engine::nic::OpenNic;
use crate::provider::Incoming;

/// A connection request from a peer. Dropping it without an answer rejects it.
pub struct ConnectionRequest {
    pub(crate) incoming: Box<dyn Incoming>,
    pub(crate) nic: OpenNic,
}

impl ConnectionRequest {
    /// The address of the peer.
    pub fn remote(&self) -> &Address {
        self.incoming.remote()
    }

    /// The attributes of the peer's VI.
    pub fn remote_attributes(&self) -> &ViAttributes {
        self.incoming.remote_attributes()
    }

    /// The credentials of the peer's process. `None` if the provider cannot determine them, as
    /// over a network.
    pub fn credentials(&self) -> Option<Credentials> {
        self.incoming.credentials()
    }

    /// Rejects the request.
    pub fn reject(self) {
        self.incoming.reject();
    }
}
