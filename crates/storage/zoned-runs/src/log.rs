//! The write-ahead log: one part for each batch, in separate zones. The manifest names the zones before anything is
//! written to them, so a missing part is damage, except at the end of the log. [`crate::log_reader`] reads it back.
//!
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2: a power cut leaves the write pointer at the first lost block.

use crate::codec::Input;
use crate::error::Result;
use crate::io::{Io, Traffic, page_bytes};
use crate::zones::Zones;
use longma_zoned_device::{AlignedBuffer, Geometry, ZonedDevice};
use std::collections::VecDeque;

const MAGIC: u64 = 0x474f_4c6d_7572_676c;
/// Magic number, map, batch, block, length, checksum of the batch, checksum of the preceding fields; then zeros.
pub const HEADER_BYTES: usize = 64;
const CHECKED_BYTES: usize = 40;

/// A zone of the log.
#[derive(Clone, Copy, Debug)]
struct LogZone {
    index: usize,
    /// The first batch in it.
    first: u64,
}

/// The log of a map that is open for writing.
#[derive(Default)]
pub struct Log {
    zones: VecDeque<LogZone>,
    /// Bytes appended since the write buffer was last frozen.
    pub bytes: u64,
}

/// The number of log pages of a batch of `bytes` encoded bytes.
pub const fn pages(bytes: usize, page_bytes: usize) -> u64 {
    (HEADER_BYTES + bytes).div_ceil(page_bytes) as u64
}

/// The longest batch that fits into a zone, bytes.
pub fn longest_part(geometry: &Geometry) -> u64 {
    let page = page_bytes(geometry) as u64;
    let zone = geometry.zone_capacity_blocks * u64::from(geometry.block_bytes);
    (zone / page * page).saturating_sub(HEADER_BYTES as u64)
}

impl Log {
    /// Whether the last zone has no room for a batch of `bytes` bytes.
    pub fn needs_zone<D: ZonedDevice>(&self, io: &Io<D>, zones: &Zones, bytes: usize) -> bool {
        let blocks = pages(bytes, io.page_bytes) * io.page_blocks;
        self.zones.back().is_none_or(|zone| zones.zones[zone.index].room() < blocks)
    }

    /// Adds a zone, whose first batch will be `first`. The caller must commit a manifest before it appends, and then
    /// call [`Log::finish_older`].
    pub fn add_zone(&mut self, index: usize, first: u64) {
        self.zones.push_back(LogZone { index, first });
    }

    /// Finishes the zone before the last one, so that it is not active any more. Its parts are durable.
    pub fn finish_older<D: ZonedDevice>(&self, io: &Io<D>, zones: &mut Zones) -> Result<()> {
        if let Some(older) = self.zones.len().checked_sub(2).and_then(|number| self.zones.get(number)) {
            let older = &mut zones.zones[older.index];
            if older.room() > 0 {
                io.device.finish(older.number)?;
                older.written = older.capacity;
            }
        }
        Ok(())
    }

    /// Appends a batch.
    pub fn append<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        zones: &mut Zones,
        number: u64,
        batch: &[u8],
    ) -> Result<()> {
        let Some(zone) = self.zones.back() else { return Ok(()) };
        let block = zones.write_block(zone.index);
        let mut buffer = AlignedBuffer::new(pages(batch.len(), io.page_bytes) as usize * io.page_bytes);
        let (header, rest) = buffer.split_at_mut(HEADER_BYTES);
        for (field, value) in header.chunks_mut(8).zip([MAGIC, io.map, number, block]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        header[32..36].copy_from_slice(&(batch.len() as u32).to_le_bytes());
        header[36..40].copy_from_slice(&crc32c::crc32c(batch).to_le_bytes());
        let checksum = crc32c::crc32c(&header[..CHECKED_BYTES]);
        header[CHECKED_BYTES..CHECKED_BYTES + 4].copy_from_slice(&checksum.to_le_bytes());
        rest[..batch.len()].copy_from_slice(batch);
        io.write(Traffic::Log, block, &buffer)?;
        zones.zones[zone.index].written += buffer.len() as u64 / u64::from(io.geometry.block_bytes);
        self.bytes += buffer.len() as u64;
        Ok(())
    }

    /// The numbers of the zones, in order.
    pub fn zone_numbers(&self, zones: &Zones) -> Vec<u32> {
        self.zones.iter().map(|zone| zones.zones[zone.index].number.0).collect()
    }

    /// Removes and returns the zones that hold only batches before `next`; with `all`, the last zone is removed too.
    /// The zones are free once a manifest without them is durable.
    pub fn drop_before(&mut self, next: u64, all: bool) -> Vec<usize> {
        let mut dropped = Vec::new();
        while self.zones.get(1).is_some_and(|second| second.first <= next) || (all && !self.zones.is_empty())
        {
            dropped.extend(self.zones.pop_front().map(|zone| zone.index));
        }
        dropped
    }
}

/// A part's header.
pub struct Header {
    pub map: u64,
    pub batch: u64,
    pub block: u64,
    pub bytes: u32,
    pub checksum: u32,
}

impl Header {
    /// Decodes the header in the first page of a part.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let mut input = Input(page);
        let magic = input.u64()?;
        let (map, batch, block) = (input.u64()?, input.u64()?, input.u64()?);
        let (bytes, checksum) = (input.u32()?, input.u32()?);
        let is_valid = magic == MAGIC && crc32c::crc32c(page.get(..CHECKED_BYTES)?) == input.u32()?;
        is_valid.then_some(Self { map, batch, block, bytes, checksum })
    }

    /// Whether a page without a valid header probably has a damaged header: most of its known fields are correct.
    pub fn resembles(page: &[u8], map: u64, block: u64) -> bool {
        let mut input = Input(page);
        let words = [input.u64(), input.u64(), input.u64(), input.u64()];
        let right = [words[0] == Some(MAGIC), words[1] == Some(map), words[3] == Some(block)];
        right.into_iter().filter(|&right| right).count() >= 2
    }
}
