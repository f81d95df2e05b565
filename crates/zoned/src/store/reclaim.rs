//! Garbage collection of sequential zones: what is in use of a victim counts as changed, so that the next checkpoint writes it elsewhere
//! and the zone can be reset. A bounded part of it comes with each batch.
//! Not conventional slots: they are free again by themselves.
//! Source: our own; the greedy choice of the emptiest victim and the least worn target are Rosenblum and Ousterhout's (LFS, TOCS 1992)
//! and common practice of flash translation layers.

use super::batch::Batch;
use super::edit::{Editor, Retired};
use super::io::Traffic;
use super::journal::Journal;
use super::space::{Role, SequentialZone};
use super::tree::{Inner, LeafSlot, NO_LOG, Tree, UNWRITTEN};
use super::writer::Writer;
use super::{Shared, lock};
use crate::device::{Block, DeviceError, Operation, ZoneNumber, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{Extent, HEADER_BYTES, Header, Kind, Value};
use serde::Serialize;

/// What garbage collection did since the map was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReclaimCounts {
    /// Victims chosen.
    pub victims: u64,
    /// Of these, zones chosen because they are much less worn than others, not for their garbage.
    pub victims_for_wear: u64,
    /// Nodes that had to be written elsewhere.
    pub nodes_moved: u64,
    /// Large values that had to be written elsewhere.
    pub extents_moved: u64,
    /// Zones reset, those of the journal included.
    pub zones_reset: u64,
    /// Victims given up because something in them could not be read.
    pub given_up: u64,
    /// Times that a batch had to wait for a whole checkpoint, as room was short.
    pub waits: u64,
}

/// How many inner entries, moved nodes and blocks of large values one step takes, at most.
const STEP_ENTRIES: usize = 4096;
const STEP_NODES: usize = 64;
const STEP_BLOCKS: u64 = 64;

/// From how many resets more on, a zone is much more worn than another.
const WEAR_SPREAD: u64 = 8;

/// How far a collection is.
#[derive(Clone, Debug, Default)]
enum Progress {
    #[default]
    Idle,
    /// Looks for nodes in the victim, from a key on.
    Nodes { zone: usize, from: Vec<u8> },
    /// Looks for large values in the victim, from a block on.
    Extents { zone: usize, offset: u64 },
    /// All that is in use waits for a checkpoint to begin.
    Marked,
    /// A checkpoint writes it elsewhere.
    Moving,
}

/// Garbage collection.
#[derive(Default)]
pub(super) struct Reclaim {
    progress: Progress,
    /// Victims whose nodes wait for a checkpoint to begin, and those that one is writing elsewhere.
    marked: Vec<usize>,
    moving: Vec<usize>,
    /// The garbage in the marked ones, blocks, and what has to be written elsewhere.
    gain: u64,
    cost: u64,
    /// Zones in which something cannot be read: they are left alone until the map is opened again.
    unreadable: Vec<usize>,
    pub counts: ReclaimCounts,
}

impl Reclaim {
    pub const fn wants_checkpoint(&self) -> bool {
        matches!(self.progress, Progress::Marked)
    }

    pub fn checkpoint_begins(&mut self) {
        if self.wants_checkpoint() {
            self.progress = Progress::Moving;
            self.moving = std::mem::take(&mut self.marked);
            (self.gain, self.cost) = (0, 0);
        }
    }

    pub fn checkpoint_ends(&mut self) {
        self.moving.clear();
        if matches!(self.progress, Progress::Moving) {
            self.progress = Progress::Idle;
        }
    }
}

/// A node in a victim: a key that leads to it, and its level.
type Found = (Vec<u8>, u16);

/// Looks for nodes in a zone.
struct Search<'a, D> {
    shared: &'a Shared<D>,
    zone: ZoneNumber,
    entries: usize,
    found: Vec<Found>,
}

