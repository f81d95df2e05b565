//! What can go wrong with a map on a zoned device, each with what, where and what to do.
//! Not what a device can say by itself: that is `device::DeviceError`, carried along here.

use crate::device::{Block, DeviceError};
use serde::Serialize;
use std::fmt;

/// Why a map did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device said so.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has no room left.
    #[error(
        "{device} is full: {needed} blocks are needed and {free} are free; delete something, or load into a larger device"
    )]
    Full {
        /// The device's name.
        device: String,
        /// Blocks that are needed.
        needed: u64,
        /// Blocks that could be used.
        free: u64,
    },
    /// A key of a length that this map cannot hold.
    #[error("a key of {bytes} bytes: this map takes {shortest} to {longest}")]
    KeyLength {
        /// What was given.
        bytes: usize,
        /// The shortest key there may be.
        shortest: usize,
        /// The longest key there may be.
        longest: usize,
    },
    /// A value of a length that this map cannot hold.
    #[error("a value of {bytes} bytes: this map takes {shortest} to {longest}")]
    ValueLength {
        /// What was given.
        bytes: usize,
        /// The shortest value there may be.
        shortest: usize,
        /// The longest value there may be.
        longest: usize,
    },
    /// A block that does not hold what it must.
    #[error("{block} is damaged: {what}; run a check, and a repair if it finds more")]
    Damaged {
        /// Where.
        block: Block,
        /// What is wrong with it.
        what: String,
    },
    /// The device cannot hold a map, or not with these settings.
    #[error("{device} cannot hold this map: {what}")]
    Unsuitable {
        /// The device's name.
        device: String,
        /// Why, and what would do.
        what: String,
    },
    /// There is no map on the device.
    #[error("{device} holds no map: {what}")]
    NotFormatted {
        /// The device's name.
        device: String,
        /// What was found instead, and what to do.
        what: String,
    },
    /// The input to a bulk load must be in ascending order of the keys.
    #[error(
        "the key of record {record} is not greater than the one before it: sort the records and remove doubles"
    )]
    Unsorted {
        /// Which record, from 0.
        record: u64,
    },
    /// The map was opened for reading.
    #[error("the map on {device} is open for reading only: open it for writing to change it")]
    ReadOnly {
        /// The device's name.
        device: String,
    },
    /// What is in memory is not what it must be: an error of this program.
    #[error(
        "{what}: this is an error of the program, please report it; open the map again, which brings back all that was acknowledged"
    )]
    Inconsistent {
        /// What is not as it must be.
        what: String,
    },
    /// A part of the journal that had been written whole cannot be read: batches are lost with it.
    #[error("{}", journal_damaged(*block, what, lost, *later))]
    JournalDamaged {
        /// Where the journal is damaged first.
        block: Block,
        /// What is wrong there.
        what: String,
        /// The batches that are lost, all damage taken together.
        lost: Vec<LostBatches>,
        /// How many batches after the damage are whole.
        later: u64,
    },
    /// An earlier write failed, so that it is not known what the device holds.
    #[error(
        "an earlier write to {device} failed ({what}): open it again, which brings back all that was acknowledged"
    )]
    Stopped {
        /// The device's name.
        device: String,
        /// The earlier failure.
        what: String,
    },
}

/// Batches of the journal that cannot be brought back. Batches are numbered from 1 since the map was formatted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostBatches {
    /// The first one.
    pub first: u64,
    /// The last one. Without, nothing of the journal is left that would tell: all from the first one on.
    pub last: Option<u64>,
    /// The block where the damage begins.
    pub block: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for LostBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            Some(last) if last == self.first => write!(f, "batch {last}"),
            Some(last) => write!(f, "batches {} to {last}", self.first),
            None => write!(f, "batch {} and what came after it, if anything did", self.first),
        }
    }
}

fn journal_damaged(block: Block, what: &str, lost: &[LostBatches], later: u64) -> String {
    let lost: Vec<_> = lost.iter().map(ToString::to_string).collect();
    format!(
        "{block} of the journal is damaged: {what}. It had been written whole, so that batches are lost with it: {}; {later} batches after the \
         damage are whole. Nothing was changed. A check lists all damage; a repair goes on without the lost batches",
        lost.join(", ")
    )
}

/// Makes what must hold an error where it does not.
pub(crate) fn ensure(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Inconsistent { what: what.into() }) }
}

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
