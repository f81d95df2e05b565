//! Writes a table: data blocks as they fill, then the index and the filter.

use crate::block::{BlockAddress, BlockBuilder};
use crate::codec::{common_prefix, put_bytes, put_varint, varint_bytes};
use crate::error::Result;
use crate::filter;
use crate::io::{Io, Traffic};
use crate::table::Table;
use longma_zoned_device::{AlignedBuffer, ZonedDevice};
use std::sync::Arc;

/// Data is collected up to this many bytes before it is written.
const WRITE_BYTES: usize = 256 << 10;

/// A table that is being written.
pub struct TableWriter {
    traffic: Traffic,
    id: u64,
    start: u64,
    /// Pages that the zone has left for the table.
    room_pages: u64,
    /// Pages written or in the buffer.
    pages: u32,
    block: BlockBuilder,
    buffer: AlignedBuffer,
    buffered: usize,
    index: Vec<u8>,
    blocks: u64,
    separator: Vec<u8>,
    hashes: Vec<u64>,
    records: u64,
    tombstones: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl TableWriter {
    /// A table at `start`, in a zone with `room_pages` pages left.
    pub fn new(traffic: Traffic, id: u64, start: u64, room_pages: u64) -> Self {
        Self {
            traffic,
            id,
            start,
            room_pages,
            pages: 0,
            block: BlockBuilder::default(),
            buffer: AlignedBuffer::new(WRITE_BYTES),
            buffered: 0,
            index: Vec::new(),
            blocks: 0,
            separator: Vec::new(),
            hashes: Vec::new(),
            records: 0,
            tombstones: 0,
            first: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Pages of data so far.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Whether the zone has room for the table with one more record.
    pub fn has_room(&self, key: &[u8], value: Option<&[u8]>, page_bytes: usize) -> bool {
        let record = key.len() + value.map_or(0, <[u8]>::len) + 32;
        let index = self.index.len() + 2 * (key.len() + self.last.len() + 16) + 16;
        let index = index + filter::bytes_for(self.hashes.len() + 1);
        let pages = u64::from(self.pages)
            + self.block.bytes().div_ceil(page_bytes) as u64
            + record.div_ceil(page_bytes) as u64
            + index.div_ceil(page_bytes) as u64;
        pages <= self.room_pages
    }

    /// Adds a record. Its key must be greater than all earlier keys, and the caller must have checked
    /// [`TableWriter::has_room`].
    pub fn add<D: ZonedDevice>(&mut self, io: &Io<D>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if !self.block.is_empty() && self.block.bytes_with(key, value) > io.page_bytes {
            self.end_block(io)?;
        }
        if self.block.is_empty() {
            let cut = if self.records == 0 { 0 } else { common_prefix(&self.last, key) + 1 };
            self.separator.clear();
            self.separator.extend_from_slice(&key[..cut.min(key.len())]);
        }
        if self.records == 0 {
            self.first = key.to_vec();
        }
        self.block.add(key, value);
        self.hashes.push(filter::hash(key));
        self.last.clear();
        self.last.extend_from_slice(key);
        self.records += 1;
        self.tombstones += u64::from(value.is_none());
        Ok(())
    }

    fn end_block<D: ZonedDevice>(&mut self, io: &Io<D>) -> Result<()> {
        let block = self.start + u64::from(self.pages) * io.page_blocks;
        let bytes = self.block.finish(&BlockAddress { map: io.map, table: self.id, block }, io.page_bytes);
        let pages = (bytes.len() / io.page_bytes) as u32;
        put_varint(&mut self.index, u64::from(pages));
        put_bytes(&mut self.index, &self.separator);
        self.blocks += 1;
        self.append(io, &bytes)
    }

    /// Adds whole pages to the buffer, and writes it when it is full.
    fn append<D: ZonedDevice>(&mut self, io: &Io<D>, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.buffered));
            self.buffer[self.buffered..self.buffered + now.len()].copy_from_slice(now);
            self.buffered += now.len();
            self.pages += (now.len() / io.page_bytes) as u32;
            bytes = later;
            if self.buffered == WRITE_BYTES {
                self.write_buffer(io)?;
            }
        }
        Ok(())
    }

    fn write_buffer<D: ZonedDevice>(&mut self, io: &Io<D>) -> Result<()> {
        if self.buffered == 0 {
            return Ok(());
        }
        let before = u64::from(self.pages) - (self.buffered / io.page_bytes) as u64;
        io.write(self.traffic, self.start + before * io.page_blocks, &self.buffer[..self.buffered])?;
        self.buffered = 0;
        Ok(())
    }

    /// Writes the rest, the index and the filter. The caller must flush the device before it refers to the table.
    pub fn finish<D: ZonedDevice>(mut self, io: &Io<D>) -> Result<Arc<Table>> {
        self.end_block(io)?;
        let pages = self.pages;
        let address = BlockAddress {
            map: io.map,
            table: self.id,
            block: self.start + u64::from(pages) * io.page_blocks,
        };
        let mut content = Vec::with_capacity(varint_bytes(self.blocks) + self.index.len());
        put_varint(&mut content, self.blocks);
        content.extend_from_slice(&self.index);
        content.extend_from_slice(&filter::build(&self.hashes));
        let (checksum, index_bytes) = (address.checksum(&content), content.len() as u32);
        content.resize(content.len().next_multiple_of(io.page_bytes), 0);
        self.append(io, &content)?;
        self.write_buffer(io)?;
        Ok(Arc::new(Table {
            id: self.id,
            start: self.start,
            pages,
            index_pages: self.pages - pages,
            index_bytes,
            checksum,
            records: self.records,
            tombstones: self.tombstones,
            first: self.first.into(),
            last: self.last.into(),
        }))
    }
}
