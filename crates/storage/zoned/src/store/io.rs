//! Node I/O with traffic counts by kind, and the number of bytes of nodes in memory.

use crate::device::{AlignedBuffer, Block, Geometry, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{Extent, HEADER_BYTES, Header, InnerRecord, Kind, Page};
use crate::store::tree::changes::ChangedPart;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The type of data read from or written to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Leaves.
    Leaf,
    /// Logs of leaves.
    Log,
    /// Heads: levels 1, 3, and so on.
    Head,
    /// Interior nodes: levels 2, 4, and so on.
    Interior,
    /// Large values.
    Extent,
    /// The journal.
    Journal,
    /// Superblocks and space tables.
    Superblock,
}

impl Traffic {
    /// All kinds, in order.
    pub const ALL: [Traffic; 7] =
        [Self::Leaf, Self::Log, Self::Head, Self::Interior, Self::Extent, Self::Journal, Self::Superblock];

    pub(crate) const fn of_level(level: u16) -> Self {
        if level % 2 == 1 { Self::Head } else { Self::Interior }
    }
}

/// Blocks read and written since the map was opened, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficCounts {
    /// Blocks read, in the order of [`Traffic::ALL`].
    pub read: [u64; Traffic::ALL.len()],
    /// Blocks written to conventional zones.
    pub written_in_place: [u64; Traffic::ALL.len()],
    /// Blocks appended to sequential zones.
    pub appended: [u64; Traffic::ALL.len()],
}

impl TrafficCounts {
    /// All blocks written.
    pub fn written(&self) -> u64 {
        self.written_in_place.iter().chain(&self.appended).sum()
    }
}

#[derive(Default)]
struct Counters {
    read: [AtomicU64; Traffic::ALL.len()],
    written_in_place: [AtomicU64; Traffic::ALL.len()],
    appended: [AtomicU64; Traffic::ALL.len()],
}

/// A number of bytes of leaves or inner nodes in memory. It is subtracted from the total when released or dropped.
pub(crate) struct Resident {
    all: Arc<AtomicU64>,
    bytes: AtomicU64,
}

impl Resident {
    fn new(all: Arc<AtomicU64>, bytes: u64) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { all, bytes: AtomicU64::new(bytes) }
    }

    /// Subtracts the bytes from the total.
    pub fn release(&self) {
        self.all.fetch_sub(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes the number of bytes.
    pub fn change(&mut self, bytes: usize) {
        *self = Self::new(Arc::clone(&self.all), bytes as u64);
    }
}

impl Clone for Resident {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.all), self.bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.release();
    }
}

/// The device, its geometry and counters, shared by the readers and the writer.
pub(crate) struct Io<D> {
    pub device: D,
    pub geometry: Geometry,
    pub node_bytes: usize,
    /// The number of attempts to read a block.
    attempts: u32,
    /// Bytes of leaves in memory.
    resident: Arc<AtomicU64>,
    /// Bytes of inner nodes in memory.
    resident_inner: Arc<AtomicU64>,
    /// The number of inner nodes in memory.
    inner_nodes: Arc<AtomicU64>,
    leaves_remade: AtomicU64,
    logs_remade: AtomicU64,
    counters: Counters,
}

impl<D: ZonedDevice> Io<D> {
    pub fn new(device: D, node_bytes: usize) -> Self {
        let geometry = device.geometry();
        Self {
            device,
            geometry,
            node_bytes,
            attempts: 1,
            resident: Arc::default(),
            resident_inner: Arc::default(),
            inner_nodes: Arc::default(),
            leaves_remade: AtomicU64::default(),
            logs_remade: AtomicU64::default(),
            counters: Counters::default(),
        }
    }

    /// Retries failed reads. Repair uses this, because it discards whatever it cannot read.
    pub fn with_retries(self) -> Self {
        Self { attempts: 3, ..self }
    }

    pub fn node_blocks(&self) -> u64 {
        self.node_bytes as u64 / u64::from(self.geometry.block_bytes)
    }

    /// Counts `pages` pages as resident.
    pub fn resident(&self, pages: usize) -> Resident {
        Resident::new(Arc::clone(&self.resident), (pages * self.node_bytes) as u64)
    }

    /// Counts one more inner node in memory. Returns the accounts of the node's bytes, at first 0, and of the node
    /// itself.
    pub fn resident_inner(&self) -> (Resident, Resident) {
        (Resident::new(Arc::clone(&self.resident_inner), 0), Resident::new(Arc::clone(&self.inner_nodes), 1))
    }

