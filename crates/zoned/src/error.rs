//! What can go wrong with a map on a zoned device, each with what, where and what to do.
//! Not what a device can say by itself: that is `device::DeviceError`, carried along here.
//! Source: our own.

use crate::device::{Block, DeviceError};

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

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
