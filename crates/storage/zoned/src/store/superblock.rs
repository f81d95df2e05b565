//! What a map begins with: two superblocks, written in turn and each twice, and for each a table of which blocks are in use.
//! Not the tree: a superblock says where its root is.
//! Source: two in turn as in many file systems: a cut while one is written leaves the other; twice, as the older
//! one is no substitute for a newer one that the medium lost.

use super::io::{Io, Traffic};
use super::journal::Position;
use super::space::slots_of;
use crate::device::{AlignedBuffer, Geometry, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{HEADER_BYTES, Header, Kind, proof};

/// The version of all that is on the device. 2: what leads to a node has what proves it; parts of the journal have a header of their own.
const VERSION: u32 = 2;

/// What a checkpoint leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// The checkpoint's number.
    pub generation: u64,
    /// Made when the map was formatted.
    pub id: u64,
    pub node_bytes: u32,
    /// The root's first block; 0 for an empty map.
    pub root: u64,
    /// What proves it to be the root.
    pub root_proof: u32,
    /// What proves the space table to be this checkpoint's.
    pub table_proof: u32,
    /// How many keys there are.
    pub len: u64,
    /// Where the journal goes on after this checkpoint.
    pub journal: Position,
    /// The generation that it was formatted with: what is older on the device is another map's. 0 if that is not known.
    pub birth: u64,
    /// From which part on the journal does not count, as a power cut took what its batch needs; 0 if all of it does.
    pub cut: u64,
}

/// What there may be in a map that a program must know to read it: so far nothing.
const FEATURES: u64 = 0;

/// How many words of a superblock come before the device's geometry.
const OWN_WORDS: usize = 13;

/// The superblock that is in a block, if a whole one is.
fn copy_at<D: ZonedDevice>(device: &D, block: u64) -> Result<Option<Superblock>> {
    let mut node = AlignedBuffer::new(device.geometry().block_bytes as usize);
    device.read(crate::device::Block(block), &mut node)?;
    let Ok(header) = Header::open(&node, Kind::Superblock, block) else { return Ok(None) };
    Superblock::parse(device, &header, &node).map(Some)
}

/// Where the fixed parts are, in blocks.
pub(super) struct Places {
    pub superblock: [[u64; 2]; 2],
    pub table: [u64; 2],
    pub table_blocks: u64,
    /// All of the fixed parts at the beginning; the last two blocks of the first zone are fixed, too.
    pub blocks: u64,
}

