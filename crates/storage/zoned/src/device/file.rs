//! A zoned device in a sparse file, with the zone rules enforced and the zones' states safe from a power cut: the embedded
//! default, where there is no zoned device.
//! Not direct I/O: the file goes through the page cache. Not timed: `longma-zoned-lab` has a model that is.
//! Source: pwrite(2), fdatasync(2), fallocate(2), flock(2).

mod backing;
mod layout;
mod state_log;
#[cfg(test)]
mod tests;

use super::memory::UNWRITTEN;
use super::zones::{Span, ZoneTable};
use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber, ZonedDevice};
use backing::Backing;
use layout::{Header, PAGE_BYTES, Places};
use serde::Serialize;
use state_log::StateLog;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A zoned device in a file. One process has it open at a time.
pub struct FileDevice {
    header: Header,
    places: Places,
    backing: Backing,
    rules: Mutex<Rules>,
    /// Of each sequential zone, so that readers wait for nobody: the write pointer, or [`OFFLINE`].
    readable: Vec<AtomicU64>,
    /// Set for good when a flush failed: what the file holds is then unknown.
    broken: AtomicBool,
    access: Access,
}

/// What may be done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadOnly,
    Write,
    /// To write, and one of the header's copies is not whole: the first flush makes it good.
    WriteHeader,
}

/// What [`FileDevice::open_to_repair`] had to guess of the zones' states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatesRepair {
    /// Whether the table of the zones' states was damaged, and was put together from what is left of it and from what is in the zones.
    pub table_lost: bool,
    /// Zones of which nobody knows how far they are written: it is taken to be the last block that holds anything.
    pub guessed: Vec<ZoneNumber>,
}

/// In place of a write pointer: the zone cannot be read.
const OFFLINE: u64 = u64::MAX;

/// The zones' states, and what of them the file does not know yet.
struct Rules {
    table: ZoneTable,
    log: StateLog,
    /// Zones that changed since the last record.
    changed: BTreeMap<ZoneNumber, Unsaved>,
}

/// What was written into a zone since the last record.
#[derive(Default)]
struct Unsaved {
    blocks: u64,
    /// CRC-32C of it.
    crc: u32,
}

impl FileDevice {
    /// Whether a file can emulate such a device.
    ///
    /// # Errors
    /// As [`Geometry::check`]; [`DeviceError::Geometry`], too, for more zones than a file emulates (4 Mi).
    pub fn admits(geometry: &Geometry) -> Result<(), DeviceError> {
        layout::check(geometry)
    }

    /// Makes a new device in a new file; an old one is replaced only if `replace`.
    ///
    /// # Errors
    /// As [`FileDevice::admits`]; [`DeviceError::NotUsable`] if something else than a regular file is there, or it is in use;
    /// [`DeviceError::Host`] if the file is there already, cannot be made or cannot be so long. An old file is as it was then, unless a write
    /// failed.
    pub fn create(path: &Path, geometry: Geometry, replace: bool) -> Result<Self, DeviceError> {
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
        let device = Self::create_in(backing, geometry).inspect_err(|_| {
            if is_new {
                // It holds nothing that could be opened.
                let _ = std::fs::remove_file(path);
            }
        })?;
        device.backing.sync_folder()?;
        Ok(device)
    }

    fn create_in(backing: Backing, geometry: Geometry) -> Result<Self, DeviceError> {
        let table = ZoneTable::new(geometry)?;
        let places = Places::of(&geometry);
        let header = Header { identity: backing.identity()?, geometry };
        // A file system that cannot have files of this length says so while an old device is still whole.
        if backing.length()? < places.end {
            backing.resize(places.end)?;
        }
        // Of an old device nothing stays, so that nothing of it can be taken for the new one's.
        backing.resize(0)?;
        backing.resize(places.end)?;
        let log = StateLog::create(&backing, &places, &table)?;
        // Last, so that a file with a header is whole.
        backing.write(0, &header.encode())?;
        backing.sync()?;
        Ok(Self::new(header, places, backing, table, log, Access::Write))
    }

