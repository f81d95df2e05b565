//! Garbage collection of sequential zones. The live data of a victim zone is marked as changed, so that the next
//! checkpoint writes it elsewhere and the zone can be reset. Each batch performs as much collection as the space it
//! takes requires. Out-of-space handling is in `reservation`.
//!
//! Source: segment cleaning with cost-benefit victim selection, from Rosenblum and Ousterhout (LFS, TOCS 1992).

use crate::device::{AlignedBuffer, DeviceError, Operation, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{Extent, HEADER_BYTES, Header, InnerRecord, Kind, Page, Value, checksum};
use crate::store::Shared;
use crate::store::io::Traffic;
use crate::store::journal::batch::Batch;
use crate::store::space::allocation::{Role, Stream};
use crate::store::tree::edit::Editor;
use crate::store::tree::leaf::{LeafAddresses, LeafBody, LeafSlot, NO_LOG};
use crate::store::tree::nodes::{InnerSlot, Tree};
use crate::store::write::checkpoint::Freed;
use crate::store::write::writer::Writer;
use longma_locks::IgnorePoison;
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::sync::Arc;

/// Garbage collection statistics since the map was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReclaimCounts {
    /// Victims chosen.
    pub victims: u64,
    /// Victims chosen to level wear rather than for their garbage.
    pub victims_for_wear: u64,
    /// Nodes relocated.
    pub nodes_moved: u64,
    /// Large values relocated.
    pub extents_moved: u64,
    /// Zones reset, including journal zones.
    pub zones_reset: u64,
    /// Victims abandoned because a part of them could not be read.
    pub given_up: u64,
    /// Batches that had to wait for a complete checkpoint or collection because space was short.
    pub waits: u64,
}

/// The maximum number of blocks that one step scans. It limits the size of a read and how long readers may have to
/// wait.
const MAX_STEP_BLOCKS: u64 = 64;

/// The maximum number of blocks scanned for one batch. The rest is carried over to later batches.
const MAX_BLOCKS: u64 = 2048;

/// Wear leveling starts when two zones differ by more than this many resets.
const WEAR_SPREAD: u64 = 8;

/// The state of the garbage collector.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// The current victim, and the next block to scan in it.
    current: Option<(usize, u64)>,
    /// Victims in three stages: scanned completely and waiting for a checkpoint to begin; being relocated by the
    /// running checkpoint; and ready to be reset as soon as no snapshot needs them.
    marked: Vec<usize>,
    moving: Vec<usize>,
    relocated_victims: Vec<usize>,
    /// Zones that could not be read completely. They are not chosen again until the map is reopened.
    unreadable: Vec<usize>,
    /// Blocks still to be scanned on account of recent batches.
    debt: u64,
    /// The read buffer for victims.
    buffer: Option<AlignedBuffer>,
    pub counts: ReclaimCounts,
}

impl Reclaim {
    pub fn checkpoint_begins(&mut self) {
        self.moving.append(&mut self.marked);
    }

    pub fn checkpoint_ends(&mut self) {
        self.relocated_victims.append(&mut self.moving);
    }

    /// Removes a reset zone from all lists.
    pub fn forget(&mut self, zone: usize) {
        self.current = self.current.filter(|current| current.0 != zone);
        for list in [&mut self.marked, &mut self.moving, &mut self.relocated_victims] {
            list.retain(|&one| one != zone);
        }
    }

    /// Whether a victim waits for a checkpoint to begin.
    pub const fn wants_checkpoint(&self) -> bool {
        !self.marked.is_empty()
    }
}

/// The result of a collection step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectStep {
    /// The step scanned this many blocks.
    Done(u64),
    /// No zone is worth collecting.
    NoVictim,
    /// There is no space for the data that the step might have to relocate.
    NoRoom,
}

/// An item found in a victim. It may or may not be live.
enum Candidate {
    /// The block, the page, and its checksum.
    Leaf(u64, Page, u32),
    /// The block, the level, and a key in the node's range.
    Inner(u64, u16, Vec<u8>),
    /// The first block and the number of blocks.
    Extent(u64, u64),
}