    /// The bytes of leaves and inner nodes in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed) + self.inner_bytes()
    }

    /// The bytes of inner nodes in memory.
    pub fn inner_bytes(&self) -> u64 {
        self.resident_inner.load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> TrafficCounts {
        let all = |counters: &[AtomicU64; Traffic::ALL.len()]| {
            std::array::from_fn(|kind| counters[kind].load(Ordering::Relaxed))
        };
        TrafficCounts {
            read: all(&self.counters.read),
            written_in_place: all(&self.counters.written_in_place),
            appended: all(&self.counters.appended),
        }
    }

    /// Reads `bytes` bytes, rounded up to whole blocks.
    pub fn read(&self, traffic: Traffic, block: u64, bytes: usize) -> Result<AlignedBuffer> {
        let blocks = bytes.div_ceil(self.geometry.block_bytes as usize);
        let mut buffer = AlignedBuffer::new(blocks * self.geometry.block_bytes as usize);
        self.read_to(traffic, block, &mut buffer)?;
        Ok(buffer)
    }

    /// Reads blocks until the buffer is full.
    pub fn read_to(&self, traffic: Traffic, block: u64, buffer: &mut [u8]) -> Result<()> {
        let mut attempts = 1;
        while let Err(error) = self.device.read(Block(block), buffer) {
            if attempts == self.attempts {
                return Err(error.into());
            }
            attempts += 1;
        }
        let blocks = buffer.len() as u64 / u64::from(self.geometry.block_bytes);
        self.counters.read[traffic as usize].fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    /// Writes whole blocks.
    pub fn write(&self, traffic: Traffic, block: u64, data: &[u8]) -> Result<()> {
        self.device.write(Block(block), data)?;
        self.count_written(traffic, block, data.len());
        Ok(())
    }

    pub fn count_written(&self, traffic: Traffic, block: u64, bytes: usize) {
        let in_place = self.geometry.is_conventional(self.geometry.zone_of(Block(block)));
        let counters = if in_place { &self.counters.written_in_place } else { &self.counters.appended };
        let blocks = bytes as u64 / u64::from(self.geometry.block_bytes);
        counters[traffic as usize].fetch_add(blocks, Ordering::Relaxed);
    }

    /// Reads a leaf page and verifies it against the checksum in its parent.
    pub fn read_page(&self, block: u64, checksum: u32) -> Result<Page> {
        let node = self.read(Traffic::Leaf, block, self.node_bytes)?;
        let read = Page::decode_verified(&node, block, checksum);
        read.map(|(page, _)| page).map_err(|what| damaged(block, what))
    }

    /// Reads a leaf's log and verifies it. Also returns the checksum of the leaf, which is stored in the log.
    pub fn read_log(&self, block: u64, checksum: u32) -> Result<(Page, u32)> {
        let node = self.read(Traffic::Log, block, self.node_bytes)?;
        Page::decode_verified(&node, block, checksum).map_err(|what| damaged(block, what))
    }

    /// Reads a head or an interior node and verifies it.
    pub fn read_inner(&self, block: u64, checksum: u32) -> Result<InnerRecord> {
        let node = self.read(Traffic::Interior, block, self.node_bytes)?;
        InnerRecord::decode_verified(&node, block, checksum).map_err(|what| damaged(block, what))
    }

    /// Counts a leaf that was rebuilt from its base and its changes.
    pub fn count_rebuilt(&self, part: ChangedPart) {
        let counter = match part {
            ChangedPart::Leaf => &self.leaves_remade,
            ChangedPart::Log => &self.logs_remade,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers of rebuilt leaf pages and rebuilt logs.
    pub fn rebuilt(&self) -> (u64, u64) {
        (self.leaves_remade.load(Ordering::Relaxed), self.logs_remade.load(Ordering::Relaxed))
    }

    /// Fails if more inner nodes are in memory than the device can hold. In that case, several nodes point to the same
    /// child, and a traversal could visit far more nodes than the device has.
    pub fn has_room_for_inner(&self, block: u64) -> Result<()> {
        self.has_room_for(self.inner_nodes.load(Ordering::Relaxed), block)
    }

    /// Like [`has_room_for_inner`](Self::has_room_for_inner), for the leaves that a scan has read.
    pub fn has_room_for_leaves(&self, leaves: u64) -> Result<()> {
        self.has_room_for(leaves, 0)
    }

    fn has_room_for(&self, nodes: u64, block: u64) -> Result<()> {
        if nodes < self.geometry.blocks() / self.node_blocks() {
            return Ok(());
        }
        let what = "the tree has more nodes than fit on the device, so some are in it more than once";
        Err(damaged(block, what.into()))
    }

    /// The number of blocks of a large value: header, key and value.
    pub fn extent_blocks(&self, key: &[u8], bytes: u32) -> u64 {
        (HEADER_BYTES + key.len() + bytes as usize).div_ceil(self.geometry.block_bytes as usize) as u64
    }

    /// Reads a large value.
    pub fn read_extent(&self, key: &[u8], extent: Extent) -> Result<Vec<u8>> {
        let bytes = HEADER_BYTES + key.len() + extent.bytes as usize;
        if self.extent_blocks(key, extent.bytes) > self.geometry.zone_capacity_blocks {
            return Err(damaged(extent.block, "its length exceeds a zone".into()));
        }
        let buffer = self.read(Traffic::Extent, extent.block, bytes)?;
        let header = Header::open_verified(&buffer, Kind::Extent, extent.block, extent.checksum)
            .map_err(|what| damaged(extent.block, what))?;
        let key_end = HEADER_BYTES + usize::from(header.small[0]);
        if header.bytes as usize + HEADER_BYTES != bytes || buffer.get(HEADER_BYTES..key_end) != Some(key) {
            return Err(damaged(extent.block, "it holds another key's value".into()));
        }
        Ok(buffer[key_end..bytes].to_vec())
    }

    /// Encodes a large value for writing.
    pub fn encode_extent(&self, key: &[u8], value: &[u8], block: u64) -> AlignedBuffer {
        let blocks = self.extent_blocks(key, value.len() as u32) as usize;
        let mut buffer = AlignedBuffer::new(blocks * self.geometry.block_bytes as usize);
        let value_at = HEADER_BYTES + key.len();
        buffer[HEADER_BYTES..value_at].copy_from_slice(key);
        buffer[value_at..value_at + value.len()].copy_from_slice(value);
        let bytes = (key.len() + value.len()) as u32;
        let small = [key.len() as u16, 0, 0];
        Header { kind: Kind::Extent, block, bytes, small, ..Header::default() }.seal(&mut buffer);
        buffer
    }
}

pub(crate) fn damaged(block: u64, what: String) -> Error {
    Error::Damaged { block: Block(block), what }
}
