//! Write-protects pages from which code was read, so that the first write to them is detected. `shared_code` handles
//! writes by other processes. Source: mprotect(2).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::HOST_PAGE_BYTES;
use super::address_space::{AddressSpace, errno};
use super::mappings::{Mapping, Mappings};
use crate::host::schedule_fuzz::perturb;
use crate::host::terminate_by_signal;

impl AddressSpace {
    /// Write-protects the executable host page of `address` in all mappings through which the guest may write to it, so
    /// that the first write is detected. Returns whether any mapping is protected afterwards; false means that the
    /// guest cannot write to the page.
    ///
    /// Call it before reading the page for translation. Shared memory is also copied, because writes of other processes
    /// are not detected: [`GuestMemory::invalidate_changed_shared_code`] compares the copy.
    pub fn protect_code(&self, address: u64) -> bool {
        perturb();
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
            self.memory().snapshot_shared_code(start);
        }
        is_protected
    }

    fn protect_views(&self, map: &Mappings, mapping: &Mapping, start: u64) -> bool {
        let others = map.other_views(&(start..start + HOST_PAGE_BYTES)).into_iter();
        let others = others.filter(|(_, view)| view.shared && view.protection.write && !view.marks.is_guard);
        let others: Vec<u64> = others.map(|(range, _)| range.start).collect();
        let is_own_writable_code = mapping.protection.write && mapping.protection.execute;
        if !is_own_writable_code && others.is_empty() {
            return false;
        }
        let _code_guard = self.memory().0.code_lock.lock();
        is_own_writable_code
            .then_some(start)
            .into_iter()
            .chain(others)
            .fold(false, |any, start| self.protect_page(start) | any)
    }

    /// Waits until pending changes to the map are complete. Readers of code that are notified of every change call this
    /// before they read: a change that is not complete by then is reported after the read.
    pub fn wait_for_changes(&self) {
        perturb();
        drop(self.read());
    }

    /// Write-protects one page. The caller holds the lock of the code pages.
    fn protect_page(&self, start: u64) -> bool {
        let page = start / HOST_PAGE_BYTES;
        self.memory().0.watches_of(page).fetch_add(1, Ordering::Relaxed);
        // Set the bit first, because the fault handler of a concurrent write checks it.
        if self.memory().0.code.insert(page) {
            // SAFETY: one host page inside a guest mapping.
            let protected =
                unsafe { libc::mprotect(self.host(start), HOST_PAGE_BYTES as usize, libc::PROT_READ) };
            if protected != 0 {
                let error = errno();
                self.memory().0.code.remove(page);
                // Terminate: otherwise changes to this code would never be detected, and stale translations would run.
                eprintln!(
                    "longma: cannot write-protect a page of code ({error:?}): the process has no mappings left; raise \
                     vm.max_map_count"
                );
                terminate_by_signal(libc::SIGABRT);
            }
        }
        true
    }

    /// Whether the host page of `address` is write-protected because of translated code. Async-signal-safe.
    pub fn is_code_protected(&self, address: u64) -> bool {
        self.memory().is_code_protected(address)
    }

    /// Registers the function that is called with address ranges whose code may have changed. Only the first call has
    /// an effect.
    pub fn on_code_change(&self, callback: Box<dyn Fn(Range<u64>) + Send + Sync>) {
        // Registering a second engine is a bug of the caller; the first one must keep its notifications.
        let _ = self.memory().0.code_changed.set(callback);
    }
}
