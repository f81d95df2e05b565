//! The memory of pages: buffers of one size are cut from slabs of 1 MiB. The general allocator would place pages among
//! allocations of other sizes and leave holes that are too small for a page. The memory of the cache would then grow
//! far beyond its limit.
//!
//! Source: Bonwick, "The Slab Allocator", USENIX Summer 1994.

use longma_locks::IgnorePoison;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Mutex;

/// The size and the alignment of a slab, bytes. The slab of a buffer is found by its address.
const SLAB_BYTES: usize = 1 << 20;

/// The logarithms of the smallest and of the largest buffer size, bytes.
const SIZES: std::ops::RangeInclusive<u32> = 9..=16;

/// One pool for each size.
static POOLS: [Mutex<Option<Pool>>; 8] = [const { Mutex::new(None) }; 8];

/// The buffers of one size.
#[derive(Default)]
struct Pool {
    free: Vec<FreeBuffer>,
    /// For each slab, by its address, the number of buffers in use.
    used: HashMap<usize, usize>,
    /// The number of slabs without a buffer in use.
    empty: usize,
}

/// A buffer that is not in use.
struct FreeBuffer(NonNull<u8>);

// SAFETY: a free buffer is plain memory that only the pool refers to.
unsafe impl Send for FreeBuffer {}

/// A buffer with a length that is a power of two from 512 to 65536.
pub struct PageMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the buffer owns its memory and is plain bytes.
unsafe impl Send for PageMemory {}
// SAFETY: a shared reference only permits reading.
unsafe impl Sync for PageMemory {}

fn slab_layout() -> Layout {
    Layout::from_size_align(SLAB_BYTES, SLAB_BYTES).expect("the size is a power of two")
}

fn slab_of(buffer: NonNull<u8>) -> usize {
    buffer.addr().get() & !(SLAB_BYTES - 1)
}

/// Calls `change` with the pool of buffers of `bytes` bytes.
fn with_pool<R>(bytes: usize, change: impl FnOnce(&mut Pool) -> R) -> R {
    let size = bytes.trailing_zeros();
    assert!(bytes.is_power_of_two() && SIZES.contains(&size), "no pages have {bytes} bytes");
    let mut pool = POOLS[(size - SIZES.start()) as usize].lock().ignore_poison();
    change(pool.get_or_insert_default())
}

impl Pool {
    fn take(&mut self, bytes: usize) -> NonNull<u8> {
        if self.free.is_empty() {
            self.add_slab(bytes);
        }
        let FreeBuffer(buffer) = self.free.pop().expect("a slab has been added");
        let used = self.used.entry(slab_of(buffer)).or_default();
        self.empty -= usize::from(*used == 0);
        *used += 1;
        buffer
    }

    fn add_slab(&mut self, bytes: usize) {
        let layout = slab_layout();
        // SAFETY: the layout has a size other than 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        self.used.insert(start.as_ptr().expose_provenance(), 0);
        self.empty += 1;
        for offset in (0..SLAB_BYTES).step_by(bytes).rev() {
            // SAFETY: the offset is within the slab.
            self.free.push(FreeBuffer(unsafe { start.add(offset) }));
        }
    }

    fn give_back(&mut self, buffer: NonNull<u8>) {
        let used = self.used.get_mut(&slab_of(buffer)).expect("the buffer is from a slab of this pool");
        *used -= 1;
        self.empty += usize::from(*used == 0);
        self.free.push(FreeBuffer(buffer));
        // Keep some empty slabs, so that the search below is rare.
        if self.empty > 4 + self.used.len() / 8 {
            self.release_empty_slabs();
        }
    }

    fn release_empty_slabs(&mut self) {
        let used = &self.used;
        self.free.retain(|buffer| used[&slab_of(buffer.0)] > 0);
        for (&slab, _) in self.used.iter().filter(|slab| *slab.1 == 0) {
            let start = std::ptr::with_exposed_provenance_mut(slab);
            // SAFETY: the slab was allocated with this layout, and no buffer of it is in use or in the free list.
            unsafe { dealloc(start, slab_layout()) };
        }
        self.used.retain(|_, used| *used > 0);
        self.empty = 0;
    }
}

impl PageMemory {
    /// A buffer of zeros. `bytes` is a power of two from 512 to 65536.
    pub fn zeroed(bytes: usize) -> Self {
        let mut buffer = Self { start: with_pool(bytes, |pool| pool.take(bytes)), bytes };
        buffer.fill(0);
        buffer
    }
}

impl Deref for PageMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `bytes` initialized bytes from `start` on: a slab begins as zeros.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PageMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl From<&[u8]> for PageMemory {
    /// A copy of `content`, whose length is a power of two from 512 to 65536.
    fn from(content: &[u8]) -> Self {
        let bytes = content.len();
        let mut copy = Self { start: with_pool(bytes, |pool| pool.take(bytes)), bytes };
        copy.copy_from_slice(content);
        copy
    }
}

impl Clone for PageMemory {
    fn clone(&self) -> Self {
        Self::from(&self[..])
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        with_pool(self.bytes, |pool| pool.give_back(self.start));
    }
}

impl fmt::Debug for PageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_empty_slabs_are_released() {
        const BYTES: usize = 65536;
        let slabs = || with_pool(BYTES, |pool| pool.used.len());
        let mut buffers: Vec<PageMemory> = (0..400).map(|_| PageMemory::zeroed(BYTES)).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(index as u8);
        }
        let copies: Vec<PageMemory> = buffers.iter().step_by(3).cloned().collect();
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == index as u8), "{index}");
        }
        assert!(copies.iter().enumerate().all(|(index, copy)| copy[9] == (3 * index) as u8));
        assert!(slabs() >= 400 / 16);
        buffers.truncate(20);
        drop(copies);
        assert!(slabs() <= 16, "{} slabs are left", slabs());
    }
}
