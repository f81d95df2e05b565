//! The write-ahead journal: batches are appended to dedicated sequential zones and made durable by one flush each.
//! `replay` reads it.
//!
//! Source: the write-ahead rule of Mohan et al., "ARIES", TODS 1992. Records are logical, because the tree on the
//! device is never updated in place.

use crate::device::{AlignedBuffer, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{HEADER_BYTES, Header, Kind, checksum};
use crate::store::io::{Io, Traffic};
use crate::store::space::allocation::Space;
use crate::store::superblock::Superblock;
use std::collections::VecDeque;

/// A position in the journal, with the numbers of the part and the record at that position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The zone number. 0, a conventional zone, means that nothing has been written yet.
    pub zone: u32,
    /// Blocks from the start of the zone.
    pub offset: u64,
    /// The sequence number of the part. Parts are numbered consecutively.
    pub sequence: u64,
    /// The number of the record. Records are numbered consecutively; each holds one batch.
    pub batch: u64,
    /// The checksum of the previous part.
    pub chain: u32,
}

/// The header of a journal part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub block: u64,
    pub sequence: u64,
    /// The checksum of the previous part.
    pub chain: u32,
    /// The length of the record fragment in this part, bytes.
    pub bytes: u32,
    pub is_first: bool,
    pub is_last: bool,
    /// The zone in which the journal continues, if this part ends at the end of its zone. 0 if no zone was free.
    pub next_zone: u32,
    /// The number of the fragment's record.
    pub batch: u64,
    /// All parts before this sequence number were durable when the part was written.
    pub safe: u64,
    /// The last checkpoint that was complete when the part was written.
    pub checkpoint: u64,
    /// The id of the map.
    pub id: u64,
}

/// The fields between the node header and the fragment: record number, first part not known to be durable, last
/// complete checkpoint, map id, and a checksum of these fields and the header. Their own checksum keeps the length and
/// the record number of a part usable when the fragment is damaged.
const FIELDS_BYTES: usize = 4 * 8 + 4;

/// The bytes of a part without its fragment.
const PART_BYTES: usize = HEADER_BYTES + FIELDS_BYTES;

/// Flags: the part is the first or the last of its record.
const FIRST: u16 = 1;
const LAST: u16 = 2;

impl Part {
    /// The number of blocks that the part takes.
    pub fn blocks(&self, block_bytes: u32) -> u64 {
        (PART_BYTES + self.bytes as usize).div_ceil(block_bytes as usize) as u64
    }

    /// Writes the header around a fragment that is already in `node`.
    fn seal(&self, node: &mut [u8]) {
        let flags = if self.is_first { FIRST } else { 0 } | if self.is_last { LAST } else { 0 };
        let header = Header {
            kind: Kind::Journal,
            block: self.block,
            generation: self.sequence,
            base: self.chain,
            bytes: FIELDS_BYTES as u32 + self.bytes,
            small: [flags, 0, 0],
            word: self.next_zone,
        };
        header.write(node);
        let fields = [self.batch, self.safe, self.checkpoint, self.id];
        for (place, field) in node[HEADER_BYTES..PART_BYTES].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let sum = crc32c::crc32c(&node[8..PART_BYTES - 4]);
        node[PART_BYTES - 4..PART_BYTES].copy_from_slice(&sum.to_le_bytes());
        header.seal(node);
    }

    /// Decodes the header of a part without verifying its fragment.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn peek(node: &[u8], block: u64) -> std::result::Result<Self, String> {
        let header = Header::peek(node, Kind::Journal)?;
        let sum = u32::from_le_bytes(node[PART_BYTES - 4..PART_BYTES].try_into().expect("four bytes"));
        if sum != crc32c::crc32c(&node[8..PART_BYTES - 4]) {
            return Err("the checksum of its header does not match".into());
        }
        if header.block != block {
            return Err(format!("it belongs to block {}", header.block));
        }
        let [flags, more, others] = header.small;
        let Some(bytes) = header.bytes.checked_sub(FIELDS_BYTES as u32) else {
            return Err("it is shorter than its own header".into());
        };
        if flags > FIRST | LAST || more != 0 || others != 0 {
            return Err("it has unknown flags".into());
        }
        let field = |index: usize| {
            let at = HEADER_BYTES + 8 * index;
            u64::from_le_bytes(node[at..at + 8].try_into().expect("eight bytes"))
        };
        Ok(Self {
            block,
            sequence: header.generation,
            chain: header.base,
            bytes,
            is_first: flags & FIRST != 0,
            is_last: flags & LAST != 0,
            next_zone: header.word,
            batch: field(0),
            safe: field(1),
            checkpoint: field(2),
            id: field(3),
        })
    }

    /// Verifies the part and returns its fragment and its checksum.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn open<'n>(&self, node: &'n [u8]) -> std::result::Result<(&'n [u8], u32), String> {
        Header::open(node, Kind::Journal, self.block)?;
        Ok((&node[PART_BYTES..PART_BYTES + self.bytes as usize], checksum(node)))
    }
}

/// The append end of the journal.
pub(crate) struct Journal {
    pub end: Position,
    /// Blocks appended since the last checkpoint began.
    pub blocks: u64,
    /// Zones that recovery still needs, the oldest first.
    pub zones: VecDeque<u32>,
    /// All parts before this sequence number are durable.
    safe: u64,
    /// The generation of the last complete checkpoint.
    pub checkpoint: u64,
    id: u64,
    buffer: AlignedBuffer,
}

