//! Read-write transactions with optimistic concurrency control: reads come from a snapshot, writes are collected, and a
//! commit applies them as one batch if all reads would still have the same results.
//!
//! Source: Kung and Robinson, "On Optimistic Methods for Concurrency Control", TODS 1981 (serial validation). Comparing
//! values instead of versions accepts a value that was changed and changed back.

mod reads;
pub(crate) mod rows;

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::map::{KeyBounds, KeyRange};
use crate::store::{Applied, Batch, Snapshot, Store};
use reads::Reads;
use rows::TransactionRows;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

/// The changes of a transaction: for each key its new value, or `None` if it is deleted.
type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A read-write transaction. Made by [`Store::transaction`]; [`Store::transact`] also repeats it after a conflict.
///
/// It sees the map as it was when the transaction began, with its own changes. [`Transaction::commit`] makes the changes
/// visible and durable together, or fails with [`Error::Conflict`] if another thread has changed a key that the
/// transaction has read, or the contents of a range that it has iterated over. Committed transactions therefore have the
/// same effect as if they had run one after the other. Changes without reads never conflict. Dropping a transaction
/// discards its changes.
pub struct Transaction<D> {
    store: Store<D>,
    snapshot: Snapshot<D>,
    writes: Writes,
    /// The reads so far, in a cell, because reads borrow the transaction shared.
    reads: RefCell<Reads>,
}

impl<D: ZonedDevice> Transaction<D> {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(value) = self.writes.get(key) {
            return Ok(value.clone());
        }
        self.reads.borrow_mut().key(key);
        self.snapshot.get(key)
    }

    /// Returns the value of `key` if `admit` accepts its length in bytes. Otherwise, the value is neither read nor copied.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn get_if(&self, key: &[u8], admit: impl FnOnce(usize) -> bool) -> Result<Option<Vec<u8>>> {
        if let Some(value) = self.writes.get(key) {
            return Ok(value.as_ref().filter(|value| admit(value.len())).cloned());
        }
        self.reads.borrow_mut().key(key);
        self.snapshot.get_if(key, admit)
    }

    /// Whether `key` is present. Only an insertion or deletion of the key conflicts with this read.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        if let Some(value) = self.writes.get(key) {
            return Ok(value.is_some());
        }
        self.reads.borrow_mut().presence(key);
        self.snapshot.contains_key(key)
    }

    /// Inserts `key` or replaces its value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.writes.insert(key.to_vec(), Some(value.to_vec()));
    }

    /// Removes `key`.
    pub fn delete(&mut self, key: &[u8]) {
        self.writes.insert(key.to_vec(), None);
    }

    /// Iterates over all keys and values in key order, from either end.
    pub fn iter(&self) -> TransactionRows<'_, D> {
        self.range(KeyRange::ALL)
    }

    /// Iterates over the keys in `range` and their values in key order, from either end. The part of the range that was
    /// iterated over is recorded as read, including the gaps between its keys.
    pub fn range(&self, range: impl KeyBounds) -> TransactionRows<'_, D> {
        TransactionRows::new(&self.snapshot, &self.writes, &self.reads, range.key_range())
    }

    /// Iterates over the keys that begin with `prefix` and their values in key order, from either end.
    pub fn prefix(&self, prefix: &[u8]) -> TransactionRows<'_, D> {
        let after = crate::map::after_prefix(prefix);
        self.range(KeyRange::of_prefix(prefix, after.as_deref()))
    }

    /// The number of changed keys.
    pub fn changes(&self) -> usize {
        self.writes.len()
    }

    /// Commits the transaction. With [`crate::Durability::EachBatch`] it is durable when the call returns. A transaction
    /// without changes only checks its reads.
    ///
    /// # Errors
    /// [`Error::Conflict`]: nothing is changed, and the transaction can be run again. Those of [`Store::apply`].
    pub fn commit(self) -> Result<Applied> {
        let Self { store, snapshot, writes, reads } = self;
        let mut batch = Batch::new();
        for (key, value) in writes {
            match value {
                Some(value) => batch.put(&key, &value),
                None => batch.delete(&key),
            };
        }
        // The snapshot is dropped before the batch is applied, so that the batch need not copy the nodes that it
        // changes.
        store.apply_if(&batch, move |newest| reads.into_inner().check(&snapshot, newest))
    }
}

impl<D> fmt::Debug for Transaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("changes", &self.writes.len()).finish_non_exhaustive()
    }
}

/// The value of a key was not the expected one, so [`Store::compare_and_swap`] has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareFailed {
    /// The value of the key, or `None` if the key is absent.
    pub current: Option<Vec<u8>>,
}

impl fmt::Display for CompareFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.current {
            Some(value) => write!(f, "the value is another one: {}", value.escape_ascii()),
            None => write!(f, "the key is absent"),
        }
    }
}

impl std::error::Error for CompareFailed {}

impl<D: ZonedDevice> Store<D> {
    /// Begins a transaction. Any number of transactions may be open at the same time, and none waits for another.
    pub fn transaction(&self) -> Transaction<D> {
        Transaction {
            store: self.clone(),
            snapshot: self.snapshot(),
            writes: Writes::new(),
            reads: RefCell::default(),
        }
    }

    /// Runs `work` in a transaction and commits it. Runs it again with a new transaction as long as the commit fails
    /// with [`Error::Conflict`]; at least one of the transactions in conflict is committed each time. If `work` returns
    /// an error, nothing is changed.
    ///
    /// # Errors
    /// Those of `work`, and those of [`Transaction::commit`] except for conflicts.
    pub fn transact<R, E: From<Error>>(
        &self,
        mut work: impl FnMut(&mut Transaction<D>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        loop {
            let mut transaction = self.transaction();
            let result = work(&mut transaction)?;
            match transaction.commit() {
                Ok(_) => return Ok(result),
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets `key` to `new` if its value is `expected`, atomically. `None` represents an absent key.
    ///
    /// # Errors
    /// Those of [`Store::apply`]. The inner error is the current value, if it is not `expected`.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<std::result::Result<(), CompareFailed>> {
        let mut batch = Batch::new();
        match new {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        };
        let mut failed = None;
        let applied = self.apply_if(&batch, |newest| {
            let current = newest.get(key)?;
            if current.as_deref() == expected {
                return Ok(());
            }
            failed = Some(CompareFailed { current });
            Err(Error::Conflict { key: key.escape_ascii().to_string() })
        });
        match (applied, failed) {
            (_, Some(failed)) => Ok(Err(failed)),
            (applied, None) => applied.map(|_| Ok(())),
        }
    }
}
