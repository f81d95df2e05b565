//! Errors of zoned devices.
//!
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2.1 (status codes), and the kernel's error numbers for them as
//! null_blk and nvme return them: EIO for an invalid write, ETOOMANYREFS over the open limit, EOVERFLOW over the active
//! limit.

use super::{Block, Condition, ZoneNumber};
use std::fmt;
use std::io;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Detecting the device and its geometry.
    Examine,
    /// Reading blocks.
    Read,
    /// Writing blocks, in place or at the write pointer.
    Write,
    /// Resetting a zone.
    Reset,
    /// Finishing a zone.
    Finish,
    /// Opening a zone explicitly.
    Open,
    /// Closing a zone.
    Close,
    /// Flushing writes to stable storage.
    Flush,
    /// Reporting zones.
    Report,
    /// Allocating space in the file system.
    Allocate,
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
            Self::Allocate => "allocate space for",
        })
    }
}

/// An error of a zoned device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The write is not at the write pointer of its sequential zone.
    #[error("{zone} must be written at its write pointer, block {write_pointer}, not at {offset}")]
    NotAtWritePointer {
        /// The zone.
        zone: ZoneNumber,
        /// The write pointer, blocks from the start of the zone.
        write_pointer: u64,
        /// The position of the write, blocks from the start of the zone.
        offset: u64,
    },
    /// The zone is full.
    #[error("{zone} is full")]
    ZoneFull {
        /// The zone.
        zone: ZoneNumber,
    },
    /// The write extends beyond the capacity of the zone.
    #[error("{count} blocks at block {offset} do not fit into {zone}, which has {capacity_blocks}")]
    BeyondCapacity {
        /// The zone.
        zone: ZoneNumber,
        /// The position of the write, blocks from the start of the zone.
        offset: u64,
        /// The length of the write, blocks.
        count: u64,
        /// The capacity of the zone, blocks.
        capacity_blocks: u64,
    },
    /// The limit on open zones is reached, and no open zone can be closed implicitly.
    #[error("{zone} cannot be opened: {limit} zones are open, the device's limit")]
    TooManyOpen {
        /// The zone.
        zone: ZoneNumber,
        /// The limit of the device.
        limit: u32,
    },
    /// The limit on active zones is reached.
    #[error("{zone} cannot be made active: {limit} zones are open or partly written, the device's limit")]
    TooManyActive {
        /// The zone.
        zone: ZoneNumber,
        /// The limit of the device.
        limit: u32,
    },
    /// The zone is worn out.
    #[error("{zone} is {condition}: it cannot {operation}")]
    Unusable {
        /// The zone.
        zone: ZoneNumber,
        /// Read-only or offline.
        condition: Condition,
        /// The operation requested.
        operation: Operation,
    },
    /// The operation applies only to sequential zones.
    #[error("cannot {operation} {zone}: it is conventional")]
    NotSequential {
        /// The zone.
        zone: ZoneNumber,
        /// The operation requested.
        operation: Operation,
    },
    /// The zone is empty or full, so it cannot be closed.
    #[error("{zone} cannot be closed: it is {condition}")]
    NotOpen {
        /// The zone.
        zone: ZoneNumber,
        /// Its condition.
        condition: Condition,
    },
    /// The zone number is out of range.
    #[error("there is no {zone}: the device has {zones}")]
    NoSuchZone {
        /// The zone requested.
        zone: ZoneNumber,
        /// The number of zones.
        zones: u32,
    },
    /// The block range extends beyond the device.
    #[error("cannot {operation} {count} blocks from {block} on: the device has {blocks}")]
    OutOfRange {
        /// The operation requested.
        operation: Operation,
        /// The first block.
        block: Block,
        /// The number of blocks.
        count: u64,
        /// The size of the device, blocks.
        blocks: u64,
    },
    /// The block range spans several zones.
    #[error("cannot {operation} {count} blocks from {block} on: they extend beyond {zone}")]
    AcrossZones {
        /// The operation requested.
        operation: Operation,
        /// The first block.
        block: Block,
        /// The number of blocks.
        count: u64,
        /// The zone of the first block.
        zone: ZoneNumber,
    },
    /// The length is zero or not a multiple of the block size.
    #[error("cannot {operation} {bytes} bytes: not a multiple of the block size of {block_bytes}")]
    Unaligned {
        /// The operation requested.
        operation: Operation,
        /// The length, bytes.
        bytes: usize,
        /// The block size, bytes.
        block_bytes: u32,
    },
    /// The device is open for reading only.
    #[error("cannot {operation} {name}: it is open for reading only")]
    ReadOnly {
        /// The path of the file or device.
        name: String,
        /// The operation requested.
        operation: Operation,
    },
    /// The medium failed.
    #[error("the device failed to {operation} {count} blocks from {block} on")]
    Media {
        /// The operation requested.
        operation: Operation,
        /// The first block.
        block: Block,
        /// The number of blocks.
        count: u64,
    },
    /// The power was cut by fault injection. All further operations fail.
    #[error("the power is off")]
    PowerCut,
    /// The geometry is invalid.
    #[error("invalid device geometry: {what}")]
    Geometry {
        /// The reason.
        what: String,
    },
    /// The file or device is not a supported zoned device, is not the expected one, or is damaged.
    #[error("{name}: {what}")]
    NotUsable {
        /// The path of the file or device.
        name: String,
        /// The problem and its remedy.
        what: String,
    },
    /// A system call failed.
    #[error("cannot {operation} {name}: {source}")]
    Host {
        /// The path of the file or device.
        name: String,
        /// The operation requested.
        operation: Operation,
        /// The error of the system call.
        source: io::Error,
    },
}
