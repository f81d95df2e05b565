//! What a node and its log say together, in memory: no search ever writes.
//! Not how they change: see `entry`.
//! Source: the paper's search.

use super::{Kinds, Ptr, ZbTree};
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::paper::body::{Body, Change, Log};

/// A leaf or an interior node as it was read, with its log applied.
pub(super) struct View {
    /// The node's log, if it has one.
    pub log: Option<Log>,
    /// Slot by slot what the node holds now; a slot is an index into the node and its log alike.
    pub changes: Vec<Change>,
}

impl View {
    /// The slot of `key`, if the node holds it.
    pub fn find(&self, key: u64) -> Option<usize> {
        let of = |change: &Change| match *change {
            Change::To(key, _) | Change::Deleted(key) => key,
        };
        let slot = self.changes.binary_search_by_key(&key, of).ok()?;
        matches!(self.changes[slot], Change::To(..)).then_some(slot)
    }

    /// The slots that are not deleted, with their keys.
    pub fn alive(&self) -> impl DoubleEndedIterator<Item = (usize, u64)> {
        self.changes.iter().enumerate().filter_map(|(slot, change)| match *change {
            Change::To(key, _) => Some((slot, key)),
            Change::Deleted(_) => None,
        })
    }

    /// The slot that leads to `key` in an interior node: the first one that is alive also has all lesser keys.
    pub fn route(&self, key: u64) -> usize {
        let upto = self.alive().skip(1).take_while(|&(_, own)| own <= key).last();
        upto.or_else(|| self.alive().next()).map_or(0, |(slot, _)| slot)
    }

    /// The key in `slot`.
    pub fn key(&self, slot: usize) -> u64 {
        match self.changes[slot] {
            Change::To(key, _) | Change::Deleted(key) => key,
        }
    }

    /// The value or address in `slot`.
    pub fn payload(&self, slot: usize) -> u64 {
        match self.changes.get(slot) {
            Some(&Change::To(_, payload)) => payload,
            _ => u64::MAX,
        }
    }

    /// The node's entries, without the deleted ones.
    pub fn body(&self) -> Body {
        crate::paper::body::alive(&self.changes)
    }
}

impl<D: ZonedDevice> ZbTree<D> {
    /// Reads a child of a head at `level`: its log first, and the node itself unless the log has every entry.
    pub(super) fn view(&mut self, level: u32, ptr: &Ptr) -> Result<View> {
        let kinds = Kinds::under(level);
        let log = ptr.log.map(|at| self.space.read::<Log>(kinds.log, at)).transpose()?;
        let changes = match &log {
            Some(log) if log.is_full() => log.changes.iter().flatten().copied().collect(),
            log => {
                let body: Body = self.space.read(kinds.body, ptr.addr)?;
                let own = || body.entries.iter().map(|&(key, payload)| Change::To(key, payload)).collect();
                match log {
                    Some(log) if log.changes.len() == body.entries.len() => log.over(&body),
                    Some(_) => {
                        let what = "its log is for a node of another size".into();
                        return Err(crate::Error::Damaged { block: ptr.addr, what });
                    }
                    None => own(),
                }
            }
        };
        Ok(View { log, changes })
    }
}
