//! A large sparse set of page numbers, one bit each, that threads and signal handlers access without locks.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A set of page numbers below a fixed limit. The host allocates memory only for words that have been written.
#[derive(Debug)]
pub(super) struct PageBitmap {
    words: *const AtomicU64,
    length: usize,
    count: AtomicUsize,
}

// SAFETY: the words are atomic, and the mapping lives as long as the bitmap.
unsafe impl Send for PageBitmap {}
// SAFETY: as above.
unsafe impl Sync for PageBitmap {}

impl PageBitmap {
    /// Creates an empty set for page numbers below `pages`.
    ///
    /// # Errors
    /// The host is out of memory.
    pub fn new(pages: u64) -> io::Result<Self> {
        let length = usize::try_from(pages.div_ceil(64)).map_err(io::Error::other)?;
        // SAFETY: a new anonymous mapping at an address that the host chooses.
        let words = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if words == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { words: words.cast(), length, count: AtomicUsize::new(0) })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.length, "page number beyond the bitmap");
        // SAFETY: in bounds, aligned, zero-initialized by the host, and alive as long as `self`.
        unsafe { &*self.words.add(index) }
    }

    /// Whether `page` is in the set. False for pages beyond the limit.
    pub fn contains(&self, page: u64) -> bool {
        let index = (page / 64) as usize;
        index < self.length && self.word(index).load(Ordering::Acquire) & (1 << (page % 64)) != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The number of pages in the set.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Inserts `page`. Returns whether it was absent.
    pub fn insert(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        let new = self.word((page / 64) as usize).fetch_or(bit, Ordering::AcqRel) & bit == 0;
        self.count.fetch_add(usize::from(new), Ordering::AcqRel);
        new
    }

    /// Removes `page`. Returns whether it was present.
    pub fn remove(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        let word = self.word((page / 64) as usize);
        let old =
            word.load(Ordering::Acquire) & bit != 0 && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        self.count.fetch_sub(usize::from(old), Ordering::AcqRel);
        old
    }

    /// The lowest page of `pages` in the set.
    pub fn first_in(&self, pages: Range<u64>) -> Option<u64> {
        let mut page = pages.start;
        while page < pages.end && (page / 64) < self.length as u64 {
            let rest = self.word((page / 64) as usize).load(Ordering::Acquire) >> (page % 64);
            if rest != 0 {
                let found = page + u64::from(rest.trailing_zeros());
                return (found < pages.end).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    /// Inserts every page of `pages`, which must be below the limit.
    pub fn insert_range(&self, pages: Range<u64>) {
        self.each_word(pages, |word, mask| {
            let new = (!word.fetch_or(mask, Ordering::AcqRel) & mask).count_ones();
            self.count.fetch_add(new as usize, Ordering::AcqRel);
        });
    }

    /// Removes every page of `pages`, which must be below the limit.
    pub fn remove_range(&self, pages: Range<u64>) {
        if self.is_empty() {
            return;
        }
        self.each_word(pages, |word, mask| {
            // Read first, because a write would allocate memory for an untouched word.
            if word.load(Ordering::Acquire) & mask != 0 {
                let cleared = (word.fetch_and(!mask, Ordering::AcqRel) & mask).count_ones();
                self.count.fetch_sub(cleared as usize, Ordering::AcqRel);
            }
        });
    }

    fn each_word(&self, pages: Range<u64>, mut act: impl FnMut(&AtomicU64, u64)) {
        let mut page = pages.start;
        while page < pages.end {
            let next = (page / 64 + 1) * 64;
            let bits = next.min(pages.end) - page;
            let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << (page % 64) };
            act(self.word((page / 64) as usize), mask);
            page = next;
        }
    }
}

impl Drop for PageBitmap {
    fn drop(&mut self) {
        // SAFETY: the bitmap owns the mapping, which is not used afterwards.
        unsafe { libc::munmap(self.words.cast_mut().cast(), self.length * 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inserted_range_is_found_and_can_be_removed() {
        let set = PageBitmap::new(1 << 20).unwrap();
        set.insert_range(60..200);
        assert!(!set.contains(59) && set.contains(60) && set.contains(199) && !set.contains(200));
        assert_eq!((set.first_in(0..60), set.first_in(0..61)), (None, Some(60)));
        assert_eq!((set.first_in(199..1 << 20), set.first_in(200..u64::MAX)), (Some(199), None));
        assert!(set.remove(100) && !set.remove(100));
        set.remove_range(0..1 << 20);
        assert!(set.is_empty() && !set.contains(60));
    }
}
