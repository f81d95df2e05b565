//! Garbage collection of sequential zones: what is in use of a victim counts as changed, so that the next checkpoint writes it elsewhere
//! and the zone can be reset. A part of it comes with each batch, as much as the batch makes necessary.
//! Not conventional slots: they are free again by themselves. Not what is done when room is short: see `room`.
//! Source: emptying segments, and cost-benefit as the choice of one, are Rosenblum and Ousterhout's (LFS, TOCS 1992).

use super::batch::Batch;
use super::checkpoint::Freed;
use super::edit::Editor;
use super::io::Traffic;
use super::leaf::{Homes, LeafSlot, NO_LOG};
use super::space::{Role, Stream};
use super::tree::{Inner, InnerSlot, Tree};
use super::writer::Writer;
use super::{Shared, lock};
use crate::device::{AlignedBuffer, DeviceError, Operation, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{Extent, HEADER_BYTES, Header, InnerRecord, Kind, Page, Value, proof};
use rustc_hash::FxHashSet;
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
    /// Times that a batch had to wait for a whole checkpoint or collection, as room was short.
    pub waits: u64,
}

/// How many blocks of a victim one step looks at, at most: what is read at once, and how long readers may have to wait.
const STEP_BLOCKS: u64 = 64;

/// The most blocks that come with one batch: what is left over comes with the next ones.
const MOST_BLOCKS: u64 = 2048;

/// From how many resets more on, a zone is much more worn than another.
const WEAR_SPREAD: u64 = 8;

/// Garbage collection.
#[derive(Default)]
pub(super) struct Reclaim {
    /// The victim that is being emptied, and its block that is looked at next.
    current: Option<(usize, u64)>,
    /// Victims of which all that is in use waits for a checkpoint to begin, those that one is writing elsewhere, and those that are to
    /// be reset as soon as no snapshot needs them.
    marked: Vec<usize>,
    moving: Vec<usize>,
    left: Vec<usize>,
    /// Zones in which something cannot be read: they are left alone until the map is opened again.
    unreadable: Vec<usize>,
    /// Blocks to look at that recent batches have made necessary.
    debt: u64,
    /// What a victim's blocks are read to.
    buffer: Option<AlignedBuffer>,
    pub counts: ReclaimCounts,
}

impl Reclaim {
    pub fn checkpoint_begins(&mut self) {
        self.moving.append(&mut self.marked);
    }

    pub fn checkpoint_ends(&mut self) {
        self.left.append(&mut self.moving);
    }

    /// A zone was reset.
    pub fn forget(&mut self, zone: usize) {
        self.current = self.current.filter(|current| current.0 != zone);
        for list in [&mut self.marked, &mut self.moving, &mut self.left] {
            list.retain(|&one| one != zone);
        }
    }

    /// Whether all of a victim waits for a checkpoint to begin.
    pub const fn wants_checkpoint(&self) -> bool {
        !self.marked.is_empty()
    }
}

/// How a step of collection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It looked at so many blocks.
    Done(u64),
    /// There is no zone worth it.
    NoVictim,
    /// There is no room for what it might have to write elsewhere.
    NoRoom,
}

/// Something of a victim that may be in use.
enum Found {
    /// Its block, itself, and its proof.
    Leaf(u64, Page, u32),
    /// Its level, and a key that leads to it.
    Inner(u64, u16, Vec<u8>),
    /// Its place, and how many blocks.
    Extent(u64, u64),
}

impl<D: ZonedDevice> Editor<'_, D> {
    /// Makes the node of a level that a key leads to count as changed, and its way from the root.
    fn move_node(&mut self, tree: &mut Tree, key: &[u8], level: u16) -> Result<()> {
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
                    return self.move_leaf(leaf);
                }
            }
        }
    }

    /// A leaf that moves takes its log in.
    fn move_leaf(&mut self, leaf: &mut LeafSlot) -> Result<()> {
        if leaf.log_home() == NO_LOG {
            self.leaf_changes(leaf);
        } else {
            self.apply_log(leaf)?;
        }
        *leaf.moved.get_mut() = true;
        Ok(())
    }
}