impl<D: ZonedDevice> Search<'_, D> {
    fn is_inside(&self, home: u64) -> bool {
        !matches!(home, UNWRITTEN | NO_LOG) && self.shared.io.geometry.zone_of(Block(home)) == self.zone
    }

    fn leaf_is_inside(&self, leaf: &LeafSlot) -> bool {
        self.is_inside(leaf.home()) || self.is_inside(leaf.log_home())
    }

    /// Goes over the entries of `inner` from the key `from` on; gives the key to go on from when it has seen enough.
    fn under(&mut self, inner: &Inner, low: &[u8], from: &[u8]) -> Result<Option<Vec<u8>>> {
        for index in inner.keys.child(from)..inner.keys.len() {
            let key = if index == 0 { low } else { inner.keys.get(index) };
            if inner.level == 1 {
                if self.entries >= STEP_ENTRIES || self.found.len() >= STEP_NODES {
                    return Ok(Some(key.to_vec()));
                }
                self.entries += 1;
                if self.leaf_is_inside(&inner.leaves()[index]) {
                    self.found.push((key.to_vec(), 0));
                }
                continue;
            }
            let below = &inner.inners()[index];
            let node = below.below(&self.shared.io, inner.level)?;
            if self.is_inside(below.home()) {
                self.found.push((key.to_vec(), node.level));
            }
            let next = self.under(node, key, from)?;
            if next.is_some() {
                return Ok(next);
            }
        }
        Ok(None)
    }
}

