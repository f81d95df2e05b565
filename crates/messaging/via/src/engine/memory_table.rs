//! The table of registered memory, and the region cache of each VI.
//!
//! Source: VIA, memory registration and memory protection.

use crate::attributes::NicAttributes;
use crate::descriptor::{RemoteSegment, Segment, Status};
use crate::error::Error;
use crate::protection::{MemoryAttributes, MemoryHandle, ProtectionTag};
use crate::provider::{Memory, Refusal, RegionInfo, Slice};
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A registered region. Changing its attributes replaces it.
pub(crate) struct Region {
    pub(crate) info: RegionInfo,
}

impl Region {
    pub(crate) fn attributes(&self) -> MemoryAttributes {
        let info = &self.info;
        MemoryAttributes {
            tag: ProtectionTag(info.tag),
            rdma_write: info.rdma_write,
            rdma_read: info.rdma_read,
        }
    }
}

#[derive(Default)]
struct Contents {
    /// The regions by their handles.
    regions: BTreeMap<u32, Arc<Region>>,
    /// The handle allocated last. A handle is reused only after all others, about four billion, so a stale handle stays
    /// invalid until then.
    last_handle: u32,
    bytes: u64,
    /// The existing tags, each with the number of VIs and regions that use it.
    tags: BTreeMap<u32, u32>,
    next_tag: u32,
}

/// All regions and tags of a NIC.
pub(crate) struct MemoryTable {
    contents: Mutex<Contents>,
    /// The number of changes to the table. A cache filled at another value is stale.
    changes: AtomicU64,
    max_bytes: u64,
    max_regions: u32,
    max_block_bytes: u64,
    max_tags: u32,
}

impl MemoryTable {
    pub(crate) fn new(attributes: &NicAttributes) -> MemoryTable {
        MemoryTable {
            contents: Mutex::default(),
            changes: AtomicU64::new(1),
            max_bytes: attributes.max_register_bytes,
            max_regions: attributes.max_register_regions,
            max_block_bytes: attributes.max_register_block_bytes,
            max_tags: attributes.max_protection_tags,
        }
    }

    fn contents(&self) -> std::sync::MutexGuard<'_, Contents> {
        self.contents.lock().ignore_poison()
    }

    pub(crate) fn create_tag(&self) -> Result<ProtectionTag, Error> {
        let mut contents = self.contents();
        if contents.tags.len() >= self.max_tags as usize {
            return Err(Error::Resource(format!("all {} protection tags are in use", self.max_tags)));
        }
        loop {
            contents.next_tag = contents.next_tag.wrapping_add(1);
            let tag = contents.next_tag;
            if tag != 0 && !contents.tags.contains_key(&tag) {
                contents.tags.insert(tag, 0);
                return Ok(ProtectionTag(tag));
            }
        }
    }

    pub(crate) fn destroy_tag(&self, tag: ProtectionTag) -> Result<(), Error> {
        let mut contents = self.contents();
        match contents.tags.get(&tag.0) {
            None => Err(unknown_tag(tag)),
            Some(0) => {
                contents.tags.remove(&tag.0);
                Ok(())
            }
            Some(uses) => Err(Error::InvalidProtectionTag(format!(
                "tag {} is still used by {uses} VIs and memory regions",
                tag.0
            ))),
        }
    }

    /// Increments the use count of `tag`.
    pub(crate) fn take_tag(&self, tag: ProtectionTag) -> Result<(), Error> {
        *self.contents().tags.get_mut(&tag.0).ok_or_else(|| unknown_tag(tag))? += 1;
        Ok(())
    }

    /// Decrements the use count of `tag`.
    pub(crate) fn release_tag(&self, tag: ProtectionTag) {
        if let Some(uses) = self.contents().tags.get_mut(&tag.0) {
            *uses = uses.saturating_sub(1);
        }
    }

    pub(crate) fn insert(
        &self,
        address: u64,
        length: u64,
        attributes: MemoryAttributes,
        memory: Option<Arc<dyn Memory>>,
    ) -> Result<Arc<Region>, Error> {
        if length > self.max_block_bytes {
            return Err(Error::Resource(format!("a region has at most {} bytes", self.max_block_bytes)));
        }
        let mut contents = self.contents();
        if !contents.tags.contains_key(&attributes.tag.0) {
            return Err(unknown_tag(attributes.tag));
        }
        if contents.bytes.saturating_add(length) > self.max_bytes {
            return Err(Error::Resource(format!("at most {} bytes can be registered", self.max_bytes)));
        }
        if contents.regions.len() >= self.max_regions as usize {
            return Err(Error::Resource(format!("all {} memory regions are in use", self.max_regions)));
        }
        let handle = contents.fresh_handle();
        let info = RegionInfo {
            handle,
            address,
            length,
            tag: attributes.tag.0,
            rdma_write: attributes.rdma_write,
            rdma_read: attributes.rdma_read,
            memory,
        };
        let region = Arc::new(Region { info });
        contents.regions.insert(handle.0, region.clone());
        contents.bytes += length;
        *contents.tags.entry(attributes.tag.0).or_default() += 1;
        self.changed();
        Ok(region)
    }

    pub(crate) fn set_attributes(
        &self,
        handle: MemoryHandle,
        attributes: MemoryAttributes,
    ) -> Result<Arc<Region>, Error> {
        let mut contents = self.contents();
        if !contents.tags.contains_key(&attributes.tag.0) {
            return Err(unknown_tag(attributes.tag));
        }
        let slot = contents.regions.get_mut(&handle.0).ok_or_else(|| unknown_region(handle))?;
        let old = slot.clone();
        let info = RegionInfo {
            tag: attributes.tag.0,
            rdma_write: attributes.rdma_write,
            rdma_read: attributes.rdma_read,
            ..old.info.clone()
        };
        let region = Arc::new(Region { info });
        *slot = region.clone();
        if let Some(uses) = contents.tags.get_mut(&old.info.tag) {
            *uses = uses.saturating_sub(1);
        }
        *contents.tags.entry(attributes.tag.0).or_default() += 1;
        self.changed();
        Ok(region)
    }

    pub(crate) fn remove(&self, handle: MemoryHandle) {
        let mut contents = self.contents();
        let Some(region) = contents.regions.remove(&handle.0) else { return };
        contents.bytes -= region.info.length;
        if let Some(uses) = contents.tags.get_mut(&region.info.tag) {
            *uses = uses.saturating_sub(1);
        }
        self.changed();
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn find(&self, handle: MemoryHandle) -> Option<Arc<Region>> {
        self.contents().regions.get(&handle.0).cloned()
    }
}

