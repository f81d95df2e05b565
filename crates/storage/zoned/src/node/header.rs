//! The common header of nodes, journal parts, superblocks, space tables and large values: type, address and checksum.
//!
//! Source of the checksum: CRC-32C, RFC 3720 appendix B.4.

/// The size of a header, bytes.
pub const HEADER_BYTES: usize = 40;

/// The magic number at the beginning of every header.
const MAGIC: u32 = 0x5A42_2B31;

/// The type of the data after the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A leaf or a leaf's log, which have the same layout.
    #[default]
    Leaf = 1,
    /// A head or an interior node.
    Inner = 2,
    /// A part of a journal record.
    Journal = 3,
    /// A superblock.
    Superblock = 4,
    /// A space table.
    SpaceTable = 5,
    /// A large value.
    Extent = 6,
}

/// The maximum of block numbers and generations, which are stored in six bytes.
pub const MAX_U48: u64 = (1 << 48) - 1;

/// A decoded header. The meaning of the last two fields depends on the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The type of the data that follows.
    pub kind: Kind,
    /// The block that the node was written to, which detects misdirected reads and writes. At most [`MAX_U48`].
    pub block: u64,
    /// The generation of the checkpoint that wrote the node, or the sequence number of a journal part. At most
    /// [`MAX_U48`].
    pub generation: u64,
    /// The checksum of the predecessor: of the leaf for a log, of the previous part for a journal part.
    pub base: u32,
    /// The number of bytes after the header that the checksum covers.
    pub bytes: u32,
    /// Depends on the kind.
    pub small: [u16; 3],
    /// Depends on the kind.
    pub word: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a six-byte integer, the encoding of block numbers.
pub(super) fn read_u48(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number[..6].copy_from_slice(&bytes[at..at + 6]);
    u64::from_le_bytes(number)
}

/// Encodes a six-byte integer.
pub(super) const fn u48_bytes(number: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = number.to_le_bytes();
    [a, b, c, d, e, f]
}

/// The checksum in the header of a sealed node. It covers the contents, the address and the generation, so it
/// identifies the node; pointers to a node store it.
pub fn checksum(node: &[u8]) -> u32 {
    word(node, 4)
}

impl Header {
    /// Writes the header to the front of `node`. The checksum covers the rest of the header and the `bytes` bytes after
    /// it.
    pub fn seal(&self, node: &mut [u8]) {
        self.write(node);
        let sum = crc32c::crc32c(&node[8..HEADER_BYTES + self.bytes as usize]);
        node[4..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Writes the header without the checksum.
    pub(crate) fn write(&self, node: &mut [u8]) {
        node[..4].copy_from_slice(&MAGIC.to_le_bytes());
        node[8] = self.kind as u8;
        // The encoding of the data that follows. 0, for unencoded, is the only value.
        node[9] = 0;
        for (index, small) in self.small.iter().enumerate() {
            node[10 + 2 * index..12 + 2 * index].copy_from_slice(&small.to_le_bytes());
        }
        node[16..22].copy_from_slice(&u48_bytes(self.block));
        node[22..28].copy_from_slice(&u48_bytes(self.generation));
        node[28..32].copy_from_slice(&self.base.to_le_bytes());
        node[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        node[36..40].copy_from_slice(&self.word.to_le_bytes());
    }

    /// Reads the header at the front of `node` and verifies the checksum.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn open(node: &[u8], kind: Kind, block: u64) -> Result<Header, String> {
        let header = Self::peek(node, kind)?;
        let end = HEADER_BYTES + header.bytes as usize;
        if end > node.len() {
            return Err(format!("its length of {} bytes exceeds the data read", header.bytes));
        }
        if word(node, 4) != crc32c::crc32c(&node[8..end]) {
            return Err("its checksum does not match".into());
        }
        if header.block != block {
            return Err(format!("it belongs to block {}", header.block));
        }
        Ok(header)
    }

    /// Like [`Header::open`], but also compares the checksum with the one stored in the pointer. This detects an intact
    /// but outdated node.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn open_verified(node: &[u8], kind: Kind, block: u64, expected: u32) -> Result<Header, String> {
        let header = Self::open(node, kind, block)?;
        if checksum(node) != expected {
            return Err(format!(
                "it is intact but outdated: it is of checkpoint {}, and a later write was lost or misdirected",
                header.generation
            ));
        }
        Ok(header)
    }

    /// Reads the header at the front of `node` without verifying the checksum, for example to find the length.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn peek(node: &[u8], kind: Kind) -> Result<Header, String> {
        if node.len() < HEADER_BYTES || word(node, 0) != MAGIC {
            return Err("the block holds no data of a map".into());
        }
        if node[8] != kind as u8 {
            return Err(format!("the block holds data of another kind ({})", node[8]));
        }
        if node[9] != 0 {
            return Err(format!("its encoding ({}) is not supported", node[9]));
        }
        let small = [10, 12, 14].map(|at| u16::from_le_bytes([node[at], node[at + 1]]));
        Ok(Header {
            kind,
            block: read_u48(node, 16),
            generation: read_u48(node, 22),
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
    fn an_intact_older_node_is_not_accepted() {
        let older = Header { block: MAX_U48, generation: 6, bytes: 60, ..Header::default() };
        let newer = Header { generation: MAX_U48, ..older };
        let (mut stored, mut meant) = (vec![0x5A; 128], vec![0x5A; 128]);
        older.seal(&mut stored);
        newer.seal(&mut meant);
        assert_eq!(Header::open_verified(&meant, Kind::Leaf, MAX_U48, checksum(&meant)), Ok(newer));
        assert_eq!(Header::open(&stored, Kind::Leaf, MAX_U48), Ok(older));
        let refused = Header::open_verified(&stored, Kind::Leaf, MAX_U48, checksum(&meant)).unwrap_err();
        assert!(refused.contains("checkpoint 6"), "{refused}");
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    }
}
