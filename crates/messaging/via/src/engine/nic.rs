//! The state shared by all handles of an open NIC.
//!
//! Source: VIA, accessing a VI NIC; fork(2).

use super::errors::ErrorDispatch;
use super::memory_table::MemoryTable;
use super::vi_registry::ViRegistry;
use crate::provider::Provider;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// The number of `OpenNic`s.
    users: AtomicUsize,
}

impl NicShared {
    /// Opens a NIC and gives the provider's threads access to the engine.
    pub(crate) fn new(provider: Box<dyn Provider>) -> NicShared {
        let attributes = provider.attributes();
        let vi_registry = Arc::new(ViRegistry::new(attributes.max_vis));
        let memory = MemoryTable::new(attributes);
        let poller: Weak<ViRegistry> = Arc::downgrade(&vi_registry);
        provider.attach(poller);
        NicShared {
            provider: ManuallyDrop::new(provider),
            memory,
            vi_registry,
            errors: ErrorDispatch::default(),
            listening: Mutex::default(),
            creator_pid: std::process::id(),
            users: AtomicUsize::new(0),
        }
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

/// The reference of a program's object to its NIC. The thread that drops the last `OpenNic` closes the NIC. The last
/// reference to `NicShared` cannot decide this: the NIC's own threads have such references while they poll, and may
/// drop the last one.
pub(crate) struct OpenNic {
    shared: Arc<NicShared>,
}

impl OpenNic {
    /// A reference from a new object.
    pub(crate) fn new(shared: Arc<NicShared>) -> OpenNic {
        shared.users.fetch_add(1, Ordering::Relaxed);
        OpenNic { shared }
    }
}

impl Clone for OpenNic {
    fn clone(&self) -> OpenNic {
        OpenNic::new(self.shared.clone())
    }
}

impl Deref for OpenNic {
    type Target = Arc<NicShared>;

    fn deref(&self) -> &Arc<NicShared> {
        &self.shared
    }
}

impl Drop for OpenNic {
    fn drop(&mut self) {
        if self.shared.users.fetch_sub(1, Ordering::AcqRel) == 1 && !self.shared.is_forked_child() {
            self.shared.provider.close();
        }
    }
}
