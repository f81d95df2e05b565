//! Zoned devices: zones, their conditions and limits, and the operations on them. All access goes through [`ZonedDevice`].
//!
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2 (zones); the Linux kernel's Documentation/block (zoned
//! devices).

mod buffer;
mod counted;
mod error;
mod faulty;
mod file;
mod kernel;
mod memory;
mod null;
mod power_cut;
mod zones;

pub use buffer::AlignedBuffer;
pub use counted::{Counted, Counts};
pub use error::{DeviceError, Operation};
pub use faulty::{Fault, FaultyDevice};
pub use file::{FileDevice, StatesRepair};
pub use kernel::KernelDevice;
pub use memory::MemoryDevice;
pub use null::NullDevice;
pub use power_cut::{Change, Cut, Fate, Recording};
pub use zones::{Span, ZoneTable};

use serde::Serialize;
use std::fmt;

/// A block number on a device. Zones are contiguous, each `zone_blocks` long, and conventional zones come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Block(pub u64);

/// A zone number on a device, from 0. Conventional zones come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ZoneNumber(pub u32);

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

impl fmt::Display for ZoneNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {}", self.0)
    }
}

/// The layout and the limits of a device. The device may be a pair of a conventional part (zones
/// `0..conventional_zones`) and a sequential part, for drives that have only sequential zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// The unit of reads and writes, bytes: a power of two from 512 to 65536.
    pub block_bytes: u32,
    /// The distance between the starts of two adjacent zones, blocks.
    pub zone_blocks: u64,
    /// The writable size of a sequential zone, blocks: at most `zone_blocks`.
    pub zone_capacity_blocks: u64,
    /// The number of zones that can be overwritten in place.
    pub conventional_zones: u32,
    /// The number of zones that can be written only at their write pointer.
    pub sequential_zones: u32,
    /// The maximum number of open sequential zones; 0 means unlimited.
    pub max_open_zones: u32,
    /// The maximum number of active (open or closed, that is, partly written) sequential zones; 0 means unlimited.
    pub max_active_zones: u32,
}

impl Geometry {
    /// A geometry for a device in a file or in memory whose sequential zones have `bytes` bytes together, or slightly more:
    /// blocks of 4 KiB, zones of 1 to 64 MiB, at least 16 of them, and one conventional zone for each 16.
    pub fn with_capacity(bytes: u64) -> Self {
        let blocks = bytes.div_ceil(4096);
        let zone_blocks = (blocks / 128).next_power_of_two().clamp(256, 16384);
        let sequential_zones = blocks.div_ceil(zone_blocks).clamp(16, 1 << 22) as u32;
        Self {
            block_bytes: 4096,
            zone_blocks,
            zone_capacity_blocks: zone_blocks,
            conventional_zones: (sequential_zones / 16).max(2),
            sequential_zones,
            max_open_zones: 0,
            max_active_zones: 0,
        }
    }

    /// The number of zones.
    pub const fn zones(&self) -> u32 {
        self.conventional_zones + self.sequential_zones
    }

    /// The number of blocks, including those beyond the capacity of a zone.
    pub const fn blocks(&self) -> u64 {
        self.zones() as u64 * self.zone_blocks
    }

    /// The first block of `zone`.
    pub const fn start(&self, zone: ZoneNumber) -> Block {
        Block(zone.0 as u64 * self.zone_blocks)
    }

    /// The zone that contains `block`. It may be beyond the end of the device.
    pub const fn zone_of(&self, block: Block) -> ZoneNumber {
        ZoneNumber((block.0 / self.zone_blocks) as u32)
    }

    /// Whether `zone` is conventional, that is, can be overwritten in place.
    pub const fn is_conventional(&self, zone: ZoneNumber) -> bool {
        zone.0 < self.conventional_zones
    }

    /// The usable size of `zone`, blocks.
    pub const fn capacity_blocks(&self, zone: ZoneNumber) -> u64 {
        if self.is_conventional(zone) { self.zone_blocks } else { self.zone_capacity_blocks }
    }

    /// All sequential zones, in order.
    pub fn sequential(&self) -> impl Iterator<Item = ZoneNumber> + use<> {
        (self.conventional_zones..self.zones()).map(ZoneNumber)
    }

