//! The write-ahead journal: batches of changes, appended to sequential zones of its own and made safe by one flush each.
//! Not what the changes mean: see `edit`.
//! Source: our own; Mohan et al., "ARIES", TODS 1992, for the rule (the journal goes first), with logical records as the tree on the
//! device is never changed in place.

use super::io::{Io, Traffic};
use super::space::{Role, Space, takes_writes};
use crate::device::{AlignedBuffer, Block, Condition, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{HEADER_BYTES, Header, Kind};
use std::collections::VecDeque;

/// A place in the journal, and the number of the part that is there or will be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The zone's number; 0, which is conventional, before anything was written.
    pub zone: u32,
    /// Blocks from the zone's start.
    pub offset: u64,
    /// Each part of a record has the next number.
    pub sequence: u64,
}

/// The end of the journal, where batches are appended.
pub(super) struct Journal {
    pub end: Position,
    /// The blocks appended since the last checkpoint began.
    pub blocks: u64,
    /// The zones that are still needed, the oldest first.
    pub zones: VecDeque<u32>,
    buffer: AlignedBuffer,
}

/// The first part of a record, and the last one.
const FIRST: u16 = 1;
const LAST: u16 = 2;

impl Journal {
    pub fn new(end: Position) -> Self {
        Self { end, blocks: 0, zones: VecDeque::new(), buffer: AlignedBuffer::new(0) }
    }

    /// How many blocks a record of `bytes` bytes takes, at most.
    pub fn blocks_for<D: ZonedDevice>(io: &Io<D>, bytes: usize) -> u64 {
        let block = io.geometry.block_bytes as usize;
        // Each zone it goes on in costs a header more.
        let zones = bytes as u64 / (io.geometry.zone_capacity_blocks * block as u64) + 2;
        bytes.div_ceil(block - HEADER_BYTES) as u64 + zones
    }

    /// How many blocks can be appended.
    pub fn room<D: ZonedDevice>(&self, io: &Io<D>, space: &Space) -> u64 {
        let here = match self.end.zone {
            0 => 0,
            _ => io.geometry.zone_capacity_blocks - self.end.offset,
        };
        here + space.empty_zones() as u64 * io.geometry.zone_capacity_blocks
    }

    /// Appends a record. It is safe after the next flush.
    pub fn append<D: ZonedDevice>(&mut self, io: &Io<D>, space: &mut Space, record: &[u8]) -> Result<()> {
        let block_bytes = io.geometry.block_bytes as usize;
        let (mut rest, mut flags) = (record, FIRST);
        while flags & LAST == 0 {
            if self.is_at_end(io) {
                // `Writer::make_room` saw to it that this cannot be.
                return Err(Error::Full { device: io.device.name(), needed: 1, free: 0 });
            }
            let room =
                (io.geometry.zone_capacity_blocks - self.end.offset) as usize * block_bytes - HEADER_BYTES;
            // A part takes no more than a device writes at once gladly.
            let (now, later) = rest.split_at(rest.len().min(room).min((1 << 20) - HEADER_BYTES));
            flags |= if later.is_empty() { LAST } else { 0 };
            self.append_part(io, space, now, flags)?;
            (rest, flags) = (later, flags & LAST);
        }
        Ok(())
    }

    /// Whether it has filled its zone, and no other was free then. Nothing leads from there to another zone: a checkpoint has to begin
    /// with the next one.
    pub fn is_at_end<D: ZonedDevice>(&self, io: &Io<D>) -> bool {
        self.end.zone == 0 || self.end.offset == io.geometry.zone_capacity_blocks
    }

    /// Takes a zone to go on in, if it is at its end. It counts when a checkpoint begins there.
    pub fn ensure_zone<D: ZonedDevice>(&mut self, io: &Io<D>, space: &mut Space) -> Result<()> {
        if !self.is_at_end(io) {
            return Ok(());
        }
        let full = || Error::Full { device: io.device.name(), needed: 1, free: 0 };
        let zone = space.take_journal_zone().ok_or_else(full)?;
        (self.end.zone, self.end.offset) = (space.zones[zone].number.0, 0);
        self.zones.push_back(self.end.zone);
        Ok(())
    }