impl<D: ZonedDevice> Editor<'_, D> {
    /// Marks the node on the path to `key` at the given level as changed, together with the path from the root.
    fn move_node(&mut self, tree: &mut Tree, key: &[u8], level: u16) -> Result<()> {
        let mut slot = &mut tree.root;
        loop {
            let inner = self.own_inner(slot)?;
            if inner.level == level {
                return Ok(());
            }
            let index = inner.keys.child(key);
            match &mut inner.children {
                crate::store::tree::nodes::Children::Inners(inners) => slot = &mut inners[index],
                crate::store::tree::nodes::Children::Leaves(leaves) => {
                    let leaf = self.own_leaf(&mut leaves[index])?;
                    return self.move_leaf(leaf);
                }
            }
        }
    }

    /// Marks a leaf for relocation. Its log is merged into it.
    fn move_leaf(&mut self, leaf: &mut LeafSlot) -> Result<()> {
        if leaf.log_home() == NO_LOG {
            self.leaf_changes(leaf);
        } else {
            self.apply_log(leaf)?;
        }
        *leaf.relocated.get_mut() = true;
        Ok(())
    }
}

/// Returns the inner node on the path to `key` at the given level.
fn inner_of<D: ZonedDevice>(
    shared: &Shared<D>,
    tree: &Tree,
    key: &[u8],
    level: u16,
) -> Result<Option<Arc<InnerSlot>>> {
    let mut slot = Arc::clone(&tree.root);
    let mut inner = slot.inner(&shared.io)?;
    while inner.level > level {
        let Some(below) = inner.inners().get(inner.keys.child(key)) else { return Ok(None) };
        slot = Arc::clone(below);
        inner = slot.inner(&shared.io)?;
    }
    Ok((inner.level == level).then_some(slot))
}

/// Whether an error means lost data in a single place. Collection then skips the zone, and reading the data returns the
/// error.
pub(crate) const fn is_data_loss(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. } | Error::Device(DeviceError::Media { operation: Operation::Read, .. })
    )
}

impl Writer {
    /// Collects in proportion to the `changed` nodes of a batch. Emptying a zone with partial garbage requires
    /// rewriting its live blocks to gain the garbage; the fewer blocks are free, the less of this work can be
    /// postponed.
    pub fn reclaim_step<D: ZonedDevice>(&mut self, shared: &Shared<D>, changed: u64) -> Result<()> {
        let (free, garbage) = (self.space.available(), self.space.garbage());
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let low = self.reserve(true, capacity);
        // The target number of free blocks. With a higher target, victims would be collected earlier and contain less
        // garbage.
        let wanted = (self.enough_zones() * capacity).min((free + garbage) / 3).max(low + capacity);
        if free >= wanted || garbage == 0 {
            self.reclaim.debt = 0;
            return Ok(());
        }
        // The cost of collecting a zone of average garbage, scaled up as free space runs short.
        let percent = (200 * (wanted - free) / (wanted - low)).clamp(25, 200);
        let data = self.space.zones.iter().filter(|zone| zone.role == Role::Data);
        let each = (data.map(|zone| zone.written).sum::<u64>() / garbage).min(16);
        self.reclaim.debt += changed * shared.io.node_blocks() * each * percent / 100;
        self.reclaim.debt = self.reclaim.debt.min(MAX_BLOCKS.max(2 * capacity));
        let mut blocks_left = MAX_BLOCKS;
        while self.reclaim.debt > 0 && blocks_left > 0 {
            let CollectStep::Done(blocks) = self.collect(shared, (capacity / 16).max(1), low, false)? else {
                break;
            };
            self.reclaim.debt = self.reclaim.debt.saturating_sub(blocks);
            blocks_left = blocks_left.saturating_sub(blocks);
        }
        Ok(())
    }

    /// The number of empty zones above which collection does not pay.
    fn enough_zones(&self) -> u64 {
        (self.space.zones.len() as u64 / 8).clamp(3, 64)
    }

