//! The superblocks and space tables at the beginning of a map. There are two superblocks, written alternately, so that
//! a power cut during a write leaves the other one intact. Each has two copies, because falling back to the older
//! superblock after a media error would lose data. Each superblock has its own space table.

use crate::device::{AlignedBuffer, Geometry, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{HEADER_BYTES, Header, Kind, checksum};
use crate::store::io::{Io, Traffic};
use crate::store::journal::parts::Position;
use crate::store::space::allocation::slots_of;

/// The on-device format version. Version 2 added the checksums in pointers and the separate headers of journal parts,
/// version 3 longer values in leaves.
const VERSION: u32 = 3;

/// The oldest version that is read. The next superblock converts such a map.
const OLDEST_VERSION: u32 = 2;

/// The root of a complete checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// The generation of the checkpoint.
    pub generation: u64,
    /// The identifier given when the map was formatted.
    pub id: u64,
    pub node_bytes: u32,
    /// The first block of the root; 0 for an empty map.
    pub root: u64,
    /// The expected checksum of the root.
    pub root_checksum: u32,
    /// The expected checksum of the space table.
    pub table_checksum: u32,
    /// The number of keys.
    pub len: u64,
    /// The start of the journal after this checkpoint.
    pub journal: Position,
    /// The generation at formatting. Nodes of earlier generations belong to an older map on the device. 0 if unknown.
    pub first_generation: u64,
    /// The first journal part to be ignored, because a power cut destroyed data that its batch needs. 0 if the whole
    /// journal is valid.
    pub cut: u64,
}

/// The feature bits that this program understands. None are defined.
const FEATURES: u64 = 0;

/// The number of words before the device geometry.
const OWN_WORDS: usize = 13;

/// Reads a copy of a superblock. Returns `None` if it is not intact.
fn copy_at<D: ZonedDevice>(device: &D, block: u64) -> Result<Option<Superblock>> {
    let mut node = AlignedBuffer::new(device.geometry().block_bytes as usize);
    device.read(crate::device::Block(block), &mut node)?;
    let Ok(header) = Header::open(&node, Kind::Superblock, block) else { return Ok(None) };
    Superblock::parse(device, &header, &node).map(Some)
}

/// The addresses of the fixed structures, in blocks.
pub(crate) struct FixedLayout {
    pub superblock: [[u64; 2]; 2],
    pub table: [u64; 2],
    pub table_blocks: u64,
    /// The fixed blocks at the beginning of the first zone. The last two blocks of that zone are fixed too.
    pub blocks: u64,
}

impl FixedLayout {
    pub fn of(geometry: &Geometry, node_blocks: u64) -> Self {
        let superblocks = 2;
        let table_bytes = HEADER_BYTES as u64
            + ZONE_BYTES as u64 * u64::from(geometry.sequential_zones)
            + 8 * slots_of(geometry, node_blocks, 0).div_ceil(64);
        let table_blocks = table_bytes.div_ceil(geometry.block_bytes.into());
        Self {
            // The copies are far apart, because a misdirected write may overwrite many blocks.
            superblock: [[0, geometry.zone_blocks - 2], [1, geometry.zone_blocks - 1]],
            table: [superblocks, superblocks + table_blocks],
            table_blocks,
            blocks: superblocks + 2 * table_blocks,
        }
    }
}

fn fields(geometry: &Geometry) -> [u64; 5] {
    let Geometry {
        block_bytes, zone_blocks, zone_capacity_blocks, conventional_zones, sequential_zones, ..
    } = *geometry;
    [
        block_bytes.into(),
        zone_blocks,
        zone_capacity_blocks,
        conventional_zones.into(),
        sequential_zones.into(),
    ]
}

