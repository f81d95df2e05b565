//! Reading the journal: all batches since the last checkpoint, and what is missing of them.
//! Not what is done with them: see `open`, `check` and `repair`.
//!
//! A power cut takes the end of what was not flushed, and leaves the write pointer where the first lost block was. So the journal ends at the
//! write pointer, or with a part that reaches beyond it; and a part that lies before the write pointer as a whole had been written, whatever
//! is there now: it is damaged. What was lost by a drive that does not keep this is found by what comes later: each part says which parts
//! were safe when it was written, and which checkpoint was complete.

use super::batch::Batch;
use super::io::{Io, Traffic};
use super::journal::{Part, Position};
use super::space::{Role, Space, takes_writes};
use super::superblock::Superblock;
use crate::device::{Block, Condition, DeviceError, Operation, ZoneNumber, ZonedDevice};
use crate::error::{Error, LostBatches, Result};
use crate::node::{Extent, Value};

/// A batch that is whole.
pub(super) struct Record {
    /// Its parts' numbers: the first one, and the last one.
    parts: (u64, u64),
    number: u64,
    pub batch: Batch,
}

impl Record {
    /// Whether any of it is in the part with this number or behind it.
    pub const fn is_from(&self, part: u64) -> bool {
        self.parts.1 >= part
    }
}

/// What the journal holds.
pub(super) struct Replay {
    /// The whole batches, in order.
    pub records: Vec<Record>,
    /// What is lost between or after them.
    pub lost: Vec<LostBatches>,
    /// How many of the whole batches come before the first damage.
    before_damage: usize,
    /// Behind the last complete record: nothing after it counts, and nothing is appended there.
    pub end: Position,
    /// The zones that hold the journal.
    pub zones: Vec<u32>,
    /// All parts before this one were safe, as a later one says.
    pub safe: u64,
    /// The newest checkpoint that the journal knows to be complete.
    pub checkpoint: u64,
}

impl Replay {
    /// The error of a journal that is damaged.
    pub fn damage(&self) -> Option<Error> {
        let first = self.lost.first()?;
        Some(Error::JournalDamaged {
            block: Block(first.block),
            what: first.what.clone(),
            lost: self.lost.clone(),
            later: (self.records.len() - self.before_damage) as u64,
        })
    }

    /// Looks at the large values that the batches name, which are flushed with them. A batch of which a power cut took one was never safe,
    /// nor is what follows it, unless something later says that it was: from that part on the journal does not count, if there is one. The
    /// others' values that cannot be read are the second value: each key, and where its value was.
    pub fn settle<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &Space,
    ) -> (Option<u64>, Vec<(Vec<u8>, Extent)>) {
        let mut unreadable = Vec::new();
        for index in 0..self.records.len() {
            let record = &self.records[index];
            let damaged = match extents_of(io, space, &record.batch) {
                Extents::Whole => continue,
                Extents::Cut if record.is_from(self.safe) => {
                    let (first, number) = (record.parts.0, record.number);
                    self.records.truncate(index);
                    self.lost.retain(|lost| lost.first < number);
                    self.before_damage = self.before_damage.min(index);
                    // So that what was written behind it has no number that is used again.
                    self.end.sequence = self.end.sequence.wrapping_add(1);
                    return (Some(first), unreadable);
                }
                Extents::Cut => large(&record.batch).map(|(key, extent)| (key.to_vec(), extent)).collect(),
                Extents::Damaged(values) => values,
            };
            unreadable.extend(damaged);
        }
        (None, unreadable)
    }

    /// The error of a superblock that is older than the journal.
    pub fn newer_checkpoint(&self, superblock: &Superblock) -> Option<Error> {
        let (newest, found) = (self.checkpoint, superblock.generation);
        (newest > found).then(|| {
            super::io::damaged(
                newest % 2,
                format!("the superblock of checkpoint {newest}, which the journal knows of, is lost; the newest there is of {found}"),
            )
        })
    }
}

/// What is there of a batch's large values.
enum Extents {
    Whole,
    /// These keys' values had been written and cannot be read.
    Damaged(Vec<(Vec<u8>, Extent)>),
    /// One of them is behind the write pointer: a power cut took it.
    Cut,
}

/// The large values that a batch names.
pub(super) fn large(batch: &Batch) -> impl Iterator<Item = (&[u8], Extent)> {
    batch.changes().filter_map(|change| match change.value {
        Value::Extent(extent) => Some((change.key, extent)),
        _ => None,
    })
}

