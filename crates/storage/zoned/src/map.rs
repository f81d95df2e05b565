//! The ordered-map trait that every tree implements, so that one workload, test or benchmark can drive all of them.

use crate::error::Result;
use std::ops::{
    Bound, ControlFlow, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the smallest key to the greatest.
    Ascending,
    /// From the greatest key to the smallest.
    Descending,
}

/// A range of keys between two bounds.
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'a> {
    /// The lower bound.
    pub start: Bound<&'a [u8]>,
    /// The upper bound.
    pub end: Bound<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// All keys.
    pub const ALL: KeyRange<'static> = KeyRange { start: Bound::Unbounded, end: Bound::Unbounded };

    /// All keys greater than or equal to `key`.
    pub const fn from(key: &'a [u8]) -> Self {
        KeyRange { start: Bound::Included(key), end: Bound::Unbounded }
    }

    /// All keys that begin with `prefix`. `after` must be the result of [`after_prefix`].
    pub(crate) fn of_prefix(prefix: &'a [u8], after: Option<&'a [u8]>) -> Self {
        KeyRange { start: Bound::Included(prefix), end: after.map_or(Bound::Unbounded, Bound::Excluded) }
    }

    /// Whether `key` satisfies the lower bound.
    pub fn begins_before(&self, key: &[u8]) -> bool {
        match self.start {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        }
    }

    /// Whether `key` satisfies the upper bound.
    pub fn ends_after(&self, key: &[u8]) -> bool {
        match self.end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        }
    }
}

/// A range of keys: any range of `std::ops` over keys that are bytes, such as `"a".."b"`, `&key[..]..` or `..`, a pair of
/// bounds, or a [`KeyRange`].
///
/// Not [`std::ops::RangeBounds`], because the compiler could not infer its type parameter for `..` and for ranges of
/// references to arrays.
pub trait KeyBounds {
    /// The bounds.
    fn key_range(&self) -> KeyRange<'_>;
}

impl KeyBounds for KeyRange<'_> {
    fn key_range(&self) -> KeyRange<'_> {
        *self
    }
}

impl KeyBounds for RangeFull {
    fn key_range(&self) -> KeyRange<'_> {
        KeyRange::ALL
    }
}

impl<K: AsRef<[u8]>> KeyBounds for (Bound<K>, Bound<K>) {
    fn key_range(&self) -> KeyRange<'_> {
        KeyRange { start: self.0.as_ref().map(K::as_ref), end: self.1.as_ref().map(K::as_ref) }
    }
}

macro_rules! key_bounds {
    ($($range:ident),*) => {$(
        impl<K: AsRef<[u8]>> KeyBounds for $range<K> {
            fn key_range(&self) -> KeyRange<'_> {
                KeyRange { start: self.start_bound().map(K::as_ref), end: self.end_bound().map(K::as_ref) }
            }
        }
    )*};
}

key_bounds!(Range, RangeInclusive, RangeFrom, RangeTo, RangeToInclusive);

/// The smallest key greater than every key that begins with `prefix`, or `None` if there is none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

/// The callback of a scan. It receives each key and value; returning `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A map from byte strings to byte strings, ordered bytewise by key.
pub trait OrderedMap {
    /// The name of the implementation in result tables.
    fn name(&self) -> &'static str;

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`]; [`crate::Error::KeyLength`] if the map has a fixed key
    /// length.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Inserts `key` or replaces its value. Returns true if the key is new.
    ///
    /// # Errors
    /// Those of [`OrderedMap::get`], and [`crate::Error::Full`], [`crate::Error::KeyLength`],
    /// [`crate::Error::ValueLength`].
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Removes `key` and its value. Returns true if the key was present.
    ///
    /// # Errors
    /// Those of [`OrderedMap::put`].
    fn delete(&mut self, key: &[u8]) -> Result<bool>;

    /// Calls `visit` with each key in `range` and its value, in the given direction.
    ///
    /// # Errors
    /// Those of [`OrderedMap::get`].
    fn scan(&mut self, range: KeyRange<'_>, direction: Direction, visit: &mut Visit<'_>) -> Result<()>;

    /// The number of keys.
    fn len(&self) -> u64;

    /// Whether the map has no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all earlier changes durable, if the map supports it.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    fn sync(&mut self) -> Result<()>;
}
