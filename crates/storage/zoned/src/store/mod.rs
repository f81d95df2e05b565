//! The durable ordered map on a zoned device: a ZB+-tree with a journal, checkpoints, snapshots and garbage collection.
//! The design page of the book lists where it departs from the published algorithm, and why.
//!
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index". Each module names its further sources.

/// Encoded reads and writes, and their counts.
mod io;
mod journal;
/// Format, open and recovery.
mod open;
mod read;
mod space;
/// The superblocks that commit checkpoints, and the space tables.
mod superblock;
mod tools;
mod transaction;
mod tree;
mod write;

pub use crate::error::LostBatches;
pub use io::{Traffic, TrafficCounts};
pub use journal::batch::Batch;
pub use open::Info;
pub use read::iter::{Iter, Record};
pub use read::snapshot::Snapshot;
pub use space::reclaim::ReclaimCounts;
pub use tools::check::{CheckReport, Problem};
pub use tools::repair::{LostRange, RepairReport};
pub use tools::statistics::Statistics;
pub use transaction::rows::TransactionRows;
pub use transaction::{CompareFailed, Transaction};
pub use tree::edit::TreeCounts;

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::{Direction, KeyBounds, KeyRange, OrderedMap, Visit};
use crate::node::{Page, Value};
use io::Io;
use read::published::Published;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use write::load::BulkLoad;
use write::writer::WriterLock;

/// When a change becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the call that made it returns: each batch ends with a flush.
    EachBatch,
    /// At the next [`Store::sync`] or checkpoint. Until then a batch is in the device's write cache or in the page
    /// cache of a file. It survives a killed process. A power cut may lose the newest batches, but leaves no gap, and
    /// the map opens without an error. A damaged batch is always an error ([`crate::Error::JournalDamaged`]), even if a
    /// power cut could have lost it.
    Relaxed,
}

/// Runtime settings of a map. None of them is stored on the device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory for leaves and inner nodes, bytes, including the changes that no checkpoint has written yet. Changed
    /// leaves that cannot be evicted start a checkpoint when they fill this memory, or half of it if the map is larger.
    /// Buffers and the allocator's overhead are not included; they take less than 64 MiB. Inner nodes take about 150 bytes
    /// for each leaf. They are evicted too, so a read may need two nodes from the device if this memory holds less.
    pub cache_bytes: u64,
    /// The journal size at which a checkpoint truncates it, bytes. A longer journal means fewer bytes written, but
    /// recovery after a power cut takes longer.
    pub journal_bytes: u64,
    /// When a change becomes durable.
    pub durability: Durability,
}

impl Options {
    /// Settings with `cache_bytes` of leaf cache, a journal of a quarter of that, and durability with each batch.
    ///
    /// A larger cache lets more changes accumulate in a leaf before a checkpoint writes it, provided that the journal
    /// has room for them.
    pub const fn with_cache(cache_bytes: u64) -> Self {
        Self { cache_bytes, journal_bytes: cache_bytes / 4, durability: Durability::EachBatch }
    }
}

impl Default for Options {
    /// 256 MiB of leaf cache, 64 MiB of journal, durability with each batch.
    fn default() -> Self {
        Self::with_cache(256 << 20)
    }
}

/// The changes that a batch made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys that were inserted.
    pub inserted: u64,
    /// Keys whose value was replaced.
    pub updated: u64,
    /// Keys that were deleted.
    pub deleted: u64,
}

/// State that readers and the writer share.
pub(crate) struct Shared<D> {
    /// The identifier given when the map was formatted.
    id: u64,
    io: Io<D>,
    options: Options,
    published: Published,
    /// The clock hand of the cache: the key at which the next sweep starts. Nodes may be evicted only while this
    /// lock is held.
    clock_hand: Mutex<Vec<u8>>,
    /// Whether every leaf is in memory, so that a batch never has to read leaves first.
    all_resident: AtomicBool,
    /// The number of resident bytes at which the next eviction sweep is worthwhile. It applies if it is greater than
    /// the cache limit.
    shrink_from: AtomicU64,
}

/// An ordered map from byte strings to byte strings on a zoned device.
///
/// Any number of threads may use it concurrently. Reads see the last applied batch; [`Store::snapshot`] pins one
/// version. Writers wait for each other but never for readers.
pub struct Store<D> {
    shared: Arc<Shared<D>>,
    writer: Arc<WriterLock>,
}

impl<D> Clone for Store<D> {
    /// Another handle to the same map.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), writer: Arc::clone(&self.writer) }
    }
}

