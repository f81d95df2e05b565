//! NICs: opening one, and what is made from it: tags, memory, completion queues, VIs, connections.
//! Not the hardware, which is a provider.
//! Source: VIA, accessing a VI NIC; VIPL, VipOpenNic and VipQueryNic.

use crate::address::Address;
use crate::attributes::{NicAttributes, ViAttributes};
use crate::completion_queue::CompletionQueue;
use crate::connection::ConnectionRequest;
use crate::engine::completion_ring::CompletionRing;
use crate::engine::endpoint::Endpoint;
use crate::engine::nic::NicShared;
use crate::engine::waiting::deadline_after;
use crate::error::{AsynchronousError, Error};
use crate::memory::MemoryRegion;
use crate::protection::{MemoryAttributes, ProtectionTag};
use crate::provider::shared_memory::SharedMemory;
use crate::provider::{Memory, Pages, Provider};
use crate::vi::Vi;
use std::sync::Arc;
use std::time::Duration;

/// An open NIC. Clones are the same NIC; it closes with the last of them and of what was made from it. It belongs to the process that
/// opened it: in a child of that (fork(2)) dropping it, its VIs and its memory does nothing, and nothing else of it may be used.
#[derive(Clone)]
pub struct Nic {
    shared: Arc<NicShared>,
}

impl Nic {
    /// Opens the shared-memory NIC, which reaches the processes of this host.
    pub fn open() -> Result<Nic, Error> {
        Ok(Nic::with_provider(Box::new(SharedMemory::open()?)))
    }

    /// Opens a NIC of the given kind.
    pub fn with_provider(provider: Box<dyn Provider>) -> Nic {
        Nic { shared: Arc::new(NicShared::new(provider)) }
    }

    /// What it can do.
    pub fn attributes(&self) -> &NicAttributes {
        self.shared.provider.attributes()
    }

    /// A new protection tag.
    pub fn create_protection_tag(&self) -> Result<ProtectionTag, Error> {
        self.shared.memory.create_tag()
    }

    /// Gives a tag back. An error while VIs or memory still have it.
    pub fn destroy_protection_tag(&self, tag: ProtectionTag) -> Result<(), Error> {
        self.shared.memory.destroy_tag(tag)
    }

    /// Allocates and registers zeroed memory of the kind that the NIC moves best.
    pub fn allocate(&self, bytes: usize, attributes: MemoryAttributes) -> Result<MemoryRegion, Error> {
        if bytes == 0 {
            return Err(Error::InvalidParameter("a region of no bytes".into()));
        }
        let memory: Arc<dyn Memory> = match self.shared.provider.allocate(bytes)? {
            Some(memory) => memory,
            None => Arc::new(Pages::new(bytes)?),
        };
        let (base, length) = (memory.base() as u64, bytes as u64);
        debug_assert!(memory.length() >= bytes);
        self.insert(base, length, attributes, Some(memory))
    }

    /// Registers memory of the program's own.
    ///
    /// # Safety
    /// The bytes must be mapped, readable and writable, and nothing in Rust may rely on them not changing, from this call until
    /// the region is dropped and no descriptor that names it is still posted: the NIC writes to them at any time.
    pub unsafe fn register(
        &self,
        base: *mut u8,
        bytes: usize,
        attributes: MemoryAttributes,
    ) -> Result<MemoryRegion, Error> {
        if bytes == 0 || base.is_null() || (base as usize).checked_add(bytes).is_none() {
            return Err(Error::InvalidParameter(format!(
                "{bytes} bytes at {base:p} are no memory to register"
            )));
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
        self.shared.provider.registered(&region.facts);
        Ok(MemoryRegion { nic: self.shared.clone(), handle: region.facts.handle, region })
    }

    /// A completion queue of `entries` notifications.
    pub fn create_completion_queue(&self, entries: usize) -> Result<CompletionQueue, Error> {
        let most = self.attributes().max_completion_queue_entries as usize;
        Ok(CompletionQueue { ring: Arc::new(CompletionRing::new(entries, most)?) })
    }

    /// A VI, idle. Its queues notify the completion queues given; a queue without one is polled or waited on by itself.
    pub fn create_vi(
        &self,
        attributes: ViAttributes,
        send: Option<&CompletionQueue>,
        receive: Option<&CompletionQueue>,
    ) -> Result<Vi, Error> {
        let endpoint =
            Endpoint::create(&self.shared, attributes, send.map(|q| &q.ring), receive.map(|q| &q.ring))?;
        Ok(Vi::new(endpoint))
    }

    /// Waits for a peer that asks for a connection to `local`, up to `timeout` (`None`: for ever).
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

    /// The host part of an address in the one form that all of this NIC's addresses have; empty is this NIC's own host.
    pub fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        self.shared.provider.host(host)
    }

    /// The host parts of all NICs on the network that this one knows of; its own is the first.
    pub fn known_hosts(&self) -> Vec<Vec<u8>> {
        self.shared.provider.known_hosts()
    }

    /// Calls `callback` for every asynchronous error, on a thread of the NIC. Replaces the callback before it.
    pub fn on_error(&self, callback: impl FnMut(&AsynchronousError) + Send + 'static) -> Result<(), Error> {
        self.shared.errors.set(Box::new(callback))
    }
}
