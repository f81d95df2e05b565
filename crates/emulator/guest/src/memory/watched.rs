//! Pages that code was read from: protected, so that the first write to them is noticed.
//! Not what other processes write (see `foreign`), nor what is done about a change: whoever executes the code is told.
//! Source: mprotect(2).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::HOST_PAGE_BYTES;
use super::address_space::{AddressSpace, errno};
use super::mappings::{Mapping, Mappings};
use crate::host::die_by;
use crate::host::shake::shake;

impl AddressSpace {
    /// Write-protects what the guest may write to and what shows the host page of `address`, which it may execute: that page and those
    /// of other mappings of the same memory, so that the first write is noticed. True if anything is protected after the call; false
    /// if the guest cannot write there anyway.
    ///
    /// Call it before the page is read for translation. What other processes can write to is kept too, since nothing of theirs is noticed:
    /// [`GuestMemory::forget_foreign_changes`] compares.
    pub fn protect_code(&self, address: u64) -> bool {
        shake();
        if self.is_own_code(address) {
            return false;
        }
        let map = self.read();
        let Some((_, mapping)) = map.at(address) else { return false };
        let start = address & !(HOST_PAGE_BYTES - 1);
        let is_foreign = mapping.shared && mapping.protection.execute;
        let is_protected = self.protect_views(&map, mapping, start);
        drop(map);
        if is_foreign {
            self.memory().keep_foreign_code(start);
        }
        is_protected
    }

    fn protect_views(&self, map: &Mappings, mapping: &Mapping, start: u64) -> bool {
        let others = map.other_views(&(start..start + HOST_PAGE_BYTES)).into_iter();
        let others = others.filter(|(_, view)| view.shared && view.protection.write);
        let others: Vec<u64> = others.map(|(range, _)| range.start).collect();
        let own = mapping.protection.write && mapping.protection.execute;
        if !own && others.is_empty() {
            return false;
        }
        let _held = self.memory().0.code_lock.hold();
        own.then_some(start)
            .into_iter()
            .chain(others)
            .fold(false, |any, start| self.protect_page(start) | any)
    }

    /// Waits until nobody is changing the map. For those who read code that nobody can write to unnoticed, or that is told of when it
    /// is changed: what goes while they read it is told of afterwards.
    pub fn wait_for_changes(&self) {
        shake();
        drop(self.read());
    }

    /// The caller holds the lock of the code's pages.
    fn protect_page(&self, start: u64) -> bool {
        let page = start / HOST_PAGE_BYTES;
        self.memory().0.watches_of(page).fetch_add(1, Ordering::Relaxed);
        // The bit first: a write that faults must find it.
        if self.memory().0.code.insert(page) {
            // SAFETY: one host page inside a guest mapping.
            let protected =
                unsafe { libc::mprotect(self.host(start), HOST_PAGE_BYTES as usize, libc::PROT_READ) };
            if protected != 0 {
                let error = errno();
                self.memory().0.code.remove(page);
                // Code that changes unnoticed would be run as it was, for ever.
                eprintln!(
                    "longma: a page of code cannot be protected ({error:?}): the program has used up the host's mappings; raise \
                     vm.max_map_count"
                );
                die_by(libc::SIGABRT);
            }
        }
        true
    }

    /// Whether the host page of `address` is write-protected because of translated code. Async-signal-safe.
    pub fn is_code_protected(&self, address: u64) -> bool {
        self.memory().is_code_protected(address)
    }

    /// Sets who is told of ranges whose code may have changed; only the first call counts.
    pub fn on_code_change(&self, tell: Box<dyn Fn(Range<u64>) + Send + Sync>) {
        // A second engine for the same process would be a mistake of the caller's, and the first one must keep being told.
        let _ = self.memory().0.code_changed.set(tell);
    }
}
