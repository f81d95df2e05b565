//! A zoned device in a file: the default where no zoned device is available. It enforces the zone rules and makes zone
//! states durable. I/O goes through the page cache: a killed process loses no write, and a power cut loses only
//! unflushed writes. Damaged unflushed blocks are distinguished from blocks that a power cut has lost: the write
//! pointer stays after damaged blocks.
//!
//! Source: pwrite(2), fdatasync(2), fallocate(2), flock(2).

mod backing;
mod block_sums;
mod layout;
mod state_log;
#[cfg(test)]
mod tests;
mod write_pointer_table;

#[cfg(any(test, feature = "faulty-files"))]
use super::FaultyDevice;
use super::memory::UNWRITTEN;
use super::zones::{Span, ZoneTable};
use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber, ZonedDevice};
use backing::Backing;
use layout::{FileLayout, Header, PAGE_BYTES, VERSION};
use longma_locks::IgnorePoison;
use serde::Serialize;
use state_log::StateLog;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
#[cfg(any(test, feature = "faulty-files"))]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// A zoned device in a file. Only one process can have it open for writing.
pub struct FileDevice {
    header: Header,
    layout: FileLayout,
    backing: Backing,
    rules: Mutex<Rules>,
    /// For each sequential zone the write pointer, or [`OFFLINE`]. Readers use it without taking a lock.
    readable: Vec<AtomicU64>,
    /// Set permanently when a flush fails, because the contents of the file are unknown then.
    broken: AtomicBool,
    access: Access,
}

/// How the file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadOnly,
    Write,
    /// For writing, and one copy of the header is damaged. The first flush repairs it.
    WriteHeader,
}

/// How [`FileDevice::open_to_repair`] reconstructed the zone states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatesRepair {
    /// Whether the table of zone states was damaged and had to be reconstructed from its remains and from the contents
    /// of the zones.
    pub table_lost: bool,
    /// Zones whose write pointer is unknown. It was set past the last block with any content.
    pub guessed: Vec<ZoneNumber>,
}

/// Stored instead of a write pointer for a zone that cannot be read.
const OFFLINE: u64 = u64::MAX;

/// The zone states, and the changes that are not in the log yet.
struct Rules {
    table: ZoneTable,
    log: StateLog,
    /// The zones changed since the last log record.
    changed: BTreeMap<ZoneNumber, Unflushed>,
}

/// The data written to a zone since the last log record.
#[derive(Default)]
struct Unflushed {
    blocks: u64,
    /// The CRC-32C of the data.
    crc: u32,
}

impl FileDevice {
    /// Checks that a file can emulate a device with this geometry.
    ///
    /// # Errors
    /// Those of [`Geometry::check`]; [`DeviceError::Geometry`] also for more than 4 Mi zones.
    pub fn admits(geometry: &Geometry) -> Result<(), DeviceError> {
        layout::check(geometry)
    }

    /// Creates a device in a new file. An existing file is replaced only if `replace` is set.
    ///
    /// # Errors
    /// Those of [`FileDevice::admits`]; [`DeviceError::NotUsable`] if the path exists and is not a regular file, or is
    /// in use; [`DeviceError::Host`] if the file exists, cannot be created, or cannot have the required length. An
    /// existing file is then unchanged, unless a write failed.
    ///
    /// The file is sparse: it takes space as zones are written, and frees it when they are reset. A write fails if the
    /// file system is full. [`FileDevice::create_allocated`] avoids that.
    pub fn create(path: &Path, geometry: Geometry, replace: bool) -> Result<Self, DeviceError> {
        Self::create_file(path, geometry, replace, false)
    }

