//! Data blocks: a checksum, the prefix that all keys share, and the sorted records. A block is a whole number of pages.
//!
//! The checksum also covers the identifiers of map and table and the address, so that stale and misdirected blocks are
//! detected.

use crate::codec::{Input, common_prefix, put_bytes, put_varint, varint_bytes};

/// The size of the checksum and of the length of the rest, bytes.
const HEADER_BYTES: usize = 8;

/// The identity of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAddress {
    /// The identifier of the map.
    pub map: u64,
    /// The table.
    pub table: u64,
    /// The first device block.
    pub block: u64,
}

impl BlockAddress {
    /// The checksum of `bytes` as the content of this block.
    pub fn checksum(&self, bytes: &[u8]) -> u32 {
        let mut front = [0; 24];
        front[..8].copy_from_slice(&self.map.to_le_bytes());
        front[8..16].copy_from_slice(&self.table.to_le_bytes());
        front[16..].copy_from_slice(&self.block.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&front), bytes)
    }
}

/// Collects the records of a block, in ascending key order.
#[derive(Default)]
pub struct BlockBuilder {
    /// The records: key length, key, value or deletion. The shared prefix is removed from the keys when the block is
    /// encoded.
    records: Vec<u8>,
    first: Vec<u8>,
    /// The length of the longest key.
    longest: usize,
    count: usize,
    /// Length of the prefix that all keys share; total bytes of all keys; total bytes of the values with their lengths.
    prefix: usize,
    key_bytes: usize,
    other_bytes: usize,
}

/// Encoded size of a value with its length, bytes.
fn value_bytes(value: Option<&[u8]>) -> usize {
    value.map_or(1, |value| varint_bytes(value.len() as u64 + 1) + value.len())
}

impl BlockBuilder {
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// An upper bound of the encoded size if the record is added, bytes.
    pub fn bytes_with(&self, key: &[u8], value: Option<&[u8]>) -> usize {
        let prefix =
            if self.count == 0 { key.len() } else { common_prefix(&self.first, key).min(self.prefix) };
        let keys = self.key_bytes + key.len() - (self.count + 1) * prefix;
        let lengths = (self.count + 1) * varint_bytes(key.len().max(self.longest) as u64);
        HEADER_BYTES
            + varint_bytes(prefix as u64)
            + prefix
            + keys
            + lengths
            + self.other_bytes
            + value_bytes(value)
    }

    /// An upper bound of the encoded size, bytes.
    pub fn bytes(&self) -> usize {
        let lengths = self.count * 3;
        let keys = self.key_bytes - self.count * self.prefix;
        HEADER_BYTES + varint_bytes(self.prefix as u64) + self.prefix + keys + lengths + self.other_bytes
    }

    pub fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        if self.count == 0 {
            self.first = key.to_vec();
            self.prefix = key.len();
        }
        self.prefix = common_prefix(&self.first, key).min(self.prefix);
        self.longest = self.longest.max(key.len());
        self.key_bytes += key.len();
        self.other_bytes += value_bytes(value);
        self.count += 1;
        put_bytes(&mut self.records, key);
        put_varint(&mut self.records, value.map_or(0, |value| value.len() as u64 + 1));
        self.records.extend_from_slice(value.unwrap_or_default());
    }

    /// Encodes the block for `address`, padded to whole pages, and empties the builder.
    pub fn finish(&mut self, address: &BlockAddress, page_bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes().next_multiple_of(page_bytes));
        out.extend_from_slice(&[0; HEADER_BYTES]);
        put_bytes(&mut out, &self.first[..self.prefix]);
        let mut input = Input(&self.records);
        while let (Some(key), Some(length)) = (input.bytes(), input.varint()) {
            put_bytes(&mut out, &key[self.prefix..]);
            put_varint(&mut out, length);
            out.extend_from_slice(input.take(length.saturating_sub(1) as usize).unwrap_or_default());
        }
        let length = (out.len() - HEADER_BYTES) as u32;
        out[4..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        let checksum = address.checksum(&out[4..]);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
        out.resize(out.len().next_multiple_of(page_bytes), 0);
        *self = Self { records: std::mem::take(&mut self.records), ..Self::default() };
        self.records.clear();
        out
    }
}

/// A decoded block. Its records are valid and in ascending key order.
pub struct DataBlock {
    bytes: Box<[u8]>,
    /// Where the shared prefix begins and ends.
    prefix: (u32, u32),
    /// Where each record begins.
    starts: Vec<u32>,
}

