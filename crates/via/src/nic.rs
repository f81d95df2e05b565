//! NICs: opening one, and what is made from it: tags, memory, completion queues, VIs, connections.
//! Not the hardware, which is a provider.
//! Source: VIA, accessing a VI NIC; VIPL, VipOpenNic and VipQueryNic.

use crate::completion_queue::CompletionQueue;
use crate::connection::{Address, ConnectionRequest};
use crate::engine::completion_ring::CompletionRing;
use crate::engine::endpoint::Endpoint;
use crate::engine::errors::ErrorDispatch;
use crate::engine::memory_table::MemoryTable;
use crate::engine::roster::Roster;
use crate::engine::waiting::deadline_after;
use crate::error::{AsynchronousError, Error};
use crate::memory::{MemoryAttributes, MemoryRegion, ProtectionTag};
use crate::provider::shared_memory::SharedMemory;
use crate::provider::{Memory, Provider};
use crate::vi::{Reliability, Vi, ViAttributes};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

/// What a NIC can do (VIPL, VIP_NIC_ATTRIBUTES). The specification's own minimum is in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicAttributes {
    /// The name it was opened by.
    pub name: String,
    /// The host part of its addresses.
    pub local_address: Vec<u8>,
    /// Longest discriminator, bytes (16).
    pub max_discriminator_bytes: usize,
    /// Registered bytes in total (8 MiB).
    pub max_register_bytes: u64,
    /// Registered regions (1024).
    pub max_register_regions: u32,
    /// Largest region, bytes (32 KiB).
    pub max_register_block_bytes: u64,
    /// VIs (1024).
    pub max_vis: u32,
    /// Descriptors in a work queue (1024).
    pub max_descriptors_per_queue: u32,
    /// Data segments in a descriptor (252).
    pub max_segments_per_descriptor: u32,
    /// Completion queues (1024).
    pub max_completion_queues: u32,
    /// Entries of a completion queue (1024).
    pub max_completion_queue_entries: u32,
    /// Largest message, bytes (32 KiB).
    pub max_transfer_bytes: u32,
    /// What travels in one piece on the medium, bytes.
    pub native_mtu_bytes: u32,
    /// Protection tags (1024).
    pub max_protection_tags: u32,
    /// The reliability levels it has.
    pub reliability: Vec<Reliability>,
    /// The reliability levels at which it has RDMA read.
    pub rdma_read: Vec<Reliability>,
}

impl Default for NicAttributes {
    fn default() -> NicAttributes {
        NicAttributes {
            name: String::new(),
            local_address: Vec::new(),
            max_discriminator_bytes: 40,
            max_register_bytes: u64::MAX,
            max_register_regions: 1 << 16,
            max_register_block_bytes: u64::MAX,
            max_vis: 1 << 16,
            max_descriptors_per_queue: 1024,
            max_segments_per_descriptor: 252,
            max_completion_queues: 1 << 16,
            max_completion_queue_entries: 1 << 20,
            max_transfer_bytes: 1 << 30,
            native_mtu_bytes: 1 << 30,
            max_protection_tags: 1 << 16,
            reliability: Reliability::ALL.to_vec(),
            rdma_read: vec![Reliability::ReliableDelivery, Reliability::ReliableReception],
        }
    }
}

/// What all handles of one open NIC share.
pub(crate) struct NicShared {
    pub(crate) provider: ManuallyDrop<Box<dyn Provider>>,
    pub(crate) memory: MemoryTable,
    pub(crate) roster: Arc<Roster>,
    pub(crate) errors: ErrorDispatch,
    /// The process that opened it.
    home: u32,
}

impl NicShared {
    /// Whether this is a copy in another process, a child of the one that opened it (fork(2)). What it would close, it would close for
    /// that one: sockets, names and segments are the same.
    pub(crate) fn is_a_childs(&self) -> bool {
        std::process::id() != self.home
    }
}

impl Drop for NicShared {
    fn drop(&mut self) {
        if !self.is_a_childs() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.provider) }
        }
    }
}

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
        let attributes = provider.attributes();
        let roster = Arc::new(Roster::new(attributes.max_vis));
        let memory = MemoryTable::new(attributes);
        let attention: std::sync::Weak<Roster> = Arc::downgrade(&roster);
        provider.attach(attention);
        let (provider, errors, home) =
            (ManuallyDrop::new(provider), ErrorDispatch::default(), std::process::id());
        Nic { shared: Arc::new(NicShared { provider, memory, roster, errors, home }) }
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
            None => Arc::new(crate::engine::memory_table::Pages::new(bytes)?),
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
