//! What all handles of one open NIC share: its provider, its memory, its VIs, its error callback.
//! Not the handle that programs have, which is `crate::nic`.
//! Source: VIA, accessing a VI NIC; fork(2).

use super::errors::ErrorDispatch;
use super::memory_table::MemoryTable;
use super::roster::Roster;
use crate::provider::Provider;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

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
    /// A NIC of that kind is open in this process, and the provider's threads have its attention.
    pub(crate) fn new(provider: Box<dyn Provider>) -> NicShared {
        let attributes = provider.attributes();
        let roster = Arc::new(Roster::new(attributes.max_vis));
        let memory = MemoryTable::new(attributes);
        let attention: Weak<Roster> = Arc::downgrade(&roster);
        provider.attach(attention);
        let (provider, errors, home) =
            (ManuallyDrop::new(provider), ErrorDispatch::default(), std::process::id());
        NicShared { provider, memory, roster, errors, home }
    }

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
