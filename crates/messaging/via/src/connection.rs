//! Requests for a connection that wait for an answer.
//! Not the connection itself: that is a provider's link, inside the VI. Nor its acceptance, which the VI does (see `vi.rs`).
//! Source: VIA, VI connection and disconnection.

use crate::address::{Address, Credentials};
use crate::attributes::ViAttributes;
use crate::engine::nic::NicShared;
use crate::provider::Incoming;
use std::sync::Arc;

/// A peer that asks to be connected. Dropped without an answer, it is rejected.
pub struct ConnectionRequest {
    pub(crate) incoming: Box<dyn Incoming>,
    pub(crate) nic: Arc<NicShared>,
}

impl ConnectionRequest {
    /// Who asks.
    pub fn remote(&self) -> &Address {
        self.incoming.remote()
    }

    /// What the peer's VI is like.
    pub fn remote_attributes(&self) -> &ViAttributes {
        self.incoming.remote_attributes()
    }

    /// Whose process asks. `None` where the provider cannot know (a network).
    pub fn credentials(&self) -> Option<Credentials> {
        self.incoming.credentials()
    }

    /// Refuses.
    pub fn reject(self) {
        self.incoming.reject();
    }
}