    /// Checks that the geometry is valid.
    ///
    /// # Errors
    /// [`DeviceError::Geometry`] with the reason.
    pub fn check(&self) -> Result<(), DeviceError> {
        let wrong = |what: String| Err(DeviceError::Geometry { what });
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return wrong(format!(
                "blocks of {} bytes: give a power of two from 512 to 65536",
                self.block_bytes
            ));
        }
        if self.zone_blocks == 0 || self.zone_capacity_blocks == 0 {
            return wrong("zones must have at least one block".into());
        }
        if self.zone_capacity_blocks > self.zone_blocks {
            return wrong(format!(
                "a zone capacity of {} blocks is not possible in zones of {}",
                self.zone_capacity_blocks, self.zone_blocks
            ));
        }
        let zones = u64::from(self.conventional_zones) + u64::from(self.sequential_zones);
        if zones == 0 || zones > u64::from(u32::MAX) {
            return wrong(format!("{zones} zones"));
        }
        let bytes = zones.checked_mul(self.zone_blocks).and_then(|b| b.checked_mul(self.block_bytes.into()));
        if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
            return wrong("the device is larger than the largest file offset".into());
        }
        if self.max_open_zones > 0 && self.max_active_zones > 0 && self.max_open_zones > self.max_active_zones
        {
            return wrong(format!(
                "the limit of {} open zones is greater than the limit of {} active zones",
                self.max_open_zones, self.max_active_zones
            ));
        }
        Ok(())
    }
}

/// A zone's condition (Zoned Namespace Command Set 1.1, section 2.1.1.3; the kernel's `enum blk_zone_cond`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// A conventional zone, which has no write pointer.
    Conventional,
    /// Empty since the last reset.
    Empty,
    /// Opened by a write. The device may close it to open another zone.
    ImplicitlyOpen,
    /// Opened by [`ZonedDevice::open`]. Only the host closes it.
    ExplicitlyOpen,
    /// Partly written and not open.
    Closed,
    /// Written to its capacity, or finished.
    Full,
    /// Worn out: reads still work, writes fail.
    ReadOnly,
    /// Worn out: reads and writes fail.
    Offline,
}

impl Condition {
    /// Whether the zone counts against the limit on open zones.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::ImplicitlyOpen | Self::ExplicitlyOpen)
    }

    /// Whether the zone counts against the limit on active zones.
    pub const fn is_active(self) -> bool {
        self.is_open() || matches!(self, Self::Closed)
    }

    /// The name of the condition in messages and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conventional => "conventional",
            Self::Empty => "empty",
            Self::ImplicitlyOpen => "implicitly-open",
            Self::ExplicitlyOpen => "explicitly-open",
            Self::Closed => "closed",
            Self::Full => "full",
            Self::ReadOnly => "read-only",
            Self::Offline => "offline",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A zone report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// The zone number.
    pub number: ZoneNumber,
    /// The first block of the zone.
    pub start: Block,
    /// The usable size of the zone, blocks.
    pub capacity_blocks: u64,
    /// The condition of the zone.
    pub condition: Condition,
    /// The position of the next write, blocks from `start`. For a full zone this is `capacity_blocks`, independent of
    /// the device's report, and for a conventional zone 0. It is meaningless for a read-only or offline zone.
    pub write_pointer: u64,
    /// The number of resets, if the device counts them.
    pub resets: Option<u64>,
}

impl Zone {
    /// The number of blocks that can still be written.
    pub const fn room_blocks(&self) -> u64 {
        match self.condition {
            Condition::Conventional => self.capacity_blocks,
            Condition::Full | Condition::ReadOnly | Condition::Offline => 0,
            _ => self.capacity_blocks - self.write_pointer,
        }
    }
}

/// A read that can be submitted together with others.
pub struct Read<'a> {
    /// The first block.
    pub block: Block,
    /// The destination; a whole number of blocks.
    pub buffer: &'a mut [u8],
}

/// A write that can be submitted together with others.
pub struct Write<'a> {
    /// The first block.
    pub block: Block,
    /// The data; a whole number of blocks.
    pub data: &'a [u8],
}

/// A zoned device.
///
/// All implementations guarantee:
/// - A read or write is a whole number of blocks, at least one, inside one zone.
/// - Blocks at or beyond the write pointer of a sequential zone can be read, but their contents are undefined.
/// - Once a write has returned, every later read sees it. It survives a power cut only if a [`ZonedDevice::flush`] that
///   began after it has returned. Until then, a power cut may lose any conventional write, completely or in units of
///   512 bytes, and in each sequential zone the last writes, so that the write pointer afterwards is at the first lost
///   block. Zones are independent of each other.
/// - A [`ZonedDevice::reset`] or [`ZonedDevice::finish`] that has returned survives a power cut; a finish also makes
///   the contents of its zone durable. After a power cut no zone is open.
/// - After an error nothing has been written, except that a write that failed with [`DeviceError::Media`] or
///   [`DeviceError::Host`] may have been written in part; [`ZonedDevice::zone`] reports the write pointer.
///
/// Several threads may use a device concurrently. Two concurrent writes to the same sequential zone take effect in
/// either order, so the second may fail. Concurrent calls of [`ZonedDevice::append`] both succeed.
pub trait ZonedDevice: Send + Sync {
    /// The geometry of the device.
    fn geometry(&self) -> Geometry;

