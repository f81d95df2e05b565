//! The ordered map that every tree here is, so that one workload, test or benchmark drives them all.
//! Not the whole interface of the durable map: snapshots and checkpoints are `store`'s own.

use crate::error::Result;
use std::ops::{Bound, ControlFlow};

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From small keys to great ones.
    Ascending,
    /// From great keys to small ones.
    Descending,
}

/// The keys of a scan: between two bounds.
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'a> {
    /// Where the keys begin.
    pub start: Bound<&'a [u8]>,
    /// Where they end.
    pub end: Bound<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// All keys.
    pub const ALL: KeyRange<'static> = KeyRange { start: Bound::Unbounded, end: Bound::Unbounded };

    /// The keys from `key` on, itself included.
    pub const fn from(key: &'a [u8]) -> Self {
        KeyRange { start: Bound::Included(key), end: Bound::Unbounded }
    }

    /// The keys that begin with `prefix`; `after` is what [`after_prefix`] says of it.
    pub(crate) fn of_prefix(prefix: &'a [u8], after: Option<&'a [u8]>) -> Self {
        KeyRange { start: Bound::Included(prefix), end: after.map_or(Bound::Unbounded, Bound::Excluded) }
    }

    /// Whether the range begins at or before `key`.
    pub fn begins_before(&self, key: &[u8]) -> bool {
        match self.start {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        }
    }

    /// Whether the range ends at or after `key`.
    pub fn ends_after(&self, key: &[u8]) -> bool {
        match self.end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        }
    }
}

/// The least key that is greater than all that begin with `prefix`; nothing, if none is.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

/// What a scan calls with each key and value; `Break` ends it.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A map from byte strings to byte strings, ordered by the keys' bytes.
pub trait OrderedMap {
    /// What it is called in tables.
    fn name(&self) -> &'static str;

    /// The value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`]; [`crate::Error::KeyLength`] where the length is fixed.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Gives `key` a value, whether it has one or not; true if it had none.
    ///
    /// # Errors
    /// As [`OrderedMap::get`], and [`crate::Error::Full`], [`crate::Error::KeyLength`], [`crate::Error::ValueLength`].
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Takes `key` and its value away; true if it was there.
    ///
    /// # Errors
    /// As [`OrderedMap::put`].
    fn delete(&mut self, key: &[u8]) -> Result<bool>;

    /// Calls `visit` with the keys in `range` and their values, in order.
    ///
    /// # Errors
    /// As [`OrderedMap::get`].
    fn scan(&mut self, range: KeyRange<'_>, direction: Direction, visit: &mut Visit<'_>) -> Result<()>;

    /// How many keys there are.
    fn len(&self) -> u64;

    /// Whether there is no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all that was done outlast a power cut, where the map can.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    fn sync(&mut self) -> Result<()>;
}
