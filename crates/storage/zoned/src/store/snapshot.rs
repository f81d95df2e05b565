//! Reading: one moment of the map, as long as it is wanted.
//! Not what comes in order: see `iter`. Not kept over a power cut.
//! Source: the writer copies what a snapshot shares, and blocks it may need are not given up while it lives.

use super::iter::Iter;
use super::newest::Version;
use super::tree::Tree;
use super::{Shared, load_value};
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::KeyRange;
use crate::node::{Extent, Value};
use std::sync::Arc;

/// The map at one moment. Reading it never waits for a writer that works; the writer never waits for it.
pub struct Snapshot<D> {
    pub(super) shared: Arc<Shared<D>>,
    pub(super) version: Arc<Version>,
}

impl<D> Clone for Snapshot<D> {
    /// The same moment.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), version: Arc::clone(&self.version) }
    }
}

impl<D: ZonedDevice> Snapshot<D> {
    pub(super) fn new(shared: &Arc<Shared<D>>) -> Self {
        Self { shared: Arc::clone(shared), version: shared.newest.load().keep() }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        get(&self.shared, &self.version.tree, key)
    }

    /// Calls `look` with the value of `key`, without a copy of it where it is in a leaf. It may take as long as it likes: it holds up
    /// nobody.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_with<R>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let io = &self.shared.io;
        let leaf = self.version.tree.leaf_of(io, key)?;
        leaf.fetch_ahead();
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

    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.version.tree.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All keys and values, in order, from either end.
    pub fn iter(&self) -> Iter<D> {
        self.range(KeyRange::ALL)
    }

    /// The keys in `range` and their values, in order, from either end.
    pub fn range(&self, range: KeyRange<'_>) -> Iter<D> {
        Iter::new(self.clone(), range)
    }

    /// The keys that begin with `prefix` and their values, in order, from either end.
    pub fn prefix(&self, prefix: &[u8]) -> Iter<D> {
        let after = crate::map::after_prefix(prefix);
        self.range(KeyRange::of_prefix(prefix, after.as_deref()))
    }
}

/// What a leaf holds of a key, apart from the leaf.
enum Found {
    Nothing,
    Value(Vec<u8>),
    Large(Extent),
}

/// The value of `key` in a tree.
pub(super) fn get<D: ZonedDevice>(shared: &Shared<D>, tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let io = &shared.io;
    let leaf = tree.leaf_of(io, key)?;
    leaf.fetch_ahead();
    let loaded = leaf.is_loaded();
    let found = leaf.with(io, |body| match body.get(key) {
        None | Some(Value::Deleted) => Found::Nothing,
        Some(Value::Inline(value)) => Found::Value(value.to_vec()),
        Some(Value::Extent(extent)) => Found::Large(extent),
    })?;
    if !loaded {
        shared.shrink_cache();
    }
    match found {
        Found::Nothing => Ok(None),
        Found::Value(value) => Ok(Some(value)),
        Found::Large(extent) => io.read_extent(key, extent).map(Some),
    }
}
