//! Offline repair: keeps readable nodes, prunes damaged nodes from the tree, recovers their records from older copies
//! on the device if possible, and reports all losses.

use crate::device::{Block, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{Extent, HEADER_BYTES, Header, Kind, Page, Pointer, Value};
use crate::store::io::{Io, Traffic};
use crate::store::journal::batch::Batch;
use crate::store::journal::replay::replay;
use crate::store::open::{assemble, empty_space};
use crate::store::space::allocation::{Space, takes_writes};
use crate::store::superblock::{SpaceTable, Superblock};
use crate::store::tools::check::Bounds;
use crate::store::tree::edit::Retired;
use crate::store::tree::nodes::{Children, Inner, InnerSlot, Tree, UNWRITTEN};
use crate::store::{LostBatches, Options, Store};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A range of keys that could not be read, from `from` (inclusive) to `to` (exclusive).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostRange {
    /// The start of the range.
    pub from: Vec<u8>,
    /// The end of the range. `None` means that the range is unbounded.
    pub to: Option<Vec<u8>>,
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Keys in the repaired map.
    pub keys: u64,
    /// Ranges whose nodes could not be read. Some of their keys may have been recovered from older copies.
    pub lost: Vec<LostRange>,
    /// Ranges whose latest updates and deletions were lost with a log.
    pub lost_changes: Vec<LostRange>,
    /// Keys whose large values could not be read. These keys are deleted.
    pub lost_values: Vec<Vec<u8>>,
    /// Records recovered from older copies. They may be outdated or deleted.
    pub older_copies: u64,
    /// Whether no valid superblock was found. All records are then from copies of unknown age, and the journal is lost.
    pub superblock_lost: bool,
    /// Whether the space table was wrong and has been rebuilt.
    pub table_lost: bool,
    /// Lost batches of the journal. Later batches were applied. Without a valid superblock the lost batches are
    /// unknown.
    pub lost_batches: Vec<LostBatches>,
    /// Whether the journal shows that the newest superblock was lost, so that an older one was used. Changes reachable
    /// only through the newest one are lost.
    pub superblock_old: bool,
}

/// A recovered record, or a deletion that suppresses an older copy.
struct Copy {
    generation: u64,
    value: Option<Vec<u8>>,
    /// The node that contains the record, and the location of its value if that is large.
    node: u64,
    extent: Option<Extent>,
}

/// The recovered records by key.
type Copies = BTreeMap<Vec<u8>, Copy>;

struct Repairer<'a, D> {
    io: &'a Io<D>,
    space: Space,
    report: RepairReport,
    keys: u64,
    /// Nodes of the old tree that the new one does not contain. They stay allocated until the new superblock is
    /// written, so that a repair that fails or is interrupted can be run again.
    needed: Vec<Retired>,
    /// The first generation of the map. Nodes of earlier generations belong to an older map on the device.
    first_generation: u64,
}

impl<D: ZonedDevice> Store<D> {
    /// Repairs the map on a device and reports the losses. The map must not be open.
    ///
    /// # Errors
    /// [`Error::NotFormatted`] if no trace of a map is found; [`Error::Full`] if the recovered records do not fit next
    /// to their sources; [`Error::Device`]. After an error or an interruption the repair can be run again.
    pub fn repair(device: D, options: Options) -> Result<RepairReport> {
        let found = Superblock::candidates(&device)?.pop();
        let node_bytes = match found {
            Some(superblock) => superblock.node_bytes,
            None => guess_node_bytes(&device)?,
        };
        let io = Io::new(device, node_bytes as usize).with_retries();
        let mut repairer = Repairer {
            io: &io,
            space: empty_space(&io)?,
            report: RepairReport::default(),
            keys: 0,
            needed: Vec::new(),
            first_generation: found.map_or(0, |superblock| superblock.first_generation),
        };
        let all = Bounds { low: &[], high: None };
        let root = match found {
            Some(superblock) if superblock.root == 0 => None,
            Some(superblock) => {
                repairer.prune_inner((superblock.root, superblock.root_checksum), None, all)?
            }
            None => {
                repairer.lose(all);
                None
            }
        };
        let (copies, generation) = repairer.older_copies()?;
        let Repairer { mut space, mut report, keys, mut needed, .. } = repairer;
        report.superblock_lost = found.is_none();
        if let Some(found) = &found {
            match SpaceTable::read(&io, found) {
                Ok(table) => {
                    report.table_lost = !is_right(&table, &space);
                    space.restore_wear(&table);
                }
                Err(_) => report.table_lost = true,
            }
        }
        claim_copies(&io, &mut space, &copies, &mut needed);
        let superblock = match found {
            Some(superblock) => superblock,
            None => Superblock::fresh(generation, node_bytes),
        };
        let tree = match root {
            Some(root) => Tree { root, len: keys },
            None => Tree::empty(&io),
        };
        let (shared, mut writer) = assemble(io, options, superblock, space, tree);
        report.older_copies = copies.values().filter(|copy| copy.value.is_some()).count() as u64;
        writer.retired.append(&mut needed);
        writer.rebuild(&shared, copies, &mut report)?;
        report.keys = shared.published.tree().len;
        Ok(report)
    }
}

