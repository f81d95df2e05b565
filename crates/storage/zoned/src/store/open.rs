//! Formats and opens a map. Opening replays the changes in the journal after a power cut.

use crate::device::{AlignedBuffer, Block, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{MAX_U48, Value};
use crate::store::io::Io;
use crate::store::journal::batch::Batch;
use crate::store::journal::parts::{Journal, Position};
use crate::store::journal::replay::{Replay, claim, large, replay};
use crate::store::read::published::Published;
use crate::store::space::allocation::{Space, Stream, slots_of};
use crate::store::superblock::{
    FixedLayout, SpaceTable, Superblock, ZoneEntry, check_node_bytes, check_slots,
};
use crate::store::tree::edit::Retired;
use crate::store::tree::nodes::{InnerSlot, Tree};
use crate::store::write::writer::{Writer, WriterLock};
use crate::store::{Options, Shared, Store};
use serde::Serialize;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The contents of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// The identifier given when the map was formatted.
    pub id: u64,
    /// The node size, bytes.
    pub node_bytes: u32,
    /// The generation of the last checkpoint.
    pub generation: u64,
    /// The number of keys at the last checkpoint.
    pub keys: u64,
}

impl<D: ZonedDevice> Store<D> {
    /// Creates an empty map. All data on the device is lost. `node_bytes` is the node size: a power of two from 512 to
    /// 65536 and a multiple of the block size. `None` selects 4096, or the block size if that is larger. `id`
    /// identifies the map. Returns the device.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the device is too small or has no conventional zones; [`Error::Device`].
    pub fn format(device: D, node_bytes: Option<u32>, id: u64) -> Result<D> {
        let geometry = device.geometry();
        let node_bytes = node_bytes.unwrap_or(4096.max(geometry.block_bytes));
        check_node_bytes(&device, node_bytes)?;
        check_room(&device, node_bytes)?;
        let generation = first_generation(&device);
        let places = FixedLayout::of(&geometry, 1);
        let zeros = AlignedBuffer::new(geometry.block_bytes as usize);
        // Erase old superblocks, so that none of them can be mistaken for one of this map.
        for block in places.superblock.into_iter().flatten() {
            device.write(Block(block), &zeros)?;
        }
        device.flush()?;
        let mut journal = Position { sequence: 1, batch: 1, ..Position::default() };
        for zone in device.zones()?.into_iter().skip(geometry.conventional_zones as usize) {
            if !crate::store::space::allocation::takes_writes(zone.condition) {
                continue;
            }
            if zone.room_blocks() < zone.capacity_blocks {
                device.reset(zone.number)?;
            }
            if journal.zone == 0 {
                journal.zone = zone.number.0;
            }
        }
        let io = Io::new(device, node_bytes as usize);
        let zones = vec![ZoneEntry::default(); geometry.sequential_zones as usize];
        let table_checksum = SpaceTable { zones, slots: Vec::new() }.write(&io, generation)?;
        io.device.flush()?;
        let (root, root_checksum, len, cut) = (0, 0, 0, 0);
        let first_generation = generation;
        Superblock {
            generation,
            id,
            node_bytes,
            root,
            root_checksum,
            table_checksum,
            len,
            journal,
            first_generation,
            cut,
        }
        .write(&io)?;
        io.device.flush()?;
        Ok(io.device)
    }

    /// Opens the map on a device, or creates an empty map first if the device is blank: its sequential zones are empty,
    /// and its conventional zones begin with zeros.
    ///
    /// # Errors
    /// Those of [`Store::open`] and [`Store::format`]. A device with other contents is not changed.
    pub fn open_or_create(device: D, options: Options) -> Result<Self> {
        if !is_blank(&device)? {
            return Self::open(device, options);
        }
        let id = RandomState::new().build_hasher().finish();
        Self::open(Self::format(device, None, id)?, options)
    }

    /// Reads the superblock of a device.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`], [`Error::Device`].
    pub fn info(device: &D) -> Result<Info> {
        let Superblock { id, node_bytes, generation, len, .. } = Superblock::read(device)?;
        Ok(Info { id, node_bytes, generation, keys: len })
    }