    /// Opens a device that [`FileDevice::create`] made. What a power cut left of it is put in order, in the file with the first flush:
    /// opening itself writes nothing.
    ///
    /// # Errors
    /// [`DeviceError::NotUsable`] if the file is no such device, truncated, damaged, or in use; [`DeviceError::Host`].
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        Self::open_in(Self::backing(path, false)?)
    }

    /// Opens a device for reading: the file is opened so that nothing can be written to it, and whatever would write is
    /// [`DeviceError::ReadOnly`]. Others may read it meanwhile.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, DeviceError> {
        let mut device = Self::open_in(Self::backing(path, true)?)?;
        device.access = Access::ReadOnly;
        Ok(device)
    }

    /// Opens a device of which the table of the zones' states may be damaged in all copies: it is then put together from what is left of
    /// it, and of zones that nothing is known of the last block that holds anything is taken to be the last one written. What was
    /// not flushed when the power was cut may come back with that. For [`crate::Store::repair`], which proves what is in the zones.
    ///
    /// # Errors
    /// As [`FileDevice::open`], if the file was truncated or both copies of its header are damaged.
    pub fn open_to_repair(path: &Path) -> Result<(Self, StatesRepair), DeviceError> {
        let (places, header, backing, access) = Self::examine(Self::backing(path, false)?)?;
        let mut table = ZoneTable::new(header.geometry)?;
        if let Ok(log) = StateLog::recover(&backing, &places, &mut table) {
            return Ok((Self::new(header, places, backing, table, log, access), StatesRepair::default()));
        }
        let mut table = ZoneTable::new(header.geometry)?;
        let (log, guessed) = StateLog::salvage(&backing, &places, &mut table)?;
        let repair = StatesRepair { table_lost: true, guessed };
        Ok((Self::new(header, places, backing, table, log, access), repair))
    }

    fn backing(path: &Path, is_read_only: bool) -> Result<Backing, DeviceError> {
        Backing::open(path, OpenOptions::new().read(true).write(!is_read_only), is_read_only)
    }

    fn open_in(backing: Backing) -> Result<Self, DeviceError> {
        let (places, header, backing, access) = Self::examine(backing)?;
        let mut table = ZoneTable::new(header.geometry)?;
        let log = StateLog::recover(&backing, &places, &mut table)?;
        Ok(Self::new(header, places, backing, table, log, access))
    }

    /// What the file says of itself.
    fn examine(backing: Backing) -> Result<(Places, Header, Backing, Access), DeviceError> {
        let mut page = vec![0; PAGE_BYTES];
        let length = backing.length()?;
        page.truncate(usize::try_from(length).unwrap_or(PAGE_BYTES).min(PAGE_BYTES));
        backing.read(0, &mut page)?;
        let (header, is_whole) = Header::decode(&page).map_err(|what| backing.not_usable(what))?;
        let places = Places::of(&header.geometry);
        if length < places.end {
            let what = format!("is {length} bytes long instead of {}: it was truncated", places.end);
            return Err(backing.not_usable(what));
        }
        Ok((places, header, backing, if is_whole { Access::Write } else { Access::WriteHeader }))
    }

    fn new(
        header: Header,
        places: Places,
        backing: Backing,
        table: ZoneTable,
        log: StateLog,
        access: Access,
    ) -> Self {
        let readable =
            header.geometry.sequential().map(|zone| AtomicU64::new(readable(&table, zone))).collect();
        let rules = Mutex::new(Rules { table, log, changed: BTreeMap::new() });
        Self { header, places, backing, rules, readable, broken: AtomicBool::new(false), access }
    }

    /// A number chosen by chance when the device was made: it tells devices apart.
    pub const fn identity(&self) -> u128 {
        self.header.identity
    }

    /// Makes a sequential zone read-only or offline, as wear does.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Geometry`] for any other condition or zone; [`DeviceError::Host`].
    pub fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        if !matches!(condition, Condition::ReadOnly | Condition::Offline) {
            return Err(DeviceError::Geometry { what: format!("a worn-out zone that is {condition}") });
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
        Ok(self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, to change something.
    fn changing(&self, operation: Operation) -> Result<MutexGuard<'_, Rules>, DeviceError> {
        self.may(operation)?;
        self.rules()
    }

    fn may(&self, operation: Operation) -> Result<(), DeviceError> {
        match self.access {
            Access::ReadOnly => Err(DeviceError::ReadOnly { name: self.name(), operation }),
            Access::Write | Access::WriteHeader => Ok(()),
        }
    }

    fn byte(&self, span: Span) -> u64 {
        let block = self.header.geometry.start(span.zone).0 + span.offset;
        self.places.zones + block * u64::from(self.header.geometry.block_bytes)
    }

    /// Lets readers and the next record know of a zone's new state.
    fn publish(&self, rules: &mut Rules, zone: ZoneNumber) {
        let index = zone.0 - self.header.geometry.conventional_zones;
        self.readable[index as usize].store(readable(&rules.table, zone), Ordering::Release);
        rules.changed.entry(zone).or_default();
    }

    /// Makes data and states safe. A failure is for good: the kernel forgets which pages it could not write.
    fn save(&self, rules: &mut Rules) -> Result<(), DeviceError> {
        if self.access == Access::WriteHeader && rules.log.is_untouched() {
            self.backing.write(0, &self.header.encode())?;
        }
        let changed = std::mem::take(&mut rules.changed);
        let saved = rules.log.save(&self.backing, &rules.table, changed);
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
        if opens_another && rules.changed.keys().any(is_full) {
            // Or, after a power cut, more zones might be active than the limit allows.
            self.save(rules)?;
        }
        let span = rules.table.write(block, data.len())?;
        self.backing.write(self.byte(span), data)?;
        rules.table.advance(span);
        self.publish(rules, span.zone);
        let unsaved = rules.changed.entry(span.zone).or_default();
        unsaved.blocks += span.count;
        unsaved.crc = crc32c::crc32c_append(unsaved.crc, data);
        Ok(())
    }
}

/// What readers are to know of a zone.
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
        // Before anything is written into the zone again: until the file knows of the reset, the old content may still count.
        self.save(&mut rules)?;
        let geometry = &self.header.geometry;
        let whole = Span { zone, offset: 0, count: geometry.zone_blocks };
        self.backing.give_back(self.byte(whole), geometry.zone_blocks * u64::from(geometry.block_bytes))
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
    /// What was written and not flushed is kept if the machine goes on running, as with any file.
    fn drop(&mut self) {
        if let Ok(mut rules) = self.changing(Operation::Flush) {
            if rules.changed.is_empty() && rules.log.is_untouched() {
                return;
            }
            let _ = self.save(&mut rules);
            // The second time says that what the first one spoke of was safe, if it spoke of any.
            if rules.log.is_open() {
                let _ = self.save(&mut rules);
            }
        }
    }
}
