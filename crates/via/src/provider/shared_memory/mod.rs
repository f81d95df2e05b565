//! The shared-memory NIC: between processes of one host.
//! Not for peers on other hosts.
//! Source: memfd_create(2), futex(2), membarrier(2), process_vm_readv(2), unix(7).

use crate::connection::Address;
use crate::error::Error;
use crate::nic::NicAttributes;
use crate::provider::{Ask, Established, Incoming, Provider};
use std::time::Instant;

/// The provider.
pub struct SharedMemory {
    attributes: NicAttributes,
}

impl SharedMemory {
    /// Opens it.
    pub fn open() -> Result<SharedMemory, Error> {
        Ok(SharedMemory { attributes: NicAttributes { name: "shm".into(), ..NicAttributes::default() } })
    }
}

impl Provider for SharedMemory {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn wait(&self, local: &Address, _deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error> {
        Err(Error::NotReachable(local.to_string()))
    }

    fn request(&self, ask: &Ask<'_>, _deadline: Option<Instant>) -> Result<Established, Error> {
        Err(Error::NoMatch(ask.remote.to_string()))
    }
}
