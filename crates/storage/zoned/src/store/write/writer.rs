//! The single writer: journals each batch, applies it to the tree, and then performs a bounded share of checkpoint and
//! garbage-collection work.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::{Extent, Page, Value, checksum};
use crate::store::io::Traffic;
use crate::store::journal::batch::{Batch, Change};
use crate::store::journal::parts::Journal;
use crate::store::space::allocation::{Space, Stream};
use crate::store::space::packing::Packing;
use crate::store::space::reclaim::Reclaim;
use crate::store::superblock::Superblock;
use crate::store::tree::edit::{Editor, Effect, Retired, TreeCounts};
use crate::store::tree::nodes::UNWRITTEN;
use crate::store::write::checkpoint::{ChangeVolume, Checkpoint, Freed, release, resolve};
use crate::store::write::output::Output;
use crate::store::{Applied, Durability, Shared};
use longma_locks::IgnorePoison;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// The writer's lock.
pub(crate) struct WriterLock(Mutex<Writer>);

impl WriterLock {
    pub const fn new(writer: Writer) -> Self {
        Self(Mutex::new(writer))
    }

    /// Locks the writer. If a thread panicked while it held the lock, a batch may be half applied: the writer is then
    /// stopped, as after a failed write.
    pub fn lock(&self) -> MutexGuard<'_, Writer> {
        self.0.lock().unwrap_or_else(|poisoned| {
            let mut writer = poisoned.into_inner();
            writer.stopped.get_or_insert_with(|| "an operation panicked during a change".into());
            writer
        })
    }
}

/// The state that only the writer uses.
pub(crate) struct Writer {
    pub space: Space,
    pub journal: Journal,
    pub superblock: Superblock,
    pub checkpoint: Option<Checkpoint>,
    /// The write buffers, reused from one checkpoint to the next.
    output: Output,
    pub retired: Vec<Retired>,
    /// The number of retired items already counted, and their blocks.
    pub retired_seen: (usize, u64),
    /// Blocks released by checkpoints that snapshots of older checkpoints may still need, with the generation of the
    /// checkpoint.
    pub waiting: VecDeque<(u64, Vec<Freed>)>,
    /// The blocks written by running bulk loads, and the number of loads started so far.
    pub staged: BTreeMap<u64, Vec<Freed>>,
    pub loads: u64,
    pub counts: TreeCounts,
    /// An upper bound of the nodes that the next checkpoint has to write.
    pub dirty: u64,
    /// Memory of leaves changed since the last checkpoint began that cannot be evicted (the leaves themselves, or their
    /// lists of changes), bytes.
    pub pinned_bytes: u64,
    /// Memory of inner nodes changed since the last checkpoint began, bytes.
    pub pinned_inner_bytes: u64,
    /// During recovery: for each sequential zone, the blocks of large values that only the journal refers to.
    pub claimed: Vec<u64>,
    /// The number of further logs for which conventional slots are left, and that number when the last checkpoint
    /// began.
    pub log_slots_left: u64,
    log_limit: u64,
    /// Whether more than three quarters of the usable space was in use at the last batch.
    pub is_space_short: bool,
    pub reclaim: Reclaim,
    pub packing: Packing,
    /// Records deleted since the map was opened.
    pub deleted: u64,
    pub checkpoints: u64,
    pub payload_bytes: u64,
    /// The process that opened the map.
    process: u32,
    /// The map is open for reading only: nothing is written.
    pub is_read_only: bool,
    /// The reason why writing has stopped, if it has.
    pub stopped: Option<String>,
}

/// The writer's accounts of changes to the tree, at one point in time.
#[derive(Clone, Copy)]
pub(crate) struct Accounts {
    retired: usize,
    counts: TreeCounts,
    dirty: u64,
    pinned_bytes: u64,
    pinned_inner_bytes: u64,
    log_slots_left: u64,
}

impl Writer {
    pub fn new(space: Space, journal: Journal, superblock: Superblock) -> Self {
        let log_slots_left = space.slots_for_logs();
        Self {
            space,
            journal,
            superblock,
            checkpoint: None,
            output: Output::default(),
            retired: Vec::new(),
            retired_seen: (0, 0),
            waiting: VecDeque::new(),
            staged: BTreeMap::new(),
            loads: 0,
            counts: TreeCounts::default(),
            dirty: 0,
            pinned_bytes: 0,
            pinned_inner_bytes: 0,
            claimed: Vec::new(),
            log_slots_left,
            log_limit: log_slots_left,
            is_space_short: false,
            reclaim: Reclaim::default(),
            packing: Packing::default(),
            deleted: 0,
            checkpoints: 0,
            payload_bytes: 0,
            process: std::process::id(),
            is_read_only: false,
            stopped: None,
        }
    }