/// The inner node of a level that a key leads to.
fn inner_of<'t, D: ZonedDevice>(
    shared: &Shared<D>,
    tree: &'t Tree,
    key: &[u8],
    level: u16,
) -> Result<Option<&'t InnerSlot>> {
    let mut slot = &*tree.root;
    let mut inner: &Inner = slot.inner(&shared.io)?;
    while inner.level > level {
        let Some(below) = inner.inners().get(inner.keys.child(key)) else { return Ok(None) };
        (slot, inner) = (below, below.inner(&shared.io)?);
    }
    Ok((inner.level == level).then_some(slot))
}

/// Whether an error is a reader's to hear of: the map goes on, and leaves the zone alone.
pub(super) const fn is_loss(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. } | Error::Device(DeviceError::Media { operation: Operation::Read, .. })
    )
}

impl Writer {
    /// Does as much of a collection as `changed` nodes, changed by a batch, make necessary: to empty a zone of which a part is garbage,
    /// the rest has to be written for each block gained, and the fewer free blocks there are the less may be put off.
    pub fn reclaim_step<D: ZonedDevice>(&mut self, shared: &Shared<D>, changed: u64) -> Result<()> {
        let (free, garbage) = (self.space.available(), self.space.garbage());
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let low = self.reserve(true, capacity);
        // Free blocks that are worth having: more of them means that victims have less garbage.
        let wanted = (self.few_zones() * capacity).min((free + garbage) / 3).max(low + capacity);
        if free >= wanted || garbage == 0 {
            self.reclaim.debt = 0;
            return Ok(());
        }
        // What a zone of mean garbage costs, more of it the less room there is.
        let percent = (200 * (wanted - free) / (wanted - low)).clamp(25, 200);
        let data = self.space.zones.iter().filter(|zone| zone.role == Role::Data);
        let each = (data.map(|zone| zone.written).sum::<u64>() / garbage).min(16);
        self.reclaim.debt += changed * shared.io.node_blocks() * each * percent / 100;
        self.reclaim.debt = self.reclaim.debt.min(MOST_BLOCKS.max(2 * capacity));
        let mut most = MOST_BLOCKS;
        while self.reclaim.debt > 0 && most > 0 {
            let Step::Done(blocks) = self.collect(shared, (capacity / 16).max(1), low, false)? else { break };
            self.reclaim.debt = self.reclaim.debt.saturating_sub(blocks);
            most = most.saturating_sub(blocks);
        }
        Ok(())
    }

    /// With how many empty zones no collection is worth its while.
    fn few_zones(&self) -> u64 {
        (self.space.zones.len() as u64 / 8).clamp(3, 64)
    }