    /// Continues with the current victim, or chooses one with at least `least` blocks of garbage. Keeps `reserve`
    /// blocks free. As a last resort it uses up the remaining space node by node.
    pub fn collect<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        least: u64,
        reserve: u64,
        is_last_resort: bool,
    ) -> Result<CollectStep> {
        let (zone, offset) = match self.reclaim.current {
            Some(current) => current,
            None => match self.choose_victim(least, reserve) {
                Some(zone) => (zone, 0),
                None => return Ok(CollectStep::NoVictim),
            },
        };
        self.reclaim.current = Some((zone, offset));
        let victim = &mut self.space.zones[zone];
        victim.is_victim = true;
        let (written, live) = (victim.written, victim.live());
        if live == 0 || offset >= written {
            self.reclaim.current = None;
            self.reclaim.marked.push(zone);
            return Ok(CollectStep::Done(1));
        }
        let node_blocks = shared.io.node_blocks();
        let mut blocks =
            (victim.capacity / 4).clamp(1, MAX_STEP_BLOCKS).max(node_blocks).min(written - offset);
        // In the worst case each relocated node dirties its own path up to the root.
        let levels = shared.published.tree().root.inner(&shared.io)?.level;
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let needed = |blocks: u64| {
            let nodes = live.min(blocks).div_ceil(node_blocks) * u64::from(levels) + 1;
            (self.dirty + remaining + nodes) * node_blocks + reserve
        };
        // Smaller steps give a tighter estimate, because nodes share most of their paths.
        while is_last_resort && needed(blocks) > self.space.available() && blocks > node_blocks {
            blocks = (blocks / 2).max(node_blocks);
        }
        if needed(blocks) > self.space.available() {
            return Ok(CollectStep::NoRoom);
        }
        let next = self.collect_blocks(shared, zone, offset, offset + blocks)?;
        let Some(next) = next else { return Ok(CollectStep::NoRoom) };
        self.reclaim.current = Some((zone, next));
        Ok(CollectStep::Done(next - offset))
    }

    /// Chooses a victim. The score prefers zones with much garbage that was written long ago; a recently written zone
    /// will gain more garbage by itself. When space is short, only the garbage counts. Every eighth victim may be the
    /// least worn zone instead, whose data changes so rarely that it would otherwise never be reset.
    fn choose_victim(&mut self, least: u64, reserve: u64) -> Option<usize> {
        let zones = &self.space.zones;
        let garbage = |index: usize| zones[index].garbage();
        // Staged data of a bulk load is not in the tree, so a scan would take it for garbage.
        let staged =
            self.staged.values().flatten().map(|&(Freed::Node(block) | Freed::Extent(block, _))| block);
        let staged: FxHashSet<_> = staged.filter_map(|block| self.space.zone_index(block)).collect();
        let candidates = || {
            let able = |index: &usize| {
                let zone = &zones[*index];
                zone.role == Role::Data
                    && (zone.room() == 0 || reserve == 0)
                    && !zone.is_victim
                    && !self.space.is_stream(*index)
                    && !self.reclaim.unreadable.contains(index)
                    && !staged.contains(index)
            };
            (0..zones.len()).filter(able)
        };
        let max_resets =
            zones.iter().filter(|zone| zone.role != Role::Unusable).map(|zone| zone.resets).max()?;
        let idle = candidates().min_by_key(|&index| zones[index].resets)?;
        let for_wear = reserve > 0
            && zones[idle].resets + WEAR_SPREAD < max_resets
            && self.reclaim.counts.victims % 8 == 7
            && self.space.available() > reserve + 2 * zones[idle].capacity;
        let now = self.superblock.generation;
        let score = |index: usize| {
            let age = now.saturating_sub(zones[index].filled).clamp(1, 64);
            let worth = u128::from(garbage(index)) * u128::from(if reserve > 0 { age } else { 1 });
            worth * 4096 / u128::from(zones[index].written + zones[index].live()).max(1)
        };
        let victim = match for_wear {
            true => idle,
            false => {
                candidates().filter(|&index| garbage(index) >= least).max_by_key(|&index| score(index))?
            }
        };
        self.reclaim.counts.victims += 1;
        self.reclaim.counts.victims_for_wear += u64::from(for_wear);
        Some(victim)
    }

    /// Relocates the live data in a part of a victim. Returns the next block to scan, or `None` if there is no space
    /// for a large value.
    fn collect_blocks<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        zone: usize,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>> {
        let start = shared.io.geometry.start(self.space.zones[zone].number).0;
        let written = self.space.zones[zone].written;
        let found = scan_blocks(shared, &mut self.reclaim.buffer, start, (from, to, written));
        let mut next = to;
        let mut nodes = Vec::new();
        for one in found {
            match one {
                Candidate::Extent(block, blocks) => match self.move_extent(shared, block, blocks) {
                    Ok(true) => next = next.max(block - start + blocks),
                    // Blocks already relocated are garbage now, so scanning them again does no harm.
                    Ok(false) => return Ok(None),
                    Err(error) if is_data_loss(&error) => {}
                    Err(error) => return Err(error),
                },
                node => nodes.push(node),
            }
        }
        // Holding the clock hand keeps the nodes in memory until they are changed.
        let _clock_hand = shared.clock_hand.lock().ignore_poison();
        let mut update = shared.published.begin_update();
        let mut editor = self.editor(shared);
        let mut relocated = 0;
        let done = nodes.into_iter().try_for_each(|node| {
            match move_found(shared, &mut editor, update.tree(), node) {
                Ok(is_moved) => relocated += u64::from(is_moved),
                Err(error) if is_data_loss(&error) => {}
                Err(error) => return Err(error),
            }
            Ok(())
        });
        self.reclaim.counts.nodes_moved += relocated;
        // A relocated node keeps its contents, so the update is valid even if it stopped halfway.
        update.publish();
        done?;
        Ok(Some(next))
    }

    /// Relocates a large value if its key, which is stored with it, still refers to it. Returns false if there is no
    /// space.
    fn move_extent<D: ZonedDevice>(&mut self, shared: &Shared<D>, block: u64, blocks: u64) -> Result<bool> {
        let bytes = blocks as usize * shared.io.geometry.block_bytes as usize;
        let node = shared.io.read(Traffic::Extent, block, bytes)?;
        let header =
            Header::peek(&node, Kind::Extent).map_err(|what| crate::store::io::damaged(block, what))?;
        let content = &node[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        let (key, value) = content.split_at(header.small[0].into());
        let extent = Extent { block, bytes: value.len() as u32, checksum: checksum(&node) };
        // Holding the clock hand prevents the leaf from being evicted before it is changed below.
        let _clock_hand = shared.clock_hand.lock().ignore_poison();
        let tree = shared.published.tree();
        let is_extent = |body: &LeafBody| body.get(key) == Some(Value::Extent(extent));
        let (in_use, _) = tree.with_leaf(&shared.io, key, is_extent)?;
        drop(tree);
        if !in_use {
            return Ok(true);
        }
        // Do not relocate a corrupt value under a new checksum: reading it must return the error.
        Header::open(&node, Kind::Extent, block).map_err(|what| crate::store::io::damaged(block, what))?;
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let nodes = (self.dirty + remaining + 4) * shared.io.node_blocks();
        if self.space.available() < nodes + blocks || !self.space.can_append(Stream::Extents, blocks) {
            return Ok(false);
        }
        let relocated = self.write_extent(shared, key, value)?;
        let mut batch = Batch::new();
        batch.put_extent(key, relocated);
        self.change_tree(shared, &batch)?;
        self.reclaim.counts.extents_moved += 1;
        Ok(true)
    }

    /// Called after a checkpoint: gives up the victims that were not reset although no snapshot needs them, because a
    /// part of them could not be read.
    pub fn abandon_victims(&mut self) {
        let zones = &mut self.space.zones;
        if self.waiting.is_empty() {
            for index in self.reclaim.relocated_victims.drain(..) {
                zones[index].is_victim = false;
                self.reclaim.unreadable.push(index);
                self.reclaim.counts.given_up += 1;
            }
        }
    }
}

