//! The write buffer: changes that are not in a table yet, with the versions that snapshots need.

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value, or `None` for a deletion.
pub type Content = Option<Box<[u8]>>;

/// The versions of a key, the newest first. Each has the number of its batch.
struct Versions {
    newest: (u64, Content),
    older: Vec<(u64, Content)>,
}

impl Versions {
    /// The newest version of batch `batch` or an earlier one.
    fn at(&self, batch: u64) -> Option<&Content> {
        std::iter::once(&self.newest)
            .chain(&self.older)
            .find(|(number, _)| *number <= batch)
            .map(|(_, content)| content)
    }
}

/// Changes in memory, sorted by key.
#[derive(Default)]
pub struct MemTable {
    records: RwLock<BTreeMap<Box<[u8]>, Versions>>,
    memory: AtomicU64,
    payload: AtomicU64,
}

/// Memory of a record besides its key and value, for the tree and the allocator, bytes.
const RECORD_BYTES: u64 = 128;

impl MemTable {
    /// Applies a change of batch `batch`. `pinned` is the newest batch that is visible in a snapshot. A version that no
    /// snapshot needs is replaced.
    pub fn insert(&self, key: &[u8], content: Option<&[u8]>, batch: u64, pinned: Option<u64>) {
        let bytes = content.map_or(0, <[u8]>::len) as u64;
        let content: Content = content.map(Into::into);
        let mut records = self.records.write().ignore_poison();
        let Some(versions) = records.get_mut(key) else {
            let versions = Versions { newest: (batch, content), older: Vec::new() };
            records.insert(key.into(), versions);
            self.memory.fetch_add(RECORD_BYTES + key.len() as u64 + bytes, Ordering::Relaxed);
            self.payload.fetch_add(key.len() as u64 + bytes, Ordering::Relaxed);
            return;
        };
        let before = std::mem::replace(&mut versions.newest, (batch, content));
        if pinned.is_some_and(|pinned| before.0 <= pinned) {
            versions.older.insert(0, before);
            self.memory.fetch_add(64 + bytes, Ordering::Relaxed);
        } else {
            let gone = before.1.map_or(0, |content| content.len() as u64);
            self.memory.fetch_add(bytes, Ordering::Relaxed);
            self.memory.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    /// Memory, bytes.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Bytes of all keys and of the first value of each.
    pub fn payload(&self) -> u64 {
        self.payload.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.records.read().ignore_poison().is_empty()
    }

    /// Calls `look` with the version of `key` as of batch `batch`. `None` if there is none.
    pub fn get<R>(&self, key: &[u8], batch: u64, look: impl FnOnce(Option<&[u8]>) -> R) -> Option<R> {
        let records = self.records.read().ignore_poison();
        records.get(key)?.at(batch).map(|content| look(content.as_deref()))
    }

    /// At most `count` records in a range as of batch `batch`, in ascending order or from the greatest key down. They are
    /// copied, so that no lock is held while they are used.
    pub fn some(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        batch: u64,
        count: usize,
        ascending: bool,
    ) -> Vec<(Box<[u8]>, Content)> {
        if is_empty_range(range) {
            return Vec::new();
        }
        let records = self.records.read().ignore_poison();
        let copy = |key: &[u8], versions: &Versions| {
            versions.at(batch).map(|content| (Box::from(key), content.clone()))
        };
        let records = records.range::<[u8], _>(range);
        if ascending {
            records.filter_map(|(key, versions)| copy(key, versions)).take(count).collect()
        } else {
            records.rev().filter_map(|(key, versions)| copy(key, versions)).take(count).collect()
        }
    }
}

/// Whether the bounds of a range exclude every key. `BTreeMap::range` panics for some of these ranges.
pub fn is_empty_range(range: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match range {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
            start >= end
        }
        _ => false,
    }
}