    /// Opens the device in a file, or creates it like [`FileDevice::create`] if there is no such file.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`] and [`FileDevice::create`].
    pub fn open_or_create(path: &Path, geometry: Geometry) -> Result<Self, DeviceError> {
        match Self::create(path, geometry, false) {
            Err(DeviceError::Host { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                Self::open(path)
            }
            made => made,
        }
    }

    /// Creates a device like [`FileDevice::create`] and allocates space for all zones, which resets keep. A full file
    /// system then affects no later operation, unless it is a copy-on-write file system.
    ///
    /// # Errors
    /// Those of [`FileDevice::create`]; [`DeviceError::Host`] if the file system has too little space;
    /// [`DeviceError::NotUsable`] if it cannot allocate space in advance.
    pub fn create_allocated(path: &Path, geometry: Geometry, replace: bool) -> Result<Self, DeviceError> {
        Self::create_file(path, geometry, replace, true)
    }

    fn create_file(
        path: &Path,
        geometry: Geometry,
        replace: bool,
        is_allocated: bool,
    ) -> Result<Self, DeviceError> {
        Self::admits(&geometry)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let (backing, is_new) = match Backing::open(path, &options, false) {
            Err(DeviceError::Host { source, .. })
                if replace && source.kind() == io::ErrorKind::AlreadyExists =>
            {
                (Backing::open(path, options.create_new(false).create(true), false)?, false)
            }
            made => (made?, true),
        };
        let device = Self::create_in(backing, geometry, is_allocated).inspect_err(|_| {
            if is_new {
                // The incomplete file holds no device that could be opened.
                let _ = std::fs::remove_file(path);
            }
        })?;
        device.backing.sync_directory()?;
        Ok(device)
    }

    fn create_in(backing: Backing, geometry: Geometry, is_allocated: bool) -> Result<Self, DeviceError> {
        let table = ZoneTable::new(geometry)?;
        let layout = FileLayout::of(&geometry, VERSION);
        let header = Header { identity: backing.identity()?, geometry, is_allocated };
        // If the file system does not support this length or has too little space, fail before the old device is
        // erased.
        let is_empty = backing.length()? == 0;
        if backing.length()? < layout.end {
            backing.resize(layout.end)?;
        }
        if is_allocated && !is_empty {
            Self::allocate(&backing, &layout)?;
        }
        // Discard all old contents, so that none of them can be mistaken for those of the new device.
        backing.resize(0)?;
        backing.resize(layout.end)?;
        if is_allocated {
            Self::allocate(&backing, &layout)?;
        } else {
            // Keep at least the metadata writable when the file system is full.
            for part in layout.metadata() {
                backing.allocate(part)?;
            }
        }
        let log = StateLog::create(&backing, &layout, &table)?;
        // Write the header last: a file with a valid header is complete.
        log.write_headers(&backing, &header)?;
        backing.sync()?;
        Ok(Self::new(header, layout, backing, table, log, Access::Write))
    }

    fn allocate(backing: &Backing, layout: &FileLayout) -> Result<(), DeviceError> {
        if backing.allocate(0..layout.end)? {
            return Ok(());
        }
        let what =
            "is on a file system that cannot allocate space in advance: create a sparse file (--sparse)";
        Err(backing.not_usable(what.into()))
    }

    /// Opens a device created by [`FileDevice::create`]. Opening does not write; the first flush makes the changes
    /// needed after a power cut.
    ///
    /// # Errors
    /// [`DeviceError::NotUsable`] if the file is not such a device, or is truncated, damaged or in use;
    /// [`DeviceError::Host`].
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        Self::open_in(Self::backing(path, false)?)
    }