    pub fn apply<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> Result<Applied> {
        self.check_running(shared)?;
        if batch.is_empty() {
            return Ok(Applied::default());
        }
        let extent_blocks = check_lengths(shared, batch)?;
        self.make_room(shared, batch, extent_blocks)?;
        // Holding the clock hand keeps the loaded leaves in memory until they are changed, so that a journaled batch
        // can always be applied.
        let clock_hand = shared.clock_hand.lock().ignore_poison();
        self.load_changed_leaves(shared, batch)?;
        let written = self.write_ahead(shared, batch, extent_blocks);
        let prepared = self.stop_on_error(written)?;
        let (dirty, pinned_bytes) = (self.dirty, self.pinned(shared));
        let applied = self.change_tree(shared, prepared.as_ref().unwrap_or(batch));
        let applied = self.stop_on_error(applied)?;
        drop(clock_hand);
        self.payload_bytes += batch.changes().map(|change| payload(&change)).sum::<u64>();
        // The batch is durable and applied. A later error stops the writer but does not fail this batch.
        let bytes = batch.bytes().len() as u64;
        let grown = ChangeVolume {
            nodes: self.dirty.saturating_sub(dirty),
            bytes: self.pinned(shared).saturating_sub(pinned_bytes),
        };
        let done = self.run_maintenance(shared, bytes, grown);
        let _ = self.stop_on_error(done);
        Ok(applied)
    }

    pub fn check_running<D: ZonedDevice>(&self, shared: &Shared<D>) -> Result<()> {
        if self.is_read_only {
            return Err(Error::ReadOnly { device: shared.io.device.name() });
        }
        if self.process != std::process::id() {
            return Err(Error::Forked { device: shared.io.device.name(), process: self.process });
        }
        match &self.stopped {
            Some(what) => Err(Error::Stopped { device: shared.io.device.name(), what: what.clone() }),
            None => Ok(()),
        }
    }

