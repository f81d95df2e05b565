//! Space allocation for the published trees: free blocks of conventional zones, write pointers of sequential zones, and
//! the choice of zones. All node reads and writes are counted here.
//!
//! Source: the paper's zone choice: hot is the sequential zone with the most free blocks, cold the one with the fewest.

use super::counts::{NodeKind, PaperCounts};
use super::fanout::Fanout;
use super::record::{Node, Record};
use longma_zoned::device::{AlignedBuffer, Block, Geometry, ZoneNumber, ZonedDevice};
use longma_zoned::error::{Error, Result};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The class of a node, which selects its sequential zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temperature {
    /// The zone with the most free blocks.
    Hot,
    /// The zone with the fewest free blocks.
    Cold,
}

/// A sequential zone.
#[derive(Clone, Copy, Debug)]
struct Sequential {
    number: ZoneNumber,
    /// Free blocks.
    room: u64,
    /// Blocks that hold live nodes.
    live: u64,
}

/// Where the contents of nodes are stored.
#[derive(Clone)]
pub(super) enum Contents {
    /// In the device's blocks, encoded.
    OnDevice,
    /// In memory. Blocks of the device are read and written, but only for counting and timing.
    InMemory(FxHashMap<Block, Node>),
}

/// The allocation state of a device.
#[derive(Clone)]
pub(super) struct Space<D> {
    pub device: D,
    pub fanout: Fanout,
    pub counts: PaperCounts,
    geometry: Geometry,
    /// Conventional blocks that were used and freed.
    free: Vec<Block>,
    /// The first conventional block that was never used.
    unused: u64,
    zones: Vec<Sequential>,
    contents: Contents,
    buffer: AlignedBuffer,
}

impl<D: ZonedDevice> Space<D> {
    /// Takes over the whole device and resets its sequential zones.
    pub fn new(device: D, fanout: Fanout, contents: Contents) -> Result<Self> {
        let geometry = device.geometry();
        let fanout = fanout.check(device.name())?;
        if geometry.sequential_zones == 0 {
            let what = "it has no sequential zones".into();
            return Err(Error::Unsuitable { device: device.name(), what });
        }
        let mut zones = Vec::new();
        for zone in device.zones()?.into_iter().skip(geometry.conventional_zones as usize) {
            if zone.room_blocks() < zone.capacity_blocks {
                device.reset(zone.number)?;
            }
            zones.push(Sequential { number: zone.number, room: zone.capacity_blocks, live: 0 });
        }
        let buffer = AlignedBuffer::new(geometry.block_bytes as usize);
        let counts = PaperCounts::default();
        let free = Vec::new();
        Ok(Self { device, fanout, counts, geometry, free, unused: 0, zones, contents, buffer })
    }

    pub fn is_conventional(&self, at: Block) -> bool {
        self.geometry.is_conventional(self.geometry.zone_of(at))
    }

    pub fn read<R: Record>(&mut self, kind: NodeKind, at: Block) -> Result<Arc<R>> {
        self.counts.reads.add(kind);
        self.device.read(at, &mut self.buffer)?;
        self.content(at)
    }

    /// Returns a node that the host keeps in memory. The access is not counted as a read.
    pub fn read_cached<R: Record>(&mut self, at: Block) -> Result<Arc<R>> {
        if let Contents::OnDevice = self.contents {
            self.device.read(at, &mut self.buffer)?;
        }
        self.content(at)
    }

    /// Decodes the block that was read last.
    fn content<R: Record>(&self, at: Block) -> Result<Arc<R>> {
        let content = match &self.contents {
            Contents::OnDevice => R::decode(self.fanout, &self.buffer).map(Arc::new),
            Contents::InMemory(nodes) => match nodes.get(&at) {
                Some(node) => R::of(node),
                None => Err("the block was never written".into()),
            },
        };
        content.map_err(|what| Error::Damaged { block: at, what })
    }

    /// Encodes a node for writing, or returns its unencoded form if contents are kept in memory.
    fn encode<R: Record>(&mut self, record: &Arc<R>) -> Option<Node> {
        match self.contents {
            Contents::OnDevice => {
                record.encode(self.fanout, &mut self.buffer);
                None
            }
            Contents::InMemory(_) => Some(R::node(record)),
        }
    }

    fn keep(&mut self, at: Block, node: Option<Node>) {
        if let (Contents::InMemory(nodes), Some(node)) = (&mut self.contents, node) {
            nodes.insert(at, node);
        }
    }

