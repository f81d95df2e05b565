//! Reads the log back, and distinguishes a torn end from damage.
//!
//! A power cut leaves the write pointer of a zone at the first lost block, so each part before the write pointer was
//! written completely: if such a part cannot be read, it is damaged. Only the last part can be torn. Batches are
//! numbered consecutively, so the parts on both sides of damage show which batches are lost.

use crate::batch::Batch;
use crate::error::{Error, LostBatches, Result, damaged};
use crate::io::Io;
use crate::log::{HEADER_BYTES, Header, pages};
use crate::zones::Zones;
use longma_zoned_device::{DeviceError, ZoneNumber, ZonedDevice};
use std::ops::Range;

/// The contents of the log.
#[derive(Debug, Default)]
pub struct LogContents {
    /// The number after the last batch.
    pub next: u64,
    /// The number of intact batches from the first one that the tables do not hold.
    pub batches: u64,
    /// The batches that were written and cannot be read.
    pub lost: Vec<LostBatches>,
}

impl LogContents {
    /// The error for a damaged log, if it is damaged.
    pub fn damage(&self) -> Option<Error> {
        (!self.lost.is_empty()).then(|| Error::LogDamaged { lost: self.lost.clone(), intact: self.batches })
    }
}

/// The result of examining a block of the log.
enum LogBlock {
    Part {
        number: u64,
        blocks: u64,
        batch: Batch,
    },
    /// A part whose end a power cut or a failed write has cut off.
    Torn,
    /// A part with an intact header and a damaged batch.
    Damaged {
        number: u64,
        blocks: u64,
        what: String,
    },
    /// No header of this map. If the zone was finished, the log may end before this block.
    NoHeader {
        is_damage: bool,
        what: String,
    },
}

/// Reads the log in `log_zones`, and calls `visit` with each batch from number `next` on. Batches after damage are visited
/// too.
///
/// # Errors
/// [`Error::Device`] if the device does not respond; errors of `visit`. Damage is reported in the result.
pub fn read<D: ZonedDevice>(
    io: &Io<D>,
    zones: &Zones,
    log_zones: &[u32],
    next: u64,
    mut visit: impl FnMut(u64, Batch) -> Result<()>,
) -> Result<LogContents> {
    let mut found = LogContents { next, ..LogContents::default() };
    let mut damage: Option<Damage> = None;
    for (number, &zone) in log_zones.iter().enumerate() {
        let start = io.geometry.start(ZoneNumber(zone)).0;
        let Some(index) = zones.index_of(ZoneNumber(zone)) else {
            return Err(damaged(
                start,
                "the manifest lists it as part of the log, but the device has no such zone",
            ));
        };
        let is_last = number + 1 == log_zones.len();
        let (mut at, end) = (start, start + zones.zones[index].written);
        while at + io.page_blocks <= end {
            match examine(io, at, end, is_last)? {
                LogBlock::Part { number, blocks, batch } => {
                    if number > found.next {
                        let what =
                            || format!("batch {number} was found where batch {} was expected", found.next);
                        let (block, what) = match damage.take() {
                            Some(damage) => (damage.block, damage.what),
                            None => (at, what()),
                        };
                        let last = Some(number - 1);
                        found.lost.push(LostBatches { first: found.next, last, block, what });
                    }
                    damage = None;
                    if number >= found.next {
                        found.batches += 1;
                        found.next = number + 1;
                        visit(number, batch)?;
                    }
                    at += blocks;
                }
                LogBlock::Torn => break,
                LogBlock::Damaged { number, blocks, what } => {
                    if number >= found.next {
                        let first = Damage { block: at, what, last: Some(number) };
                        let damage = damage.get_or_insert(first);
                        damage.last = damage.last.map(|last| last.max(number));
                    }
                    at += blocks;
                }
                LogBlock::NoHeader { is_damage, what } => {
                    if is_damage {
                        damage.get_or_insert(Damage { block: at, what, last: None }).last = None;
                    }
                    at += io.page_blocks;
                }
            }
        }
    }
    if let Some(Damage { block, what, last }) = damage {
        found.lost.push(LostBatches { first: found.next, last, block, what });
        found.next = last.map_or(found.next, |last| last + 1);
    }
    Ok(found)
}

/// Damage after the last intact part so far.
struct Damage {
    block: u64,
    what: String,
    /// The last affected batch, if the headers show it.
    last: Option<u64>,
}

/// Examines block `at` of a zone that was written up to `end`.
fn examine<D: ZonedDevice>(io: &Io<D>, at: u64, end: u64, is_last: bool) -> Result<LogBlock> {
    let front = match io.read(at, 1) {
        Ok(front) => front,
        Err(error) => return Ok(LogBlock::NoHeader { is_damage: true, what: unreadable(error)? }),
    };
    let Some(header) = Header::decode(&front).filter(|header| header.map == io.map && header.block == at)
    else {
        let is_damage = is_last || Header::resembles(&front, io.map, at);
        return Ok(LogBlock::NoHeader { is_damage, what: "the header of a part of the log is wrong".into() });
    };
    let blocks = pages(header.bytes as usize, io.page_bytes) * io.page_blocks;
    if at + blocks > end {
        return Ok(LogBlock::Torn);
    }
    let all = match io.read(at, (blocks / io.page_blocks) as usize) {
        Ok(all) => all,
        Err(error) => {
            return Ok(LogBlock::Damaged { number: header.batch, blocks, what: unreadable(error)? });
        }
    };
    let bytes = &all[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
    let batch = Batch::decode(bytes).filter(|_| crc32c::crc32c(bytes) == header.checksum);
    Ok(match batch {
        Some(batch) => LogBlock::Part { number: header.batch, blocks, batch },
        None => LogBlock::Damaged {
            number: header.batch,
            blocks,
            what: "the checksum of a batch in the log is wrong".into(),
        },
    })
}

/// Describes an unreadable block. Device errors other than media errors are passed on.
fn unreadable(error: Error) -> Result<String> {
    match error {
        Error::Device(DeviceError::Media { .. } | DeviceError::Unusable { .. }) => Ok(error.to_string()),
        error => Err(error),
    }
}

/// The first of these blocks that contains the header of a batch with a number of at least `next`. The manifest does
/// not name the blocks' zone, so such a header shows that a newer manifest is lost.
pub fn newer_log<D: ZonedDevice>(io: &Io<D>, blocks: Range<u64>, next: u64) -> Result<Option<u64>> {
    for block in blocks.step_by(io.page_blocks as usize) {
        let front = match io.read(block, 1) {
            Ok(front) => front,
            Err(error) => {
                unreadable(error)?;
                continue;
            }
        };
        let header = Header::decode(&front);
        if header.is_some_and(|header| header.map == io.map && header.block == block && header.batch >= next)
        {
            return Ok(Some(block));
        }
    }
    Ok(None)
}