impl<D: ZonedDevice> Repairer<'_, D> {
    fn lose(&mut self, bounds: Bounds<'_>) {
        self.report.lost.push(range(bounds));
    }

    /// Returns the readable part of the subtree below a node.
    fn prune_inner(
        &mut self,
        (block, checksum): (u64, u32),
        level: Option<u16>,
        bounds: Bounds<'_>,
    ) -> Result<Option<Arc<InnerSlot>>> {
        let record = readable(self.io.read_inner(block, checksum))?;
        let record = record.filter(|record| level.is_none_or(|level| record.level == level));
        let Some(record) = record.filter(|_| self.space.claim_node(block)) else {
            self.lose(bounds);
            return Ok(None);
        };
        let (level, all) = (record.level, record.entries.len());
        let mut kept = Vec::new();
        let mut below_changed = false;
        for (index, (key, pointer)) in record.entries.iter().enumerate() {
            let low = if index == 0 { bounds.low } else { &key[..] };
            let high = record.entries.get(index + 1).map(|next| &next.0[..]).or(bounds.high);
            let below = Bounds { low, high };
            if level == 1 {
                kept.extend(self.prune_leaf(*pointer, below)?.map(|pointer| (key.clone(), pointer, None)));
            } else if let Some(slot) =
                self.prune_inner((pointer.home, pointer.checksum), Some(level - 1), below)?
            {
                below_changed |= slot.home() == UNWRITTEN;
                kept.push((key.clone(), *pointer, Some(slot)));
            }
        }
        if kept.is_empty() {
            self.needed.push(Retired::Node(block));
            return Ok(None);
        }
        let pointers_changed = kept.iter().zip(&record.entries).any(|(kept, before)| kept.1 != before.1);
        let changed = kept.len() < all || below_changed || pointers_changed;
        let slots: Vec<_> = kept.iter().filter_map(|(_, _, slot)| slot.clone()).collect();
        let entries = kept.into_iter().map(|(key, pointer, _)| (key, pointer)).collect();
        let mut inner = Inner::from_record(self.io, crate::node::InnerRecord { level, entries });
        if level > 1 {
            inner.children = Children::Inners(slots);
        }
        let slot = InnerSlot::new(inner);
        if changed {
            self.needed.push(Retired::Node(block));
        } else {
            slot.checksum.store(checksum, Ordering::Release);
            slot.home.store(block, Ordering::Release);
        }
        Ok(Some(slot))
    }

    fn prune_leaf(&mut self, mut pointer: Pointer, bounds: Bounds<'_>) -> Result<Option<Pointer>> {
        let inside = |leaf: &Page| (0..leaf.count()).all(|index| bounds.hold(leaf.key(index)));
        let mut log = None;
        if let Some(at) = pointer.log {
            let read = readable(self.io.read_log(at, pointer.checksum))?;
            log = read
                .filter(|(log, _)| inside(log) && self.space.claim_node(at))
                .map(|(log, base)| (at, log, base));
            if log.is_none() {
                // The checksum of the leaf was stored in the lost log, so the leaf is accepted without a check.
                self.report.lost_changes.push(range(bounds));
                pointer = Pointer { log: None, checksum: self.checksum_at(pointer.home)?, ..pointer };
            }
        }
        let leaf_checksum = log.as_ref().map_or(pointer.checksum, |(_, _, base)| *base);
        let leaf = readable(self.io.read_page(pointer.home, leaf_checksum))?.filter(|leaf| inside(leaf));
        let merged = leaf.and_then(|leaf| match &log {
            Some((_, log, _)) => crate::store::tree::leaf::merged(&leaf, log, false).ok(),
            None => Some(leaf),
        });
        let Some(leaf) = merged.filter(|_| self.space.claim_node(pointer.home)) else {
            if let Some((at, ..)) = log {
                self.needed.push(Retired::Node(at));
            }
            self.lose(bounds);
            return Ok(None);
        };
        self.keys += leaf.count() as u64;
        for index in 0..leaf.count() {
            if let Value::Extent(extent) = leaf.value(index) {
                let key = leaf.key(index);
                let blocks = self.io.extent_blocks(key, extent.bytes);
                // The blocks stay allocated as long as the key exists, readable or not; deleting the key releases them.
                let can_be = self.space.claim_extent(extent.block, blocks);
                if !can_be || readable(self.io.read_extent(key, extent))?.is_none() {
                    self.report.lost_values.push(key.to_vec());
                }
            }
        }
        Ok(Some(pointer))
    }

    /// The checksum of the node in a block, whatever the node is.
    fn checksum_at(&self, block: u64) -> Result<u32> {
        let node = readable(self.io.read(Traffic::Leaf, block, self.io.node_bytes))?;
        Ok(node.map_or(0, |node| crate::node::checksum(&node)))
    }

    /// Scans the device for the newest copies of records in the lost ranges, and for the last generation that wrote a
    /// node.
    fn older_copies(&self) -> Result<(Copies, u64)> {
        let mut published = Copies::new();
        let mut last = 0;
        if self.report.lost.is_empty() {
            return Ok((published, last));
        }
        for zone in self.io.device.zones()? {
            let written = match takes_writes(zone.condition) && !self.io.geometry.is_conventional(zone.number)
            {
                true => zone.write_pointer,
                false => zone.capacity_blocks,
            };
            for block in (zone.start.0..zone.start.0 + written)
                .filter(|block| block + self.io.node_blocks() <= zone.start.0 + written)
            {
                let Some(node) = readable(self.io.read(Traffic::Leaf, block, self.io.node_bytes))? else {
                    continue;
                };
                let Ok(header) = Header::open(&node, Kind::Leaf, block) else { continue };
                let Ok(page) = Page::decode(&node, block) else { continue };
                last = last.max(header.generation);
                if header.generation < self.first_generation {
                    continue;
                }
                for index in 0..page.count() {
                    self.consider(&page, index, header.generation, block, &mut published)?;
                }
            }
        }
        Ok((published, last))
    }

    fn consider(
        &self,
        page: &Page,
        index: usize,
        generation: u64,
        node: u64,
        published: &mut Copies,
    ) -> Result<()> {
        let key = page.key(index);
        let is_lost =
            |lost: &LostRange| key >= &lost.from[..] && lost.to.as_ref().is_none_or(|to| key < &to[..]);
        if !self.report.lost.iter().any(is_lost)
            || published.get(key).is_some_and(|known| known.generation >= generation)
        {
            return Ok(());
        }
        let (value, extent) = match page.value(index) {
            Value::Deleted => (None, None),
            value => match readable(crate::store::load_value(self.io, key, value))? {
                Some(loaded) => (loaded, if let Value::Extent(extent) = value { Some(extent) } else { None }),
                None => return Ok(()),
            },
        };
        published.insert(key.to_vec(), Copy { generation, value, node, extent });
        Ok(())
    }
}

