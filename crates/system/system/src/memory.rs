//! Physical memory. The crate vm-memory allocates it and checks the bounds of accesses by loaders and devices. The
//! interpreter keeps pointers to pages.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::platform::map;

/// The granularity of host pointers and of decoded code: the smallest page size of the TLB.
pub const PAGE_BYTES: u64 = 4096;

/// Memory cannot be created or accessed.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The size is not supported.
    #[error("memory of {0} bytes: it must be a multiple of 64 KiB, from 64 MiB to 64 GiB")]
    Size(u64),
    /// The host refused the allocation.
    #[error("memory of {bytes} bytes: {reason}")]
    Allocation {
        /// The requested size.
        bytes: u64,
        /// The host's reason.
        reason: String,
    },
    /// A range is not entirely in memory.
    #[error("{bytes} bytes at {address:#x} are not in memory")]
    Range {
        /// The first address.
        address: u64,
        /// The length of the range.
        bytes: u64,
    },
}

/// The memory of a machine: a low range, and a high range for the rest.
#[derive(Debug)]
pub struct Memory {
    inner: GuestMemoryMmap,
    ranges: Vec<(u64, u64)>,
}

impl Memory {
    /// Allocates `bytes` bytes, all 0.
    ///
    /// # Errors
    /// The size is not usable, or the host refuses.
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        if !bytes.is_multiple_of(0x1_0000) || !(64 << 20..=64 << 30).contains(&bytes) {
            return Err(MemoryError::Size(bytes));
        }
        let low = bytes.min(map::LOW_MEMORY_BYTES);
        let mut ranges = vec![(0, low)];
        if bytes > low {
            ranges.push((map::HIGH_MEMORY, bytes - low));
        }
        let requested: Vec<_> =
            ranges.iter().map(|(start, bytes)| (GuestAddress(*start), *bytes as usize)).collect();
        let inner = GuestMemoryMmap::from_ranges(&requested)
            .map_err(|error| MemoryError::Allocation { bytes, reason: error.to_string() })?;
        for region in inner.iter() {
            // The host spends most of the time of a boot on page faults, which huge pages reduce. If the host refuses the
            // advice, a boot only takes longer.
            // SAFETY: the range is a mapping of `inner`, whose contents the advice does not change.
            unsafe { libc::madvise(region.as_ptr().cast(), region.size(), libc::MADV_HUGEPAGE) };
        }
        Ok(Self { inner, ranges })
    }

    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The ranges of physical addresses: start and length.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// The memory as a vm-memory type, for devices.
    pub(crate) fn guest(&self) -> &GuestMemoryMmap {
        &self.inner
    }

    /// A host pointer to the page of `address`, valid for as long as this memory; `None` if the address is not memory.
    pub fn page(&self, address: u64) -> Option<*mut u8> {
        let page = GuestAddress(address & !(PAGE_BYTES - 1));
        let slice = self.inner.get_slice(page, PAGE_BYTES as usize).ok()?;
        Some(slice.ptr_guard_mut().as_ptr())
    }

    /// Writes `bytes` to memory.
    ///
    /// # Errors
    /// A part of the range is not memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let range = MemoryError::Range { address, bytes: bytes.len() as u64 };
        self.inner.write_slice(bytes, GuestAddress(address)).map_err(|_| range)
    }

    /// Fills `bytes` from memory.
    ///
    /// # Errors
    /// A part of the range is not memory.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let range = MemoryError::Range { address, bytes: bytes.len() as u64 };
        self.inner.read_slice(bytes, GuestAddress(address)).map_err(|_| range)
    }

    /// The doubleword at `address`; `None` if it is not memory.
    pub fn read_doubleword(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}
