//! The on-device encoding of heads and interior nodes: for each child its smallest key, its address, the address of its
//! log if it is a leaf with a log, and a checksum.
//!
//! Source: the ZB+-tree paper's head nodes (ptr = {state, addr, log_addr}). Unlike in the paper, interior nodes have no
//! logs; the book's page on the design explains why.

use super::header::{HEADER_BYTES, Header, Kind, MAX_U48, read_u48, u48_bytes};

/// A pointer to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The child's first block.
    pub home: u64,
    /// The first block of the child's log, if it has one.
    pub log: Option<u64>,
    /// The checksum ([`super::checksum`]) of the log, or of the child if it has no log. A log stores the checksum of its
    /// leaf.
    pub checksum: u32,
}

/// The size of an entry of a leaf head without its key, bytes: key length, addresses of child and log, checksum.
const LEAF_HEAD_ENTRY_BYTES: usize = 2 + 6 + 6 + 4;
/// The size of an entry of another node without its key, bytes: key length, address, checksum.
const INNER_ENTRY_BYTES: usize = 2 + 6 + 4;
/// The address of the log of a leaf that has none.
const NO_LOG: u64 = MAX_U48;

/// The maximum level. A tree with at least two children per node cannot be higher if block numbers have 64 bits.
const MAX_LEVEL: u16 = 64;

/// A head or an interior node, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerRecord {
    /// The level: 1 for leaf heads, increasing by one towards the root.
    pub level: u16,
    /// The keys and children in order. The first key acts as minus infinity, whatever its bytes are.
    pub entries: Vec<(Vec<u8>, Pointer)>,
}

impl InnerRecord {
    /// The size of an entry without its key at a level, bytes.
    pub const fn entry_bytes(level: u16) -> usize {
        if level == 1 { LEAF_HEAD_ENTRY_BYTES } else { INNER_ENTRY_BYTES }
    }

    /// The space for entries in a node of `bytes` bytes.
    pub const fn room(bytes: usize) -> usize {
        bytes - HEADER_BYTES
    }

    /// Encodes a node for the given block. The entries must fit.
    pub fn encode<'a>(
        level: u16,
        entries: impl Iterator<Item = (&'a [u8], Pointer)>,
        node: &mut [u8],
        block: u64,
        generation: u64,
    ) {
        let (mut at, mut count) = (HEADER_BYTES, 0);
        let mut put = |bytes: &[u8]| {
            node[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for (key, pointer) in entries {
            put(&(key.len() as u16).to_le_bytes());
            put(key);
            put(&u48_bytes(pointer.home));
            if level == 1 {
                put(&u48_bytes(pointer.log.unwrap_or(NO_LOG)));
            }
            put(&pointer.checksum.to_le_bytes());
            count += 1;
        }
        node[at..].fill(0);
        let bytes = (node.len() - HEADER_BYTES) as u32;
        let small = [count, level, 0];
        Header { kind: Kind::Inner, block, generation, bytes, small, ..Header::default() }.seal(node);
    }

    /// Decodes a node and checks that it has entries in ascending order.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn decode(node: &[u8], block: u64) -> Result<Self, String> {
        Self::of(node, &Header::open(node, Kind::Inner, block)?)
    }

    /// Like [`InnerRecord::decode`], but also verifies the checksum stored in the pointer to the node.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn decode_verified(node: &[u8], block: u64, checksum: u32) -> Result<Self, String> {
        Self::of(node, &Header::open_verified(node, Kind::Inner, block, checksum)?)
    }

    fn of(node: &[u8], header: &Header) -> Result<Self, String> {
        let [count, level, _] = header.small;
        if count == 0 || level == 0 || level > MAX_LEVEL {
            return Err(format!("its header states {count} children and level {level}"));
        }
        let mut rest = &node[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        let mut take = |bytes: usize| -> Result<&[u8], String> {
            let (taken, left) = rest.split_at_checked(bytes).ok_or("its entries extend beyond its end")?;
            rest = left;
            Ok(taken)
        };
        let mut entries: Vec<(Vec<u8>, Pointer)> = Vec::with_capacity(count.into());
        for index in 0..count {
            let length = u16::from_le_bytes(take(2)?.try_into().expect("two bytes"));
            let key = take(length.into())?.to_vec();
            let mut place = || take(6).map(|bytes| read_u48(bytes, 0));
            let home = place()?;
            let log = if level == 1 { Some(place()?).filter(|&log| log != NO_LOG) } else { None };
            let checksum = u32::from_le_bytes(take(4)?.try_into().expect("four bytes"));
            if index > 1 && entries.last().is_some_and(|last| last.0 >= key) {
                return Err(format!("its entry {} is out of order", index + 1));
            }
            entries.push((key, Pointer { home, log, checksum }));
        }
        Ok(Self { level, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..12), 1..16),
            level in 1..4u16, homes in 0..MAX_U48 - 16, log in prop::option::of(0..NO_LOG), checksum in any::<u32>(),
        ) {
            let log = log.filter(|_| level == 1);
            let pointer = |index: usize| Pointer { home: homes + index as u64, log, checksum };
            let entries: Vec<_> = keys.into_iter().enumerate().map(|(i, key)| (key, pointer(i))).collect();
            let mut node = vec![0xEE; 512];
            InnerRecord::encode(level, entries.iter().map(|(key, p)| (&key[..], *p)), &mut node, 9, 1);
            prop_assert_eq!(InnerRecord::decode(&node, 9), Ok(InnerRecord { level, entries }));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 512), count in 0..60u16, level in 0..70u16) {
            let mut node = bytes;
            Header { kind: Kind::Inner, block: 1, bytes: 472, small: [count, level, 0], ..Header::default() }.seal(&mut node);
            if let Ok(inner) = InnerRecord::decode(&node, 1) {
                prop_assert_eq!(inner.entries.len(), usize::from(count));
                prop_assert!((1..=MAX_LEVEL).contains(&inner.level));
            }
        }
    }
}
