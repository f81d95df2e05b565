//! The merged view of a node and its log, in memory. Reading never writes.
//!
//! Source: the paper's search.

use super::{Kinds, Ptr, ZbTree};
use crate::paper::body::{Body, Change, Log, live_entries};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::{Error, Result};
use std::sync::Arc;

/// A leaf or an interior node with its log. A slot is an index into both.
pub(super) struct View {
    /// The node. `None` if the log has every entry, because the node is not read then.
    node: Option<Arc<Body>>,
    /// The log, if the node has one.
    log: Option<Arc<Log>>,
}

impl View {
    /// The number of slots.
    pub fn slots(&self) -> usize {
        match (&self.node, &self.log) {
            (Some(node), _) => node.entries.len(),
            (None, Some(log)) => log.changes.len(),
            (None, None) => 0,
        }
    }

    /// The current contents of a slot.
    pub fn slot(&self, slot: usize) -> Change {
        match self.log.as_ref().and_then(|log| log.changes[slot]) {
            Some(change) => change,
            None => {
                // A log without a node has every entry.
                let (key, payload) = self.node.as_ref().map_or((0, u64::MAX), |node| node.entries[slot]);
                Change::Set(key, payload)
            }
        }
    }

    /// The current contents of all slots, in order.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = Change> + '_ {
        (0..self.slots()).map(|slot| self.slot(slot))
    }

    /// The slot of `key`, if the leaf has it. A leaf and its log have the same keys.
    pub fn find(&self, key: u64) -> Option<usize> {
        let slot = match (&self.node, &self.log) {
            (Some(node), _) => node.find(key).ok()?,
            (None, _) => {
                let (mut low, mut high) = (0, self.slots());
                while low < high {
                    let middle = low + (high - low) / 2;
                    if self.key(middle) < key { low = middle + 1 } else { high = middle }
                }
                low
            }
        };
        let here = slot < self.slots() && matches!(self.slot(slot), Change::Set(own, _) if own == key);
        here.then_some(slot)
    }

    /// The slots that are not deleted, with their keys.
    pub fn live_slots(&self) -> impl DoubleEndedIterator<Item = (usize, u64)> + '_ {
        (0..self.slots()).filter_map(|slot| match self.slot(slot) {
            Change::Set(key, _) => Some((slot, key)),
            Change::Deleted(_) => None,
        })
    }

    /// The slot of an interior node whose range contains `key`; keys below the first live separator belong to the first
    /// live slot. With a log, the search is linear, because a changed separator may have passed that of a deleted
    /// neighbour.
    pub fn route(&self, key: u64) -> usize {
        if let (Some(node), None) = (&self.node, &self.log) {
            return node.child(key);
        }
        let upto = self.live_slots().skip(1).take_while(|&(_, own)| own <= key).last();
        upto.or_else(|| self.live_slots().next()).map_or(0, |(slot, _)| slot)
    }

    /// The key in `slot`.
    pub fn key(&self, slot: usize) -> u64 {
        match self.slot(slot) {
            Change::Set(key, _) | Change::Deleted(key) => key,
        }
    }

    /// The value or address in `slot`.
    pub fn payload(&self, slot: usize) -> u64 {
        match self.slot(slot) {
            Change::Set(_, payload) => payload,
            Change::Deleted(_) => u64::MAX,
        }
    }

    /// The entries that are not deleted, and the log.
    pub fn into_body(self) -> (Arc<Body>, Option<Arc<Log>>) {
        match (self.node, self.log) {
            (Some(node), None) => (node, None),
            (node, log) => {
                let view = Self { node, log };
                (Arc::new(live_entries(view.changes())), view.log)
            }
        }
    }

    /// The log, or a new one if there is none.
    pub fn into_log(self) -> Arc<Log> {
        let slots = self.slots();
        self.log.unwrap_or_else(|| Arc::new(Log::new(slots)))
    }
}

impl<D: ZonedDevice> ZbTree<D> {
    /// Reads a child of a head at `level`: first its log, then the node itself unless the log has every entry.
    pub(super) fn view(&mut self, level: u32, ptr: &Ptr) -> Result<View> {
        let kinds = Kinds::under(level);
        let Some(at) = ptr.log else {
            return Ok(View { node: Some(self.read_body(level, ptr.addr)?), log: None });
        };
        let log: Arc<Log> = self.read(kinds.log, at)?;
        if log.is_full() {
            return Ok(View { node: None, log: Some(log) });
        }
        let node = self.read_body(level, ptr.addr)?;
        if log.changes.len() != node.entries.len() {
            let what = "its log is for a node with another number of entries".into();
            return Err(Error::Damaged { block: ptr.addr, what });
        }
        Ok(View { node: Some(node), log: Some(log) })
    }
}
