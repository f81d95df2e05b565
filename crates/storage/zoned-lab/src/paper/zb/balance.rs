//! Deletion and rebalancing: neighbouring nodes merge when both fit into one, and heads stay at least half full, as in
//! a B+-tree. `entry` deletes within a single node.
//!
//! Source: the paper's merging: opportunistic at leaves and interior nodes, strict at heads.

use super::view::View;
use super::{Kinds, State, ZbTree};
use crate::paper::body::{Body, Change};
use crate::paper::head::Head;
use longma_zoned::device::{Block, ZonedDevice};
use longma_zoned::error::Result;
use std::sync::Arc;

/// The result of a deletion below a head.
pub(super) enum Deletion {
    /// The key was not present.
    NotFound,
    /// All changes are written.
    Done,
    /// The head is underfull and has not been written, so that the caller can merge it with a neighbour.
    Small(Arc<Head>),
    /// The head became empty, and its block was freed.
    Gone,
}

impl<D: ZonedDevice> ZbTree<D> {
    /// Deletes `key` below a head.
    pub(super) fn delete_under(&mut self, at: Block, level: u32, key: u64) -> Result<Deletion> {
        let mut head = self.read_head(at, level)?;
        let index = head.child(key);
        let view = self.view(level, &head.entries[index].1)?;
        let dirty = if level == 1 {
            let Some(slot) = view.find(key) else { return Ok(Deletion::NotFound) };
            self.change_entry(level, &mut head, index, view, slot, Change::Deleted(key))?
        } else {
            let slot = view.route(key);
            match self.delete_under(Block(view.payload(slot)), level - 2, key)? {
                Deletion::Small(small) => self.rebalance(level, &mut head, index, view, slot, small)?,
                Deletion::Gone => {
                    let change = Change::Deleted(view.key(slot));
                    self.change_entry(level, &mut head, index, view, slot, change)?
                }
                done => return Ok(done),
            }
        };
        if head.entries.is_empty() {
            self.space.release(at);
            return Ok(Deletion::Gone);
        }
        if dirty && at != self.root && head.entries.len() < self.space.fanout.head / 2 {
            return Ok(Deletion::Small(head));
        }
        if dirty {
            self.space.write(Kinds::under(level).head, at, &head)?;
        }
        Ok(Deletion::Done)
    }

    /// Merges an underfull head (in `slot` of an interior node) with a neighbour, or moves entries from the neighbour
    /// to it. Returns true if the head above changed. A head without a neighbour under the same interior node is
    /// unchanged.
    fn rebalance(
        &mut self,
        level: u32,
        head: &mut Arc<Head>,
        index: usize,
        view: View,
        slot: usize,
        small: Arc<Head>,
    ) -> Result<bool> {
        let kind = Kinds::under(level - 2).head;
        let after = view.live_slots().map(|(slot, _)| slot).find(|&other| other > slot);
        let before = view.live_slots().map(|(slot, _)| slot).rfind(|&other| other < slot);
        let at = Block(view.payload(slot));
        let Some(neighbour) = after.or(before) else {
            self.space.write(kind, at, &small)?;
            return Ok(false);
        };
        let other = self.read_head(Block(view.payload(neighbour)), level - 2)?;
        let (left_slot, right_slot) = (slot.min(neighbour), slot.max(neighbour));
        let (left, right) = if slot < neighbour { (small, other) } else { (other, small) };
        let (mut left, mut right) = (Arc::unwrap_or_clone(left), Arc::unwrap_or_clone(right));
        let (left_at, right_at) = (Block(view.payload(left_slot)), Block(view.payload(right_slot)));
        let separator = view.key(right_slot);
        right.entries[0].0 = separator;
        left.entries.append(&mut right.entries);
        if left.entries.len() <= self.space.fanout.head {
            self.space.counts.heads_merged += 1;
            self.space.write(kind, left_at, &Arc::new(left))?;
            self.space.release(right_at);
            return self.change_entry(level, head, index, view, right_slot, Change::Deleted(separator));
        }
        self.space.counts.heads_evened += 1;
        right.entries = left.entries.split_off(left.entries.len() / 2);
        let change = Change::Set(right.entries[0].0, right_at.0);
        self.space.write(kind, left_at, &Arc::new(left))?;
        self.space.write(kind, right_at, &Arc::new(right))?;
        self.change_entry(level, head, index, view, right_slot, change)
    }

    /// Merges a node in state `change` with a neighbour in that state if both fit into one. Returns true if the head
    /// changed. A neighbour is read only when the node shrinks to exactly a half, a quarter, an eighth and so on,
    /// because trying at every deletion would cost a read each time.
    pub(super) fn merge(
        &mut self,
        level: u32,
        head: &mut Arc<Head>,
        index: usize,
        body: Arc<Body>,
    ) -> Result<bool> {
        let max = self.space.fanout.body;
        let worth = (1..).map(|shift| max >> shift).take_while(|&left| left > 0);
        if !worth.into_iter().any(|left| left == body.entries.len()) {
            return Ok(false);
        }
        let kinds = Kinds::under(level);
        for neighbour in [Some(index + 1), index.checked_sub(1)].into_iter().flatten() {
            let Some(&(_, ptr)) = head.entries.get(neighbour) else { continue };
            if ptr.state != State::Change {
                continue;
            }
            let other = self.read_body(level, ptr.addr)?;
            if body.entries.len() + other.entries.len() >= max {
                continue;
            }
            let (left, right) = (index.min(neighbour), index.max(neighbour));
            let (merged, rest) = if index < neighbour { (body, other) } else { (other, body) };
            let (mut merged, mut rest) = (Arc::unwrap_or_clone(merged), Arc::unwrap_or_clone(rest));
            if level > 1 {
                rest.entries[0].0 = head.entries[right].0;
            }
            merged.entries.append(&mut rest.entries);
            self.space.counts.merged += 1;
            self.space.write(kinds.body, head.entries[left].1.addr, &Arc::new(merged))?;
            self.space.release(head.entries[right].1.addr);
            Arc::make_mut(head).entries.remove(right);
            return Ok(true);
        }
        Ok(false)
    }

    /// Removes the root and the interior node below it while they lead to a single head.
    pub(super) fn shrink(&mut self) -> Result<()> {
        while self.root_level > super::ROOT_LEVEL {
            let head = self.read_head(self.root, self.root_level)?;
            let &[(_, ptr)] = head.entries.as_slice() else { return Ok(()) };
            let view = self.view(self.root_level, &ptr)?;
            let mut slots = view.live_slots();
            let (Some((slot, _)), None) = (slots.next(), slots.next()) else { return Ok(()) };
            let below = Block(view.payload(slot));
            drop(slots);
            self.space.release(self.root);
            self.space.release(ptr.addr);
            if let Some(log) = ptr.log {
                self.space.release(log);
            }
            (self.root, self.root_level) = (below, self.root_level - 2);
        }
        Ok(())
    }
}
