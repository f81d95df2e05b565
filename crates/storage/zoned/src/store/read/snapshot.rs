//! Snapshots and single-key reads. While a snapshot lives, the writer copies the nodes it shares and does not release
//! the blocks it may need.

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::{KeyBounds, KeyRange};
use crate::node::{Extent, Value};
use crate::store::read::iter::Iter;
use crate::store::read::published::Version;
use crate::store::tree::nodes::Tree;
use crate::store::{Shared, load_value};
use std::sync::Arc;

/// The map at one point in time. Readers of a snapshot never wait for the writer, nor the writer for them.
pub struct Snapshot<D> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) version: Arc<Version>,
}

impl<D> Clone for Snapshot<D> {
    /// Another handle to the same snapshot.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), version: Arc::clone(&self.version) }
    }
}

impl<D: ZonedDevice> Snapshot<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>) -> Self {
        Self { shared: Arc::clone(shared), version: shared.published.load().keep() }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        get(&self.shared, &self.version.tree, key)
    }

    /// Returns the value of `key` if `admit` accepts its length in bytes. Otherwise, the value is neither read nor copied.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn get_if(&self, key: &[u8], admit: impl FnOnce(usize) -> bool) -> Result<Option<Vec<u8>>> {
        get_if(&self.shared, &self.version.tree, key, admit)
    }

    /// Whether the snapshot has `key`.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        contains_key(&self.shared, &self.version.tree, key)
    }

    /// Calls `look` with the value of `key`, without copying a value that is in a leaf. `look` may take arbitrarily
    /// long; it blocks no other thread.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn get_with<R>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let io = &self.shared.io;
        let leaf = self.version.tree.leaf_of(io, key)?;
        let loaded = leaf.is_loaded();
        let body = leaf.share(io)?;
        if !loaded {
            self.shared.shrink_cache();
        }
        match body.get(key) {
            None => Ok(None),
            Some(Value::Inline(value)) => Ok(Some(look(value))),
            Some(value) => Ok(load_value(io, key, value)?.map(|value| look(&value))),
        }
    }

    /// The number of keys.
    pub fn len(&self) -> u64 {
        self.version.tree.len
    }

    /// Whether the snapshot has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all keys and values in key order, from either end.
    pub fn iter(&self) -> Iter<D> {
        self.range(KeyRange::ALL)
    }

    /// Iterates over the keys in `range` and their values in key order, from either end.
    pub fn range(&self, range: impl KeyBounds) -> Iter<D> {
        Iter::new(self.clone(), range.key_range())
    }

    /// Iterates over the keys that begin with `prefix` and their values in key order, from either end.
    pub fn prefix(&self, prefix: &[u8]) -> Iter<D> {
        let after = crate::map::after_prefix(prefix);
        self.range(KeyRange::of_prefix(prefix, after.as_deref()))
    }
}

/// Whether a tree has `key`.
pub(crate) fn contains_key<D: ZonedDevice>(shared: &Shared<D>, tree: &Tree, key: &[u8]) -> Result<bool> {
    let (found, loaded) = tree.with_leaf(&shared.io, key, |body| body.get(key).is_some())?;
    if !loaded {
        shared.shrink_cache();
    }
    Ok(found)
}

/// The result of looking up a key, detached from the leaf.
enum Lookup {
    Nothing,
    Value(Vec<u8>),
    Large(Extent),
}

/// Returns the value of `key` in a tree.
pub(crate) fn get<D: ZonedDevice>(shared: &Shared<D>, tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
    get_if(shared, tree, key, |_| true)
}

/// Returns the value of `key` in a tree if `admit` accepts its length.
pub(crate) fn get_if<D: ZonedDevice>(
    shared: &Shared<D>,
    tree: &Tree,
    key: &[u8],
    admit: impl FnOnce(usize) -> bool,
) -> Result<Option<Vec<u8>>> {
    let io = &shared.io;
    let (found, loaded) = tree.with_leaf(io, key, |body| match body.get(key) {
        None | Some(Value::Deleted) => Lookup::Nothing,
        Some(value) if !admit(value.bytes()) => Lookup::Nothing,
        Some(Value::Inline(value)) => Lookup::Value(value.to_vec()),
        Some(Value::Extent(extent)) => Lookup::Large(extent),
    })?;
    if !loaded {
        shared.shrink_cache();
    }
    match found {
        Lookup::Nothing => Ok(None),
        Lookup::Value(value) => Ok(Some(value)),
        Lookup::Large(extent) => io.read_extent(key, extent).map(Some),
    }
}
