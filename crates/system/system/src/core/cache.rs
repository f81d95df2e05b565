//! Host pointers to recently used guest pages, so that most accesses need neither a translation nor a lookup in memory.

use std::cell::Cell;

use crate::memory::PAGE_BYTES;
use crate::translation::MODES;

/// Entries for each translation mode.
const ENTRIES: usize = 1024;

/// A page number that no address has.
const NO_PAGE: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Entry {
    page: u64,
    generation: u64,
    host: *mut u8,
}

/// A direct-mapped cache of translations for one kind of access.
pub struct PageCache(Box<[[Cell<Entry>; ENTRIES]; MODES]>);

impl PageCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        let empty = Entry { page: NO_PAGE, generation: 0, host: std::ptr::null_mut() };
        Self(Box::new(std::array::from_fn(|_| std::array::from_fn(|_| Cell::new(empty)))))
    }

    /// The host address of `bytes` bytes at `address`, if the page is cached and contains all of them.
    #[inline]
    pub fn find(&self, mode: usize, generation: u64, address: u64, bytes: usize) -> Option<*mut u8> {
        let (page, offset) = (address / PAGE_BYTES, address % PAGE_BYTES);
        let entry = self.0[mode][page as usize % ENTRIES].get();
        let hit = entry.page == page && entry.generation == generation && offset <= PAGE_BYTES - bytes as u64;
        // The offset stays inside the page, and `insert` got a pointer to a whole page.
        hit.then(|| entry.host.wrapping_add(offset as usize))
    }

    /// Caches the host address of the page of `address` for this generation.
    pub fn insert(&self, mode: usize, generation: u64, address: u64, host: *mut u8) {
        let page = address / PAGE_BYTES;
        self.0[mode][page as usize % ENTRIES].set(Entry { page, generation, host });
    }
}
