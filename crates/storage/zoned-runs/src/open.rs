//! Formatting a device, opening a map, and recovery after a power cut.

use crate::error::{Error, Result, damaged};
use crate::io::{Io, page_bytes};
use crate::log_reader;
use crate::log_reader::LogContents;
use crate::manifest::{Manifest, longest};
use crate::memtable::MemTable;
use crate::options::Options;
use crate::shared::Shared;
use crate::sizes::Sizes;
use crate::store::Store;
use crate::version::{Run, Version};
use crate::writer::Writer;
use crate::zones::{Role, Zones};
use longma_zoned_device::{AlignedBuffer, Block, Condition, ZoneNumber, ZonedDevice};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

/// The minimum number of open zones that a device must allow, for the log, a flush and merges.
const MIN_OPEN_ZONES: u32 = 4;

/// An upper bound for the number of tables written between two manifests.
const SKIPPED_TABLES: u64 = 1 << 16;

/// Information from a map's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// The identifier given when the map was formatted.
    pub id: u64,
    /// The number of the manifest.
    pub generation: u64,
    /// Sorted runs.
    pub runs: u64,
    /// Tables of all runs.
    pub tables: u64,
    /// Records of all runs, without the log's. A key in several runs counts several times.
    pub records: u64,
}

impl<D: ZonedDevice> Store<D> {
    /// Creates an empty map. Other data on the device is lost.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the device is too small or allows too few open zones; [`Error::Device`].
    pub fn format(device: D, id: u64) -> Result<D> {
        check_device(&device)?;
        check_room(&device)?;
        Manifest::erase(&device)?;
        for zone in device.zones()?.into_iter().skip(device.geometry().conventional_zones as usize) {
            if zone.write_pointer > 0 && !matches!(zone.condition, Condition::ReadOnly | Condition::Offline) {
                device.reset(zone.number)?;
            }
        }
        let io = Io::new(device, id, 0);
        let manifest = Manifest {
            map: id,
            generation: 1,
            next_table: 1,
            next_run: 1,
            next_batch: 1,
            log_zones: Vec::new(),
            runs: Vec::new(),
        };
        manifest.write(&io)?;
        io.device.flush()?;
        Ok(io.device)
    }

    /// Opens the map on a device, or creates an empty one if the device is blank: its sequential zones are empty and
    /// its first megabyte is zero.
    ///
    /// # Errors
    /// Those of [`Store::open`] and [`Store::format`]. A device with other data is not changed.
    pub fn open_or_create(device: D, options: Options) -> Result<Self> {
        if !is_blank(&device)? {
            return Self::open(device, options);
        }
        Self::open(Self::format(device, RandomState::new().build_hasher().finish())?, options)
    }

