//! The single writer: logs each batch, adds it to the write buffer, and then flushes and merges in proportion to the
//! size of the batch.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::jobs::{FlushJob, MergeJob};
use crate::log::Log;
use crate::manifest::Manifest;
use crate::memtable::MemTable;
use crate::options::Durability;
use crate::shared::Shared;
use crate::table::Table;
use crate::version::Version;
use crate::zones::{Role, Zones};
use longma_locks::IgnorePoison;
use longma_zoned_device::ZonedDevice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state that only the writer uses.
pub struct Writer {
    pub zones: Zones,
    pub log: Log,
    pub generation: u64,
    pub next_table: u64,
    pub next_run: u64,
    /// The number of the next batch.
    pub next_batch: u64,
    /// The first batch that the tables do not hold.
    pub first_unflushed: u64,
    pub flush: Option<FlushJob>,
    pub merges: Vec<MergeJob>,
    /// Tables that the next manifest will not contain, and tables that are in no manifest but may still have readers.
    pub retired: Vec<Arc<Table>>,
    pub dead: Vec<Arc<Table>>,
    /// Bytes of changes for which flushing and merging is still due.
    pub credit: u64,
    /// The approximate number of changes in the write buffer that delete or replace a record.
    pub deletions: u64,
    /// Whether all runs must be merged as soon as the running merges are complete.
    pub wants_full_merge: bool,
    pub counts: MergeCounts,
    /// The zones of the log that is being replayed.
    pub recovering: Vec<u32>,
    pub process: u32,
    pub is_read_only: bool,
    /// The reason why writing has stopped, if it has.
    pub stopped: Option<String>,
}

/// Counts since the map was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeCounts {
    pub payload_bytes: u64,
    pub flushes: u64,
    pub merges: u64,
    pub full_merges: u64,
    pub commits: u64,
    /// Flushes that a change had to wait for, because the write buffer was full again.
    pub waits: u64,
    /// The most bytes that were flushed and merged in one call.
    pub longest_slice_bytes: u64,
}

impl Writer {
    pub fn new(zones: Zones, manifest: &Manifest) -> Self {
        Self {
            zones,
            log: Log::default(),
            generation: manifest.generation,
            next_table: manifest.next_table,
            next_run: manifest.next_run,
            next_batch: manifest.next_batch,
            first_unflushed: manifest.next_batch,
            flush: None,
            merges: Vec::new(),
            retired: Vec::new(),
            dead: Vec::new(),
            credit: 0,
            deletions: 0,
            wants_full_merge: false,
            counts: MergeCounts::default(),
            recovering: Vec::new(),
            process: std::process::id(),
            is_read_only: false,
            stopped: None,
        }
    }

    pub fn check_running<D: ZonedDevice>(&self, shared: &Shared<D>) -> Result<()> {
        let device = || shared.io.device.name();
        if self.is_read_only {
            return Err(Error::ReadOnly { device: device() });
        }
        if self.process != std::process::id() {
            return Err(Error::Forked { device: device(), process: self.process });
        }
        match &self.stopped {
            Some(what) => Err(Error::Stopped { device: device(), what: what.clone() }),
            None => Ok(()),
        }
    }

