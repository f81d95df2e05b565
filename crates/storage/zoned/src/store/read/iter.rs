//! Ordered iteration over a snapshot, from either end.

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::{Direction, KeyRange};
use crate::node::Value;
use crate::store::load_value;
use crate::store::read::snapshot::Snapshot;
use crate::store::tree::leaf::{LeafBody, merged};
use crate::store::tree::nodes::{Children, Inner};
use std::cmp::Ordering;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, Range};
use std::sync::Arc;

/// A double-ended iterator over a range of keys and their values. It owns its snapshot.
///
/// [`Iter::next_row`] and [`Iter::next_back_row`] lend each record and are the fastest. The [`Iterator`] implementation
/// returns owned records. Records taken from both ends do not overlap. A record whose large value cannot be read yields
/// an error, and iteration continues after it. A leaf that cannot be read ends the iteration; [`Iter::seek`] moves it
/// to another key.
pub struct Iter<D> {
    snapshot: Snapshot<D>,
    /// The range given at construction.
    whole: Bounds,
    /// The part of `whole` selected by the last seek.
    bounds: Bounds,
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// Both ends are in the same leaf, and `front` serves both.
    is_joined: bool,
    is_done: bool,
    /// The number of leaves read since the last seek.
    leaves: u64,
    /// The large value that was returned last.
    large: Vec<u8>,
}

/// An owned range of keys.
#[derive(Clone)]
struct Bounds {
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
}

/// A position in the tree: a leaf and its records not yet returned.
struct Cursor {
    /// The path from the root: each node with the index of the child taken.
    path: Vec<(Arc<Inner>, usize)>,
    body: Arc<LeafBody>,
    left: Range<usize>,
    /// Whether the range ends in this leaf.
    is_last: bool,
}

/// A key and its value. A record keeps its whole leaf in memory: copy records that live long.
#[derive(Clone)]
pub struct Record {
    body: Arc<LeafBody>,
    index: usize,
    /// The value, if it is out of line.
    large: Option<Vec<u8>>,
}

impl Record {
    /// The key.
    pub fn key(&self) -> &[u8] {
        self.body.leaf.key(self.index)
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        match (&self.large, self.body.leaf.value(self.index)) {
            (Some(value), _) => value,
            (None, Value::Inline(value)) => value,
            (None, _) => &[],
        }
    }

    /// Returns copies of the key and the value.
    pub fn to_pair(&self) -> (Vec<u8>, Vec<u8>) {
        (self.key().to_vec(), self.value().to_vec())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (self.key().escape_ascii(), self.value().escape_ascii());
        write!(f, "Record({key}, {value})")
    }
}

impl<D: ZonedDevice> Snapshot<D> {
    /// Reads the large value of a record.
    #[cold]
    fn large_value(&self, body: &LeafBody, index: usize) -> Result<Vec<u8>> {
        let key = body.leaf.key(index);
        Ok(load_value(&self.shared.io, key, body.leaf.value(index))?.unwrap_or_default())
    }
}

impl Bounds {
    fn range(&self) -> KeyRange<'_> {
        let [start, end] = [&self.start, &self.end].map(|bound| bound.as_ref().map(|key| &key[..]));
        KeyRange { start, end }
    }

    /// The indices of the leaf's records that are in the range.
    fn inside(&self, body: &LeafBody) -> Range<usize> {
        let page = &body.leaf;
        let place = |key: &[u8], behind: bool| match page.find(key) {
            Ok(at) => at + usize::from(behind),
            Err(at) => at,
        };
        let range = self.range();
        let start = match range.start {
            Bound::Unbounded => 0,
            Bound::Included(key) => place(key, false),
            Bound::Excluded(key) => place(key, true),
        };
        let end = match range.end {
            Bound::Unbounded => page.count(),
            Bound::Included(key) => place(key, true),
            Bound::Excluded(key) => place(key, false),
        };
        start..end
    }
}

impl Cursor {
    /// Takes the next record from the given end.
    fn take(&mut self, direction: Direction) -> Option<usize> {
        match direction {
            Direction::Ascending => self.left.next(),
            Direction::Descending => self.left.next_back(),
        }
    }

