//! The NIC that connections use.

use crate::error::Error;
use longma_via::Nic;

/// A NIC for any number of listeners and connections. Clones use the same NIC.
#[derive(Clone)]
pub struct Transport {
    nic: Nic,
}

impl Transport {
    /// Connects processes of this host by shared memory.
    ///
    /// # Errors
    /// If the system refuses a resource.
    pub fn shared_memory() -> Result<Self, Error> {
        Ok(Self::over(Nic::open()?))
    }

    /// Uses an open NIC, for example one with the UDP provider of `longma-via`.
    pub fn over(nic: Nic) -> Self {
        Self { nic }
    }

    /// The NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }
}
