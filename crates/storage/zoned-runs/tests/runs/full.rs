//! A full device refuses puts, and always accepts reads and deletions.

use crate::support::{Model, assert_same, busy, geometry, memory, open};
use longma_random::SplitMix64;
use longma_zoned_runs::device::{Geometry, MemoryDevice};
use longma_zoned_runs::{Batch, Error, Options, Store};
use std::sync::Arc;

fn fill(
    store: &Store<Arc<longma_zoned_runs::device::MemoryDevice>>,
    rng: &mut SplitMix64,
    model: &mut Model,
) -> u64 {
    let mut filled = 0;
    // A merge may have to free space first. Each attempt does a part of that work.
    let mut patience = 200;
    while patience > 0 {
        let mut batch = Batch::new();
        let mut records = Vec::new();
        for _ in 0..20 {
            let (key, value) = (rng.next_u64().to_be_bytes().to_vec(), vec![rng.next_u64() as u8; 200]);
            batch.put(&key, &value);
            records.push((key, value));
        }
        match store.apply(&batch) {
            Ok(()) => {
                filled += 20;
                model.extend(records);
            }
            Err(Error::Full { is_merging: true, .. }) => patience -= 1,
            Err(Error::Full { is_merging: false, .. }) => return filled,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("merges never end");
}

#[test]
fn a_full_map_accepts_deletions_and_reads_and_then_puts_again() {
    let device = Arc::new(Store::format(memory(48), 7).unwrap());
    let mut store = open(Arc::clone(&device), busy(200_000));
    let (mut rng, mut model) = (SplitMix64::new(3), Model::new());
    for round in 0..4 {
        let filled = fill(&store, &mut rng, &mut model);
        assert!(filled > if round == 0 { 20_000 } else { 8_000 }, "round {round}: {filled} records fit");
        assert!(matches!(store.put(b"one more", &[0; 100]), Err(Error::Full { .. })));
        assert_same(&store, &model, "a full map");
        if round % 2 == 1 {
            // Opening flushes the log's batches, even on a full device.
            drop(store);
            store = open(Arc::clone(&device), busy(200_000));
            assert_same(&store, &model, "a full map that was opened again");
        }
        let gone: Vec<Vec<u8>> = model.keys().step_by(2).cloned().collect();
        for key in gone {
            store.delete(&key).unwrap_or_else(|error| panic!("round {round}: {error}"));
            model.remove(&key);
        }
        assert_same(&store, &model, "after deletions");
    }
    store.close().unwrap();
    assert_same(&open(device, busy(200_000)), &model, "opened again");
}

#[test]
fn replacing_values_for_ever_does_not_fill_the_device() {
    let store = open(Store::format(memory(48), 7).unwrap(), busy(200_000));
    let (mut rng, mut model) = (SplitMix64::new(4), Model::new());
    for _ in 0..3_000 {
        let mut batch = Batch::new();
        for _ in 0..20 {
            let (key, value) =
                ((rng.next_u64() % 8_000).to_be_bytes().to_vec(), vec![rng.next_u64() as u8; 200]);
            batch.put(&key, &value);
            model.insert(key, value);
        }
        store.apply(&batch).unwrap();
    }
    assert_same(&store, &model, "after replacing every value many times");
    assert!(store.statistics().full_merges > 3, "{:?}", store.statistics());
}

#[test]
fn the_smallest_device_that_can_be_formatted_has_room_for_records() {
    for zone_blocks in [16, 20, 60, 256, 2048] {
        let small = |sequential_zones| {
            let sizes =
                Geometry { zone_blocks, zone_capacity_blocks: zone_blocks, ..geometry(sequential_zones) };
            Store::format(MemoryDevice::new(sizes).unwrap(), 7)
        };
        let fewest = (1..).find(|&zones| small(zones).is_ok()).unwrap();
        let refusal = small(fewest - 1).map(|_| ()).unwrap_err().to_string();
        assert!(refusal.contains(&format!("at least {fewest} of that size")), "{refusal}");
        let store = open(Arc::new(small(fewest).unwrap()), Options::default());
        let filled = fill(&store, &mut SplitMix64::new(3), &mut Model::new());
        let device = u64::from(fewest) * zone_blocks * 4096;
        assert!(filled * 208 > device / 16, "{filled} records in {fewest} zones of {zone_blocks} blocks");
    }
}
