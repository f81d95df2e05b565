//! Host addresses of recently used guest pages, so that most accesses need neither a translation nor a lookup in memory.
//! Translated code reads the entries, too.

use std::cell::Cell;

use longma_core::system::{Frame, PageEntry};

use crate::memory::PAGE_BYTES;
use crate::translation::MODES;

/// The generations of entries: from 1 to this number. No valid entry has generation 0.
pub const GENERATIONS: u64 = PAGE_BYTES - 1;

/// A direct-mapped cache of translations for one type of access. Each translation mode has its own entries.
pub struct PageCache(Box<[[Cell<PageEntry>; Frame::PAGES]; MODES]>);

impl PageCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        let empty = PageEntry { tag: 0, addend: 0 };
        Self(Box::new(std::array::from_fn(|_| std::array::from_fn(|_| Cell::new(empty)))))
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.0.iter().flatten().for_each(|entry| entry.set(PageEntry { tag: 0, addend: 0 }));
    }

    /// The host address of `bytes` bytes at `address`, if the page is cached and contains all of them.
    #[inline]
    pub fn find(&self, mode: usize, generation: u64, address: u64, bytes: usize) -> Option<*mut u8> {
        let entry = self.0[mode][(address / PAGE_BYTES) as usize % Frame::PAGES].get();
        let last = address.wrapping_add(bytes as u64 - 1);
        let hit = entry.tag == last & !(PAGE_BYTES - 1) | generation;
        // `insert` got a pointer to a whole page.
        hit.then(|| std::ptr::with_exposed_provenance_mut(address.wrapping_add(entry.addend) as usize))
    }

    /// Caches the host address of the page of `address` for this generation.
    pub fn insert(&self, mode: usize, generation: u64, address: u64, host: *mut u8) {
        let page = address & !(PAGE_BYTES - 1);
        let addend = (host.expose_provenance() as u64).wrapping_sub(page);
        let entry = PageEntry { tag: page | generation, addend };
        self.0[mode][(address / PAGE_BYTES) as usize % Frame::PAGES].set(entry);
    }

    /// The first entry of a mode.
    pub fn entries(&self, mode: usize) -> *const PageEntry {
        self.0[mode].as_ptr().cast()
    }
}