impl Contents {
    /// Allocates the handle that has been unused for the longest time. Never 0.
    fn fresh_handle(&mut self) -> MemoryHandle {
        loop {
            self.last_handle = self.last_handle.wrapping_add(1);
            if self.last_handle != 0 && !self.regions.contains_key(&self.last_handle) {
                return MemoryHandle(self.last_handle);
            }
        }
    }
}

fn unknown_tag(tag: ProtectionTag) -> Error {
    Error::InvalidProtectionTag(format!("{} is not a protection tag of this NIC", tag.0))
}

fn unknown_region(handle: MemoryHandle) -> Error {
    Error::InvalidParameter(format!("{:#x} is not a memory handle of this NIC", handle.0))
}

const CACHED: usize = 8;

/// A cached region: the fields needed for validation, in one cache line.
#[derive(Default)]
struct Cached {
    handle: MemoryHandle,
    tag: u32,
    address: u64,
    length: u64,
    rdma_write: bool,
    rdma_read: bool,
    readable_by_peer: bool,
    /// Keeps the memory alive. `None` if the cache entry is empty.
    region: Option<Arc<Region>>,
}

impl Cached {
    fn of(region: Arc<Region>) -> Cached {
        let info = &region.info;
        Cached {
            handle: info.handle,
            tag: info.tag,
            address: info.address,
            length: info.length,
            rdma_write: info.rdma_write,
            rdma_read: info.rdma_read,
            readable_by_peer: info.rdma_read && info.memory.is_some(),
            region: Some(region),
        }
    }

    /// Whether `length` bytes at `address` are inside the region.
    #[inline]
    fn covers(&self, address: u64, length: u32) -> bool {
        let offset = address.wrapping_sub(self.address);
        // Addresses below the region wrap around to offsets beyond any length.
        offset <= self.length && u64::from(length) <= self.length - offset
    }

    #[inline]
    fn slice(&self, address: u64, length: u32) -> Slice {
        let readable_by_peer = self.readable_by_peer;
        Slice { address: address as *mut u8, length, handle: self.handle, readable_by_peer }
    }
}

/// The regions that a VI used last, so that the data path takes no lock of the NIC. Cached regions are kept alive.
pub(crate) struct RegionCache {
    seen_changes: u64,
    regions: [Cached; CACHED],
}

impl RegionCache {
    pub(crate) fn new() -> RegionCache {
        RegionCache { seen_changes: 0, regions: Default::default() }
    }

    #[inline]
    fn find(&mut self, table: &MemoryTable, handle: MemoryHandle) -> Option<&Cached> {
        let place = handle.0 as usize % CACHED;
        let cached = &self.regions[place];
        let fresh = self.seen_changes == table.changes.load(Ordering::Acquire);
        if !(fresh && cached.handle == handle && cached.region.is_some()) {
            self.fill(table, handle)?;
        }
        Some(&self.regions[place])
    }

    #[cold]
    #[inline(never)]
    fn fill(&mut self, table: &MemoryTable, handle: MemoryHandle) -> Option<()> {
        let changes = table.changes.load(Ordering::Acquire);
        if self.seen_changes != changes {
            self.seen_changes = changes;
            self.regions = Default::default();
        }
        self.regions[handle.0 as usize % CACHED] = Cached::of(table.find(handle)?);
        Some(())
    }

    /// Whether a segment is in registered memory, with any tag.
    #[inline]
    pub(crate) fn is_registered(&mut self, table: &MemoryTable, segment: &Segment) -> bool {
        self.find(table, segment.handle).is_some_and(|region| region.covers(segment.address, segment.length))
    }

    /// Validates a segment of a descriptor.
    #[inline]
    pub(crate) fn local(
        &mut self,
        table: &MemoryTable,
        tag: ProtectionTag,
        segment: &Segment,
    ) -> Result<Slice, Status> {
        let region = self.find(table, segment.handle).ok_or(Status::PROTECTION_ERROR)?;
        if region.tag != tag.0 || !region.covers(segment.address, segment.length) {
            return Err(Status::PROTECTION_ERROR);
        }
        Ok(region.slice(segment.address, segment.length))
    }

    /// Validates local memory named by the peer, for writing if `write`, otherwise for reading.
    pub(crate) fn remote(
        &mut self,
        table: &MemoryTable,
        tag: ProtectionTag,
        remote: RemoteSegment,
        length: u32,
        write: bool,
    ) -> Result<Slice, Refusal> {
        let region = self.find(table, remote.handle).ok_or(Refusal::RdmaProtection)?;
        let enabled = if write { region.rdma_write } else { region.rdma_read };
        if region.tag != tag.0 || !enabled || !region.covers(remote.address, length) {
            return Err(Refusal::RdmaProtection);
        }
        Ok(region.slice(remote.address, length))
    }
}
