//! Tables: the pieces of a sorted run. A table is contiguous and inside one zone: data blocks, then an index of them and a
//! filter.
//!
//! Source: Chang et al., "Bigtable", OSDI 2006, section 5 (SSTables). Separators are shortened as far as possible.

use crate::block::BlockAddress;
use crate::codec::Input;
use crate::filter;

/// A table on the device, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub id: u64,
    /// The first device block.
    pub start: u64,
    /// Pages of data blocks, and pages and bytes of the index and the filter after them.
    pub pages: u32,
    pub index_pages: u32,
    pub index_bytes: u32,
    /// The checksum of the index and the filter.
    pub checksum: u32,
    pub records: u64,
    pub tombstones: u64,
    /// The smallest and the greatest key.
    pub first: Box<[u8]>,
    pub last: Box<[u8]>,
}

impl Table {
    /// All pages.
    pub const fn all_pages(&self) -> u64 {
        self.pages as u64 + self.index_pages as u64
    }
}

/// The index and the filter of a table in memory.
pub struct TableIndex {
    /// The concatenated separators: each is at most the first key of its block and greater than all keys before it.
    keys: Vec<u8>,
    /// For each block the end of its separator, and its first page; then the end of the data.
    blocks: Vec<(u32, u32)>,
    pages: u32,
    filter: Vec<u8>,
}

impl TableIndex {
    /// Decodes and checks the index of `table`.
    ///
    /// # Errors
    /// The fault.
    pub fn decode(
        address: &BlockAddress,
        table: &Table,
        bytes: &[u8],
    ) -> std::result::Result<Self, &'static str> {
        let content = bytes.get(..table.index_bytes as usize).ok_or("the index is longer than its pages")?;
        if address.checksum(content) != table.checksum {
            return Err("the checksum of the index is wrong");
        }
        Self::of_content(content, table.pages).ok_or("the index is not valid")
    }

    /// Decodes the content of an index, whose checksum is correct.
    pub fn of_content(content: &[u8], pages: u32) -> Option<Self> {
        let mut input = Input(content);
        let count = input.length()?;
        let (mut keys, mut blocks, mut page) = (Vec::new(), Vec::new(), 0u32);
        for _ in 0..count {
            let length = u32::try_from(input.length()?).ok()?;
            let key = input.bytes()?;
            keys.extend_from_slice(key);
            blocks.push((u32::try_from(keys.len()).ok()?, page));
            page = page.checked_add(length).filter(|_| length > 0)?;
        }
        let filter = input.0.to_vec();
        keys.shrink_to_fit();
        blocks.shrink_to_fit();
        (page == pages && !blocks.is_empty()).then_some(Self { keys, blocks, pages, filter })
    }

    /// Memory, bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.keys.len() + 8 * self.blocks.len() + self.filter.len() + 128
    }

    /// The number of blocks, at least one.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn may_contain(&self, hash: u64) -> bool {
        filter::may_contain(&self.filter, hash)
    }

    fn separator(&self, block: usize) -> &[u8] {
        let start = if block == 0 { 0 } else { self.blocks[block - 1].0 };
        &self.keys[start as usize..self.blocks[block].0 as usize]
    }

    /// The block that may hold `key`.
    pub fn block_of(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.separator(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low - 1
    }

    /// The first page of a block and its number of pages.
    pub fn pages_of(&self, block: usize) -> (u32, u32) {
        let start = self.blocks[block].1;
        let end = self.blocks.get(block + 1).map_or(self.pages, |next| next.1);
        (start, end - start)
    }
}
