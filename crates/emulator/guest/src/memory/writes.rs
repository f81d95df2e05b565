//! What a process that runs in a copy of its parent's memory writes there, so that the parent can be given it.
//! Not what both share anyway, and not what the process maps or unmaps.
//! Source: vfork(2), clone(2) (CLONE_VM); mprotect(2).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{GuestMemory, HOST_PAGE_BYTES, access};
use crate::host::locks::{Mutex, MutexGuard};

/// A host page as it was before the first write.
type Page = Box<[u8; HOST_PAGE_BYTES as usize]>;

/// The writes of a process, once somebody wants to know.
#[derive(Debug, Default)]
pub(super) struct Writes {
    are_tracked: AtomicBool,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Private memory of the guest's that was made read-only, in order.
    protected: Vec<Range<u64>>,
    /// Those that have been written to since, by their addresses.
    before: BTreeMap<u64, Page>,
}

/// Bytes that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where the first is.
    pub address: u64,
    /// They, in order.
    pub bytes: Vec<u8>,
}

impl Writes {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn are_protected_at(&self, address: u64) -> bool {
        let behind = self.protected.partition_point(|range| range.end <= address);
        self.protected.get(behind).is_some_and(|range| range.contains(&address))
    }
}

impl GuestMemory {
    /// Begins to note what is written, in a process whose only thread is the caller.
    pub fn track_writes(&self) {
        let mut wanted: Vec<Range<u64>> = Vec::new();
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        let private = map.iter().filter(|(_, mapping)| {
            mapping.protection.write && !mapping.shared && mapping.origin.window.is_none()
        });
        for (range, _) in private {
            match wanted.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => wanted.push(range),
            }
        }
        let mut pages = self.0.writes.pages();
        pages.before.clear();
        self.0.writes.are_tracked.store(true, Ordering::Relaxed);
        pages.protected = wanted.into_iter().filter(|range| self.set_writable(range, false)).collect();
    }

    /// True if it is done.
    fn set_writable(&self, range: &Range<u64>, writable: bool) -> bool {
        let start = self.base().wrapping_add(range.start as usize);
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: memory of the guest's, which it may read and write.
        unsafe { libc::mprotect(start.cast(), (range.end - range.start) as usize, protection) == 0 }
    }

    /// Something is about to be written to `range`, if the guest may. True if something was in the way of that.
    pub(super) fn note_writes(&self, range: Range<u64>) -> bool {
        if !self.0.writes.are_tracked.load(Ordering::Relaxed) {
            return false;
        }
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        let mut pages = self.0.writes.pages();
        let mut noted = false;
        let first = range.start & !(HOST_PAGE_BYTES - 1);
        for at in (first..range.end).step_by(HOST_PAGE_BYTES as usize) {
            let may_be_written =
                map.at(at).is_some_and(|(_, mapping)| mapping.protection.write && !mapping.shared);
            if !may_be_written || !pages.are_protected_at(at) || pages.before.contains_key(&at) {
                continue;
            }
            let mut page: Page = Box::new([0; HOST_PAGE_BYTES as usize]);
            let from = self.base().wrapping_add(at as usize);
            // SAFETY: the page is inside the reservation, the other side has its size.
            if unsafe { access::copy(page.as_mut_ptr(), from, page.len()) }.is_err() {
                // Behind the end of a file.
                continue;
            }
            pages.before.insert(at, page);
            let _held = self.0.code_lock.hold();
            // Where code comes from, it is still to be forgotten.
            if !self.0.code.contains(at / HOST_PAGE_BYTES) {
                self.set_writable(&(at..at + HOST_PAGE_BYTES), true);
            }
            noted = true;
        }
        noted
    }

    /// What has been written since the beginning and is not as it was: as few pieces as the pages have.
    pub fn written(&self) -> Vec<Written> {
        let pages = self.0.writes.pages();
        let mut written: Vec<Written> = Vec::new();
        for (&at, before) in &pages.before {
            let mut now = [0; HOST_PAGE_BYTES as usize];
            let from = self.base().wrapping_add(at as usize);
            // SAFETY: the page is inside the reservation, the other side has its size.
            if unsafe { access::copy(now.as_mut_ptr(), from, now.len()) }.is_err() {
                // No longer mapped.
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
