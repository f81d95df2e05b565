//! Checkpoints: the dirty nodes of one version of the tree are written, a few at a time, to blocks that the previous
//! checkpoint does not use. A new superblock then commits the checkpoint. Later changes are in the journal.
//!
//! Source: shadow paging (Lorie, "Physical Integrity in a Large Segmented Database", TODS 1977), with the ZB+-tree
//! paper's placement of nodes.

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::node::InnerRecord;
use crate::store::io::{Io, Traffic};
use crate::store::journal::parts::Position;
use crate::store::space::allocation::{SequentialZone, Slot, Space, Stream};
use crate::store::superblock::{SpaceTable, Superblock, ZoneEntry};
use crate::store::tree::edit::Retired;
use crate::store::tree::leaf::{LeafAddresses, LeafBody, LeafSlot, NO_LOG};
use crate::store::tree::nodes::{InnerSlot, Tree, UNWRITTEN};
use crate::store::write::output::Output;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The fill factor at which a leaf or interior node is considered full and moves to a sequential zone.
const FULL_FACTOR: f64 = 0.97;

/// Blocks that become free when a checkpoint is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Node(u64),
    /// A large value: its first block and its number of blocks.
    Extent(u64, u64),
}

/// An amount of change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeVolume {
    /// An upper bound of the nodes to be written.
    pub nodes: u64,
    /// Memory of changed leaves that cannot be evicted: the leaves themselves, or their lists of changes.
    pub bytes: u64,
}

/// A checkpoint in progress.
pub(crate) struct Checkpoint {
    tree: Tree,
    /// The path from the root to the current node: each node with the index of its next child to visit.
    path: Vec<(Arc<InnerSlot>, usize)>,
    pub output: Output,
    /// Leaves, with their former addresses, and inner nodes that have an address but are still in the output buffer.
    placed: Vec<(Arc<LeafSlot>, LeafAddresses)>,
    placed_inner: Vec<Arc<InnerSlot>>,
    journal: Position,
    pub freed: Vec<Freed>,
    /// An upper bound of the nodes still to be written.
    pub remaining: u64,
    /// The upper bound at the beginning of the checkpoint.
    pub all: u64,
    /// Headroom for changes made while the checkpoint runs. The checkpoint is paced to complete with this much headroom
    /// left.
    pub slack: ChangeVolume,
    /// Blocks of large values written to each sequential zone since the checkpoint began. The journal refers to them.
    pub extents_since: Vec<u64>,
}

/// Converts retired items of the newest tree to blocks. No checkpoint may be running, so that every node has its final
/// address.
pub(crate) fn resolve(retired: Vec<Retired>) -> Vec<Freed> {
    let mut freed = Vec::with_capacity(retired.len());
    for one in retired {
        match one {
            Retired::Node(block) => freed.push(Freed::Node(block)),
            Retired::Extent(block, blocks) => freed.push(Freed::Extent(block, blocks)),
            Retired::Inner(slot) if slot.home() != UNWRITTEN => freed.push(Freed::Node(slot.home())),
            Retired::Inner(_) => {}
            Retired::Leaf(slot, leaf, log) => {
                if leaf && slot.home() != UNWRITTEN {
                    freed.push(Freed::Node(slot.home()));
                }
                if log && !matches!(slot.log_home(), UNWRITTEN | NO_LOG) {
                    freed.push(Freed::Node(slot.log_home()));
                }
            }
        }
    }
    freed
}

impl Checkpoint {
    pub fn begin(
        tree: Tree,
        journal: Position,
        freed: Vec<Freed>,
        dirty: u64,
        extents_since: Vec<u64>,
        output: Output,
    ) -> Self {
        let path = if tree.root.home() == UNWRITTEN { vec![(Arc::clone(&tree.root), 0)] } else { Vec::new() };
        Self {
            tree,
            path,
            output,
            placed: Vec::new(),
            placed_inner: Vec::new(),
            journal,
            freed,
            remaining: dirty,
            all: dirty,
            slack: ChangeVolume::default(),
            extents_since,
        }
    }

