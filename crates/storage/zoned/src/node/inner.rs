//! A head or an interior node on the device: for each child the least key, where it is, where its log is, and what proves it to be the one.
//! Not the same in memory: see `store::tree`.
//! Source: the ZB+-tree paper's head nodes (ptr = {state, addr, log_addr}); our interior nodes have no logs, see the design page.

use super::header::{HEADER_BYTES, Header, Kind, LARGEST, long, six_bytes};

/// What an inner node knows of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The child's first block.
    pub home: u64,
    /// Its log's, if it has one.
    pub log: Option<u64>,
    /// What [`super::proof`] says of the log, or of the child if it has none. A log has its leaf's.
    pub proof: u32,
}

/// The bytes of an entry besides its key: the key's length, the two places, the proof.
const LEAF_ENTRY_BYTES: usize = 2 + 6 + 6 + 4;
const INNER_ENTRY_BYTES: usize = 2 + 6 + 4;
const NO_LOG: u64 = LARGEST;

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
            put(&six_bytes(pointer.home));
            if level == 1 {
                put(&six_bytes(pointer.log.unwrap_or(NO_LOG)));
            }
            put(&pointer.proof.to_le_bytes());
            count += 1;
        }
        node[at..].fill(0);
        let bytes = (node.len() - HEADER_BYTES) as u32;
        let small = [count, level, 0];
        Header { kind: Kind::Inner, block, generation, bytes, small, ..Header::default() }.seal(node);
    }

    /// Reads a node and checks that it has entries and that they are in order.
    ///
    /// # Errors
    /// What is wrong, as a sentence's end.
    pub fn decode(node: &[u8], block: u64) -> Result<Self, String> {
        Self::of(node, &Header::open(node, Kind::Inner, block)?)
    }

    /// The same for a node that something leads to which has its proof.
    ///
    /// # Errors
    /// What is wrong, as a sentence's end.
    pub fn decode_proven(node: &[u8], block: u64, proof: u32) -> Result<Self, String> {
        Self::of(node, &Header::open_proven(node, Kind::Inner, block, proof)?)
    }

    fn of(node: &[u8], header: &Header) -> Result<Self, String> {
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
            let mut place = || take(6).map(|bytes| long(bytes, 0));
            let home = place()?;
            let log = if level == 1 { Some(place()?).filter(|&log| log != NO_LOG) } else { None };
            let proof = u32::from_le_bytes(take(4)?.try_into().expect("four bytes"));
            if index > 1 && entries.last().is_some_and(|last| last.0 >= key) {
                return Err(format!("its entry {index} is out of order"));
            }
            entries.push((key, Pointer { home, log, proof }));
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
            level in 1..4u16, homes in 0..LARGEST - 16, log in prop::option::of(0..NO_LOG), proof in any::<u32>(),
        ) {
            let log = log.filter(|_| level == 1);
            let pointer = |index: usize| Pointer { home: homes + index as u64, log, proof };
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
