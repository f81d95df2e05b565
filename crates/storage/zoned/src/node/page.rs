//! A leaf or log page: records sorted by key. Records of equal lengths are stored in arrays, as in the ZB+-tree paper
//! (n keys, n values); others use a slot array.

use super::header::{HEADER_BYTES, Header, Kind, read_u48, u48_bytes};
use super::page_memory::PageMemory;
use std::cmp::Ordering;

/// The location of a large value, which is stored outside the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first block.
    pub block: u64,
    /// The length of the value, bytes.
    pub bytes: u32,
    /// The expected checksum ([`super::checksum`]) of the extent.
    pub checksum: u32,
}

/// The size of an encoded extent, bytes.
pub const EXTENT_BYTES: usize = 6 + 4 + 4;

impl Extent {
    /// Encodes the location as in pages and in the journal.
    pub fn to_bytes(self) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        bytes[..6].copy_from_slice(&u48_bytes(self.block));
        bytes[6..10].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[10..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Decodes a location.
    pub fn from_bytes(bytes: &[u8; EXTENT_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self { block: read_u48(bytes, 0), bytes: word(6), checksum: word(10) }
    }
}

/// The value of a key in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// The location of a value too large for a page.
    Extent(Extent),
    /// The key is deleted. Only logs have such records.
    Deleted,
}

impl Value<'_> {
    /// The length of the value, bytes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Inline(value) => value.len(),
            Self::Extent(extent) => extent.bytes as usize,
            Self::Deleted => 0,
        }
    }
}

/// The layout of the records in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Keys of one length, then values of one length, then a deletion bit for each record.
    Fixed { key: u16, value: u16 },
    /// Slots (offset, lengths, kind) at the front, records growing down from the end. `bottom` is the lowest record
    /// byte, and `dead` the number of unused bytes above it.
    Slotted { bottom: u32, dead: u32 },
}

const SLOT_BYTES: usize = 6;
const KIND_SHIFT: u32 = 14;
const LENGTH: u16 = (1 << KIND_SHIFT) - 1;
/// The kind, in the upper bits of a slot's value length.
const INLINE: u16 = 0;
const EXTENT: u16 = 1;
const DELETED: u16 = 2;

/// A leaf or a leaf's log.
#[derive(Clone, Debug)]
pub struct Page {
    bytes: PageMemory,
    count: u16,
    layout: Layout,
}

/// The number of fixed-length records that fit into a page of `bytes` bytes.
const fn fixed_capacity(bytes: usize, key: usize, value: usize) -> usize {
    let room = bytes - HEADER_BYTES;
    let mut count = room * 8 / ((key + value) * 8 + 1);
    while count * (key + value) + count.div_ceil(8) > room {
        count -= 1;
    }
    count
}

impl Page {
    /// Creates an empty page of `bytes` bytes, from 512 to 65536.
    pub fn new(bytes: usize) -> Self {
        let layout = Layout::Slotted { bottom: bytes as u32, dead: 0 };
        Self { bytes: PageMemory::zeroed(bytes), count: 0, layout }
    }

    /// Creates an empty log for a leaf, with the same record layout.
    pub fn log_of(leaf: &Page) -> Self {
        let layout = match leaf.layout {
            Layout::Slotted { .. } => Layout::Slotted { bottom: leaf.bytes.len() as u32, dead: 0 },
            fixed => fixed,
        };
        Self { bytes: PageMemory::zeroed(leaf.bytes.len()), count: 0, layout }
    }

    /// Whether a record's value can be replaced without needing more space.
    pub fn takes(&self, index: usize, value: Value<'_>) -> bool {
        match (self.layout, value) {
            (_, Value::Deleted) => true,
            (Layout::Fixed { value: each, .. }, Value::Inline(value)) => value.len() == usize::from(each),
            (Layout::Fixed { .. }, Value::Extent(_)) => false,
            (Layout::Slotted { .. }, value) => value_bytes(value) <= value_bytes(self.value(index)),
        }
    }

    /// The maximum length of a key, and of a value stored in a page. A page then holds at least two records.
    pub const fn limits(bytes: usize) -> (usize, usize) {
        let room = bytes - HEADER_BYTES;
        let key = (room / 4 - SLOT_BYTES) / 2;
        let value = room / 2 - SLOT_BYTES - key;
        (key, if value < LENGTH as usize { value } else { LENGTH as usize })
    }

