//! Access to the device in pages, with the cache of blocks and counts by purpose.

use crate::block::{BlockAddress, DataBlock};
use crate::cache::{Cache, Cached};
use crate::error::{Result, damaged};
use crate::table::{Table, TableIndex};
use longma_zoned_device::{AlignedBuffer, Block, Geometry, ZonedDevice};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest page, bytes. A page is a device block, or several.
const MIN_PAGE_BYTES: u32 = 4096;

/// The purpose of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Log,
    Flush,
    Merge,
    Manifest,
}

/// Bytes written to the device since the map was opened, by purpose, and reads for look-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficCounts {
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of tables written from the write buffer.
    pub flush_bytes: u64,
    /// Bytes of tables written by merges.
    pub merge_bytes: u64,
    /// Bytes of manifests.
    pub manifest_bytes: u64,
    /// Data blocks that were read for look-ups, because the cache did not hold them.
    pub blocks_read: u64,
    /// Indexes and filters of tables that were read, because the cache did not hold them.
    pub indexes_read: u64,
}

impl TrafficCounts {
    /// Bytes written for all purposes.
    pub const fn bytes_written(&self) -> u64 {
        self.log_bytes + self.flush_bytes + self.merge_bytes + self.manifest_bytes
    }
}

/// The device of a map, with its cache and counts.
pub struct Io<D> {
    pub device: D,
    pub geometry: Geometry,
    /// The identifier of the map.
    pub map: u64,
    pub page_bytes: usize,
    pub page_blocks: u64,
    pub cache: Cache,
    written: [AtomicU64; 4],
    blocks_read: AtomicU64,
    indexes_read: AtomicU64,
}

/// The size of a page on a device with this geometry, bytes.
pub fn page_bytes(geometry: &Geometry) -> usize {
    geometry.block_bytes.max(MIN_PAGE_BYTES) as usize
}

impl<D: ZonedDevice> Io<D> {
    pub fn new(device: D, map: u64, cache_bytes: u64) -> Self {
        let geometry = device.geometry();
        let page_bytes = page_bytes(&geometry);
        Self {
            device,
            geometry,
            map,
            page_bytes,
            page_blocks: page_bytes as u64 / u64::from(geometry.block_bytes),
            cache: Cache::new(cache_bytes),
            written: Default::default(),
            blocks_read: AtomicU64::new(0),
            indexes_read: AtomicU64::new(0),
        }
    }

    pub fn traffic(&self) -> TrafficCounts {
        let written = |traffic: Traffic| self.written[traffic as usize].load(Ordering::Relaxed);
        TrafficCounts {
            log_bytes: written(Traffic::Log),
            flush_bytes: written(Traffic::Flush),
            merge_bytes: written(Traffic::Merge),
            manifest_bytes: written(Traffic::Manifest),
            blocks_read: self.blocks_read.load(Ordering::Relaxed),
            indexes_read: self.indexes_read.load(Ordering::Relaxed),
        }
    }

    /// Writes whole pages.
    pub fn write(&self, traffic: Traffic, block: u64, data: &[u8]) -> Result<()> {
        self.device.write(Block(block), data)?;
        self.written[traffic as usize].fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads `pages` pages from `block` on.
    pub fn read(&self, block: u64, pages: usize) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::new(pages * self.page_bytes);
        self.device.read(Block(block), &mut buffer)?;
        Ok(buffer)
    }

    /// The position of a table's page.
    pub fn address(&self, table: &Table, page: u32) -> BlockAddress {
        BlockAddress {
            map: self.map,
            table: table.id,
            block: table.start + u64::from(page) * self.page_blocks,
        }
    }

    /// The index and the filter of a table, from the cache if it holds them.
    pub fn index(&self, table: &Table) -> Result<Arc<TableIndex>> {
        if let Some(Cached::Index(index)) = self.cache.get((table.id, u32::MAX)) {
            return Ok(index);
        }
        self.indexes_read.fetch_add(1, Ordering::Relaxed);
        let address = self.address(table, table.pages);
        let buffer = self.read(address.block, table.index_pages as usize)?;
        let index =
            TableIndex::decode(&address, table, &buffer).map_err(|what| damaged(address.block, what))?;
        let index = Arc::new(index);
        self.cache.insert((table.id, u32::MAX), Cached::Index(Arc::clone(&index)), index.memory());
        Ok(index)
    }

    /// A block of a table for a look-up, from the cache if it holds it.
    pub fn block(&self, table: &Table, page: u32, pages: u32) -> Result<Arc<DataBlock>> {
        if let Some(Cached::Block(block)) = self.cache.get((table.id, page)) {
            return Ok(block);
        }
        self.blocks_read.fetch_add(1, Ordering::Relaxed);
        let address = self.address(table, page);
        let buffer = self.read(address.block, pages as usize)?;
        let block = Arc::new(self.decode(&address, &buffer)?);
        self.cache.insert((table.id, page), Cached::Block(Arc::clone(&block)), block.memory());
        Ok(block)
    }

    pub fn decode(&self, address: &BlockAddress, bytes: &[u8]) -> Result<DataBlock> {
        DataBlock::decode(address, bytes).map_err(|what| damaged(address.block, what))
    }
}
