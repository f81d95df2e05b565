//! Records the reads of a transaction and checks whether they are still valid.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::map::KeyRange;
use crate::node::Value;
use crate::store::{Iter, Snapshot};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// An owned range of keys.
pub(super) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The result of reading a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Whether the key is present.
    Presence,
    Value,
}

/// The keys and ranges that a transaction has read.
#[derive(Debug, Default)]
pub(super) struct Reads {
    keys: BTreeMap<Vec<u8>, Part>,
    ranges: Vec<Bounds>,
}

impl Reads {
    pub fn key(&mut self, key: &[u8]) {
        self.add(key, Part::Value);
    }

    pub fn presence(&mut self, key: &[u8]) {
        self.add(key, Part::Presence);
    }

    fn add(&mut self, key: &[u8], part: Part) {
        match self.keys.get_mut(key) {
            Some(known) => *known = part.max(*known),
            None => _ = self.keys.insert(key.to_vec(), part),
        }
    }

    /// Adds a range and returns its index, for [`Reads::extend`].
    pub fn range(&mut self, bounds: Bounds) -> usize {
        self.ranges.push(bounds);
        self.ranges.len() - 1
    }

    /// The range with this index, to be extended as it is read.
    pub fn extend(&mut self, index: usize) -> &mut Bounds {
        &mut self.ranges[index]
    }

    /// Fails if a read from the snapshot has another result in the newest version.
    pub fn check<D: ZonedDevice>(&self, snapshot: &Snapshot<D>, newest: &Snapshot<D>) -> Result<()> {
        if Arc::ptr_eq(&snapshot.version.tree.root, &newest.version.tree.root) {
            return Ok(());
        }
        for (key, part) in &self.keys {
            if !is_same(snapshot, newest, key, *part)? {
                return conflict(key);
            }
        }
        for (start, end) in &self.ranges {
            let range =
                KeyRange { start: start.as_ref().map(Vec::as_slice), end: end.as_ref().map(Vec::as_slice) };
            check_rows(snapshot.range(range), newest.range(range))?;
        }
        Ok(())
    }
}

fn conflict(key: &[u8]) -> Result<()> {
    Err(Error::Conflict { key: key.escape_ascii().to_string() })
}

/// A value or its location.
#[derive(PartialEq, Eq)]
enum Known {
    Absent,
    Inline(Vec<u8>),
    Large(crate::node::Extent),
}

fn is_same<D: ZonedDevice>(
    snapshot: &Snapshot<D>,
    newest: &Snapshot<D>,
    key: &[u8],
    part: Part,
) -> Result<bool> {
    let io = &snapshot.shared.io;
    let known = |version: &Snapshot<D>| {
        let found = version.version.tree.with_leaf(io, key, |body| match body.get(key) {
            None | Some(Value::Deleted) => Known::Absent,
            Some(Value::Inline(value)) => Known::Inline(value.to_vec()),
            Some(Value::Extent(extent)) => Known::Large(extent),
        });
        found.map(|(known, _)| known)
    };
    Ok(match (known(snapshot)?, known(newest)?) {
        (Known::Absent, now) => now == Known::Absent,
        (_, Known::Absent) => false,
        _ if part == Part::Presence => true,
        // Garbage collection may have moved the value.
        (Known::Large(then), Known::Large(now)) if then != now => {
            io.read_extent(key, then)? == io.read_extent(key, now)?
        }
        (then, now) => then == now,
    })
}

/// Fails if two iterators do not return the same records.
fn check_rows<D: ZonedDevice>(mut then: Iter<D>, mut now: Iter<D>) -> Result<()> {
    loop {
        let (old, new) = (then.next_row()?, now.next_row()?);
        match (old, new) {
            (None, None) => return Ok(()),
            (Some(old), Some(new)) if old == new => {}
            (Some((old, _)), Some((new, _))) => return conflict(old.min(new)),
            (Some((key, _)), None) | (None, Some((key, _))) => return conflict(key),
        }
    }
}