    /// The number of records, including deletions.
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// The size of the page, bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The number of bytes that the records take.
    pub fn used(&self) -> usize {
        match self.layout {
            Layout::Fixed { key, value } => self.count() * (usize::from(key) + usize::from(value)),
            Layout::Slotted { bottom, dead } => {
                self.count() * SLOT_BYTES + self.bytes.len() - bottom as usize - dead as usize
            }
        }
    }

    fn slot(&self, index: usize) -> (usize, usize, u16) {
        let at = HEADER_BYTES + index * SLOT_BYTES;
        let field = |at: usize| u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
        (field(at).into(), field(at + 2).into(), field(at + 4))
    }

    /// The key of a record.
    pub fn key(&self, index: usize) -> &[u8] {
        match self.layout {
            Layout::Fixed { key, .. } => {
                let at = HEADER_BYTES + index * usize::from(key);
                &self.bytes[at..at + usize::from(key)]
            }
            Layout::Slotted { .. } => {
                let (at, key, _) = self.slot(index);
                &self.bytes[at..at + key]
            }
        }
    }

    /// The offsets of the values and of the deletion bits in a fixed-length layout.
    fn fixed_offsets(&self, key: u16, value: u16) -> (usize, usize) {
        let capacity = fixed_capacity(self.bytes.len(), key.into(), value.into());
        let values = HEADER_BYTES + capacity * usize::from(key);
        (values, values + capacity * usize::from(value))
    }

