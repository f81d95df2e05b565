//! Power cuts after every write, with any of the unflushed writes lost or torn: all acknowledged batches are present,
//! no batch is half applied, and a check finds no problems.

use crate::support::{Model, Records, assert_same, batch, busy, campaign, geometry, memory, open};
use longma_zoned::device::{FaultyDevice, MemoryDevice};
use longma_zoned::{Batch, Durability, Options, Store};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

/// A recorded workload.
struct Recorded {
    device: Arc<FaultyDevice>,
    /// For each batch: the change count of the device when the batch was acknowledged, and the contents of the map
    /// then.
    states: Vec<(u64, Model)>,
}

/// The parameters of a workload.
#[derive(Clone, Copy)]
struct Work {
    records: Records,
    keys: u64,
    batches: u64,
    deletions: u64,
    zones: (u64, u32, u32),
    options: Options,
    /// Whether the map is nearly full before the workload begins.
    is_full: bool,
    seed: u64,
}

/// Inserts records until 85 % of the usable blocks are in use; logs and inner nodes take up to another tenth at times.
/// Returns the number of records.
fn fill(store: &Store<Arc<FaultyDevice>>, work: Work, model: &mut Model) -> u64 {
    let (mut rng, mut keys) = (Rng::new(work.seed), 0);
    loop {
        if keys % 64 == 0 {
            // Nodes that no checkpoint has written yet do not count as used.
            store.checkpoint().unwrap();
        }
        let statistics = store.statistics();
        if statistics.live_blocks * 100 >= statistics.usable_blocks * 85 {
            return keys;
        }
        let mut changes = Batch::new();
        for _ in 0..8 {
            let (key, value) = (work.records.key(keys), work.records.value(&mut rng));
            changes.put(&key, &value);
            model.insert(key, value);
            keys += 1;
        }
        store.apply(&changes).unwrap();
    }
}

fn record(work: Work) -> Recorded {
    let (zone_blocks, conventional, sequential) = work.zones;
    let device = FaultyDevice::new(geometry(zone_blocks, conventional, sequential)).unwrap();
    let device = Store::format(Arc::new(device), Some(512), work.seed).unwrap();
    let store = open(Arc::clone(&device), work.options);
    let (mut rng, mut model) = (Rng::new(work.seed), Model::new());
    let keys = if work.is_full { fill(&store, work, &mut model) } else { work.keys };
    if work.is_full {
        // Enough changes that garbage collection runs continuously.
        for _ in 0..400 {
            store.apply(&batch(&mut rng, work.records, keys, 12, work.deletions, &mut model)).unwrap();
        }
    }
    device.record();
    let mut states = vec![(device.changes(), model.clone())];
    for _ in 0..work.batches {
        let batch = batch(&mut rng, work.records, keys, 12, work.deletions, &mut model);
        store.apply(&batch).unwrap();
        states.push((device.changes(), model.clone()));
    }
    Recorded { device, states }
}

