//! Reads the journal: returns all batches since the last checkpoint and detects missing ones.
//!
//! A power cut discards the end of the unflushed data and leaves the write pointer at the first lost block. So an
//! intact journal ends at the write pointer, or with a part that extends beyond it. A part that lies completely before
//! the write pointer was written; if it cannot be read, it is damaged. On drives that violate this rule, losses are
//! detected by later parts: each one records which parts were durable and which checkpoint was complete when it was
//! written.

use crate::device::{Block, Condition, DeviceError, Operation, ZoneNumber, ZonedDevice};
use crate::error::{Error, LostBatches, Result};
use crate::node::{Extent, Value};
use crate::store::io::{Io, Traffic};
use crate::store::journal::batch::Batch;
use crate::store::journal::parts::{Part, Position};
use crate::store::space::allocation::{Role, Space, takes_writes};
use crate::store::superblock::Superblock;

/// An intact batch.
pub(crate) struct Record {
    /// The sequence numbers of its first and its last part.
    parts: (u64, u64),
    number: u64,
    pub batch: Batch,
}

impl Record {
    /// Whether the record has a part with this sequence number or a later one.
    pub const fn is_from(&self, part: u64) -> bool {
        self.parts.1 >= part
    }
}

/// The contents of the journal.
pub(crate) struct Replay {
    /// The intact batches, in order.
    pub records: Vec<Record>,
    /// The batches lost between or after them.
    pub lost: Vec<LostBatches>,
    /// The number of intact batches before the first damage.
    before_damage: usize,
    /// The position after the last complete record. Later data is ignored, and no part is appended there.
    pub end: Position,
    /// The zones that hold the journal.
    pub zones: Vec<u32>,
    /// All parts before this sequence number were durable, according to later parts.
    pub safe: u64,
    /// The last checkpoint that the journal records as complete.
    pub checkpoint: u64,
}

impl Replay {
    /// The error for a damaged journal, if it is damaged.
    pub fn damage(&self) -> Option<Error> {
        let first = self.lost.first()?;
        Some(Error::JournalDamaged {
            block: Block(first.block),
            what: first.what.clone(),
            lost: self.lost.clone(),
            later: (self.records.len() - self.before_damage) as u64,
        })
    }

    /// Verifies the large values that the batches refer to. A large value is flushed together with its batch. If a
    /// power cut destroyed a large value, then neither its batch nor any later batch was durable, unless a later part
    /// records the batch as durable. The first value returned is the part at which the journal must be cut, if any. The
    /// second lists the other unreadable values with their keys.
    pub fn settle<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &Space,
    ) -> (Option<u64>, Vec<(Vec<u8>, Extent)>) {
        let mut unreadable = Vec::new();
        for index in 0..self.records.len() {
            let record = &self.records[index];
            let damaged = match extents_of(io, space, &record.batch) {
                ExtentsState::Whole => continue,
                ExtentsState::Cut if record.is_from(self.safe) => {
                    let (first, number) = (record.parts.0, record.number);
                    self.records.truncate(index);
                    self.lost.retain(|lost| lost.first < number);
                    self.before_damage = self.before_damage.min(index);
                    // Skip a sequence number, so that a new part never has the number of a part after the cut.
                    self.end.sequence = self.end.sequence.wrapping_add(1);
                    return (Some(first), unreadable);
                }
                ExtentsState::Cut => {
                    large(&record.batch).map(|(key, extent)| (key.to_vec(), extent)).collect()
                }
                ExtentsState::Damaged(values) => values,
            };
            unreadable.extend(damaged);
        }
        (None, unreadable)
    }

    /// The error for a superblock that is older than the last checkpoint recorded in the journal.
    pub fn newer_checkpoint(&self, superblock: &Superblock) -> Option<Error> {
        let (published, found) = (self.checkpoint, superblock.generation);
        (published > found).then(|| {
            crate::store::io::damaged(
                published % 2,
                format!("the superblock of checkpoint {published}, which the journal mentions, is lost; the newest one found is of checkpoint {found}"),
            )
        })
    }
}

/// The state of a batch's large values.
enum ExtentsState {
    Whole,
    /// The values of these keys were written but cannot be read.
    Damaged(Vec<(Vec<u8>, Extent)>),
    /// A value extends beyond the write pointer: a power cut destroyed it.
    Cut,
}

/// The large values that a batch refers to.
pub(crate) fn large(batch: &Batch) -> impl Iterator<Item = (&[u8], Extent)> {
    batch.changes().filter_map(|change| match change.value {
        Value::Extent(extent) => Some((change.key, extent)),
        _ => None,
    })
}