    /// Writes about `budget` nodes. Returns true when all nodes are written. The caller must hold the cache's clock
    /// hand, so that no leaf is evicted during the call.
    ///
    /// # Errors
    /// After an error, the nodes of this call have their former addresses again, and their contents are still read from
    /// memory.
    pub fn step<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        generation: u64,
        budget: u64,
    ) -> Result<bool> {
        if let Err(error) = self.write_nodes(io, space, generation, budget) {
            self.placed.drain(..).for_each(|(leaf, before)| leaf.take_back(before));
            self.placed_inner.drain(..).for_each(|inner| inner.home.store(UNWRITTEN, Ordering::Release));
            return Err(error);
        }
        self.placed.drain(..).for_each(|(leaf, _)| leaf.mark_written());
        self.placed_inner.drain(..).for_each(|inner| inner.evict_if_replaced());
        Ok(self.path.is_empty())
    }

    fn write_nodes<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        generation: u64,
        budget: u64,
    ) -> Result<()> {
        let mut written = 0;
        while written < budget
            && let Some((slot, index)) = self.path.last_mut()
        {
            let slot = Arc::clone(slot);
            let child = *index;
            *index += 1;
            let inner = slot.inner(io)?;
            if let Some(leaf) = inner.leaves().get(child) {
                written += self.write_leaf(io, space, generation, leaf)?;
            } else if let Some(below) = inner.inners().get(child) {
                if below.home() == UNWRITTEN {
                    self.path.push((Arc::clone(below), 0));
                }
            } else {
                self.path.pop();
                self.write_inner(io, space, generation, &slot)?;
                written += 1;
            }
        }
        self.remaining = self.remaining.saturating_sub(written);
        self.output.write_all(io)
    }

    fn write_leaf<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        generation: u64,
        slot: &Arc<LeafSlot>,
    ) -> Result<u64> {
        if slot.is_written() {
            return Ok(0);
        }
        self.placed.push((Arc::clone(slot), slot.homes()));
        let body = slot.load_uncached(io)?;
        self.write_body(io, space, generation, slot, &body)
    }

    fn write_body<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        generation: u64,
        slot: &LeafSlot,
        body: &LeafBody,
    ) -> Result<u64> {
        let mut written = 0;
        if slot.home() == UNWRITTEN {
            let in_place = (!body.leaf.is_filled(FULL_FACTOR)).then_some(Slot::Leaf);
            let stream = if slot.relocated.load(Ordering::Relaxed) { Stream::Moved } else { Stream::Hot };
            let home = self.allocate(io, space, in_place, stream)?;
            let fill = |node: &mut [u8]| body.leaf.encode(node, home, generation, 0);
            let checksum = self.output.add(io, Traffic::Leaf, home, fill)?;
            slot.leaf_checksum.store(checksum, Ordering::Release);
            slot.checksum.store(checksum, Ordering::Release);
            slot.home.store(home, Ordering::Release);
            written += 1;
        }
        if let (UNWRITTEN, Some(log)) = (slot.log_home(), &body.log) {
            let home = self.allocate(io, space, Some(Slot::Log), Stream::Hot)?;
            let base = slot.leaf_checksum.load(Ordering::Acquire);
            let fill = |node: &mut [u8]| log.encode(node, home, generation, base);
            let checksum = self.output.add(io, Traffic::Log, home, fill)?;
            slot.checksum.store(checksum, Ordering::Release);
            slot.log.store(home, Ordering::Release);
            written += 1;
        }
        Ok(written)
    }

    fn write_inner<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        generation: u64,
        slot: &Arc<InnerSlot>,
    ) -> Result<()> {
        self.placed_inner.push(Arc::clone(slot));
        let inner = slot.inner(io)?;
        let full = inner.used() as f64 >= InnerRecord::room(io.node_bytes) as f64 * FULL_FACTOR;
        let is_head = inner.level % 2 == 1;
        let in_place = (is_head || !full).then_some(Slot::Inner);
        let home = self.allocate(io, space, in_place, Stream::Cold)?;
        let traffic = Traffic::of_level(inner.level);
        let level = inner.level;
        let fill = |node: &mut [u8]| InnerRecord::encode(level, inner.entries(), node, home, generation);
        let checksum = self.output.add(io, traffic, home, fill)?;
        slot.checksum.store(checksum, Ordering::Release);
        slot.home.store(home, Ordering::Release);
        Ok(())
    }

    /// Allocates blocks for a node: a conventional slot if `in_place` is given and a slot is free, or else space in a
    /// sequential zone.
    fn allocate<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        space: &mut Space,
        in_place: Option<Slot>,
        stream: Stream,
    ) -> Result<u64> {
        if let Some(block) = in_place.and_then(|slot| space.take_slot(slot)) {
            return Ok(block);
        }
        match space.take_appended(stream, io.node_blocks()) {
            Ok((block, None)) => Ok(block),
            Ok((block, Some(zone))) => {
                self.output.finish(io, zone)?;
                Ok(block)
            }
            Err(full) => space.take_any_slot().ok_or(full),
        }
    }

    /// Commits the checkpoint after all its nodes are written, and returns the new superblock.
    pub fn finish<D: ZonedDevice>(
        &self,
        io: &Io<D>,
        space: &Space,
        waiting: impl Iterator<Item = Freed>,
        last: &Superblock,
    ) -> Result<Superblock> {
        let mut after = space.clone();
        for freed in waiting.chain(self.freed.iter().copied()) {
            release(&mut after, freed);
        }
        let entry = |(zone, since): (&SequentialZone, &u64)| ZoneEntry {
            nodes: zone.live_nodes as u32,
            extents: zone.live_extents.saturating_sub(*since) as u32,
            resets: u32::try_from(zone.resets).unwrap_or(u32::MAX),
            is_written: zone.written > 0,
        };
        let zones = after.zones.iter().zip(&self.extents_since).map(entry).collect();
        let table = SpaceTable { zones, slots: after.slot_bits().to_vec() };
        let generation = last.generation.wrapping_add(1);
        let superblock = Superblock {
            generation,
            root: self.tree.root.home(),
            root_checksum: self.tree.root.checksum(),
            table_checksum: table.write(io, generation)?,
            len: self.tree.len,
            journal: self.journal,
            cut: 0,
            ..*last
        };
        io.device.flush()?;
        superblock.write(io)?;
        io.device.flush()?;
        Ok(superblock)
    }
}

/// Marks blocks as free.
pub(crate) fn release(space: &mut Space, freed: Freed) {
    match freed {
        Freed::Node(block) => space.release_node(block),
        Freed::Extent(block, blocks) => space.release_extent(block, blocks),
    }
}