impl<D: ZonedDevice> Editor<'_, D> {
    /// Makes the node of a level that a key leads to count as changed, and its way from the root.
    fn move_node(
        &mut self,
        tree: &mut Tree,
        key: &[u8],
        level: u16,
        is_inside: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let mut slot = &mut tree.root;
        loop {
            let inner = self.own_inner(slot)?;
            if inner.level == level {
                return Ok(());
            }
            let index = inner.keys.child(key);
            match &mut inner.children {
                super::tree::Children::Inners(inners) => slot = &mut inners[index],
                super::tree::Children::Leaves(leaves) => {
                    let leaf = self.own_leaf(&mut leaves[index])?;
                    let (home, log) = (leaf.home(), leaf.log_home());
                    if is_inside(home) {
                        self.move_leaf(leaf);
                    } else if is_inside(log) {
                        self.retired.push(Retired::Node(log));
                        *leaf.log.get_mut() = UNWRITTEN;
                        *self.dirty += 1;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// A leaf that moves takes its log in.
    fn move_leaf(&mut self, leaf: &mut LeafSlot) {
        if leaf.log_home() == NO_LOG {
            self.leaf_changes(leaf);
        } else {
            self.apply_log(leaf);
        }
    }
}

impl Writer {
    /// Does a part of a collection, if one is due or under way. What cannot be read is for its reader to hear of: the map goes on, and
    /// leaves that zone alone.
    pub fn reclaim_step<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.release_waiting(shared)?;
        let victim = match self.reclaim.progress {
            Progress::Nodes { zone, .. } | Progress::Extents { zone, .. } => Some(zone),
            _ => None,
        };
        match (self.advance(shared), victim) {
            (
                Err(
                    Error::Damaged { .. }
                    | Error::Device(DeviceError::Media { operation: Operation::Read, .. }),
                ),
                Some(zone),
            ) => {
                self.reclaim.unreadable.push(zone);
                self.reclaim.counts.given_up += 1;
                self.reclaim.progress = Progress::Idle;
                Ok(())
            }
            (done, _) => done,
        }
    }

    fn advance<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        match std::mem::take(&mut self.reclaim.progress) {
            Progress::Idle => {
                let least = shared.io.geometry.zone_capacity_blocks / 16;
                if self.space.empty_zones() <= self.few_zones()
                    && let Some(zone) = self.choose_victim(least.max(1))
                {
                    self.reclaim.progress = Progress::Nodes { zone, from: Vec::new() };
                }
            }
            Progress::Nodes { zone, from } => self.mark_nodes(shared, zone, &from)?,
            Progress::Extents { zone, offset } => self.move_extents(shared, zone, offset)?,
            waits => self.reclaim.progress = waits,
        }
        Ok(())
    }

    /// With how many empty zones collection begins.
    fn few_zones(&self) -> usize {
        (self.space.zones.len() / 8).clamp(3, 64)
    }

    /// All of a victim is marked. A checkpoint moves several at once: as many as make up for what is short, and as there is room for.
    fn victim_is_marked(&mut self, zone: usize) {
        let SequentialZone { written, capacity, .. } = self.space.zones[zone];
        let live = self.space.zones[zone].live();
        self.reclaim.marked.push(zone);
        self.reclaim.gain += written.saturating_sub(live);
        self.reclaim.cost += live;
        let enough = self.few_zones() as u64 * capacity;
        let room = self.space.available() / 3;
        self.reclaim.progress = Progress::Marked;
        if self.reclaim.gain < enough
            && self.reclaim.cost + capacity <= room
            && let Some(zone) = self.choose_victim((capacity / 8).max(1))
        {
            self.reclaim.progress = Progress::Nodes { zone, from: Vec::new() };
        }
    }

    /// The zone to empty: the one with the most garbage, at least `least` blocks of it; now and then the least worn one, whose data
    /// changes so seldom that it would never be reset.
    fn choose_victim(&mut self, least: u64) -> Option<usize> {
        let zones = &self.space.zones;
        let garbage = |index: usize| zones[index].written - zones[index].live().min(zones[index].written);
        let candidates = || {
            let able = |index: &usize| {
                let Reclaim { unreadable, marked, moving, .. } = &self.reclaim;
                let taken = self.space.is_stream(*index)
                    || [unreadable, marked, moving].iter().any(|list| list.contains(index));
                zones[*index].role == Role::Data && !taken
            };
            (0..zones.len()).filter(able)
        };
        let most = zones.iter().filter(|zone| zone.role != Role::Unusable).map(|zone| zone.resets).max()?;
        let idle = candidates().min_by_key(|&index| zones[index].resets)?;
        let for_wear = zones[idle].resets + WEAR_SPREAD < most && self.reclaim.counts.victims % 8 == 7;
        let victim = match for_wear {
            true => Some(idle),
            false => {
                candidates().max_by_key(|&index| garbage(index)).filter(|&index| garbage(index) >= least)
            }
        }?;
        self.reclaim.counts.victims += 1;
        self.reclaim.counts.victims_for_wear += u64::from(for_wear);
        Some(victim)
    }

    fn mark_nodes<D: ZonedDevice>(&mut self, shared: &Shared<D>, zone: usize, from: &[u8]) -> Result<()> {
        let number = self.space.zones[zone].number;
        let mut published = lock(&shared.published);
        let mut search = Search { shared, zone: number, entries: 0, found: Vec::new() };
        let next = {
            let root = &published.tree.root;
            let inner = root.inner(&shared.io)?;
            if search.is_inside(root.home()) {
                search.found.push((Vec::new(), inner.level));
            }
            search.under(inner, &[], from)?
        };
        let found = search.found;
        let mut editor = Editor {
            io: &shared.io,
            retired: &mut self.retired,
            counts: &mut self.counts,
            dirty: &mut self.dirty,
            checkpointing: self.checkpoint.is_some(),
        };
        let is_inside = |home: u64| {
            !matches!(home, UNWRITTEN | NO_LOG) && shared.io.geometry.zone_of(Block(home)) == number
        };
        self.reclaim.counts.nodes_moved += found.len() as u64;
        for (key, level) in found {
            editor.move_node(&mut published.tree, &key, level, is_inside)?;
        }
        drop(published);
        match next {
            Some(from) => self.reclaim.progress = Progress::Nodes { zone, from },
            None if self.space.zones[zone].live_extents > 0 => {
                self.reclaim.progress = Progress::Extents { zone, offset: 0 };
            }
            None => self.victim_is_marked(zone),
        }
        Ok(())
    }

    /// Writes large values elsewhere that are still some key's. Extents name their keys.
    fn move_extents<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        zone: usize,
        mut offset: u64,
    ) -> Result<()> {
        let number = self.space.zones[zone].number;
        let start = shared.io.geometry.start(number).0;
        let written = self.space.zones[zone].written;
        let end = (offset + STEP_BLOCKS).min(written);
        let block_bytes = shared.io.geometry.block_bytes as usize;
        while offset < end {
            let block = start + offset;
            let first = shared.io.read(Traffic::Extent, block, block_bytes)?;
            let header = Header::peek(&first, Kind::Extent).ok();
            let header = header.filter(|header| {
                let blocks = (HEADER_BYTES + header.bytes as usize).div_ceil(block_bytes) as u64;
                header.block == block
                    && offset + blocks <= written
                    && u32::from(header.small[0]) <= header.bytes
            });
            let Some(header) = header else {
                offset += 1;
                continue;
            };
            let bytes = HEADER_BYTES + header.bytes as usize;
            let node = shared.io.read(Traffic::Extent, block, bytes)?;
            let (key, value) = node[HEADER_BYTES..bytes].split_at(header.small[0].into());
            let extent = Extent { block, bytes: value.len() as u32 };
            let tree = lock(&shared.published).tree.clone();
            let in_use = tree
                .leaf_of(&shared.io, key)?
                .with(&shared.io, |body| body.get(key) == Some(Value::Extent(extent)))?;
            drop(tree);
            if in_use {
                // A value of which the medium lost a part is not moved: reading it is to say so.
                Header::open(&node, Kind::Extent, block).map_err(|what| super::io::damaged(block, what))?;
                let moved = self.write_extent(shared, key, value)?;
                let mut batch = Batch::new();
                batch.put_extent(key, moved);
                self.change_tree(shared, &batch)?;
                self.reclaim.counts.extents_moved += 1;
            }
            offset += if in_use { bytes.div_ceil(block_bytes) as u64 } else { 1 };
        }
        match offset < written {
            true => self.reclaim.progress = Progress::Extents { zone, offset },
            false => self.victim_is_marked(zone),
        }
        Ok(())
    }

    /// Makes sure that a batch has room, and the checkpoint after it. What a checkpoint and garbage collection can gain they do first.
    pub fn make_room<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batch: &Batch,
        extent_blocks: u64,
    ) -> Result<()> {
        let puts = batch.changes().any(|change| change.value != Value::Deleted);
        if self.journal.is_at_end(&shared.io) {
            self.finish_checkpoint(shared)?;
            self.journal.ensure_zone(&shared.io, &mut self.space)?;
            self.begin_checkpoint(shared);
            self.finish_checkpoint(shared)?;
        }
        let mut rounds = 2 * self.space.zones.len() + 8;
        loop {
            let (needed, free) = self.room(shared, batch, extent_blocks, puts);
            if needed <= free {
                return Ok(());
            }
            self.reclaim.counts.waits += 1;
            rounds -= 1;
            let gained = if self.checkpoint.is_some() || self.is_changed(shared) {
                self.checkpoint_now(shared)?;
                true
            } else {
                self.collect_one(shared)?
            };
            if rounds == 0 || !gained {
                return Err(Error::Full { device: shared.io.device.name(), needed, free });
            }
        }
    }

    /// Blocks that a batch may need until the end of the next checkpoint, and those there are. Puts leave two zones
    /// free: one that garbage collection moves a victim's data to, and one for deletions and their journal, which make room in the end.
    fn room<D: ZonedDevice>(
        &self,
        shared: &Shared<D>,
        batch: &Batch,
        extent_blocks: u64,
        puts: bool,
    ) -> (u64, u64) {
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        // Each change may touch a leaf and its way up, but no more nodes than there are, each of which may split once; more splits take
        // half a node of new records each.
        let changes = batch.len() as u64;
        let there = self.space.nodes_used() + self.dirty;
        let grown = 2 * batch.bytes().len() as u64 / shared.io.node_bytes as u64;
        let nodes = self.dirty + remaining + (3 * changes).min(2 * there) + grown + 16;
        let reserve = if puts { 2 * capacity } else { capacity / 4 };
        let needed = nodes * shared.io.node_blocks() + extent_blocks + reserve;
        let record = Journal::blocks_for(&shared.io, batch.bytes().len());
        let here = self.journal.room(&shared.io, &self.space) - self.space.empty_zones() as u64 * capacity;
        let journal = record.saturating_sub(here).div_ceil(capacity) * capacity;
        let (needed, free) = (needed + journal, self.space.available());
        let sequential = extent_blocks + journal + if extent_blocks > 0 { reserve } else { 0 };
        match self.space.available_sequential() {
            less if less < sequential => (sequential, less),
            // One for the journal, one to move a victim's data to.
            _ if puts && self.space.empty_zones() < 2 => {
                (2 * capacity, self.space.empty_zones() as u64 * capacity)
            }
            _ if journal > 0 && (self.space.empty_zones() as u64) < journal / capacity => (journal, 0),
            _ => (needed, free),
        }
    }

    /// Empties zones at once, until there is enough room or no more to gain; false if nothing is gained by it.
    fn collect_one<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        let before = self.space.available();
        let fresh = matches!(self.reclaim.progress, Progress::Idle | Progress::Moving);
        if fresh {
            let Some(zone) = self.choose_victim(shared.io.node_blocks()) else { return Ok(false) };
            if self.space.zones[zone].live() + 16 * shared.io.node_blocks() > before {
                return Ok(false);
            }
            self.reclaim.progress = Progress::Nodes { zone, from: Vec::new() };
        }
        while matches!(self.reclaim.progress, Progress::Nodes { .. } | Progress::Extents { .. }) {
            self.reclaim_step(shared)?;
        }
        self.checkpoint_now(shared)?;
        // A collection that was under way may have had nothing left to gain: then the next one may.
        Ok(!fresh || self.space.available() > before)
    }
}
