//! A region of the peer's, mapped here, and how it is given up: little is unmapped at once, much by the thread of the peer's user.
//! Not how it comes to be mapped, which is `contact.rs`.
//! Source: munmap(2), memfd_create(2): who lets go of a memory file last frees its pages, all that it has.

use super::closing::drop_elsewhere;
use super::ledger::Charge;
use super::letters::Showing;
use super::mapping::Mapping;
use std::sync::Arc;

/// So many small regions are unmapped by whoever gives them up. Each costs a system call, and at most `mapping::LARGE_BYTES` of pages.
const FEW: usize = 8;

/// A mapping, and what is counted for it until it is gone.
type Held = (Mapping, Charge);

/// A region of the peer, mapped here.
pub(super) struct PeerRegion {
    pub(super) showing: Showing,
    /// `None` only while it is dropped.
    held: Option<Held>,
    base: *mut u8,
    /// Unmapping it may free many pages: those of the whole file, not only what is mapped.
    is_large: bool,
}

// SAFETY: the address of a mapping, which belongs to the whole process.
unsafe impl Send for PeerRegion {}
// SAFETY: as above; it is only read.
unsafe impl Sync for PeerRegion {}

impl PeerRegion {
    /// `mapping` has `showing.length` bytes at least.
    pub(super) fn new(showing: Showing, mapping: Mapping, charge: Charge, is_large: bool) -> PeerRegion {
        let base = mapping.base();
        PeerRegion { showing, held: Some((mapping, charge)), base, is_large }
    }

    /// Where it is mapped; `showing.length` bytes from there on are.
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for PeerRegion {
    fn drop(&mut self) {
        if let Some(held) = self.held.take()
            && self.is_large
        {
            unmap_elsewhere(vec![held]);
        }
    }
}

/// Gives regions up; those that somebody still uses are unmapped when he gives them up too.
pub(super) fn give_up(regions: Vec<Arc<PeerRegion>>) {
    let mut is_much = false;
    let held: Vec<Held> = regions
        .into_iter()
        .filter_map(Arc::into_inner)
        .filter_map(|mut region| {
            is_much |= region.is_large;
            region.held.take()
        })
        .collect();
    if is_much || held.len() > FEW {
        unmap_elsewhere(held);
    }
}

fn unmap_elsewhere(held: Vec<Held>) {
    if let Some((_, charge)) = held.first() {
        let uid = charge.uid();
        drop_elsewhere(Box::new(held), uid);
    }
}
