//! Formatting, opening and what a power cut makes necessary at opening: the journal's changes are done again.
//! Not repair of what a medium lost: see `check` and `repair`.
//! Source: our own.

use super::batch::Batch;
use super::io::Io;
use super::journal::{Journal, Position, claim, replay};
use super::snapshot::Published;
use super::space::{Space, slots_of};
use super::superblock::{Places, SpaceTable, Superblock, check_node_bytes};
use super::tree::{InnerSlot, Tree};
use super::writer::Writer;
use super::{Options, Shared, Store};
use crate::device::{AlignedBuffer, Block, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::Value;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

/// What a device's superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Made when the map was formatted: tells maps apart.
    pub id: u64,
    /// The size of nodes, bytes.
    pub node_bytes: u32,
    /// The last checkpoint's number.
    pub generation: u64,
    /// Keys at the last checkpoint.
    pub keys: u64,
}

impl<D: ZonedDevice> Store<D> {
    /// Makes an empty map on a device: everything on it is lost. `node_bytes` is the size of nodes, a power of two from 512 to 65536
    /// that is a multiple of the device's blocks; `None` takes 4096 or a block, whichever is larger. `id` tells this map from others. Gives the
    /// device back.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the device is too small or has no conventional zones; [`Error::Device`].
    pub fn format(device: D, node_bytes: Option<u32>, id: u64) -> Result<D> {
        let geometry = device.geometry();
        let node_bytes = node_bytes.unwrap_or(4096.max(geometry.block_bytes));
        check_node_bytes(&device, node_bytes)?;
        check_room(&device, node_bytes)?;
        let places = Places::of(&geometry, 1);
        let zeros = AlignedBuffer::new(geometry.block_bytes as usize);
        // No older superblock may be taken for this map's.
        for block in places.superblock.into_iter().flatten() {
            device.write(Block(block), &zeros)?;
        }
        device.flush()?;
        let mut journal = Position { zone: 0, offset: 0, sequence: 1 };
        for zone in device.zones()?.into_iter().skip(geometry.conventional_zones as usize) {
            if !super::space::takes_writes(zone.condition) {
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
        let zones = geometry.sequential_zones as usize;
        SpaceTable { live: vec![(0, 0); zones], slots: Vec::new() }.write(&io, 1)?;
        io.device.flush()?;
        Superblock { generation: 1, id, node_bytes, root: 0, len: 0, journal }.write(&io)?;
        io.device.flush()?;
        Ok(io.device)
    }

    /// What the device's superblock says.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`], [`Error::Device`].
    pub fn info(device: &D) -> Result<Info> {
        let Superblock { id, node_bytes, generation, len, .. } = Superblock::read(device)?;
        Ok(Info { id, node_bytes, generation, keys: len })
    }

    /// Opens the map on a device. All that was safe is there; what was not is there or not, batch by batch, in order.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`] for another device, [`Error::Damaged`], [`Error::Device`].
    pub fn open(device: D, options: Options) -> Result<Self> {
        let superblock = Superblock::read(&device)?;
        let io = Io::new(device, superblock.node_bytes as usize);
        let mut space = empty_space(&io)?;
        let table = SpaceTable::read(&io, superblock.generation)?;
        space.restore(&table.live, &table.slots);
        let tree = match superblock.root {
            0 => Tree::empty(&io),
            root => Tree { root: InnerSlot::root_on_device(root), len: superblock.len },
        };
        tree.root.inner(&io)?;
        let shared = assemble(io, options, superblock, space, tree);
        super::lock(&shared.writer).recover(&shared)?;
        Ok(Self { shared })
    }
}

/// A map of these parts.
pub(super) fn assemble<D: ZonedDevice>(
    io: Io<D>,
    options: Options,
    superblock: Superblock,
    space: Space,
    tree: Tree,
) -> Arc<Shared<D>> {
    let published = Published { tree, epoch: superblock.generation, pins: BTreeMap::new() };
    Arc::new(Shared {
        io,
        options,
        published: Mutex::new(published),
        writer: Mutex::new(Writer::new(space, Journal::new(superblock.journal), superblock)),
        hand: Mutex::default(),
        all_resident: AtomicBool::new(superblock.root == 0),
        shrink_from: AtomicU64::new(0),
    })
}

/// Whether a map and what it must have in reserve fit on a device.
fn check_room<D: ZonedDevice>(device: &D, node_bytes: u32) -> Result<()> {
    let geometry = device.geometry();
    let unsuitable = |what: &str| Err(Error::Unsuitable { device: device.name(), what: what.into() });
    if geometry.conventional_zones == 0 {
        return unsuitable("it has no conventional zones; give it a second device that has");
    }
    if geometry.sequential_zones < 6 {
        return unsuitable(
            "it has fewer than 6 sequential zones: the journal takes up to 2, and 2 are kept in reserve",
        );
    }
    let node_blocks = u64::from(node_bytes / geometry.block_bytes);
    let fixed = Places::of(&geometry, node_blocks).blocks;
    if fixed + 4 * node_blocks > geometry.zone_blocks || slots_of(&geometry, node_blocks, fixed) < 4 {
        return unsuitable("its first conventional zone is too small for the superblocks and four nodes");
    }
    for limit in [geometry.max_open_zones, geometry.max_active_zones] {
        if limit == 1 {
            return unsuitable("it allows one open zone only: data and journal take one each");
        }
    }
    Ok(())
}

/// The space of a device with nothing in use.
pub(super) fn empty_space<D: ZonedDevice>(io: &Io<D>) -> Result<Space> {
    let places = Places::of(&io.geometry, io.node_blocks());
    let zones = io.device.zones()?;
    Ok(Space::new(io.device.name(), io.geometry, io.node_blocks(), places.blocks, &zones))
}

impl Writer {
    /// Does the journal's changes again, and makes a checkpoint of them.
    fn recover<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        let start = self.superblock.journal;
        let records = self.replay_journal(shared, true, true)?;
        // What no tree and no journal leads to was never safe.
        self.release_waiting(shared)?;
        self.journal.ensure_zone(&shared.io, &mut self.space)?;
        if records > 0 || self.journal.end != start {
            self.begin_checkpoint(shared);
            self.finish_checkpoint(shared)?;
        }
        self.release_waiting(shared)
    }

    /// Applies the journal's records to the tree, says how many they are, and finds where it goes on. Without `really` there is no
    /// journal to read. With `collect` garbage is collected first if the checkpoint that must follow would have no room: what a
    /// checkpoint had written when the power was cut takes room until then.
    pub fn replay_journal<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        really: bool,
        collect: bool,
    ) -> Result<u64> {
        let start = if really { self.superblock.journal } else { Position::default() };
        let mut batches = Vec::new();
        let read = replay(&shared.io, start, |record| {
            let Ok(batch) = Batch::from_bytes(record) else { return Ok(false) };
            let is_whole = self.claim_extents(shared, &batch);
            if is_whole {
                batches.push(batch);
            }
            Ok(is_whole)
        });
        let replayed = match read {
            // A repair keeps what came before.
            Err(error) if !collect => {
                self.apply_again(shared, &batches)?;
                return Err(error);
            }
            read => read?,
        };
        claim(&mut self.space, &replayed.zones);
        self.journal.zones = replayed.zones.iter().copied().collect();
        if collect {
            self.release_waiting(shared)?;
            self.make_room_to_recover(shared, &batches)?;
        }
        self.apply_again(shared, &batches)?;
        self.journal.end = self.after_tail(shared, replayed.zones.last().copied(), replayed.end)?;
        Ok(replayed.records)
    }

