//! The state shared by all handles of an open NIC.
//!
//! Source: VIA, accessing a VI NIC; fork(2).

use super::errors::ErrorDispatch;
use super::memory_table::MemoryTable;
use super::vi_registry::ViRegistry;
use crate::provider::Provider;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, Weak};

/// The state shared by all handles of an open NIC.
pub(crate) struct NicShared {
    pub(crate) provider: ManuallyDrop<Box<dyn Provider>>,
    pub(crate) memory: MemoryTable,
    pub(crate) vi_registry: Arc<ViRegistry>,
    pub(crate) errors: ErrorDispatch,
    /// The discriminators of the listeners.
    pub(crate) listening: Mutex<BTreeSet<Vec<u8>>>,
    /// The process that opened the NIC.
    creator_pid: u32,
}

impl NicShared {
    /// Opens a NIC and gives the provider's threads access to the engine.
    pub(crate) fn new(provider: Box<dyn Provider>) -> NicShared {
        let attributes = provider.attributes();
        let vi_registry = Arc::new(ViRegistry::new(attributes.max_vis));
        let memory = MemoryTable::new(attributes);
        let poller: Weak<ViRegistry> = Arc::downgrade(&vi_registry);
        provider.attach(poller);
        let (provider, errors, creator_pid) =
            (ManuallyDrop::new(provider), ErrorDispatch::default(), std::process::id());
        NicShared { provider, memory, vi_registry, errors, listening: Mutex::default(), creator_pid }
    }

    /// Whether this process is a forked child of the one that opened the NIC (fork(2)). The child must not close
    /// anything, because sockets, names and segments are shared with the parent.
    pub(crate) fn is_forked_child(&self) -> bool {
        std::process::id() != self.creator_pid
    }
}

impl Drop for NicShared {
    fn drop(&mut self) {
        if !self.is_forked_child() {
            // SAFETY: dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.provider) }
        }
    }
}