    /// Goes on with a victim, or with a new one that has at least `least` blocks of garbage, and leaves `reserve` blocks free. As the last resort
    /// it uses up what room there is, node by node.
    pub fn collect<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        least: u64,
        reserve: u64,
        is_last_resort: bool,
    ) -> Result<Step> {
        let (zone, offset) = match self.reclaim.current {
            Some(current) => current,
            None => match self.choose_victim(least, reserve) {
                Some(zone) => (zone, 0),
                None => return Ok(Step::NoVictim),
            },
        };
        self.reclaim.current = Some((zone, offset));
        let victim = &mut self.space.zones[zone];
        victim.is_victim = true;
        let (written, live) = (victim.written, victim.live());
        if live == 0 || offset >= written {
            self.reclaim.current = None;
            self.reclaim.marked.push(zone);
            return Ok(Step::Done(1));
        }
        let node_blocks = shared.io.node_blocks();
        let mut blocks = (victim.capacity / 4).clamp(1, STEP_BLOCKS).max(node_blocks).min(written - offset);
        // Each node may have a way of its own to write, up to the root.
        let levels = shared.newest.tree().root.inner(&shared.io)?.level;
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let needed = |blocks: u64| {
            let nodes = live.min(blocks).div_ceil(node_blocks) * u64::from(levels) + 1;
            (self.dirty + remaining + nodes) * node_blocks + reserve
        };
        // Smaller steps show how few these ways are.
        while is_last_resort && needed(blocks) > self.space.available() && blocks > node_blocks {
            blocks = (blocks / 2).max(node_blocks);
        }
        if needed(blocks) > self.space.available() {
            return Ok(Step::NoRoom);
        }
        let next = self.collect_blocks(shared, zone, offset, offset + blocks)?;
        let Some(next) = next else { return Ok(Step::NoRoom) };
        self.reclaim.current = Some((zone, next));
        Ok(Step::Done(next - offset))
    }

    /// The zone to empty. One with much garbage that has had it for long is best: one that was written lately gets more by itself. When
    /// room is short the one with the most garbage is. And now and then the least worn one, whose data changes so seldom that it would
    /// never be reset.
    fn choose_victim(&mut self, least: u64, reserve: u64) -> Option<usize> {
        let zones = &self.space.zones;
        let garbage = |index: usize| zones[index].garbage();
        // What is being loaded is in no tree, so that it would not be found.
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
        let most = zones.iter().filter(|zone| zone.role != Role::Unusable).map(|zone| zone.resets).max()?;
        let idle = candidates().min_by_key(|&index| zones[index].resets)?;
        let for_wear = reserve > 0
            && zones[idle].resets + WEAR_SPREAD < most
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

    /// Moves what is in use of a part of a victim, and says where to go on; nothing if a large value has no room elsewhere.
    fn collect_blocks<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        zone: usize,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>> {
        let start = shared.io.geometry.start(self.space.zones[zone].number).0;
        let written = self.space.zones[zone].written;
        let found = look(shared, &mut self.reclaim.buffer, start, (from, to, written));
        let mut next = to;
        let mut nodes = Vec::new();
        for one in found {
            match one {
                Found::Extent(block, blocks) => match self.move_extent(shared, block, blocks) {
                    Ok(true) => next = next.max(block - start + blocks),
                    // What has been moved is garbage by now: it may be looked at again.
                    Ok(false) => return Ok(None),
                    Err(error) if is_loss(&error) => {}
                    Err(error) => return Err(error),
                },
                node => nodes.push(node),
            }
        }
        let mut changing = shared.newest.change();
        let mut editor = self.editor(shared);
        let mut moved = 0;
        let done = nodes.into_iter().try_for_each(|node| {
            match move_found(shared, &mut editor, changing.tree(), node) {
                Ok(is_moved) => moved += u64::from(is_moved),
                Err(error) if is_loss(&error) => {}
                Err(error) => return Err(error),
            }
            Ok(())
        });
        self.reclaim.counts.nodes_moved += moved;
        // Nothing is half done: a node that moves is the same as before.
        changing.done();
        done?;
        Ok(Some(next))
    }

    /// Writes a large value elsewhere if it is still some key's: extents name their keys. False if there is no room.
    fn move_extent<D: ZonedDevice>(&mut self, shared: &Shared<D>, block: u64, blocks: u64) -> Result<bool> {
        let bytes = blocks as usize * shared.io.geometry.block_bytes as usize;
        let node = shared.io.read(Traffic::Extent, block, bytes)?;
        let header = Header::peek(&node, Kind::Extent).map_err(|what| super::io::damaged(block, what))?;
        let content = &node[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        let (key, value) = content.split_at(header.small[0].into());
        let extent = Extent { block, bytes: value.len() as u32, proof: proof(&node) };
        // The leaf is not dropped from memory between being read here and being changed.
        let _hand = lock(&shared.hand);
        let tree = shared.newest.tree();
        let in_use = tree
            .leaf_of(&shared.io, key)?
            .with(&shared.io, |body| body.get(key) == Some(Value::Extent(extent)))?;
        drop(tree);
        if !in_use {
            return Ok(true);
        }
        // A value of which the medium lost a part is not moved: reading it is to say so.
        Header::open(&node, Kind::Extent, block).map_err(|what| super::io::damaged(block, what))?;
        let remaining = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.remaining);
        let nodes = (self.dirty + remaining + 4) * shared.io.node_blocks();
        if self.space.available() < nodes + blocks || !self.space.can_append(Stream::Extents, blocks) {
            return Ok(false);
        }
        let moved = self.write_extent(shared, key, value)?;
        let mut batch = Batch::new();
        batch.put_extent(key, moved);
        self.change_tree(shared, &batch)?;
        self.reclaim.counts.extents_moved += 1;
        Ok(true)
    }

    /// After a checkpoint, victims that are not reset yet: a snapshot may need them, or something in them could not be read.
    pub fn settle_victims(&mut self) {
        let zones = &mut self.space.zones;
        if self.waiting.is_empty() {
            for index in self.reclaim.left.drain(..) {
                zones[index].is_victim = false;
                self.reclaim.unreadable.push(index);
                self.reclaim.counts.given_up += 1;
            }
        }
    }
}

