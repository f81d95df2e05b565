//! The trees as published, for counting: 8-byte keys and values, every node read from and written to the device at once.
//! Not for keeping data: nothing here survives a power cut or even a close; `store` is the map for that.
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index".

mod body;
mod counts;
mod cow;
mod fanout;
mod head;
mod record;
mod space;
mod zb;

pub use counts::{Counts, NodeKind, PaperCounts};
pub use cow::CowTree;
pub use fanout::Fanout;
pub use zb::{State, ZbTree};

use crate::error::{Error, Result};
use crate::map::KeyRange;
use std::ops::Bound;

/// A key of these trees: eight bytes, the most significant first, so that the order is that of the numbers.
fn key(bytes: &[u8]) -> Result<u64> {
    let wrong = |_| Error::KeyLength { bytes: bytes.len(), shortest: 8, longest: 8 };
    Ok(u64::from_be_bytes(bytes.try_into().map_err(wrong)?))
}

/// A value of these trees: eight bytes.
fn value(bytes: &[u8]) -> Result<u64> {
    let wrong = |_| Error::ValueLength { bytes: bytes.len(), shortest: 8, longest: 8 };
    Ok(u64::from_be_bytes(bytes.try_into().map_err(wrong)?))
}

/// The first and the last key of a range, if it can hold any.
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
