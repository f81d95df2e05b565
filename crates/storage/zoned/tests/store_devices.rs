//! The maps on every type of device: the durable map with random batches against a `BTreeMap`, garbage collection,
//! reopening and checking; the published trees with the paper's workloads. The tests in `durable_map/` go deeper, on
//! devices in memory.
//!
//! LONGMA_ZONED_DEVICE adds a zoned block device, whose contents are overwritten. LONGMA_ZONED_PAIRS sets the number of
//! pairs for the trees.

mod support;

use longma_zoned::device::{FileDevice, Geometry, KernelDevice, MemoryDevice, NullDevice};
use longma_zoned::store::Statistics;
use longma_zoned::{Batch, Options, Store, ZonedDevice};
use longma_zoned_lab::paper::{CowTree, Fanout, ZbTree};
use longma_zoned_lab::ycsb::{Operation, Rng, Workload, scatter};
use longma_zoned_lab::{ModelledDevice, Parameters};
use std::sync::Arc;
use support::{Model, Records, assert_same, batch};

type Device = Arc<dyn ZonedDevice>;

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 4096,
        zone_blocks: 128,
        zone_capacity_blocks: 120,
        conventional_zones: 2,
        sequential_zones: 16,
        max_open_zones: 8,
        max_active_zones: 10,
    }
}

/// Runs `test` on every type of device. The argument of `test` is a function that reopens the same device on each call.
fn on_every_device(test: impl Fn(&dyn Fn() -> Device)) {
    let memory: Device = Arc::new(MemoryDevice::new(geometry()).unwrap());
    test(&|| memory.clone());
    let modelled: Device =
        Arc::new(ModelledDevice::new(MemoryDevice::new(geometry()).unwrap(), Parameters::ZN540));
    test(&|| modelled.clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    drop(FileDevice::create(&path, geometry(), false).unwrap());
    test(&|| Arc::new(FileDevice::open(&path).unwrap()));
    if let Some(path) = std::env::var_os("LONGMA_ZONED_DEVICE") {
        test(&|| Arc::new(KernelDevice::open(path.as_ref(), None).unwrap()));
    }
}

fn open(device: Device) -> Store<Device> {
    let options = Options { cache_bytes: 400_000, journal_bytes: 400_000, ..Options::default() };
    Store::open(device, options).unwrap_or_else(|error| panic!("{error}"))
}

fn sound(device: Device) {
    let report = Store::check(device).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn the_map_behaves_like_a_btree_map_on_every_device() {
    on_every_device(|device| {
        drop(Store::format(device(), None, 7).unwrap());
        let (mut rng, mut model) = (Rng::new(3), Model::new());
        for round in 0..4 {
            let store = open(device());
            assert_same(&store.snapshot(), &model, "after opening");
            for _ in 0..40 {
                let changes = batch(&mut rng, Records::Large, 2_000, 60, 30, &mut model);
                store.apply(&changes).unwrap();
            }
            assert_same(&store.snapshot(), &model, "after batches");
            // The map is closed properly in every other round.
            if round % 2 == 0 {
                store.close().unwrap();
            }
        }
        sound(device());
    });
}

#[test]
fn garbage_is_collected_on_every_device() {
    on_every_device(|device| {
        let here = device();
        let geometry = here.geometry();
        let all = u64::from(geometry.sequential_zones)
            * geometry.zone_capacity_blocks
            * u64::from(geometry.block_bytes);
        let store = open(Store::format(here, None, 8).unwrap());
        // Fill a third of the device, then overwrite until twice the size of the device has been written.
        let (value_bytes, mut rng) = (20_000, Rng::new(5));
        let keys = all / 3 / value_bytes;
        let versions = (0..all * 2 / value_bytes).map(|n| (rng.below(keys), n));
        let mut newest = vec![None; keys as usize];
        for (key, version) in versions {
            let value: Vec<u8> = (0..value_bytes).map(|n| (n * 7 + version) as u8).collect();
            let mut change = Batch::new();
            change.put(&key.to_be_bytes(), &value);
            store.apply(&change).unwrap_or_else(|error| panic!("version {version}: {error}"));
            newest[key as usize] = Some(value);
        }
        let Statistics { reclaim, most_resets, .. } = store.statistics();
        assert!(reclaim.zones_reset > 0 || most_resets > 0, "{reclaim:?}");
        drop(store);
        let store = open(device());
        for (key, value) in newest.iter().enumerate() {
            assert!(store.get(&(key as u64).to_be_bytes()).unwrap() == *value, "key {key}");
        }
        store.close().unwrap();
        sound(device());
    });
}

#[test]
fn the_published_trees_run_the_papers_workloads_on_every_device() {
    let pairs = std::env::var("LONGMA_ZONED_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000);
    on_every_device(|device| {
        for name in ["W1", "W2", "W3", "W4", "W5"] {
            let workload = Workload::named(name).unwrap();
            let fanout = Fanout::of(&device().geometry()).at_most(32, 32);
            let operations = || (0..pairs).map(Operation::Insert).chain(workload.stream(pairs, pairs, 1));
            let mut answers = Vec::new();
            let mut zb = ZbTree::new(device(), fanout).unwrap();
            for operation in operations() {
                answers.push(match operation {
                    Operation::Insert(record) => Some(u64::from(zb.insert(scatter(record), record).unwrap())),
                    Operation::Delete(record) => Some(u64::from(zb.remove(scatter(record)).unwrap())),
                    Operation::Read(record) => zb.search(scatter(record)).unwrap(),
                    other => panic!("{other:?} in {name}"),
                });
            }
            zb.check().unwrap();
            let (reads, writes) = (zb.counts().reads.total(), zb.counts().writes());
            drop(zb);
            let mut cow = CowTree::new(device(), fanout).unwrap();
            for (operation, answer) in operations().zip(answers) {
                let same = match operation {
                    Operation::Insert(record) => {
                        Some(u64::from(cow.insert(scatter(record), record).unwrap()))
                    }
                    Operation::Delete(record) => Some(u64::from(cow.remove(scatter(record)).unwrap())),
                    Operation::Read(record) => cow.search(scatter(record)).unwrap(),
                    other => panic!("{other:?} in {name}"),
                };
                assert_eq!(same, answer, "{operation:?}");
            }
            println!(
                "{name} {} pairs: ZB+ {reads} reads {writes} writes; CoW {} reads {} writes",
                pairs,
                cow.counts().reads.total(),
                cow.counts().writes()
            );
            // With so few pairs the trees are lower than in the paper, and the copy-on-write tree's cost grows with its
            // height.
            assert!(
                writes * 3 < cow.counts().writes() * 2,
                "{name}: {writes} against {}",
                cow.counts().writes()
            );
        }
    });
}

/// The bitmap of all node slots must fit into memory.
#[test]
fn a_device_with_too_many_places_for_nodes_is_refused() {
    let geometry =
        Geometry { block_bytes: 4096, zone_blocks: 1 << 32, zone_capacity_blocks: 1 << 32, ..geometry() };
    let refused = Store::format(NullDevice::new(geometry).unwrap(), None, 1).err().unwrap().to_string();
    assert!(refused.contains(": give it fewer or smaller"), "{refused}");
}