fn extents_of<D: ZonedDevice>(io: &Io<D>, space: &Space, batch: &Batch) -> Extents {
    let mut damaged = Vec::new();
    for (key, extent) in large(batch).filter(|&(key, extent)| io.read_extent(key, extent).is_err()) {
        let end =
            (extent.block % io.geometry.zone_blocks).saturating_add(io.extent_blocks(key, extent.bytes));
        let zone = space.zone_index(extent.block).map(|index| &space.zones[index]);
        // Of a worn-out zone nobody knows the pointer.
        if zone.is_some_and(|zone| zone.role != Role::Unusable && end > zone.written) {
            return Extents::Cut;
        }
        damaged.push((key.to_vec(), extent));
    }
    if damaged.is_empty() { Extents::Whole } else { Extents::Damaged(damaged) }
}

/// What is at a place in the journal.
enum Found {
    /// A whole part: what it says of itself, the part of a record in it, and its proof.
    Part(Part, Vec<u8>, u32),
    /// A part that had been written and is not there, and what it said of itself if that can be read.
    Damaged(String, Option<Part>),
    /// Nothing, or a part that a power cut tore.
    End,
}

struct Reader<'a, D> {
    io: &'a Io<D>,
    space: &'a Space,
    id: u64,
    cut: u64,
    at: Position,
    /// Whether what is at `at` must have the chain that `at` has: behind damage nobody knows it.
    is_chained: bool,
    /// The parts of a record so far, and the number of the first one, if that was read.
    record: Option<(u64, Vec<u8>)>,
    /// Of each damage: how many whole batches come before it, where it is, what it is, and the last batch that it may have hit.
    damage: Vec<(usize, u64, String, Option<u64>)>,
    found: Replay,
}

/// Reads the journal of a superblock. `space` says in which zones more of it may be than leads on from its beginning: in those that no
/// tree needs.
///
/// # Errors
/// [`Error::Device`] if the device cannot be asked. Damage is no error here.
pub(super) fn replay<D: ZonedDevice>(io: &Io<D>, space: &Space, superblock: &Superblock) -> Result<Replay> {
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
        Reader { io, space, id, cut, at, is_chained: true, record: None, damage: Vec::new(), found };
    reader.read()?;
    Ok(reader.finish(superblock.journal.batch))
}