    /// Opens the map on a device. All durable batches are present. Of the batches that were not durable, a prefix may
    /// be present.
    ///
    /// # Errors
    /// [`Error::NotFormatted`]; [`Error::Unsuitable`] if the map was written for another device or by another version;
    /// [`Error::JournalDamaged`] if completely written batches cannot be read; [`Error::Damaged`]; [`Error::Device`].
    /// After an error, the device is unchanged.
    pub fn open(device: D, options: Options) -> Result<Self> {
        let (shared, mut writer, replay, cut) = Self::last_checkpoint(device, options)?;
        // Read all leaves that the replay needs before anything is written, so that a failing open leaves the device
        // unchanged.
        let tree = shared.published.tree();
        for record in &replay.records {
            for change in record.batch.changes() {
                tree.load_leaf(&shared.io, change.key)?;
            }
            shared.shrink_cache();
        }
        drop(tree);
        // Rewrite the superblock, because one of its copies may be lost. After a failed flush it may also be readable
        // but not durable; a power cut would then bring the previous one back.
        writer.superblock.write(&shared.io)?;
        shared.io.device.flush()?;
        if let Some(cut) = cut {
            writer.superblock.cut_journal(&shared.io, cut)?;
        }
        writer.recover(&shared, replay)?;
        Ok(Self { shared, writer: Arc::new(WriterLock::new(writer)) })
    }

    /// Opens the map on a device for reading. It has the same contents as with [`Store::open`], but nothing is written
    /// to the device. No other process may write to the device while the map is open. The changes from the journal stay
    /// in memory; [`Options::cache_bytes`] limits the rest.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_read_only(device: D, options: Options) -> Result<Self> {
        let (shared, mut writer, replay, _) = Self::last_checkpoint(device, options)?;
        // Record the journal's changes, so that the leaves they affect can be evicted.
        shared.all_resident.store(false, Ordering::Release);
        writer.replay_batches(&shared, replay, false)?;
        writer.is_read_only = true;
        shared.shrink_cache();
        Ok(Self { shared, writer: Arc::new(WriterLock::new(writer)) })
    }

    /// Reads the last checkpoint and the journal after it. The last value is the first part that no longer counts, if
    /// the journal must be cut. Does not write.
    fn last_checkpoint(device: D, options: Options) -> Result<Opened<D>> {
        let superblock = Superblock::read(&device)?;
        let io = Io::new(device, superblock.node_bytes as usize);
        let mut space = empty_space(&io)?;
        space.restore(&SpaceTable::read(&io, &superblock)?);
        let tree = match superblock.root {
            0 => Tree::empty(&io),
            root => {
                Tree { root: InnerSlot::root_on_device(root, superblock.root_checksum), len: superblock.len }
            }
        };
        tree.root.inner(&io)?;
        let mut replay = replay(&io, &space, &superblock)?;
        let (cut, _) = replay.settle(&io, &space);
        if let Some(error) = replay.newer_checkpoint(&superblock).or_else(|| replay.damage()) {
            return Err(error);
        }
        let (shared, writer) = assemble(io, options, superblock, space, tree);
        Ok((shared, writer, replay, cut))
    }
}

/// The parts of a map that is being opened, its journal, and the first part of the journal to cut off.
type Opened<D> = (Arc<Shared<D>>, Writer, Replay, Option<u64>);

/// Assembles a map from its components.
pub(crate) fn assemble<D: ZonedDevice>(
    io: Io<D>,
    options: Options,
    superblock: Superblock,
    space: Space,
    tree: Tree,
) -> (Arc<Shared<D>>, Writer) {
    let shared = Shared {
        id: superblock.id,
        io,
        options,
        published: Published::new(tree, superblock.generation),
        clock_hand: Mutex::default(),
        all_resident: AtomicBool::new(superblock.root == 0),
        shrink_from: AtomicU64::new(0),
    };
    (Arc::new(shared), Writer::new(space, Journal::new(&superblock), superblock))
}

