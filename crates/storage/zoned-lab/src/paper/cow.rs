//! The copy-on-write B+-tree: append-only; a change rewrites every node from the leaf to the root.
//!
//! Source: the baseline of the ZB+-tree paper, with the bounds and borrowing of the textbook B+-tree.

use super::body::Body;
use super::cached_nodes::CachedNodes;
use super::counts::NodeKind;
use super::fanout::Fanout;
use super::space::{Contents, Space, Temperature};
use super::zb::{ordered, visit_leaf};
use longma_zoned::device::{Block, ZoneNumber, ZonedDevice};
use longma_zoned::error::{Error, Result};
use longma_zoned::map::Direction;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A copy-on-write B+-tree for 8-byte keys and values, which uses only sequential zones. Every node is written to the
/// zone with the most free blocks.
#[derive(Clone)]
pub struct CowTree<D> {
    pub(super) space: Space<D>,
    kept: CachedNodes,
    root: Block,
    /// The level of the root; leaves are level 0.
    pub(super) root_level: u32,
    pub(super) len: u64,
}

/// A rewritten node: its new address, and the separator and address of the right half if it split.
struct Rewritten {
    at: Block,
    right: Option<(u64, Block)>,
}

/// A node changed by a deletion and not written yet.
struct Changed {
    body: Arc<Body>,
    old: Block,
}

const fn kind(level: u32) -> NodeKind {
    if level == 0 { NodeKind::Leaf } else { NodeKind::Interior }
}