    /// Opens a device for reading. The file is opened read-only, and operations that would write fail with
    /// [`DeviceError::ReadOnly`]. Other processes may read the device at the same time.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, DeviceError> {
        let mut device = Self::open_in(Self::backing(path, true)?)?;
        device.access = Access::ReadOnly;
        Ok(device)
    }

    /// Opens a device even if all copies of its table of zone states are damaged. The table is then reconstructed from
    /// its remains. For zones without any record, the write pointer is set past the last block with any content; data
    /// that was not flushed before a power cut may reappear. Intended for the repair of a map, which verifies the
    /// contents of the zones.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`], if the file was truncated or both copies of its header are damaged.
    pub fn open_to_repair(path: &Path) -> Result<(Self, StatesRepair), DeviceError> {
        let (layout, header, backing, access) = Self::examine(Self::backing(path, false)?)?;
        let mut table = ZoneTable::new(header.geometry)?;
        if let Ok(log) = StateLog::recover(&backing, &layout, &mut table) {
            return Ok((Self::new(header, layout, backing, table, log, access), StatesRepair::default()));
        }
        let mut table = ZoneTable::new(header.geometry)?;
        let (log, guessed) = StateLog::salvage(&backing, &layout, &mut table)?;
        let repair = StatesRepair { table_lost: true, guessed };
        Ok((Self::new(header, layout, backing, table, log, access), repair))
    }

    /// Creates a device in a file whose writes fail and whose power can be cut: a faulty device with a single
    /// conventional zone of the length of the file.
    ///
    /// # Errors
    /// Those of [`FileDevice::create`].
    #[cfg(any(test, feature = "faulty-files"))]
    pub fn create_faulty(geometry: Geometry) -> Result<(Self, Arc<FaultyDevice>), DeviceError> {
        let block_bytes = u64::from(geometry.block_bytes);
        let blocks = FileLayout::of(&geometry, VERSION).end / block_bytes;
        let file = Arc::new(FaultyDevice::new(Geometry {
            zone_blocks: blocks,
            zone_capacity_blocks: blocks,
            conventional_zones: 1,
            sequential_zones: 0,
            max_open_zones: 0,
            max_active_zones: 0,
            ..geometry
        })?);
        Ok((Self::create_in(Backing::faulty(Arc::clone(&file)), geometry, false)?, file))
    }

    /// Opens a device in a file that was created by [`Self::create_faulty`].
    ///
    /// # Errors
    /// Those of [`FileDevice::open`].
    #[cfg(any(test, feature = "faulty-files"))]
    pub fn open_faulty(file: &Arc<FaultyDevice>) -> Result<Self, DeviceError> {
        Self::open_in(Backing::faulty(Arc::clone(file)))
    }

    fn backing(path: &Path, is_read_only: bool) -> Result<Backing, DeviceError> {
        Backing::open(path, OpenOptions::new().read(true).write(!is_read_only), is_read_only)
    }

    fn open_in(backing: Backing) -> Result<Self, DeviceError> {
        let (layout, header, backing, access) = Self::examine(backing)?;
        let mut table = ZoneTable::new(header.geometry)?;
        let log = StateLog::recover(&backing, &layout, &mut table)?;
        Ok(Self::new(header, layout, backing, table, log, access))
    }

    /// Reads the header and checks the length of the file.
    fn examine(backing: Backing) -> Result<(FileLayout, Header, Backing, Access), DeviceError> {
        let length = backing.length()?;
        let first = Header::decode(&backing.read_part(0, length.min(PAGE_BYTES as u64))?);
        let (header, version, mut is_whole) = match first {
            Ok(found) => found,
            Err(what) => Self::header_copy(&backing, length)?.ok_or_else(|| backing.not_usable(what))?,
        };
        let layout = FileLayout::of(&header.geometry, version);
        if length < layout.end {
            let what = format!("is {length} bytes long instead of {}: it was truncated", layout.end);
            return Err(backing.not_usable(what));
        }
        if let Some(at) = layout.header_copy {
            is_whole &= backing.read_part(at, PAGE_BYTES as u64)? == header.encode();
        }
        Ok((layout, header, backing, if is_whole { Access::Write } else { Access::WriteHeader }))
    }

    /// Reads the copy of the header in the last page of the file, if there is one.
    fn header_copy(backing: &Backing, length: u64) -> Result<Option<(Header, u32, bool)>, DeviceError> {
        let Some(at) = length.checked_sub(PAGE_BYTES as u64) else { return Ok(None) };
        let found = Header::decode(&backing.read_part(at, PAGE_BYTES as u64)?).ok();
        let is_here =
            |header: &Header, version| FileLayout::of(&header.geometry, version).header_copy == Some(at);
        Ok(found
            .filter(|(header, version, _)| is_here(header, *version))
            .map(|(header, version, _)| (header, version, false)))
    }

    fn new(
        header: Header,
        layout: FileLayout,
        backing: Backing,
        table: ZoneTable,
        log: StateLog,
        access: Access,
    ) -> Self {
        let readable =
            header.geometry.sequential().map(|zone| AtomicU64::new(readable(&table, zone))).collect();
        let rules = Mutex::new(Rules { table, log, changed: BTreeMap::new() });
        Self { header, layout, backing, rules, readable, broken: AtomicBool::new(false), access }
    }

    /// The random identifier given when the device was created.
    pub const fn identity(&self) -> u128 {
        self.header.identity
    }

    /// Simulates wear: makes a sequential zone read-only or offline.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Geometry`] for a conventional zone or any other condition;
    /// [`DeviceError::Host`].
    pub fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        if !matches!(condition, Condition::ReadOnly | Condition::Offline) {
            return Err(DeviceError::Geometry {
                what: format!("a zone cannot wear out to the condition {condition}"),
            });
        }
        let mut rules = self.changing(Operation::Write)?;
        let Zone { write_pointer, resets, .. } = rules.table.zone(zone)?;
        rules.table.restore(zone, condition, write_pointer, resets.unwrap_or_default())?;
        self.publish(&mut rules, zone);
        self.save(&mut rules)
    }

    fn rules(&self) -> Result<MutexGuard<'_, Rules>, DeviceError> {
        if self.broken.load(Ordering::Relaxed) {
            let source =
                io::Error::other("an earlier flush failed, so what the file holds is unknown: open it again");
            return Err(self.backing.host(Operation::Write, source));
        }
        Ok(self.rules.lock().ignore_poison())
    }

    /// Locks the zone states for an operation that changes them.
    fn changing(&self, operation: Operation) -> Result<MutexGuard<'_, Rules>, DeviceError> {
        self.may(operation)?;
        self.rules()
    }

    fn may(&self, operation: Operation) -> Result<(), DeviceError> {
        match self.access {
            Access::ReadOnly => Err(DeviceError::ReadOnly { name: self.name(), operation }),
            Access::Write | Access::WriteHeader => self.backing.check_process(),
        }
    }

    fn byte(&self, span: Span) -> u64 {
        let block = self.header.geometry.start(span.zone).0 + span.offset;
        self.layout.zones + block * u64::from(self.header.geometry.block_bytes)
    }

    /// Publishes the new state of a zone to readers and marks it for the next log record.
    fn publish(&self, rules: &mut Rules, zone: ZoneNumber) {
        let index = zone.0 - self.header.geometry.conventional_zones;
        self.readable[index as usize].store(readable(&rules.table, zone), Ordering::Release);
        rules.changed.entry(zone).or_default();
    }

    /// Makes data and zone states durable. A failure is permanent, because the kernel drops pages that it could not
    /// write.
    fn save(&self, rules: &mut Rules) -> Result<(), DeviceError> {
        if self.access == Access::WriteHeader && rules.log.is_unmodified() {
            rules.log.write_headers(&self.backing, &self.header)?;
        }
        let changed = std::mem::take(&mut rules.changed);
        let saved = rules.log.save(&self.backing, &self.header, &rules.table, changed);
        if saved.is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
        saved
    }

    fn write_sequential(&self, rules: &mut Rules, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        let geometry = &self.header.geometry;
        let opens_another = geometry.max_active_zones > 0 && block == geometry.start(geometry.zone_of(block));
        let is_full =
            |zone: &ZoneNumber| matches!(rules.table.zone(*zone), Ok(z) if z.condition == Condition::Full);
        let exceeds_limit = opens_another && rules.changed.keys().any(is_full);
        if exceeds_limit || rules.log.must_save_first(geometry.zone_of(block)) {
            // Without this save, more zones than the limit might be active after a power cut, or old contents might
            // reappear.
            self.save(rules)?;
        }
        let span = rules.table.write(block, data.len())?;
        self.backing.write(self.byte(span), data)?;
        rules.table.advance(span);
        self.publish(rules, span.zone);
        let unflushed = rules.changed.entry(span.zone).or_default();
        unflushed.blocks += span.count;
        unflushed.crc = crc32c::crc32c_append(unflushed.crc, data);
        rules.log.append(&self.backing, &rules.table, &rules.changed, span, data)
    }
}

