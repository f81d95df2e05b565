//! Small devices, random batches, and comparison with a model.

use longma_random::SplitMix64;
use longma_zoned_runs::device::{Geometry, MemoryDevice, ZonedDevice};
use longma_zoned_runs::{Batch, Durability, Options, Store};
use std::collections::BTreeMap;

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A device with zones of 64 blocks of 4 KiB, of which 60 can be written.
pub const fn geometry(sequential_zones: u32) -> Geometry {
    Geometry {
        block_bytes: 4096,
        zone_blocks: 64,
        zone_capacity_blocks: 60,
        conventional_zones: 2,
        sequential_zones,
        max_open_zones: 8,
        max_active_zones: 8,
    }
}

pub fn memory(sequential_zones: u32) -> MemoryDevice {
    MemoryDevice::new(geometry(sequential_zones)).unwrap()
}

/// The size of a campaign: the value of an environment variable, or `ordinary` if it is not set.
pub fn campaign(variable: &str, ordinary: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary)
}

/// Options with a small write buffer, so that flushes and merges are frequent.
pub const fn busy(write_buffer_bytes: u64) -> Options {
    Options { cache_bytes: 1 << 20, write_buffer_bytes, durability: Durability::EachBatch }
}

pub fn key(number: u64) -> Vec<u8> {
    let mut key = format!("{:04}", number / 3).into_bytes();
    key.resize(key.len() + (number % 3) as usize * (1 + number as usize % 13), b'.');
    key
}

pub fn value(rng: &mut SplitMix64) -> Vec<u8> {
    let bytes = [0, 8, 40, 100, 100, 300, 3000, 9000][(rng.next_u64() % 8) as usize];
    let seed = rng.next_u64();
    (0..bytes).map(|index: u64| (seed >> (index % 8 * 8)) as u8 ^ index as u8).collect()
}

/// A random batch, also applied to the model. `deletions` is the percentage of deletions.
pub fn batch(rng: &mut SplitMix64, keys: u64, most: u64, deletions: u64, model: &mut Model) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=rng.next_u64() % most {
        let key = key(rng.next_u64() % keys);
        if rng.next_u64() % 100 < deletions {
            batch.delete(&key);
            model.remove(&key);
        } else {
            let value = value(rng);
            batch.put(&key, &value);
            model.insert(key, value);
        }
    }
    batch
}

/// Asserts that the map and the model are equal, in both directions.
pub fn assert_same<D: ZonedDevice>(store: &Store<D>, model: &Model, what: &str) {
    let rows: Vec<_> = store.iter().map(Result::unwrap).collect();
    let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert!(rows == expected, "{what}: ascending, {} rows instead of {}", rows.len(), expected.len());
    let mut rows: Vec<_> = store.iter().rev().map(Result::unwrap).collect();
    rows.reverse();
    assert!(rows == expected, "{what}: descending, {} rows instead of {}", rows.len(), expected.len());
    for (key, value) in model {
        assert_eq!(store.get(key).unwrap().as_ref(), Some(value), "{what}");
    }
}

pub fn open<D: ZonedDevice>(device: D, options: Options) -> Store<D> {
    Store::open(device, options).unwrap_or_else(|error| panic!("{error}"))
}
