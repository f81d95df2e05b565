//! The cache of data blocks and of table indexes: sixteen shards, each with clock replacement.
//!
//! Source: Corbató, "A Paging Experiment with the Multics System", 1968 (the clock algorithm).

use crate::block::DataBlock;
use crate::table::TableIndex;
use longma_locks::IgnorePoison;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const SHARDS: usize = 16;

/// A table's number, and the page of a block. The index has page `u32::MAX`.
pub type CacheKey = (u64, u32);

/// A cache entry's content.
#[derive(Clone)]
pub enum Cached {
    Block(Arc<DataBlock>),
    Index(Arc<TableIndex>),
}

struct Entry {
    key: CacheKey,
    content: Cached,
    memory: usize,
    /// The number of times that the clock hand passes before the entry is evicted.
    lives: u8,
}

#[derive(Default)]
struct Shard {
    indices: HashMap<CacheKey, usize>,
    entries: Vec<Entry>,
    hand: usize,
    memory: usize,
}

/// The cache of a map.
pub struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    max_shard_bytes: usize,
}

/// The overhead of an entry in the map and in the list, bytes.
const ENTRY_BYTES: usize = 96;

impl Cache {
    /// A cache that holds at most `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        Self { shards: Default::default(), max_shard_bytes: (bytes / SHARDS as u64) as usize }
    }

    fn shard(&self, key: CacheKey) -> &Mutex<Shard> {
        let mixed = (key.0 ^ (u64::from(key.1) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize]
    }

    pub fn get(&self, key: CacheKey) -> Option<Cached> {
        let mut shard = self.shard(key).lock().ignore_poison();
        let index = *shard.indices.get(&key)?;
        let entry = &mut shard.entries[index];
        entry.lives = if matches!(entry.content, Cached::Index(_)) { 4 } else { 1 };
        Some(entry.content.clone())
    }

    /// Adds an entry. Blocks longer than an eighth of a shard are not cached, so that one block does not evict all
    /// others; an index may fill a shard.
    pub fn insert(&self, key: CacheKey, content: Cached, memory: usize) {
        let memory = memory + ENTRY_BYTES;
        if memory > self.max_shard_bytes / 8
            && !(matches!(content, Cached::Index(_)) && memory <= self.max_shard_bytes)
        {
            return;
        }
        let mut shard = self.shard(key).lock().ignore_poison();
        if shard.indices.contains_key(&key) {
            return;
        }
        while shard.memory + memory > self.max_shard_bytes {
            shard.evict_one();
        }
        let index = shard.entries.len();
        shard.entries.push(Entry { key, content, memory, lives: 0 });
        shard.indices.insert(key, index);
        shard.memory += memory;
    }

    /// Memory of all entries, bytes.
    pub fn memory(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().ignore_poison().memory).sum()
    }
}

impl Shard {
    fn evict_one(&mut self) {
        loop {
            self.hand %= self.entries.len().max(1);
            let Some(entry) = self.entries.get_mut(self.hand) else { return };
            if entry.lives > 0 {
                entry.lives -= 1;
                self.hand += 1;
                continue;
            }
            let gone = self.entries.swap_remove(self.hand);
            self.indices.remove(&gone.key);
            self.memory -= gone.memory;
            if let Some(moved) = self.entries.get(self.hand) {
                self.indices.insert(moved.key, self.hand);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockAddress, BlockBuilder};

    #[test]
    fn the_cache_stays_within_its_limit_and_keeps_what_is_used() {
        let mut builder = BlockBuilder::default();
        builder.add(b"key", Some(&[0; 900]));
        let address = BlockAddress { map: 1, table: 1, block: 1 };
        let block = Arc::new(DataBlock::decode(&address, &builder.finish(&address, 1024)).expect("a block"));
        let cache = Cache::new(16 * 40_000);
        for page in 0..4_000 {
            cache.insert((1, page), Cached::Block(Arc::clone(&block)), block.memory());
            cache.get((1, 0));
            assert!(cache.memory() <= 16 * 40_000);
        }
        assert!(cache.get((1, 0)).is_some() && cache.get((1, 1)).is_none());
        assert!(cache.memory() > 16 * 30_000);
    }
}
