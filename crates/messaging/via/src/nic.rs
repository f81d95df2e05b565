//! NIC handles: opening a NIC, and creating tags, memory, completion queues and VIs, and waiting for connections.
//!
//! Source: VIA, accessing a VI NIC; VIPL, VipOpenNic and VipQueryNic.

use crate::address::Address;
use crate::allocation::AllocationOptions;
use crate::attributes::{NicAttributes, ViAttributes};
use crate::completion_queue::CompletionQueue;
use crate::connection::ConnectionRequest;
use crate::engine::completion_ring::CompletionRing;
use crate::engine::endpoint::Endpoint;
use crate::engine::nic::{NicShared, OpenNic};
use crate::engine::waiting::deadline_after;
use crate::error::{AsynchronousError, Error};
use crate::listener::Listener;
use crate::memory::MemoryRegion;
use crate::protection::{MemoryAttributes, ProtectionTag};
use crate::provider::shared_memory::SharedMemory;
use crate::provider::{Memory, Pages, Provider};
use crate::vi::Vi;
use std::sync::Arc;
use std::time::Duration;

/// A handle to an open NIC. Clones refer to the same NIC, which closes when the last clone and the last object created
/// from it are dropped. The NIC belongs to the process that opened it. In a forked child (fork(2)), dropping the NIC,
/// its VIs or its memory does nothing, and no other operation on them is permitted.
#[derive(Clone)]
pub struct Nic {
    shared: OpenNic,
}

impl Nic {
    /// Opens the shared-memory NIC, which connects processes on this host.
    ///
    /// # Errors
    /// [`Error::System`] if the system refuses a resource.
    pub fn open() -> Result<Nic, Error> {
        Ok(Nic::with_provider(Box::new(SharedMemory::open()?)))
    }

    /// Opens a NIC with the given provider.
    pub fn with_provider(provider: Box<dyn Provider>) -> Nic {
        Nic { shared: OpenNic::new(Arc::new(NicShared::new(provider))) }
    }

    /// The attributes of the NIC.
    pub fn attributes(&self) -> &NicAttributes {
        self.shared.provider.attributes()
    }

    /// Creates a protection tag.
    ///
    /// # Errors
    /// [`Error::Resource`] if all tags are in use.
    pub fn create_protection_tag(&self) -> Result<ProtectionTag, Error> {
        self.shared.memory.create_tag()
    }

    /// Destroys a protection tag. Fails while VIs or memory regions use it.
    ///
    /// # Errors
    /// [`Error::InvalidProtectionTag`] if the tag is unknown or in use.
    pub fn destroy_protection_tag(&self, tag: ProtectionTag) -> Result<(), Error> {
        self.shared.memory.destroy_tag(tag)
    }

    /// Allocates and registers zeroed memory of the type that the provider moves most efficiently.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for 0 bytes; [`Error::InvalidProtectionTag`]; [`Error::Resource`] if a limit of the
    /// NIC is exceeded or the system has no memory.
    pub fn allocate(&self, bytes: usize, attributes: MemoryAttributes) -> Result<MemoryRegion, Error> {
        self.allocate_with(bytes, attributes, AllocationOptions::default())
    }

    /// Like [`Nic::allocate`], with options that make the first use of the memory faster.
    ///
    /// # Errors
    /// Those of [`Nic::allocate`], and [`Error::System`] if the system has no memory for the pages.
    pub fn allocate_with(
        &self,
        bytes: usize,
        attributes: MemoryAttributes,
        options: AllocationOptions,
    ) -> Result<MemoryRegion, Error> {
        if bytes == 0 {
            return Err(Error::InvalidParameter("a region needs at least one byte".into()));
        }
        let memory: Arc<dyn Memory> = match self.shared.provider.allocate(bytes)? {
            Some(memory) => memory,
            None => Arc::new(Pages::new(bytes)?),
        };
        let (base, length) = (memory.base() as u64, bytes as u64);
        debug_assert!(memory.length() >= bytes);
        let region = self.insert(base, length, attributes, Some(memory.clone()))?;
        // Apply the options after the registration, in which a provider may replace the pages.
        options.apply(&*memory)?;
        Ok(region)
    }