impl<D: ZonedDevice> Reader<'_, D> {
    fn read(&mut self) -> Result<()> {
        // Without a zone to go on in a checkpoint comes next. Behind damage it may go on beyond the cut.
        while self.at.zone != 0 && (self.cut == 0 || self.at.sequence < self.cut) {
            if !self.found.zones.contains(&self.at.zone) {
                self.found.zones.push(self.at.zone);
            }
            match self.look(self.at)? {
                Found::Part(part, content, proof) => self.take(&part, &content, proof),
                Found::Damaged(what, Some(part)) => {
                    self.note(what, Some(part.batch));
                    self.record = None;
                    self.step_over(&part);
                    self.is_chained = false;
                }
                Found::Damaged(what, None) => {
                    let next = self.next_part()?;
                    // Nobody knows how far a worn-out zone was written.
                    let may_be_the_end = next.is_none() && !self.is_writable(self.at.zone)?;
                    if may_be_the_end {
                        break;
                    }
                    self.note(what, None);
                    match next {
                        Some(next) => self.resume(next),
                        None => break,
                    }
                }
                Found::End => match self.proof_of_more()? {
                    Some((next, what)) => {
                        self.note(what, None);
                        self.resume(next);
                    }
                    None => break,
                },
            }
        }
        Ok(())
    }

    fn note(&mut self, what: String, last: Option<u64>) {
        let block = self.io.geometry.start(ZoneNumber(self.at.zone)).0 + self.at.offset;
        self.damage.push((self.found.records.len(), block, what, last));
    }

    fn resume(&mut self, next: Position) {
        self.at = next;
        self.is_chained = false;
        self.record = None;
    }

    /// Goes on behind a part.
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

    fn take(&mut self, part: &Part, content: &[u8], proof: u32) {
        if part.is_first {
            self.record = Some((part.sequence, Vec::new()));
        }
        if let Some((_, record)) = &mut self.record {
            record.extend_from_slice(content);
        }
        let before = self.at;
        self.step_over(part);
        (self.at.chain, self.is_chained) = (proof, true);
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
                self.note(what, Some(part.batch));
                self.at = after;
            }
        }
    }

    /// How much of a zone may hold something, if it can be read at all.
    fn written(&self, zone: u32) -> Result<Option<u64>> {
        let report = self.io.device.zone(ZoneNumber(zone))?;
        Ok(match report.condition {
            Condition::Offline => None,
            condition if takes_writes(condition) => Some(report.write_pointer),
            // The pointer of a worn-out zone means nothing: what is there is known by its checksum.
            _ => Some(report.capacity_blocks),
        })
    }

    fn is_writable(&self, zone: u32) -> Result<bool> {
        let zone = ZoneNumber(zone);
        let geometry = &self.io.geometry;
        let is_sequential = zone.0 < geometry.zones() && !geometry.is_conventional(zone);
        // What leads to no sequential zone is damage, not the end.
        Ok(!is_sequential || self.io.device.zone(zone)?.condition != Condition::ReadOnly)
    }

    /// Looks at a place.
    fn look(&self, at: Position) -> Result<Found> {
        let geometry = &self.io.geometry;
        let zone = ZoneNumber(at.zone);
        let damaged = |what: String| Ok(Found::Damaged(what, None));
        if at.zone >= geometry.zones() || geometry.is_conventional(zone) {
            return damaged(format!("it goes on in {zone}, which is none for a journal"));
        }
        let Some(written) = self.written(at.zone)? else {
            return damaged(format!("it goes on in {zone}, which is offline"));
        };
        if at.offset > written {
            return damaged(format!(
                "{zone} is written up to its block {written} only: what was there is gone"
            ));
        }
        if at.offset == written {
            return Ok(Found::End);
        }
        let block = geometry.start(zone).0 + at.offset;
        let first = match self.io.read(Traffic::Journal, block, geometry.block_bytes as usize) {
            Ok(first) => first,
            Err(error) => return Ok(Found::Damaged(unreadable(error)?, None)),
        };
        let part = match Part::peek(&first, block) {
            Ok(part) => part,
            Err(what) => return damaged(what),
        };
        if part.id != self.id || part.sequence != at.sequence {
            return damaged(format!(
                "part {} of a journal is where part {} must be",
                part.sequence, at.sequence
            ));
        }
        if self.is_chained && part.chain != at.chain {
            return damaged("it does not follow the part before it".into());
        }
        let blocks = part.blocks(geometry.block_bytes);
        if at.offset + blocks > written {
            // Of what a cut left, nothing is behind the write pointer.
            return if self.is_writable(at.zone)? {
                Ok(Found::End)
            } else {
                damaged("it is longer than its zone".into())
            };
        }
        let bytes = blocks as usize * geometry.block_bytes as usize;
        let opened = match self.io.read(Traffic::Journal, block, bytes) {
            Ok(node) => part.open(&node).map(|(content, proof)| (content.to_vec(), proof)),
            Err(error) => Err(unreadable(error)?),
        };
        Ok(match opened {
            Ok((content, proof)) => Found::Part(part, content, proof),
            Err(what) => Found::Damaged(what, Some(part)),
        })
    }

    /// What the part at a place says of itself, if it is a later one of this journal's.
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

    /// The next part behind damage: in the same zone, or at the beginning of another one.
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

    /// The zone of those that no tree needs that begins with the earliest of all later parts.
    fn first_elsewhere(&self) -> Result<Option<(u32, Part)>> {
        let mut first: Option<(u32, Part)> = None;
        let unused = |zone: &&super::space::SequentialZone| {
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

    /// Where the journal goes on though it seems to end here, if what is there knows that what is missing here was safe.
    fn proof_of_more(&self) -> Result<Option<(Position, String)>> {
        let Some((zone, first)) = self.first_elsewhere()? else { return Ok(None) };
        let written = self.written(zone)?.unwrap_or(0);
        let (mut offset, mut part) = (0, first);
        loop {
            let knows = part.safe > self.at.sequence || part.checkpoint > self.found.checkpoint;
            if knows {
                let what = format!(
                    "it ends here, but {} has part {} of it, which was written when part {} was safe",
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

    /// Says which batches are lost.
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

/// What a block that cannot be read is to be called; an error that is none of the medium's stays one.
pub(super) fn unreadable(error: Error) -> Result<String> {
    match error {
        Error::Device(
            DeviceError::Media { operation: Operation::Read, .. } | DeviceError::Unusable { .. },
        ) => Ok(error.to_string()),
        error => Err(error),
    }
}

/// Says which zones the journal is in.
pub(super) fn claim(space: &mut Space, zones: &[u32]) {
    for zone in &mut space.zones {
        if zones.contains(&zone.number.0) && zone.role != Role::Unusable {
            zone.role = Role::Journal;
        }
    }
}
