//! Code in memory that other processes can write to, kept as it was when it was read: so a barrier finds what has changed since.
//! Not what this process writes itself: that is noticed at once (`AddressSpace::protect_code`).
//! Source: LoongArch Reference Manual, volume 1, section 2.2.8.2 (IBAR makes stores to code seen, whoever has made them).

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{GuestMemory, HOST_PAGE_BYTES};
use crate::host::locks::{Mutex, MutexGuard};

/// What a host page held.
type Contents = Box<[u8; HOST_PAGE_BYTES as usize]>;

/// Host pages of shared memory that code was read from.
#[derive(Default)]
pub(super) struct ForeignCode {
    /// By address.
    pages: Mutex<BTreeMap<u64, Contents>>,
    /// There are any: hardly a program has some, and all programs make barriers.
    any: AtomicBool,
}

impl ForeignCode {
    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Contents>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GuestMemory {
    fn host_page(&self, start: u64) -> Option<Contents> {
        let mut contents = Box::new([0; HOST_PAGE_BYTES as usize]);
        self.read(start, &mut *contents).ok().map(|()| contents)
    }

    /// Keeps what the host page at `start`, which is shared, holds now. Call it before code is read from there.
    pub(super) fn keep_foreign_code(&self, start: u64) {
        if let Some(contents) = self.host_page(start) {
            self.0.foreign.pages().insert(start, contents);
            self.0.foreign.any.store(true, Ordering::Release);
        }
    }

    /// Has code forgotten that another process has changed since it was read: to be called where the architecture makes its stores seen.
    pub fn forget_foreign_changes(&self) {
        if !self.0.foreign.any.load(Ordering::Acquire) {
            return;
        }
        let mut changed = Vec::new();
        self.0.foreign.pages().retain(|&start, contents| {
            let is_same = self.host_page(start).is_some_and(|now| now == *contents);
            if !is_same {
                changed.push(start..start + HOST_PAGE_BYTES);
            }
            is_same
        });
        // Whoever reads code there again keeps the page anew. No lock is held: those who are told take others.
        changed.into_iter().for_each(|page| self.notify_code_changed(page));
    }
}
