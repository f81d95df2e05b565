//! Changing one entry of a leaf or an interior node, whatever its state: in place, by its log, by Sync, by splitting.
//! Not changes of heads: see `balance`.
//! Source: the paper's insert, update, delete and Sync.

use super::view::View;
use super::{Kinds, State, ZbTree};
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::paper::body::{Body, Change, Log};
use crate::paper::head::{Head, Ptr};

impl<D: ZonedDevice> ZbTree<D> {
    /// Adds an entry to the child `index` of `head`; true if the head changed.
    pub(super) fn insert_entry(
        &mut self,
        level: u32,
        head: &mut Head,
        index: usize,
        view: View,
        entry: (u64, u64),
    ) -> Result<bool> {
        let ptr = head.entries[index].1;
        if ptr.state == State::Change {
            return self.insert_in_place(level, head, index, view.body(), entry);
        }
        if ptr.log.is_none() {
            return self.split(level, head, index, view.body(), entry);
        }
        let body = self.apply_log(level, head, index, view)?;
        match head.entries[index].1.state {
            State::Change => self.insert_in_place(level, head, index, body, entry),
            _ => self.split(level, head, index, body, entry),
        }
        .map(|_| true)
    }

    fn insert_in_place(
        &mut self,
        level: u32,
        head: &mut Head,
        index: usize,
        mut body: Body,
        entry: (u64, u64),
    ) -> Result<bool> {
        let kinds = Kinds::under(level);
        put_sorted(level, &mut body, entry);
        let ptr = &mut head.entries[index].1;
        self.space.counts.changed_in_place += 1;
        if body.entries.len() < self.space.fanout.body {
            self.space.write(kinds.body, ptr.addr, &body)?;
            return Ok(false);
        }
        let addr = self.space.append(kinds.body, kinds.warmth, &body)?;
        self.space.release(ptr.addr);
        *ptr = Ptr { state: kinds.steady, addr, log: None };
        self.space.counts.moved_when_full += 1;
        Ok(true)
    }

    /// Splits a steady node into two in state `change`, one of which takes the new entry.
    fn split(
        &mut self,
        level: u32,
        head: &mut Head,
        index: usize,
        mut left: Body,
        entry: (u64, u64),
    ) -> Result<bool> {
        let kinds = Kinds::under(level);
        self.space.counts.split += 1;
        let mut right = left.split_off();
        let separator = right.entries[0].0;
        put_sorted(level, if entry.0 < separator { &mut left } else { &mut right }, entry);
        let (left_at, right_at) = (self.space.take()?, self.space.take()?);
        self.space.write(kinds.body, left_at, &left)?;
        self.space.write(kinds.body, right_at, &right)?;
        self.space.release(head.entries[index].1.addr);
        let change = |addr| Ptr { state: State::Change, addr, log: None };
        head.entries[index].1 = change(left_at);
        head.entries.insert(index + 1, (separator, change(right_at)));
        Ok(true)
    }

    /// Changes or deletes the entry in `slot` of the child `index` of `head`; true if the head changed.
    pub(super) fn change_entry(
        &mut self,
        level: u32,
        head: &mut Head,
        index: usize,
        mut view: View,
        slot: usize,
        change: Change,
    ) -> Result<bool> {
        let kinds = Kinds::under(level);
        view.changes[slot] = change;
        let ptr = &mut head.entries[index].1;
        if view.alive().next().is_none() {
            return Ok(self.empty(head, index));
        }
        if ptr.state == State::Change {
            let body = view.body();
            self.space.write(kinds.body, ptr.addr, &body)?;
            let deleted = matches!(change, Change::Deleted(_));
            return Ok(deleted && self.merge(level, head, index, body)?);
        }
        self.space.counts.logged += 1;
        let mut dirty = false;
        let at = match ptr.log {
            Some(at) => at,
            None => {
                dirty = true;
                let at = self.space.take()?;
                ptr.log = Some(at);
                at
            }
        };
        if matches!(change, Change::Deleted(_)) && ptr.state != State::After {
            ptr.state = State::After;
            dirty = true;
        }
        let mut log = view.log.unwrap_or_else(|| Log::new(view.changes.len()));
        log.changes[slot] = Some(change);
        self.space.write(kinds.log, at, &log)?;
        Ok(dirty)
    }

    /// The last entry of a child went: the child leaves its head, which may then be empty itself.
    fn empty(&mut self, head: &mut Head, index: usize) -> bool {
        self.space.counts.emptied += 1;
        let (_, ptr) = head.entries.remove(index);
        self.space.release(ptr.addr);
        if let Some(log) = ptr.log {
            self.space.release(log);
        }
        true
    }

    /// Sync: merges a child with its log, and gives what it now holds. The head changes.
    fn apply_log(&mut self, level: u32, head: &mut Head, index: usize, view: View) -> Result<Body> {
        let kinds = Kinds::under(level);
        let ptr = &mut head.entries[index].1;
        let body = view.body();
        let (Some(log_at), Some(log)) = (ptr.log, view.log) else { return Ok(body) };
        let counts = &mut self.space.counts;
        *match (ptr.state == State::After, log.is_full()) {
            (false, false) => &mut counts.normal_apply_steady,
            (true, false) => &mut counts.normal_apply_after,
            (false, true) => &mut counts.switch_apply_steady,
            (true, true) => &mut counts.switch_apply_after,
        } += 1;
        if ptr.state == State::After {
            self.space.write(kinds.body, log_at, &body)?;
            self.space.release(ptr.addr);
            *ptr = Ptr { state: State::Change, addr: log_at, log: None };
            return Ok(body);
        }
        let addr = match log.is_full() {
            true => self.space.append(kinds.body, kinds.warmth, &log)?,
            false => self.space.append(kinds.body, kinds.warmth, &body)?,
        };
        self.space.release(ptr.addr);
        self.space.release(log_at);
        *ptr = Ptr { state: kinds.steady, addr, log: None };
        Ok(body)
    }
}

/// Adds an entry where it belongs. The first key of an interior node is less than every key, so a separator never goes before it.
fn put_sorted(level: u32, body: &mut Body, entry: (u64, u64)) {
    let at = match body.find(entry.0) {
        _ if level > 1 => body.child(entry.0) + 1,
        Ok(at) | Err(at) => at,
    };
    body.entries.insert(at, entry);
}
