//! What a zoned device is: zones, their states and limits, and the few things that can be done with them. The one boundary
//! between the index and any hardware.
//! Not a device: those are in `device/`. Not a layout of the zones' contents: that is the index's.
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2 (zones); the Linux kernel's Documentation/block (zoned devices).

mod blank;
mod buffer;
mod counted;
mod error;
mod faulty;
mod file;
mod kernel;
mod memory;
mod power_cut;
mod zones;

pub use blank::BlankDevice;
pub use buffer::AlignedBuffer;
pub use counted::{Counted, Counts};
pub use error::{DeviceError, Operation};
pub use faulty::{Fault, FaultyDevice};
pub use file::{FileDevice, StatesRepair};
pub use kernel::KernelDevice;
pub use memory::MemoryDevice;
pub use power_cut::{Change, Cut, Fate, Recording};
pub use zones::{Span, ZoneTable};

use serde::Serialize;
use std::fmt;

/// The number of a block on a device: zones follow each other without gaps, each `zone_blocks` long, conventional ones first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Block(pub u64);

/// The number of a zone on a device, from 0; conventional zones come first.
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

/// What a device is made of. It may be one device, or a pair: a conventional part (zones `0..conventional_zones`) and a
/// sequential part, as drives that only have sequential zones need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// The unit of reading and writing, bytes: a power of two from 512 to 65536.
    pub block_bytes: u32,
    /// How far apart zones begin, blocks.
    pub zone_blocks: u64,
    /// How much of a sequential zone can be written, blocks: at most `zone_blocks`.
    pub zone_capacity_blocks: u64,
    /// Zones that are written in place.
    pub conventional_zones: u32,
    /// Zones that are written at their write pointer only.
    pub sequential_zones: u32,
    /// How many sequential zones may be open at once; 0 for any number.
    pub max_open_zones: u32,
    /// How many may be open or closed (partly written) at once; 0 for any number.
    pub max_active_zones: u32,
}

impl Geometry {
    /// How many zones there are.
    pub const fn zones(&self) -> u32 {
        self.conventional_zones + self.sequential_zones
    }

    /// How many blocks there are, those beyond a zone's capacity included.
    pub const fn blocks(&self) -> u64 {
        self.zones() as u64 * self.zone_blocks
    }

    /// Where `zone` begins.
    pub const fn start(&self, zone: ZoneNumber) -> Block {
        Block(zone.0 as u64 * self.zone_blocks)
    }

    /// The zone that `block` is in; it may be beyond the device.
    pub const fn zone_of(&self, block: Block) -> ZoneNumber {
        ZoneNumber((block.0 / self.zone_blocks) as u32)
    }

    /// Whether `zone` is written in place.
    pub const fn is_conventional(&self, zone: ZoneNumber) -> bool {
        zone.0 < self.conventional_zones
    }

    /// How much of `zone` can be used, blocks.
    pub const fn capacity_blocks(&self, zone: ZoneNumber) -> u64 {
        if self.is_conventional(zone) { self.zone_blocks } else { self.zone_capacity_blocks }
    }

    /// All sequential zones, in order.
    pub fn sequential(&self) -> impl Iterator<Item = ZoneNumber> + use<> {
        (self.conventional_zones..self.zones()).map(ZoneNumber)
    }

    /// Whether this can be a device at all.
    ///
    /// # Errors
    /// [`DeviceError::Geometry`] says what is wrong.
    pub fn check(&self) -> Result<(), DeviceError> {
        let wrong = |what: String| Err(DeviceError::Geometry { what });
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return wrong(format!(
                "blocks of {} bytes: give a power of two from 512 to 65536",
                self.block_bytes
            ));
        }
        if self.zone_blocks == 0 || self.zone_capacity_blocks == 0 {
            return wrong("zones without blocks".into());
        }
        if self.zone_capacity_blocks > self.zone_blocks {
            return wrong(format!(
                "a zone capacity of {} blocks in zones of {}",
                self.zone_capacity_blocks, self.zone_blocks
            ));
        }
        let zones = u64::from(self.conventional_zones) + u64::from(self.sequential_zones);
        if zones == 0 || zones > u64::from(u32::MAX) {
            return wrong(format!("{zones} zones"));
        }
        let bytes = zones.checked_mul(self.zone_blocks).and_then(|b| b.checked_mul(self.block_bytes.into()));
        if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
            return wrong("more bytes than a file offset can count".into());
        }
        if self.max_open_zones > 0 && self.max_active_zones > 0 && self.max_open_zones > self.max_active_zones
        {
            return wrong(format!(
                "{} zones may be open but only {} active",
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
    /// A conventional zone: it has no write pointer.
    Conventional,
    /// Nothing was written since the last reset.
    Empty,
    /// Opened by a write; the device may close it to open another.
    ImplicitlyOpen,
    /// Opened by [`ZonedDevice::open`]; only the host closes it.
    ExplicitlyOpen,
    /// Partly written, and not open.
    Closed,
    /// Written to its capacity, or finished.
    Full,
    /// Worn out: it can be read only.
    ReadOnly,
    /// Worn out: it can be neither read nor written.
    Offline,
}

impl Condition {
    /// Whether it counts against the limit on open zones.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::ImplicitlyOpen | Self::ExplicitlyOpen)
    }

    /// Whether it counts against the limit on active zones.
    pub const fn is_active(self) -> bool {
        self.is_open() || matches!(self, Self::Closed)
    }

    /// Its name, as messages and reports give it.
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

/// A zone as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// Which one.
    pub number: ZoneNumber,
    /// Where it begins.
    pub start: Block,
    /// How much of it can be used, blocks.
    pub capacity_blocks: u64,
    /// Its condition.
    pub condition: Condition,
    /// Where the next write must go, blocks from `start`. Of a full zone it is `capacity_blocks`, whatever the device says, of a
    /// conventional one 0; of a read-only or offline zone it means nothing.
    pub write_pointer: u64,
    /// How often it was reset, where the device counts that.
    pub resets: Option<u64>,
}

impl Zone {
    /// Blocks that can still be written.
    pub const fn room_blocks(&self) -> u64 {
        match self.condition {
            Condition::Conventional => self.capacity_blocks,
            Condition::Full | Condition::ReadOnly | Condition::Offline => 0,
            _ => self.capacity_blocks - self.write_pointer,
        }
    }
}

/// One of several reads that may be done at once.
pub struct Read<'a> {
    /// The first block.
    pub block: Block,
    /// Where the bytes go; a whole number of blocks.
    pub buffer: &'a mut [u8],
}

