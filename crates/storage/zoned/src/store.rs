//! The durable ordered map on a zoned device: a ZB+-tree with a journal, checkpoints, snapshots and garbage collection.
//! Not the published algorithm bit for bit: that is `paper`; the design page says where and why this one departs.
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index", and what each file names.

mod balance;
mod batch;
mod cache;
mod cached;
mod changes;
mod check;
mod checkpoint;
mod edit;
mod io;
mod iter;
mod journal;
mod keys;
mod leaf;
mod load;
mod newest;
mod open;
mod output;
mod reclaim;
mod repair;
mod replay;
mod room;
mod snapshot;
mod space;
mod statistics;
mod superblock;
mod tree;
mod writer;

pub use crate::error::LostBatches;
pub use batch::Batch;
pub use check::{CheckReport, Problem};
pub use edit::TreeCounts;
pub use io::{Traffic, TrafficCounts};
pub use iter::{Iter, Record};
pub use open::Info;
pub use reclaim::ReclaimCounts;
pub use repair::{LostRange, RepairReport};
pub use snapshot::Snapshot;
pub use statistics::Statistics;

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::{Direction, KeyRange, OrderedMap, Visit};
use crate::node::{Page, Value};
use io::Io;
use load::Loading;
use newest::Newest;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use writer::Writer;

/// When a change is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the call that made it returned: each batch ends with a flush.
    EachBatch,
    /// After the next [`Store::sync`] or checkpoint. A power cut loses the newest batches, never one without all after it.
    Relaxed,
}

/// How a map is run. Nothing here is kept on the device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How much memory leaves may take, bytes. Inner nodes, a hundredth or so of the data, come on top, and so does what must stay of
    /// leaves that have changed: mostly the changes only. The latter bring a checkpoint about when they take half of this.
    pub cache_bytes: u64,
    /// How long the journal gets before a checkpoint shortens it, bytes: a longer one means fewer bytes written, and a longer time
    /// to open after a power cut.
    pub journal_bytes: u64,
    /// When a change is safe.
    pub durability: Durability,
}

impl Options {
    /// So much memory for leaves, a journal of a quarter of it, each batch safe.
    ///
    /// The more leaves stay in memory, the longer may changes gather in them, if the journal has room for as many: each leaf is then
    /// written for more of them.
    pub const fn with_cache(cache_bytes: u64) -> Self {
        Self { cache_bytes, journal_bytes: cache_bytes / 4, durability: Durability::EachBatch }
    }
}

impl Default for Options {
    /// 256 MiB of leaves, 64 MiB of journal, each batch safe.
    fn default() -> Self {
        Self::with_cache(256 << 20)
    }
}

/// How many changes a batch made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys that were new.
    pub inserted: u64,
    /// Keys that had a value before.
    pub updated: u64,
    /// Keys that were there and are gone.
    pub deleted: u64,
}

/// What readers and the writer share.
struct Shared<D> {
    io: Io<D>,
    options: Options,
    newest: Newest,
    writer: Mutex<Writer>,
    /// Where the cache's hand is: the key it goes on from. Whoever has it may drop leaves from memory.
    hand: Mutex<Vec<u8>>,
    /// Whether every leaf is in memory: then nothing has to be read before a batch.
    all_resident: AtomicBool,
    /// From how many bytes of leaves in memory on it is worth looking for some to drop, if that is more than the cache may take.
    shrink_from: AtomicU64,
}

/// An ordered map from byte strings to byte strings on a zoned device.
///
/// Any number of threads may use it at once: reads see the last batch that was applied, [`Store::snapshot`] keeps one moment. Writes
/// wait for each other, never for readers.
pub struct Store<D> {
    shared: Arc<Shared<D>>,
}

impl<D> Clone for Store<D> {
    /// Another handle of the same map.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Where a panic matters `Shared::writer` sees it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D> Shared<D> {
    /// The writer, for as long as nobody else has it. After a panic in it a batch may be half applied: then it is stopped, as after a
    /// failed write.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned| {
            let mut writer = poisoned.into_inner();
            writer.stopped.get_or_insert_with(|| "an operation panicked in the middle of a change".into());
            writer
        })
    }
}

