//! Whether a batch has room, and what is done when it has not: checkpoints and whole collections, until it has or the device is full.
//! Not the choice of places: see `space`. Not the collection that comes with each batch: see `reclaim`.
//! Source: the reserve is what a collector needs so that it never waits for the room that it makes (Rosenblum and Ousterhout,
//! LFS, TOCS 1992).

use super::Shared;
use super::batch::{Batch, Change};
use super::checkpoint::Freed;
use super::edit::Retired;
use super::journal::Journal;
use super::leaf::{LeafBody, LeafSlot};
use super::reclaim::{Step, is_loss};
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

/// How many collections in a row there are for deletions while there is room for them, but not as much as puts need.
const COMFORT_PATIENCE: u32 = 3;

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
    /// Zones that batches leave free: one for collection, and with puts one for deletions, which make room in the end. While a snapshot
    /// holds what was given up neither of them makes any, so that one more stays for what comes when the snapshot is gone.
    fn reserved_zones(&self, puts: bool) -> u64 {
        1 + u64::from(puts) + u64::from(!self.waiting.is_empty())
    }

    /// The blocks of these.
    pub fn reserve(&self, puts: bool, capacity: u64) -> u64 {
        self.reserved_zones(puts) * capacity
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
        let finished = self.finish_checkpoint(shared);
        self.or_stop(finished)?;
        self.journal.ensure_zone(&shared.io, &mut self.space)?;
        self.begin_checkpoint(shared);
        let finished = self.finish_checkpoint(shared);
        self.or_stop(finished)?;
        Ok(true)
    }

    /// Waits until there is room for a journal's record of so many blocks and what `demand` says, first without a look at the tree.
    fn wait_for_room<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        record: u64,
        demand_of: impl Fn(&Self, bool) -> Result<Demand>,
    ) -> Result<()> {
        let (mut demand, mut is_measured) = (demand_of(self, true)?, false);
        let (mut most, mut patience) = (0, PATIENCE);
        // Deletions find as much room as puts do, if it can be had: collection needs it. They go on with less.
        let mut comfort = if demand.puts { 0 } else { COMFORT_PATIENCE };
        loop {
            let is_easy = comfort > 0 && self.waiting.is_empty();
            let (needed, free) =
                self.balance(shared, record, Demand { puts: demand.puts || is_easy, ..demand });
            let beyond = self.beyond_usable(shared, demand, is_measured);
            if needed <= free && beyond.is_none() {
                return Ok(());
            }
            let released = self.release_unneeded(shared);
            if self.or_stop(released)? {
                continue;
            }
            if !is_measured {
                // A guess does not know what the batch gives up: by it an update would make a full map grow.
                (demand, is_measured) = (demand_of(self, false)?, true);
                continue;
            }
            self.reclaim.counts.waits += 1;
            if self.checkpoint.is_some() || self.is_changed(shared) {
                self.checkpoint_now(shared)?;
                demand = demand_of(self, false)?;
                continue;
            }
            let full = |(needed, free)| Err(Error::Full { device: shared.io.device.name(), needed, free });
            if let Some(beyond) = beyond {
                return full(beyond);
            }
            patience = if free > most { PATIENCE } else { patience - 1 };
            most = most.max(free);
            let is_hopeless = patience == 0 || !self.collect_round(shared)?;
            match is_easy {
                true => comfort = if is_hopeless { 0 } else { comfort - 1 },
                false if is_hopeless => return full((needed, free)),
                false => {}
            }
            demand = demand_of(self, false)?;
        }
    }

    /// If a batch makes the map grow beyond what it can use: how many blocks it takes more, and how many there are. A map that is filled
    /// beyond that finds no room for updates and deletions one day, as collection gains too little. Of a batch that was not measured it
    /// says whether it could.
    fn beyond_usable<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        demand: Demand,
        is_measured: bool,
    ) -> Option<(u64, u64)> {
        let growth = demand.new_nodes * shared.io.node_blocks() + demand.extents;
        let growth = growth.saturating_sub(demand.freed);
        if !demand.puts || (is_measured && growth == 0) {
            return None;
        }
        let usable = self.usable_blocks();
        let written: u64 = self.space.zones.iter().map(|zone| zone.live()).sum();
        if written + growth + self.dirty * shared.io.node_blocks() <= usable {
            return None;
        }
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let coming = (self.dirty + remaining) * shared.io.node_blocks();
        let going = self.going_blocks(shared.io.node_blocks());
        let free = usable.saturating_sub((written + coming).saturating_sub(going));
        (growth > free || (!is_measured && free == 0)).then_some((growth, free))
    }

    /// Blocks of sequential zones that the next checkpoints give up.
    fn going_blocks(&mut self, node_blocks: u64) -> u64 {
        let space = &self.space;
        let of_node = |block: u64| if space.zone_index(block).is_some() { node_blocks } else { 0 };
        let (seen, mut retired) = self.retired_seen;
        let (seen, fresh) = if seen > self.retired.len() { (0, true) } else { (seen, seen == 0) };
        retired = if fresh { 0 } else { retired };
        for one in &self.retired[seen..] {
            retired += match one {
                Retired::Node(block) => of_node(*block),
                Retired::Extent(_, blocks) => *blocks,
                // Written by the checkpoint that runs, and given up by the next one.
                Retired::Inner(_) | Retired::Leaf(..) => 0,
            };
        }
        self.retired_seen = (self.retired.len(), retired);
        let freed = self.checkpoint.as_ref().map_or(&[][..], |checkpoint| &checkpoint.freed);
        let freed = freed.iter().map(|one| match one {
            Freed::Extent(_, blocks) => *blocks,
            Freed::Node(block) => of_node(*block),
        });
        retired + freed.sum::<u64>()
    }

    /// At opening: makes room for the checkpoint that follows the changes of the journal, which begins where the last one says until then.
    /// Gives how many blocks there are beyond.
    ///
    /// # Errors
    /// [`Error::Full`], and errors of reading and writing.
    pub fn make_room_to_recover<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batches: &[Batch],
    ) -> Result<u64> {
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
                return Ok(free - needed);
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
        let (reserved, reserve) = (self.reserved_zones(demand.puts), self.reserve(demand.puts, capacity));
        let nodes = (self.dirty + remaining + demand.nodes) * shared.io.node_blocks();
        let empty = self.space.empty_zones() as u64;
        let here = self.journal.room(&shared.io, &self.space) - empty * capacity;
        let journal = record.saturating_sub(here).div_ceil(capacity) * capacity;
        let sequential = demand.extents + journal + if demand.extents > 0 { reserve } else { 0 };
        match self.space.available_sequential() {
            less if less < sequential => (sequential, less),
            // One for the journal, one to move a victim's data to.
            _ if reserved >= 2 && empty < reserved => (reserve, empty * capacity),
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
        // While a snapshot holds what is moved away, moving gains nothing as yet: what there is in reserve is not spent on it.
        let reserve = if self.waiting.is_empty() {
            0
        } else {
            self.reserve(true, shared.io.geometry.zone_capacity_blocks)
        };
        // More than a few zones at once would only mean more to write before there is any room.
        let mut left = 4 * shared.io.geometry.zone_capacity_blocks.max(1024);
        while left > 0 {
            let step = match self.collect(shared, shared.io.node_blocks(), reserve, !looked) {
                // What could not be read is as it was; of a failed write nobody knows what is there.
                Err(error) if !is_loss(&error) => self.or_stop(Err(error))?,
                step => step?,
            };
            match step {
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
