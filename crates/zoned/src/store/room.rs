//! Whether a batch has room, and what is done when it has not: checkpoints and whole collections, until it has or the device is full.
//! Not the choice of places: see `space`. Not the collection that comes with each batch: see `reclaim`.
//! Source: our own; the reserve is what a collector needs so that it never waits for the room that it makes (Rosenblum and Ousterhout,
//! LFS, TOCS 1992).

use super::Shared;
use super::batch::{Batch, Change};
use super::journal::Journal;
use super::leaf::{LeafBody, LeafSlot};
use super::reclaim::Step;
use super::tree::{Children, Inner};
use super::writer::Writer;
use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::{EXTENT_BYTES, HEADER_BYTES, Page, Value};

/// Zones that are never filled with data, besides one for each stream: two for the journal (the one that it is in, and the one before, of
/// which a checkpoint needs the end), one that a victim's data moves to, and one for deletions and their checkpoint.
const RESERVED_ZONES: u64 = 4;

/// How many collections in a row may gain nothing before a map counts as full. A collection writes inner nodes, too, and the room that
/// they had is gained by the next one only.
const PATIENCE: u32 = 12;

/// What a batch will take.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// Nodes that will have to be written, at most.
    nodes: u64,
    /// Of these, nodes that there are not yet.
    new_nodes: u64,
    /// Blocks of large values.
    extents: u64,
    /// Blocks of large values that the batch gives up.
    freed: u64,
    /// Whether anything is put.
    puts: bool,
}

impl Writer {
    /// Blocks that batches leave free: one zone for collection, and with puts one for deletions, which make room in the end.
    pub const fn reserve(&self, puts: bool, capacity: u64) -> u64 {
        if puts { 2 * capacity } else { capacity }
    }

    /// How many blocks of sequential zones can be in use; a map that has less is not full, unless large values leave ends of zones unused.
    pub fn usable_blocks(&self) -> u64 {
        let able = |zone: &&super::space::SequentialZone| zone.role != super::space::Role::Unusable;
        let zones = self.space.zones.iter().filter(able).count() as u64;
        let reserved = RESERVED_ZONES + self.space.stream_count();
        zones.saturating_sub(reserved) * self.space.geometry.zone_capacity_blocks
    }