impl DataBlock {
    /// Decodes a block that was read from `address`.
    ///
    /// # Errors
    /// A description of the damage.
    pub fn decode(address: &BlockAddress, bytes: &[u8]) -> Result<Self, &'static str> {
        let mut input = Input(bytes);
        let (Some(checksum), Some(length)) = (input.u32(), input.u32()) else {
            return Err("it is cut short");
        };
        let end = HEADER_BYTES.saturating_add(length as usize);
        let Some(content) = bytes.get(HEADER_BYTES..end) else { return Err("its length is impossible") };
        if address.checksum(&bytes[4..end]) != checksum {
            return Err("the checksum of its records is wrong");
        }
        Self::of_content(content).ok_or("its records are not in order")
    }

    /// Decodes the content of a block, whose checksum is correct.
    pub fn of_content(content: &[u8]) -> Option<Self> {
        let mut input = Input(content);
        let at = |rest: Input<'_>| (content.len() - rest.0.len()) as u32;
        let prefix = input.bytes()?;
        let prefix = (at(input) - prefix.len() as u32, at(input));
        let (mut starts, mut last): (Vec<u32>, Option<&[u8]>) = (Vec::new(), None);
        while !input.0.is_empty() {
            starts.push(at(input));
            let suffix = input.bytes()?;
            if last.is_some_and(|last| last >= suffix) {
                return None;
            }
            last = Some(suffix);
            let length = input.length()?;
            input.take(length.saturating_sub(1))?;
        }
        starts.shrink_to_fit();
        (!starts.is_empty()).then(|| Self { bytes: content.into(), prefix, starts })
    }

    /// The number of records, at least one.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Memory of the block, bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + 4 * self.starts.len() + 64
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix.0 as usize..self.prefix.1 as usize]
    }

    /// A record's key without the shared prefix, and its value. `None` means a deletion.
    fn record(&self, index: usize) -> (&[u8], Option<&[u8]>) {
        let mut input = Input(&self.bytes[self.starts[index] as usize..]);
        let suffix = input.bytes().unwrap_or_default();
        let value = match input.length() {
            None | Some(0) => None,
            Some(length) => input.take(length - 1),
        };
        (suffix, value)
    }

    /// The value of a record. `None` means a deletion.
    pub fn value(&self, index: usize) -> Option<&[u8]> {
        self.record(index).1
    }

    /// Writes the key of a record to `key`.
    pub fn key_to(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.record(index).0);
    }

    /// The index of the record with `key`. If there is none, the index of the first record with a greater key, as
    /// `Err`.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        match key.strip_prefix(prefix) {
            Some(rest) => {
                let (mut low, mut high) = (0, self.len());
                while low < high {
                    let middle = (low + high) / 2;
                    match self.record(middle).0.cmp(rest) {
                        std::cmp::Ordering::Equal => return Ok(middle),
                        std::cmp::Ordering::Less => low = middle + 1,
                        std::cmp::Ordering::Greater => high = middle,
                    }
                }
                Err(low)
            }
            None if key < prefix => Err(0),
            None => Err(self.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const PLACE: BlockAddress = BlockAddress { map: 1, table: 2, block: 3 };

    proptest! {
        #[test]
        fn a_block_holds_its_records_and_finds_every_key(
            records in prop::collection::btree_map(
                prop::collection::vec(97u8..100, 0..6), prop::option::of(prop::collection::vec(any::<u8>(), 0..300)), 1..40),
            probe in prop::collection::vec(96u8..101, 0..6),
        ) {
            let records: BTreeMap<Vec<u8>, Option<Vec<u8>>> = records;
            let mut builder = BlockBuilder::default();
            for (key, value) in &records {
                let expected = builder.bytes_with(key, value.as_deref());
                builder.add(key, value.as_deref());
                prop_assert!(builder.bytes() >= HEADER_BYTES && expected > HEADER_BYTES);
            }
            let bound = builder.bytes();
            let bytes = builder.finish(&PLACE, 512);
            prop_assert!(bytes.len() <= bound.next_multiple_of(512));
            let block = DataBlock::decode(&PLACE, &bytes).unwrap();
            prop_assert_eq!(block.len(), records.len());
            let mut key = Vec::new();
            for (index, (wanted, value)) in records.iter().enumerate() {
                block.key_to(index, &mut key);
                prop_assert_eq!(&key, wanted);
                prop_assert_eq!(block.value(index), value.as_deref());
                prop_assert_eq!(block.find(wanted), Ok(index));
            }
            let expected = records.keys().position(|key| *key >= probe).unwrap_or(records.len());
            prop_assert_eq!(block.find(&probe).unwrap_or_else(|at| at), expected);
        }

        #[test]
        fn damage_is_found_and_never_panics(bit in 0usize..400, count in 1usize..9) {
            let mut builder = BlockBuilder::default();
            for number in 0..count {
                builder.add(format!("key{number}").as_bytes(), Some(b"value"));
            }
            let bytes = builder.finish(&PLACE, 512);
            let used = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
            let mut wrong = bytes.clone();
            wrong[bit / 8 % used] ^= 1 << (bit % 8);
            prop_assert!(DataBlock::decode(&PLACE, &wrong).is_err());
            prop_assert!(DataBlock::decode(&BlockAddress { block: 4, ..PLACE }, &bytes).is_err(), "a misdirected block");
            let _ = DataBlock::of_content(&wrong);
        }
    }
}
