//! Reading: one moment of the map, as long as it is wanted.
//! Not kept over a power cut.
//! Source: our own; the writer copies what a snapshot shares, and blocks it may need are not given up while it lives.

use super::leaf::LeafBody;
use super::tree::{Children, Inner, Tree};
use super::{Shared, load_value, lock};
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::map::{Direction, KeyRange, Visit};
use crate::node::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// The newest tree, and who still needs older blocks.
pub(super) struct Published {
    pub tree: Tree,
    /// The newest checkpoint.
    pub epoch: u64,
    /// How many snapshots were taken while a checkpoint was the newest.
    pub pins: BTreeMap<u64, u64>,
}

impl Published {
    /// The oldest checkpoint of which a snapshot may need blocks.
    pub fn oldest(&self) -> u64 {
        self.pins.first_key_value().map_or(u64::MAX, |(&epoch, _)| epoch)
    }
}

/// The map at one moment. Reading it never waits for a writer that works; the writer never waits for it.
pub struct Snapshot<D> {
    shared: Arc<Shared<D>>,
    tree: Tree,
    epoch: u64,
}

impl<D> Drop for Snapshot<D> {
    fn drop(&mut self) {
        let mut published = lock(&self.shared.published);
        if let Some(count) = published.pins.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                published.pins.remove(&self.epoch);
            }
        }
    }
}

impl<D: ZonedDevice> Snapshot<D> {
    pub(super) fn new(shared: &Arc<Shared<D>>) -> Self {
        let mut published = lock(&shared.published);
        let epoch = published.epoch;
        *published.pins.entry(epoch).or_default() += 1;
        Self { shared: Arc::clone(shared), tree: published.tree.clone(), epoch }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `look` with the value of `key`, without a copy of it where it is in a leaf.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_with<R>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let io = &self.shared.io;
        let leaf = self.tree.leaf_of(io, key)?;
        let loaded = leaf.is_loaded();
        let result = leaf.with(io, |body| match body.get(key) {
            None | Some(Value::Deleted) => Ok(None),
            Some(Value::Inline(value)) => Ok(Some(look(value))),
            Some(Value::Extent(extent)) => io.read_extent(key, extent).map(|value| Some(look(&value))),
        })?;
        if !loaded {
            self.shared.shrink_cache();
        }
        result
    }

    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.tree.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with the keys in `range` and their values, in order.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: &mut Visit<'_>) -> Result<()> {
        let scan = Scan { shared: &self.shared, range, direction };
        scan.under(self.tree.root.inner(&self.shared.io)?, visit).map(|_| ())
    }
}

struct Scan<'a, D> {
    shared: &'a Shared<D>,
    range: KeyRange<'a>,
    direction: Direction,
}

impl<D: ZonedDevice> Scan<'_, D> {
    fn under(&self, inner: &Inner, visit: &mut Visit<'_>) -> Result<ControlFlow<()>> {
        let child = |bound: Bound<&[u8]>, unbounded: usize| match bound {
            Bound::Unbounded => unbounded,
            Bound::Included(key) | Bound::Excluded(key) => inner.keys.child(key),
        };
        let (first, last) = (child(self.range.start, 0), child(self.range.end, inner.keys.len() - 1));
        for step in first..=last {
            let index = match self.direction {
                Direction::Ascending => step,
                Direction::Descending => last - (step - first),
            };
            let flow = match &inner.children {
                Children::Inners(inners) => self.under(inners[index].inner(&self.shared.io)?, visit)?,
                Children::Leaves(leaves) => {
                    let loaded = leaves[index].is_loaded();
                    let flow = leaves[index].with(&self.shared.io, |body| self.leaf(body, visit))??;
                    if !loaded {
                        self.shared.shrink_cache();
                    }
                    flow
                }
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn leaf(&self, body: &LeafBody, visit: &mut Visit<'_>) -> Result<ControlFlow<()>> {
        let page = match &body.log {
            None => Cow::Borrowed(&body.leaf),
            Some(log) => Cow::Owned(super::leaf::merged(&body.leaf, log, false)),
        };
        let place = |key: &[u8], behind: bool| match page.find(key) {
            Ok(at) => at + usize::from(behind),
            Err(at) => at,
        };
        let first = match self.range.start {
            Bound::Unbounded => 0,
            Bound::Included(key) => place(key, false),
            Bound::Excluded(key) => place(key, true),
        };
        let end = match self.range.end {
            Bound::Unbounded => page.count(),
            Bound::Included(key) => place(key, true),
            Bound::Excluded(key) => place(key, false),
        };
        for step in first..end {
            let index = match self.direction {
                Direction::Ascending => step,
                Direction::Descending => end - 1 - (step - first),
            };
            let key = page.key(index);
            let flow = match page.value(index) {
                Value::Inline(value) => visit(key, value),
                value => match load_value(&self.shared.io, key, value)? {
                    Some(value) => visit(key, &value),
                    None => continue,
                },
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