fn extents_of<D: ZonedDevice>(io: &Io<D>, space: &Space, batch: &Batch) -> ExtentsState {
    let mut damaged = Vec::new();
    for (key, extent) in large(batch).filter(|&(key, extent)| io.read_extent(key, extent).is_err()) {
        let end =
            (extent.block % io.geometry.zone_blocks).saturating_add(io.extent_blocks(key, extent.bytes));
        let zone = space.zone_index(extent.block).map(|index| &space.zones[index]);
        // The write pointer of a worn-out zone is unknown.
        if zone.is_some_and(|zone| zone.role != Role::Unusable && end > zone.written) {
            return ExtentsState::Cut;
        }
        damaged.push((key.to_vec(), extent));
    }
    if damaged.is_empty() { ExtentsState::Whole } else { ExtentsState::Damaged(damaged) }
}

/// The state of a journal position.
enum PartState {
    /// An intact part: its header, its fragment, and its checksum.
    Part(Part, Vec<u8>, u32),
    /// A part that was written but is damaged: the reason, and its header if that is intact.
    Damaged(String, Option<Part>),
    /// No part, or a part torn by a power cut.
    End,
}

struct JournalReader<'a, D> {
    io: &'a Io<D>,
    space: &'a Space,
    id: u64,
    cut: u64,
    at: Position,
    /// Whether the part at `at` must have the checksum chain of `at`. After damage the chain is unknown.
    is_chained: bool,
    /// The record assembled so far, with the sequence number of its first part. `None` if the first part was not read.
    record: Option<(u64, Vec<u8>)>,
    /// For each damage: the number of intact batches before it, its block, its description, and the last batch that it
    /// may affect, if known.
    damage: Vec<(usize, u64, String, Option<u64>)>,
    found: Replay,
}

/// Reads the journal of a superblock. `space` determines the zones that the tree does not use, in which further parts
/// of the journal may be.
///
/// # Errors
/// [`Error::Device`] if the device does not respond. Damage is reported in the result.
pub(crate) fn replay<D: ZonedDevice>(io: &Io<D>, space: &Space, superblock: &Superblock) -> Result<Replay> {
    let found = Replay {
        records: Vec::new(),
        lost: Vec::new(),
        before_damage: 0,
        end: superblock.journal,
        zones: Vec::new(),
        safe: superblock.journal.sequence,
        checkpoint: superblock.generation,
    };
    let Superblock { id, journal: at, cut, .. } = *superblock;
    let mut reader =
        JournalReader { io, space, id, cut, at, is_chained: true, record: None, damage: Vec::new(), found };
    reader.read()?;
    Ok(reader.finish(superblock.journal.batch))
}

