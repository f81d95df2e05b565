//! The first bytes of every node, journal record and superblock: what it is, where it belongs, and its checksum.
//! Not what follows them.
//! Source: our own; CRC-32C, RFC 3720 appendix B.4.

/// How long a header is, bytes.
pub const HEADER_BYTES: usize = 40;

/// The first four bytes of everything that the map writes.
const MAGIC: u32 = 0x5A42_2B31;

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A leaf, or a leaf's log: their layouts are the same.
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

/// What a header says. The two last fields are the kind's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The block it was written to: a node read from elsewhere is a wrong one.
    pub block: u64,
    /// The checkpoint that wrote it; of a journal record its sequence number.
    pub generation: u64,
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

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Header {
    /// Writes the header to the front of `node`, with the checksum over the rest of it and `bytes` bytes that follow.
    pub fn seal(&self, node: &mut [u8]) {
        node[..4].copy_from_slice(&MAGIC.to_le_bytes());
        node[8] = self.kind as u8;
        node[9] = 0;
        for (index, small) in self.small.iter().enumerate() {
            node[10 + 2 * index..12 + 2 * index].copy_from_slice(&small.to_le_bytes());
        }
        node[16..24].copy_from_slice(&self.block.to_le_bytes());
        node[24..32].copy_from_slice(&self.generation.to_le_bytes());
        node[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        node[36..40].copy_from_slice(&self.word.to_le_bytes());
        let sum = crc32c::crc32c(&node[8..HEADER_BYTES + self.bytes as usize]);
        node[4..8].copy_from_slice(&sum.to_le_bytes());
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
        let small = [10, 12, 14].map(|at| u16::from_le_bytes([node[at], node[at + 1]]));
        Ok(Header {
            kind,
            block: long(node, 16),
            generation: long(node, 24),
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
        let header =
            Header { kind: Kind::Leaf, block: 77, generation: 5, bytes: 60, small: [1, 2, 3], word: 9 };
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
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    }
}
