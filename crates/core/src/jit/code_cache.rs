//! The host memory that translated code lives in: filled from the start.
//! Not an allocator: one region's code is never freed alone.
//! Source: mmap(2).

use std::{
    io,
    ptr::NonNull,
    sync::atomic::{AtomicI32, Ordering},
};

/// The size of a cache unless somebody wants another; every relative jump reaches every byte of it.
pub(crate) const CACHE_BYTES: usize = 256 << 20;

/// Host memory that is writable and executable. Private, so that a fork's child has its own.
pub(crate) struct CodeCache {
    start: NonNull<u8>,
    bytes: usize,
    used: usize,
}

// SAFETY: the memory is owned by this value and only written through `&mut self` or by single aligned atomic stores.
unsafe impl Send for CodeCache {}

impl CodeCache {
    /// Reserves `bytes` of address space; the host backs it with memory as it is used.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null page"), bytes, used: 0 })
    }

    /// The host addresses of the whole cache.
    pub fn range(&self) -> std::ops::Range<u64> {
        let start = self.start.as_ptr() as u64;
        start..start + self.bytes as u64
    }

    /// Where the next code will stand.
    pub fn next_address(&self) -> u64 {
        self.start.as_ptr() as u64 + self.used as u64
    }

    /// The bytes left.
    pub fn room(&self) -> usize {
        self.bytes - self.used
    }

    /// Appends code, which was assembled for [`CodeCache::next_address`], and gives its address.
    pub fn append(&mut self, code: &[u8]) -> u64 {
        assert!(code.len() + 64 <= self.room(), "callers look at room() first");
        let address = self.next_address();
        // SAFETY: the destination lies inside the mapping, behind everything that runs.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), address as *mut u8, code.len()) };
        self.used = (self.used + code.len() + 63) & !63;
        address
    }

    /// Redirects the jump or call whose 32-bit displacement stands at `displacement` to `target`; threads may be running it.
    pub fn redirect(&self, displacement: u64, target: u64) {
        debug_assert!(self.range().contains(&displacement) && displacement.is_multiple_of(4));
        let distance = target.wrapping_sub(displacement + 4) as i32;
        // SAFETY: the displacement is aligned and inside the mapping; an aligned 32-bit store is seen whole by fetching cores
        // (SDM volume 3, 9.1.1 and 9.1.3: old or new target, both valid).
        unsafe { AtomicI32::from_ptr(displacement as *mut i32) }.store(distance, Ordering::Release);
    }
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whoever drops it no longer runs its code.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