    fn apply_again<D: ZonedDevice>(&mut self, shared: &Shared<D>, batches: &[Batch]) -> Result<()> {
        self.claimed.clear();
        batches.iter().try_for_each(|batch| self.change_tree(shared, batch).map(|_| ()))
    }

    /// Where the journal goes on: behind all that was written to its last zone, as what is there after the end must not be read again.
    fn after_tail<D: ZonedDevice>(
        &self,
        shared: &Shared<D>,
        last: Option<u32>,
        end: Position,
    ) -> Result<Position> {
        // A part that is there but belongs to no complete record has a number too.
        let sequence = end.sequence.wrapping_add(1_000_000);
        let fresh = Position { zone: 0, offset: 0, sequence };
        let Some(zone) = last else { return Ok(Position { sequence: end.sequence, ..fresh }) };
        let report = shared.io.device.zone(crate::device::ZoneNumber(zone))?;
        if !super::space::takes_writes(report.condition) || report.room_blocks() == 0 {
            return Ok(fresh);
        }
        if (Position { zone, offset: report.write_pointer, sequence: end.sequence }) == end {
            return Ok(end);
        }
        Ok(Position { zone, offset: report.write_pointer, sequence })
    }

    /// The large values of a batch that is done again are in use; false if one is not there, and then the batch never was safe.
    fn claim_extents<D: ZonedDevice>(&mut self, shared: &Shared<D>, batch: &Batch) -> bool {
        let extents = || {
            batch.changes().filter_map(|change| match change.value {
                Value::Extent(extent) => Some((change.key, extent)),
                _ => None,
            })
        };
        if extents().any(|(key, extent)| shared.io.read_extent(key, extent).is_err()) {
            return false;
        }
        self.claimed.resize(self.space.zones.len(), 0);
        extents().all(|(key, extent)| {
            let blocks = shared.io.extent_blocks(key, extent.bytes);
            if let Some(zone) = self.space.zone_index(extent.block) {
                self.claimed[zone] += blocks;
            }
            self.space.claim_extent(extent.block, blocks)
        })
    }
}
