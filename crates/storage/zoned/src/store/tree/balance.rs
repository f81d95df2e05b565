//! Splits, merges, grows and shrinks heads and interior nodes. `edit` does the same for leaves.
//!
//! Source: the ZB+-tree paper. Heads stay at least half full or are evened out with a neighbour; interior nodes merge
//! only when the result fits into one node.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::InnerRecord;
use crate::store::tree::edit::{Editor, NodeBalance, Retired, Split};
use crate::store::tree::keys::Keys;
use crate::store::tree::nodes::{Children, Inner, InnerSlot, Tree, UNWRITTEN};
use std::sync::Arc;

impl<D: ZonedDevice> Editor<'_, D> {
    fn room(&self) -> usize {
        InnerRecord::room(self.io.node_bytes)
    }

    /// Splits an inner node that is over capacity, or reports that it is less than half full.
    pub fn settle(&mut self, inner: &mut Inner) -> NodeBalance {
        if inner.used() > self.room() {
            self.counts.inner_split += 1;
            *self.dirty += 1;
            let right = split_off(inner, middle(inner));
            let separator = right.keys.get(0).to_vec();
            return NodeBalance::Split(Box::new(Split { separator, right: InnerSlot::new(right) }));
        }
        if inner.used() < self.room() / 2 { NodeBalance::Underfull } else { NodeBalance::Done }
    }

    /// Adds a level: a new root over both halves of the split root.
    pub fn grow(&mut self, tree: &mut Tree, Split { separator, right }: Split) {
        let level = tree.root.loaded().map_or(1, |inner| inner.level) + 1;
        let mut keys = Keys::default();
        keys.push(&[]);
        keys.push(&separator);
        let children = Children::Inners(vec![Arc::clone(&tree.root), right]);
        tree.root = InnerSlot::new(Inner::new(level, keys, children, self.io.resident_inner()));
        *self.dirty += 1;
    }

    /// Removes levels while the root has a single inner node as its child.
    pub fn shrink(&mut self, tree: &mut Tree) {
        while let Some(root) = tree.root.loaded() {
            let [only] = root.inners() else { return };
            let only = Arc::clone(only);
            // Keep the root if its only child cannot be read. The tree is still valid.
            if only.inner(self.io).is_err() {
                return;
            }
            self.retire_inner(&tree.root);
            tree.root = only;
        }
    }

    /// Marks the device copy of a removed inner node for release.
    fn retire_inner(&mut self, slot: &Arc<InnerSlot>) {
        match slot.home() {
            UNWRITTEN if self.checkpointing => self.retired.push(Retired::Inner(Arc::clone(slot))),
            UNWRITTEN => {}
            home => self.retired.push(Retired::Node(home)),
        }
    }

    /// Handles an underfull child: merges it with a neighbour if both fit into one node, or else evens out a head with
    /// its neighbour. Does nothing if the neighbour cannot be read.
    pub fn rebalance(&mut self, parent: &mut Inner, child: usize) -> Result<()> {
        let Children::Inners(inners) = &mut parent.children else {
            return Err(Error::Inconsistent { what: "the children of a head's parent are leaves".into() });
        };
        let left = if child + 1 < inners.len() { child } else { child.saturating_sub(1) };
        let right = left + 1;
        let read = |at: usize| inners.get(at).and_then(|slot| slot.inner(self.io).ok());
        let Some((left_node, right_node)) = read(left).zip(read(right)) else { return Ok(()) };
        let separator = parent.keys.get(right).len();
        let merges = left_node.used() + right_node.used() + separator <= self.room();
        let is_head = left_node.level % 2 == 1;
        drop((left_node, right_node));
        if !merges && !is_head {
            return Ok(());
        }
        let right_node = self.own_inner(&mut inners[right])?;
        let empty = right_node.empty_like();
        let taken = std::mem::replace(right_node, empty);
        let own = self.own_inner(&mut inners[left])?;
        join(own, parent.keys.get(right), taken)?;
        own.update_memory();
        if merges {
            self.counts.inner_merged += 1;
            *self.dirty = self.dirty.saturating_sub(1);
            inners.remove(right);
            parent.keys.remove(right);
            parent.update_memory();
            return Ok(());
        }
        self.counts.heads_evened += 1;
        let rest = split_off(own, middle(own));
        parent.keys.replace(right, rest.keys.get(0));
        *self.own_inner(&mut inners[right])? = rest;
        Ok(())
    }
}

/// The index of the first entry of the right half when a node is split by bytes.
fn middle(inner: &Inner) -> usize {
    let (half, each) = (inner.used() / 2, InnerRecord::entry_bytes(inner.level));
    let mut sum = 0;
    for index in 0..inner.keys.len() {
        sum += inner.keys.get(index).len() + each;
        if sum >= half {
            return (index + 1).clamp(1, inner.keys.len() - 1);
        }
    }
    inner.keys.len() / 2
}

fn split_off(inner: &mut Inner, at: usize) -> Inner {
    let mut right = inner.empty_like();
    right.keys = inner.keys.split_off(at);
    right.children = match &mut inner.children {
        Children::Leaves(leaves) => Children::Leaves(leaves.split_off(at)),
        Children::Inners(inners) => Children::Inners(inners.split_off(at)),
    };
    right.update_memory();
    inner.update_memory();
    right
}

/// Appends the entries of `right` to `left`. `separator` is the smallest key of `right`.
fn join(left: &mut Inner, separator: &[u8], right: Inner) -> Result<()> {
    for index in 0..right.keys.len() {
        left.keys.push(if index == 0 { separator } else { right.keys.get(index) });
    }
    match (&mut left.children, right.children) {
        (Children::Leaves(left), Children::Leaves(mut right)) => left.append(&mut right),
        (Children::Inners(left), Children::Inners(mut right)) => left.append(&mut right),
        _ => return Err(Error::Inconsistent { what: "neighbouring nodes have different levels".into() }),
    }
    Ok(())
}
