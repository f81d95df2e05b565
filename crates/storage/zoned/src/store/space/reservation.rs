//! Space reservation for batches: checks that a batch fits, and runs checkpoints and garbage collection until it does
//! or the device is full.
//!
//! Source: a cleaner needs reserved segments so that it never waits for the space it frees (Rosenblum and Ousterhout,
//! LFS, TOCS 1992).

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::{EXTENT_BYTES, HEADER_BYTES, Page, Value};
use crate::store::Shared;
use crate::store::journal::batch::{Batch, Change};
use crate::store::journal::parts::Journal;
use crate::store::space::reclaim::{CollectStep, is_data_loss};
use crate::store::tree::edit::Retired;
use crate::store::tree::leaf::{LeafBody, LeafSlot, merged};
use crate::store::tree::nodes::{Children, Inner};
use crate::store::write::checkpoint::Freed;
use crate::store::write::writer::Writer;
use std::sync::Arc;

/// Zones that are never filled with data, in addition to one per stream: two for the journal (the current zone and the
/// previous one, whose end a checkpoint needs), one for relocated data, and one for deletions and their checkpoint.
const RESERVED_ZONES: u64 = 4;

/// The number of consecutive collections without gain after which the map counts as full. A single collection may gain
/// nothing because it also writes inner nodes, whose old blocks are reclaimed only by the next one.
const MAX_IDLE_ROUNDS: u32 = 12;

/// The number of consecutive collections that try to give a deletion as much space as an insert needs. After that, the
/// deletion proceeds with less space.
const MAX_RESERVE_ROUNDS: u32 = 3;

/// An upper bound of the space that a batch needs.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// Nodes to be written.
    nodes: u64,
    /// The newly created ones among these nodes.
    new_nodes: u64,
    /// Blocks of large values.
    extents: u64,
    /// Blocks of large values that the batch releases.
    freed: u64,
    /// Whether the batch inserts or updates records.
    puts: bool,
}

impl Writer {
    /// The number of zones that batches must leave free: one for collection, and for inserts and updates one more,
    /// reserved for deletions, which eventually free space. While a snapshot pins released blocks, deletions and
    /// collection free no space, so one more zone is reserved until the snapshot is dropped.
    fn reserved_zones(&self, puts: bool) -> u64 {
        1 + u64::from(puts) + u64::from(!self.waiting.is_empty())
    }

    /// The number of reserved zones, in blocks.
    pub fn reserve(&self, puts: bool, capacity: u64) -> u64 {
        self.reserved_zones(puts) * capacity
    }

    /// The number of blocks in sequential zones that can be in use. A map below this limit is not full, unless large
    /// values leave the ends of zones unused.
    pub fn usable_blocks(&self) -> u64 {
        let able = |zone: &&crate::store::space::allocation::SequentialZone| {
            zone.role != crate::store::space::allocation::Role::Unusable
        };
        let zones = self.space.zones.iter().filter(able).count() as u64;
        let reserved = RESERVED_ZONES + self.space.stream_count();
        zones.saturating_sub(reserved) * self.space.geometry.zone_capacity_blocks
    }