    /// Stops the writer if `result` is an error: after a failed write the state of the device is unknown.
    pub fn stop_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
        }
        result
    }

    pub fn sync<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.check_running(shared)?;
        let flushed = shared.io.device.flush().map_err(Error::from);
        self.stop_on_error(flushed)?;
        self.journal.mark_flushed();
        Ok(())
    }

    pub fn checkpoint_now<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.check_running(shared)?;
        let released = self.release_unneeded(shared);
        self.stop_on_error(released)?;
        let done = self.finish_checkpoint(shared).and_then(|()| {
            if self.is_changed(shared) || self.reclaim.wants_checkpoint() {
                self.begin_checkpoint(shared);
                self.finish_checkpoint(shared)?;
            }
            Ok(())
        });
        self.stop_on_error(done)
    }

    /// The memory of changed nodes, to compare with [`max_pinned_bytes`]. The limit of inner nodes is half of the
    /// cache; their memory is scaled to the limit of leaves, and the larger of the two is returned.
    fn pinned<D: ZonedDevice>(&self, shared: &Shared<D>) -> u64 {
        let limit = (shared.options.cache_bytes / 2).max(1);
        let inner =
            u128::from(self.pinned_inner_bytes) * u128::from(max_pinned_bytes(shared)) / u128::from(limit);
        self.pinned_bytes.max(inner as u64)
    }

    /// Whether there are changes that are not in the last checkpoint.
    pub fn is_changed<D: ZonedDevice>(&self, shared: &Shared<D>) -> bool {
        let tree = shared.published.tree();
        let root = tree.root.home();
        let is_new = root == UNWRITTEN && (tree.len > 0 || self.superblock.root != 0);
        self.journal.blocks > 0 || !self.retired.is_empty() || is_new || root != self.superblock.root
    }

    /// Loads the leaves that a batch changes, so that an unreadable leaf fails the batch before it is journaled.
    fn load_changed_leaves<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> Result<()> {
        if shared.all_resident.load(Ordering::Acquire) {
            return Ok(());
        }
        let tree = shared.published.tree();
        batch.changes().try_for_each(|change| tree.load_leaf(&shared.io, change.key))
    }

    /// Writes large values and the journal record and flushes them. If the batch has large values, returns a version of
    /// it that refers to their blocks.
    fn write_ahead<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batch: &Batch,
        extent_blocks: u64,
    ) -> Result<Option<Batch>> {
        let prepared = match extent_blocks {
            0 => None,
            _ => Some(self.write_extents(shared, batch)?),
        };
        let record = prepared.as_ref().unwrap_or(batch).bytes();
        self.journal.append(&shared.io, &mut self.space, record)?;
        if shared.options.durability == Durability::EachBatch {
            shared.io.device.flush()?;
            self.journal.mark_flushed();
        }
        Ok(prepared)
    }

    pub fn write_extents<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> Result<Batch> {
        let longest = Page::limits(shared.io.node_bytes).1;
        let mut prepared = Batch::new();
        for change in batch.changes() {
            match change.value {
                Value::Inline(value) if value.len() > longest => {
                    let extent = self.write_extent(shared, change.key, value)?;
                    prepared.put_extent(change.key, extent);
                }
                _ => prepared.change(change),
            }
        }
        Ok(prepared)
    }

    pub fn write_extent<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        key: &[u8],
        value: &[u8],
    ) -> Result<Extent> {
        let extent = self.place_extent(shared, key, value)?;
        let blocks = shared.io.extent_blocks(key, extent.bytes);
        if let (Some(checkpoint), Some(zone)) = (&mut self.checkpoint, self.space.zone_index(extent.block)) {
            checkpoint.extents_since[zone] += blocks;
        }
        Ok(extent)
    }

    /// Writes a large value and returns its location. The caller must journal the batch.
    pub fn place_extent<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        key: &[u8],
        value: &[u8],
    ) -> Result<Extent> {
        let blocks = shared.io.extent_blocks(key, value.len() as u32);
        let (block, finished) = self.space.take_appended(Stream::Extents, blocks)?;
        if let Some(zone) = finished {
            shared.io.device.finish(zone)?;
        }
        let data = shared.io.encode_extent(key, value, block);
        shared.io.write(Traffic::Extent, block, &data)?;
        Ok(Extent { block, bytes: value.len() as u32, checksum: checksum(&data) })
    }

    /// An editor that works on the writer's accounts.
    pub fn editor<'a, D: ZonedDevice>(&'a mut self, shared: &'a Shared<D>) -> Editor<'a, D> {
        Editor {
            io: &shared.io,
            retired: &mut self.retired,
            counts: &mut self.counts,
            dirty: &mut self.dirty,
            pinned_bytes: &mut self.pinned_bytes,
            pinned_inner_bytes: &mut self.pinned_inner_bytes,
            log_slots_left: &mut self.log_slots_left,
            checkpointing: self.checkpoint.is_some(),
            is_space_short: self.is_space_short,
            records_changes: !shared.all_resident.load(Ordering::Acquire),
            generation: self.space.generation,
        }
    }

    /// The accounts that an editor changes.
    pub const fn accounts(&self) -> Accounts {
        Accounts {
            retired: self.retired.len(),
            counts: self.counts,
            dirty: self.dirty,
            pinned_bytes: self.pinned_bytes,
            pinned_inner_bytes: self.pinned_inner_bytes,
            log_slots_left: self.log_slots_left,
        }
    }

    /// Restores the accounts after an update of the tree was rolled back.
    pub fn restore_accounts(&mut self, before: Accounts) {
        let retired;
        Accounts {
            retired,
            counts: self.counts,
            dirty: self.dirty,
            pinned_bytes: self.pinned_bytes,
            pinned_inner_bytes: self.pinned_inner_bytes,
            log_slots_left: self.log_slots_left,
        } = before;
        self.retired.truncate(retired);
        self.retired_seen = (0, 0);
    }

    /// Applies a batch to the tree, sorted by key, so that neighbouring changes share cached nodes.
    pub fn change_tree<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> Result<Applied> {
        let mut changes: Vec<Change<'_>> = batch.changes().collect();
        changes.sort_by(|a, b| a.key.cmp(b.key));
        let mut update = shared.published.begin_update();
        let mut editor = self.editor(shared);
        let mut applied = Applied::default();
        for Change { key, value } in changes {
            match editor.change(update.tree(), key, value)? {
                Effect::Inserted => applied.inserted += 1,
                Effect::Updated => applied.updated += 1,
                Effect::Deleted => applied.deleted += 1,
                Effect::Absent => {}
            }
        }
        update.publish();
        self.deleted += applied.deleted;
        Ok(applied)
    }

    /// The maintenance work of a batch: runs a share of the checkpoint, if one is due, and of garbage collection.
    /// `bytes` is the size of the batch, and `grown` the amount of change that it caused.
    fn run_maintenance<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        bytes: u64,
        grown: ChangeVolume,
    ) -> Result<()> {
        let block_bytes = u64::from(shared.io.geometry.block_bytes);
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let free = self.space.available().saturating_sub(self.reserve(true, capacity));
        let limit = (shared.options.journal_bytes / block_bytes).min((free / 2).max(capacity)).max(2);
        let journal = self.journal.blocks;
        let free_nodes = free / shared.io.node_blocks();
        let max_pinned_bytes = max_pinned_bytes(shared);
        if let Some(checkpoint) = &self.checkpoint {
            // Pace the checkpoint so that it completes before the journal has grown by half of its limit and before the
            // changes have used up their limits.
            let by_journal = checkpoint.all * (bytes / block_bytes + 1) / (limit / 2).max(1);
            let nodes = free_nodes.saturating_sub(checkpoint.remaining).saturating_sub(self.dirty);
            let nodes = nodes.saturating_sub(checkpoint.slack.nodes);
            let memory =
                max_pinned_bytes.saturating_sub(self.pinned(shared)).saturating_sub(checkpoint.slack.bytes);
            let by_nodes = checkpoint.remaining * grown.nodes / nodes.max(1);
            let by_memory = checkpoint.remaining * grown.bytes / memory.max(1);
            let late = journal >= limit || nodes == 0 || memory == 0;
            let paced = by_journal.max(by_nodes).max(by_memory) + 8;
            self.step_checkpoint(shared, if late { u64::MAX } else { paced })?;
        } else if journal >= limit / 2
            || self.pinned(shared) >= max_pinned_bytes
            || self.dirty >= free_nodes / 2
        {
            self.begin_checkpoint(shared);
            if let Some(checkpoint) = &mut self.checkpoint {
                let nodes = free_nodes.saturating_sub(checkpoint.remaining) / 5;
                checkpoint.slack = ChangeVolume { nodes, bytes: max_pinned_bytes / 5 };
            }
        }
        self.reclaim_step(shared, grown.nodes)
    }

    pub fn begin_checkpoint<D: ZonedDevice>(&mut self, shared: &Shared<D>) {
        let freed = resolve(std::mem::take(&mut self.retired));
        self.retired_seen = (0, 0);
        let tree = shared.published.tree();
        let mut extents_since = self.claimed.clone();
        extents_since.resize(self.space.zones.len(), 0);
        self.checkpoint = Some(Checkpoint::begin(
            tree,
            self.journal.end,
            freed,
            self.dirty,
            extents_since,
            std::mem::take(&mut self.output),
        ));
        (self.dirty, self.pinned_bytes, self.pinned_inner_bytes) = (0, 0, 0);
        self.journal.blocks = 0;
        let logs = self.log_limit.saturating_sub(self.log_slots_left);
        self.log_limit = self.space.slots_for_logs().saturating_sub(logs);
        self.log_slots_left = self.log_limit;
        self.space.generation = self.superblock.generation.wrapping_add(1);
        self.reclaim.checkpoint_begins();
    }

    pub fn finish_checkpoint<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        while self.checkpoint.is_some() {
            self.step_checkpoint(shared, u64::MAX)?;
        }
        Ok(())
    }

    fn step_checkpoint<D: ZonedDevice>(&mut self, shared: &Shared<D>, budget: u64) -> Result<()> {
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        let generation = self.superblock.generation.wrapping_add(1);
        let done = {
            // Holding the clock hand prevents eviction of leaves that have an address but are not written yet.
            let _clock_hand = shared.clock_hand.lock().ignore_poison();
            checkpoint.step(&shared.io, &mut self.space, generation, budget)?
        };
        if !done {
            return Ok(());
        }
        // Staged data of bulk loads is not in the tree, so it counts as free after a power cut.
        let waiting = self.waiting.iter().map(|(_, freed)| freed).chain(self.staged.values());
        let waiting = waiting.flatten().copied();
        let superblock = checkpoint.finish(&shared.io, &self.space, waiting, &self.superblock)?;
        // Repair lost or misdirected copies of the new superblock before releasing blocks that the old one needs.
        superblock.complete(&shared.io)?;
        self.superblock = superblock;
        self.journal.mark_flushed();
        self.journal.checkpoint = generation;
        let freed = std::mem::take(&mut checkpoint.freed);
        self.output = std::mem::take(&mut checkpoint.output);
        self.checkpoint = None;
        self.checkpoints += 1;
        self.waiting.push_back((generation, freed));
        shared.published.checkpoint_ended(generation);
        shared.shrink_from.store(0, Ordering::Relaxed);
        let start = self.superblock.journal.zone;
        while start != 0 && self.journal.zones.front().is_some_and(|&zone| zone != start) {
            self.journal.zones.pop_front();
        }
        self.reclaim.checkpoint_ends();
        self.release_waiting(shared)?;
        self.abandon_victims();
        Ok(())
    }

    /// Releases the blocks that a dropped snapshot has kept allocated. Returns whether there were any.
    pub fn release_unneeded<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        let oldest = shared.published.oldest();
        if self.waiting.front().is_none_or(|&(generation, _)| generation > oldest) {
            return Ok(false);
        }
        self.release_waiting(shared)?;
        self.abandon_victims();
        Ok(true)
    }

    /// Releases the blocks that no snapshot needs, and resets the zones that are empty then.
    pub fn release_waiting<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        let oldest = shared.published.oldest();
        while self.waiting.front().is_some_and(|&(generation, _)| generation <= oldest) {
            for freed in self.waiting.pop_front().map(|(_, freed)| freed).unwrap_or_default() {
                release(&mut self.space, freed);
            }
        }
        let needed = &self.journal.zones;
        let zones = &self.space.zones;
        let dead = self.space.dead_zones(|index| needed.contains(&zones[index].number.0));
        for index in dead {
            shared.io.device.reset(self.space.zones[index].number)?;
            self.space.was_reset(index);
            self.reclaim.forget(index);
            self.reclaim.counts.zones_reset += 1;
        }
        Ok(())
    }
}

