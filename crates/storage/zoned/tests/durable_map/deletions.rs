//! Tests of the space that records take and of the bytes written for them: deletions in random order, a cache that just
//! holds the map, values of a few hundred bytes.

use crate::support::{busy, open};
use longma_zoned::device::{Geometry, MemoryDevice};
use longma_zoned::{Batch, Error, Store};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

type Map = Store<Arc<MemoryDevice>>;

fn map(cache_bytes: u64) -> Map {
    map_of(40, cache_bytes)
}

/// A map on `zones` zones of 256 KiB.
fn map_of(zones: u32, cache_bytes: u64) -> Map {
    let geometry = Geometry {
        block_bytes: 4096,
        zone_blocks: 64,
        zone_capacity_blocks: 64,
        conventional_zones: 4,
        sequential_zones: zones,
        max_open_zones: 0,
        max_active_zones: 0,
    };
    let device = Arc::new(MemoryDevice::new(geometry).unwrap());
    open(Store::format(device, None, 1).unwrap(), busy(cache_bytes, cache_bytes / 4))
}

/// Keys in the order of their numbers.
fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[15] = number as u8;
    key
}

/// Applies changes in batches of 100. Returns the number of changes applied before the map is full.
fn apply(map: &Map, numbers: impl Iterator<Item = u64>, change: impl Fn(&mut Batch, &[u8])) -> u64 {
    let (mut batch, mut done) = (Batch::new(), 0);
    for number in numbers {
        change(&mut batch, &key(number));
        if batch.len() == 100 {
            match map.apply(&batch) {
                Ok(_) => done += 100,
                Err(Error::Full { .. }) => return done,
                Err(error) => panic!("{error}"),
            }
            batch.clear();
        }
    }
    map.apply(&batch).unwrap();
    done + batch.len() as u64
}

/// The blocks that nodes and large values take.
fn blocks(map: &Map) -> u64 {
    let statistics = map.statistics();
    statistics.live_blocks + statistics.slots_used
}

fn put(batch: &mut Batch, key: &[u8]) {
    batch.put(key, &[key[15]; 100]);
}

fn delete(batch: &mut Batch, key: &[u8]) {
    batch.delete(key);
}

/// The numbers of `0..count` in random order.
fn shuffled(count: u64) -> Vec<u64> {
    let (mut numbers, mut rng): (Vec<u64>, _) = ((0..count).collect(), Rng::new(count));
    for index in (1..numbers.len()).rev() {
        numbers.swap(index, rng.below(index as u64 + 1) as usize);
    }
    numbers
}

#[test]
fn the_space_of_nine_records_in_ten_comes_back_after_they_are_deleted() {
    const RECORDS: u64 = 20_000;
    for (cache_bytes, is_full) in [(64 << 20, false), (1 << 20, false), (64 << 20, true), (1 << 20, true)] {
        let map = map(cache_bytes);
        // Leaves that are full and steady, or filled by inserts in random order.
        let numbers = if is_full { (0..RECORDS).collect() } else { shuffled(RECORDS) };
        assert_eq!(apply(&map, numbers.into_iter(), put), RECORDS);
        map.checkpoint().unwrap();
        let before = blocks(&map);
        apply(&map, shuffled(RECORDS).into_iter().skip(RECORDS as usize / 10), delete);
        map.checkpoint().unwrap();
        map.checkpoint().unwrap();
        let (after, ideal) = (blocks(&map), RECORDS / 10 * 116 / 4096);
        let what = format!("cache of {cache_bytes} bytes, full leaves: {is_full}");
        println!("{what}: {before} blocks become {after}, ideal {ideal}");
        assert!(2 * after <= 3 * ideal, "{what}: {before} blocks become {after}, ideal {ideal}");
        assert_eq!((map.len(), map.iter().count() as u64), (RECORDS / 10, RECORDS / 10));
        assert!(map.check_now().unwrap().problems.is_empty());
    }
}

#[test]
fn a_full_map_takes_as_many_records_as_were_deleted() {
    let (small, large) = (1 << 20, 64 << 20);
    let mut most = 0;
    for (is_random, cache_bytes, is_behind) in [
        (false, large, false),
        (false, small, false),
        (false, small, true),
        (true, large, true),
        (true, small, false),
    ] {
        let map = map(cache_bytes);
        let even: Vec<u64> = if is_random { shuffled(1 << 18) } else { (0..1 << 18).collect() };
        let filled = apply(&map, even.iter().map(|number| 2 * number), put);
        let there: Vec<u64> = shuffled(filled).into_iter().map(|index| even[index as usize]).collect();
        let half = there[..filled as usize / 2].iter();
        assert_eq!(apply(&map, half.map(|number| 2 * number), delete), filled / 2);
        // Between the keys that are left, or all of them after the last key.
        let new = |number: &u64| if is_behind { number + (1 << 20) } else { 2 * number + 1 };
        let again = apply(&map, there.iter().map(new), put);
        let what = format!("cache of {cache_bytes} bytes, random {is_random}, behind {is_behind}");
        println!("{what}: {filled} filled it, {again} after deleting half");
        // Leaves filled in order have no free space.
        most = most.max(filled);
        assert!(100 * filled >= 95 * most, "{what}: {filled} filled it, and {most} in order");
        assert!(100 * again >= 95 * filled / 2, "{what}: {again} of {filled} / 2");
        assert!(map.check_now().unwrap().problems.is_empty());
    }
}

#[test]
fn random_changes_of_a_map_about_as_large_as_its_cache_write_little() {
    const CACHE_BYTES: u64 = 8 << 20;
    // Leaves of 0.5, 0.84 and 1.2 times the cache.
    for (records, most) in [(26_000, 12.0), (42_000, 16.0), (60_000, 16.0)] {
        let map = map_of(480, CACHE_BYTES);
        apply(&map, shuffled(records).into_iter(), put);
        let before = map.statistics();
        let mut rng = Rng::new(3);
        apply(&map, (0..2 * records).map(|_| rng.below(records)), put);
        let after = map.statistics();
        let written = (after.traffic.written() - before.traffic.written()) * 4096;
        let payload = after.payload_bytes - before.payload_bytes;
        let inserts = before.write_amplification(4096);
        let updates = written as f64 / payload as f64;
        println!("{records} records in {} blocks: inserts {inserts:.1}, updates {updates:.1}", blocks(&map));
        assert!(
            inserts <= most && updates <= most,
            "{records} records: inserts {inserts}, updates {updates}"
        );
    }
}

#[test]
fn values_of_some_hundred_bytes_share_blocks_and_are_cached() {
    for value_bytes in [505, 700, 1000, 1500] {
        for is_random in [false, true] {
            let map = map_of(160, 32 << 20);
            let numbers = if is_random { shuffled(5_000) } else { (0..5_000).collect() };
            let put = |batch: &mut Batch, key: &[u8]| _ = batch.put(key, &vec![key[15]; value_bytes]);
            apply(&map, numbers.into_iter(), put);
            map.checkpoint().unwrap();
            let space = (blocks(&map) * 4096) as f64 / (5_000 * (16 + value_bytes)) as f64;
            println!("values of {value_bytes} bytes, random {is_random}: {space:.2} bytes per byte");
            assert!(
                space <= 2.2,
                "values of {value_bytes} bytes, random {is_random}: {space} bytes per byte"
            );
            let read = map.statistics().traffic.read;
            for number in 0..5_000 {
                assert_eq!(map.get(&key(number)).unwrap().unwrap(), vec![number as u8; value_bytes]);
            }
            assert_eq!(map.statistics().traffic.read, read, "values of {value_bytes} bytes are not cached");
        }
    }
}