    /// Makes sure that a batch has room, and the checkpoint after it. What a checkpoint and garbage collection can gain they do first.
    ///
    /// # Errors
    /// [`Error::Full`], and errors of reading and writing.
    pub fn make_room<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batch: &Batch,
        extent_blocks: u64,
    ) -> Result<()> {
        let record = Journal::blocks_for(&shared.io, batch.bytes().len());
        let demand = |writer: &Self, is_first: bool| match is_first {
            true => Ok(writer.guess(shared, batch, extent_blocks)),
            false => writer.measure(shared, batch, extent_blocks),
        };
        self.wait_for_room(shared, record, demand)?;
        if self.leave_journals_end(shared)? {
            self.wait_for_room(shared, record, demand)?;
        }
        Ok(())
    }

    /// Makes sure that so many blocks can be appended, and so many nodes more be written by the next checkpoint.
    ///
    /// # Errors
    /// As [`Writer::make_room`].
    pub fn make_room_to_load<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        blocks: u64,
        nodes: u64,
    ) -> Result<()> {
        let demand = Demand { nodes, new_nodes: 0, extents: blocks, freed: 0, puts: true };
        self.wait_for_room(shared, 0, |_: &Self, _| Ok(demand))
    }

    /// Has the journal go on in another zone if it has filled its own and no other was free then; says whether that was so.
    pub fn leave_journals_end<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        if !self.journal.is_at_end(&shared.io) {
            return Ok(false);
        }
        self.finish_checkpoint(shared)?;
        self.journal.ensure_zone(&shared.io, &mut self.space)?;
        self.begin_checkpoint(shared);
        self.finish_checkpoint(shared)?;
        Ok(true)
    }

    /// Waits until there is room for a journal's record of so many blocks and what `demand` says, first without a look at the tree.
    fn wait_for_room<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        record: u64,
        demand_of: impl Fn(&Self, bool) -> Result<Demand>,
    ) -> Result<()> {
        let mut demand = demand_of(self, true)?;
        let (mut most, mut patience) = (0, PATIENCE);
        loop {
            let (needed, free) = self.balance(shared, record, demand);
            if needed <= free {
                return Ok(());
            }
            let released = self.release_unneeded(shared);
            if self.or_stop(released)? {
                continue;
            }
            self.reclaim.counts.waits += 1;
            if self.checkpoint.is_some() || self.is_changed(shared) {
                self.checkpoint_now(shared)?;
                demand = demand_of(self, false)?;
                continue;
            }
            let live: u64 = self.space.zones.iter().map(|zone| zone.live()).sum();
            let growth = demand.new_nodes * shared.io.node_blocks() + demand.extents;
            let (after, usable) = ((live + growth).saturating_sub(demand.freed), self.usable_blocks());
            // What a snapshot needs is in use, too, but not for ever: it does not make a map full by itself.
            let grows = growth > demand.freed && after > usable && self.waiting.is_empty();
            patience = if free > most { PATIENCE } else { patience - 1 };
            most = most.max(free);
            if grows || patience == 0 || !self.collect_round(shared)? {
                return Err(Error::Full { device: shared.io.device.name(), needed, free });
            }
            demand = demand_of(self, false)?;
        }
    }

    /// At opening: makes room for the checkpoint that follows the changes of the journal, which begins where the last one says until then.
    ///
    /// # Errors
    /// [`Error::Full`], and errors of reading and writing.
    pub fn make_room_to_recover<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batches: &[Batch],
    ) -> Result<()> {
        let mut all = Batch::new();
        batches.iter().for_each(|batch| all.append(batch));
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let mut demand = self.guess(shared, &all, 0);
        let mut patience = PATIENCE;
        loop {
            // The journal may need a zone to go on in.
            let needed = demand.nodes * shared.io.node_blocks() + capacity;
            let free = self.space.available();
            if needed <= free && self.space.empty_zones() > 0 {
                return Ok(());
            }
            patience -= 1;
            if patience + 1 < PATIENCE && (patience == 0 || !self.collect_round(shared)?) {
                return Err(Error::Full { device: shared.io.device.name(), needed, free });
            }
            demand = self.measure(shared, &all, 0)?;
        }
    }

    /// Blocks that may be needed until the end of the next checkpoint, and those there are.
    fn balance<D: ZonedDevice>(&self, shared: &Shared<D>, record: u64, demand: Demand) -> (u64, u64) {
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let reserve = self.reserve(demand.puts, capacity);
        let nodes = (self.dirty + remaining + demand.nodes) * shared.io.node_blocks();
        let empty = self.space.empty_zones() as u64;
        let here = self.journal.room(&shared.io, &self.space) - empty * capacity;
        let journal = record.saturating_sub(here).div_ceil(capacity) * capacity;
        let sequential = demand.extents + journal + if demand.extents > 0 { reserve } else { 0 };
        match self.space.available_sequential() {
            less if less < sequential => (sequential, less),
            // One for the journal, one to move a victim's data to.
            _ if demand.puts && empty < 2 => (2 * capacity, empty * capacity),
            _ if journal > 0 && empty < journal / capacity => (journal, 0),
            _ => (nodes + demand.extents + reserve + journal, self.space.available()),
        }
    }

    /// What a batch takes at most, without a look at the tree: each change may touch a leaf and its way up, but no more nodes than there
    /// are, each of which may split once; more splits take half a node of new records each.
    fn guess<D: ZonedDevice>(&self, shared: &Shared<D>, batch: &Batch, extents: u64) -> Demand {
        let there = self.space.nodes_used() + self.dirty;
        let grown = 2 * batch.bytes().len() as u64 / shared.io.node_bytes as u64;
        let nodes = (3 * batch.len() as u64).min(2 * there) + grown + 16;
        let puts = batch.changes().any(|change| change.value != Value::Deleted);
        Demand { nodes, new_nodes: 0, extents, freed: 0, puts }
    }

    /// What a batch takes, when all changes before it are on the device: the leaves that it changes, the nodes on the way to them, and
    /// what splits.
    fn measure<D: ZonedDevice>(&self, shared: &Shared<D>, batch: &Batch, extents: u64) -> Result<Demand> {
        let mut demand = self.guess(shared, batch, extents);
        (demand.nodes, demand.new_nodes) = (4, 0);
        let tree = shared.newest.tree();
        let mut changes: Vec<Change<'_>> = batch.changes().collect();
        changes.sort_by(|a, b| a.key.cmp(b.key));
        let mut way: Vec<*const Inner> = Vec::new();
        let mut last: Option<(&LeafSlot, usize)> = None;
        for change in changes {
            let mut inner = tree.root.inner(&shared.io)?;
            let mut depth = 0;
            let leaf = loop {
                if way.get(depth) != Some(&std::ptr::from_ref(inner)) {
                    way.truncate(depth);
                    way.push(inner);
                    demand.nodes += 1;
                }
                depth += 1;
                let child = inner.keys.child(change.key);
                match &inner.children {
                    Children::Leaves(leaves) => break &*leaves[child],
                    Children::Inners(inners) => inner = inners[child].inner(&shared.io)?,
                }
            };
            let (grown, freed) = leaf.with(&shared.io, |body| growth(shared, body, &change))?;
            demand.freed += freed;
            match &mut last {
                Some((slot, bytes)) if std::ptr::eq(*slot, leaf) => *bytes += grown,
                _ => {
                    demand.add_splits(shared, last.replace((leaf, grown)))?;
                    demand.nodes += 1;
                }
            }
        }
        demand.add_splits(shared, last)?;
        Ok(demand)
    }

    /// Empties zones at once, as many as there is room for, and resets them. False if there is nothing to gain.
    fn collect_round<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        let mut looked = false;
        // More than a few zones at once would only mean more to write before there is any room.
        let mut left = 4 * shared.io.geometry.zone_capacity_blocks.max(1024);
        while left > 0 {
            match self.collect(shared, shared.io.node_blocks(), 0)? {
                Step::Done(blocks) => left = left.saturating_sub(blocks),
                Step::NoVictim | Step::NoRoom => break,
            }
            looked = true;
        }
        if !looked && !self.reclaim.wants_checkpoint() {
            return Ok(false);
        }
        self.begin_checkpoint(shared);
        let done = self.finish_checkpoint(shared);
        self.or_stop(done)?;
        Ok(true)
    }
}

