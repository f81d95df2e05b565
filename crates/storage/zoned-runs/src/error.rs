//! Errors of a map of sorted runs. Device errors are wrapped in [`Error::Device`].

use longma_zoned_device::{Block, DeviceError};
use serde::Serialize;
use std::fmt;

/// An error of an operation on a map.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device reported an error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has no room for more records. Deletions and reads still succeed.
    #[error("{device} is full: {free} zones are free and {reserve} are kept for deletions and merges; {}", full_remedy(*.is_merging))]
    Full {
        /// The device's name.
        device: String,
        /// Zones that are free.
        free: u64,
        /// Zones that only deletions and merges may use.
        reserve: u64,
        /// Whether a merge is in progress that removes deleted and replaced records. Each call does a part of it.
        is_merging: bool,
    },
    /// The key is too long.
    #[error("the key has {bytes} bytes: keys of this map have at most {longest}")]
    KeyLength {
        /// The length of the key, bytes.
        bytes: usize,
        /// The longest key, bytes.
        longest: usize,
    },
    /// The value is too long.
    #[error("the value has {bytes} bytes: values of this map have at most {longest}")]
    ValueLength {
        /// The length of the value, bytes.
        bytes: usize,
        /// The longest value, bytes.
        longest: usize,
    },
    /// The batch is too long: it must fit into one zone and a quarter of the write buffer.
    #[error("the batch has {bytes} bytes: batches of this map have at most {longest}; split it")]
    BatchLength {
        /// The length of the encoded batch, bytes.
        bytes: usize,
        /// The longest batch, bytes.
        longest: usize,
    },
    /// A block is damaged: its checksum or its contents are wrong.
    #[error("{block} is damaged: {what}; other records can still be read: copy them to another device")]
    Damaged {
        /// The first damaged block.
        block: Block,
        /// A description of the damage.
        what: String,
    },
    /// Parts of the log that were completely written can no longer be read, so their batches are lost.
    #[error("{}", log_damaged(lost, *intact))]
    LogDamaged {
        /// The lost batches, in order.
        lost: Vec<LostBatches>,
        /// The number of intact batches in the log.
        intact: u64,
    },
    /// The device cannot hold a map, or its map belongs to another device or version.
    #[error("{device} cannot be used: {what}")]
    Unsuitable {
        /// The device's name.
        device: String,
        /// The reason and the remedy.
        what: String,
    },
    /// The device holds no map of sorted runs.
    #[error("{device} holds no map of sorted runs: {what}")]
    NotFormatted {
        /// The device's name.
        device: String,
        /// The device's contents and the remedy.
        what: String,
    },
    /// The map is open for reading only.
    #[error("the map on {device} is open for reading only: open it for writing to change it")]
    ReadOnly {
        /// The device's name.
        device: String,
    },
    /// The map was opened before a fork, and this process is the child.
    #[error(
        "process {process} opened {device} and then forked; the child cannot write to it: open it after the fork"
    )]
    Forked {
        /// The device's name.
        device: String,
        /// The process that opened the map.
        process: u32,
    },
    /// The map was closed through one handle, but others keep it open.
    #[error("{device} is closed for writing but still open: {handles} other handles use it; drop them first")]
    StillOpen {
        /// The device's name.
        device: String,
        /// The number of other handles: maps, snapshots or iterators.
        handles: usize,
    },
    /// An earlier write or merge failed, so the map accepts no more changes.
    #[error(
        "an earlier write to {device} failed ({what}): open the map again, which restores all acknowledged changes"
    )]
    Stopped {
        /// The device's name.
        device: String,
        /// The message of the earlier error.
        what: String,
    },
}

/// Consecutive batches that cannot be recovered. Batches are numbered from 1 since the map was formatted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostBatches {
    /// The first lost batch.
    pub first: u64,
    /// The last lost batch. `None` if all batches from `first` on are lost.
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

fn log_damaged(lost: &[LostBatches], intact: u64) -> String {
    let all: Vec<_> = lost.iter().map(ToString::to_string).collect();
    let first = lost.first().map_or_else(String::new, |lost| {
        format!("block {} of the log is damaged: {}. ", lost.block, lost.what)
    });
    format!(
        "{first}The block had been written completely, so this is not the effect of a power cut. Lost: {}; {intact} batches of the \
         log are intact. Nothing was changed. A repair continues without the lost batches",
        all.join(", ")
    )
}

const fn full_remedy(is_merging: bool) -> &'static str {
    if is_merging {
        "a merge is making room: try again, each attempt continues it"
    } else {
        "delete records, or load the map into a larger device"
    }
}

/// A result whose error is [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Returns [`Error::Damaged`].
pub(crate) fn damaged(block: u64, what: impl Into<String>) -> Error {
    Error::Damaged { block: Block(block), what: what.into() }
}
