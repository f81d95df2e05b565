//! Errors of a map on a zoned device. Device errors are wrapped in [`Error::Device`].

use crate::device::{Block, DeviceError};
use serde::Serialize;
use std::fmt;

/// An error of an operation on a map.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device reported an error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has no free space left.
    #[error("{device} is full: {needed} blocks are needed and {free} are free; {}", full_remedy(*held))]
    Full {
        /// The device's name.
        device: String,
        /// Blocks the operation needs.
        needed: u64,
        /// Blocks that are free.
        free: u64,
        /// Blocks that only snapshots and iterators hold.
        held: u64,
    },
    /// The key length is outside the range that this map supports.
    #[error("the key has {bytes} bytes: keys of this map have {shortest} to {longest} bytes")]
    KeyLength {
        /// The length of the key, bytes.
        bytes: usize,
        /// The shortest key that the map supports.
        shortest: usize,
        /// The longest key that the map supports.
        longest: usize,
    },
    /// The value length is outside the range that this map supports.
    #[error("the value has {bytes} bytes: values of this map have {shortest} to {longest} bytes")]
    ValueLength {
        /// The length of the value, bytes.
        bytes: usize,
        /// The shortest value that the map supports.
        shortest: usize,
        /// The longest value that the map supports.
        longest: usize,
    },
    /// Another thread has changed a record that a transaction has read.
    #[error(
        "another change to the key {key} was made after the transaction had read it: run the transaction again"
    )]
    Conflict {
        /// The first key that differs, escaped.
        key: String,
    },
    /// A key or a value is not an encoding of the type as which it is read.
    #[error("the {part} {bytes} is not a {kind}: read it as the type that wrote it")]
    Encoding {
        /// "key" or "value".
        part: &'static str,
        /// The bytes, escaped.
        bytes: String,
        /// The expected type.
        kind: &'static str,
    },
    /// A block is corrupt.
    #[error("{block} is damaged: {what}; run a check, and a repair if the check finds more damage")]
    Damaged {
        /// The corrupt block.
        block: Block,
        /// A description of the damage.
        what: String,
    },
    /// The device cannot hold a map with these settings, or its map belongs to another device or version.
    #[error("{device} cannot be used: {what}")]
    Unsuitable {
        /// The device's name.
        device: String,
        /// The reason and the remedy.
        what: String,
    },
    /// The device holds no map.
    #[error("{device} holds no map: {what}")]
    NotFormatted {
        /// The device's name.
        device: String,
        /// The device's contents and the remedy.
        what: String,
    },
    /// The input of a bulk load is not in ascending key order.
    #[error(
        "the key of record {record} is not greater than the one before it: sort the records and remove duplicates"
    )]
    Unsorted {
        /// The number of the first record out of order, from 1.
        record: u64,
    },
    /// The map was closed through one handle, but other handles keep it open.
    #[error(
        "{device} is checkpointed but still open: {handles} other handles (maps, snapshots or iterators) use it; drop them first"
    )]
    StillOpen {
        /// The device's name.
        device: String,
        /// The number of other handles.
        handles: usize,
    },
    /// The map was opened before a fork, and this process is the child.
    #[error(
        "process {process} opened {device} and then forked; the child cannot write to it: open it after the fork"
    )]
    Forked {
        /// The device's name.
        device: String,
        /// The process that opened the map, the parent.
        process: u32,
    },
    /// The map is open for reading only.
    #[error("the map on {device} is open for reading only: open it for writing to change it")]
    ReadOnly {
        /// The device's name.
        device: String,
    },
    /// The state in memory violates an invariant. This is a bug in this crate.
    #[error(
        "{what}: this is a bug, please report it; reopen the map, which restores all acknowledged changes"
    )]
    Inconsistent {
        /// The violated invariant.
        what: String,
    },
    /// A journal part that was completely written can no longer be read, so its batches are lost.
    #[error("{}", journal_damaged(*block, what, lost, *later))]
    JournalDamaged {
        /// The first damaged block of the journal.
        block: Block,
        /// A description of the damage.
        what: String,
        /// The lost batches, for all damage together.
        lost: Vec<LostBatches>,
        /// The number of intact batches after the damage.
        later: u64,
    },
    /// An earlier write failed, so the state of the device is unknown.
    #[error(
        "an earlier write to {device} failed ({what}): reopen the map, which restores all acknowledged changes"
    )]
    Stopped {
        /// The device's name.
        device: String,
        /// The error message of the earlier failure.
        what: String,
    },
}

/// A run of journal batches that cannot be recovered. Batches are numbered from 1 since the map was formatted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostBatches {
    /// The first lost batch.
    pub first: u64,
    /// The last lost batch. `None` if the journal does not show where the loss ends: all batches from `first` on are
    /// lost.
    pub last: Option<u64>,
    /// The block where the damage begins.
    pub block: u64,
    /// A description of the damage.
    pub what: String,
}

impl fmt::Display for LostBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            Some(last) if last == self.first => write!(f, "batch {last}"),
            Some(last) => write!(f, "batches {} to {last}", self.first),
            None => write!(f, "batch {} and all later ones, if there are any", self.first),
        }
    }
}

fn full_remedy(held: u64) -> String {
    match held {
        0 => "delete records, or load the map into a larger device".into(),
        _ => format!(
            "snapshots and iterators hold {held} blocks: drop them, delete records, or load the map into a larger device"
        ),
    }
}

fn journal_damaged(block: Block, what: &str, lost: &[LostBatches], later: u64) -> String {
    let lost: Vec<_> = lost.iter().map(ToString::to_string).collect();
    format!(
        "{block} of the journal is damaged: {what}. The block had been written completely, so this is not the effect of a power cut. Lost: {}; {later} batches \
         after the damage are intact. Nothing was changed. A check lists all damage; a repair continues without the lost batches",
        lost.join(", ")
    )
}

/// Returns [`Error::Inconsistent`] with `what` unless `holds` is true.
pub(crate) fn ensure(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Inconsistent { what: what.into() }) }
}

/// A result whose error is [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;