    /// The value of a record.
    pub fn value(&self, index: usize) -> Value<'_> {
        match self.layout {
            Layout::Fixed { key, value } => {
                let (values, deleted) = self.fixed_offsets(key, value);
                if self.bytes[deleted + index / 8] & (1 << (index % 8)) != 0 {
                    return Value::Deleted;
                }
                let at = values + index * usize::from(value);
                Value::Inline(&self.bytes[at..at + usize::from(value)])
            }
            Layout::Slotted { .. } => {
                let (at, key, value) = self.slot(index);
                let bytes = &self.bytes[at + key..at + key + usize::from(value & LENGTH)];
                match value >> KIND_SHIFT {
                    INLINE => Value::Inline(bytes),
                    EXTENT => Value::Extent(Extent::from_bytes(
                        bytes.try_into().expect("an extent's length was checked when the page was read"),
                    )),
                    _ => Value::Deleted,
                }
            }
        }
    }

    /// Searches for `key` and returns its index.
    ///
    /// # Errors
    /// The index at which `key` would have to be inserted.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        if let (Layout::Fixed { key: 8, .. }, Ok(wanted)) = (self.layout, <[u8; 8]>::try_from(key)) {
            return self.find_number(u64::from_be_bytes(wanted));
        }
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Searches for an eight-byte key, the most common length, by integer comparison.
    fn find_number(&self, wanted: u64) -> Result<usize, usize> {
        let keys = &self.bytes[HEADER_BYTES..HEADER_BYTES + 8 * self.count()];
        let (keys, _) = keys.as_chunks::<8>();
        let at = keys.partition_point(|key| u64::from_be_bytes(*key) < wanted);
        match keys.get(at) {
            Some(key) if u64::from_be_bytes(*key) == wanted => Ok(at),
            _ => Err(at),
        }
    }

    /// The address of the key that a search compares first.
    pub(crate) fn first_probe(&self) -> *const u8 {
        if self.count == 0 { std::ptr::null() } else { self.key(self.count() / 2).as_ptr() }
    }

    /// Inserts a record at `index`, as returned by [`Page::find`]. Returns false and changes nothing if it does not
    /// fit.
    #[must_use]
    pub fn insert(&mut self, index: usize, key: &[u8], value: Value<'_>) -> bool {
        if self.count == 0 {
            // Deletion bits have a different offset in each layout: clear them.
            self.bytes[HEADER_BYTES..].fill(0);
            self.layout = self.first_layout(key, value);
        }
        match self.layout {
            Layout::Fixed { key: keys, value: values } => {
                let fits = match value {
                    Value::Inline(value) => value.len() == usize::from(values),
                    Value::Extent(_) => false,
                    Value::Deleted => true,
                };
                if !fits || key.len() != usize::from(keys) {
                    return self.change_to_slots(key.len(), value) && self.insert_slot(index, key, value);
                }
                self.insert_fixed(index, key, value, (keys, values))
            }
            Layout::Slotted { .. } => self.insert_slot(index, key, value),
        }
    }

    fn first_layout(&self, key: &[u8], value: Value<'_>) -> Layout {
        match (value, self.layout) {
            (Value::Inline(value), _) if !key.is_empty() => {
                Layout::Fixed { key: key.len() as u16, value: value.len() as u16 }
            }
            (Value::Deleted, fixed @ Layout::Fixed { key: each, .. }) if usize::from(each) == key.len() => {
                fixed
            }
            _ => Layout::Slotted { bottom: self.bytes.len() as u32, dead: 0 },
        }
    }

    fn insert_fixed(
        &mut self,
        index: usize,
        key: &[u8],
        value: Value<'_>,
        (keys, values): (u16, u16),
    ) -> bool {
        let count = self.count();
        let (keys, values) = (usize::from(keys), usize::from(values));
        if count == fixed_capacity(self.bytes.len(), keys, values) {
            return false;
        }
        let (values_at, deleted_at) = self.fixed_offsets(keys as u16, values as u16);
        let shift = |bytes: &mut [u8], start: usize, each: usize| {
            let at = start + index * each;
            bytes.copy_within(at..start + count * each, at + each);
        };
        shift(&mut self.bytes, HEADER_BYTES, keys);
        shift(&mut self.bytes, values_at, values);
        let at = HEADER_BYTES + index * keys;
        self.bytes[at..at + keys].copy_from_slice(key);
        if self.has_deletions(deleted_at) {
            for bit in (index..count).rev() {
                let set = self.bytes[deleted_at + bit / 8] & (1 << (bit % 8)) != 0;
                self.set_bit(deleted_at, bit + 1, set);
            }
        }
        self.count += 1;
        self.store_fixed(index, value, (values_at, deleted_at, values));
        true
    }

    fn has_deletions(&self, deleted_at: usize) -> bool {
        self.bytes[deleted_at..deleted_at + (self.count() + 1).div_ceil(8).min(self.bytes.len() - deleted_at)]
            .iter()
            .any(|&byte| byte != 0)
    }

    fn set_bit(&mut self, map: usize, bit: usize, set: bool) {
        let byte = &mut self.bytes[map + bit / 8];
        *byte = if set { *byte | 1 << (bit % 8) } else { *byte & !(1 << (bit % 8)) };
    }

    fn store_fixed(
        &mut self,
        index: usize,
        value: Value<'_>,
        (values_at, deleted_at, each): (usize, usize, usize),
    ) {
        let at = values_at + index * each;
        match value {
            Value::Inline(value) => self.bytes[at..at + each].copy_from_slice(value),
            _ => self.bytes[at..at + each].fill(0),
        }
        self.set_bit(deleted_at, index, value == Value::Deleted);
    }

    /// Converts the page from arrays to slots. Returns false if there is no space for another record then.
    fn change_to_slots(&mut self, key_bytes: usize, value: Value<'_>) -> bool {
        let Layout::Fixed { key, value: each } = self.layout else { return true };
        let room = self.bytes.len() - HEADER_BYTES;
        let record = usize::from(key) + usize::from(each) + SLOT_BYTES;
        if self.count() * record + key_bytes + value_bytes(value) + SLOT_BYTES > room {
            return false;
        }
        self.rebuild();
        true
    }

    /// Copies all records to a slotted page without gaps.
    fn rebuild(&mut self) {
        let mut page = Page::new(self.bytes.len());
        for index in 0..self.count() {
            let fits = page.insert_slot(index, self.key(index), self.value(index));
            debug_assert!(fits, "a page's records fit into a page");
        }
        *self = page;
    }

    fn insert_slot(&mut self, index: usize, key: &[u8], value: Value<'_>) -> bool {
        let Layout::Slotted { bottom, dead } = self.layout else { return false };
        let bytes = key.len() + value_bytes(value);
        let slots_end = HEADER_BYTES + (self.count() + 1) * SLOT_BYTES;
        if slots_end + bytes > bottom as usize {
            if dead == 0 || slots_end + bytes > bottom as usize + dead as usize {
                return false;
            }
            self.rebuild();
            return self.insert_slot(index, key, value);
        }
        let bottom = bottom as usize - bytes;
        self.bytes[bottom..bottom + key.len()].copy_from_slice(key);
        let kind = match value {
            Value::Inline(value) => {
                self.bytes[bottom + key.len()..bottom + bytes].copy_from_slice(value);
                INLINE
            }
            Value::Extent(extent) => {
                self.bytes[bottom + key.len()..bottom + bytes].copy_from_slice(&extent.to_bytes());
                EXTENT
            }
            Value::Deleted => DELETED,
        };
        let at = HEADER_BYTES + index * SLOT_BYTES;
        self.bytes.copy_within(at..slots_end - SLOT_BYTES, at + SLOT_BYTES);
        let fields = [bottom as u16, key.len() as u16, value_bytes(value) as u16 | kind << KIND_SHIFT];
        for (field, value) in fields.into_iter().enumerate() {
            self.bytes[at + 2 * field..at + 2 * field + 2].copy_from_slice(&value.to_le_bytes());
        }
        self.count += 1;
        self.layout = Layout::Slotted { bottom: bottom as u32, dead };
        true
    }

    /// Replaces the value of a record. Returns false and changes nothing if it does not fit.
    #[must_use]
    pub fn set(&mut self, index: usize, value: Value<'_>) -> bool {
        if let Layout::Fixed { key, value: each } = self.layout {
            let same = match value {
                Value::Inline(value) => value.len() == usize::from(each),
                Value::Extent(_) => false,
                Value::Deleted => true,
            };
            if same {
                let (values_at, deleted_at) = self.fixed_offsets(key, each);
                self.store_fixed(index, value, (values_at, deleted_at, each.into()));
                return true;
            }
        }
        let before = self.clone();
        let key = self.key(index).to_vec();
        self.remove(index);
        let fits = self.insert(index, &key, value);
        if !fits {
            *self = before;
        }
        fits
    }

    /// Removes a record.
    pub fn remove(&mut self, index: usize) {
        let count = self.count();
        match self.layout {
            Layout::Fixed { key, value } => {
                let (values_at, deleted_at) = self.fixed_offsets(key, value);
                for (start, each) in [(HEADER_BYTES, usize::from(key)), (values_at, usize::from(value))] {
                    let at = start + index * each;
                    self.bytes.copy_within(at + each..start + count * each, at);
                }
                if self.has_deletions(deleted_at) {
                    for bit in index..count - 1 {
                        let set = self.bytes[deleted_at + (bit + 1) / 8] & (1 << ((bit + 1) % 8)) != 0;
                        self.set_bit(deleted_at, bit, set);
                    }
                    self.set_bit(deleted_at, count - 1, false);
                }
            }
            Layout::Slotted { bottom, dead } => {
                let (_, key, value) = self.slot(index);
                let at = HEADER_BYTES + index * SLOT_BYTES;
                let end = HEADER_BYTES + count * SLOT_BYTES;
                self.bytes.copy_within(at + SLOT_BYTES..end, at);
                let dead = dead + (key + usize::from(value & LENGTH)) as u32;
                self.layout = Layout::Slotted { bottom, dead };
            }
        }
        self.count -= 1;
    }

    /// Copies the records from `from` (inclusive) to `to` (exclusive) to a new page.
    pub fn part(&self, from: usize, to: usize) -> Page {
        let mut page = Page::new(self.bytes.len());
        page.append(self, from, to);
        page
    }

    /// Appends the records from `from` (inclusive) to `to` (exclusive) of another page, as far as they fit. Returns the
    /// number of records appended.
    pub fn append(&mut self, other: &Page, from: usize, to: usize) -> usize {
        for index in from..to {
            if !self.insert(self.count(), other.key(index), other.value(index)) {
                return index - from;
            }
        }
        to - from
    }

    /// The number of bytes that a record takes.
    pub fn record_bytes(&self, index: usize) -> usize {
        match self.layout {
            Layout::Fixed { key, value } => usize::from(key) + usize::from(value),
            Layout::Slotted { .. } => {
                let (_, key, value) = self.slot(index);
                key + usize::from(value & LENGTH) + SLOT_BYTES
            }
        }
    }

    /// The index at which to split: the records before it take about half of the bytes, and both halves have at least
    /// one record.
    pub fn middle(&self) -> usize {
        let (half, mut sum) = (self.used() / 2, 0);
        for index in 0..self.count() {
            sum += self.record_bytes(index);
            if sum >= half {
                return (index + 1).clamp(1, self.count() - 1);
            }
        }
        self.count() / 2
    }

    /// The number of bytes that the records take in the larger half of a split page.
    pub fn larger_half(&self) -> usize {
        let middle = if self.count() < 2 { self.count() } else { self.middle() };
        let left: usize = (0..middle).map(|index| self.record_bytes(index)).sum();
        left.max(self.used() - left)
    }

    /// Whether at least the fraction `part` of the page's space is used.
    pub fn is_filled(&self, part: f64) -> bool {
        self.used() as f64 >= (self.bytes.len() - HEADER_BYTES) as f64 * part
    }

    /// Encodes the page for the given block. `base` is the checksum of the leaf if the page is a log, and 0 otherwise.
    pub fn encode(&self, node: &mut [u8], block: u64, generation: u64, base: u32) {
        node.copy_from_slice(&self.bytes);
        let (small, word) = match self.layout {
            Layout::Fixed { key, value } => ([self.count, key, value], 0),
            Layout::Slotted { bottom, dead } => ([self.count, 0, dead as u16], bottom),
        };
        let bytes = (self.bytes.len() - HEADER_BYTES) as u32;
        Header { kind: Kind::Leaf, block, generation, base, bytes, small, word }.seal(node);
    }

    /// Decodes a page and checks that its records are inside it and in ascending order.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn decode(node: &[u8], block: u64) -> Result<Page, String> {
        Self::of(node, &Header::open(node, Kind::Leaf, block)?)
    }

    /// Like [`Page::decode`], but also verifies the checksum stored in the pointer to the page. The second value is the
    /// checksum of the leaf, if the page is a log.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub fn decode_verified(node: &[u8], block: u64, checksum: u32) -> Result<(Page, u32), String> {
        let header = Header::open_verified(node, Kind::Leaf, block, checksum)?;
        Ok((Self::of(node, &header)?, header.base))
    }

    fn of(node: &[u8], header: &Header) -> Result<Page, String> {
        let [count, key, third] = header.small;
        let layout = match key {
            0 => Layout::Slotted { bottom: header.word, dead: third.into() },
            key => Layout::Fixed { key, value: third },
        };
        let page = Page { bytes: PageMemory::from(node), count, layout };
        page.check()?;
        Ok(page)
    }

    fn check(&self) -> Result<(), String> {
        let room = self.bytes.len();
        match self.layout {
            Layout::Fixed { key, value } => {
                if self.count() > fixed_capacity(room, key.into(), value.into()) {
                    return Err(format!("its {} records of {key} + {value} bytes do not fit", self.count));
                }
            }
            Layout::Slotted { bottom, dead } => {
                let slots_end = HEADER_BYTES + self.count() * SLOT_BYTES;
                if bottom as usize > room || slots_end > bottom as usize {
                    return Err("its slots and records overlap".into());
                }
                let mut sum = dead as usize;
                for index in 0..self.count() {
                    let (at, key, value) = self.slot(index);
                    sum += key + usize::from(value & LENGTH);
                    let bytes = usize::from(value & LENGTH);
                    let kind_fits = match value >> KIND_SHIFT {
                        INLINE => true,
                        EXTENT => bytes == EXTENT_BYTES,
                        DELETED => bytes == 0,
                        _ => false,
                    };
                    if at < bottom as usize || at + key + bytes > room || !kind_fits {
                        return Err(format!("its record {} extends beyond its end", index + 1));
                    }
                }
                if sum != room - bottom as usize {
                    return Err("the lengths of its records do not add up".into());
                }
            }
        }
        match (1..self.count()).find(|&index| self.key(index - 1) >= self.key(index)) {
            Some(index) => Err(format!("its record {} is out of order", index + 1)),
            None => Ok(()),
        }
    }
}