impl Places {
    pub fn of(geometry: &Geometry, node_blocks: u64) -> Self {
        let superblocks = 2;
        let table_bytes = HEADER_BYTES as u64
            + ZONE_BYTES as u64 * u64::from(geometry.sequential_zones)
            + 8 * slots_of(geometry, node_blocks, 0).div_ceil(64);
        let table_blocks = table_bytes.div_ceil(geometry.block_bytes.into());
        Self {
            // Far apart: a write that goes elsewhere may be of many blocks.
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
    /// A superblock for a map whose superblocks are lost.
    pub fn fresh(generation: u64, node_bytes: u32) -> Self {
        // No journal's numbers may be taken for the lost one's.
        let journal = Position { sequence: 1 << 46, batch: 1, ..Position::default() };
        let (root, root_proof, table_proof) = (0, 0, 0);
        let id = generation;
        let (len, birth, cut) = (0, 0, 0);
        let generation = generation + 2;
        Self { generation, id, node_bytes, root, root_proof, table_proof, len, journal, birth, cut }
    }

    /// Writes both copies of the superblock; it counts after the next flush.
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>) -> Result<()> {
        let places = Places::of(&io.geometry, io.node_blocks());
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
            pair(self.root_proof, self.table_proof),
            self.len,
            pair(zone, chain),
            offset,
            sequence,
            batch,
            FEATURES,
            self.cut,
            self.birth,
            // Where more may be.
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

    /// Writes a copy of this superblock anew, if one is not there: a power cut, the medium, or a write that was lost or went elsewhere has
    /// taken it. From then on the medium may lose either without a loss.
    pub fn complete<D: ZonedDevice>(&self, io: &Io<D>) -> Result<()> {
        let places = Places::of(&io.geometry, io.node_blocks());
        let mut written = false;
        for block in places.superblock[(self.generation % 2) as usize] {
            let there = copy_at(&io.device, block).ok().flatten();
            if there.as_ref() != Some(self) {
                self.write_copy(io, block)?;
                written = true;
            }
        }
        if written {
            io.device.flush()?;
        }
        Ok(())
    }

    /// Makes the journal end before a part, for good: what is written from now on may lie where the batch's large value was to be. That is a
    /// checkpoint of the same tree.
    pub fn cut_journal<D: ZonedDevice>(&mut self, io: &Io<D>, sequence: u64) -> Result<()> {
        let table = SpaceTable::read(io, self)?;
        self.generation = self.generation.wrapping_add(1);
        self.cut = sequence;
        self.table_proof = table.write(io, self.generation)?;
        io.device.flush()?;
        self.write(io)?;
        Ok(io.device.flush()?)
    }

    /// Reads the newest superblock of a device.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`] for another device or version, [`Error::Device`].
    pub fn read<D: ZonedDevice>(device: &D) -> Result<Self> {
        let mut found = Self::candidates(device)?;
        found.pop().ok_or_else(|| Error::NotFormatted {
            device: device.name(),
            what: "neither of its two superblocks is one; format it, or repair it if it held a map".into(),
        })
    }

    /// The superblocks that are whole, the newest last.
    pub fn candidates<D: ZonedDevice>(device: &D) -> Result<Vec<Self>> {
        let geometry = device.geometry();
        if geometry.conventional_zones == 0 {
            let what = "it has no conventional zones; give it a second device that has".into();
            return Err(Error::Unsuitable { device: device.name(), what });
        }
        let mut found = Vec::new();
        for copies in Places::of(&geometry, 1).superblock {
            let (mut whole, mut failed) = (None, None);
            for block in copies {
                match copy_at(device, block) {
                    // A copy that a lost write left as it was is older than the other one.
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
                // It may be the newer one: what came after the other would be lost without a word.
                (None, Some(error)) => return Err(error.into()),
                (None, None) => {}
            }
        }
        found.sort_by_key(|superblock: &Self| superblock.generation);
        Ok(found)
    }

    fn parse<D: ZonedDevice>(device: &D, header: &Header, node: &[u8]) -> Result<Self> {
        let unsuitable = |what: String| Err(Error::Unsuitable { device: device.name(), what });
        if header.word != VERSION {
            let (version, which) = (header.word, if header.word < VERSION { "an older" } else { "a newer" });
            return unsuitable(format!(
                "its map is of version {version}, of {which} longma, and this one reads version {VERSION} only; `longma zoned scan --hex` of \
                 that longma prints what is in it, and `longma zoned load --hex` of this one takes that"
            ));
        }
        let word = |index: usize| {
            let at = HEADER_BYTES + 8 * index;
            u64::from_le_bytes(node[at..at + 8].try_into().expect("eight bytes"))
        };
        let features = word(9) & !FEATURES;
        if features != 0 {
            return unsuitable(format!(
                "its map uses what this longma does not know (features {features:#x}): open it with the newer longma that wrote it"
            ));
        }
        let (there, expected) =
            ([0, 1, 2, 3, 4].map(|field| word(OWN_WORDS + field)), fields(&device.geometry()));
        if there != expected {
            let what = format!(
                "its map was made for a device of another shape (block bytes, zone blocks, zone capacity, conventional and sequential \
                 zones {there:?}, and this one has {expected:?})"
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
            root_proof: word(3) as u32,
            table_proof: (word(3) >> 32) as u32,
            len: word(4),
            journal: Position {
                zone: word(5) as u32,
                chain: (word(5) >> 32) as u32,
                offset: word(6),
                sequence: word(7),
                batch: word(8),
            },
            cut: word(10),
            birth: word(11),
        })
    }
}

/// Whether nodes can have this size on a device.
pub(super) fn check_node_bytes<D: ZonedDevice>(device: &D, node_bytes: u32) -> Result<()> {
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

/// The most nodes that conventional zones may hold: a bit of memory is kept for each, 256 MiB in all.
const MOST_SLOTS: u64 = 1 << 31;

/// Whether the conventional zones have no more nodes than memory is to be kept for.
pub(super) fn check_slots<D: ZonedDevice>(device: &D, node_bytes: u32) -> Result<()> {
    let geometry = device.geometry();
    let slots = slots_of(&geometry, u64::from(node_bytes / geometry.block_bytes), 0);
    if slots <= MOST_SLOTS {
        return Ok(());
    }
    let what = format!(
        "its conventional zones have room for {slots} nodes of {node_bytes} bytes, and {MOST_SLOTS} are the most: give it fewer or smaller \
         conventional zones, or larger nodes"
    );
    Err(Error::Unsuitable { device: device.name(), what })
}

/// What is known of a sequential zone after a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneEntry {
    /// Blocks of nodes in use.
    pub nodes: u32,
    /// Blocks of large values in use.
    pub extents: u32,
    /// How often it was reset: the kernel does not count that.
    pub resets: u32,
    /// Whether anything was written to it. If it is empty later, it was reset once more.
    pub is_written: bool,
}

/// In a table, beside how often a zone was reset.
const IS_WRITTEN: u32 = 1 << 31;

/// The bytes of a zone in a table.
const ZONE_BYTES: usize = 3 * 4;

/// Which blocks are in use after a checkpoint.
pub(super) struct SpaceTable {
    /// Of each sequential zone.
    pub zones: Vec<ZoneEntry>,
    /// One bit for each conventional slot.
    pub slots: Vec<u64>,
}

impl SpaceTable {
    /// Writes it, and says what proves it to be this one.
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>, generation: u64) -> Result<u32> {
        let places = Places::of(&io.geometry, io.node_blocks());
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
        Ok(proof(&node))
    }

    /// Reads the table of a superblock.
    pub fn read<D: ZonedDevice>(io: &Io<D>, superblock: &Superblock) -> Result<Self> {
        let places = Places::of(&io.geometry, io.node_blocks());
        let block = places.table[(superblock.generation % 2) as usize];
        let bytes = (places.table_blocks * u64::from(io.geometry.block_bytes)) as usize;
        let node = io.read(Traffic::Superblock, block, bytes)?;
        let damaged = |what: String| super::io::damaged(block, what);
        let header =
            Header::open_proven(&node, Kind::SpaceTable, block, superblock.table_proof).map_err(damaged)?;
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