    /// Writes a node to a conventional block.
    pub fn write<R: Record>(&mut self, kind: NodeKind, at: Block, record: &Arc<R>) -> Result<()> {
        let node = self.encode(record);
        self.device.write(at, &self.buffer)?;
        self.keep(at, node);
        self.counts.conventional_writes.add(kind);
        Ok(())
    }

    /// Allocates a conventional block.
    pub fn take(&mut self) -> Result<Block> {
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        if self.unused == u64::from(self.geometry.conventional_zones) * self.geometry.zone_blocks {
            return Err(Error::Full { device: self.device.name(), needed: 1, free: 0, held: 0 });
        }
        self.unused += 1;
        Ok(Block(self.unused - 1))
    }

    /// Appends a node to a sequential zone and returns its address.
    pub fn append<R: Record>(
        &mut self,
        kind: NodeKind,
        warmth: Temperature,
        record: &Arc<R>,
    ) -> Result<Block> {
        let zone = self.choose(warmth)?;
        let node = self.encode(record);
        let at = self.device.append(self.zones[zone].number, &self.buffer)?;
        self.keep(at, node);
        self.zones[zone].room -= 1;
        self.zones[zone].live += 1;
        self.counts.sequential_writes.add(kind);
        Ok(at)
    }

    fn choose(&self, warmth: Temperature) -> Result<usize> {
        let capacity = self.geometry.zone_capacity_blocks;
        let limits = [self.geometry.max_open_zones, self.geometry.max_active_zones];
        let limit = limits.into_iter().filter(|&limit| limit > 0).min().unwrap_or(u32::MAX);
        let partly = || self.zones.iter().filter(|zone| zone.room > 0 && zone.room < capacity).count();
        let may_open = limit == u32::MAX || partly() < limit as usize;
        let usable = |zone: &(usize, &Sequential)| zone.1.room > 0 && (may_open || zone.1.room < capacity);
        let usable = self.zones.iter().enumerate().filter(usable);
        let chosen = match warmth {
            Temperature::Hot => usable.min_by_key(|zone| u64::MAX - zone.1.room),
            Temperature::Cold => usable.min_by_key(|zone| zone.1.room),
        };
        let full = || Error::Full { device: self.device.name(), needed: 1, free: 0, held: 0 };
        chosen.map(|zone| zone.0).ok_or_else(full)
    }

    /// Releases the block of a node.
    pub fn release(&mut self, at: Block) {
        match &mut self.contents {
            Contents::OnDevice => self.device.forget(at, 1),
            Contents::InMemory(nodes) => drop(nodes.remove(&at)),
        }
        if self.is_conventional(at) {
            self.free.push(at);
        } else {
            let zone = self.index(at);
            self.zones[zone].live -= 1;
        }
    }

    fn index(&self, at: Block) -> usize {
        (self.geometry.zone_of(at).0 - self.geometry.conventional_zones) as usize
    }

    /// Free blocks in sequential zones.
    pub fn room(&self) -> u64 {
        self.zones.iter().map(|zone| zone.room).sum()
    }

    /// The zone with the most garbage, if there is any.
    pub fn zone_with_most_garbage(&self) -> Option<ZoneNumber> {
        let capacity = self.geometry.zone_capacity_blocks;
        let garbage = |zone: &Sequential| capacity - zone.room - zone.live;
        let zone_with_most_garbage = self.zones.iter().max_by_key(|zone| garbage(zone))?;
        (garbage(zone_with_most_garbage) > 0).then_some(zone_with_most_garbage.number)
    }

    pub fn is_in(&self, at: Block, zone: ZoneNumber) -> bool {
        self.geometry.zone_of(at) == zone
    }

    /// Resets a zone. Its live nodes must be in memory.
    pub fn reset(&mut self, zone: ZoneNumber) -> Result<()> {
        self.device.reset(zone)?;
        if let Contents::InMemory(nodes) = &mut self.contents {
            nodes.retain(|&at, _| self.geometry.zone_of(at) != zone);
        }
        self.counts.resets += 1;
        let index = (zone.0 - self.geometry.conventional_zones) as usize;
        self.zones[index] = Sequential { number: zone, room: self.geometry.zone_capacity_blocks, live: 0 };
        Ok(())
    }

    /// Blocks of sequential zones written since their last reset, and the total.
    pub fn sequential_used(&self) -> (u64, u64) {
        let all = self.zones.len() as u64 * self.geometry.zone_capacity_blocks;
        (all - self.room(), all)
    }

    /// Conventional blocks in use, and the total.
    pub fn conventional_used(&self) -> (u64, u64) {
        let all = u64::from(self.geometry.conventional_zones) * self.geometry.zone_blocks;
        (self.unused - self.free.len() as u64, all)
    }
}
