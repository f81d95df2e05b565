//! Moves records between neighbouring leaves: merges leaves after deletions, evens out leaves before a split, and packs
//! leaves when the map is full.
//!
//! Source: B*-trees (Knuth, "The Art of Computer Programming", volume 3, section 6.2.4).

use crate::device::ZonedDevice;
use crate::error::{Result, ensure};
use crate::node::{Page, Value};
use crate::store::tree::edit::{Editor, NO_HEAD, NodeBalance, inconsistent, separator};
use crate::store::tree::leaf::{LeafBody, LeafSlot};
use crate::store::tree::nodes::{Children, Inner, InnerSlot, Tree};
use std::ops::Range;
use std::sync::Arc;

/// The maximum size of the records of two merged leaves, which leaves room for inserts.
const fn merge_limit(node_bytes: usize) -> usize {
    node_bytes / 10 * 9
}

impl<D: ZonedDevice> Editor<'_, D> {
    /// After a deletion from a leaf in state `change`: removes the leaf if it is empty, and merges it with a neighbour
    /// if both fit into one page and leave room for inserts.
    pub fn after_deletion(&mut self, head: &mut Inner, index: usize) -> Result<()> {
        let leaves = head.leaves();
        ensure(index < leaves.len(), NO_HEAD)?;
        let size = |body: &LeafBody| body.log.is_none().then(|| (body.leaf.used(), body.leaf.count()));
        let Some((own, count)) = leaves[index].if_loaded(size).flatten() else { return Ok(()) };
        if count == 0 {
            return self.remove_leaf(head, index);
        }
        let limit = merge_limit(self.io.node_bytes);
        if own > self.io.node_bytes / 3 * 2 {
            return Ok(());
        }
        let used = |neighbour: Option<usize>| {
            let other = leaves.get(neighbour?)?;
            // Read a neighbour only now and then: each time the leaf has lost half of its records.
            if !other.is_loaded() && (!count.is_power_of_two() || other.share(self.io).is_err()) {
                return None;
            }
            other.if_loaded(LeafBody::live_bytes)
        };
        match (used(index.checked_sub(1)), used(Some(index + 1))) {
            (_, Some(right)) if own + right <= limit => self.merge(head, index),
            (Some(left), _) if left + own <= limit => self.merge(head, index - 1),
            (Some(left), Some(right)) if left + own + right <= 2 * limit => self.distribute(head, index),
            _ => Ok(()),
        }
    }

    /// Makes adjacent leaves writable, applies their logs, and returns copies of their pages.
    fn own_pages(&mut self, leaves: &mut [Arc<LeafSlot>]) -> Result<Vec<Page>> {
        let mut pages = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            let slot = self.own_leaf(leaf)?;
            if slot.body_mut().log.is_some() {
                self.apply_log(slot)?;
            }
            pages.push(slot.body_mut().leaf.clone());
        }
        Ok(pages)
    }

    /// Merges a leaf with both neighbours into two leaves if the records fit.
    fn distribute(&mut self, head: &mut Inner, index: usize) -> Result<()> {
        let Children::Leaves(leaves) = &mut head.children else { return inconsistent(NO_HEAD) };
        let pages = self.own_pages(&mut leaves[index - 1..=index + 1])?;
        match spread(&pages, 2) {
            Some(pages) => self.replace(head, index - 1..index + 2, pages),
            None => Ok(()),
        }
    }

    /// Replaces the records of adjacent leaves by those of as many or fewer pages, and removes the leaves left over.
    fn replace(&mut self, head: &mut Inner, range: Range<usize>, pages: Vec<Page>) -> Result<()> {
        let Children::Leaves(leaves) = &mut head.children else { return inconsistent(NO_HEAD) };
        let end = range.start + pages.len();
        for (index, pair) in (range.start + 1..end).zip(pages.windows(2)) {
            head.keys.replace(index, &separator(&pair[0], &pair[1]));
        }
        for (leaf, page) in leaves[range.start..end].iter_mut().zip(pages) {
            let slot = self.own_leaf(leaf)?;
            self.leaf_changes(slot);
            self.stop_recording(slot);
            slot.body_mut().leaf = page;
        }
        for _ in end..range.end {
            self.remove_merged(head, end)?;
        }
        Ok(())
    }

    /// Inserts a record into a full leaf by moving records to a neighbour in memory. Returns false if neither neighbour
    /// has space. Compared with a split, this needs more writes and less space.
    pub fn insert_evening_out(
        &mut self,
        head: &mut Inner,
        index: usize,
        key: &[u8],
        value: Value<'_>,
    ) -> Result<bool> {
        let Children::Leaves(leaves) = &mut head.children else { return inconsistent(NO_HEAD) };
        let limit = 2 * (self.io.node_bytes / 16 * 15);
        let used = |at: usize| leaves.get(at)?.if_loaded(LeafBody::live_bytes);
        let fits =
            |&left: &usize| used(left).zip(used(left + 1)).is_some_and(|(left, right)| left + right <= limit);
        let Some(left) = [Some(index), index.checked_sub(1)].into_iter().flatten().find(fits) else {
            return Ok(false);
        };
        let pages = self.own_pages(&mut leaves[left..left + 2])?;
        let Some(mut halves) = spread(&pages, 2) else { return Ok(false) };
        let side = usize::from(*key >= *halves[1].key(0));
        let page = &mut halves[side];
        let at = page.find(key).unwrap_or_else(|at| at);
        if !page.insert(at, key, value) {
            return Ok(false);
        }
        self.replace(head, left..left + 2, halves)?;
        Ok(true)
    }

    /// Merges up to `width` adjacent leaves, from the one for `key` on, into fewer ones if the records fit. Returns the
    /// number of leaves saved.
    pub fn pack(&mut self, tree: &mut Tree, key: &[u8], width: usize) -> Result<usize> {
        let (saved, left) = self.pack_under(&mut tree.root, key, width)?;
        match left {
            NodeBalance::Split(split) => self.grow(tree, *split),
            NodeBalance::Underfull => self.shrink(tree),
            NodeBalance::Done => {}
        }
        Ok(saved)
    }

    fn pack_under(
        &mut self,
        slot: &mut Arc<InnerSlot>,
        key: &[u8],
        width: usize,
    ) -> Result<(usize, NodeBalance)> {
        let inner = self.own_inner(slot)?;
        let index = inner.keys.child(key);
        match &mut inner.children {
            Children::Leaves(_) => {
                let saved = self.pack_leaves(inner, index, width)?;
                Ok((saved, self.settle(inner)))
            }
            Children::Inners(inners) => {
                let (saved, left) = self.pack_under(&mut inners[index], key, width)?;
                Ok((saved, self.settle_child(inner, index, left, true)?))
            }
        }
    }

    fn pack_leaves(&mut self, head: &mut Inner, first: usize, width: usize) -> Result<usize> {
        let Children::Leaves(leaves) = &mut head.children else { return inconsistent(NO_HEAD) };
        let range = first..leaves.len().min(first + width);
        let pages = self.own_pages(&mut leaves[range.clone()])?;
        let least = pages.iter().map(Page::used).sum::<usize>() / self.io.node_bytes;
        let Some(packed) = (least.max(1)..range.len()).find_map(|into| spread(&pages, into)) else {
            return Ok(0);
        };
        let saved = range.len() - packed.len();
        self.replace(head, range, packed)?;
        self.counts.packed += saved as u64;
        Ok(saved)
    }

    /// Removes a leaf whose records are in its neighbours.
    fn remove_merged(&mut self, head: &mut Inner, index: usize) -> Result<()> {
        let Children::Leaves(leaves) = &mut head.children else { return inconsistent(NO_HEAD) };
        let gone = self.own_leaf(&mut leaves[index])?;
        self.leaf_changes(gone);
        *self.dirty = self.dirty.saturating_sub(1);
        leaves.remove(index);
        head.keys.remove(index);
        head.update_memory();
        self.counts.merged += 1;
        Ok(())
    }

    /// Merges a leaf with its right neighbour if both fit into one page.
    fn merge(&mut self, head: &mut Inner, left: usize) -> Result<()> {
        let Children::Leaves(leaves) = &mut head.children else { return inconsistent(NO_HEAD) };
        for leaf in &mut leaves[left..left + 2] {
            let slot = self.own_leaf(leaf)?;
            if slot.body_mut().log.is_some() {
                self.apply_log(slot)?;
            }
        }
        let right_page = leaves[left + 1].with(self.io, |body| body.leaf.clone())?;
        let slot = self.own_leaf(&mut leaves[left])?;
        let mut page = slot.body_mut().leaf.clone();
        if page.append(&right_page, 0, right_page.count()) < right_page.count() {
            return Ok(());
        }
        self.leaf_changes(slot);
        self.stop_recording(slot);
        slot.body_mut().leaf = page;
        self.remove_merged(head, left + 1)
    }
}

/// The records of some pages in `into` pages, about as many bytes in each. `None` if they do not fit.
fn spread(pages: &[Page], into: usize) -> Option<Vec<Page>> {
    let size = pages.first()?.size();
    let mut rest = pages.iter().map(Page::used).sum::<usize>();
    let mut spread = Vec::with_capacity(into);
    let (mut page, mut taken) = (Page::new(size), 0);
    for (source, index) in pages.iter().flat_map(|page| (0..page.count()).map(move |index| (page, index))) {
        let bytes = source.record_bytes(index);
        let share = rest / (into - spread.len());
        let is_last = spread.len() + 1 == into;
        if is_last || taken + bytes / 2 <= share {
            if page.append(source, index, index + 1) == 1 {
                taken += bytes;
                continue;
            }
            if is_last {
                return None;
            }
        }
        rest -= taken;
        spread.push(std::mem::replace(&mut page, source.part(index, index + 1)));
        taken = bytes;
    }
    spread.push(page);
    (spread.len() == into && spread.iter().all(|page| page.count() > 0)).then_some(spread)
}
