//! Registered memory: what descriptors may touch.
//! Not an allocator: a region is for buffers that live long. Nor who may touch it, which `protection.rs` says.
//! Source: VIA, memory registration and memory protection.

use crate::descriptor::{RemoteSegment, Segment};
use crate::engine::memory_table::Region;
use crate::engine::nic::NicShared;
use crate::error::Error;
use crate::protection::{MemoryAttributes, MemoryHandle};
use crate::shared_bytes::{copy, copy_from_own};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A registered region; deregistered when dropped.
///
/// The NIC, peers and other threads may change the bytes at any moment, so they are not lent out as slices: `read` and `write`
/// copy. Copies that race are no undefined behaviour: each byte is the old one or a new one. Eight bytes at an address that is a
/// multiple of 8 are copied at once.
pub struct MemoryRegion {
    pub(crate) nic: Arc<NicShared>,
    pub(crate) handle: MemoryHandle,
    pub(crate) region: Arc<Region>,
}

impl MemoryRegion {
    /// Its handle.
    pub fn handle(&self) -> MemoryHandle {
        self.handle
    }

    /// Its first address in this process.
    pub fn address(&self) -> u64 {
        self.region.facts.address
    }

    /// Its first byte. What lies there may change at any moment.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.facts.address as *mut u8
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.facts.length as usize
    }

    /// Whether it has no bytes (it always has some).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `length` bytes from `offset` on, for a descriptor. Whether they lie inside is checked when the descriptor is processed.
    pub fn segment(&self, offset: usize, length: usize) -> Segment {
        Segment {
            address: self.address().wrapping_add(offset as u64),
            handle: self.handle,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        }
    }

    /// What a peer names the byte at `offset` by.
    pub fn remote(&self, offset: usize) -> RemoteSegment {
        RemoteSegment { address: self.address().wrapping_add(offset as u64), handle: self.handle }
    }

    /// Changes who may use it (VipSetMemAttributes). Nobody may store to it meanwhile. On an error nothing has changed.
    pub fn set_attributes(&mut self, attributes: MemoryAttributes) -> Result<(), Error> {
        let before = self.attributes();
        self.region = self.nic.memory.set_attributes(self.handle, attributes)?;
        if let Err(error) = self.nic.provider.changed(&self.region.facts) {
            self.region = self.nic.memory.set_attributes(self.handle, before)?;
            self.nic.provider.registered(&self.region.facts);
            return Err(error);
        }
        Ok(())
    }

    /// Who may use it (VipQueryMem).
    pub fn attributes(&self) -> MemoryAttributes {
        self.region.attributes()
    }

    /// Copies bytes out. Panics if they are not inside the region, as slices do.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: `check` holds the source inside the region, which is mapped as long as `self` lives, and of which there are no
        // references; `into` is the caller's alone.
        unsafe { copy(self.as_ptr().add(offset).cast_const(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in. Panics if they are not inside the region, as slices do.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: as in `read`, with the directions exchanged.
        unsafe { copy_from_own(from, self.as_ptr().add(offset)) }
    }

    /// The 8 bytes at `offset` (a multiple of 8) as an atomic, for programs that poll for a peer's RDMA write.
    pub fn atomic(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(
            (self.address() as usize + offset).is_multiple_of(8),
            "an atomic needs an offset that is a multiple of 8"
        );
        // SAFETY: inside the region, aligned, and mapped as long as `self` is borrowed.
        unsafe { AtomicU64::from_ptr(self.as_ptr().add(offset).cast()) }
    }

    /// Waits, without sleeping, until the 8 bytes at `offset` differ from `old`; says what they are then.
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
        if self.nic.is_a_childs() {
            return;
        }
        // First nobody finds it any more; then each VI's lock is had once, so that whoever found it before is done with it.
        self.nic.memory.remove(self.handle);
        self.nic.roster.retire(&self.region);
        self.nic.provider.deregistered(self.handle);
    }
}
