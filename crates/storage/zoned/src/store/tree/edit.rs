//! Changes the tree in memory: the ZB+-tree paper's insert, update, delete and Sync on leaves and their logs. Splits
//! and merges of inner nodes are in `balance`. Only checkpoints write to the device.
//!
//! Source: the ZB+-tree paper. A leaf is steady if its copy in a sequential zone is current. The design page of the
//! book lists the departures from the paper.

use crate::device::{Block, ZonedDevice};
use crate::error::{Error, Result, ensure};
use crate::node::{Extent, Page, Value};
use crate::store::io::{Io, damaged};
use crate::store::tree::changes::{Base, ChangedPart, Changes};
use crate::store::tree::leaf::{LeafSlot, NO_LOG, merged};
use crate::store::tree::nodes::{Children, Inner, InnerSlot, Tree, UNWRITTEN};
use serde::Serialize;
use std::sync::Arc;

/// The error for an inner node on the lowest level that is not a head.
pub(crate) const NO_HEAD: &str = "an inner node on the lowest level has no leaf for the key";

/// The error for a leaf that is about to be changed although it is shared. [`Editor::own_leaf`] makes a private copy.
const NOT_OWN: &str = "a leaf to be changed is shared with a reader";

/// An [`Error::Inconsistent`].
pub(crate) fn inconsistent<T>(what: &str) -> Result<T> {
    Err(Error::Inconsistent { what: what.into() })
}

/// A node or large value on the device that the newest tree no longer needs.
pub(crate) enum Retired {
    /// A node.
    Node(u64),
    /// A large value: its first block and its number of blocks.
    Extent(u64, u64),
    /// A leaf that the running checkpoint has not written yet, and whether to release its leaf page and its log.
    Leaf(Arc<LeafSlot>, bool, bool),
    /// An inner node that the running checkpoint has not written yet.
    Inner(Arc<InnerSlot>),
}

/// Operations on leaves and inner nodes since the map was opened, by the ZB+-tree paper's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TreeCounts {
    /// Changes to leaves in state `change`.
    pub changed_in_place: u64,
    /// Updates and deletions of records in steady leaves, which went to the log.
    pub logged: u64,
    /// Leaf splits.
    pub split: u64,
    /// Steady leaves that were not full and returned to state `change`.
    pub reopened: u64,
    /// Syncs of a steady leaf whose log was not full.
    pub normal_apply_steady: u64,
    /// Syncs of a leaf with deletions whose log was not full.
    pub normal_apply_after: u64,
    /// Syncs of a steady leaf whose log was full: the log replaced the leaf.
    pub switch_apply_steady: u64,
    /// Syncs of a leaf with deletions whose log was full.
    pub switch_apply_after: u64,
    /// Leaves merged with a neighbour.
    pub merged: u64,
    /// Leaves saved by packing the records of many leaves into fewer ones because the map was full.
    pub packed: u64,
    /// Leaves that became empty and were removed from their head.
    pub emptied: u64,
    /// Heads and interior nodes split.
    pub inner_split: u64,
    /// Heads and interior nodes merged with a neighbour.
    pub inner_merged: u64,
    /// Heads that took entries from a neighbour.
    pub heads_evened: u64,
    /// Leaves copied because a snapshot or a checkpoint shared them.
    pub copied: u64,
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Inserted,
    Updated,
    Deleted,
    /// The key to be deleted was not present.
    Absent,
}

/// The state of an inner node after a change below it.
pub(crate) enum NodeBalance {
    Done,
    /// The node split. Boxed because splits are rare: the common results fit into a register or two.
    Split(Box<Split>),
    /// The node is less than half full.
    Underfull,
}

/// The new right half of a split inner node, to be added to its parent.
pub(crate) struct Split {
    /// The smallest key of the right half.
    pub separator: Vec<u8>,
    pub right: Arc<InnerSlot>,
}