    /// Compares two positions in key order.
    fn compare(&self, other: &Self) -> Ordering {
        let place = |cursor: &Self| cursor.path.iter().map(|(_, child)| *child).collect::<Vec<_>>();
        place(self).cmp(&place(other))
    }
}

impl<D: ZonedDevice> Iter<D> {
    pub(crate) fn new(snapshot: Snapshot<D>, KeyRange { start, end }: KeyRange<'_>) -> Self {
        let bounds = Bounds { start: start.map(<[u8]>::to_vec), end: end.map(<[u8]>::to_vec) };
        Self {
            snapshot,
            whole: bounds.clone(),
            bounds,
            front: None,
            back: None,
            is_joined: false,
            is_done: false,
            leaves: 0,
            large: Vec::new(),
        }
    }

    /// Restarts the iterator at `key`: it returns the keys of its range from `key` (inclusive) on, from either end,
    /// regardless of what it has returned before.
    pub fn seek(&mut self, key: &[u8]) {
        let mut bounds = self.whole.clone();
        if self.whole.range().begins_before(key) {
            bounds.start = Bound::Included(key.to_vec());
        }
        self.begin_again(bounds);
    }

    /// Restarts the iterator with `key` as its upper end: it returns the keys of its range up to `key` (inclusive),
    /// from either end.
    pub fn seek_back(&mut self, key: &[u8]) {
        let mut bounds = self.whole.clone();
        if self.whole.range().ends_after(key) {
            bounds.end = Bound::Included(key.to_vec());
        }
        self.begin_again(bounds);
    }

    fn begin_again(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        (self.front, self.back) = (None, None);
        (self.is_joined, self.is_done, self.leaves) = (false, false, 0);
    }

