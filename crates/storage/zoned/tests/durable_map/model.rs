//! The durable map behaves like a `BTreeMap`, with all kinds of records, in all node states, across Sync, checkpoints,
//! garbage collection and reopening; snapshots do not change.

use crate::support::{Model, Records, assert_same, batch, busy, campaign, memory, open, rows};
use longma_zoned::device::MemoryDevice;
use longma_zoned::store::Statistics;
use longma_zoned::{Batch, Direction, KeyRange, NodeStates, Snapshot, Store};
use longma_zoned_lab::ycsb::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The parameters of a random run.
struct Run {
    records: Records,
    node_bytes: u32,
    keys: u64,
    zones: (u64, u32, u32),
    cache_bytes: u64,
    journal_bytes: u64,
    /// Whether all keys are bulk-loaded first and nearly fill the device. No snapshot is held then.
    begins_full: bool,
    seed: u64,
}

/// Updates and some deletions of all records in a part of the map, which fill up logs.
fn sweep(rng: &mut Rng, run: &Run, model: &mut Model) -> Batch {
    let first = rng.below(run.keys);
    let deletions = 10 * rng.below(2);
    let mut batch = Batch::new();
    for number in first..first + 80 {
        let key = run.records.key(number);
        if !model.contains_key(&key) {
            continue;
        }
        if rng.below(100) < deletions {
            batch.delete(&key);
            model.remove(&key);
        } else {
            let value = run.records.value(rng);
            batch.put(&key, &value);
            model.insert(key, value);
        }
    }
    batch
}

/// How often each event happened in a run.
type Covered = BTreeMap<&'static str, u64>;

