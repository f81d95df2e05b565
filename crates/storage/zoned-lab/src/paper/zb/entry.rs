//! Changes a single entry of a leaf or an interior node in any state: in place, through its log, by Sync, or by
//! splitting.
//!
//! Source: the paper's insert, update, delete and Sync.

use super::view::View;
use super::{Kinds, State, ZbTree};
use crate::paper::body::{Body, Change};
use crate::paper::head::{Head, Ptr};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::Result;
use std::sync::Arc;

impl<D: ZonedDevice> ZbTree<D> {
    /// Adds an entry to the child `index` of `head`. Returns true if the head changed.
    pub(super) fn insert_entry(
        &mut self,
        level: u32,
        head: &mut Arc<Head>,
        index: usize,
        view: View,
        entry: (u64, u64),
    ) -> Result<bool> {
        let ptr = head.entries[index].1;
        if ptr.state == State::Change {
            return self.insert_in_place(level, head, index, view.into_body().0, entry);
        }
        if ptr.log.is_none() {
            return self.split(level, head, index, view.into_body().0, entry);
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
        head: &mut Arc<Head>,
        index: usize,
        mut body: Arc<Body>,
        entry: (u64, u64),
    ) -> Result<bool> {
        let kinds = Kinds::under(level);
        put_sorted(level, Arc::make_mut(&mut body), entry);
        let ptr = head.entries[index].1;
        self.space.counts.changed_in_place += 1;
        if body.entries.len() < self.space.fanout.body {
            self.space.write(kinds.body, ptr.addr, &body)?;
            return Ok(false);
        }
        let addr = self.space.append(kinds.body, kinds.warmth, &body)?;
        self.space.release(ptr.addr);
        Arc::make_mut(head).entries[index].1 = Ptr { state: kinds.steady, addr, log: None };
        self.space.counts.moved_when_full += 1;
        Ok(true)
    }

    /// Splits a steady node into two in state `change` and inserts the new entry into one of them.
    fn split(
        &mut self,
        level: u32,
        head: &mut Arc<Head>,
        index: usize,
        left: Arc<Body>,
        entry: (u64, u64),
    ) -> Result<bool> {
        let kinds = Kinds::under(level);
        self.space.counts.split += 1;
        let mut left = Arc::unwrap_or_clone(left);
        let mut right = left.split_off();
        let separator = right.entries[0].0;
        put_sorted(level, if entry.0 < separator { &mut left } else { &mut right }, entry);
        let (left_at, right_at) = (self.space.take()?, self.space.take()?);
        self.space.write(kinds.body, left_at, &Arc::new(left))?;
        self.space.write(kinds.body, right_at, &Arc::new(right))?;
        self.space.release(head.entries[index].1.addr);
        let change = |addr| Ptr { state: State::Change, addr, log: None };
        let entries = &mut Arc::make_mut(head).entries;
        entries[index].1 = change(left_at);
        entries.insert(index + 1, (separator, change(right_at)));
        Ok(true)
    }

    /// Changes or deletes the entry in `slot` of the child `index` of `head`. Returns true if the head changed.
    pub(super) fn change_entry(
        &mut self,
        level: u32,
        head: &mut Arc<Head>,
        index: usize,
        view: View,
        slot: usize,
        change: Change,
    ) -> Result<bool> {
        let kinds = Kinds::under(level);
        let ptr = head.entries[index].1;
        let deleted = matches!(change, Change::Deleted(_));
        if deleted && !view.live_slots().any(|(other, _)| other != slot) {
            return Ok(self.empty(head, index));
        }
        if ptr.state == State::Change {
            // The node has no log, so slots are entry indices.
            let mut body = view.into_body().0;
            let entries = &mut Arc::make_mut(&mut body).entries;
            match change {
                Change::Set(key, payload) => entries[slot] = (key, payload),
                Change::Deleted(_) => drop(entries.remove(slot)),
            }
            self.space.write(kinds.body, ptr.addr, &body)?;
            return Ok(deleted && self.merge(level, head, index, body)?);
        }
        self.space.counts.logged += 1;
        let mut dirty = false;
        let at = match ptr.log {
            Some(at) => at,
            None => {
                dirty = true;
                let at = self.space.take()?;
                Arc::make_mut(head).entries[index].1.log = Some(at);
                at
            }
        };
        if deleted && ptr.state != State::After {
            Arc::make_mut(head).entries[index].1.state = State::After;
            dirty = true;
        }
        let mut log = view.into_log();
        Arc::make_mut(&mut log).changes[slot] = Some(change);
        self.space.write(kinds.log, at, &log)?;
        Ok(dirty)
    }

    /// Removes a child that has become empty from its head, which may then be empty itself.
    fn empty(&mut self, head: &mut Arc<Head>, index: usize) -> bool {
        self.space.counts.emptied += 1;
        let (_, ptr) = Arc::make_mut(head).entries.remove(index);
        self.space.release(ptr.addr);
        if let Some(log) = ptr.log {
            self.space.release(log);
        }
        true
    }

    /// Sync: merges a child with its log and returns the result. The head changes.
    fn apply_log(&mut self, level: u32, head: &mut Arc<Head>, index: usize, view: View) -> Result<Arc<Body>> {
        let kinds = Kinds::under(level);
        let ptr = head.entries[index].1;
        let (body, log) = view.into_body();
        let (Some(log_at), Some(log)) = (ptr.log, log) else { return Ok(body) };
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
            Arc::make_mut(head).entries[index].1 = Ptr { state: State::Change, addr: log_at, log: None };
            return Ok(body);
        }
        let addr = match log.is_full() {
            true => self.space.append(kinds.body, kinds.warmth, &log)?,
            false => self.space.append(kinds.body, kinds.warmth, &body)?,
        };
        self.space.release(ptr.addr);
        self.space.release(log_at);
        Arc::make_mut(head).entries[index].1 = Ptr { state: kinds.steady, addr, log: None };
        Ok(body)
    }
}

/// Inserts an entry in key order. The first key of an interior node acts as minus infinity, so a separator is never
/// inserted before it.
fn put_sorted(level: u32, body: &mut Body, entry: (u64, u64)) {
    let at = match body.find(entry.0) {
        _ if level > 1 => body.child(entry.0) + 1,
        Ok(at) | Err(at) => at,
    };
    body.entries.insert(at, entry);
}