/// What is written in the blocks from `from` to `to` of a zone that begins at `start`, whether it is in use or not.
fn look<D: ZonedDevice>(
    shared: &Shared<D>,
    buffer: &mut Option<AlignedBuffer>,
    start: u64,
    (from, to, written): (u64, u64, u64),
) -> Vec<Found> {
    let io = &shared.io;
    let block_bytes = io.geometry.block_bytes as usize;
    let longest = (STEP_BLOCKS.max(io.node_blocks()) + io.node_blocks()) as usize * block_bytes;
    let buffer = buffer.get_or_insert_with(|| AlignedBuffer::new(longest));
    let end = (to + io.node_blocks() - 1).min(written);
    let bytes = |from: u64, end: u64| (end - from) as usize * block_bytes;
    let mut found = Vec::new();
    let whole = io.read_to(Traffic::Leaf, start + from, &mut buffer[..bytes(from, end)]).is_ok();
    let mut at = from;
    while at < to {
        let first = bytes(from, at);
        // One block that cannot be read is not to hide the others.
        let last = bytes(from, (at + io.node_blocks()).min(end));
        let is_read = whole || io.read_to(Traffic::Leaf, start + at, &mut buffer[first..last]).is_ok();
        let one = match is_read {
            true => recognize(io, &buffer[first..last], start + at, start + written),
            false => None,
        };
        at += match &one {
            Some(Found::Extent(..)) | None => 1,
            Some(_) => io.node_blocks(),
        };
        found.extend(one);
    }
    found
}

/// The node or large value that begins with these bytes, at `block`.
fn recognize<D: ZonedDevice>(io: &super::io::Io<D>, bytes: &[u8], block: u64, end: u64) -> Option<Found> {
    if let Ok(header) = Header::peek(bytes, Kind::Extent) {
        let block_bytes = io.geometry.block_bytes as usize;
        let blocks = (HEADER_BYTES + header.bytes as usize).div_ceil(block_bytes) as u64;
        let fits = header.block == block
            && block.checked_add(blocks).is_some_and(|after| after <= end)
            && u32::from(header.small[0]) <= header.bytes;
        return fits.then_some(Found::Extent(block, blocks));
    }
    let node = bytes.get(..io.node_bytes)?;
    if let Ok(page) = Page::decode(node, block) {
        return Some(Found::Leaf(block, page, proof(node)));
    }
    let InnerRecord { level, entries } = InnerRecord::decode(node, block).ok()?;
    Some(Found::Inner(block, level, entries.into_iter().next()?.0))
}

/// Makes a node count as changed if it is in use; says whether it is.
fn move_found<D: ZonedDevice>(
    shared: &Shared<D>,
    editor: &mut Editor<'_, D>,
    tree: &mut Tree,
    found: Found,
) -> Result<bool> {
    let (key, level) = match found {
        Found::Extent(..) => return Ok(false),
        Found::Inner(block, level, key) => {
            if inner_of(shared, tree, &key, level)?.is_none_or(|slot| slot.home() != block) {
                return Ok(false);
            }
            (key, level)
        }
        Found::Leaf(block, page, proof) => {
            let key = if page.count() == 0 { Vec::new() } else { page.key(0).to_vec() };
            let leaf = tree.leaf_of(&shared.io, &key)?;
            let home = leaf.home();
            if home != block && leaf.log_home() != block {
                return Ok(false);
            }
            // An older one that a lost write left there is not the leaf: reading it says so.
            if leaf.homes() == (Homes { leaf: block, log: NO_LOG, proof }) {
                leaf.fill(&shared.io, page);
            }
            (key, 0)
        }
    };
    editor.move_node(tree, &key, level)?;
    Ok(true)
}