    /// Lends the next record as its key and value.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    #[inline]
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.lend(Direction::Ascending)
    }

    /// Lends the next record from the back.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    #[inline]
    pub fn next_back_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.lend(Direction::Descending)
    }

    #[inline]
    fn lend(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        let Some(index) = self.step(direction)? else { return Ok(None) };
        let is_front = self.is_joined || direction == Direction::Ascending;
        let Some(Cursor { body, .. }) = (if is_front { &self.front } else { &self.back }) else {
            return Ok(None);
        };
        let key = body.leaf.key(index);
        let value = match body.leaf.value(index) {
            Value::Inline(value) => value,
            _ => {
                self.large = self.snapshot.large_value(body, index)?;
                &self.large
            }
        };
        Ok(Some((key, value)))
    }

    fn record(&mut self, direction: Direction) -> Result<Option<Record>> {
        let Some(index) = self.step(direction)? else { return Ok(None) };
        let is_front = self.is_joined || direction == Direction::Ascending;
        let Some(Cursor { body, .. }) = (if is_front { &self.front } else { &self.back }) else {
            return Ok(None);
        };
        let body = Arc::clone(body);
        let large = match body.leaf.value(index) {
            Value::Inline(_) => None,
            _ => Some(self.snapshot.large_value(&body, index)?),
        };
        Ok(Some(Record { body, index, large }))
    }

    /// Advances one end and returns the index of the record in the leaf of that end's cursor.
    #[inline]
    fn step(&mut self, direction: Direction) -> Result<Option<usize>> {
        while !self.is_done {
            let is_front = self.is_joined || direction == Direction::Ascending;
            let cursor = if is_front { &mut self.front } else { &mut self.back };
            if let Some(index) = cursor.as_mut().and_then(|cursor| cursor.take(direction)) {
                return Ok(Some(index));
            }
            // If reading the next leaf fails, the iterator stays finished.
            self.is_done = true;
            self.is_done = self.is_joined || !self.next_leaf(direction)?;
        }
        Ok(None)
    }

    /// Moves an end to its first leaf, or to its next one. Returns false if there is none.
    fn next_leaf(&mut self, direction: Direction) -> Result<bool> {
        let (own, other) = match direction {
            Direction::Ascending => (self.front.take(), &self.back),
            Direction::Descending => (self.back.take(), &self.front),
        };
        self.leaves += 1;
        self.snapshot.shared.io.has_room_for_leaves(self.leaves)?;
        let next = match own {
            None => Some(self.descend(Vec::new(), direction, true)?),
            Some(Cursor { is_last: true, .. }) => None,
            Some(Cursor { path, .. }) => self.after(path, direction)?,
        };
        let Some(next) = next else { return Ok(false) };
        let passed = match direction {
            Direction::Ascending => Ordering::Greater,
            Direction::Descending => Ordering::Less,
        };
        match other.as_ref().map(|other| next.compare(other)) {
            Some(Ordering::Equal) => self.join(next, direction),
            Some(order) if order == passed => return Ok(false),
            _ if direction == Direction::Ascending => self.front = Some(next),
            _ => self.back = Some(next),
        }
        Ok(true)
    }

    /// Joins the ends when one reaches the leaf of the other: the records left are those between them.
    fn join(&mut self, next: Cursor, direction: Direction) {
        let (front, back) = match direction {
            Direction::Ascending => (Some(next), self.back.take()),
            Direction::Descending => (self.front.take(), Some(next)),
        };
        self.front = front.zip(back).map(|(front, back)| {
            let left = front.left.start..back.left.end;
            Cursor { left, ..front }
        });
        self.is_joined = true;
    }

    /// The leaf after the one at the end of `path`.
    fn after(&self, mut path: Vec<(Arc<Inner>, usize)>, direction: Direction) -> Result<Option<Cursor>> {
        while let Some((inner, child)) = path.pop() {
            let next = match direction {
                Direction::Ascending => Some(child + 1),
                Direction::Descending => child.checked_sub(1),
            };
            if let Some(next) = next.filter(|&next| next < inner.keys.len()) {
                path.push((inner, next));
                return self.descend(path, direction, false).map(Some);
            }
        }
        Ok(None)
    }

    /// Descends from the end of `path` to a leaf: the first one as seen from the given end, or, if `bounded`, the one in
    /// which the range begins at that end.
    fn descend(
        &self,
        mut path: Vec<(Arc<Inner>, usize)>,
        direction: Direction,
        bounded: bool,
    ) -> Result<Cursor> {
        let Snapshot { shared, version } = &self.snapshot;
        let range = self.bounds.range();
        let bound = match direction {
            Direction::Ascending => range.start,
            Direction::Descending => range.end,
        };
        let leaf = loop {
            let inner = match path.last() {
                None => version.tree.root.inner(&shared.io)?,
                Some((inner, child)) => match &inner.children {
                    Children::Leaves(leaves) => {
                        let next = match direction {
                            Direction::Ascending => child.wrapping_add(1),
                            Direction::Descending => child.wrapping_sub(1),
                        };
                        leaves.get(next).into_iter().for_each(|next| next.prefetch());
                        break Arc::clone(&leaves[*child]);
                    }
                    Children::Inners(inners) => inners[*child].inner(&shared.io)?,
                },
            };
            let keys = &inner.keys;
            let child = match (bound, direction) {
                (Bound::Included(key) | Bound::Excluded(key), _) if bounded => keys.child(key),
                (_, Direction::Ascending) => 0,
                (_, Direction::Descending) => keys.len() - 1,
            };
            path.push((inner, child));
        };
        let loaded = leaf.is_loaded();
        let mut body = leaf.share(&shared.io)?;
        if !loaded {
            shared.shrink_cache();
        }
        if let Some(log) = &body.log {
            let leaf = merged(&body.leaf, log, false)?;
            body = Arc::new(LeafBody { leaf, log: None, resident: shared.io.resident(0) });
        }
        let left = self.bounds.inside(&body);
        let is_last = match direction {
            Direction::Ascending => left.end < body.leaf.count(),
            Direction::Descending => left.start > 0,
        };
        Ok(Cursor { path, body, left, is_last })
    }
}

impl<D: ZonedDevice> Iterator for Iter<D> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.record(Direction::Ascending).transpose()
    }
}

impl<D: ZonedDevice> DoubleEndedIterator for Iter<D> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.record(Direction::Descending).transpose()
    }
}

impl<D: ZonedDevice> FusedIterator for Iter<D> {}
