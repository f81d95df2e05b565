//! The public interface of the map.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::io::TrafficCounts;
use crate::read::{Iter, Snapshot};
use crate::shared::Shared;
use crate::writer::Writer;
use longma_zoned_device::{Block, ZonedDevice};
use serde::Serialize;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

/// An ordered map from byte strings to byte strings on a zoned device, as sorted runs. **Experimental.**
///
/// Any number of threads may use it. Writers wait for each other; readers wait for a writer only while it adds a batch to
/// the write buffer.
pub struct Store<D> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) writer: Arc<Mutex<Writer>>,
}

impl<D> Clone for Store<D> {
    /// Another handle to the same map.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), writer: Arc::clone(&self.writer) }
    }
}

/// The runs of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierStatistics {
    /// The tier, from 0.
    pub tier: u8,
    /// Its runs.
    pub runs: u64,
    /// Their records, including deletions.
    pub records: u64,
    /// Their size, bytes.
    pub bytes: u64,
}

/// The state of a map, and counts since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// The runs by tier.
    pub tiers: Vec<TierStatistics>,
    /// Tables of all runs.
    pub tables: u64,
    /// Records and deletions in the runs.
    pub records: u64,
    /// Deletions in the runs.
    pub deletions: u64,
    /// An estimate of records that newer ones have replaced or deleted.
    pub obsolete: u64,
    /// Memory of the write buffer, bytes.
    pub buffer_bytes: u64,
    /// Memory of the cache, bytes.
    pub cache_bytes: u64,
    /// Sequential zones.
    pub zones: u64,
    /// Empty zones.
    pub free_zones: u64,
    /// Free zones that only deletions and merges may use.
    pub reserve_zones: u64,
    /// The size of all zones that are not empty, bytes.
    pub space_bytes: u64,
    /// Bytes of keys and values changed.
    pub payload_bytes: u64,
    /// Bytes written and blocks read.
    pub traffic: TrafficCounts,
    /// Flushes of the write buffer.
    pub flushes: u64,
    /// Merges completed.
    pub merges: u64,
    /// Merges of all runs.
    pub full_merges: u64,
    /// Merges in progress.
    pub merging: u64,
    /// Manifests written.
    pub commits: u64,
    /// Zones reset.
    pub resets: u64,
    /// Flushes that a change had to wait for.
    pub waits: u64,
    /// The most bytes that were flushed and merged in one call.
    pub longest_slice_bytes: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Tables read.
    pub tables: u64,
    /// Data blocks read.
    pub blocks: u64,
    /// Records read, including deletions.
    pub records: u64,
    /// The problems found: block and fault.
    pub problems: Vec<(Block, String)>,
}