    /// Stops the writer if `result` is an error: the state of the device is unknown then.
    pub fn stop_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
        }
        result
    }

    pub fn apply<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> Result<()> {
        self.check_running(shared)?;
        if batch.is_empty() {
            return Ok(());
        }
        check_lengths(shared, batch)?;
        if batch.has_puts() {
            self.check_room(shared)?;
        }
        if self.log.needs_zone(&shared.io, &self.zones, batch.bytes().len()) && self.zones.free() == 0 {
            let made = self.make_room(shared);
            let is_merging = self.stop_on_error(made)?;
            if self.zones.free() == 0 {
                return Err(self.full(shared, is_merging));
            }
        }
        let logged = self.write_ahead(shared, batch);
        self.stop_on_error(logged)?;
        self.insert(shared, self.next_batch, batch);
        self.next_batch += 1;
        // The batch is logged and visible: a later error stops the writer, but does not fail this batch.
        let done = self.maintain(shared, batch.bytes().len() as u64);
        let _ = self.stop_on_error(done);
        Ok(())
    }

    /// Adds a batch to the write buffer and makes it visible.
    pub fn insert<D: ZonedDevice>(&mut self, shared: &Shared<D>, number: u64, batch: &Batch) {
        let memory = Arc::clone(&shared.version().memory);
        // While this lock is held, no snapshot is taken.
        let snapshots = shared.snapshots.lock().ignore_poison();
        let pinned = snapshots.last_key_value().map(|(&batch, _)| batch);
        for (key, value) in batch.changes() {
            memory.insert(key, value, number, pinned);
            self.counts.payload_bytes += (key.len() + value.map_or(0, <[u8]>::len)) as u64;
            self.deletions += u64::from(value.is_none());
        }
        shared.visible.store(number, Ordering::Release);
    }

    fn write_ahead<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> Result<()> {
        if self.log.needs_zone(&shared.io, &self.zones, batch.bytes().len()) {
            self.add_log_zone(shared)?;
        }
        self.log.append(&shared.io, &mut self.zones, self.next_batch, batch.bytes())?;
        if shared.options.durability == Durability::EachBatch {
            shared.io.device.flush()?;
        }
        Ok(())
    }

    fn add_log_zone<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        let Some(index) = self.zones.take_free(&shared.io.device, Role::Log)? else {
            return Err(self.full(shared, false));
        };
        self.log.add_zone(index, self.next_batch);
        self.commit(shared)?;
        self.log.finish_older(&shared.io, &mut self.zones)
    }

    /// Makes the current runs and log zones durable, and resets the zones that no manifest and no reader needs any more.
    pub fn commit<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        let dropped = self.log.drop_before(self.first_unflushed, false);
        self.commit_without(shared, &dropped)
    }

    /// Commits a manifest without these zones of the log, and frees them.
    pub fn commit_without<D: ZonedDevice>(&mut self, shared: &Shared<D>, dropped: &[usize]) -> Result<()> {
        shared.io.device.flush()?;
        let manifest = Manifest {
            map: shared.io.map,
            generation: self.generation + 1,
            next_table: self.next_table,
            next_run: self.next_run,
            next_batch: self.first_unflushed,
            log_zones: self.recovering.iter().copied().chain(self.log.zone_numbers(&self.zones)).collect(),
            runs: shared.version().runs.clone(),
        };
        manifest.write(&shared.io)?;
        shared.io.device.flush()?;
        self.generation += 1;
        self.counts.commits += 1;
        for &index in dropped {
            self.zones.zones[index].role = Role::Free;
        }
        self.dead.append(&mut self.retired);
        self.release(shared)
    }

    /// Resets the zones whose last table no reader uses any more.
    pub fn release<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        let zones = &mut self.zones;
        self.dead.retain(|table| {
            if Arc::strong_count(table) > 1 {
                return true;
            }
            if let Some(index) = zones.index(table.start) {
                zones.zones[index].tables = zones.zones[index].tables.saturating_sub(1);
            }
            false
        });
        zones.reset_dead(&shared.io.device)
    }

    /// Makes all batches so far durable.
    pub fn sync<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.check_running(shared)?;
        let flushed = shared.io.device.flush().map_err(Error::from);
        self.stop_on_error(flushed)
    }

    /// Writes the whole write buffer to tables, so that the next opening replays no log.
    pub fn flush_all<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.check_running(shared)?;
        let done = self.flush_everything(shared);
        self.stop_on_error(done)
    }

    pub fn flush_everything<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.finish_flush(shared)?;
        if !shared.version().memory.is_empty() {
            self.freeze(shared);
            self.finish_flush(shared)?;
        }
        self.first_unflushed = self.next_batch;
        let dropped = self.log.drop_before(self.first_unflushed, true);
        if dropped.is_empty() && self.retired.is_empty() {
            Ok(())
        } else {
            self.commit_without(shared, &dropped)
        }
    }

    pub fn full<D: ZonedDevice>(&self, shared: &Shared<D>, is_merging: bool) -> Error {
        let reserve = shared.sizes().reserve_zones();
        Error::Full { device: shared.io.device.name(), free: self.zones.free(), reserve, is_merging }
    }

    /// Replaces the version that readers see.
    pub fn install<D: ZonedDevice>(shared: &Shared<D>, change: impl FnOnce(&mut Version)) {
        let mut current = shared.version.write().ignore_poison();
        let mut version = Version::clone(&current);
        change(&mut version);
        *current = Arc::new(version);
    }

    /// Starts flushing the write buffer. The previous flush must be complete.
    pub fn freeze<D: ZonedDevice>(&mut self, shared: &Shared<D>) {
        let memory = Arc::clone(&shared.version().memory);
        self.flush = Some(FlushJob::new(memory, self.next_batch));
        self.log.bytes = 0;
        self.deletions = 0;
        Self::install(shared, |version| {
            version.frozen = Some(std::mem::replace(&mut version.memory, Arc::new(MemTable::default())));
        });
    }
}

fn check_lengths<D: ZonedDevice>(shared: &Shared<D>, batch: &Batch) -> Result<()> {
    let (key_bytes, value_bytes) = shared.sizes().longest_record();
    for (key, value) in batch.changes() {
        if key.len() > key_bytes {
            return Err(Error::KeyLength { bytes: key.len(), longest: key_bytes });
        }
        if let Some(value) = value.filter(|value| value.len() > value_bytes) {
            return Err(Error::ValueLength { bytes: value.len(), longest: value_bytes });
        }
    }
    let longest = shared.sizes().longest_batch() as usize;
    if batch.bytes().len() > longest {
        return Err(Error::BatchLength { bytes: batch.bytes().len(), longest });
    }
    Ok(())
}