    /// Reports one zone.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Host`] from a real device.
    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError>;

    /// Reports all zones, in order.
    ///
    /// # Errors
    /// [`DeviceError::Host`] from a real device.
    fn zones(&self) -> Result<Vec<Zone>, DeviceError> {
        (0..self.geometry().zones()).map(|number| self.zone(ZoneNumber(number))).collect()
    }

    /// Reads from `block` on until `buffer`, a whole number of blocks, is full.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`], [`DeviceError::AcrossZones`], [`DeviceError::Unusable`]
    /// for an offline zone, [`DeviceError::Media`].
    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data`, a whole number of blocks, at `block`. In a conventional zone that may be any block; in a
    /// sequential zone it must be the write pointer, and the write opens the zone implicitly.
    ///
    /// # Errors
    /// Those of [`ZonedDevice::read`], and [`DeviceError::NotAtWritePointer`], [`DeviceError::ZoneFull`],
    /// [`DeviceError::BeyondCapacity`], [`DeviceError::TooManyOpen`], [`DeviceError::TooManyActive`],
    /// [`DeviceError::Unusable`].
    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError>;

    /// Writes `data` at the write pointer of a sequential zone and returns the first block written.
    ///
    /// # Errors
    /// Those of [`ZonedDevice::write`]; [`DeviceError::NotSequential`].
    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError>;

    /// Resets a sequential zone: it becomes empty, and its write pointer returns to its start.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`], [`DeviceError::NotSequential`], [`DeviceError::Unusable`], [`DeviceError::Media`].
    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Finishes a sequential zone: it becomes full, and is neither open nor active then.
    ///
    /// # Errors
    /// Those of [`ZonedDevice::reset`]. Finishing an empty or closed zone opens it first: [`DeviceError::TooManyOpen`],
    /// [`DeviceError::TooManyActive`].
    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Opens a sequential zone explicitly. It stays open until it is closed, finished, filled or reset.
    ///
    /// # Errors
    /// Those of [`ZonedDevice::finish`]; [`DeviceError::ZoneFull`].
    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Closes an open sequential zone. If nothing has been written to it, it becomes empty.
    ///
    /// # Errors
    /// Those of [`ZonedDevice::reset`]; [`DeviceError::NotOpen`] for an empty or full zone.
    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Makes all data written before this call durable.
    ///
    /// # Errors
    /// [`DeviceError::Host`]: data written since the last flush may be lost, even if a later flush succeeds.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Hints that the blocks will not be read before they are rewritten or their zone is reset; their contents are
    /// undefined from then on. A device in memory frees their memory. Other devices ignore the hint.
    fn forget(&self, _block: Block, _blocks: u64) {}

    /// Performs several reads, concurrently if the device supports it.
    ///
    /// # Errors
    /// The first error of [`ZonedDevice::read`] in the given order; the contents of the other buffers are undefined.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        reads.iter_mut().try_for_each(|read| self.read(read.block, read.buffer))
    }

    /// Performs several writes, concurrently if the device supports it. Writes to the same sequential zone happen in
    /// the given order.
    ///
    /// # Errors
    /// The first error of [`ZonedDevice::write`] in the given order; later writes may or may not have been performed.
    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        writes.iter().try_for_each(|write| self.write(write.block, write.data))
    }

    /// The name of the device in messages, for example its path.
    fn name(&self) -> String;
}

impl<D: ZonedDevice + ?Sized> ZonedDevice for std::sync::Arc<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }
    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        (**self).zone(zone)
    }
    fn zones(&self) -> Result<Vec<Zone>, DeviceError> {
        (**self).zones()
    }
    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read(block, buffer)
    }
    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        (**self).write(block, data)
    }
    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        (**self).append(zone, data)
    }
    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        (**self).reset(zone)
    }
    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        (**self).finish(zone)
    }
    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        (**self).open(zone)
    }
    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        (**self).close(zone)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        (**self).flush()
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        (**self).read_many(reads)
    }
    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        (**self).write_many(writes)
    }
    fn forget(&self, block: Block, blocks: u64) {
        (**self).forget(block, blocks);
    }
    fn name(&self) -> String {
        (**self).name()
    }
}
