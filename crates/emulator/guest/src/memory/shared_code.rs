//! Copies of code pages that other processes can write to. An instruction barrier compares the copies with memory to
//! find changes. Writes by this process are detected immediately instead (`AddressSpace::protect_code`). Source:
//! LoongArch Reference Manual, volume 1, section 2.2.8.2 (IBAR makes stores to code visible to instruction fetch).

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{GuestMemory, HOST_PAGE_BYTES};
use crate::host::locks::{Mutex, MutexGuard};

/// The contents of a host page.
type Contents = Box<[u8; HOST_PAGE_BYTES as usize]>;

/// Host pages of shared memory from which code was read.
#[derive(Default)]
pub(super) struct SharedCodePages {
    /// Contents by page address.
    pages: Mutex<BTreeMap<u64, Contents>>,
    /// Whether `pages` is not empty. Barriers are common and shared code is rare, so most barriers take no lock.
    any: AtomicBool,
}

impl SharedCodePages {
    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Contents>> {
        self.pages.lock().ignore_poison()
    }
}

impl GuestMemory {
    fn host_page(&self, start: u64) -> Option<Contents> {
        let mut contents = Box::new([0; HOST_PAGE_BYTES as usize]);
        self.read(start, &mut *contents).ok().map(|()| contents)
    }

    /// Stores the current contents of the shared host page at `start`. Call it before reading code from the page.
    pub(super) fn snapshot_shared_code(&self, start: u64) {
        if let Some(contents) = self.host_page(start) {
            self.0.shared_code.pages().insert(start, contents);
            self.0.shared_code.any.store(true, Ordering::Release);
        }
    }

    /// Invalidates code that another process has changed since it was read. Call it at an instruction barrier, where
    /// the architecture makes such stores visible.
    pub fn invalidate_changed_shared_code(&self) {
        if !self.0.shared_code.any.load(Ordering::Acquire) {
            return;
        }
        let mut changed = Vec::new();
        self.0.shared_code.pages().retain(|&start, contents| {
            let is_same = self.host_page(start).is_some_and(|now| now == *contents);
            if !is_same {
                changed.push(start..start + HOST_PAGE_BYTES);
            }
            is_same
        });
        // The engines read the code again, which stores a new copy. Notify them without the lock, because they take
        // separate locks.
        changed.into_iter().for_each(|page| self.notify_code_changed(page));
    }
}