impl<D: ZonedDevice> JournalReader<'_, D> {
    fn read(&mut self) -> Result<()> {
        // Zone 0 means that no zone was free, so that a checkpoint came next. After damage the journal may continue
        // beyond the cut.
        while self.at.zone != 0 && (self.cut == 0 || self.at.sequence < self.cut) {
            if !self.found.zones.contains(&self.at.zone) {
                self.found.zones.push(self.at.zone);
            }
            match self.examine(self.at)? {
                PartState::Part(part, content, checksum) => self.accept_part(&part, &content, checksum),
                PartState::Damaged(what, Some(part)) => {
                    self.record_damage(what, Some(part.batch));
                    self.record = None;
                    self.step_over(&part);
                    self.is_chained = false;
                }
                PartState::Damaged(what, None) => {
                    let next = self.next_part()?;
                    // The write pointer of a worn-out zone is unknown, so this may be the end.
                    let may_be_the_end = next.is_none() && !self.is_writable(self.at.zone)?;
                    if may_be_the_end {
                        break;
                    }
                    self.record_damage(what, None);
                    match next {
                        Some(next) => self.resume(next),
                        None => break,
                    }
                }
                PartState::End => match self.evidence_of_more()? {
                    Some((next, what)) => {
                        self.record_damage(what, None);
                        self.resume(next);
                    }
                    None => break,
                },
            }
        }
        Ok(())
    }

    fn record_damage(&mut self, what: String, last: Option<u64>) {
        let block = self.io.geometry.start(ZoneNumber(self.at.zone)).0 + self.at.offset;
        self.damage.push((self.found.records.len(), block, what, last));
    }

    fn resume(&mut self, next: Position) {
        self.at = next;
        self.is_chained = false;
        self.record = None;
    }

    /// Advances the position past a part.
    fn step_over(&mut self, part: &Part) {
        self.at.sequence = part.sequence.wrapping_add(1);
        self.at.offset += part.blocks(self.io.geometry.block_bytes);
        if self.at.offset == self.io.geometry.zone_capacity_blocks {
            (self.at.zone, self.at.offset) = (part.next_zone, 0);
        }
        self.found.end.sequence = self.at.sequence;
        self.found.safe = self.found.safe.max(part.safe);
        self.found.checkpoint = self.found.checkpoint.max(part.checkpoint);
    }

    fn accept_part(&mut self, part: &Part, content: &[u8], checksum: u32) {
        if part.is_first {
            self.record = Some((part.sequence, Vec::new()));
        }
        if let Some((_, record)) = &mut self.record {
            record.extend_from_slice(content);
        }
        let before = self.at;
        self.step_over(part);
        (self.at.chain, self.is_chained) = (checksum, true);
        self.at.batch = part.batch.wrapping_add(u64::from(part.is_last));
        let Some((first, record)) = self.record.take_if(|_| part.is_last) else { return };
        match Batch::from_bytes(record) {
            Ok(batch) => {
                let (parts, number) = ((first, part.sequence), part.batch);
                self.found.records.push(Record { parts, number, batch });
                self.found.end = self.at;
            }
            Err(what) => {
                let after = std::mem::replace(&mut self.at, before);
                self.record_damage(what, Some(part.batch));
                self.at = after;
            }
        }
    }

    /// The number of blocks of a zone that may contain data, or `None` if the zone cannot be read.
    fn written(&self, zone: u32) -> Result<Option<u64>> {
        let report = self.io.device.zone(ZoneNumber(zone))?;
        Ok(match report.condition {
            Condition::Offline => None,
            condition if takes_writes(condition) => Some(report.write_pointer),
            // The write pointer of a worn-out zone is meaningless: parts are recognized by their checksums.
            _ => Some(report.capacity_blocks),
        })
    }

    fn is_writable(&self, zone: u32) -> Result<bool> {
        let zone = ZoneNumber(zone);
        let geometry = &self.io.geometry;
        let is_sequential = zone.0 < geometry.zones() && !geometry.is_conventional(zone);
        // A link to a zone that is not sequential is damage, not the end of the journal.
        Ok(!is_sequential || self.io.device.zone(zone)?.condition != Condition::ReadOnly)
    }

    /// Determines the state of a position.
    fn examine(&self, at: Position) -> Result<PartState> {
        let geometry = &self.io.geometry;
        let zone = ZoneNumber(at.zone);
        let damaged = |what: String| Ok(PartState::Damaged(what, None));
        if at.zone >= geometry.zones() || geometry.is_conventional(zone) {
            return damaged(format!("it continues in {zone}, which cannot hold a journal"));
        }
        let Some(written) = self.written(at.zone)? else {
            return damaged(format!("it continues in {zone}, which is offline"));
        };
        if at.offset > written {
            return damaged(format!("{zone} is written only up to its block {written}: later data was lost"));
        }
        if at.offset == written {
            return Ok(PartState::End);
        }
        let block = geometry.start(zone).0 + at.offset;
        let first = match self.io.read(Traffic::Journal, block, geometry.block_bytes as usize) {
            Ok(first) => first,
            Err(error) => return Ok(PartState::Damaged(unreadable(error)?, None)),
        };
        let part = match Part::peek(&first, block) {
            Ok(part) => part,
            Err(what) => return damaged(what),
        };
        if part.id != self.id || part.sequence != at.sequence {
            return damaged(format!(
                "journal part {} was found where part {} was expected",
                part.sequence, at.sequence
            ));
        }
        if self.is_chained && part.chain != at.chain {
            return damaged("it does not follow the part before it".into());
        }
        let blocks = part.blocks(geometry.block_bytes);
        if at.offset + blocks > written {
            // A torn part extends beyond the write pointer.
            return if self.is_writable(at.zone)? {
                Ok(PartState::End)
            } else {
                damaged("it is longer than its zone".into())
            };
        }
        let bytes = blocks as usize * geometry.block_bytes as usize;
        let opened = match self.io.read(Traffic::Journal, block, bytes) {
            Ok(node) => part.open(&node).map(|(content, checksum)| (content.to_vec(), checksum)),
            Err(error) => Err(unreadable(error)?),
        };
        Ok(match opened {
            Ok((content, checksum)) => PartState::Part(part, content, checksum),
            Err(what) => PartState::Damaged(what, Some(part)),
        })
    }

    /// Reads the header of the part at a block, if it is a later part of this journal.
    fn later_part(&self, zone: u32, offset: u64) -> Result<Option<Part>> {
        let block = self.io.geometry.start(ZoneNumber(zone)).0 + offset;
        let node = match self.io.read(Traffic::Journal, block, self.io.geometry.block_bytes as usize) {
            Ok(node) => node,
            Err(error) => return unreadable(error).map(|_| None),
        };
        let part = Part::peek(&node, block).ok();
        Ok(part.filter(|part| part.id == self.id && part.sequence > self.at.sequence))
    }

    fn position_of(zone: u32, offset: u64, part: &Part) -> Position {
        Position { zone, offset, sequence: part.sequence, batch: part.batch, chain: part.chain }
    }

    /// Finds the next part after damage: in the same zone, or at the beginning of another one.
    fn next_part(&self) -> Result<Option<Position>> {
        let (zone, geometry) = (self.at.zone, &self.io.geometry);
        let is_sequential = zone < geometry.zones() && !geometry.is_conventional(ZoneNumber(zone));
        if let Some(written) = if is_sequential { self.written(zone)? } else { None } {
            for offset in self.at.offset + 1..written {
                if let Some(part) = self.later_part(zone, offset)? {
                    return Ok(Some(Self::position_of(zone, offset, &part)));
                }
            }
        }
        Ok(self.first_elsewhere()?.map(|(zone, part)| Self::position_of(zone, 0, &part)))
    }

    /// Of the zones that the tree does not use, finds the one that begins with the earliest later part.
    fn first_elsewhere(&self) -> Result<Option<(u32, Part)>> {
        let mut first: Option<(u32, Part)> = None;
        let unused = |zone: &&crate::store::space::allocation::SequentialZone| {
            zone.written > 0 && zone.live() == 0 && zone.role != Role::Unusable
        };
        for zone in self.space.zones.iter().filter(unused).map(|zone| zone.number.0) {
            if self.found.zones.contains(&zone) {
                continue;
            }
            let Some(part) = self.later_part(zone, 0)? else { continue };
            if first.as_ref().is_none_or(|(_, other)| part.sequence < other.sequence) {
                first = Some((zone, part));
            }
        }
        Ok(first)
    }

    /// Looks for evidence that the journal continues although it seems to end here: a later part that records the
    /// missing parts as durable. Returns the position of that part and a description.
    fn evidence_of_more(&self) -> Result<Option<(Position, String)>> {
        let Some((zone, first)) = self.first_elsewhere()? else { return Ok(None) };
        let written = self.written(zone)?.unwrap_or(0);
        let (mut offset, mut part) = (0, first);
        loop {
            let knows = part.safe > self.at.sequence || part.checkpoint > self.found.checkpoint;
            if knows {
                let what = format!(
                    "it ends here, but {} has part {} of it, which records part {} as durable",
                    ZoneNumber(zone),
                    part.sequence,
                    part.safe.saturating_sub(1)
                );
                return Ok(Some((Self::position_of(zone, 0, &first), what)));
            }
            offset += part.blocks(self.io.geometry.block_bytes);
            if offset >= written {
                return Ok(None);
            }
            match self.later_part(zone, offset)? {
                Some(next) => part = next,
                None => return Ok(None),
            }
        }
    }

    /// Computes which batches are lost.
    fn finish(self, first_batch: u64) -> Replay {
        let Self { mut found, damage, .. } = self;
        found.before_damage = damage.first().map_or(found.records.len(), |first| first.0);
        let number = |index: usize| found.records.get(index).map(|record| record.number);
        let mut lost: Vec<LostBatches> = Vec::new();
        for (index, group) in damage.chunk_by(|a, b| a.0 == b.0).map(|group| (group[0].0, group)) {
            let before = index.checked_sub(1).and_then(number);
            let first = before.map_or(first_batch, |before| before.wrapping_add(1));
            let last = match number(index) {
                Some(after) => Some(after.saturating_sub(1).max(first)),
                None => group
                    .iter()
                    .map(|damage| damage.3)
                    .collect::<Option<Vec<_>>>()
                    .and_then(|all| all.into_iter().max()),
            };
            let (_, block, what, _) = group[0].clone();
            lost.push(LostBatches { first, last, block, what });
        }
        found.lost = lost;
        found
    }
}

/// Describes an unreadable block. Device errors other than media errors are passed on.
pub(crate) fn unreadable(error: Error) -> Result<String> {
    match error {
        Error::Device(
            DeviceError::Media { operation: Operation::Read, .. } | DeviceError::Unusable { .. },
        ) => Ok(error.to_string()),
        error => Err(error),
    }
}

/// Marks the zones that hold the journal.
pub(crate) fn claim(space: &mut Space, zones: &[u32]) {
    for zone in &mut space.zones {
        if zones.contains(&zone.number.0) && zone.role != Role::Unusable {
            zone.role = Role::Journal;
        }
    }
}
