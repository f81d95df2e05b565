//! Address translation for the NIC: divides regions into pieces that a DMA can move, and models BVIA's TLB. The engine
//! has already checked protection.
//!
//! Source: Jiao Zhenqiang et al.: BVIA's translations in host memory with a TLB on the NIC; MyVIA's contiguous buffers
//! of one MTU.

use std::collections::BTreeMap;

/// A piece of memory moved by a single DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The length, bytes.
    pub bytes: u32,
    /// The page number in the host's table.
    pub page: u64,
}

/// The registered regions of a host.
#[derive(Clone, Debug)]
pub struct Regions {
    page_bytes: u64,
    /// The size of contiguous blocks in memory from the library's allocator, bytes. Other memory is contiguous only
    /// within a page.
    contiguous_bytes: u64,
    by_handle: BTreeMap<u32, Region>,
    next_page: u64,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    address: u64,
    first_page: u64,
    piece_bytes: u64,
}

impl Regions {
    /// Creates an empty set. Memory from the library's allocator is contiguous in blocks of `contiguous_bytes`.
    pub fn new(page_bytes: u32, contiguous_bytes: u32) -> Self {
        let page_bytes = u64::from(page_bytes.max(1));
        let contiguous_bytes = u64::from(contiguous_bytes).max(page_bytes);
        // Page 0 holds the descriptors.
        Self { page_bytes, contiguous_bytes, by_handle: BTreeMap::new(), next_page: 1 }
    }

    /// Adds a region. Its pages get consecutive numbers, so that the result does not depend on its address.
    pub fn insert(&mut self, handle: u32, address: u64, length: u64, is_own: bool) {
        let piece_bytes = if is_own { self.contiguous_bytes } else { self.page_bytes };
        self.by_handle.insert(handle, Region { address, first_page: self.next_page, piece_bytes });
        self.next_page += length / self.page_bytes + 2;
    }

    /// Removes a region.
    pub fn remove(&mut self, handle: u32) {
        self.by_handle.remove(&handle);
    }

    /// Divides `length` bytes at `address` into DMA pieces.
    pub fn pieces(&self, handle: u32, address: u64, length: u32, into: &mut Vec<Piece>) {
        let unknown = Region { address, first_page: 0, piece_bytes: self.page_bytes };
        let region = self.by_handle.get(&handle).copied().unwrap_or(unknown);
        let mut offset = address.wrapping_sub(region.address);
        // Blocks start at the beginning of allocator memory; other memory is divided at page boundaries.
        let shift = if region.piece_bytes == self.page_bytes { region.address % self.page_bytes } else { 0 };
        let mut left = u64::from(length);
        while left > 0 {
            let inside = (offset + shift) % region.piece_bytes;
            let bytes = left.min(region.piece_bytes - inside);
            let page = region.first_page + (offset + region.address % self.page_bytes) / self.page_bytes;
            into.push(Piece { bytes: bytes as u32, page });
            offset += bytes;
            left -= bytes;
        }
    }
}

/// BVIA's direct-mapped TLB in SRAM.
#[derive(Clone, Debug)]
pub struct Tlb {
    entries: Vec<Option<u64>>,
    hits: u64,
    misses: u64,
}

impl Tlb {
    /// Creates an empty TLB.
    pub fn new(entries: usize) -> Self {
        Self { entries: vec![None; entries.max(1)], hits: 0, misses: 0 }
    }

    /// Looks up a page and inserts it if missing. Returns whether it was a hit.
    pub fn look_up(&mut self, page: u64) -> bool {
        let index = (page % self.entries.len() as u64) as usize;
        let hit = self.entries[index] == Some(page);
        self.entries[index] = Some(page);
        self.hits += u64::from(hit);
        self.misses += u64::from(!hit);
        hit
    }

    /// The numbers of hits and misses.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(pieces: &[Piece]) -> Vec<u32> {
        pieces.iter().map(|p| p.bytes).collect()
    }

    #[test]
    fn program_memory_is_split_at_pages_and_allocated_memory_only_at_the_mtu() {
        let mut regions = Regions::new(4096, 102_400);
        regions.insert(1, 0x10_0800, 20_000, false);
        regions.insert(2, 0x20_0000, 300_000, true);
        let mut pieces = Vec::new();
        regions.pieces(1, 0x10_0800, 10_000, &mut pieces);
        assert_eq!(bytes(&pieces), [2048, 4096, 3856]);
        assert!(pieces.windows(2).all(|p| p[1].page == p[0].page + 1));
        pieces.clear();
        regions.pieces(2, 0x20_0000, 102_400, &mut pieces);
        assert_eq!(bytes(&pieces), [102_400]);
        pieces.clear();
        regions.pieces(2, 0x20_0000 + 100_000, 10_000, &mut pieces);
        assert_eq!(bytes(&pieces), [2400, 7600]);
        pieces.clear();
        regions.pieces(2, 0x20_0000, 0, &mut pieces);
        assert!(pieces.is_empty());
    }

    #[test]
    fn a_page_hits_after_its_first_lookup_until_it_is_replaced() {
        let mut tlb = Tlb::new(4);
        assert_eq!(
            [1, 1, 5, 1, 2, 2].map(|page| tlb.look_up(page)),
            [false, true, false, false, false, true]
        );
        assert_eq!(tlb.counts(), (2, 4));
    }
}