const fn value_bytes(value: Value<'_>) -> usize {
    match value {
        Value::Inline(value) => value.len(),
        Value::Extent(_) => EXTENT_BYTES,
        Value::Deleted => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum OwnedValue {
        Inline(Vec<u8>),
        Extent(u64, u32, u32),
        Deleted,
    }

    impl OwnedValue {
        fn value(&self) -> Value<'_> {
            match self {
                OwnedValue::Inline(bytes) => Value::Inline(bytes),
                &OwnedValue::Extent(block, bytes, checksum) => {
                    Value::Extent(Extent { block, bytes, checksum })
                }
                OwnedValue::Deleted => Value::Deleted,
            }
        }
    }

    fn owned_value(longest: usize) -> impl Strategy<Value = OwnedValue> {
        prop_oneof![
            4 => prop::collection::vec(any::<u8>(), 0..=longest).prop_map(OwnedValue::Inline),
            4 => any::<[u8; 4]>().prop_map(|bytes| OwnedValue::Inline(bytes.to_vec())),
            1 => (0..1u64 << 48, any::<u32>(), any::<u32>()).prop_map(|(block, bytes, checksum)| OwnedValue::Extent(block, bytes, checksum)),
            1 => Just(OwnedValue::Deleted)
        ]
    }

    fn operations() -> impl Strategy<Value = Vec<(Vec<u8>, Option<OwnedValue>)>> {
        let (longest_key, longest_value) = Page::limits(512);
        let any_key = prop::collection::vec(0..3u8, 0..=longest_key.min(6));
        let number = (0..40u64).prop_map(|key| key.to_be_bytes().to_vec());
        let fixed = any::<[u8; 4]>().prop_map(|bytes| OwnedValue::Inline(bytes.to_vec()));
        let log = prop_oneof![3 => fixed.clone(), 1 => Just(OwnedValue::Deleted)];
        prop_oneof![
            prop::collection::vec((any_key, prop::option::of(owned_value(longest_value))), 0..200),
            prop::collection::vec((number.clone(), prop::option::of(fixed)), 0..200),
            prop::collection::vec((number, prop::option::of(log)), 0..200),
        ]
    }

    proptest! {
        #[test]
        fn a_page_is_a_small_sorted_map(operations in operations()) {
            let mut page = Page::new(512);
            let mut model: BTreeMap<Vec<u8>, OwnedValue> = BTreeMap::new();
            for (key, change) in operations {
                match (page.find(&key), change) {
                    (Ok(at), Some(value)) => {
                        if page.set(at, value.value()) {
                            model.insert(key, value);
                        }
                    }
                    (Err(at), Some(value)) => {
                        if page.insert(at, &key, value.value()) {
                            model.insert(key, value);
                        } else {
                            prop_assert!(model.len() >= 2, "a page holds two records of any length");
                        }
                    }
                    (Ok(at), None) => {
                        page.remove(at);
                        model.remove(&key);
                    }
                    (Err(_), None) => prop_assert!(!model.contains_key(&key)),
                }
                prop_assert_eq!(page.count(), model.len());
            }
            let mut node = vec![0; 512];
            page.encode(&mut node, 3, 4, 5);
            let (back, base) = Page::decode_verified(&node, 3, super::super::checksum(&node)).unwrap();
            prop_assert_eq!(base, 5);
            for page in [&page, &back] {
                for (index, (key, value)) in model.iter().enumerate() {
                    prop_assert_eq!(page.key(index), &key[..]);
                    prop_assert_eq!(page.value(index), value.value());
                    prop_assert_eq!(page.find(key), Ok(index));
                }
            }
            if page.count() > 1 {
                let middle = page.middle();
                prop_assert!(middle > 0 && middle < page.count());
                let (left, right) = (page.part(0, middle), page.part(middle, page.count()));
                prop_assert_eq!(left.count() + right.count(), page.count());
            }
        }

        #[test]
        fn damaged_pages_are_refused_or_harmless(
            bytes in prop::collection::vec(any::<u8>(), 512), count in 0..60u16, key in 0..20u16, word in 0..600u32, small in 0..20u16,
        ) {
            let mut node = bytes;
            Header { block: 1, bytes: 472, small: [count, key, small], word, ..Header::default() }.seal(&mut node);
            if let Ok(page) = Page::decode(&node, 1) {
                for index in 0..page.count() {
                    let (_, _) = (page.key(index), page.value(index));
                    prop_assert_eq!(page.find(page.key(index)), Ok(index));
                }
                prop_assert!(page.used() <= 512);
            }
        }
    }
}
