//! A head or an interior node on the device: for each child the least key, its state, where it is and where its log is.
//! Not the same in memory: see `store::tree`.
//! Source: the ZB+-tree paper's head nodes (ptr = {state, addr, log_addr}); our interior nodes have no logs, see the design page.

use super::header::{HEADER_BYTES, Header, Kind};

/// What an inner node knows of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The child's first block.
    pub home: u64,
    /// Its log's, if it has one.
    pub log: Option<u64>,
}

/// The bytes of an entry besides its key: the key's length, the two places.
const LEAF_ENTRY_BYTES: usize = 2 + 8 + 8;
const INNER_ENTRY_BYTES: usize = 2 + 8;
const NO_LOG: u64 = u64::MAX;

/// The highest level: a tree in which every node leads to two has no more, wherever blocks have 64-bit numbers.
const MAX_LEVEL: u16 = 64;

/// A head or an interior node, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerRecord {
    /// Its level: 1 for leaf-heads, and one more for each layer above.
    pub level: u16,
    /// Keys and children in order; the first key is less than every key, whatever it says.
    pub entries: Vec<(Vec<u8>, Pointer)>,
}

impl InnerRecord {
    /// The bytes that an entry takes, besides those of its key.
    pub const fn entry_bytes(level: u16) -> usize {
        if level == 1 { LEAF_ENTRY_BYTES } else { INNER_ENTRY_BYTES }
    }

    /// The room for entries in a node of `bytes` bytes.
    pub const fn room(bytes: usize) -> usize {
        bytes - HEADER_BYTES
    }

    /// Writes a node with these entries to `node`, for a place on the device. They must fit.
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
            put(&pointer.home.to_le_bytes());
            if level == 1 {
                put(&pointer.log.unwrap_or(NO_LOG).to_le_bytes());
            }
            count += 1;
        }
        node[at..].fill(0);
        let bytes = (node.len() - HEADER_BYTES) as u32;
        Header { kind: Kind::Inner, block, generation, bytes, small: [count, level, 0], word: 0 }.seal(node);
    }

    /// Reads a node and checks that it has entries and that they are in order.
    ///
    /// # Errors
    /// What is wrong, as a sentence's end.
    pub fn decode(node: &[u8], block: u64) -> Result<Self, String> {
        let header = Header::open(node, Kind::Inner, block)?;
        let [count, level, _] = header.small;
        if count == 0 || level == 0 || level > MAX_LEVEL {
            return Err(format!("{count} children on level {level}"));
        }
        let mut rest = &node[HEADER_BYTES..HEADER_BYTES + header.bytes as usize];
        let mut take = |bytes: usize| -> Result<&[u8], String> {
            let (taken, left) = rest.split_at_checked(bytes).ok_or("its entries are longer than it is")?;
            rest = left;
            Ok(taken)
        };
        let mut entries: Vec<(Vec<u8>, Pointer)> = Vec::with_capacity(count.into());
        for index in 0..count {
            let length = u16::from_le_bytes(take(2)?.try_into().expect("two bytes"));
            let key = take(length.into())?.to_vec();
            let mut place = || Ok::<_, String>(u64::from_le_bytes(take(8)?.try_into().expect("eight bytes")));
            let home = place()?;
            let log = if level == 1 { Some(place()?).filter(|&log| log != NO_LOG) } else { None };
            if index > 1 && entries.last().is_some_and(|last| last.0 >= key) {
                return Err(format!("its entry {index} is out of order"));
            }
            entries.push((key, Pointer { home, log }));
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
            level in 1..4u16, homes in any::<u64>(), log in prop::option::of(0..NO_LOG),
        ) {
            let log = log.filter(|_| level == 1);
            let pointer = |index: usize| Pointer { home: homes.wrapping_add(index as u64), log };
            let entries: Vec<_> = keys.into_iter().enumerate().map(|(i, key)| (key, pointer(i))).collect();
            let mut node = vec![0xEE; 512];
            InnerRecord::encode(level, entries.iter().map(|(key, p)| (&key[..], *p)), &mut node, 9, 1);
            prop_assert_eq!(InnerRecord::decode(&node, 9), Ok(InnerRecord { level, entries }));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 512), count in 0..60u16, level in 0..70u16) {
            let mut node = bytes;
            Header { kind: Kind::Inner, block: 1, generation: 1, bytes: 472, small: [count, level, 0], word: 0 }.seal(&mut node);
            if let Ok(inner) = InnerRecord::decode(&node, 1) {
                prop_assert_eq!(inner.entries.len(), usize::from(count));
                prop_assert!((1..=MAX_LEVEL).contains(&inner.level));
            }
        }
    }
}