impl Superblock {
    /// Creates a superblock for a map that has lost its superblocks.
    pub fn fresh(generation: u64, node_bytes: u32) -> Self {
        // The sequence numbers must not collide with those of the lost journal.
        let journal = Position { sequence: 1 << 46, batch: 1, ..Position::default() };
        let (root, root_checksum, table_checksum) = (0, 0, 0);
        let id = generation;
        let (len, first_generation, cut) = (0, 0, 0);
        let generation = generation + 2;
        Self {
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
    }

    /// Writes both copies of the superblock. It is valid after the next flush.
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>) -> Result<()> {
        let places = FixedLayout::of(&io.geometry, io.node_blocks());
        places.superblock[(self.generation % 2) as usize]
            .into_iter()
            .try_for_each(|copy| self.write_copy(io, copy))
    }

    fn write_copy<D: ZonedDevice>(&self, io: &Io<D>, block: u64) -> Result<()> {
        let mut node = AlignedBuffer::new(io.geometry.block_bytes as usize);
        let Position { zone, offset, sequence, batch, chain } = self.journal;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let own: [u64; OWN_WORDS] = [
            self.node_bytes.into(),
            self.id,
            self.root,
            pair(self.root_checksum, self.table_checksum),
            self.len,
            pair(zone, chain),
            offset,
            sequence,
            batch,
            FEATURES,
            self.cut,
            self.first_generation,
            // Reserved for feature bits.
            0,
        ];
        let words: Vec<u64> = own.into_iter().chain(fields(&io.geometry)).collect();
        for (place, word) in node[HEADER_BYTES..].chunks_exact_mut(8).zip(&words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let (bytes, generation) = (8 * words.len() as u32, self.generation);
        let kind = Kind::Superblock;
        Header { kind, block, generation, bytes, word: VERSION, ..Header::default() }.seal(&mut node);
        io.write(Traffic::Superblock, block, &node)
    }

    /// Rewrites each copy that is not intact, because of a power cut, a media error, or a lost or misdirected write.
    /// After that either copy may fail without data loss.
    pub fn complete<D: ZonedDevice>(&self, io: &Io<D>) -> Result<()> {
        let places = FixedLayout::of(&io.geometry, io.node_blocks());
        let mut written = false;
        for block in places.superblock[(self.generation % 2) as usize] {
            let stored = copy_at(&io.device, block).ok().flatten();
            if stored.as_ref() != Some(self) {
                self.write_copy(io, block)?;
                written = true;
            }
        }
        if written {
            io.device.flush()?;
        }
        Ok(())
    }

    /// Permanently cuts the journal before the given part, because later writes may reuse the blocks that its batch
    /// refers to. The cut is committed as a new checkpoint of the same tree.
    pub fn cut_journal<D: ZonedDevice>(&mut self, io: &Io<D>, sequence: u64) -> Result<()> {
        let table = SpaceTable::read(io, self)?;
        self.generation = self.generation.wrapping_add(1);
        self.cut = sequence;
        self.table_checksum = table.write(io, self.generation)?;
        io.device.flush()?;
        self.write(io)?;
        Ok(io.device.flush()?)
    }

    /// Reads the newest superblock of a device.
    ///
    /// # Errors
    /// [`Error::NotFormatted`]; [`Error::Unsuitable`] if it belongs to another device or version; [`Error::Device`].
    pub fn read<D: ZonedDevice>(device: &D) -> Result<Self> {
        let mut found = Self::candidates(device)?;
        found.pop().ok_or_else(|| Error::NotFormatted {
            device: device.name(),
            what: "it has no valid superblock; format it, or repair it if it held a map".into(),
        })
    }

    /// Reads the intact superblocks, the newest last.
    pub fn candidates<D: ZonedDevice>(device: &D) -> Result<Vec<Self>> {
        let geometry = device.geometry();
        if geometry.conventional_zones == 0 {
            let what = "it has no conventional zones; provide them by a second device".into();
            return Err(Error::Unsuitable { device: device.name(), what });
        }
        let mut found = Vec::new();
        for copies in FixedLayout::of(&geometry, 1).superblock {
            let (mut whole, mut failed) = (None, None);
            for block in copies {
                match copy_at(device, block) {
                    // After a lost write the two copies differ. Use the newer one.
                    Ok(Some(copy)) => {
                        whole =
                            whole.filter(|other: &Self| other.generation > copy.generation).or(Some(copy));
                    }
                    Ok(None) => {}
                    Err(Error::Device(error)) => failed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            match (whole, failed) {
                (Some(superblock), _) => found.push(superblock),
                // The unreadable superblock may be the newer one. Falling back to the other would silently lose data.
                (None, Some(error)) => return Err(error.into()),
                (None, None) => {}
            }
        }
        found.sort_by_key(|superblock: &Self| superblock.generation);
        Ok(found)
    }

    fn parse<D: ZonedDevice>(device: &D, header: &Header, node: &[u8]) -> Result<Self> {
        let unsuitable = |what: String| Err(Error::Unsuitable { device: device.name(), what });
        if !(OLDEST_VERSION..=VERSION).contains(&header.word) {
            let (version, which) = (header.word, if header.word < VERSION { "an older" } else { "a newer" });
            return unsuitable(format!(
                "its map has version {version}, written by {which} longma; this longma reads versions {OLDEST_VERSION} to {VERSION}: export the map with \
                 `longma zoned scan --hex` of that version, and import it with `longma zoned load --hex` of this one"
            ));
        }
        let word = |index: usize| {
            let at = HEADER_BYTES + 8 * index;
            u64::from_le_bytes(node[at..at + 8].try_into().expect("eight bytes"))
        };
        let features = word(9) & !FEATURES;
        if features != 0 {
            return unsuitable(format!(
                "its map uses features that this longma does not support ({features:#x}): open it with the newer longma that wrote it"
            ));
        }
        let (stored, expected) =
            ([0, 1, 2, 3, 4].map(|field| word(OWN_WORDS + field)), fields(&device.geometry()));
        if stored != expected {
            let what = format!(
                "its map was created for another device geometry (block bytes, zone blocks, zone capacity, conventional and sequential \
                 zones {stored:?}, but this device has {expected:?})"
            );
            return unsuitable(what);
        }
        let node_bytes = word(0) as u32;
        check_node_bytes(device, node_bytes)?;
        check_slots(device, node_bytes)?;
        Ok(Self {
            generation: header.generation,
            id: word(1),
            node_bytes,
            root: word(2),
            root_checksum: word(3) as u32,
            table_checksum: (word(3) >> 32) as u32,
            len: word(4),
            journal: Position {
                zone: word(5) as u32,
                chain: (word(5) >> 32) as u32,
                offset: word(6),
                sequence: word(7),
                batch: word(8),
            },
            cut: word(10),
            first_generation: word(11),
        })
    }
}

/// Checks the node size against the device.
pub(crate) fn check_node_bytes<D: ZonedDevice>(device: &D, node_bytes: u32) -> Result<()> {
    let block_bytes = device.geometry().block_bytes;
    let fits = (512..=65536).contains(&node_bytes)
        && node_bytes.is_power_of_two()
        && node_bytes.is_multiple_of(block_bytes)
        && u64::from(node_bytes / block_bytes) <= device.geometry().zone_capacity_blocks;
    if fits {
        return Ok(());
    }
    let what = format!(
        "nodes of {node_bytes} bytes: give a power of two from 512 to 65536 that is a multiple of its blocks of {block_bytes}"
    );
    Err(Error::Unsuitable { device: device.name(), what })
}

/// The maximum number of conventional node slots. The allocation bitmap of that many slots takes 256 MiB of memory.
const MAX_SLOTS: u64 = 1 << 31;

/// Checks that the conventional zones have at most [`MAX_SLOTS`] slots.
pub(crate) fn check_slots<D: ZonedDevice>(device: &D, node_bytes: u32) -> Result<()> {
    let geometry = device.geometry();
    let slots = slots_of(&geometry, u64::from(node_bytes / geometry.block_bytes), 0);
    if slots <= MAX_SLOTS {
        return Ok(());
    }
    let what = format!(
        "its conventional zones have room for {slots} nodes of {node_bytes} bytes, but the maximum is {MAX_SLOTS}: give it fewer or smaller \
         conventional zones, or larger nodes"
    );
    Err(Error::Unsuitable { device: device.name(), what })
}

/// The state of a sequential zone after a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZoneEntry {
    /// Live node blocks.
    pub nodes: u32,
    /// Live large-value blocks.
    pub extents: u32,
    /// The number of resets. The kernel does not count them.
    pub resets: u32,
    /// Whether the zone has been written. If it is found empty later, it has been reset once more.
    pub is_written: bool,
}

/// The flag for `is_written`, stored in the word of the reset count.
const IS_WRITTEN: u32 = 1 << 31;

/// The size of a zone entry, bytes.
const ZONE_BYTES: usize = 3 * 4;

/// The blocks in use after a checkpoint.
pub(crate) struct SpaceTable {
    /// One entry for each sequential zone.
    pub zones: Vec<ZoneEntry>,
    /// The allocation bitmap of the conventional slots.
    pub slots: Vec<u64>,
}

impl SpaceTable {
    /// Writes the table and returns its checksum.
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>, generation: u64) -> Result<u32> {
        let places = FixedLayout::of(&io.geometry, io.node_blocks());
        let block = places.table[(generation % 2) as usize];
        let used = self.slots.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        let zone_bytes = ZONE_BYTES * self.zones.len();
        let bytes = zone_bytes + 8 * used;
        let blocks = (HEADER_BYTES + bytes).div_ceil(io.geometry.block_bytes as usize);
        let mut node = AlignedBuffer::new(blocks * io.geometry.block_bytes as usize);
        let (zones, slots) = node[HEADER_BYTES..].split_at_mut(zone_bytes);
        for (place, zone) in zones.chunks_exact_mut(ZONE_BYTES).zip(&self.zones) {
            let resets = zone.resets.min(IS_WRITTEN - 1) | if zone.is_written { IS_WRITTEN } else { 0 };
            for (word, number) in place.chunks_exact_mut(4).zip([zone.nodes, zone.extents, resets]) {
                word.copy_from_slice(&number.to_le_bytes());
            }
        }
        for (place, word) in slots.chunks_exact_mut(8).zip(&self.slots[..used]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let bytes = bytes as u32;
        Header { kind: Kind::SpaceTable, block, generation, bytes, ..Header::default() }.seal(&mut node);
        io.write(Traffic::Superblock, block, &node)?;
        Ok(checksum(&node))
    }

    /// Reads the space table of a superblock.
    pub fn read<D: ZonedDevice>(io: &Io<D>, superblock: &Superblock) -> Result<Self> {
        let places = FixedLayout::of(&io.geometry, io.node_blocks());
        let block = places.table[(superblock.generation % 2) as usize];
        let bytes = (places.table_blocks * u64::from(io.geometry.block_bytes)) as usize;
        let node = io.read(Traffic::Superblock, block, bytes)?;
        let damaged = |what: String| crate::store::io::damaged(block, what);
        let header = Header::open_verified(&node, Kind::SpaceTable, block, superblock.table_checksum)
            .map_err(damaged)?;
        let content = &node[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        let zone_bytes = ZONE_BYTES * io.geometry.sequential_zones as usize;
        let Some((zones, slots)) = content.split_at_checked(zone_bytes) else {
            return Err(damaged("it is too short".into()));
        };
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let zone = |bytes: &[u8]| ZoneEntry {
            nodes: word(&bytes[..4]),
            extents: word(&bytes[4..8]),
            resets: word(&bytes[8..]) & !IS_WRITTEN,
            is_written: word(&bytes[8..]) & IS_WRITTEN != 0,
        };
        let slot = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let zones = zones.chunks_exact(ZONE_BYTES).map(zone).collect();
        Ok(Self { zones, slots: slots.chunks_exact(8).map(slot).collect() })
    }
}
