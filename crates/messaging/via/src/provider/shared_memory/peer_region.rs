//! A mapped region of the peer. When it is released, a region of few pages is unmapped immediately, a larger one by the
//! closing thread of the peer's user.
//!
//! Source: munmap(2), memfd_create(2). Releasing the last reference to a memory file frees all of its pages.

use super::control_message::RegionExport;
use super::deferred_close::defer_drop;
use super::mapping::Mapping;
use super::quota::Charge;
use std::sync::Arc;

/// Up to this many small regions are unmapped by the thread that releases them. Each costs a system call and frees at
/// most `mapping::LARGE_BYTES` of pages.
const MAX_UNMAPPED_AT_ONCE: usize = 8;

/// A mapping and its charge.
type ChargedMapping = (Mapping, Charge);

/// A mapped region of the peer.
pub(super) struct PeerRegion {
    pub(super) export: RegionExport,
    /// `None` only during drop.
    held: Option<ChargedMapping>,
    base: *mut u8,
    /// Whether unmapping may free many pages: those of the whole file, not only of the mapped part.
    is_large: bool,
}

// SAFETY: `base` is the address of a mapping, which belongs to the process.
unsafe impl Send for PeerRegion {}
// SAFETY: as above; the value is only read.
unsafe impl Sync for PeerRegion {}

impl PeerRegion {
    /// Wraps a mapping of at least `export.length` bytes.
    pub(super) fn new(export: RegionExport, mapping: Mapping, charge: Charge, is_large: bool) -> PeerRegion {
        let base = mapping.base();
        PeerRegion { export, held: Some((mapping, charge)), base, is_large }
    }

    /// The start of the mapping, which has at least `export.length` bytes.
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for PeerRegion {
    fn drop(&mut self) {
        if let Some(held) = self.held.take()
            && self.is_large
        {
            defer_unmap(vec![held]);
        }
    }
}

/// Releases regions. A region that is still in use is unmapped when its last user releases it.
pub(super) fn release_regions(regions: Vec<Arc<PeerRegion>>) {
    let mut is_much = false;
    let held: Vec<ChargedMapping> = regions
        .into_iter()
        .filter_map(Arc::into_inner)
        .filter_map(|mut region| {
            is_much |= region.is_large;
            region.held.take()
        })
        .collect();
    if is_much || held.len() > MAX_UNMAPPED_AT_ONCE {
        defer_unmap(held);
    }
}

fn defer_unmap(held: Vec<ChargedMapping>) {
    if let Some((_, charge)) = held.first() {
        let uid = charge.uid();
        defer_drop(Box::new(held), uid);
    }
}