    fn append_part<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        part: &[u8],
        flags: u16,
    ) -> Result<()> {
        let block_bytes = io.geometry.block_bytes as usize;
        let blocks = (HEADER_BYTES + part.len()).div_ceil(block_bytes);
        if self.buffer.len() < blocks * block_bytes {
            self.buffer = AlignedBuffer::new((blocks * block_bytes).next_power_of_two());
        }
        let zone = u64::from(self.end.zone);
        let block = zone * io.geometry.zone_blocks + self.end.offset;
        let mut next = self.end;
        next.offset += blocks as u64;
        next.sequence = next.sequence.wrapping_add(1);
        // The last part in a zone says where the journal goes on; 0 if no zone is free, and then a checkpoint comes first.
        let mut next_zone = 0;
        if next.offset == io.geometry.zone_capacity_blocks
            && let Some(zone) = space.take_journal_zone()
        {
            next_zone = space.zones[zone].number.0;
            (next.zone, next.offset) = (next_zone, 0);
            self.zones.push_back(next_zone);
        }
        let node = &mut self.buffer[..blocks * block_bytes];
        node[HEADER_BYTES..HEADER_BYTES + part.len()].copy_from_slice(part);
        node[HEADER_BYTES + part.len()..].fill(0);
        let bytes = part.len() as u32;
        let small = [flags, 0, 0];
        let header = Header {
            kind: Kind::Journal,
            block,
            generation: self.end.sequence,
            bytes,
            small,
            word: next_zone,
        };
        header.seal(node);
        io.write(Traffic::Journal, block, node)?;
        if let Some(zone) = space.zone_index(block) {
            space.zones[zone].written += blocks as u64;
        }
        self.end = next;
        self.blocks += blocks as u64;
        Ok(())
    }
}

/// Reads the records from `start` on, and calls `each` with every complete one until that says that one does not count. Returns where the
/// journal ended: what is there does not count, and nothing is appended there.
pub(super) fn replay<D: ZonedDevice>(
    io: &Io<D>,
    start: Position,
    mut each: impl FnMut(Vec<u8>) -> Result<bool>,
) -> Result<Replayed> {
    let mut replayed = Replayed { end: start, zones: Vec::new(), records: 0 };
    let mut record = Vec::new();
    let mut at = start;
    while at.zone != 0 {
        if !replayed.zones.contains(&at.zone) {
            replayed.zones.push(at.zone);
        }
        let Some((header, part)) = read_part(io, at)? else { break };
        if header.small[0] & FIRST != 0 {
            record.clear();
        }
        record.extend_from_slice(&part);
        let blocks = (HEADER_BYTES + part.len()).div_ceil(io.geometry.block_bytes as usize) as u64;
        at = Position { zone: at.zone, offset: at.offset + blocks, sequence: at.sequence.wrapping_add(1) };
        if at.offset == io.geometry.zone_capacity_blocks {
            (at.zone, at.offset) = (header.word, 0);
        }
        replayed.end.sequence = at.sequence;
        if header.small[0] & LAST != 0 {
            if !each(std::mem::take(&mut record))? {
                break;
            }
            replayed.end = at;
            replayed.records += 1;
        }
    }
    Ok(replayed)
}

/// What a replay found.
pub(super) struct Replayed {
    /// Behind the last complete record.
    pub end: Position,
    /// The zones that hold the journal.
    pub zones: Vec<u32>,
    /// How many complete records there were.
    pub records: u64,
}

/// The part at a place, if a whole and right one is there.
fn read_part<D: ZonedDevice>(io: &Io<D>, at: Position) -> Result<Option<(Header, Vec<u8>)>> {
    let geometry = &io.geometry;
    let zone = crate::device::ZoneNumber(at.zone);
    if at.zone >= geometry.zones() || geometry.is_conventional(zone) {
        return Ok(None);
    }
    let written = match io.device.zone(zone)? {
        report if report.condition == Condition::Offline => {
            let what = format!(
                "the journal goes on in {zone}, which is offline: batches that were acknowledged may be lost with it"
            );
            return Err(super::io::damaged(geometry.start(zone).0 + at.offset, what));
        }
        report if takes_writes(report.condition) => report.write_pointer,
        // The pointer of a worn-out zone means nothing: what is there is known by its checksum.
        report => report.capacity_blocks,
    };
    if at.offset >= written {
        return Ok(None);
    }
    let block = geometry.start(zone).0 + at.offset;
    let block_bytes = geometry.block_bytes as usize;
    let first = io.read(Traffic::Journal, block, block_bytes)?;
    let Ok(header) = Header::peek(&first, Kind::Journal) else { return Ok(None) };
    let bytes = HEADER_BYTES + header.bytes as usize;
    if header.generation != at.sequence || at.offset + bytes.div_ceil(block_bytes) as u64 > written {
        return Ok(None);
    }
    let node = io.read(Traffic::Journal, block, bytes)?;
    Ok(Header::open(&node, Kind::Journal, Block(block).0)
        .ok()
        .map(|header| (header, node[HEADER_BYTES..bytes].to_vec())))
}

/// Says which zones the journal is in.
pub(super) fn claim(space: &mut Space, zones: &[u32]) {
    for zone in &mut space.zones {
        if zones.contains(&zone.number.0) && zone.role != Role::Unusable {
            zone.role = Role::Journal;
        }
    }
}
