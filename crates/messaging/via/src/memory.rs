//! Registered memory regions, the only memory that descriptors may use.
//!
//! Source: VIA, memory registration and memory protection.

use crate::descriptor::{RemoteSegment, Segment};
use crate::engine::memory_table::Region;
use crate::engine::nic::OpenNic;
use crate::error::Error;
use crate::protection::{MemoryAttributes, MemoryHandle};
use crate::shared_bytes::{copy, copy_from_own};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A registered memory region. Dropping it deregisters the memory.
///
/// The NIC, peers and other threads may change the contents at any time, so the region provides no slices: `read` and
/// `write` copy. Concurrent access is not undefined behaviour: each byte read is an old or a new value. An aligned
/// 8-byte copy is atomic.
pub struct MemoryRegion {
    pub(crate) nic: OpenNic,
    pub(crate) handle: MemoryHandle,
    pub(crate) region: Arc<Region>,
}

impl MemoryRegion {
    /// The handle of the region.
    pub fn handle(&self) -> MemoryHandle {
        self.handle
    }

    /// The address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.region.info.address
    }

    /// A pointer to the first byte. The contents may change at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.info.address as *mut u8
    }

    /// The length, bytes.
    pub fn len(&self) -> usize {
        self.region.info.length as usize
    }

    /// Always false: a region is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A segment of `length` bytes from `offset` on, for a descriptor. The bounds are checked when the descriptor is
    /// processed.
    pub fn segment(&self, offset: usize, length: usize) -> Segment {
        Segment {
            address: self.address().wrapping_add(offset as u64),
            handle: self.handle,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        }
    }

    /// The remote address of the byte at `offset`, to be sent to a peer.
    pub fn remote(&self, offset: usize) -> RemoteSegment {
        RemoteSegment { address: self.address().wrapping_add(offset as u64), handle: self.handle }
    }

    /// Changes the attributes (VipSetMemAttributes). Peers must not access the region during the call. On an error the
    /// attributes are unchanged.
    pub fn set_attributes(&mut self, attributes: MemoryAttributes) -> Result<(), Error> {
        let before = self.attributes();
        self.region = self.nic.memory.set_attributes(self.handle, attributes)?;
        if let Err(error) = self.nic.provider.update_region(&self.region.info) {
            self.region = self.nic.memory.set_attributes(self.handle, before)?;
            self.nic.provider.register_region(&self.region.info);
            return Err(error);
        }
        Ok(())
    }

    /// The attributes (VipQueryMem).
    pub fn attributes(&self) -> MemoryAttributes {
        self.region.attributes()
    }

    /// Copies bytes out of the region.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: `check` ensures that the source is inside the region, which is mapped as long as `self` lives and to
        // which no references exist. `into` is borrowed exclusively.
        unsafe { copy(self.as_ptr().add(offset).cast_const(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: as in `read`, with source and destination exchanged.
        unsafe { copy_from_own(from, self.as_ptr().add(offset)) }
    }

    /// The 8 bytes at `offset` as an atomic. Programs use it to poll for an RDMA write by the peer.
    ///
    /// # Panics
    /// If the bytes are not inside the region, or their address is not a multiple of 8.
    pub fn atomic(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(
            (self.address() as usize + offset).is_multiple_of(8),
            "the address of an atomic must be a multiple of 8"
        );
        // SAFETY: the word is inside the region, aligned, and mapped as long as `self` is borrowed.
        unsafe { AtomicU64::from_ptr(self.as_ptr().add(offset).cast()) }
    }

    /// Spins until the 8 bytes at `offset` differ from `old`, and returns the new value.
    pub fn spin_until_changed(&self, offset: usize, old: u64) -> u64 {
        let word = self.atomic(offset);
        loop {
            let now = word.load(Ordering::Acquire);
            if now != old {
                return now;
            }
            std::hint::spin_loop();
        }
    }

    fn check(&self, offset: usize, length: usize) {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.len()),
            "{length} bytes at {offset} are not inside a region of {} bytes",
            self.len()
        );
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.nic.is_forked_child() {
            return;
        }
        // First remove the region from the table. Then lock each VI once, so that no VI is still using a region that it
        // found before.
        self.nic.memory.remove(self.handle);
        self.nic.vi_registry.retire(&self.region);
        self.nic.provider.deregister_region(self.handle);
    }
}
