//! Snapshots, and iterators over keys and values from both ends.

use crate::cursor::MergeCursor;
use crate::error::Result;
use crate::memtable::is_empty_range;
use crate::shared::Shared;
use crate::version::Version;
use longma_locks::IgnorePoison;
use longma_zoned_device::ZonedDevice;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One state of a map. It stays readable while the map changes.
pub struct Snapshot<D: ZonedDevice> {
    shared: Arc<Shared<D>>,
    version: Arc<Version>,
    batch: u64,
}

impl<D: ZonedDevice> Drop for Snapshot<D> {
    fn drop(&mut self) {
        let mut snapshots = self.shared.snapshots.lock().ignore_poison();
        if let Some(count) = snapshots.get_mut(&self.batch) {
            *count -= 1;
            if *count == 0 {
                snapshots.remove(&self.batch);
            }
        }
    }
}

impl<D: ZonedDevice> Clone for Snapshot<D> {
    /// Another handle to the same state.
    fn clone(&self) -> Self {
        *self.shared.snapshots.lock().ignore_poison().entry(self.batch).or_default() += 1;
        Self { shared: Arc::clone(&self.shared), version: Arc::clone(&self.version), batch: self.batch }
    }
}

impl<D: ZonedDevice> Snapshot<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>) -> Self {
        // While this lock is held, no batch becomes visible.
        let mut snapshots = shared.snapshots.lock().ignore_poison();
        let version = shared.version();
        let batch = shared.visible.load(Ordering::Acquire);
        *snapshots.entry(batch).or_default() += 1;
        Self { shared: Arc::clone(shared), version, batch }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`], [`crate::Error::Device`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.version.get(&self.shared.io, key, self.batch, |value| value.map(<[u8]>::to_vec))
    }

    /// Iterates over all keys and values in key order, from either end.
    pub fn iter(&self) -> Iter<D> {
        self.range(Bound::Unbounded, Bound::Unbounded)
    }

    /// Iterates over the keys in a range and their values in key order, from either end.
    pub fn range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Iter<D> {
        self.clone().into_range(start, end)
    }

    pub(crate) fn into_range(self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Iter<D> {
        Iter::new(self, start, end)
    }
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// Iterates over keys and values in order, from either end. It shows the map as of its creation. After an error, it
/// ends.
pub struct Iter<D: ZonedDevice> {
    snapshot: Snapshot<D>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    front: Option<End>,
    back: Option<End>,
    has_failed: bool,
}

/// One end of an iterator.
struct End {
    cursor: MergeCursor,
    /// Whether the record at the cursor was returned already.
    is_used: bool,
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl<D: ZonedDevice> Iter<D> {
    fn new(snapshot: Snapshot<D>, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Self {
        let (start, end) = (start.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec));
        Self { snapshot, start, end, front: None, back: None, has_failed: false }
    }

    /// The record at one end that is next, if it is within the bounds.
    fn step(&mut self, ascending: bool) -> Result<Option<Pair>> {
        let range = (as_slice(&self.start), as_slice(&self.end));
        if is_empty_range(range) {
            return Ok(None);
        }
        let io = &self.snapshot.shared.io;
        let slot = if ascending { &mut self.front } else { &mut self.back };
        let end = match slot {
            Some(end) => end,
            None => {
                let start = if ascending { range.0 } else { range.1 };
                let version = &self.snapshot.version;
                let cursor = MergeCursor::of_version(io, version, self.snapshot.batch, ascending, start)?;
                slot.insert(End { cursor, is_used: false })
            }
        };
        loop {
            if std::mem::replace(&mut end.is_used, true) {
                end.cursor.advance(io)?;
            }
            let Some((key, value)) = end.cursor.current() else { return Ok(None) };
            let is_inside = match (ascending, range) {
                (true, (_, Bound::Included(end))) => key <= end,
                (true, (_, Bound::Excluded(end))) => key < end,
                (false, (Bound::Included(start), _)) => key >= start,
                (false, (Bound::Excluded(start), _)) => key > start,
                _ => true,
            };
            if !is_inside {
                return Ok(None);
            }
            if let Some(value) = value {
                return Ok(Some((key.to_vec(), value.to_vec())));
            }
        }
    }

    /// As [`Iter::step`], but ends the iterator after an error.
    fn step_or_end(&mut self, ascending: bool) -> Option<Result<Pair>> {
        if self.has_failed {
            return None;
        }
        let found = self.step(ascending).transpose()?;
        self.has_failed = found.is_err();
        Some(found)
    }
}

impl<D: ZonedDevice> Iterator for Iter<D> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.step_or_end(true)?;
        if let Ok((key, _)) = &found {
            self.start = Bound::Excluded(key.clone());
        }
        Some(found)
    }
}

impl<D: ZonedDevice> DoubleEndedIterator for Iter<D> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let found = self.step_or_end(false)?;
        if let Ok((key, _)) = &found {
            self.end = Bound::Excluded(key.clone());
        }
        Some(found)
    }
}
