//! Ordered iteration in a transaction: the records of its snapshot, merged with its changes.

use super::Writes;
use super::reads::Reads;
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::{Direction, KeyRange};
use crate::store::{Iter, Snapshot};
use std::cell::RefCell;
use std::collections::btree_map;
use std::iter::FusedIterator;
use std::ops::Bound;

/// A key and its value.
type Row = (Vec<u8>, Vec<u8>);

/// The next key at one end, and its value or `None` if the transaction has deleted it.
type Merged = (Vec<u8>, Option<Vec<u8>>);

/// A changed key and its new value, or `None` if it is deleted.
type Write<'t> = (&'t Vec<u8>, &'t Option<Vec<u8>>);

/// A double-ended iterator over keys and values as a transaction sees them. Records taken from both ends do not overlap.
pub struct TransactionRows<'t, D> {
    base: Iter<D>,
    writes: btree_map::Range<'t, Vec<u8>, Option<Vec<u8>>>,
    front: Ahead<'t>,
    back: Ahead<'t>,
    reads: &'t RefCell<Reads>,
    /// The ranges read from the front and from the back, by their indices in `reads`.
    read: (usize, usize),
    whole: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    is_done: bool,
}

/// The next records at one end, if they are known.
#[derive(Default)]
struct Ahead<'t> {
    base: Option<Row>,
    write: Option<Write<'t>>,
}

/// The range without any key.
fn nothing() -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (Bound::Included(Vec::new()), Bound::Excluded(Vec::new()))
}

fn is_empty(KeyRange { start, end }: KeyRange<'_>) -> bool {
    match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
            start >= end
        }
        _ => false,
    }
}

impl<'t, D: ZonedDevice> TransactionRows<'t, D> {
    pub(super) fn new(
        snapshot: &Snapshot<D>,
        writes: &'t Writes,
        reads: &'t RefCell<Reads>,
        range: KeyRange<'_>,
    ) -> Self {
        let whole = (range.start.map(<[u8]>::to_vec), range.end.map(<[u8]>::to_vec));
        let is_done = is_empty(range);
        let changed = if is_done { nothing() } else { whole.clone() };
        let mut all = reads.borrow_mut();
        Self {
            base: snapshot.range(range),
            writes: writes.range::<Vec<u8>, _>(changed),
            front: Ahead::default(),
            back: Ahead::default(),
            reads,
            read: (all.range(nothing()), all.range(nothing())),
            whole,
            is_done,
        }
    }

    fn step(&mut self, direction: Direction) -> Result<Option<Row>> {
        while !self.is_done {
            let Some((key, value)) = self.merged(direction).inspect_err(|_| self.is_done = true)? else {
                // No record is left between the two ends.
                self.is_done = true;
                *self.reads.borrow_mut().extend(self.read.0) = self.whole.clone();
                return Ok(None);
            };
            self.record(direction, &key);
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }

    /// Takes the next key at one end.
    fn merged(&mut self, direction: Direction) -> Result<Option<Merged>> {
        let (ahead, other) = match direction {
            Direction::Ascending => (&mut self.front, &mut self.back),
            Direction::Descending => (&mut self.back, &mut self.front),
        };
        if ahead.base.is_none() {
            let next = match direction {
                Direction::Ascending => self.base.next_row()?,
                Direction::Descending => self.base.next_back_row()?,
            };
            // When the iterators are exhausted, the last record is the one that the other end has already read ahead.
            ahead.base =
                next.map(|(key, value)| (key.to_vec(), value.to_vec())).or_else(|| other.base.take());
        }
        if ahead.write.is_none() {
            let next = match direction {
                Direction::Ascending => self.writes.next(),
                Direction::Descending => self.writes.next_back(),
            };
            ahead.write = next.or_else(|| other.write.take());
        }
        let order = match (&ahead.base, ahead.write) {
            (None, None) => return Ok(None),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((base, _)), Some((write, _))) => match direction {
                Direction::Ascending => base.cmp(write),
                Direction::Descending => write.cmp(base),
            },
        };
        let base = if order.is_le() { ahead.base.take() } else { None };
        let write = if order.is_ge() { ahead.write.take() } else { None };
        Ok(match (base, write) {
            // The transaction's change hides the record.
            (_, Some((key, value))) => Some((key.clone(), value.clone())),
            (Some((key, value)), None) => Some((key, Some(value))),
            (None, None) => None,
        })
    }

    /// Records that the range up to `key` was read.
    fn record(&self, direction: Direction, key: &[u8]) {
        let mut reads = self.reads.borrow_mut();
        let bound = Bound::Included(key.to_vec());
        match direction {
            Direction::Ascending => *reads.extend(self.read.0) = (self.whole.0.clone(), bound),
            Direction::Descending => *reads.extend(self.read.1) = (bound, self.whole.1.clone()),
        }
    }
}

impl<D: ZonedDevice> Iterator for TransactionRows<'_, D> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Ascending).transpose()
    }
}

impl<D: ZonedDevice> DoubleEndedIterator for TransactionRows<'_, D> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Descending).transpose()
    }
}

impl<D: ZonedDevice> FusedIterator for TransactionRows<'_, D> {}