/// Whether a device is blank. The space tables are not examined: an interrupted `format` may have written them.
fn is_blank<D: ZonedDevice>(device: &D) -> Result<bool> {
    const EXAMINED_BYTES: u64 = 1 << 20;
    let geometry = device.geometry();
    if geometry.conventional_zones == 0 || !Superblock::candidates(device)?.is_empty() {
        return Ok(false);
    }
    let zones = device.zones()?;
    if zones.iter().skip(geometry.conventional_zones as usize).any(|zone| zone.write_pointer > 0) {
        return Ok(false);
    }
    let block_bytes = u64::from(geometry.block_bytes);
    let node_blocks = (4096 / block_bytes).max(1);
    let superblocks = 0..2;
    let slots = FixedLayout::of(&geometry, node_blocks).blocks;
    let end = (EXAMINED_BYTES / block_bytes).min(geometry.zone_blocks);
    let mut buffer = AlignedBuffer::new(geometry.block_bytes as usize);
    for block in superblocks.chain(slots..end) {
        device.read(Block(block), &mut buffer)?;
        if buffer.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that the device is large enough for a map and its reserve.
fn check_room<D: ZonedDevice>(device: &D, node_bytes: u32) -> Result<()> {
    let geometry = device.geometry();
    let unsuitable = |what: &str| Err(Error::Unsuitable { device: device.name(), what: what.into() });
    if geometry.conventional_zones == 0 {
        return unsuitable("it has no conventional zones; provide them by a second device");
    }
    if geometry.sequential_zones < 6 {
        return unsuitable(
            "it has fewer than 6 sequential zones: the journal takes up to 2, and 2 are kept in reserve",
        );
    }
    if geometry.blocks() >= MAX_U48 {
        return unsuitable("it has too many blocks: block numbers have six bytes");
    }
    check_slots(device, node_bytes)?;
    let node_blocks = u64::from(node_bytes / geometry.block_bytes);
    let fixed = FixedLayout::of(&geometry, node_blocks).blocks;
    if fixed + 4 * node_blocks + 2 > geometry.zone_blocks || slots_of(&geometry, node_blocks, fixed) < 4 {
        return unsuitable("its first conventional zone is too small for the superblocks and four nodes");
    }
    for limit in [geometry.max_open_zones, geometry.max_active_zones] {
        if limit == 1 {
            return unsuitable("it allows only one open zone: data and journal need one each");
        }
    }
    Ok(())
}

/// The first generation of a new map. It is greater than any generation of an older map on the device, whose leftover
/// nodes must not be taken for newer nodes of the new map.
fn first_generation<D: ZonedDevice>(device: &D) -> u64 {
    let published = Superblock::candidates(device).ok().and_then(|mut found| found.pop());
    // An incomplete checkpoint of the old map may have written nodes of its next generation.
    published.map(|superblock| superblock.generation + 2).filter(|first| *first < MAX_U48 / 2).unwrap_or(1)
}

/// The space of an empty device.
pub(crate) fn empty_space<D: ZonedDevice>(io: &Io<D>) -> Result<Space> {
    let places = FixedLayout::of(&io.geometry, io.node_blocks());
    let zones = io.device.zones()?;
    Ok(Space::new(io.device.name(), io.geometry, io.node_blocks(), places.blocks, &zones))
}

impl Writer {
    /// Replays the journal and writes a checkpoint.
    fn recover<D: ZonedDevice>(&mut self, shared: &Shared<D>, replay: Replay) -> Result<()> {
        let start = self.superblock.journal;
        let records = self.replay_batches(shared, replay, true)?;
        // Blocks that neither the tree nor the journal refers to were never durable: release them.
        self.release_waiting(shared)?;
        self.journal.ensure_zone(&shared.io, &mut self.space)?;
        if records > 0 || self.journal.end != start {
            self.begin_checkpoint(shared);
            self.finish_checkpoint(shared)?;
        }
        self.release_waiting(shared)
    }

    /// Applies the batches of the journal to the tree and returns their number. With `collect`, garbage is collected
    /// first if there is no room for the checkpoint that follows: blocks written by a checkpoint that the power cut
    /// interrupted are still occupied.
    pub fn replay_batches<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        replay: Replay,
        collect: bool,
    ) -> Result<u64> {
        let Replay { records, zones, end, safe, .. } = replay;
        claim(&mut self.space, &zones);
        self.journal.zones = zones.iter().copied().collect();
        let first_unsafe = records.iter().position(|record| record.is_from(safe)).unwrap_or(records.len());
        let mut batches: Vec<Batch> = records.into_iter().map(|record| record.batch).collect();
        batches.iter().for_each(|batch| self.claim_extents(shared, batch));
        if collect {
            self.release_waiting(shared)?;
            let mut spare = self.make_room_to_recover(shared, &batches)?;
            for batch in &mut batches[first_unsafe..] {
                *batch = self.write_extents_again(shared, batch, &mut spare)?;
            }
        }
        let count = batches.len() as u64;
        self.apply_again(shared, batches)?;
        self.journal.end = self.after_tail(shared, zones.last().copied(), end)?;
        Ok(count)
    }

    /// Rewrites large values of a batch that may not be durable. After a failed flush, data can be readable from the
    /// page cache although no later flush will write it (fsync(2)). Values that do not fit into the `spare` blocks stay
    /// where they are.
    fn write_extents_again<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        batch: &Batch,
        spare: &mut u64,
    ) -> Result<Batch> {
        let mut again = Batch::new();
        for change in batch.changes() {
            let Value::Extent(extent) = change.value else {
                again.change(change);
                continue;
            };
            let blocks = shared.io.extent_blocks(change.key, extent.bytes);
            let has_room = *spare >= blocks && self.space.empty_zones() > 1;
            match shared.io.read_extent(change.key, extent) {
                Ok(value) if has_room && self.space.can_append(Stream::Extents, blocks) => {
                    *spare -= blocks;
                    again.put_extent(change.key, self.place_extent(shared, change.key, &value)?);
                    self.retired.push(Retired::Extent(extent.block, blocks));
                }
                _ => again.change(change),
            }
        }
        Ok(again)
    }

    fn apply_again<D: ZonedDevice>(&mut self, shared: &Shared<D>, batches: Vec<Batch>) -> Result<()> {
        self.claimed.clear();
        for batch in batches {
            self.change_tree(shared, &batch)?;
            shared.shrink_cache();
        }
        Ok(())
    }

    /// The position at which the journal continues: after all data in its last zone, so that leftovers beyond the end
    /// are never read.
    fn after_tail<D: ZonedDevice>(
        &self,
        shared: &Shared<D>,
        last: Option<u32>,
        end: Position,
    ) -> Result<Position> {
        // A part after the end that belongs to no complete record has a sequence number too: skip such numbers.
        let sequence = end.sequence.wrapping_add(1_000_000);
        let fresh = Position { zone: 0, offset: 0, sequence, ..end };
        let Some(zone) = last else { return Ok(Position { sequence: end.sequence, ..fresh }) };
        let report = shared.io.device.zone(crate::device::ZoneNumber(zone))?;
        if !crate::store::space::allocation::takes_writes(report.condition) || report.room_blocks() == 0 {
            return Ok(fresh);
        }
        if (Position { zone, offset: report.write_pointer, ..end }) == end {
            return Ok(end);
        }
        Ok(Position { zone, offset: report.write_pointer, ..fresh })
    }

    /// Marks the large values of a replayed batch as in use.
    fn claim_extents<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) {
        self.claimed.resize(self.space.zones.len(), 0);
        for (key, extent) in large(batch) {
            let blocks = shared.io.extent_blocks(key, extent.bytes);
            if let Some(zone) = self.space.zone_index(extent.block) {
                self.claimed[zone] += blocks;
            }
            // An invalid address is reported when the value is read.
            self.space.claim_extent(extent.block, blocks);
        }
    }
}
