//! What a map begins with: two superblocks, written in turn and each twice, and for each a table of which blocks are in use.
//! Not the tree: a superblock says where its root is.
//! Source: our own; two in turn as in many file systems: a cut while one is written leaves the other; twice, as the older
//! one is no substitute for a newer one that the medium lost.

use super::io::{Io, Traffic};
use super::journal::Position;
use super::space::slots_of;
use crate::device::{AlignedBuffer, Geometry, ZonedDevice};
use crate::error::{Error, Result};
use crate::node::{HEADER_BYTES, Header, Kind};

/// The version of all that is on the device.
const VERSION: u32 = 1;

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
    /// How many keys there are.
    pub len: u64,
    /// Where the journal goes on after this checkpoint.
    pub journal: Position,
}

/// Where the fixed parts are, in blocks.
pub(super) struct Places {
    pub superblock: [[u64; 2]; 2],
    pub table: [u64; 2],
    pub table_blocks: u64,
    /// All of the fixed parts.
    pub blocks: u64,
}

impl Places {
    pub fn of(geometry: &Geometry, node_blocks: u64) -> Self {
        let superblocks = 4;
        let table_bytes = HEADER_BYTES as u64
            + 8 * u64::from(geometry.sequential_zones)
            + 8 * slots_of(geometry, node_blocks, 0).div_ceil(64);
        let table_blocks = table_bytes.div_ceil(geometry.block_bytes.into());
        Self {
            superblock: [[0, 1], [2, 3]],
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
        let journal = Position { zone: 0, offset: 0, sequence: 1 << 48 };
        Self { generation: generation + 2, id: generation, node_bytes, root: 0, len: 0, journal }
    }

    /// Writes the superblock; it counts after the next flush.
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>) -> Result<()> {
        let places = Places::of(&io.geometry, io.node_blocks());
        let mut node = AlignedBuffer::new(io.geometry.block_bytes as usize);
        let Position { zone, offset, sequence } = self.journal;
        let own = [u64::from(self.node_bytes), self.id, self.root, self.len, zone.into(), offset, sequence];
        let words: Vec<u64> = own.into_iter().chain(fields(&io.geometry)).collect();
        for (place, word) in node[HEADER_BYTES..].chunks_exact_mut(8).zip(&words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let (bytes, generation) = (8 * words.len() as u32, self.generation);
        for block in places.superblock[(generation % 2) as usize] {
            let small = [0; 3];
            Header { kind: Kind::Superblock, block, generation, bytes, small, word: VERSION }.seal(&mut node);
            io.write(Traffic::Superblock, block, &node)?;
        }
        Ok(())
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
                let mut node = AlignedBuffer::new(geometry.block_bytes as usize);
                match device.read(crate::device::Block(block), &mut node) {
                    Ok(()) => {
                        if let Ok(header) = Header::open(&node, Kind::Superblock, block) {
                            whole = Some(Self::parse(device, &header, &node)?);
                        }
                    }
                    Err(error) => failed = Some(error),
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
            let version = header.word;
            return unsuitable(format!(
                "its map is of version {version}, and this program reads version {VERSION}"
            ));
        }
        let word = |index: usize| {
            let at = HEADER_BYTES + 8 * index;
            u64::from_le_bytes(node[at..at + 8].try_into().expect("eight bytes"))
        };
        let (there, expected) = ([7, 8, 9, 10, 11].map(word), fields(&device.geometry()));
        if there != expected {
            let what = format!(
                "its map was made for a device of another shape (block bytes, zone blocks, zone capacity, conventional and sequential \
                 zones {there:?}, and this one has {expected:?})"
            );
            return unsuitable(what);
        }
        let node_bytes = word(0) as u32;
        check_node_bytes(device, node_bytes)?;
        Ok(Self {
            generation: header.generation,
            id: word(1),
            node_bytes,
            root: word(2),
            len: word(3),
            journal: Position { zone: word(4) as u32, offset: word(5), sequence: word(6) },
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

/// Which blocks are in use after a checkpoint.
pub(super) struct SpaceTable {
    /// For each sequential zone, blocks of nodes and of large values.
    pub live: Vec<(u32, u32)>,
    /// One bit for each conventional slot.
    pub slots: Vec<u64>,
}

impl SpaceTable {
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>, generation: u64) -> Result<()> {
        let places = Places::of(&io.geometry, io.node_blocks());
        let block = places.table[(generation % 2) as usize];
        let used = self.slots.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        let bytes = 8 * (self.live.len() + used);
        let blocks = (HEADER_BYTES + bytes).div_ceil(io.geometry.block_bytes as usize);
        let mut node = AlignedBuffer::new(blocks * io.geometry.block_bytes as usize);
        let live = self.live.iter().map(|&(nodes, extents)| u64::from(nodes) | u64::from(extents) << 32);
        let words = live.chain(self.slots[..used].iter().copied());
        for (place, word) in node[HEADER_BYTES..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let bytes = bytes as u32;
        Header { kind: Kind::SpaceTable, block, generation, bytes, small: [0; 3], word: 0 }.seal(&mut node);
        io.write(Traffic::Superblock, block, &node)
    }

    pub fn read<D: ZonedDevice>(io: &Io<D>, generation: u64) -> Result<Self> {
        let places = Places::of(&io.geometry, io.node_blocks());
        let block = places.table[(generation % 2) as usize];
        let bytes = (places.table_blocks * u64::from(io.geometry.block_bytes)) as usize;
        let node = io.read(Traffic::Superblock, block, bytes)?;
        let damaged = |what: String| super::io::damaged(block, what);
        let header = Header::open(&node, Kind::SpaceTable, block).map_err(damaged)?;
        if header.generation != generation {
            return Err(damaged(format!("it is of checkpoint {}, not {generation}", header.generation)));
        }
        let words = node[HEADER_BYTES..HEADER_BYTES + header.bytes as usize].chunks_exact(8);
        let words: Vec<u64> =
            words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        let zones = io.geometry.sequential_zones as usize;
        if words.len() < zones {
            return Err(damaged("it is too short".into()));
        }
        let live = words[..zones].iter().map(|&word| (word as u32, (word >> 32) as u32)).collect();
        Ok(Self { live, slots: words[zones..].to_vec() })
    }
}
