//! Shared by the tests of the durable map: small devices, random batches, and comparison with a model.
#![allow(dead_code, reason = "each test file uses its part")]

use longma_zoned::device::{Geometry, MemoryDevice};
use longma_zoned::{Batch, Direction, KeyRange, Options, Snapshot, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::collections::BTreeMap;

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A device with small zones: `conventional` and `sequential` zones of `zone_blocks` blocks of 512 bytes.
pub fn geometry(zone_blocks: u64, conventional: u32, sequential: u32) -> Geometry {
    Geometry {
        block_bytes: 512,
        zone_blocks,
        zone_capacity_blocks: zone_blocks - zone_blocks / 8,
        conventional_zones: conventional,
        sequential_zones: sequential,
        max_open_zones: 5,
        max_active_zones: 6,
    }
}

pub fn memory(zone_blocks: u64, conventional: u32, sequential: u32) -> MemoryDevice {
    MemoryDevice::new(geometry(zone_blocks, conventional, sequential)).unwrap()
}

/// Options with small limits, so that checkpoints and evictions are frequent.
pub const fn busy(cache_bytes: u64, journal_bytes: u64) -> Options {
    Options { cache_bytes, journal_bytes, ..Options::with_cache(cache_bytes) }
}

/// The kinds of keys and values in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// 8-byte keys and values.
    Fixed,
    /// Short and long keys, empty and long values.
    Variable,
    /// Records that include values larger than a node.
    Large,
}

impl Records {
    pub fn key(self, number: u64) -> Vec<u8> {
        match self {
            Records::Fixed => number.to_be_bytes().to_vec(),
            _ => {
                let mut key = format!("{:04}", number / 3).into_bytes();
                key.resize(key.len() + (number % 3) as usize * (1 + number as usize % 13), b'.');
                key
            }
        }
    }

    pub fn value(self, rng: &mut Rng) -> Vec<u8> {
        let bytes = match self {
            Records::Fixed => 8,
            Records::Variable => [0, 1, 8, 8, 8, 30, 50][rng.below(7) as usize],
            Records::Large => [0, 8, 8, 40, 100, 700, 2000][rng.below(7) as usize],
        };
        let seed = rng.next_u64();
        (0..bytes).map(|index: u64| (seed >> (index % 8 * 8)) as u8 ^ index as u8).collect()
    }
}

/// A random batch of up to `max_changes` changes to `keys` keys, also applied to the model. `deletions` is the
/// percentage of deletions.
pub fn batch(
    rng: &mut Rng,
    records: Records,
    keys: u64,
    max_changes: u64,
    deletions: u64,
    model: &mut Model,
) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=rng.below(max_changes) {
        let any = rng.below(keys);
        if rng.below(100) < deletions {
            let key = records.key(any);
            // Mostly delete a key that is present.
            let near = model.range(key.clone()..).next().map(|(key, _)| key.clone());
            let key = if rng.below(4) == 0 { key } else { near.unwrap_or(key) };
            batch.delete(&key);
            model.remove(&key);
        } else {
            let (key, value) = (records.key(any), records.value(rng));
            batch.put(&key, &value);
            model.insert(key, value);
        }
    }
    batch
}

pub fn rows<D: ZonedDevice>(
    snapshot: &Snapshot<D>,
    range: KeyRange<'_>,
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = snapshot.range(range).map(|row| row.unwrap().to_pair());
    match direction {
        Direction::Ascending => rows.collect(),
        Direction::Descending => rows.rev().collect(),
    }
}

/// Asserts that the snapshot and the model are equal, in both directions.
pub fn assert_same<D: ZonedDevice>(snapshot: &Snapshot<D>, model: &Model, what: &str) {
    let mut expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(snapshot.len(), expected.len() as u64, "{what}");
    assert!(rows(snapshot, KeyRange::ALL, Direction::Ascending) == expected, "{what}: ascending");
    expected.reverse();
    assert!(rows(snapshot, KeyRange::ALL, Direction::Descending) == expected, "{what}: descending");
}

/// The size of a test campaign: the value of the environment variable `variable`, or `ordinary` if it is not set.
pub fn campaign(variable: &str, ordinary: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary)
}

pub fn open<D: ZonedDevice>(device: D, options: Options) -> Store<D> {
    Store::open(device, options).unwrap_or_else(|error| panic!("{error}"))
}