    /// Whether a device holds a map of sorted runs.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_on(device: &D) -> Result<bool> {
        match Manifest::read(device) {
            Ok(_) | Err(Error::Unsuitable { .. }) => Ok(true),
            Err(Error::NotFormatted { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the manifest of a device.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`], [`Error::Device`].
    pub fn info(device: &D) -> Result<Info> {
        let manifest = Manifest::read(device)?;
        Ok(Info {
            id: manifest.map,
            generation: manifest.generation,
            runs: manifest.runs.len() as u64,
            tables: manifest.runs.iter().map(|run| run.pieces.len() as u64).sum(),
            records: manifest.runs.iter().map(|run| run.records()).sum(),
        })
    }

    /// Opens the map on a device. All durable batches are present. Of the batches that were not durable, the first ones
    /// may be present, without a gap. Recovery reads all its inputs before its first write.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`]; [`Error::LogDamaged`] if batches in the log were written and cannot be
    /// read; [`Error::Damaged`] if a part of a manifest is lost; [`Error::Device`].
    pub fn open(device: D, options: Options) -> Result<Self> {
        Self::recover(device, options, Access::Write).map(|(store, _)| store)
    }

    /// Opens the map on a device for reading. The device is not written; the changes from the log stay in memory, which
    /// may take more than the write buffer. No other process may write to the device while the map is open.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_read_only(device: D, options: Options) -> Result<Self> {
        Self::recover(device, options, Access::Read).map(|(store, _)| store)
    }

    /// Opens the map. Also returns the contents of the log.
    pub(crate) fn recover(device: D, options: Options, access: Access) -> Result<(Self, LogContents)> {
        let manifest = Manifest::read(&device)?;
        check_device(&device)?;
        let io = Io::new(device, manifest.map, options.cache_bytes);
        let mut zones = Zones::read(&io.device)?;
        for run in &manifest.runs {
            claim_tables(&io, &mut zones, run)?;
        }
        for &zone in &manifest.log_zones {
            match zones.index_of(ZoneNumber(zone)) {
                Some(index) if zones.zones[index].tables == 0 => zones.zones[index].role = Role::Log,
                _ => {
                    return Err(damaged(
                        0,
                        format!(
                            "the manifest lists zone {zone} as part of the log, but the zone holds other data"
                        ),
                    ));
                }
            }
        }
        // Read the log before any change, so that a failed open leaves the device unchanged.
        let log = log_reader::read(&io, &zones, &manifest.log_zones, manifest.next_batch, |_, _| Ok(()))?;
        if let Some(error) = log.damage().filter(|_| matches!(access, Access::Read | Access::Write)) {
            return Err(error);
        }
        let is_last = manifest.is_last(&io.device)?;
        for zone in zones.zones.iter().filter(|zone| zone.role == Role::Free && zone.written > 0) {
            let start = io.geometry.start(zone.number).0;
            // If a manifest is missing, the first block of its log zone may be damaged too.
            let blocks = if is_last { 1 } else { zone.written };
            if let Some(block) = log_reader::newer_log(&io, start..start + blocks, log.next)? {
                return Err(damaged(
                    block,
                    "the log continues here, but the manifest that records this is lost",
                ));
            }
        }
        let runs = manifest.runs.clone();
        let version = Version { memory: Arc::new(MemTable::default()), frozen: None, runs };
        let mut writer = Writer::new(zones, &manifest);
        // Do not reuse the numbers of tables whose writing a power cut interrupted.
        writer.next_table += SKIPPED_TABLES;
        writer.is_read_only = matches!(access, Access::Read | Access::Check);
        let shared = Arc::new(Shared {
            io,
            options,
            version: RwLock::new(Arc::new(version)),
            visible: AtomicU64::new(manifest.next_batch - 1),
            snapshots: Mutex::new(BTreeMap::new()),
        });
        writer.replay_log(&shared, &manifest)?;
        Ok((Self { shared, writer: Arc::new(Mutex::new(writer)) }, log))
    }
}

/// The purpose of opening a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Reading, without the batches that cannot be read.
    Check,
    /// Writing, without the batches that cannot be read.
    Repair,
}

impl Writer {
    /// Replays the log, and writes its batches to a run unless the map is open for reading only.
    fn replay_log<D: ZonedDevice>(&mut self, shared: &Shared<D>, manifest: &Manifest) -> Result<()> {
        if !self.is_read_only {
            // After a failed flush, the manifest may be readable but not durable.
            manifest.write(&shared.io)?;
            shared.io.device.flush()?;
            self.zones.reset_dead(&shared.io.device)?;
        }
        self.recovering = manifest.log_zones.clone();
        let zones = Zones::read(&shared.io.device)?;
        let (log_zones, first) = (&manifest.log_zones, manifest.next_batch);
        let log = log_reader::read(&shared.io, &zones, log_zones, first, |number, batch| {
            self.insert(shared, number, &batch);
            self.next_batch = number + 1;
            let is_full = shared.version().memory.memory() >= shared.options.write_buffer_bytes;
            if is_full && !self.is_read_only {
                self.freeze(shared);
                self.finish_flush(shared)?;
            }
            Ok(())
        })?;
        let next = log.next;
        self.next_batch = next;
        if self.is_read_only {
            return Ok(());
        }
        if !log_zones.is_empty() {
            if !shared.version().memory.is_empty() {
                self.freeze(shared);
                self.finish_flush(shared)?;
            }
            self.first_unflushed = next;
            self.recovering.clear();
            let indexes: Vec<_> =
                log_zones.iter().filter_map(|&zone| self.zones.index_of(ZoneNumber(zone))).collect();
            self.commit_without(shared, &indexes)?;
        }
        let open: Vec<u64> = manifest.runs.iter().filter(|run| run.is_open).map(|run| run.id).collect();
        open.into_iter().try_for_each(|output| self.resume_merge(shared, output, false))
    }
}

