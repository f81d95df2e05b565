//! What can go wrong on a zoned device, and how the kernel's error numbers say it.
//! Not what can be wrong with a device's content: that is the index's.
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2.1 (status codes); the kernel's error numbers for them, as null_blk and
//! nvme give them: EIO for an invalid write, ETOOMANYREFS over the open limit, EOVERFLOW over the active limit.

use super::{Block, Condition, ZoneNumber};
use std::fmt;
use std::io;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Finding the device and what it is made of.
    Examine,
    /// Reading blocks.
    Read,
    /// Writing blocks, in place or at a write pointer.
    Write,
    /// Emptying a zone.
    Reset,
    /// Making a zone full.
    Finish,
    /// Opening a zone explicitly.
    Open,
    /// Closing a zone.
    Close,
    /// Making writes outlast a power cut.
    Flush,
    /// Reporting zones.
    Report,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Examine => "examine",
            Self::Read => "read",
            Self::Write => "write",
            Self::Reset => "reset",
            Self::Finish => "finish",
            Self::Open => "open",
            Self::Close => "close",
            Self::Flush => "flush",
            Self::Report => "report the zones of",
        })
    }
}

/// Why a device did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A sequential zone can be written at its write pointer only.
    #[error("{zone} can be written at its block {write_pointer} only, not at {offset}")]
    NotAtWritePointer {
        /// The zone.
        zone: ZoneNumber,
        /// Where its write pointer is, blocks from its start.
        write_pointer: u64,
        /// Where the write was, blocks from its start.
        offset: u64,
    },
    /// The zone is full.
    #[error("{zone} is full")]
    ZoneFull {
        /// The zone.
        zone: ZoneNumber,
    },
    /// The write does not fit into what is left of the zone.
    #[error("{count} blocks at block {offset} do not fit into {zone}, which holds {capacity_blocks}")]
    BeyondCapacity {
        /// The zone.
        zone: ZoneNumber,
        /// Where the write was, blocks from its start.
        offset: u64,
        /// How many blocks.
        count: u64,
        /// What the zone holds.
        capacity_blocks: u64,
    },
    /// The zone would have to be opened, and no other can be closed for it.
    #[error("{zone} cannot be opened: {limit} zones are open, which is all the device allows")]
    TooManyOpen {
        /// The zone.
        zone: ZoneNumber,
        /// The device's limit.
        limit: u32,
    },
    /// The zone would become active, and the device allows no more of them.
    #[error(
        "{zone} cannot be made active: {limit} zones are open or partly written, which is all the device allows"
    )]
    TooManyActive {
        /// The zone.
        zone: ZoneNumber,
        /// The device's limit.
        limit: u32,
    },
    /// The zone is read-only or offline: worn out.
    #[error("{zone} is {condition}: it cannot {operation}")]
    Unusable {
        /// The zone.
        zone: ZoneNumber,
        /// Read-only or offline.
        condition: Condition,
        /// What was asked.
        operation: Operation,
    },
    /// Conventional zones have no write pointer and no such operation.
    #[error("cannot {operation} {zone}: it is conventional")]
    NotSequential {
        /// The zone.
        zone: ZoneNumber,
        /// What was asked.
        operation: Operation,
    },
    /// An empty or full zone cannot be closed.
    #[error("{zone} cannot be closed: it is {condition}")]
    NotOpen {
        /// The zone.
        zone: ZoneNumber,
        /// Its condition.
        condition: Condition,
    },
    /// There is no such zone.
    #[error("there is no {zone}: the device has {zones}")]
    NoSuchZone {
        /// The zone asked for.
        zone: ZoneNumber,
        /// How many there are.
        zones: u32,
    },
    /// Blocks that the device does not have.
    #[error("cannot {operation} {count} blocks from {block} on: the device has {blocks}")]
    OutOfRange {
        /// What was asked.
        operation: Operation,
        /// The first block.
        block: Block,
        /// How many blocks.
        count: u64,
        /// How many the device has.
        blocks: u64,
    },
    /// Blocks of more than one zone at once.
    #[error("cannot {operation} {count} blocks from {block} on: they reach beyond {zone}")]
    AcrossZones {
        /// What was asked.
        operation: Operation,
        /// The first block.
        block: Block,
        /// How many blocks.
        count: u64,
        /// The first block's zone.
        zone: ZoneNumber,
    },
    /// Not a whole number of blocks.
    #[error("cannot {operation} {bytes} bytes: a block has {block_bytes}")]
    Unaligned {
        /// What was asked.
        operation: Operation,
        /// How many bytes.
        bytes: usize,
        /// The size of a block.
        block_bytes: u32,
    },
    /// The device was opened for reading.
    #[error("cannot {operation} {name}: it is open for reading only")]
    ReadOnly {
        /// The file or device.
        name: String,
        /// What was asked.
        operation: Operation,
    },
    /// The medium failed.
    #[error("the device failed to {operation} {count} blocks from {block} on")]
    Media {
        /// What was asked.
        operation: Operation,
        /// The first block.
        block: Block,
        /// How many blocks.
        count: u64,
    },
    /// The power was cut: an injected fault. Nothing works on this device any more.
    #[error("the power is off")]
    PowerCut,
    /// Not a possible device.
    #[error("not a possible device: {what}")]
    Geometry {
        /// What is wrong with it.
        what: String,
    },
    /// What is there is no device of ours, or not the one expected, or damaged.
    #[error("{name}: {what}")]
    NotUsable {
        /// The file or device.
        name: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The host's system failed.
    #[error("cannot {operation} {name}: {source}")]
    Host {
        /// The file or device.
        name: String,
        /// What was asked.
        operation: Operation,
        /// What the system said.
        source: io::Error,
    },
}