/// Opens an image and returns the index of the state it holds, which is at least `acknowledged`.
fn state_of(
    image: Arc<MemoryDevice>,
    options: Options,
    states: &[(u64, Model)],
    acknowledged: usize,
    what: &str,
) -> usize {
    let store = Store::open(Arc::clone(&image), options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let snapshot = store.snapshot();
    let found =
        crate::support::rows(&snapshot, longma_zoned::KeyRange::ALL, longma_zoned::Direction::Ascending);
    let same = |(_, model): &(u64, Model)| {
        model.len() == found.len() && model.iter().zip(&found).all(|(a, b)| (a.0, a.1) == (&b.0, &b.1))
    };
    let state = states[acknowledged..].iter().position(same);
    let Some(state) = state else {
        panic!("{what}: the contents match no state from batch {acknowledged} on")
    };
    assert_same(&snapshot, &states[acknowledged + state].1, what);
    drop(snapshot);
    let report = Store::check(Arc::clone(&image)).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    acknowledged + state
}

/// Cuts the recorded workload after every write, with several choices of lost writes, and returns the number of images.
fn survives_every_cut(work: Work, ways: usize) -> u64 {
    let Recorded { device, states } = record(work);
    let recording = device.recording().unwrap();
    let mut images = 0;
    for (changes, cut) in recording.cuts() {
        let acknowledged = match work.options.durability {
            Durability::EachBatch => states.iter().rposition(|state| state.0 <= changes).unwrap_or(0),
            Durability::Relaxed => 0,
        };
        let begun = states.iter().position(|state| state.0 > changes).unwrap_or(states.len() - 1);
        for (way, image) in cut.images(ways, work.seed ^ changes).enumerate() {
            let what = format!("seed {}, cut after change {changes}, way {way}", work.seed);
            let state = state_of(Arc::new(image), work.options, &states[..=begun], acknowledged, &what);
            assert!(state <= begun, "{what}");
            images += 1;
        }
    }
    images
}

#[test]
fn a_power_cut_anywhere_loses_no_acknowledged_batch_and_applies_none_partially() {
    let seeds = campaign("LONGMA_ZONED_CUT_SEEDS", 1);
    let mut images = 0;
    for seed in 1..=seeds {
        if seed > 1 {
            println!("{images} images of {} workloads", 6 * (seed - 1));
        }
        let work = Work {
            records: Records::Fixed,
            keys: 400,
            batches: 120,
            deletions: 30,
            zones: (64, 2, 10),
            options: busy(20_000, 6_000),
            is_full: false,
            seed,
        };
        images += survives_every_cut(work, 6);
        // There are so few conventional blocks that nodes are written to sequential zones, which must be collected.
        images += survives_every_cut(
            Work { zones: (24, 1, 12), keys: 700, batches: 150, deletions: 10, ..work },
            5,
        );
        images += survives_every_cut(Work { records: Records::Variable, keys: 300, ..work }, 5);
        let large = Work { records: Records::Large, keys: 60, batches: 80, zones: (64, 2, 16), ..work };
        images += survives_every_cut(large, 5);
        // Continuous garbage collection, and recovery with hardly any free space.
        let full = Work { is_full: true, zones: (16, 1, 14), batches: 12, deletions: 2, ..work };
        images += survives_every_cut(full, 3);
        images += survives_every_cut(Work { zones: (32, 1, 12), batches: 8, ..full }, 3);
    }
    println!("{images} images of {} workloads", 6 * seeds);
    assert!(images > 2_000 * seeds, "{images} images");
}

#[test]
fn without_a_flush_for_each_batch_a_cut_loses_the_newest_batches_only() {
    for seed in 1..=campaign("LONGMA_ZONED_CUT_SEEDS", 1) {
        let options = Options { durability: Durability::Relaxed, ..busy(20_000, 6_000) };
        let work = Work {
            records: Records::Large,
            keys: 80,
            batches: 80,
            deletions: 30,
            zones: (64, 2, 16),
            options,
            is_full: false,
            seed,
        };
        survives_every_cut(work, 8);
    }
}

#[test]
fn a_cut_while_the_map_recovers_from_a_cut_loses_nothing() {
    for seed in 1..=campaign("LONGMA_ZONED_CUT_SEEDS", 1) {
        let work = Work {
            records: Records::Fixed,
            keys: 300,
            batches: 60,
            deletions: 30,
            zones: (64, 1, 10),
            options: busy(20_000, 6_000),
            is_full: seed % 2 == 0,
            seed: seed + 100,
        };
        let Recorded { device, states } = record(work);
        let recording = device.recording().unwrap();
        for (changes, cut) in recording.cuts().step_by(9) {
            let acknowledged = states.iter().rposition(|state| state.0 <= changes).unwrap_or(0);
            let again = Arc::new(FaultyDevice::over(cut.random_image(seed ^ changes)));
            again.record();
            let store = open(Arc::clone(&again), work.options);
            store.put(b"after the cut", b"there").unwrap();
            let done = again.changes();
            drop(store);
            for (second, cut) in again.recording().unwrap().cuts() {
                let image = Arc::new(cut.random_image(second));
                let what = format!("seed {seed}, cut after change {changes} and again after {second}");
                let store = Store::open(Arc::clone(&image), work.options)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                if second >= done {
                    assert!(store.get(b"after the cut").unwrap().is_some(), "{what}");
                }
                store.delete(b"after the cut").unwrap();
                store.close().unwrap();
                state_of(
                    image,
                    work.options,
                    &states[..(acknowledged + 2).min(states.len())],
                    acknowledged,
                    &what,
                );
            }
        }
    }
}

#[test]
fn a_cut_while_a_map_is_formatted_leaves_no_map_or_an_empty_one() {
    let device = Arc::new(FaultyDevice::over(memory(64, 1, 8)));
    let store = open(Store::format(Arc::clone(&device), Some(512), 1).unwrap(), busy(20_000, 6_000));
    store.put(b"old", b"map").unwrap();
    store.close().unwrap();
    device.record();
    Store::format(Arc::clone(&device), Some(512), 2).unwrap();
    for (changes, cut) in device.recording().unwrap().cuts().skip(1) {
        for image in cut.images(10, changes) {
            match Store::open(Arc::new(image), busy(20_000, 6_000)) {
                Ok(store) => assert!(store.is_empty() || store.get(b"old").unwrap().is_some()),
                Err(error) => assert!(matches!(error, longma_zoned::Error::NotFormatted { .. }), "{error}"),
            }
        }
    }
    let mut batch = Batch::new();
    batch.put(b"new", b"map");
    open(device, busy(20_000, 6_000)).apply(&batch).unwrap();
}