/// Returns the node, or `None` if it is corrupt or its medium failed. Other device errors are passed on.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error @ Error::Device(_)) => crate::store::journal::replay::unreadable(error).map(|_| None),
        Err(_) => Ok(None),
    }
}

/// Marks the sources of the recovered records as in use, unless the tree already refers to them. Large values are not
/// moved.
fn claim_copies<D: ZonedDevice>(io: &Io<D>, space: &mut Space, copies: &Copies, needed: &mut Vec<Retired>) {
    let nodes: BTreeSet<u64> = copies.values().map(|copy| copy.node).collect();
    needed.extend(nodes.into_iter().filter(|node| space.claim_node(*node)).map(Retired::Node));
    for (key, extent) in copies.iter().filter_map(|(key, copy)| Some((key, copy.extent?))) {
        space.claim_extent(extent.block, io.extent_blocks(key, extent.bytes));
    }
}

fn range(bounds: Bounds<'_>) -> LostRange {
    LostRange { from: bounds.low.to_vec(), to: bounds.high.map(<[u8]>::to_vec) }
}

/// Whether the space table agrees with the tree.
fn is_right(table: &SpaceTable, space: &Space) -> bool {
    let mut zones = space.zones.iter().zip(&table.zones);
    let mut bits = space.slot_bits().iter().enumerate();
    zones.all(|(zone, entry)| {
        (zone.live_nodes, zone.live_extents) == (entry.nodes.into(), entry.extents.into())
    }) && bits.all(|(word, bits)| table.slots.get(word).copied().unwrap_or(0) == *bits)
}

