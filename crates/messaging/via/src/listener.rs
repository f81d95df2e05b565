//! Listening at an address.
//!
//! Source: VIA, VI connection and disconnection.

use crate::address::Address;
use crate::connection::ConnectionRequest;
use crate::engine::nic::OpenNic;
use crate::engine::waiting::deadline_after;
use crate::error::Error;
use longma_locks::IgnorePoison;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An address at which a NIC accepts connection requests. Dropping it stops listening. Several threads can wait on one
/// listener.
pub struct Listener {
    nic: OpenNic,
    address: Address,
    is_closed: AtomicBool,
}

impl Listener {
    pub(crate) fn open(nic: &OpenNic, address: &Address) -> Result<Listener, Error> {
        let longest = nic.provider.attributes().max_discriminator_bytes;
        if address.discriminator.len() > longest {
            return Err(Error::InvalidParameter(format!("a discriminator has at most {longest} bytes")));
        }
        // A second listener would close the first one's name when it is dropped.
        let mut listening = nic.listening.lock().ignore_poison();
        if listening.contains(&address.discriminator) {
            return Err(Error::AddressInUse(format!("this NIC is already listening at {address}")));
        }
        nic.provider.listen(address)?;
        listening.insert(address.discriminator.clone());
        drop(listening);
        Ok(Listener { nic: nic.clone(), address: address.clone(), is_closed: AtomicBool::new(false) })
    }

    /// The address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits up to `timeout` for a connection request. `None` waits indefinitely.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::InvalidState`] if the listener is closed; the errors of the provider.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<ConnectionRequest, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::not_listening(&self.address));
        }
        let outcome = self.nic.provider.wait(&self.address, deadline_after(timeout));
        if self.is_closed.load(Ordering::Acquire) {
            // The provider may have started to listen again just after the address was closed.
            self.nic.provider.stop_listening(&self.address);
            return Err(Error::not_listening(&self.address));
        }
        Ok(ConnectionRequest { incoming: outcome?, nic: self.nic.clone() })
    }

    /// Stops listening. Other processes can then use the address, requests that have not been returned are refused, and
    /// waits in other threads end.
    pub fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) && !self.nic.is_forked_child() {
            let mut listening = self.nic.listening.lock().ignore_poison();
            self.nic.provider.stop_listening(&self.address);
            listening.remove(&self.address.discriminator);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}