impl<D: ZonedDevice> Store<D> {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        read::snapshot::get(&self.shared, &self.shared.published.load().tree, key)
    }

    /// Returns the value of `key` if `admit` accepts its length in bytes. Otherwise, the value is neither read nor
    /// copied.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn get_if(&self, key: &[u8], admit: impl FnOnce(usize) -> bool) -> Result<Option<Vec<u8>>> {
        read::snapshot::get_if(&self.shared, &self.shared.published.load().tree, key, admit)
    }

    /// Whether the map has `key`.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        read::snapshot::contains_key(&self.shared, &self.shared.published.load().tree, key)
    }

    /// Inserts `key` or replaces its value. Returns true if the key is new.
    ///
    /// # Errors
    /// Those of [`Store::apply`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.put(key, value);
        Ok(self.apply(&batch)?.inserted == 1)
    }

    /// Removes `key`. Returns true if it was present.
    ///
    /// # Errors
    /// Those of [`Store::apply`].
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.delete(key);
        Ok(self.apply(&batch)?.deleted == 1)
    }

    /// Applies all changes of a batch atomically. With [`Durability::EachBatch`] the batch is durable when the call
    /// returns.
    ///
    /// # Errors
    /// [`crate::Error::KeyLength`], [`crate::Error::ValueLength`], [`crate::Error::Full`] and read errors leave the map
    /// unchanged. After a write error the map accepts no more changes ([`crate::Error::Stopped`]) until it is opened
    /// again; the failed batch may or may not be present then.
    pub fn apply(&self, batch: &Batch) -> Result<Applied> {
        let applied = self.writer.lock().apply(&self.shared, batch)?;
        self.shared.shrink_cache();
        Ok(applied)
    }

    /// Applies a batch if `check` accepts the newest version, which no other thread can change meanwhile.
    fn apply_if(&self, batch: &Batch, check: impl FnOnce(&Snapshot<D>) -> Result<()>) -> Result<Applied> {
        let mut writer = self.writer.lock();
        check(&self.snapshot())?;
        if batch.is_empty() {
            return Ok(Applied::default());
        }
        let applied = writer.apply(&self.shared, batch)?;
        drop(writer);
        self.shared.shrink_cache();
        Ok(applied)
    }

    /// Returns a snapshot of the current state. It is readable as long as it exists.
    pub fn snapshot(&self) -> Snapshot<D> {
        Snapshot::new(&self.shared)
    }

    /// Iterates over all current keys and values in key order, from either end.
    pub fn iter(&self) -> Iter<D> {
        self.snapshot().iter()
    }

    /// Iterates over the current keys in `range` and their values in key order, from either end.
    pub fn range(&self, range: impl KeyBounds) -> Iter<D> {
        self.snapshot().range(range)
    }

    /// Iterates over the current keys that begin with `prefix` and their values in key order, from either end.
    pub fn prefix(&self, prefix: &[u8]) -> Iter<D> {
        self.snapshot().prefix(prefix)
    }

    /// The number of keys.
    pub fn len(&self) -> u64 {
        self.shared.published.load().tree.len
    }

    /// Whether the map has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The maximum length of a key and of a value, bytes.
    pub fn limits(&self) -> (usize, usize) {
        let key = Page::limits(self.shared.io.node_bytes).0;
        (key, self.shared.longest_value())
    }

    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// [`crate::Error::Device`]; the map is stopped then.
    pub fn sync(&self) -> Result<()> {
        self.writer.lock().sync(&self.shared)
    }

    /// Writes a complete checkpoint, so that opening the map again replays nothing.
    ///
    /// # Errors
    /// [`crate::Error::Device`]; the map is stopped then.
    pub fn checkpoint(&self) -> Result<()> {
        self.writer.lock().checkpoint_now(&self.shared)
    }

    /// Writes a checkpoint, unless the map is open for reading only, and drops this handle. The device is free for
    /// another use when the call returns `Ok`. Skipping `close` loses no data, but the next open has to replay the
    /// journal.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`]; [`crate::Error::StillOpen`] if other handles, snapshots or iterators keep the map
    /// open. The checkpoint is written then.
    pub fn close(self) -> Result<()> {
        let mut writer = self.writer.lock();
        if !writer.is_read_only {
            writer.checkpoint_now(&self.shared)?;
        }
        match Arc::strong_count(&self.shared) - 1 {
            0 => Ok(()),
            handles => Err(crate::Error::StillOpen { device: self.shared.io.device.name(), handles }),
        }
    }

    /// Bulk-loads records in ascending key order. This is faster than batches: the records bypass the journal and fill
    /// leaves completely. The load is atomic, and durable when the call returns. Existing keys receive the new values.
    /// Other threads may read and write during the load, and so may the `records` iterator.
    ///
    /// # Errors
    /// [`crate::Error::Unsorted`] and the errors of [`Store::apply`]; nothing is loaded then. After a write error the
    /// map accepts no more changes, and when it is opened again either all records are present or none.
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let mut loading = BulkLoad::begin(&self.shared, &self.writer)?;
        let (mut count, mut last): (u64, Option<Vec<u8>>) = (0, None);
        for (key, value) in records {
            let key = key.as_ref();
            if last.as_ref().is_some_and(|last| key <= &last[..]) {
                return Err(crate::Error::Unsorted { record: count + 1 });
            }
            let keep = last.get_or_insert_default();
            keep.clear();
            keep.extend_from_slice(key);
            loading.push(key, value.as_ref())?;
            count += 1;
        }
        loading.end()?;
        self.shared.shrink_cache();
        Ok(count)
    }

    /// The device that holds the map.
    pub fn device(&self) -> &D {
        &self.shared.io.device
    }
}

impl<D: ZonedDevice> OrderedMap for Store<D> {
    fn name(&self) -> &'static str {
        "Longma"
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Store::get(self, key)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        Store::put(self, key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Store::delete(self, key)
    }

    fn scan(&mut self, range: KeyRange<'_>, direction: Direction, visit: &mut Visit<'_>) -> Result<()> {
        let mut rows = self.range(range);
        loop {
            let row = match direction {
                Direction::Ascending => rows.next_row()?,
                Direction::Descending => rows.next_back_row()?,
            };
            match row {
                Some((key, value)) if visit(key, value).is_continue() => {}
                _ => return Ok(()),
            }
        }
    }

    fn len(&self) -> u64 {
        Store::len(self)
    }

    fn sync(&mut self) -> Result<()> {
        Store::sync(self)
    }
}

/// Returns the bytes of a value, reading an out-of-line value from the device.
fn load_value<D: ZonedDevice>(io: &Io<D>, key: &[u8], value: Value<'_>) -> Result<Option<Vec<u8>>> {
    match value {
        Value::Inline(value) => Ok(Some(value.to_vec())),
        Value::Extent(extent) => io.read_extent(key, extent).map(Some),
        Value::Deleted => Ok(None),
    }
}
