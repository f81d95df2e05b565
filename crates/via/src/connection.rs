//! Addresses of VIs, and requests for a connection that wait for an answer.
//! Not the connection itself: that is a provider's link, inside the VI.
//! Source: VIA, VI connection and disconnection, VI address format.

use crate::error::Error;
use crate::nic::NicShared;
use crate::provider::Incoming;
use crate::vi::{Vi, ViAttributes};
use std::fmt;
use std::sync::Arc;

/// Where a VI is, or waits: a host in the provider's own form, and a discriminator that programs agree on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address {
    /// The host: empty for this one (shared memory), `address:port` (UDP), interface and hardware address (AF_XDP).
    pub host: Vec<u8>,
    /// Which of the host's VIs: any bytes up to the NIC's longest.
    pub discriminator: Vec<u8>,
}

impl Address {
    /// A VI of this host.
    pub fn local(discriminator: impl AsRef<[u8]>) -> Address {
        Address { host: Vec::new(), discriminator: discriminator.as_ref().to_vec() }
    }

    /// A VI of the host that the provider calls `host`.
    pub fn new(host: impl AsRef<[u8]>, discriminator: impl AsRef<[u8]>) -> Address {
        Address { host: host.as_ref().to_vec(), discriminator: discriminator.as_ref().to_vec() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.host.is_empty() {
            write!(f, "{}/", String::from_utf8_lossy(&self.host).escape_debug())?;
        }
        write!(f, "{}", String::from_utf8_lossy(&self.discriminator).escape_debug())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

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

    /// Connects the peer to `vi`, which must be idle and of the same reliability level. On an error the peer is rejected.
    pub fn accept(self, vi: &Vi) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.nic, vi.endpoint().nic()) {
            return Err(Error::InvalidParameter("the VI belongs to another NIC".into()));
        }
        vi.endpoint().accept(self.incoming)
    }

    /// Refuses.
    pub fn reject(self) {
        self.incoming.reject();
    }
}
