//! Buffers for direct I/O, aligned to 4096 bytes.
//!
//! Source: open(2), O_DIRECT.

use std::ops::{Deref, DerefMut};

/// The alignment, bytes. It suffices for every logical block size in use.
const ALIGNMENT: usize = 4096;

/// A byte array with the required alignment.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// A byte buffer, initially zeroed, that is aligned to 4096 bytes.
#[derive(Clone)]
pub struct AlignedBuffer {
    pages: Vec<Page>,
    bytes: usize,
}

impl AlignedBuffer {
    /// Allocates `bytes` zero bytes.
    pub fn new(bytes: usize) -> Self {
        Self { pages: vec![Page([0; ALIGNMENT]); bytes.div_ceil(ALIGNMENT)], bytes }
    }

    /// Whether the start of `bytes` is aligned for direct I/O.
    pub fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(ALIGNMENT)
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the vector holds `pages.len()` contiguous pages of initialized bytes, and `bytes` is at most their
        // total size.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; in addition the vector is borrowed exclusively for the lifetime of the slice.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_page_aligned_and_have_the_requested_length() {
        let mut buffer = AlignedBuffer::new(5000);
        assert!(AlignedBuffer::is_aligned(&buffer) && buffer.len() == 5000);
        buffer[4999] = 7;
        assert_eq!(buffer.iter().map(|&b| u32::from(b)).sum::<u32>(), 7);
        assert!(AlignedBuffer::new(0).is_empty());
    }
}