impl<D: ZonedDevice> CowTree<D> {
    /// Creates an empty tree that stores node contents according to `contents`.
    pub(super) fn with(device: D, fanout: Fanout, contents: Contents, kept: CachedNodes) -> Result<Self> {
        let mut space = Space::new(device, fanout, contents)?;
        let root = space.append(NodeKind::Leaf, Temperature::Hot, &Arc::new(Body::default()))?;
        Ok(Self { space, kept, root, root_level: 0, len: 0 })
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Damaged`].
    pub fn search(&mut self, key: u64) -> Result<Option<u64>> {
        let mut body = self.read(self.root, self.root_level)?;
        for level in (0..self.root_level).rev() {
            body = self.read(Block(body.entries[body.child(key)].1), level)?;
        }
        Ok(body.find(key).ok().map(|at| body.entries[at].1))
    }

    /// Inserts `key` or replaces its value. Returns true if the key is new.
    ///
    /// # Errors
    /// Those of [`CowTree::search`], and [`Error::Full`].
    pub fn insert(&mut self, key: u64, value: u64) -> Result<bool> {
        self.make_room()?;
        let (new, root) = self.put_under(self.root, self.root_level, key, value)?;
        self.root = root.at;
        if let Some((separator, right)) = root.right {
            self.root_level += 1;
            let entries = vec![(0, self.root.0), (separator, right.0)];
            self.root = self.append(self.root_level, &Arc::new(Body { entries }))?;
        }
        self.len += u64::from(new);
        Ok(new)
    }

    /// Removes `key`. Returns true if it was present.
    ///
    /// # Errors
    /// Those of [`CowTree::insert`].
    pub fn remove(&mut self, key: u64) -> Result<bool> {
        self.make_room()?;
        let Some(mut changed) = self.delete_under(self.root, self.root_level, key)? else { return Ok(false) };
        self.len -= 1;
        if let (1.., &[(_, only)]) = (self.root_level, changed.body.entries.as_slice()) {
            // The only child of the root is already written and becomes the root.
            self.space.release(changed.old);
            (self.root, self.root_level) = (Block(only), self.root_level - 1);
            return Ok(true);
        }
        self.root = self.rewrite(self.root_level, &mut changed)?;
        Ok(true)
    }

    fn read(&mut self, at: Block, level: u32) -> Result<Arc<Body>> {
        let kept = self.kept.has(kind(level), at == self.root);
        let body: Arc<Body> =
            if kept { self.space.read_cached(at)? } else { self.space.read(kind(level), at)? };
        match level > 0 && body.entries.is_empty() {
            true => Err(Error::Damaged { block: at, what: "it is an interior node without entries".into() }),
            false => Ok(body),
        }
    }

    fn append(&mut self, level: u32, body: &Arc<Body>) -> Result<Block> {
        self.space.append(kind(level), Temperature::Hot, body)
    }

    fn rewrite(&mut self, level: u32, changed: &mut Changed) -> Result<Block> {
        self.space.release(changed.old);
        self.append(level, &changed.body)
    }

    fn put_under(&mut self, at: Block, level: u32, key: u64, value: u64) -> Result<(bool, Rewritten)> {
        let mut body = self.read(at, level)?;
        let mut new = false;
        if level == 0 {
            let place = body.find(key);
            let entries = &mut Arc::make_mut(&mut body).entries;
            match place {
                Ok(place) => entries[place].1 = value,
                Err(place) => {
                    entries.insert(place, (key, value));
                    new = true;
                }
            }
        } else {
            let child = body.child(key);
            let (below_new, below) = self.put_under(Block(body.entries[child].1), level - 1, key, value)?;
            new = below_new;
            let entries = &mut Arc::make_mut(&mut body).entries;
            entries[child].1 = below.at.0;
            if let Some((separator, right)) = below.right {
                entries.insert(child + 1, (separator, right.0));
            }
        }
        self.space.release(at);
        if body.entries.len() <= self.space.fanout.body {
            return Ok((new, Rewritten { at: self.append(level, &body)?, right: None }));
        }
        self.space.counts.split += 1;
        let right = Arc::new(Arc::make_mut(&mut body).split_off());
        let at = self.append(level, &body)?;
        let right_at = self.append(level, &right)?;
        Ok((new, Rewritten { at, right: Some((right.entries[0].0, right_at)) }))
    }

    /// Deletes `key` below a node. The changed node is returned unwritten, so that the caller can merge it with a
    /// neighbour. `None` if the key is not present.
    fn delete_under(&mut self, at: Block, level: u32, key: u64) -> Result<Option<Changed>> {
        let mut body = self.read(at, level)?;
        if level == 0 {
            let Ok(place) = body.find(key) else { return Ok(None) };
            Arc::make_mut(&mut body).entries.remove(place);
            return Ok(Some(Changed { body, old: at }));
        }
        let child = body.child(key);
        let below = Block(body.entries[child].1);
        let Some(mut changed) = self.delete_under(below, level - 1, key)? else { return Ok(None) };
        if changed.body.entries.len() >= self.space.fanout.body / 2 || body.entries.len() == 1 {
            Arc::make_mut(&mut body).entries[child].1 = self.rewrite(level - 1, &mut changed)?.0;
        } else {
            self.rebalance(level - 1, Arc::make_mut(&mut body), child, changed)?;
        }
        Ok(Some(Changed { body, old: at }))
    }

    /// Merges an underfull child with a neighbour, or moves entries from the neighbour to it.
    fn rebalance(&mut self, level: u32, body: &mut Body, child: usize, small: Changed) -> Result<()> {
        let neighbour = if child + 1 < body.entries.len() { child + 1 } else { child - 1 };
        let old = Block(body.entries[neighbour].1);
        let other = Changed { body: self.read(old, level)?, old };
        let (mut left, mut right) = if child < neighbour { (small, other) } else { (other, small) };
        let (left_index, right_index) = (child.min(neighbour), child.max(neighbour));
        let (left_body, right_body) = (Arc::make_mut(&mut left.body), Arc::make_mut(&mut right.body));
        if level > 0 {
            right_body.entries[0].0 = body.entries[right_index].0;
        }
        left_body.entries.append(&mut right_body.entries);
        if left_body.entries.len() <= self.space.fanout.body {
            self.space.counts.merged += 1;
            self.space.release(right.old);
            body.entries.remove(right_index);
        } else {
            self.space.counts.heads_evened += 1;
            right.body = Arc::new(left_body.split_off());
            body.entries[right_index] = (right.body.entries[0].0, self.rewrite(level, &mut right)?.0);
        }
        body.entries[left_index].1 = self.rewrite(level, &mut left)?.0;
        Ok(())
    }

    /// Ensures that there is space for the next operation: two nodes per level and a new root.
    fn make_room(&mut self) -> Result<()> {
        let needed = 2 * u64::from(self.root_level) + 3;
        while self.space.room() < needed {
            let free = self.space.room();
            let full = || Error::Full { device: self.space.device.name(), needed, free, held: 0 };
            let zone = self.space.zone_with_most_garbage().ok_or_else(full)?;
            self.collect(zone)?;
        }
        Ok(())
    }

    /// Collects a zone: reads the live nodes in it and their ancestors, resets the zone, and writes these nodes again.
    fn collect(&mut self, zone: ZoneNumber) -> Result<()> {
        let Some(tree) = self.collect_subtree(self.root, self.root_level, zone)? else {
            return self.space.reset(zone);
        };
        self.space.reset(zone)?;
        self.root = self.write_subtree(tree)?;
        Ok(())
    }

    fn collect_subtree(&mut self, at: Block, level: u32, zone: ZoneNumber) -> Result<Option<RelocatedNode>> {
        let body: Arc<Body> = self.space.read(NodeKind::Collected, at)?;
        let mut below = Vec::new();
        if level > 0 {
            for (index, &(_, child)) in body.entries.iter().enumerate() {
                // A leaf in another zone need not be read.
                if level == 1 && !self.space.is_in(Block(child), zone) {
                    continue;
                }
                if let Some(subtree) = self.collect_subtree(Block(child), level - 1, zone)? {
                    below.push((index, subtree));
                }
            }
        }
        let inside = self.space.is_in(at, zone);
        if !inside && below.is_empty() {
            return Ok(None);
        }
        self.space.release(at);
        Ok(Some(RelocatedNode { body, below }))
    }

    fn write_subtree(&mut self, mut subtree: RelocatedNode) -> Result<Block> {
        for (index, below) in subtree.below {
            let at = self.write_subtree(below)?;
            Arc::make_mut(&mut subtree.body).entries[index].1 = at.0;
        }
        self.space.append(NodeKind::Collected, Temperature::Hot, &subtree.body)
    }

    pub(super) fn scan_between(
        &mut self,
        range: (u64, u64),
        direction: Direction,
        visit: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_under(self.root, self.root_level, range, direction, visit).map(|_| ())
    }

    fn scan_under(
        &mut self,
        at: Block,
        level: u32,
        range: (u64, u64),
        direction: Direction,
        visit: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let body = self.read(at, level)?;
        if level == 0 {
            return Ok(visit_leaf(&body, range, direction, visit));
        }
        for child in ordered(body.child(range.0), body.child(range.1), direction) {
            let below = Block(body.entries[child].1);
            if self.scan_under(below, level - 1, range, direction, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A node read into memory while its zone is collected, with the children that also move.
struct RelocatedNode {
    body: Arc<Body>,
    below: Vec<(usize, RelocatedNode)>,
}