    /// Registers existing memory.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for an invalid range; [`Error::InvalidProtectionTag`]; [`Error::Resource`] if a
    /// limit of the NIC is exceeded.
    ///
    /// # Safety
    /// From this call until the region is dropped and no posted descriptor names it, the memory must be mapped,
    /// readable and writable, and no Rust reference may rely on its contents: the NIC may write to it at any time.
    pub unsafe fn register(
        &self,
        base: *mut u8,
        bytes: usize,
        attributes: MemoryAttributes,
    ) -> Result<MemoryRegion, Error> {
        if bytes == 0 || base.is_null() || (base as usize).checked_add(bytes).is_none() {
            return Err(Error::InvalidParameter(format!("{bytes} bytes at {base:p} cannot be registered")));
        }
        self.insert(base as u64, bytes as u64, attributes, None)
    }

    fn insert(
        &self,
        address: u64,
        length: u64,
        attributes: MemoryAttributes,
        memory: Option<Arc<dyn Memory>>,
    ) -> Result<MemoryRegion, Error> {
        let region = self.shared.memory.insert(address, length, attributes, memory)?;
        self.shared.provider.register_region(&region.info);
        Ok(MemoryRegion { nic: self.shared.clone(), handle: region.info.handle, region })
    }

    /// Creates a completion queue for `entries` notifications.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for 0 entries; [`Error::Resource`] for more than the NIC supports.
    pub fn create_completion_queue(&self, entries: usize) -> Result<CompletionQueue, Error> {
        let max_entries = self.attributes().max_completion_queue_entries as usize;
        Ok(CompletionQueue { ring: Arc::new(CompletionRing::new(entries, max_entries)?) })
    }

    /// Creates an idle VI. Its work queues notify the given completion queues; a queue without one is polled or waited
    /// on directly.
    ///
    /// # Errors
    /// [`Error::Resource`] if a limit of the NIC is reached; the error for an attribute that the NIC does not support
    /// ([`Error::InvalidReliability`], [`Error::InvalidTransferSize`], [`Error::InvalidRdmaRead`],
    /// [`Error::InvalidProtectionTag`]).
    pub fn create_vi(
        &self,
        attributes: ViAttributes,
        send: Option<&CompletionQueue>,
        receive: Option<&CompletionQueue>,
    ) -> Result<Vi, Error> {
        let endpoint =
            Endpoint::create(&self.shared, attributes, send.map(|q| &q.ring), receive.map(|q| &q.ring))?;
        Ok(Vi::new(endpoint, self.shared.clone()))
    }

    /// Starts to listen at `local`. Peers can request connections from now on.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if the discriminator is too long; [`Error::AddressInUse`] if this NIC, another NIC or
    /// another process already listens there; the errors of the provider.
    pub fn listen(&self, local: &Address) -> Result<Listener, Error> {
        Listener::open(&self.shared, local)
    }

    /// Waits up to `timeout` for a connection request to `local`. `None` waits indefinitely. The NIC keeps listening
    /// afterwards, until it is closed. A [`Listener`] of [`Nic::listen`] stops when it is dropped.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::InvalidParameter`] if the discriminator is too long; the errors of the provider.
    pub fn connect_wait(
        &self,
        local: &Address,
        timeout: Option<Duration>,
    ) -> Result<ConnectionRequest, Error> {
        let longest = self.attributes().max_discriminator_bytes;
        if local.discriminator.len() > longest {
            return Err(Error::InvalidParameter(format!("a discriminator has at most {longest} bytes")));
        }
        let incoming = self.shared.provider.wait(local, deadline_after(timeout))?;
        Ok(ConnectionRequest { incoming, nic: self.shared.clone() })
    }

    /// Converts the host part of an address to the canonical form used by this NIC. An empty host is this NIC's own.
    ///
    /// # Errors
    /// If `host` is not a valid host for this NIC.
    pub fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        self.shared.provider.host(host)
    }

    /// The host parts of all NICs that this NIC knows on its network, starting with its own.
    pub fn known_hosts(&self) -> Vec<Vec<u8>> {
        self.shared.provider.known_hosts()
    }

    /// Calls `callback` for every asynchronous error, on a thread of the NIC. Replaces the previous callback.
    ///
    /// # Errors
    /// [`Error::System`] if the thread cannot be started.
    pub fn on_error(&self, callback: impl FnMut(&AsynchronousError) + Send + 'static) -> Result<(), Error> {
        self.shared.errors.set(Box::new(callback))
    }
}