impl Demand {
    /// A leaf that gets so many bytes more may have to be split.
    fn add_splits<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        leaf: Option<(&LeafSlot, usize)>,
    ) -> Result<()> {
        let Some((leaf, bytes)) = leaf else { return Ok(()) };
        let used = leaf.with(&shared.io, |body| body.leaf.used())? + bytes;
        let room = shared.io.node_bytes - HEADER_BYTES;
        if bytes > 0 && used > room {
            let pieces = (2 * used).div_ceil(room) as u64;
            self.new_nodes += pieces - 1;
            // The way up may split, too.
            self.nodes += pieces + 1;
        }
        Ok(())
    }
}

/// How many bytes a leaf may take more with a change, and how many blocks of a large value the change gives up.
fn growth<D: ZonedDevice>(shared: &Shared<D>, body: &LeafBody, change: &Change<'_>) -> (usize, u64) {
    /// The most that a record takes besides its key and value.
    const RECORD_BYTES: usize = 8;
    let longest = Page::limits(shared.io.node_bytes).1;
    let bytes = |value: Value<'_>| match value {
        Value::Inline(value) if value.len() <= longest => value.len(),
        Value::Inline(_) | Value::Extent(_) => EXTENT_BYTES,
        Value::Deleted => 0,
    };
    match body.get(change.key) {
        Some(old) => {
            let freed = match old {
                Value::Extent(extent) => shared.io.extent_blocks(change.key, extent.bytes),
                _ => 0,
            };
            (bytes(change.value).saturating_sub(bytes(old)), freed)
        }
        None if change.value == Value::Deleted => (0, 0),
        None => (change.key.len() + bytes(change.value) + RECORD_BYTES, 0),
    }
}