impl<D: ZonedDevice> Store<D> {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        snapshot::get(&self.shared, &self.shared.newest.load().tree, key)
    }

    /// Gives `key` a value; true if it had none.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.put(key, value);
        Ok(self.apply(&batch)?.inserted == 1)
    }

    /// Takes `key` away; true if it was there.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.delete(key);
        Ok(self.apply(&batch)?.deleted == 1)
    }

    /// Makes all changes of a batch, or none. With [`Durability::EachBatch`] they are safe when it returns.
    ///
    /// # Errors
    /// [`crate::Error::KeyLength`], [`crate::Error::ValueLength`], [`crate::Error::Full`] and errors of reading: nothing was changed.
    /// After an error of writing the map only reads, [`crate::Error::Stopped`], until it is opened again; whether the batch is then
    /// there is not known.
    pub fn apply(&self, batch: &Batch) -> Result<Applied> {
        let applied = self.shared.writer().apply(&self.shared, batch)?;
        self.shared.shrink_cache();
        Ok(applied)
    }

    /// The map as it is now, for as long as the snapshot lives.
    pub fn snapshot(&self) -> Snapshot<D> {
        Snapshot::new(&self.shared)
    }

    /// All keys and values as they are now, in order, from either end.
    pub fn iter(&self) -> Iter<D> {
        self.snapshot().iter()
    }

    /// The keys in `range` and their values as they are now, in order, from either end.
    pub fn range(&self, range: KeyRange<'_>) -> Iter<D> {
        self.snapshot().range(range)
    }

    /// The keys that begin with `prefix` and their values as they are now, in order, from either end.
    pub fn prefix(&self, prefix: &[u8]) -> Iter<D> {
        self.snapshot().prefix(prefix)
    }

    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.shared.newest.load().tree.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The longest key and the longest value that this map takes, bytes.
    pub fn limits(&self) -> (usize, usize) {
        let key = Page::limits(self.shared.io.node_bytes).0;
        (key, self.shared.longest_value())
    }

    /// Makes all changes so far safe.
    ///
    /// # Errors
    /// [`crate::Error::Device`], and then the map is stopped.
    pub fn sync(&self) -> Result<()> {
        self.shared.writer().sync(&self.shared)
    }

    /// Writes a whole checkpoint: opening the map again then replays nothing.
    ///
    /// # Errors
    /// [`crate::Error::Device`], and then the map is stopped.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.writer().checkpoint_now(&self.shared)
    }

    /// Writes a checkpoint, unless the map was opened for reading, and lets the map go. Without it nothing is lost, but opening again
    /// replays the journal.
    ///
    /// # Errors
    /// As [`Store::checkpoint`].
    pub fn close(self) -> Result<()> {
        let mut writer = self.shared.writer();
        if writer.is_read_only { Ok(()) } else { writer.checkpoint_now(&self.shared) }
    }

    /// Loads records in ascending order of their keys, faster than by batches: they do not go through the journal, and leave full
    /// leaves behind. All of them are there and safe when it returns, and none before. Keys that are there already get the new
    /// values. Others read and write meanwhile, as `records` may itself.
    ///
    /// # Errors
    /// [`crate::Error::Unsorted`], and as [`Store::apply`]; nothing was loaded then. After an error of writing the map only reads, and
    /// whether the records are there when it is opened again is not known: all of them or none.
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let mut loading = Loading::begin(&self.shared)?;
        let (mut count, mut last): (u64, Option<Vec<u8>>) = (0, None);
        for (key, value) in records {
            let key = key.as_ref();
            if last.as_ref().is_some_and(|last| key <= &last[..]) {
                return Err(crate::Error::Unsorted { record: count });
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

    /// The device.
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

/// The value itself, wherever it is.
fn load_value<D: ZonedDevice>(io: &Io<D>, key: &[u8], value: Value<'_>) -> Result<Option<Vec<u8>>> {
    match value {
        Value::Inline(value) => Ok(Some(value.to_vec())),
        Value::Extent(extent) => io.read_extent(key, extent).map(Some),
        Value::Deleted => Ok(None),
    }
}
