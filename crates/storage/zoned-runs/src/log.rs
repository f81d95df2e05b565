//! The write-ahead log: one part for each batch, in zones of its own. The manifest names the zones before anything is written
//! to them, so a part that is missing, other than at the very end, is damage.
//!
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2: a power cut leaves the write pointer at the first lost block.

use crate::batch::Batch;
use crate::codec::Input;
use crate::error::{Result, damaged};
use crate::io::{Io, Traffic};
use crate::zones::Zones;
use longma_zoned_device::{AlignedBuffer, ZoneNumber, ZonedDevice};
use std::collections::VecDeque;

const MAGIC: u64 = 0x474f_4c6d_7572_676c;
/// Magic number, map, batch, block, length, checksum of the batch, checksum of all that; then zeros.
const HEADER_BYTES: usize = 64;
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

/// The pages that a batch of `bytes` encoded bytes takes in the log.
const fn pages(bytes: usize, page_bytes: usize) -> u64 {
    (HEADER_BYTES + bytes).div_ceil(page_bytes) as u64
}

/// The longest batch that fits into a zone, bytes.
pub fn longest_batch<D: ZonedDevice>(io: &Io<D>) -> u64 {
    io.geometry.zone_capacity_blocks / io.page_blocks * io.page_bytes as u64 - HEADER_BYTES as u64
}

impl Log {
    /// Whether the last zone has no room for a batch of `bytes` bytes.
    pub fn needs_zone<D: ZonedDevice>(&self, io: &Io<D>, zones: &Zones, bytes: usize) -> bool {
        let blocks = pages(bytes, io.page_bytes) * io.page_blocks;
        self.zones.back().is_none_or(|zone| zones.zones[zone.index].room() < blocks)
    }

    /// Adds a zone, in which batch `first` comes first. The caller must commit a manifest before it appends, and then call
    /// [`Log::finish_older`].
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
        for (place, value) in header.chunks_mut(8).zip([MAGIC, io.map, number, block]) {
            place.copy_from_slice(&value.to_le_bytes());
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

    /// Drops the zones that hold only batches before `next`, and with `all` the last one too. Returns them: they are free
    /// once a manifest without them is durable.
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
struct Header {
    map: u64,
    batch: u64,
    block: u64,
    bytes: u32,
    checksum: u32,
}

fn header(page: &[u8]) -> Option<Header> {
    let mut input = Input(page);
    let magic = input.u64()?;
    let (map, batch, block) = (input.u64()?, input.u64()?, input.u64()?);
    let (bytes, checksum) = (input.u32()?, input.u32()?);
    let is_valid = magic == MAGIC && crc32c::crc32c(page.get(..CHECKED_BYTES)?) == input.u32()?;
    is_valid.then_some(Header { map, batch, block, bytes, checksum })
}

/// Reads the log in `log_zones`, and calls `visit` with each batch from number `next` on. Returns the number after the last
/// batch.
///
/// # Errors
/// [`crate::Error::Damaged`] if a batch that was written completely cannot be read; errors of `visit`.
pub fn replay<D: ZonedDevice>(
    io: &Io<D>,
    zones: &Zones,
    log_zones: &[u32],
    next: u64,
    mut visit: impl FnMut(u64, Batch) -> Result<()>,
) -> Result<u64> {
    let mut expected: Option<u64> = None;
    for (number, &zone) in log_zones.iter().enumerate() {
        let start = io.geometry.start(ZoneNumber(zone)).0;
        let Some(index) = zones.index_of(ZoneNumber(zone)) else {
            return Err(damaged(start, "the manifest names it as the log's, but there is no such zone"));
        };
        let is_last = number + 1 == log_zones.len();
        let (mut at, end) = (start, start + zones.zones[index].written);
        while at + io.page_blocks <= end {
            let Some(part) = read_part(io, at, end, is_last)? else { break };
            let is_next = match expected {
                Some(expected) => part.number == expected,
                None => part.number <= next,
            };
            if !is_next {
                return Err(damaged(
                    at,
                    format!("batch {} of the log is not the one expected here", part.number),
                ));
            }
            expected = Some(part.number + 1);
            at += part.blocks;
            if part.number >= next {
                visit(part.number, part.batch)?;
            }
        }
        if !is_last && expected.is_none() {
            return Err(damaged(start, "this zone of the log is empty, but the log goes on in another"));
        }
    }
    Ok(expected.unwrap_or(next).max(next))
}

struct Part {
    number: u64,
    blocks: u64,
    batch: Batch,
}

/// Reads the part at block `at` of a zone that was written up to `end`. `None` if the zone's log ends here.
fn read_part<D: ZonedDevice>(io: &Io<D>, at: u64, end: u64, is_last: bool) -> Result<Option<Part>> {
    let front = io.read(at, 1)?;
    let found = header(&front).filter(|header| header.map == io.map && header.block == at);
    let Some(header) = found else {
        // A zone that was finished reads as undefined after its last part.
        if !is_last {
            return Ok(None);
        }
        return Err(damaged(at, "the header of a part of the log is wrong"));
    };
    let blocks = pages(header.bytes as usize, io.page_bytes) * io.page_blocks;
    if at + blocks > end {
        // A power cut or a failed write has left only the front of the last part.
        return Ok(None);
    }
    let all = io.read(at, (blocks / io.page_blocks) as usize)?;
    let bytes = &all[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
    let batch = Batch::decode(bytes).filter(|_| crc32c::crc32c(bytes) == header.checksum);
    match batch {
        Some(batch) => Ok(Some(Part { number: header.batch, blocks, batch })),
        None => Err(damaged(at, "the checksum of a batch in the log is wrong")),
    }
}

/// Whether a zone that the manifest does not name begins with a batch from number `next` on. The manifest that named it is
/// lost then.
pub fn is_of_newer_log<D: ZonedDevice>(io: &Io<D>, start: u64, next: u64) -> Result<bool> {
    let front = io.read(start, 1)?;
    Ok(header(&front)
        .is_some_and(|header| header.map == io.map && header.block == start && header.batch >= next))
}