/// Scans the blocks from `from` to `to` of the zone that begins at block `start`. Returns all items found, whether live
/// or not.
fn scan_blocks<D: ZonedDevice>(
    shared: &Shared<D>,
    buffer: &mut Option<AlignedBuffer>,
    start: u64,
    (from, to, written): (u64, u64, u64),
) -> Vec<Candidate> {
    let io = &shared.io;
    let block_bytes = io.geometry.block_bytes as usize;
    let longest = (MAX_STEP_BLOCKS.max(io.node_blocks()) + io.node_blocks()) as usize * block_bytes;
    let buffer = buffer.get_or_insert_with(|| AlignedBuffer::new(longest));
    let end = (to + io.node_blocks() - 1).min(written);
    let bytes = |from: u64, end: u64| (end - from) as usize * block_bytes;
    let mut found = Vec::new();
    let whole = io.read_to(Traffic::Leaf, start + from, &mut buffer[..bytes(from, end)]).is_ok();
    let mut at = from;
    while at < to {
        let first = bytes(from, at);
        // Read node by node if the whole range is unreadable, so that one bad block does not hide the others.
        let last = bytes(from, (at + io.node_blocks()).min(end));
        let is_read = whole || io.read_to(Traffic::Leaf, start + at, &mut buffer[first..last]).is_ok();
        let one = match is_read {
            true => recognize(io, &buffer[first..last], start + at, start + written),
            false => None,
        };
        at += match &one {
            Some(Candidate::Extent(..)) | None => 1,
            Some(_) => io.node_blocks(),
        };
        found.extend(one);
    }
    found
}