/// Applies changes to the tree and updates the writer's counters.
pub(crate) struct Editor<'a, D> {
    pub io: &'a Io<D>,
    pub retired: &'a mut Vec<Retired>,
    pub counts: &'a mut TreeCounts,
    /// An upper bound of the nodes that the next checkpoint has to write.
    pub dirty: &'a mut u64,
    /// Memory of changed leaves that cannot be evicted before the next checkpoint writes them, bytes.
    pub pinned_bytes: &'a mut u64,
    /// Memory of changed inner nodes that cannot be evicted before the next checkpoint writes them, bytes.
    pub pinned_inner_bytes: &'a mut u64,
    /// The number of logs for which conventional slots are still free.
    pub log_slots_left: &'a mut u64,
    /// Whether leaves are evicted. If so, the changes of dirty leaves are recorded, so that they can be evicted too.
    pub records_changes: bool,
    /// The generation of the last checkpoint that has begun.
    pub generation: u64,
    /// Whether most of the usable space is in use. A full leaf then moves records to a neighbour before it splits.
    pub is_space_short: bool,
    /// Whether a checkpoint is running, which may still have to write nodes that a change replaces.
    pub checkpointing: bool,
}

impl<D: ZonedDevice> Editor<'_, D> {
    /// Inserts, updates or deletes `key`.
    pub fn change(&mut self, tree: &mut Tree, key: &[u8], value: Value<'_>) -> Result<Effect> {
        if value == Value::Deleted && !self.holds(tree, key)? {
            return Ok(Effect::Absent);
        }
        let (effect, left) = self.change_under(&mut tree.root, key, value)?;
        match left {
            NodeBalance::Split(split) => self.grow(tree, *split),
            NodeBalance::Underfull if effect == Effect::Deleted => self.shrink(tree),
            _ => {}
        }
        match effect {
            Effect::Inserted => tree.len += 1,
            Effect::Deleted => {
                let less = || damaged(0, "the key count in the superblock is too low".into());
                tree.len = tree.len.checked_sub(1).ok_or_else(less)?;
            }
            _ => {}
        }
        Ok(effect)
    }

    fn holds(&self, tree: &Tree, key: &[u8]) -> Result<bool> {
        Ok(tree.with_leaf(self.io, key, |body| body.get(key).is_some())?.0)
    }

    fn change_under(
        &mut self,
        slot: &mut Arc<InnerSlot>,
        key: &[u8],
        value: Value<'_>,
    ) -> Result<(Effect, NodeBalance)> {
        let inner = self.own_inner(slot)?;
        let index = inner.keys.child(key);
        if inner.level == 1 {
            let effect = self.change_leaf(inner, index, key, value)?;
            return Ok((effect, self.settle(inner)));
        }
        let Children::Inners(inners) = &mut inner.children else {
            return inconsistent("a node above the heads has leaves as children");
        };
        let (effect, left) = self.change_under(&mut inners[index], key, value)?;
        Ok((effect, self.settle_child(inner, index, left, effect == Effect::Deleted)?))
    }

    /// Adds the right half of a child that split, or merges or evens out an underfull child if `rebalances` is true.
    pub fn settle_child(
        &mut self,
        inner: &mut Inner,
        index: usize,
        left: NodeBalance,
        rebalances: bool,
    ) -> Result<NodeBalance> {
        match left {
            NodeBalance::Done => return Ok(NodeBalance::Done),
            NodeBalance::Split(split) => {
                let Children::Inners(inners) = &mut inner.children else {
                    return inconsistent("a node above the heads has leaves as children");
                };
                inners.insert(index + 1, split.right);
                inner.keys.insert(index + 1, &split.separator);
                inner.update_memory();
            }
            NodeBalance::Underfull if rebalances => self.rebalance(inner, index)?,
            NodeBalance::Underfull => {}
        }
        Ok(self.settle(inner))
    }

    /// Makes an inner node writable: copies it if it is shared, and retires its copy on the device.
    pub fn own_inner<'s>(&mut self, slot: &'s mut Arc<InnerSlot>) -> Result<&'s mut Inner> {
        slot.mark_current();
        let inner = slot.inner(self.io)?;
        let home = slot.home();
        let shared = Arc::get_mut(slot).is_none();
        let is_unwritten = home == UNWRITTEN;
        if !is_unwritten {
            self.retired.push(Retired::Node(home));
        } else if shared && self.checkpointing {
            self.retired.push(Retired::Inner(Arc::clone(slot)));
        }
        if !is_unwritten || (shared && self.checkpointing) {
            *self.dirty += 1;
            *self.pinned_inner_bytes += if self.records_changes { inner.memory.bytes() } else { 0 };
        }
        if shared {
            let copy = InnerSlot::new(Inner::clone(&inner));
            if self.records_changes {
                slot.mark_replaced();
            }
            *slot = copy;
        }
        drop(inner);
        let own = Arc::get_mut(slot).expect("a fresh copy is not shared");
        *own.home.get_mut() = UNWRITTEN;
        match own.inner_mut() {
            Some(inner) => Ok(inner),
            None => inconsistent("an inner node to be changed was evicted"),
        }
    }

    /// Makes a leaf writable: loads it, and copies it if it is shared.
    pub fn own_leaf<'s>(&mut self, slot: &'s mut Arc<LeafSlot>) -> Result<&'s mut LeafSlot> {
        if Arc::get_mut(slot).is_none() {
            self.counts.copied += 1;
            let mut copy = slot.copy(self.io, self.generation)?;
            let (leaf, log) = (slot.home() == UNWRITTEN, slot.log_home() == UNWRITTEN);
            if self.checkpointing && (leaf || log) {
                let nodes = u64::from(leaf) + u64::from(log);
                *self.dirty += nodes;
                if copy.changes_mut().is_none() {
                    let place = if leaf { ChangedPart::Leaf } else { ChangedPart::Log };
                    self.start_recording(&mut copy, Base::Leaf(Arc::clone(slot)), place);
                }
                self.retired.push(Retired::Leaf(Arc::clone(slot), leaf, log));
            }
            // From now on only snapshots and the running checkpoint refer to the old leaf, which no sweep visits.
            slot.mark_replaced();
            if self.records_changes {
                slot.evict();
            }
            *slot = Arc::new(copy);
        } else if !slot.is_loaded() {
            slot.mark_current();
            slot.with(self.io, |_| ())?;
        }
        Ok(Arc::get_mut(slot).expect("a fresh copy is not shared"))
    }

    /// Retires the device copy of a leaf page that is about to change.
    pub fn leaf_changes(&mut self, slot: &mut LeafSlot) {
        let homes = slot.homes_mut();
        if homes.leaf == UNWRITTEN {
            return;
        }
        self.retired.push(Retired::Node(homes.leaf));
        *slot.home.get_mut() = UNWRITTEN;
        *self.dirty += 1;
        if homes.log != UNWRITTEN {
            self.start_recording(slot, Base::LeafAddresses(homes), ChangedPart::Leaf);
            return;
        }
        match slot.changes_mut() {
            Some(changes) => changes.place = ChangedPart::Leaf,
            None => *self.pinned_bytes += self.io.node_bytes as u64,
        }
    }

    /// Starts recording the changes of a leaf, if leaves are evicted at all.
    fn start_recording(&mut self, slot: &mut LeafSlot, base: Base, place: ChangedPart) {
        let changes =
            self.records_changes.then(|| Box::new(Changes::new(self.io, base, place, self.generation)));
        let bytes = changes.as_ref().map_or(place.pages() * self.io.node_bytes, |changes| changes.bytes());
        *self.pinned_bytes += bytes as u64;
        *slot.changes_mut() = changes;
    }

    /// Records a change of a dirty leaf. If the list of changes gets longer than half a node, drops it and keeps the
    /// whole leaf in memory instead.
    fn record_change(&mut self, slot: &mut LeafSlot, key: &[u8], value: Value<'_>) {
        let Some(changes) = slot.changes_mut() else { return };
        let before = changes.bytes();
        changes.push(key, value);
        *self.pinned_bytes += (changes.bytes() - before) as u64;
        if changes.bytes() > self.io.node_bytes / 2 {
            self.stop_recording(slot);
        }
    }

    /// Stops recording the changes of a leaf: from now on the leaf itself must stay in memory.
    pub fn stop_recording(&mut self, slot: &mut LeafSlot) {
        if let Some(changes) = slot.changes_mut().take() {
            *self.pinned_bytes += (changes.place.pages() * self.io.node_bytes) as u64;
        }
    }

    fn log_changes(&mut self, slot: &mut LeafSlot) {
        let homes = slot.homes_mut();
        match homes.log {
            UNWRITTEN => return,
            NO_LOG => {}
            home => self.retired.push(Retired::Node(home)),
        }
        *slot.log.get_mut() = UNWRITTEN;
        *self.dirty += 1;
        *self.log_slots_left = self.log_slots_left.saturating_sub(1);
        self.start_recording(slot, Base::LeafAddresses(homes), ChangedPart::Log);
    }

    fn drop_log(&mut self, slot: &mut LeafSlot) {
        let log = slot.log.get_mut();
        if *log != UNWRITTEN && *log != NO_LOG {
            self.retired.push(Retired::Node(*log));
        }
        *log = NO_LOG;
    }

    /// Whether the leaf is steady: its copy is in a sequential zone and current except for the log.
    fn is_steady(&self, slot: &mut LeafSlot) -> bool {
        let home = *slot.home.get_mut();
        home != UNWRITTEN && !self.io.geometry.is_conventional(self.io.geometry.zone_of(Block(home)))
    }

    fn retire_value(&mut self, key: &[u8], value: Option<Value<'_>>) {
        if let Some(Value::Extent(Extent { block, bytes, .. })) = value {
            let blocks = self.io.extent_blocks(key, bytes);
            self.retired.push(Retired::Extent(block, blocks));
        }
    }

    fn change_leaf(
        &mut self,
        head: &mut Inner,
        index: usize,
        key: &[u8],
        value: Value<'_>,
    ) -> Result<Effect> {
        let Children::Leaves(leaves) = &mut head.children else {
            return inconsistent(NO_HEAD);
        };
        leaves[index].prefetch();
        let slot = self.own_leaf(&mut leaves[index])?;
        let steady = self.is_steady(slot);
        let body = slot.body_mut();
        let old = body.get(key);
        self.retire_value(key, old);
        let effect = match (old.is_some(), value) {
            (true, Value::Deleted) => Effect::Deleted,
            (true, _) => Effect::Updated,
            (false, Value::Deleted) => return Ok(Effect::Absent),
            (false, _) => Effect::Inserted,
        };
        *slot.relocated.get_mut() = false;
        // A log in a sequential zone would cost as much space as the leaf, so without a conventional slot the leaf
        // itself is rewritten.
        let may_log = *slot.log.get_mut() == UNWRITTEN || *self.log_slots_left > 0;
        let body = slot.body_mut();
        if steady && effect != Effect::Inserted && may_log && body.change_in_log(key, value) {
            self.counts.logged += 1;
            if body.is_empty() {
                self.remove_leaf(head, index)?;
            } else {
                self.log_changes(slot);
                self.record_change(slot, key, value);
                if effect == Effect::Deleted && slot.body_mut().is_mostly_deleted() {
                    // Otherwise, the leaf would occupy its block until its last record is removed.
                    self.apply_log(slot)?;
                    *self.dirty = self.dirty.saturating_sub(1);
                    self.after_deletion(head, index)?;
                }
            }
            return Ok(effect);
        }
        if slot.body_mut().log.is_some() {
            self.apply_log(slot)?;
        } else if steady {
            self.counts.reopened += u64::from(!slot.body_mut().leaf.is_filled(0.97));
        }
        self.leaf_changes(slot);
        self.record_change(slot, key, value);
        self.counts.changed_in_place += 1;
        let page = &mut slot.body_mut().leaf;
        let place = page.find(key);
        match (place, value) {
            (Ok(at), Value::Deleted) => {
                page.remove(at);
                self.after_deletion(head, index)?;
            }
            (Ok(at), value) => {
                if !page.set(at, value) {
                    page.remove(at);
                    self.insert_splitting(head, index, at, key, value)?;
                }
            }
            (Err(at), value) => {
                if !page.insert(at, key, value) {
                    self.insert_splitting(head, index, at, key, value)?;
                }
            }
        }
        Ok(effect)
    }

    /// Sync: merges the log into the leaf, or replaces the leaf by a full log.
    pub fn apply_log(&mut self, slot: &mut LeafSlot) -> Result<()> {
        self.leaf_changes(slot);
        self.drop_log(slot);
        let body = slot.body_mut();
        let Some(log) = body.log.take() else {
            return inconsistent("the log of a leaf is missing in memory");
        };
        body.resident.change(body.leaf.size());
        let deletions = (0..log.count()).any(|index| log.value(index) == Value::Deleted);
        let full = log.count() == body.leaf.count();
        *match (deletions, full) {
            (false, false) => &mut self.counts.normal_apply_steady,
            (true, false) => &mut self.counts.normal_apply_after,
            (false, true) => &mut self.counts.switch_apply_steady,
            (true, true) => &mut self.counts.switch_apply_after,
        } += 1;
        body.leaf = if full && !deletions { log } else { merged(&body.leaf, &log, full)? };
        Ok(())
    }

    /// Removes an empty leaf from its head. The last leaf of a head stays, empty.
    pub fn remove_leaf(&mut self, head: &mut Inner, index: usize) -> Result<()> {
        self.counts.emptied += 1;
        let Children::Leaves(leaves) = &mut head.children else {
            return inconsistent(NO_HEAD);
        };
        let only = leaves.len() == 1;
        // `own_leaf` has made the slot private.
        let Some(slot) = Arc::get_mut(&mut leaves[index]) else { return inconsistent(NOT_OWN) };
        self.leaf_changes(slot);
        self.stop_recording(slot);
        self.drop_log(slot);
        let body = slot.body_mut();
        body.log = None;
        body.resident.change(body.leaf.size());
        body.leaf = Page::new(body.leaf.size());
        if !only {
            *self.dirty = self.dirty.saturating_sub(1);
            leaves.remove(index);
            head.keys.remove(index);
            head.update_memory();
        }
        Ok(())
    }

    /// Inserts a record into a full leaf by splitting it into two leaves, or more if record lengths vary. Ascending
    /// inserts leave full leaves behind.
    fn insert_splitting(
        &mut self,
        head: &mut Inner,
        index: usize,
        at: usize,
        key: &[u8],
        value: Value<'_>,
    ) -> Result<()> {
        if self.is_space_short && self.insert_evening_out(head, index, key, value)? {
            return Ok(());
        }
        let Children::Leaves(leaves) = &mut head.children else {
            return inconsistent(NO_HEAD);
        };
        let last = index + 1 == leaves.len();
        let Some(slot) = Arc::get_mut(&mut leaves[index]) else { return inconsistent(NOT_OWN) };
        self.stop_recording(slot);
        let body = slot.body_mut();
        let page = std::mem::replace(&mut body.leaf, Page::new(self.io.node_bytes));
        let mut pages = Vec::new();
        if last && at == page.count() {
            pages.extend([page, page_of(self.io.node_bytes, key, value)?]);
        } else {
            split_into(page, at, key, value, &mut pages)?;
        }
        self.counts.split += pages.len() as u64 - 1;
        let separators: Vec<Vec<u8>> = pages.windows(2).map(|pair| separator(&pair[0], &pair[1])).collect();
        let mut pages = pages.into_iter();
        body.leaf = pages.next().expect("splitting yields at least one page");
        for (offset, (page, key)) in pages.zip(separators).enumerate() {
            leaves.insert(index + 1 + offset, LeafSlot::new(page, self.io.resident(1)));
            head.keys.insert(index + 1 + offset, &key);
            *self.dirty += 1;
            *self.pinned_bytes += self.io.node_bytes as u64;
        }
        head.update_memory();
        Ok(())
    }
}