/// The write pointer or [`OFFLINE`], for readers.
fn readable(table: &ZoneTable, zone: ZoneNumber) -> u64 {
    match table.zone(zone) {
        Ok(Zone { condition: Condition::Offline, .. }) | Err(_) => OFFLINE,
        Ok(zone) => zone.write_pointer,
    }
}

impl ZonedDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.header.geometry
    }

    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        self.rules()?.table.zone(zone)
    }

    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let geometry = &self.header.geometry;
        let span = ZoneTable::span(geometry, Operation::Read, block, buffer.len())?;
        let mut written = span.count;
        if let Some(index) = span.zone.0.checked_sub(geometry.conventional_zones) {
            let pointer = self.readable[index as usize].load(Ordering::Acquire);
            if pointer == OFFLINE {
                let (zone, condition, operation) = (span.zone, Condition::Offline, Operation::Read);
                return Err(DeviceError::Unusable { zone, condition, operation });
            }
            written = pointer.saturating_sub(span.offset).min(span.count);
        }
        let (known, rest) = buffer.split_at_mut(written as usize * geometry.block_bytes as usize);
        rest.fill(UNWRITTEN);
        self.backing.read(self.byte(span), known).map_err(|error| match error {
            DeviceError::Host { source, .. } if source.raw_os_error() == Some(libc::EIO) => {
                DeviceError::Media { operation: Operation::Read, block, count: span.count }
            }
            other => other,
        })
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        let geometry = &self.header.geometry;
        if !geometry.is_conventional(geometry.zone_of(block)) {
            return self.write_sequential(&mut *self.changing(Operation::Write)?, block, data);
        }
        self.may(Operation::Write)?;
        let span = ZoneTable::span(geometry, Operation::Write, block, data.len())?;
        self.backing.write(self.byte(span), data)
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        let mut rules = self.changing(Operation::Write)?;
        let block = rules.table.append_at(zone)?;
        self.write_sequential(&mut rules, block, data)?;
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let mut rules = self.changing(Operation::Reset)?;
        if !rules.table.reset(zone)? {
            return Ok(());
        }
        rules.changed.remove(&zone);
        self.publish(&mut rules, zone);
        // Record the reset before the zone is written again: until then, the old state of the zone is valid.
        self.save(&mut rules)?;
        let Rules { table, log, changed } = &mut *rules;
        log.discard(&self.backing, &self.header, table, changed, zone)
    }

    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let mut rules = self.changing(Operation::Finish)?;
        if !rules.table.finish(zone)? {
            return Ok(());
        }
        self.publish(&mut rules, zone);
        self.save(&mut rules)
    }

    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.changing(Operation::Open)?.table.open(zone)
    }

    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.changing(Operation::Close)?.table.close(zone)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut rules = self.changing(Operation::Flush)?;
        self.save(&mut rules)
    }

    fn name(&self) -> String {
        self.backing.name()
    }
}

impl Drop for FileDevice {
    /// Saves the writes since the last flush.
    fn drop(&mut self) {
        if let Ok(mut rules) = self.changing(Operation::Flush) {
            if rules.changed.is_empty() && rules.log.is_unmodified() {
                return;
            }
            let _ = self.save(&mut rules);
            // A second save marks the data covered by the first record as durable.
            if rules.log.is_open() {
                let _ = self.save(&mut rules);
            }
        }
    }
}