/// Decodes the node or large value at the start of `bytes`, which were read from `block`.
fn recognize<D: ZonedDevice>(
    io: &crate::store::io::Io<D>,
    bytes: &[u8],
    block: u64,
    end: u64,
) -> Option<Candidate> {
    if let Ok(header) = Header::peek(bytes, Kind::Extent) {
        let block_bytes = io.geometry.block_bytes as usize;
        let blocks = (HEADER_BYTES + header.bytes as usize).div_ceil(block_bytes) as u64;
        let fits = header.block == block
            && block.checked_add(blocks).is_some_and(|after| after <= end)
            && u32::from(header.small[0]) <= header.bytes;
        return fits.then_some(Candidate::Extent(block, blocks));
    }
    let node = bytes.get(..io.node_bytes)?;
    if let Ok(page) = Page::decode(node, block) {
        return Some(Candidate::Leaf(block, page, checksum(node)));
    }
    let InnerRecord { level, entries } = InnerRecord::decode(node, block).ok()?;
    Some(Candidate::Inner(block, level, entries.into_iter().next()?.0))
}

/// Marks a node for relocation if it is live. Returns whether it is.
fn move_found<D: ZonedDevice>(
    shared: &Shared<D>,
    editor: &mut Editor<'_, D>,
    tree: &mut Tree,
    found: Candidate,
) -> Result<bool> {
    let (key, level) = match found {
        Candidate::Extent(..) => return Ok(false),
        Candidate::Inner(block, level, key) => {
            if inner_of(shared, tree, &key, level)?.is_none_or(|slot| slot.home() != block) {
                return Ok(false);
            }
            (key, level)
        }
        Candidate::Leaf(block, page, checksum) => {
            let key = if page.count() == 0 { Vec::new() } else { page.key(0).to_vec() };
            let leaf = tree.leaf_of(&shared.io, &key)?;
            let home = leaf.home();
            if home != block && leaf.log_home() != block {
                return Ok(false);
            }
            // After a lost write the block may hold an older node. It is not cached as the leaf then, and reading the
            // leaf reports the error.
            if leaf.homes() == (LeafAddresses { leaf: block, log: NO_LOG, checksum }) {
                leaf.fill(&shared.io, page);
            }
            (key, 0)
        }
    };
    editor.move_node(tree, &key, level)?;
    Ok(true)
}