/// One of several writes that may be done at once.
pub struct Write<'a> {
    /// The first block.
    pub block: Block,
    /// The bytes; a whole number of blocks.
    pub data: &'a [u8],
}

/// A zoned device.
///
/// What holds for all of them:
/// - A read or write is a whole number of blocks inside one zone, at least one.
/// - Blocks at or beyond a sequential zone's write pointer can be read; what they hold means nothing.
/// - A write that returned is seen by every later read. It is sure to outlast a power cut only when a [`ZonedDevice::flush`]
///   that began after it has returned. Before that, of the conventional writes any may be lost, whole or in parts of 512 bytes, and of
///   each sequential zone the last ones, so that its write pointer after the cut is where the first lost one was. Different zones are
///   independent.
/// - A [`ZonedDevice::reset`] or [`ZonedDevice::finish`] that returned outlasts a power cut, and with a finish the zone's content.
///   After a power cut no zone is open.
/// - After an error nothing was written, except that of a write with [`DeviceError::Media`] or [`DeviceError::Host`] a part may
///   have been: ask [`ZonedDevice::zone`] where the write pointer is.
///
/// It is used by several threads at once; two writes to one sequential zone at the same time come in either order, so the
/// second may fail: [`ZonedDevice::append`] does not.
pub trait ZonedDevice: Send + Sync {
    /// What it is made of.
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

    /// Fills `buffer`, a whole number of blocks, from `block` on.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`], [`DeviceError::AcrossZones`], [`DeviceError::Unusable`] for an offline
    /// zone, [`DeviceError::Media`].
    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data`, a whole number of blocks, at `block`: anywhere in a conventional zone, at the write pointer of a sequential
    /// one, which it opens implicitly.
    ///
    /// # Errors
    /// As [`ZonedDevice::read`], and [`DeviceError::NotAtWritePointer`], [`DeviceError::ZoneFull`], [`DeviceError::BeyondCapacity`],
    /// [`DeviceError::TooManyOpen`], [`DeviceError::TooManyActive`], [`DeviceError::Unusable`].
    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError>;

    /// Writes `data` at the write pointer of a sequential zone, and says where that was.
    ///
    /// # Errors
    /// As [`ZonedDevice::write`]; [`DeviceError::NotSequential`].
    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError>;

    /// Empties a sequential zone: its write pointer goes back to its start.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`], [`DeviceError::NotSequential`], [`DeviceError::Unusable`], [`DeviceError::Media`].
    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Makes a sequential zone full; it is then neither open nor active.
    ///
    /// # Errors
    /// As [`ZonedDevice::reset`]; an empty or closed zone must be opened for it: [`DeviceError::TooManyOpen`],
    /// [`DeviceError::TooManyActive`].
    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Opens a sequential zone explicitly: it stays open until closed, finished, full or reset.
    ///
    /// # Errors
    /// As [`ZonedDevice::finish`]; [`DeviceError::ZoneFull`].
    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Closes an open sequential zone; without content it becomes empty.
    ///
    /// # Errors
    /// As [`ZonedDevice::reset`]; [`DeviceError::NotOpen`] for an empty or full zone.
    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError>;

    /// Makes all that was written before it began outlast a power cut.
    ///
    /// # Errors
    /// [`DeviceError::Host`]: what was written since the last flush may be lost, and stays so even if a later flush succeeds.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Says that nobody will read these blocks again before they are written or their zone is reset. A device in memory gives their
    /// memory back; for others it is nothing. What they hold means nothing from then on.
    fn forget(&self, _block: Block, _blocks: u64) {}

    /// Does several reads, at once where the device can.
    ///
    /// # Errors
    /// The first error of [`ZonedDevice::read`], in the order given; the other buffers may be filled or not.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        reads.iter_mut().try_for_each(|read| self.read(read.block, read.buffer))
    }

    /// Does several writes, at once where the device can; those to one sequential zone in the order given.
    ///
    /// # Errors
    /// The first error of [`ZonedDevice::write`], in the order given; writes after it may be done or not.
    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        writes.iter().try_for_each(|write| self.write(write.block, write.data))
    }

    /// What it is called in messages: a path, for instance.
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