/// Marks the tables of a run as used, and checks that they are within the written parts of their zones.
fn claim_tables<D: ZonedDevice>(io: &Io<D>, zones: &mut Zones, run: &Run) -> Result<()> {
    for piece in &run.pieces {
        let table = &piece.table;
        if !zones.claim(table.start, table.all_pages() * io.page_blocks) {
            return Err(damaged(
                table.start,
                format!("table {} is missing: it lies beyond the written part of its zone", table.id),
            ));
        }
        if let Some(index) = zones.index(table.start) {
            zones.zones[index].tier = run.tier;
        }
    }
    Ok(())
}

/// Whether a device is blank.
fn is_blank<D: ZonedDevice>(device: &D) -> Result<bool> {
    const EXAMINED_BYTES: u64 = 1 << 20;
    let geometry = device.geometry();
    if geometry.conventional_zones == 0 || Store::is_on(device)? {
        return Ok(false);
    }
    if device.zones()?.iter().skip(geometry.conventional_zones as usize).any(|zone| zone.write_pointer > 0) {
        return Ok(false);
    }
    let blocks = (EXAMINED_BYTES / u64::from(geometry.block_bytes)).min(geometry.zone_blocks);
    let mut buffer = AlignedBuffer::new(blocks as usize * geometry.block_bytes as usize);
    device.read(Block(0), &mut buffer)?;
    Ok(buffer.iter().all(|&byte| byte == 0))
}

/// Checks that a new map has room for records besides its reserve, with the default write buffer.
fn check_room<D: ZonedDevice>(device: &D) -> Result<()> {
    let geometry = device.geometry();
    let sizes = Sizes { geometry, write_buffer_bytes: Options::default().write_buffer_bytes };
    let (zones, fewest) = (u64::from(geometry.sequential_zones), sizes.min_zones());
    if zones >= fewest {
        return Ok(());
    }
    let zone = geometry.zone_capacity_blocks * u64::from(geometry.block_bytes);
    let what = format!(
        "it has {zones} sequential zones of {zone} bytes, and sorted runs need at least {fewest} of that size: give more zones or larger ones"
    );
    Err(Error::Unsuitable { device: device.name(), what })
}

fn check_device<D: ZonedDevice>(device: &D) -> Result<()> {
    let geometry = device.geometry();
    let unsuitable = |what: String| Err(Error::Unsuitable { device: device.name(), what });
    if geometry.conventional_zones == 0 {
        return unsuitable("it has no conventional zones; provide them by a second device".into());
    }
    let page = page_bytes(&geometry) as u64;
    let zone = geometry.zone_capacity_blocks * u64::from(geometry.block_bytes);
    if zone < 16 * page || longest(&geometry) < 4 * page || !longest(&geometry).is_multiple_of(page) {
        return unsuitable(format!("its zones are smaller than 16 pages of {page} bytes"));
    }
    for limit in [geometry.max_open_zones, geometry.max_active_zones] {
        if limit > 0 && limit < MIN_OPEN_ZONES {
            return unsuitable(format!(
                "it allows {limit} open zones: the log, a flush and merges need {MIN_OPEN_ZONES}"
            ));
        }
    }
    Ok(())
}
