//! Records the memory writes of a vfork child, which runs in a copy of its parent's memory, so that they can be applied
//! to the parent. Covers private memory that was writable at the start; shared memory and changes to mappings are not
//! recorded. Source: vfork(2), clone(2) (CLONE_VM); mprotect(2).

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{GuestMemory, HOST_PAGE_BYTES, access};
use crate::host::locks::{Mutex, MutexGuard};

/// The contents of a host page before the first write.
type Page = Box<[u8; HOST_PAGE_BYTES as usize]>;

/// The recorded writes of a process, once tracking is enabled.
#[derive(Debug, Default)]
pub(super) struct WriteLog {
    are_tracked: AtomicBool,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Private guest memory that was made read-only, in address order.
    protected: Vec<Range<u64>>,
    /// The contents of each page before its first write, by page address.
    before: BTreeMap<u64, Page>,
}

/// A run of written bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl WriteLog {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().ignore_poison()
    }
}

impl Pages {
    fn is_protected_at(&self, address: u64) -> bool {
        let index = self.protected.partition_point(|range| range.end <= address);
        self.protected.get(index).is_some_and(|range| range.contains(&address))
    }
}

impl GuestMemory {
    /// Starts tracking writes. The caller must be the only thread of the process.
    pub fn track_writes(&self) {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        let private = map.iter().filter(|(_, mapping)| {
            mapping.protection.write && !mapping.shared && mapping.origin.window.is_none()
        });
        for (range, _) in private {
            match ranges.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => ranges.push(range),
            }
        }
        let mut pages = self.0.writes.pages();
        pages.before.clear();
        self.0.writes.are_tracked.store(true, Ordering::Relaxed);
        pages.protected = ranges.into_iter().filter(|range| self.set_writable(range, false)).collect();
    }

    /// Changes the protection of a range. Returns whether that succeeded.
    fn set_writable(&self, range: &Range<u64>, writable: bool) -> bool {
        let start = self.base().wrapping_add(range.start as usize);
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: guest memory that the guest may read and write.
        unsafe { libc::mprotect(start.cast(), (range.end - range.start) as usize, protection) == 0 }
    }

    /// Called before a write to `range`: saves the contents of its tracked pages and makes them writable. Returns
    /// whether a page was read-only because of tracking, so that the write can be retried.
    pub(super) fn record_writes(&self, range: Range<u64>) -> bool {
        if !self.0.writes.are_tracked.load(Ordering::Relaxed) {
            return false;
        }
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        let mut pages = self.0.writes.pages();
        let mut was_read_only = false;
        let first = range.start & !(HOST_PAGE_BYTES - 1);
        for at in (first..range.end).step_by(HOST_PAGE_BYTES as usize) {
            let may_be_written =
                map.at(at).is_some_and(|(_, mapping)| mapping.protection.write && !mapping.shared);
            if !may_be_written || !pages.is_protected_at(at) || pages.before.contains_key(&at) {
                continue;
            }
            let mut page: Page = Box::new([0; HOST_PAGE_BYTES as usize]);
            let from = self.base().wrapping_add(at as usize);
            // SAFETY: the page is inside the reservation, and the buffer has its size.
            if unsafe { access::copy(page.as_mut_ptr(), from, page.len()) }.is_err() {
                // The page is beyond the end of its file.
                continue;
            }
            pages.before.insert(at, page);
            let _code_guard = self.0.code_lock.lock();
            // A page with translated code stays write-protected, so that the code is invalidated first.
            if !self.0.code.contains(at / HOST_PAGE_BYTES) {
                self.set_writable(&(at..at + HOST_PAGE_BYTES), true);
            }
            was_read_only = true;
        }
        was_read_only
    }

    /// The bytes that differ from their values at the start of tracking, merged into runs within each page.
    pub fn written(&self) -> Vec<Written> {
        let pages = self.0.writes.pages();
        let mut written: Vec<Written> = Vec::new();
        for (&at, before) in &pages.before {
            let mut now = [0; HOST_PAGE_BYTES as usize];
            let from = self.base().wrapping_add(at as usize);
            // SAFETY: the page is inside the reservation, and the buffer has its size.
            if unsafe { access::copy(now.as_mut_ptr(), from, now.len()) }.is_err() {
                // The page is no longer mapped.
                continue;
            }
            for (index, _) in before.iter().zip(&now).enumerate().filter(|(_, (before, now))| before != now) {
                let address = at + index as u64;
                match written.last_mut().filter(|last| last.address + last.bytes.len() as u64 == address) {
                    Some(last) => last.bytes.push(now[index]),
                    None => written.push(Written { address, bytes: vec![now[index]] }),
                }
            }
        }
        written
    }
}
