//! Anonymous pages, for providers without a preferred type of memory.
//!
//! Source: mmap(2).

use super::Memory;
use crate::error::Error;

/// Zeroed, private pages of this process.
pub struct Pages {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the process and is not tied to a thread.
unsafe impl Send for Pages {}
// SAFETY: as above; only the address and the length are read.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` bytes; `bytes` must not be 0.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(bytes: usize) -> Result<Pages, Error> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: creates an anonymous mapping at an address chosen by the kernel; no existing memory is affected.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_system("mapping memory"));
        }
        Ok(Pages { base: base.cast(), length: bytes })
    }
}

impl Memory for Pages {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn length(&self) -> usize {
        self.length
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by `self` and not referenced elsewhere.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}
