//! The first bytes of every node, journal record and superblock: what it is, where it belongs, and its checksum.
//! Not what follows them.
//! Source: CRC-32C, RFC 3720 appendix B.4.

/// How long a header is, bytes.
pub const HEADER_BYTES: usize = 40;

/// The first four bytes of everything that the map writes.
const MAGIC: u32 = 0x5A42_2B31;

/// What follows the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A leaf, or a leaf's log: their layouts are the same.
    #[default]
    Leaf = 1,
    /// A head or an interior node.
    Inner = 2,
    /// A part of a journal record.
    Journal = 3,
    /// What the map begins with.
    Superblock = 4,
    /// Which blocks are in use.
    SpaceTable = 5,
    /// A large value.
    Extent = 6,
}

/// The most that a block's number and a generation may be: they take six bytes each.
pub const LARGEST: u64 = (1 << 48) - 1;

/// What a header says. The two last fields are the kind's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The block it was written to: a node read from elsewhere is a wrong one. At most [`LARGEST`].
    pub block: u64,
    /// The checkpoint that wrote it; of a part of the journal its sequence number. At most [`LARGEST`].
    pub generation: u64,
    /// The proof of what this goes on from: of a leaf's log the leaf, of a part of the journal the part before it.
    pub base: u32,
    /// How many bytes after the header are checked.
    pub bytes: u32,
    /// The kind's own.
    pub small: [u16; 3],
    /// The kind's own.
    pub word: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A number of six bytes, as they hold numbers of blocks.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number[..6].copy_from_slice(&bytes[at..at + 6]);
    u64::from_le_bytes(number)
}

/// The same the other way around.
pub(super) const fn six_bytes(number: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = number.to_le_bytes();
    [a, b, c, d, e, f]
}

/// What proves a sealed node to be the one that is meant: whoever leads to it keeps this. It is the checksum that its header has, so that it
/// covers the node's content, its place and its generation.
pub fn proof(node: &[u8]) -> u32 {
    word(node, 4)
}

impl Header {
    /// Writes the header to the front of `node`, with the checksum over the rest of it and `bytes` bytes that follow.
    pub fn seal(&self, node: &mut [u8]) {
        self.write(node);
        let sum = crc32c::crc32c(&node[8..HEADER_BYTES + self.bytes as usize]);
        node[4..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Writes the header to the front of `node`, all but the checksum.
    pub(crate) fn write(&self, node: &mut [u8]) {
        node[..4].copy_from_slice(&MAGIC.to_le_bytes());
        node[8] = self.kind as u8;
        // How what follows is encoded: so far as it is.
        node[9] = 0;
        for (index, small) in self.small.iter().enumerate() {
            node[10 + 2 * index..12 + 2 * index].copy_from_slice(&small.to_le_bytes());
        }
        node[16..22].copy_from_slice(&six_bytes(self.block));
        node[22..28].copy_from_slice(&six_bytes(self.generation));
        node[28..32].copy_from_slice(&self.base.to_le_bytes());
        node[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        node[36..40].copy_from_slice(&self.word.to_le_bytes());
    }

    /// Reads and checks the header at the front of `node`, what follows included.
    ///
    /// # Errors
    /// What is wrong, as a sentence's end.
    pub fn open(node: &[u8], kind: Kind, block: u64) -> Result<Header, String> {
        let header = Self::peek(node, kind)?;
        let end = HEADER_BYTES + header.bytes as usize;
        if end > node.len() {
            return Err(format!("it says that it has {} bytes, more than there are", header.bytes));
        }
        if word(node, 4) != crc32c::crc32c(&node[8..end]) {
            return Err("its checksum does not match".into());
        }
        if header.block != block {
            return Err(format!("it belongs to block {}", header.block));
        }
        Ok(header)
    }

    /// The same for a node that something leads to which has its proof: an older node that is whole is not enough.
    ///
    /// # Errors
    /// What is wrong, as a sentence's end.
    pub fn open_proven(node: &[u8], kind: Kind, block: u64, proven: u32) -> Result<Header, String> {
        let header = Self::open(node, kind, block)?;
        if proof(node) != proven {
            return Err(format!(
                "it is whole, but not what was written there last: it is of checkpoint {}, and a write since was lost or went elsewhere",
                header.generation
            ));
        }
        Ok(header)
    }

    /// Reads the header at the front of `node`, without the checksum: for finding out how long it is.
    ///
    /// # Errors
    /// What is wrong, as a sentence's end.
    pub fn peek(node: &[u8], kind: Kind) -> Result<Header, String> {
        if node.len() < HEADER_BYTES || word(node, 0) != MAGIC {
            return Err("nothing of this map was written there".into());
        }
        if node[8] != kind as u8 {
            return Err(format!("something else (kind {}) was written there", node[8]));
        }
        if node[9] != 0 {
            return Err(format!(
                "it is encoded in a way (number {}) that this program does not know",
                node[9]
            ));
        }
        let small = [10, 12, 14].map(|at| u16::from_le_bytes([node[at], node[at + 1]]));
        Ok(Header {
            kind,
            block: long(node, 16),
            generation: long(node, 22),
            base: word(node, 28),
            bytes: word(node, 32),
            small,
            word: word(node, 36),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let header = Header {
            kind: Kind::Leaf,
            block: 77,
            generation: 5,
            base: 8,
            bytes: 60,
            small: [1, 2, 3],
            word: 9,
        };
        let mut node = vec![0x5A; 128];
        header.seal(&mut node);
        assert_eq!(Header::open(&node, Kind::Leaf, 77), Ok(header));
        assert!(
            Header::open(&node, Kind::Inner, 77).is_err() && Header::open(&node, Kind::Leaf, 78).is_err()
        );
        for bit in 0..(HEADER_BYTES + 60) * 8 {
            node[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::open(&node, Kind::Leaf, 77).is_err(), "bit {bit}");
            node[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn an_older_node_that_is_whole_is_not_the_one_that_is_meant() {
        let older = Header { block: LARGEST, generation: 6, bytes: 60, ..Header::default() };
        let newer = Header { generation: LARGEST, ..older };
        let (mut there, mut meant) = (vec![0x5A; 128], vec![0x5A; 128]);
        older.seal(&mut there);
        newer.seal(&mut meant);
        assert_eq!(Header::open_proven(&meant, Kind::Leaf, LARGEST, proof(&meant)), Ok(newer));
        assert_eq!(Header::open(&there, Kind::Leaf, LARGEST), Ok(older));
        let refused = Header::open_proven(&there, Kind::Leaf, LARGEST, proof(&meant)).unwrap_err();
        assert!(refused.contains("checkpoint 6"), "{refused}");
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    }
}
