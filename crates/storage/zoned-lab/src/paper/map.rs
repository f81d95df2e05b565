//! The published trees as ordered maps with keys and values of eight bytes.

use super::{CowTree, ZbTree};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::{Error, Result};
use longma_zoned::map::{Direction, KeyRange, OrderedMap, Visit};
use std::ops::Bound;

/// Decodes a key: eight bytes, big-endian, so that byte order and numeric order agree.
fn key(bytes: &[u8]) -> Result<u64> {
    let wrong = |_| Error::KeyLength { bytes: bytes.len(), shortest: 8, longest: 8 };
    Ok(u64::from_be_bytes(bytes.try_into().map_err(wrong)?))
}

/// Decodes a value of eight bytes.
fn value(bytes: &[u8]) -> Result<u64> {
    let wrong = |_| Error::ValueLength { bytes: bytes.len(), shortest: 8, longest: 8 };
    Ok(u64::from_be_bytes(bytes.try_into().map_err(wrong)?))
}

/// The first and the last key of a range, or `None` if the range is empty.
fn bounds(range: KeyRange<'_>) -> Result<Option<(u64, u64)>> {
    let first = match range.start {
        Bound::Unbounded => Some(0),
        Bound::Included(start) => Some(key(start)?),
        Bound::Excluded(start) => key(start)?.checked_add(1),
    };
    let last = match range.end {
        Bound::Unbounded => Some(u64::MAX),
        Bound::Included(end) => Some(key(end)?),
        Bound::Excluded(end) => key(end)?.checked_sub(1),
    };
    Ok(first.zip(last).filter(|(first, last)| first <= last))
}

/// Implements `OrderedMap` for a tree by its numeric operations.
macro_rules! ordered_map {
    ($tree:ident, $name:literal) => {
        impl<D: ZonedDevice> OrderedMap for $tree<D> {
            fn name(&self) -> &'static str {
                $name
            }

            fn get(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
                Ok(self.search(key(bytes)?)?.map(|value| value.to_be_bytes().to_vec()))
            }

            fn put(&mut self, bytes: &[u8], new: &[u8]) -> Result<bool> {
                self.insert(key(bytes)?, value(new)?)
            }

            fn delete(&mut self, bytes: &[u8]) -> Result<bool> {
                self.remove(key(bytes)?)
            }

            fn scan(
                &mut self,
                range: KeyRange<'_>,
                direction: Direction,
                visit: &mut Visit<'_>,
            ) -> Result<()> {
                let Some(range) = bounds(range)? else { return Ok(()) };
                self.scan_between(range, direction, &mut |key, value| {
                    visit(&key.to_be_bytes(), &value.to_be_bytes())
                })
            }

            fn len(&self) -> u64 {
                self.len
            }

            fn sync(&mut self) -> Result<()> {
                Ok(self.space.device.flush()?)
            }
        }
    };
}

ordered_map!(ZbTree, "ZB+-tree");
ordered_map!(CowTree, "CoW B+-tree");