/// Guesses the node size from the first intact node.
fn guess_node_bytes<D: ZonedDevice>(device: &D) -> Result<u32> {
    let geometry = device.geometry();
    let mut block_bytes = vec![0; geometry.block_bytes as usize];
    for block in 0..geometry.blocks() {
        if device.read(Block(block), &mut block_bytes).is_err() {
            continue;
        }
        let kinds = [Kind::Leaf, Kind::Inner];
        let Some(header) = kinds.into_iter().find_map(|kind| Header::peek(&block_bytes, kind).ok()) else {
            continue;
        };
        let node_bytes = header.bytes.saturating_add(HEADER_BYTES as u32);
        if header.block == block && crate::store::superblock::check_node_bytes(device, node_bytes).is_ok() {
            return Ok(node_bytes);
        }
    }
    let what = "it contains neither a superblock nor a node; format it".into();
    Err(Error::NotFormatted { device: device.name(), what })
}

impl crate::store::write::writer::Writer {
    /// Adds the recovered records and the journal to a pruned tree and writes a checkpoint. Journal losses are added to
    /// the report.
    fn rebuild<D: ZonedDevice>(
        &mut self,
        shared: &crate::store::Shared<D>,
        copies: Copies,
        report: &mut RepairReport,
    ) -> Result<()> {
        let mut records =
            copies.iter().filter_map(|(key, copy)| Some((key, copy.value.as_ref()?))).peekable();
        // Find the journal's zones before anything is written.
        let mut replay = replay(&shared.io, &self.space, &self.superblock)?;
        let (_, unreadable) = replay.settle(&shared.io, &self.space);
        crate::store::journal::replay::claim(&mut self.space, &replay.zones);
        report.lost_batches = std::mem::take(&mut replay.lost);
        report.superblock_old = replay.newer_checkpoint(&self.superblock).is_some();
        let published = replay.checkpoint;
        self.empty_unclaimed(shared, &replay)?;
        while records.peek().is_some() {
            let mut batch = Batch::new();
            for (key, value) in records.by_ref().take(1000) {
                // Do not move large values: each interrupted attempt would leave another copy.
                match copies[key].extent {
                    Some(extent) => batch.put_extent(key, extent),
                    None => _ = batch.put(key, value),
                }
            }
            let prepared = self.write_extents(shared, &batch)?;
            self.change_tree(shared, &prepared)?;
        }
        self.delete(shared, &report.lost_values)?;
        // After damage, the journal continues in a fresh zone.
        let is_whole = report.lost_batches.is_empty();
        self.replay_batches(shared, replay, false)?;
        if !is_whole {
            self.journal.end.zone = 0;
        }
        let mut lost = Vec::new();
        for (key, extent) in unreadable {
            let tree = shared.published.tree();
            let leaf = tree.leaf_of(&shared.io, &key)?;
            if leaf.with(&shared.io, |body| body.get(&key) == Some(Value::Extent(extent)))? {
                lost.push(key);
            }
        }
        self.delete(shared, &lost)?;
        report.lost_values.append(&mut lost);
        // Use a generation newer than any that the journal mentions, so that the next repair does not take this
        // superblock for an outdated one.
        self.superblock.generation = published;
        self.release_waiting(shared)?;
        self.journal.ensure_zone(&shared.io, &mut self.space)?;
        self.begin_checkpoint(shared);
        self.finish_checkpoint(shared)?;
        self.release_waiting(shared)
    }

    /// Resets zones without needed data, such as the output of an interrupted repair. Large values referred to by the
    /// journal are not marked as in use yet, so they are excluded explicitly.
    fn empty_unclaimed<D: ZonedDevice>(
        &mut self,
        shared: &crate::store::Shared<D>,
        replay: &crate::store::journal::replay::Replay,
    ) -> Result<()> {
        let values =
            replay.records.iter().flat_map(|record| crate::store::journal::replay::large(&record.batch));
        let needed: BTreeSet<usize> =
            values.filter_map(|(_, extent)| self.space.zone_index(extent.block)).collect();
        for index in self.space.dead_zones(|_| true).into_iter().filter(|index| !needed.contains(index)) {
            shared.io.device.reset(self.space.zones[index].number)?;
            self.space.was_reset(index);
        }
        Ok(())
    }

    fn delete<D: ZonedDevice>(&mut self, shared: &crate::store::Shared<D>, keys: &[Vec<u8>]) -> Result<()> {
        let mut batch = Batch::new();
        keys.iter().for_each(|key| _ = batch.delete(key));
        self.change_tree(shared, &batch).map(|_| ())
    }
}