/// A page with a single record.
fn page_of(bytes: usize, key: &[u8], value: Value<'_>) -> Result<Page> {
    let mut page = Page::new(bytes);
    ensure(page.insert(0, key, value), "an accepted record does not fit into an empty leaf")?;
    Ok(page)
}

/// Splits a page until the record fits.
fn split_into(mut page: Page, at: usize, key: &[u8], value: Value<'_>, pages: &mut Vec<Page>) -> Result<()> {
    if page.insert(at, key, value) {
        pages.push(page);
        return Ok(());
    }
    if page.count() < 2 {
        // A page can hold at least two records of any length.
        let other = page_of(page.size(), key, value)?;
        pages.extend(if at == 0 { [other, page] } else { [page, other] });
        return Ok(());
    }
    let middle = page.middle();
    let (left, right) = (page.part(0, middle), page.part(middle, page.count()));
    if at <= middle {
        split_into(left, at, key, value, pages)?;
        pages.push(right);
    } else {
        pages.push(left);
        split_into(right, at - middle, key, value, pages)?;
    }
    Ok(())
}

/// The shortest key that is greater than all keys of `left` and at most the first key of `right`.
pub(crate) fn separator(left: &Page, right: &Page) -> Vec<u8> {
    let (low, high) = (left.key(left.count() - 1), right.key(0));
    let same = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    high[..(same + 1).min(high.len())].to_vec()
}