fn add(covered: &mut Covered, counts: &[(&'static str, u64)]) {
    counts.iter().for_each(|&(what, count)| *covered.entry(what).or_default() += count);
}

/// Counts the nodes found by a check, by state.
fn add_states(covered: &mut Covered, states: &NodeStates) {
    let counts = [
        ("leaves in state change", states.change_leaves),
        ("interior nodes in state change", states.change_interiors),
        ("leaves in state steady-hot", states.steady_hot),
        ("interior nodes in state steady-cold", states.steady_cold),
        ("leaves in state after", states.after_leaves),
    ];
    add(covered, &counts);
}

/// Adds the statistics of a map since it was opened.
fn add_statistics(covered: &mut Covered, statistics: &Statistics) {
    let Statistics { tree, reclaim, checkpoints, leaves_remade, logs_remade, .. } = statistics;
    let counts = [
        ("changes in place", tree.changed_in_place),
        ("logged changes", tree.logged),
        ("leaves split", tree.split),
        ("leaves merged", tree.merged),
        ("leaves emptied", tree.emptied),
        ("normal applies, steady", tree.normal_apply_steady),
        ("normal applies, after", tree.normal_apply_after),
        ("switch applies, steady", tree.switch_apply_steady),
        ("switch applies, after", tree.switch_apply_after),
        ("heads and interior nodes split", tree.inner_split),
        ("heads and interior nodes merged", tree.inner_merged),
        ("heads evened out", tree.heads_evened),
        ("leaves copied for a snapshot", tree.copied),
        ("changed leaves made again", *leaves_remade),
        ("changed logs made again", *logs_remade),
        ("checkpoints", *checkpoints),
        ("victims of garbage collection", reclaim.victims),
        ("nodes moved by garbage collection", reclaim.nodes_moved),
        ("zones reset", reclaim.zones_reset),
        ("openings", 1),
    ];
    add(covered, &counts);
}

fn behaves_like_a_btree_map(run: &Run) -> Covered {
    let (zone_blocks, conventional, sequential) = run.zones;
    let device = Arc::new(memory(zone_blocks, conventional, sequential));
    let device = Store::format(device, Some(run.node_bytes), 1).unwrap();
    let options = busy(run.cache_bytes, run.journal_bytes);
    let mut store = open(Arc::clone(&device), options);
    let (mut rng, mut model, mut covered) = (Rng::new(run.seed), Model::new(), Covered::new());
    if run.begins_full {
        model = (0..run.keys).map(|n| (run.records.key(n), run.records.value(&mut rng))).collect();
        store.load(&model).unwrap();
    }
    let mut kept: Vec<(Snapshot<Arc<MemoryDevice>>, Model)> = Vec::new();
    let batches = campaign("LONGMA_ZONED_OPERATIONS", 120_000) / 6 / 12;
    for number in 0..batches {
        let deletions = [5, 30, 60, 95, 20][(number * 15 / batches % 5) as usize];
        let keys = if number * 30 / batches % 3 == 1 { run.keys / 20 + 1 } else { run.keys };
        let batch = batch(&mut rng, run.records, keys, 24, deletions, &mut model);
        store.apply(&batch).unwrap_or_else(|error| panic!("batch {number}: {error}"));
        let key = run.records.key(rng.below(run.keys));
        assert_eq!(store.get(&key).unwrap().as_ref(), model.get(&key), "batch {number}");
        if number % 17 == 4 {
            let report = store.check_now().unwrap();
            assert_eq!(report.problems, [], "batch {number}");
            add_states(&mut covered, &report.states);
            store.apply(&sweep(&mut rng, run, &mut model)).unwrap();
        }
        if number % 61 == 7 && !run.begins_full {
            kept.push((store.snapshot(), model.clone()));
        }
        let statistics = store.statistics();
        if 2 * statistics.empty_zones < statistics.zones {
            // Drop the snapshots: blocks released since the oldest one count as used, and a long run would fill the
            // device.
            kept.clear();
        }
        if number % 97 == 13 && kept.len() > 2 {
            let (snapshot, then) = kept.remove(rng.below(kept.len() as u64) as usize);
            assert_same(&snapshot, &then, "a snapshot");
        }
        if number % 131 == 17 {
            let (a, b) = (run.records.key(rng.below(run.keys)), run.records.key(rng.below(run.keys)));
            let range = KeyRange { start: Bound::Excluded(&a), end: Bound::Included(&b) };
            let expected: Vec<_> = match a < b {
                true => model
                    .range::<[u8], _>((range.start, range.end))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
                false => Vec::new(),
            };
            assert_eq!(rows(&store.snapshot(), range, Direction::Ascending), expected);
        }
        if number % 257 == 200 {
            kept.clear();
            if rng.below(2) == 0 {
                store.checkpoint().unwrap();
            }
            add_statistics(&mut covered, &store.statistics());
            drop(store);
            store = open(Arc::clone(&device), options);
            assert_same(&store.snapshot(), &model, "after opening again");
        }
    }
    add_statistics(&mut covered, &store.statistics());
    kept.clear();
    assert_same(&store.snapshot(), &model, "at the end");
    store.close().unwrap();
    assert_same(&open(device, options).snapshot(), &model, "after closing");
    add(&mut covered, &[("changes, about", batches * 12)]);
    covered
}

/// Prints the event counts of all runs and fails if an event never happened, except those of `rare`.
fn assert_all_covered(runs: &[(u32, Covered)], rare: &[&str]) {
    println!("{:36} {:?}", "bytes of a node", runs.iter().map(|run| run.0).collect::<Vec<_>>());
    let mut missed = Vec::new();
    for what in runs[0].1.keys() {
        let counts: Vec<_> = runs.iter().map(|run| run.1[what]).collect();
        println!("{what:36} {counts:?}");
        if counts.iter().all(|&count| count == 0) && !rare.contains(what) {
            missed.push(*what);
        }
    }
    assert_eq!(missed, [""; 0], "these never occurred");
}

#[test]
fn the_map_behaves_like_a_btree_map_with_records_of_one_length() {
    let runs = [
        (512, 4_000, (256, 4, 12), 40_000, 1),
        (512, 20_000, (512, 1, 40), 200_000, 2),
        (1024, 3_000, (64, 4, 24), 1 << 20, 3),
        (512, 7_000, (32, 2, 28), 40_000, 7),
    ];
    let runs = runs.map(|(node_bytes, keys, zones, cache_bytes, seed)| {
        let (records, journal_bytes, begins_full) = (Records::Fixed, 40_000, seed == 7);
        let run = Run { records, node_bytes, keys, zones, cache_bytes, journal_bytes, begins_full, seed };
        (node_bytes, behaves_like_a_btree_map(&run))
    });
    assert_all_covered(&runs, &[]);
}

#[test]
fn the_map_behaves_like_a_btree_map_with_records_of_many_lengths() {
    let runs = [
        (512, 2_000, (256, 4, 12), 40_000, 4),
        (2048, 20_000, (1024, 2, 12), 300_000, 5),
        (512, 9_000, (32, 2, 60), 40_000, 8),
    ];
    let runs = runs.map(|(node_bytes, keys, zones, cache_bytes, seed)| {
        let (records, journal_bytes, begins_full) = (Records::Variable, 60_000, seed == 8);
        let run = Run { records, node_bytes, keys, zones, cache_bytes, journal_bytes, begins_full, seed };
        (node_bytes, behaves_like_a_btree_map(&run))
    });
    // Most logs of a leaf with deletions are applied before they are full.
    assert_all_covered(&runs, &["switch applies, after"]);
}

#[test]
fn the_map_behaves_like_a_btree_map_with_values_that_fit_into_no_node() {
    let (records, node_bytes, zones) = (Records::Large, 512, (512, 4, 20));
    let (cache_bytes, journal_bytes, begins_full) = (60_000, 60_000, false);
    let run = Run { records, node_bytes, keys: 600, zones, cache_bytes, journal_bytes, begins_full, seed: 6 };
    println!("{:#?}", behaves_like_a_btree_map(&run));
}

#[test]
fn a_bulk_load_fills_leaves_completely() {
    let device = Store::format(Arc::new(memory(1024, 2, 16)), Some(1024), 1).unwrap();
    let store = open(Arc::clone(&device), busy(100_000, 100_000));
    let model: Model =
        (0..50_000u64).map(|n| (n.to_be_bytes().to_vec(), (n * 7).to_be_bytes().to_vec())).collect();
    assert_eq!(store.load(model.iter()).unwrap(), 50_000);
    assert_same(&store.snapshot(), &model, "after the load");
    assert!(store.load([(b"b", b"1"), (b"a", b"2")]).is_err());
    drop(store);
    let store = open(device, busy(100_000, 100_000));
    assert_same(&store.snapshot(), &model, "after opening again");
    let statistics = store.statistics();
    // A leaf of 1024 bytes holds 60 records; the rest is heads.
    assert!(statistics.live_blocks / 2 < 50_000 / 60 + 80, "{statistics:?}");
}

#[test]
fn keys_and_values_of_unsupported_lengths_are_rejected_without_any_change() {
    let device = Store::format(Arc::new(memory(256, 2, 8)), Some(512), 1).unwrap();
    let store = open(device, busy(100_000, 100_000));
    let (longest_key, longest_value) = store.limits();
    let mut batch = Batch::new();
    batch.put(b"good", b"value").put(&vec![b'k'; longest_key + 1], b"");
    assert!(matches!(store.apply(&batch), Err(longma_zoned::Error::KeyLength { .. })));
    batch.clear();
    batch.put(b"good", b"value").put(b"k", &vec![0; longest_value + 1]);
    assert!(matches!(store.apply(&batch), Err(longma_zoned::Error::ValueLength { .. })));
    assert!(store.is_empty());
    let (key, value) = (vec![b'k'; longest_key], vec![b'v'; longest_value]);
    assert!(store.put(&key, &value).unwrap() && store.put(b"", b"").unwrap());
    assert_eq!(store.get(&key).unwrap(), Some(value));
    assert_eq!(store.get(b"").unwrap(), Some(Vec::new()));
}

#[test]
fn steady_leaves_take_changes_in_logs_and_inserts_apply_them_in_all_four_ways() {
    // 29 records of 16 bytes fill a leaf of 512 bytes.
    const LEAF: u64 = 29;
    let device = Store::format(Arc::new(memory(256, 2, 12)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(1 << 20, 1 << 20));
    let key = |number: u64| (2 * number).to_be_bytes().to_vec();
    let mut model: Model = (0..10 * LEAF).map(|n| (key(n), n.to_be_bytes().to_vec())).collect();
    store.load(&model).unwrap();
    let change = |number: u64, value: Option<u64>, model: &mut Model| match value {
        Some(value) => {
            store.put(&key(number), &value.to_be_bytes()).unwrap();
            model.insert(key(number), value.to_be_bytes().to_vec());
        }
        None => {
            store.delete(&key(number)).unwrap();
            model.remove(&key(number));
        }
    };
    // Changes to the first four leaves: all records updated; some updated; some deleted; some deleted and the rest
    // updated.
    for number in 0..LEAF {
        change(number, Some(1), &mut model);
        if number < 5 {
            change(LEAF + number, Some(2), &mut model);
            change(2 * LEAF + number, None, &mut model);
        }
        change(3 * LEAF + number, (number > 3).then_some(4), &mut model);
    }
    assert_same(&store.snapshot(), &model, "with logs in memory");
    store.checkpoint().unwrap();
    let logged = store.statistics();
    assert_eq!(logged.tree.logged, LEAF + 5 + 5 + LEAF);
    assert_eq!(store.check_now().unwrap().logs, 4);
    drop(store);
    let store = open(device, busy(1 << 20, 1 << 20));
    assert_same(&store.snapshot(), &model, "with logs on the device");
    for leaf in 0..4 {
        let between = (2 * (leaf * LEAF + 7) + 1).to_be_bytes();
        store.put(&between, b"inserted").unwrap();
        model.insert(between.to_vec(), b"inserted".to_vec());
    }
    let tree = store.statistics().tree;
    let applied = [
        tree.switch_apply_steady,
        tree.normal_apply_steady,
        tree.normal_apply_after,
        tree.switch_apply_after,
    ];
    assert_eq!((applied, tree.split), ([1; 4], 2), "{tree:?}");
    assert_same(&store.snapshot(), &model, "after Sync");
}
