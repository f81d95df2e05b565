//! Checks the invariants of a ZB+-tree.
//!
//! Source: the paper's rules for states, placement and bounds.

use super::{Ptr, State, ZbTree};
use crate::paper::body::Change;
use longma_zoned::NodeStates;
use longma_zoned::device::{Block, ZonedDevice};
use longma_zoned::error::{Error, Result};

impl<D: ZonedDevice> ZbTree<D> {
    /// Checks the order, bounds, states and placement of all nodes, and counts nodes by state.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first violation; [`Error::Device`].
    pub fn check(&mut self) -> Result<NodeStates> {
        let counts = self.space.counts;
        let mut states = NodeStates::default();
        let keys = self.check_head(self.root, self.root_level, (0, u64::MAX), true, &mut states)?;
        self.space.counts = counts;
        if keys != self.len {
            let what = format!("the tree has {keys} keys but its count is {}", self.len);
            return Err(Error::Damaged { block: self.root, what });
        }
        Ok(states)
    }

    /// Checks the subtree of a head, whose keys must be in `first..=last`, and counts its keys.
    fn check_head(
        &mut self,
        at: Block,
        level: u32,
        range: (u64, u64),
        alone: bool,
        states: &mut NodeStates,
    ) -> Result<u64> {
        let wrong = |what: &str| Err(Error::Damaged { block: at, what: what.into() });
        let head = self.read_head(at, level)?;
        if !self.space.is_conventional(at) {
            return wrong("a head is outside the conventional zones");
        }
        states.heads += 1;
        states.small_heads += u64::from(!alone && head.entries.len() < self.space.fanout.head / 2);
        let mut keys = 0;
        let bound = |index: usize| head.entries.get(index).map(|entry| entry.0);
        for (index, (_, ptr)) in head.entries.iter().enumerate() {
            let first = if index == 0 { range.0 } else { head.entries[index].0 };
            let last = bound(index + 1).map_or(range.1, |next| next.wrapping_sub(1));
            if first > last || first < range.0 || last > range.1 {
                return wrong("a head's keys are out of order");
            }
            keys += self.check_body(level, ptr, (first, last), states)?;
        }
        Ok(keys)
    }

    fn check_body(
        &mut self,
        level: u32,
        ptr: &Ptr,
        range: (u64, u64),
        states: &mut NodeStates,
    ) -> Result<u64> {
        let wrong = |what: &str| Err(Error::Damaged { block: ptr.addr, what: what.into() });
        let view = self.view(level, ptr)?;
        let deleted = view.changes().any(|change| matches!(change, Change::Deleted(_)));
        let full = view.slots() == self.space.fanout.body;
        let entries = &view.into_body().0.entries;
        let conventional = self.space.is_conventional(ptr.addr);
        let fits = match ptr.state {
            State::Change => conventional && ptr.log.is_none() && !full,
            State::SteadyHot => !conventional && full && level == 1 && !deleted,
            State::SteadyCold => !conventional && full && level > 1 && !deleted,
            State::After => !conventional && full && ptr.log.is_some() && deleted,
        };
        if !fits {
            return wrong("a node does not match its state");
        }
        *match (ptr.state, level) {
            (State::Change, 1) => &mut states.change_leaves,
            (State::Change, _) => &mut states.change_interiors,
            (State::SteadyHot, _) => &mut states.steady_hot,
            (State::SteadyCold, _) => &mut states.steady_cold,
            (State::After, 1) => &mut states.after_leaves,
            (State::After, _) => &mut states.after_interiors,
        } += 1;
        let from = usize::from(level > 1).min(entries.len());
        let inside = entries[from..].iter().all(|entry| (range.0..=range.1).contains(&entry.0));
        if !inside || !entries[from..].is_sorted_by(|a, b| a.0 < b.0) {
            return wrong("a node's keys are out of order");
        }
        if level == 1 {
            return Ok(entries.len() as u64);
        }
        let mut keys = 0;
        for (index, &(key, below)) in entries.iter().enumerate() {
            let first = if index == 0 { range.0 } else { key };
            let last = entries.get(index + 1).map_or(range.1, |next| next.0 - 1);
            keys += self.check_head(Block(below), level - 2, (first, last), entries.len() == 1, states)?;
        }
        Ok(keys)
    }
}