/// The limit of the memory of changed leaves that cannot be evicted, bytes. While all leaves fit into the cache, the
/// limit is the cache: an earlier checkpoint would only write each leaf more often.
fn max_pinned_bytes<D: ZonedDevice>(shared: &Shared<D>) -> u64 {
    let cache = shared.options.cache_bytes;
    let leaves = cache.saturating_sub(shared.io.inner_bytes()).max(cache / 16);
    if shared.all_resident.load(Ordering::Relaxed) { leaves } else { leaves / 2 }
}

/// Checks the lengths of all keys and values, and returns the number of blocks that the large values take.
fn check_lengths<D: ZonedDevice>(shared: &Shared<D>, batch: &Batch) -> Result<u64> {
    batch.changes().map(|Change { key, value }| shared.blocks_outside(key, value)).sum()
}

impl<D: ZonedDevice> Shared<D> {
    /// The number of blocks that a record takes outside its leaf.
    ///
    /// # Errors
    /// [`Error::KeyLength`], [`Error::ValueLength`].
    pub fn blocks_outside(&self, key: &[u8], value: Value<'_>) -> Result<u64> {
        let (longest_key, longest_inline) = Page::limits(self.io.node_bytes);
        if key.len() > longest_key {
            return Err(Error::KeyLength { bytes: key.len(), shortest: 0, longest: longest_key });
        }
        let Value::Inline(value) = value else { return Ok(0) };
        let longest = self.longest_value();
        if value.len() > longest {
            return Err(Error::ValueLength { bytes: value.len(), shortest: 0, longest });
        }
        let is_large = value.len() > longest_inline;
        Ok(if is_large { self.io.extent_blocks(key, value.len() as u32) } else { 0 })
    }

    /// The maximum length of a value, bytes. A value must fit into one zone and is at most about 64 MiB.
    pub fn longest_value(&self) -> usize {
        let zone = self.io.geometry.zone_capacity_blocks * u64::from(self.io.geometry.block_bytes);
        zone.min(64 << 20) as usize - Page::limits(self.io.node_bytes).0 - crate::node::HEADER_BYTES
    }
}

fn payload(change: &Change<'_>) -> u64 {
    (change.key.len() + change.value.bytes()) as u64
}