impl Journal {
    /// The journal as the last checkpoint left it.
    pub fn new(superblock: &Superblock) -> Self {
        let Superblock { journal: end, generation: checkpoint, id, .. } = *superblock;
        let (blocks, zones, buffer) = (0, VecDeque::new(), AlignedBuffer::new(0));
        Self { end, blocks, zones, safe: end.sequence, checkpoint, id, buffer }
    }

    /// Marks everything appended so far as durable.
    pub const fn mark_flushed(&mut self) {
        self.safe = self.end.sequence;
    }

    /// An upper bound of the blocks that a record of `bytes` bytes takes.
    pub fn blocks_for<D: ZonedDevice>(io: &Io<D>, bytes: usize) -> u64 {
        let block = io.geometry.block_bytes as usize;
        // Each zone change adds one part header.
        let zones = bytes as u64 / (io.geometry.zone_capacity_blocks * block as u64) + 2;
        bytes.div_ceil(block - PART_BYTES) as u64 + zones
    }

    /// The number of blocks that can still be appended.
    pub fn room<D: ZonedDevice>(&self, io: &Io<D>, space: &Space) -> u64 {
        let here = match self.end.zone {
            0 => 0,
            _ => io.geometry.zone_capacity_blocks - self.end.offset,
        };
        here + space.empty_zones() as u64 * io.geometry.zone_capacity_blocks
    }

    /// Appends a record. It is durable after the next flush.
    pub fn append<D: ZonedDevice>(&mut self, io: &Io<D>, space: &mut Space, record: &[u8]) -> Result<()> {
        let block_bytes = io.geometry.block_bytes as usize;
        let mut rest = Some(record);
        let mut is_first = true;
        while let Some(record) = rest {
            if self.is_at_end(io) {
                // `Writer::make_room` prevents this.
                return Err(Error::Full { device: io.device.name(), needed: 1, free: 0, held: 0 });
            }
            let room =
                (io.geometry.zone_capacity_blocks - self.end.offset) as usize * block_bytes - PART_BYTES;
            // Parts are at most 1 MiB long, which devices write efficiently in one request.
            let (now, later) = record.split_at(record.len().min(room).min((1 << 20) - PART_BYTES));
            rest = (!later.is_empty()).then_some(later);
            self.append_part(io, space, now, is_first, rest.is_none())?;
            is_first = false;
        }
        self.end.batch = self.end.batch.wrapping_add(1);
        Ok(())
    }

    /// Whether the current zone is full and no other zone was free when it filled up. In this case, no part links to a
    /// next zone, so a checkpoint must record the next zone.
    pub fn is_at_end<D: ZonedDevice>(&self, io: &Io<D>) -> bool {
        self.end.zone == 0 || self.end.offset == io.geometry.zone_capacity_blocks
    }

    /// Allocates a zone if the journal is at its end. The zone becomes part of the journal with the next checkpoint.
    pub fn ensure_zone<D: ZonedDevice>(&mut self, io: &Io<D>, space: &mut Space) -> Result<()> {
        if !self.is_at_end(io) {
            return Ok(());
        }
        let full = || Error::Full { device: io.device.name(), needed: 1, free: 0, held: 0 };
        let zone = space.take_journal_zone().ok_or_else(full)?;
        (self.end.zone, self.end.offset) = (space.zones[zone].number.0, 0);
        self.zones.push_back(self.end.zone);
        Ok(())
    }

    fn append_part<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        content: &[u8],
        is_first: bool,
        is_last: bool,
    ) -> Result<()> {
        let block_bytes = io.geometry.block_bytes as usize;
        let blocks = (PART_BYTES + content.len()).div_ceil(block_bytes);
        if self.buffer.len() < blocks * block_bytes {
            self.buffer = AlignedBuffer::new((blocks * block_bytes).next_power_of_two());
        }
        let block = u64::from(self.end.zone) * io.geometry.zone_blocks + self.end.offset;
        let mut next = self.end;
        next.offset += blocks as u64;
        next.sequence = next.sequence.wrapping_add(1);
        // The last part in a zone links to the next zone. If none is free the link is 0, and a checkpoint must be
        // written before the next append.
        let mut next_zone = 0;
        if next.offset == io.geometry.zone_capacity_blocks
            && let Some(zone) = space.take_journal_zone()
        {
            next_zone = space.zones[zone].number.0;
            (next.zone, next.offset) = (next_zone, 0);
            self.zones.push_back(next_zone);
        }
        let node = &mut self.buffer[..blocks * block_bytes];
        node[PART_BYTES..PART_BYTES + content.len()].copy_from_slice(content);
        node[PART_BYTES + content.len()..].fill(0);
        let part = Part {
            block,
            sequence: self.end.sequence,
            chain: self.end.chain,
            bytes: content.len() as u32,
            is_first,
            is_last,
            next_zone,
            batch: self.end.batch,
            safe: self.safe,
            checkpoint: self.checkpoint,
            id: self.id,
        };
        part.seal(node);
        next.chain = checksum(node);
        io.write(Traffic::Journal, block, node)?;
        if let Some(zone) = space.zone_index(block) {
            space.zones[zone].written += blocks as u64;
        }
        self.end = next;
        self.blocks += blocks as u64;
        Ok(())
    }
}