    /// Ensures that there is space for a batch and for the checkpoint after it, by a checkpoint and garbage collection
    /// if necessary.
    ///
    /// # Errors
    /// [`Error::Full`], and read and write errors.
    pub fn make_room<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batch: &Batch,
        extent_blocks: u64,
    ) -> Result<()> {
        let record = Journal::blocks_for(&shared.io, batch.bytes().len());
        let batches = std::slice::from_ref(batch);
        let demand = |writer: &Self, is_first: bool| match is_first {
            true => Ok(writer.estimate(shared, batches, extent_blocks)),
            false => writer.measure(shared, batches, extent_blocks),
        };
        self.wait_for_room(shared, record, demand)?;
        if self.advance_full_journal(shared)? {
            self.wait_for_room(shared, record, demand)?;
        }
        Ok(())
    }

    /// Ensures that `blocks` blocks can be appended and that the next checkpoint can write `nodes` additional nodes.
    ///
    /// # Errors
    /// Those of [`Writer::make_room`].
    pub fn make_room_to_load<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        blocks: u64,
        nodes: u64,
    ) -> Result<()> {
        let demand = Demand { nodes, new_nodes: 0, extents: blocks, freed: 0, puts: true };
        self.wait_for_room(shared, 0, |_: &Self, _| Ok(demand))
    }

    /// Moves the journal to a new zone if it filled its zone when no other was free. Returns whether it did.
    pub fn advance_full_journal<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        if !self.journal.is_at_end(&shared.io) {
            return Ok(false);
        }
        let finished = self.finish_checkpoint(shared);
        self.stop_on_error(finished)?;
        self.journal.ensure_zone(&shared.io, &mut self.space)?;
        self.begin_checkpoint(shared);
        let finished = self.finish_checkpoint(shared);
        self.stop_on_error(finished)?;
        Ok(true)
    }

    /// Waits until there is space for a journal record of `record` blocks and for `demand`, which is first estimated
    /// without reading the tree.
    fn wait_for_room<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        record: u64,
        demand_of: impl Fn(&Self, bool) -> Result<Demand>,
    ) -> Result<()> {
        let (mut demand, mut is_measured) = (demand_of(self, true)?, false);
        let (mut max_free, mut idle_rounds_left) = (0, MAX_IDLE_ROUNDS);
        // A deletion first tries to get as much space as an insert needs, because collection depends on it, but settles
        // for less.
        let mut reserve_rounds_left = if demand.puts { 0 } else { MAX_RESERVE_ROUNDS };
        loop {
            let is_easy = reserve_rounds_left > 0 && self.waiting.is_empty();
            let (needed, free) =
                self.balance(shared, record, Demand { puts: demand.puts || is_easy, ..demand });
            let beyond = self.exceeds_usable(shared, demand, is_measured);
            if needed <= free && beyond.is_none() {
                return Ok(());
            }
            let released = self.release_unneeded(shared);
            if self.stop_on_error(released)? {
                continue;
            }
            if !is_measured {
                // The estimate does not subtract the blocks that the batch releases, so even an update would seem to
                // grow a full map.
                (demand, is_measured) = (demand_of(self, false)?, true);
                continue;
            }
            self.reclaim.counts.waits += 1;
            if self.checkpoint.is_some() || self.is_changed(shared) {
                self.checkpoint_now(shared)?;
                demand = demand_of(self, false)?;
                continue;
            }
            let held = self.held_blocks(shared);
            let full =
                |(needed, free)| Err(Error::Full { device: shared.io.device.name(), needed, free, held });
            if let Some(beyond) = beyond {
                if !self.pack_round(shared)? {
                    return full(beyond);
                }
                demand = demand_of(self, false)?;
                continue;
            }
            idle_rounds_left = if free > max_free { MAX_IDLE_ROUNDS } else { idle_rounds_left - 1 };
            max_free = max_free.max(free);
            let is_hopeless = idle_rounds_left == 0 || !self.collect_round(shared)?;
            match is_easy {
                true => reserve_rounds_left = if is_hopeless { 0 } else { reserve_rounds_left - 1 },
                false if is_hopeless => return full((needed, free)),
                false => {}
            }
            demand = demand_of(self, false)?;
        }
    }

    /// Checks whether a batch would grow the map beyond its usable space. A map that grew further would eventually have
    /// no space for updates and deletions, because collection would gain too little. Returns the blocks needed and the
    /// blocks available if so. For an unmeasured batch the result is only an estimate.
    fn exceeds_usable<D: ZonedDevice>(
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
        self.is_space_short = written > usable / 4 * 3;
        if written + growth + self.dirty * shared.io.node_blocks() <= usable {
            return None;
        }
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let coming = (self.dirty + remaining) * shared.io.node_blocks();
        let going = self.blocks_to_be_freed(shared.io.node_blocks());
        let free = usable.saturating_sub((written + coming).saturating_sub(going));
        (growth > free || (!is_measured && free == 0)).then_some((growth, free))
    }

    /// Blocks that were released but that snapshots and iterators still need.
    fn held_blocks<D: ZonedDevice>(&self, shared: &Shared<D>) -> u64 {
        let blocks = |freed: &Freed| match freed {
            Freed::Extent(_, blocks) => *blocks,
            Freed::Node(_) => shared.io.node_blocks(),
        };
        self.waiting.iter().flat_map(|(_, freed)| freed).map(blocks).sum()
    }

    /// Blocks in sequential zones that the running and the next checkpoint will release.
    fn blocks_to_be_freed(&mut self, node_blocks: u64) -> u64 {
        let space = &self.space;
        let of_node = |block: u64| if space.zone_index(block).is_some() { node_blocks } else { 0 };
        let (seen, mut retired) = self.retired_seen;
        let (seen, fresh) = if seen > self.retired.len() { (0, true) } else { (seen, seen == 0) };
        retired = if fresh { 0 } else { retired };
        for one in &self.retired[seen..] {
            retired += match one {
                Retired::Node(block) => of_node(*block),
                Retired::Extent(_, blocks) => *blocks,
                // The running checkpoint writes these nodes, and the next one releases them.
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

    /// At opening: makes space for the checkpoint that follows the replay of the journal. Until it is complete, the
    /// journal must be kept. Returns the number of blocks left over.
    ///
    /// # Errors
    /// [`Error::Full`], and read and write errors.
    pub fn make_room_to_recover<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batches: &[Batch],
    ) -> Result<u64> {
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let mut demand = self.estimate(shared, batches, 0);
        let mut idle_rounds_left = MAX_IDLE_ROUNDS;
        loop {
            // The journal may need another zone.
            let needed = demand.nodes * shared.io.node_blocks() + capacity;
            let free = self.space.available();
            if needed <= free && self.space.empty_zones() > 0 {
                return Ok(free - needed);
            }
            idle_rounds_left -= 1;
            if idle_rounds_left + 1 < MAX_IDLE_ROUNDS
                && (idle_rounds_left == 0 || !self.collect_round(shared)?)
            {
                return Err(Error::Full { device: shared.io.device.name(), needed, free, held: 0 });
            }
            demand = self.measure(shared, batches, 0)?;
        }
    }

    /// The number of blocks that may be needed until the next checkpoint is complete, and the number available.
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
            // One zone for the journal and one for relocated data.
            _ if reserved >= 2 && empty < reserved => (reserve, empty * capacity),
            _ if journal > 0 && empty < journal / capacity => (journal, 0),
            _ => (nodes + demand.extents + reserve + journal, self.space.available()),
        }
    }

    /// An upper bound of a batch's demand, without reading the tree. Each change may dirty a leaf and its path, but in
    /// total at most the existing nodes and one split of each. Further splits need half a node of new records each.
    fn estimate<D: ZonedDevice>(&self, shared: &Shared<D>, batches: &[Batch], extents: u64) -> Demand {
        let used = self.space.nodes_used() + self.dirty;
        let bytes: u64 = batches.iter().map(|batch| batch.bytes().len() as u64).sum();
        let changes: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
        let grown = 2 * bytes / shared.io.node_bytes as u64;
        let nodes = (3 * changes).min(2 * used) + grown + 16;
        let puts = batches.iter().flat_map(Batch::changes).any(|change| change.value != Value::Deleted);
        Demand { nodes, new_nodes: 0, extents, freed: 0, puts }
    }

    /// The demand of a batch when all earlier changes are on the device: the changed leaves, the nodes on their paths,
    /// and splits.
    fn measure<D: ZonedDevice>(&self, shared: &Shared<D>, batches: &[Batch], extents: u64) -> Result<Demand> {
        let mut demand = self.estimate(shared, batches, extents);
        (demand.nodes, demand.new_nodes) = (4, 0);
        let tree = shared.published.tree();
        let mut changes: Vec<Change<'_>> = batches.iter().flat_map(Batch::changes).collect();
        changes.sort_by(|a, b| a.key.cmp(b.key));
        let mut path: Vec<Arc<Inner>> = Vec::new();
        let mut last: Option<(Arc<LeafSlot>, usize)> = None;
        for change in changes {
            let mut inner = tree.root.inner(&shared.io)?;
            let mut depth = 0;
            let leaf = loop {
                if path.get(depth).is_none_or(|known| !Arc::ptr_eq(known, &inner)) {
                    path.truncate(depth);
                    path.push(Arc::clone(&inner));
                    demand.nodes += 1;
                }
                depth += 1;
                let child = inner.keys.child(change.key);
                inner = match &inner.children {
                    Children::Leaves(leaves) => break Arc::clone(&leaves[child]),
                    Children::Inners(inners) => inners[child].inner(&shared.io)?,
                };
            };
            let (grown, freed) = leaf.with(&shared.io, |body| growth(shared, body, &change))?;
            demand.freed += freed;
            match &mut last {
                Some((slot, bytes)) if Arc::ptr_eq(slot, &leaf) => *bytes += grown,
                _ => {
                    demand.add_splits(shared, last.replace((leaf, grown)))?;
                    demand.nodes += 1;
                }
            }
        }
        demand.add_splits(shared, last)?;
        Ok(demand)
    }

    /// Collects and resets as many zones as there is space for. Returns false if collection cannot gain space.
    pub fn collect_round<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        let mut looked = false;
        // While a snapshot pins relocated blocks, collection gains nothing, so do not spend the reserve on it.
        let reserve = if self.waiting.is_empty() {
            0
        } else {
            self.reserve(true, shared.io.geometry.zone_capacity_blocks)
        };
        // Collecting many zones at once would only delay the first gain.
        let mut left = 4 * shared.io.geometry.zone_capacity_blocks.max(1024);
        while left > 0 {
            let step = match self.collect(shared, shared.io.node_blocks(), reserve, !looked) {
                // After a read error the map is unchanged; after a failed write the state of the device is unknown.
                Err(error) if !is_data_loss(&error) => self.stop_on_error(Err(error))?,
                step => step?,
            };
            match step {
                CollectStep::Done(blocks) => left = left.saturating_sub(blocks),
                CollectStep::NoVictim | CollectStep::NoRoom => break,
            }
            looked = true;
        }
        if !looked && !self.reclaim.wants_checkpoint() {
            return Ok(false);
        }
        self.begin_checkpoint(shared);
        let done = self.finish_checkpoint(shared);
        self.stop_on_error(done)?;
        Ok(true)
    }
}

impl Demand {
    /// Adds the splits of a leaf that grows by the given number of bytes.
    fn add_splits<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        leaf: Option<(Arc<LeafSlot>, usize)>,
    ) -> Result<()> {
        let Some((leaf, bytes)) = leaf else { return Ok(()) };
        let (used, half) = leaf.with(&shared.io, |body| {
            // Deleted records take no space once the log is applied.
            let merged = body.log.as_ref().and_then(|log| merged(&body.leaf, log, false).ok());
            let page = merged.as_ref().unwrap_or(&body.leaf);
            (page.used() + bytes, page.larger_half() + bytes)
        })?;
        let room = shared.io.node_bytes - HEADER_BYTES;
        if bytes > 0 && used > room {
            let pieces = if half <= room { 2 } else { (2 * used).div_ceil(room) as u64 };
            self.new_nodes += pieces - 1;
            // The nodes above may split too.
            self.nodes += pieces + 1;
        }
        Ok(())
    }
}

/// The number of bytes by which a change may grow a leaf, and the number of large-value blocks that it releases.
fn growth<D: ZonedDevice>(shared: &Shared<D>, body: &LeafBody, change: &Change<'_>) -> (usize, u64) {
    /// The maximum overhead of a record in addition to its key and value, bytes.
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