impl<D: ZonedDevice> Store<D> {
    /// The writer. If a thread panicked while it held the lock, writing stops.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned| {
            let mut writer = poisoned.into_inner();
            writer.stopped.get_or_insert_with(|| "an operation panicked during a change".into());
            writer
        })
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Device`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.shared.version().get(&self.shared.io, key, u64::MAX, |value| value.map(<[u8]>::to_vec))
    }

    /// Whether the map has `key`.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        self.shared.version().get(&self.shared.io, key, u64::MAX, |value| value.is_some())
    }

    /// Inserts `key` or replaces its value.
    ///
    /// # Errors
    /// Those of [`Store::apply`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(key, value);
        self.apply(&batch)
    }

    /// Removes `key`, if the map has it.
    ///
    /// # Errors
    /// Those of [`Store::apply`], except [`Error::Full`] due to the number of records.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(key);
        self.apply(&batch)
    }

    /// Applies all changes of a batch atomically. With [`Durability::EachBatch`] the batch is durable when the call returns.
    ///
    /// # Errors
    /// [`Error::KeyLength`], [`Error::ValueLength`], [`Error::BatchLength`] and [`Error::Full`] leave the map unchanged. A
    /// batch that only deletes is accepted by a full map. After a write error the map accepts no more changes
    /// ([`Error::Stopped`]) until it is opened again; the failed batch may or may not be present then.
    pub fn apply(&self, batch: &Batch) -> Result<()> {
        self.writer().apply(&self.shared, batch)
    }

    /// Returns a snapshot of the current state. It is readable as long as it exists.
    pub fn snapshot(&self) -> Snapshot<D> {
        Snapshot::new(&self.shared)
    }

    /// Iterates over all current keys and values in key order, from either end.
    pub fn iter(&self) -> Iter<D> {
        self.snapshot().into_range(Bound::Unbounded, Bound::Unbounded)
    }

    /// Iterates over the current keys in a range and their values in key order, from either end.
    pub fn range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Iter<D> {
        self.snapshot().into_range(start, end)
    }

    /// The longest key and the longest value, bytes.
    pub fn limits(&self) -> (usize, usize) {
        self.shared.sizes().longest_record()
    }

    /// The longest batch: bytes of its keys and values, plus about ten bytes for each change.
    pub fn longest_batch(&self) -> usize {
        self.shared.sizes().longest_batch() as usize
    }

    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// [`Error::Device`]; writing is stopped then.
    pub fn sync(&self) -> Result<()> {
        self.writer().sync(&self.shared)
    }

    /// Writes the write buffer to a run, so that the next opening replays no log.
    ///
    /// # Errors
    /// [`Error::Device`]; writing is stopped then.
    pub fn flush(&self) -> Result<()> {
        self.writer().flush_all(&self.shared)
    }

    /// Merges all runs into one. Other writers wait until it is complete.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Damaged`]; writing is stopped then.
    pub fn merge_all(&self) -> Result<()> {
        self.writer().merge_all(&self.shared)
    }

    /// Flushes the write buffer, unless the map is open for reading only, and drops this handle. Skipping `close` loses no
    /// data, but the next open replays the log.
    ///
    /// # Errors
    /// Those of [`Store::flush`]; [`Error::StillOpen`] if other handles, snapshots or iterators keep the map open.
    pub fn close(self) -> Result<()> {
        let mut writer = self.writer();
        if !writer.is_read_only {
            writer.flush_all(&self.shared)?;
        }
        drop(writer);
        match Arc::strong_count(&self.shared) - 1 {
            0 => Ok(()),
            handles => Err(Error::StillOpen { device: self.shared.io.device.name(), handles }),
        }
    }

    /// Reads every block of every table and checks it. Changes in the write buffer are not checked.
    ///
    /// # Errors
    /// None for damage, which is in the report; [`Error::Device`] if the device fails otherwise.
    pub fn check(&self) -> Result<CheckReport> {
        let version = self.shared.version();
        let mut report = CheckReport::default();
        for piece in version.runs.iter().flat_map(|run| &run.pieces) {
            report.tables += 1;
            let table = &piece.table;
            let index = match self.shared.io.index(table) {
                Ok(index) => index,
                Err(error) => {
                    report.problems.push((Block(table.start), error.to_string()));
                    continue;
                }
            };
            for number in 0..index.len() {
                let (page, pages) = index.pages_of(number);
                let address = self.shared.io.address(table, page);
                let read = self.shared.io.read(address.block, pages as usize);
                match read.and_then(|bytes| self.shared.io.decode(&address, &bytes)) {
                    Ok(block) => report.records += block.len() as u64,
                    Err(error) => report.problems.push((Block(address.block), error.to_string())),
                }
                report.blocks += 1;
            }
        }
        Ok(report)
    }

    /// The state of the map, and counts of its operations since it was opened.
    pub fn statistics(&self) -> Statistics {
        let writer = self.writer();
        let version = self.shared.version();
        let io = &self.shared.io;
        let mut tiers: Vec<TierStatistics> = Vec::new();
        for run in &version.runs {
            let (records, bytes) = (run.records(), run.pages() * io.page_bytes as u64);
            match tiers.iter_mut().find(|tier| tier.tier == run.tier) {
                Some(tier) => {
                    tier.runs += 1;
                    tier.records += records;
                    tier.bytes += bytes;
                }
                None => tiers.push(TierStatistics { tier: run.tier, runs: 1, records, bytes }),
            }
        }
        let zone_bytes = io.geometry.zone_capacity_blocks * u64::from(io.geometry.block_bytes);
        let frozen = version.frozen.as_ref().map_or(0, |frozen| frozen.memory());
        let deletions = version.runs.iter().map(|run| run.tombstones()).sum();
        Statistics {
            tables: version.runs.iter().map(|run| run.pieces.len() as u64).sum(),
            records: version.runs.iter().map(|run| run.records()).sum(),
            deletions,
            obsolete: deletions + version.runs.iter().map(|run| run.shadowing).sum::<u64>(),
            buffer_bytes: version.memory.memory() + frozen,
            cache_bytes: io.cache.memory() as u64,
            zones: writer.zones.zones.len() as u64,
            free_zones: writer.zones.free(),
            reserve_zones: self.shared.sizes().reserve_zones(),
            space_bytes: (writer.zones.zones.len() as u64 - writer.zones.free()) * zone_bytes,
            payload_bytes: writer.counts.payload_bytes,
            traffic: io.traffic(),
            flushes: writer.counts.flushes,
            merges: writer.counts.merges,
            full_merges: writer.counts.full_merges,
            merging: writer.merges.len() as u64,
            commits: writer.counts.commits,
            resets: writer.zones.resets,
            waits: writer.counts.waits,
            longest_slice_bytes: writer.counts.longest_slice_bytes,
            tiers,
        }
    }

    /// The device that holds the map.
    pub fn device(&self) -> &D {
        &self.shared.io.device
    }
}
