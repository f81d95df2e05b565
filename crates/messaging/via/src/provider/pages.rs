//! Plain pages as memory, for a provider that needs nothing of its own of it.
//! Not shared with a peer.
//! Source: mmap(2).

use super::Memory;
use crate::error::Error;

/// Zeroed pages of this process only: memory for a provider that needs nothing of its own of it.
pub struct Pages {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the whole process; nothing about it is tied to a thread.
unsafe impl Send for Pages {}
// SAFETY: as above; only its address and length are read.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many bytes, more than none.
    ///
    /// # Errors
    /// If the system has no room.
    pub fn new(bytes: usize) -> Result<Pages, Error> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping where the kernel likes; it touches no existing memory.
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
        // SAFETY: our own mapping, and the last reference to it.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}
