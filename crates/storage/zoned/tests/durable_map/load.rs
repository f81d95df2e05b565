//! Concurrent readers and a writer, and mixed loads on a nearly full device.

use crate::support::{Model, assert_same, busy, memory, open};
use longma_zoned::device::{Block, Counted, Counts, DeviceError, Geometry, MemoryDevice, Zone, ZoneNumber};
use longma_zoned::{Batch, Durability, Error, Options, Store, ZonedDevice};
use longma_zoned_lab::soak::{SoakOptions, soak};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn readers_concurrent_with_a_writer_see_whole_batches_and_one_version() {
    const ACCOUNTS: u64 = 2_000;
    const EACH: u64 = 1_000;
    let device = Store::format(Arc::new(memory(256, 2, 16)), Some(512), 1).unwrap();
    // The cache is so small that readers read from the device while the writer's checkpoints release blocks.
    let store = open(device, busy(30_000, 30_000));
    let key = |account: u64| account.to_be_bytes();
    store.load((0..ACCOUNTS).map(|account| (key(account), EACH.to_le_bytes()))).unwrap();
    let (stop, scans) = (AtomicBool::new(false), AtomicU64::new(0));
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (store, stop, scans) = (store.clone(), &stop, &scans);
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    let sum = || -> u64 {
                        let mut rows = snapshot.iter();
                        std::iter::from_fn(|| if reader == 1 { rows.next_back() } else { rows.next() })
                            .map(|row| number(row.unwrap().value()))
                            .sum()
                    };
                    assert_eq!(sum(), ACCOUNTS * EACH);
                    let account = key(rng.below(ACCOUNTS));
                    let before = snapshot.get(&account).unwrap();
                    std::thread::yield_now();
                    assert_eq!(snapshot.get(&account).unwrap(), before, "a snapshot does not change");
                    assert_eq!(sum(), ACCOUNTS * EACH);
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut rng = Rng::new(77);
        let mut transfers = 0;
        while transfers < 2_000 || scans.load(Ordering::Relaxed) < 30 {
            let mut batch = Batch::new();
            for _ in 0..rng.below(10) + 1 {
                let (from, to) = (key(rng.below(ACCOUNTS / 2)), key(ACCOUNTS / 2 + rng.below(ACCOUNTS / 2)));
                let read = |key: &[u8]| number(&store.get(key).unwrap().unwrap());
                // Each account at most once per batch, because balances are read before the batch.
                if batch.is_empty() {
                    let amount = rng.below(read(&from) + 1);
                    batch.put(&from, &(read(&from) - amount).to_le_bytes());
                    batch.put(&to, &(read(&to) + amount).to_le_bytes());
                }
            }
            store.apply(&batch).unwrap();
            transfers += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(store.check_now().unwrap().problems, []);
}

/// 4 conventional and 188 sequential zones of 64 blocks of 4 KiB: 48 MiB.
fn small_ssd() -> MemoryDevice {
    let geometry = Geometry {
        block_bytes: 4096,
        zone_blocks: 64,
        zone_capacity_blocks: 64,
        conventional_zones: 4,
        sequential_zones: 188,
        max_open_zones: 14,
        max_active_zones: 14,
    };
    MemoryDevice::new(geometry).unwrap()
}

/// A device on which every hundredth flush is slow.
struct Slow {
    inner: MemoryDevice,
    flushes: AtomicU64,
}

impl ZonedDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        self.inner.zone(zone)
    }
    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(block, buffer)
    }
    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(block, data)
    }
    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        self.inner.append(zone, data)
    }
    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.reset(zone)
    }
    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.finish(zone)
    }
    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.open(zone)
    }
    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.close(zone)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        if self.flushes.fetch_add(1, Ordering::Relaxed) % 100 == 99 {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.inner.flush()
    }
    fn name(&self) -> String {
        "slow".into()
    }
}

#[test]
fn a_mixed_load_on_a_nearly_full_device_keeps_its_speed() {
    let device = Store::format(Arc::new(small_ssd()), None, 1).unwrap();
    let options = Options { cache_bytes: 8 << 20, journal_bytes: 1 << 20, durability: Durability::Relaxed };
    let store = open(device, options);
    let options = SoakOptions {
        duration: Duration::ZERO,
        windows: 8,
        window_operations: 1_000,
        batch: 100,
        ..SoakOptions::default()
    };
    let report = soak(&store, options, &|| false, &mut |_| ()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.fill[0] >= 0.9, "{:?}", report.fill);
    assert!(report.zones_reset > 20 && report.statistics.reclaim.nodes_moved > 0, "{:?}", report.statistics);
    // Times depend on the machine, but the blocks written do not: no window may write more than twice the mean.
    let blocks: Vec<u64> = report.windows.iter().map(|window| window.blocks_written).collect();
    let mean = blocks.iter().sum::<u64>() / blocks.len() as u64;
    println!("{blocks:?} {:?}", report.statistics.reclaim);
    assert!(blocks.iter().all(|&blocks| blocks < 2 * mean), "{blocks:?}");
}

#[test]
fn a_soak_at_a_constant_rate_counts_from_when_an_operation_was_to_begin() {
    let device =
        Store::format(Arc::new(Slow { inner: small_ssd(), flushes: AtomicU64::new(0) }), None, 1).unwrap();
    let store = open(device, Options::with_cache(8 << 20));
    let options = SoakOptions {
        fill: 0.01,
        duration: Duration::ZERO,
        windows: 2,
        window: Duration::from_millis(500),
        window_operations: 0,
        batch: 1,
        rate: Some(1_000.0),
        ..SoakOptions::default()
    };
    let report = soak(&store, options, &|| false, &mut |_| ()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    for window in &report.windows {
        assert_eq!(window.operations, 500);
        // The rate must not exceed the requested one, except for clock inaccuracy.
        assert!(window.operations_per_second <= 1_001.0, "{window:?}");
    }
    // A flush takes 0.2 s. The latency of the puts that were due during the flush includes the wait.
    let longest = report.longest_put.unwrap();
    assert!(longest >= 0.2 && longest >= report.longest_batch, "{longest} {}", report.longest_batch);
}

#[test]
fn a_soak_fills_no_more_than_a_map_can_use() {
    // A map can use 6 of 12 zones, which is less than nine tenths of the device.
    let geometry = Geometry {
        block_bytes: 4096,
        zone_blocks: 128,
        zone_capacity_blocks: 128,
        conventional_zones: 1,
        sequential_zones: 12,
        max_open_zones: 0,
        max_active_zones: 0,
    };
    let device = Store::format(Arc::new(MemoryDevice::new(geometry).unwrap()), None, 1).unwrap();
    let store = open(device, Options { durability: Durability::Relaxed, ..Options::with_cache(1 << 20) });
    let options = SoakOptions {
        duration: Duration::ZERO,
        windows: 6,
        window_operations: 1_000,
        batch: 50,
        ..SoakOptions::default()
    };
    let report = soak(&store, options, &|| false, &mut |_| ()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!((0.4..0.5).contains(&report.fill[0]), "{:?}", report.fill);
    assert!(report.windows.iter().all(|window| window.longest_batch <= report.longest_batch));
}

#[test]
fn with_more_memory_changes_gather_and_fewer_blocks_are_written() {
    let blocks_written = |cache_bytes: u64| {
        let device = Store::format(Arc::new(Counted::new(small_ssd())), None, 1).unwrap();
        let store = Store::open(device.clone(), Options::with_cache(cache_bytes)).unwrap();
        let mut rng = Rng::new(5);
        for _ in 0..600 {
            let mut batch = Batch::new();
            (0..100).for_each(|_| _ = batch.put(&rng.next_u64().to_be_bytes(), &[7; 92]));
            store.apply(&batch).unwrap();
        }
        store.sync().unwrap();
        let counts = device.counts();
        counts.conventional_blocks_written + counts.sequential_blocks_written
    };
    // 60,000 records of 100 bytes: 6 MB in about 2,000 leaves.
    let [little, more, all] = [1 << 20, 4 << 20, 32 << 20].map(blocks_written);
    println!("{little}, {more}, {all} blocks");
    assert!(more < little && 3 * all < more, "{little}, {more}, {all} blocks");
}

#[test]
fn changes_gather_in_leaves_that_do_not_fit_into_memory() {
    const RECORDS: u64 = 60_000;
    let key = |number: u64| number.to_be_bytes();
    let device = Store::format(Arc::new(Counted::new(small_ssd())), None, 1).unwrap();
    let options = Options { cache_bytes: 2 << 20, journal_bytes: 4 << 20, ..Options::default() };
    let store = Store::open(device.clone(), options).unwrap();
    store.load((0..RECORDS).map(|number| (key(number), [1; 92]))).unwrap();
    let before = device.counts();
    let (mut rng, mut max_resident) = (Rng::new(8), 0);
    for _ in 0..600 {
        let mut batch = Batch::new();
        (0..100).for_each(|_| _ = batch.put(&key(rng.below(RECORDS)), &[2; 92]));
        store.apply(&batch).unwrap();
        max_resident = max_resident.max(store.statistics().resident_bytes);
    }
    store.sync().unwrap();
    let statistics = store.statistics();
    let written = |counts: Counts| counts.conventional_blocks_written + counts.sequential_blocks_written;
    let blocks = written(device.counts()) - written(before);
    println!("{blocks} blocks, at most {max_resident} bytes in memory, {statistics:?}");
    assert!(statistics.leaves_remade > 0 && statistics.logs_remade > 0);
    // Each of the 60,000 updates changes one of about 1,500 leaves: less than one block written per three updates.
    assert!(3 * blocks < RECORDS, "{blocks} blocks");
    // Besides the cache, changed leaves take at most half of its size, and twice that while a checkpoint is being
    // written.
    assert!(max_resident < 2 * options.cache_bytes, "{max_resident} bytes");
}

/// Inserts records in random order until the fraction `part` of the usable blocks is in use or the map is full. Returns
/// the number of records.
fn put_until(
    store: &Store<Arc<MemoryDevice>>,
    model: &mut Model,
    rng: &mut Rng,
    part: f64,
) -> Result<(), longma_zoned::Error> {
    loop {
        let statistics = store.statistics();
        if statistics.live_blocks as f64 >= part * statistics.usable_blocks as f64 {
            return Ok(());
        }
        for _ in 0..8 {
            let (mut changes, mut attempted) = (Batch::new(), Vec::new());
            for _ in 0..8 {
                let (key, value) =
                    (rng.next_u64().to_be_bytes().to_vec(), rng.next_u64().to_le_bytes().to_vec());
                changes.put(&key, &value);
                attempted.push((key, value));
            }
            store.apply(&changes)?;
            model.extend(attempted);
        }
    }
}

/// Updates random records until `times` times the size of the device has been written.
fn overwrite(store: &Store<Arc<MemoryDevice>>, model: &mut Model, rng: &mut Rng, times: u64, what: &str) {
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let blocks = store.statistics().written_blocks;
    let before = store.statistics().traffic.written();
    while store.statistics().traffic.written() < before + times * blocks {
        let mut changes = Batch::new();
        for _ in 0..8 {
            let key = &keys[rng.below(keys.len() as u64) as usize];
            let value = rng.next_u64().to_le_bytes();
            changes.put(key, &value);
            model.insert(key.clone(), value.to_vec());
        }
        store.apply(&changes).unwrap_or_else(|error| panic!("{what}: {error}: {:?}", store.statistics()));
    }
}

#[test]
fn a_map_that_is_nine_tenths_full_or_full_always_accepts_updates() {
    for (zone_blocks, zones) in [(32, 12), (32, 60), (64, 24), (1024, 12)] {
        let what = format!("{zones} zones of {zone_blocks} blocks");
        let device = Store::format(Arc::new(memory(zone_blocks, 1, zones)), Some(512), 1).unwrap();
        let options = busy(200_000, 60_000);
        let store = open(Arc::clone(&device), options);
        let (mut rng, mut model) = (Rng::new(zone_blocks + u64::from(zones)), Model::new());
        put_until(&store, &mut model, &mut rng, 0.9).unwrap_or_else(|error| panic!("{what}: {error}"));
        overwrite(&store, &mut model, &mut rng, 2, &format!("{what}, 90 % full"));
        let error = put_until(&store, &mut model, &mut rng, 2.0).unwrap_err();
        assert!(matches!(error, longma_zoned::Error::Full { .. }), "{what}: {error}");
        store.checkpoint().unwrap();
        let full = store.statistics();
        assert!(
            full.live_blocks as f64 > 0.95 * full.usable_blocks as f64,
            "{what}: full too early: {full:?}"
        );
        overwrite(&store, &mut model, &mut rng, 1, &format!("{what}, full"));
        assert_same(&store.snapshot(), &model, &what);
        assert_eq!(store.check_now().unwrap().problems, [], "{what}");
        drop(store);
        assert_same(&open(device, options).snapshot(), &model, &format!("{what}, opened again"));
    }
}

#[test]
fn a_map_full_of_large_values_uses_two_thirds_and_accepts_deletions_and_then_updates() {
    for (bytes, keys) in [(20_000, 15), (20_000, 20), (30_000, 8), (30_000, 12), (40_000, 8), (56_000, 8)] {
        let key = |number: u64| number.to_be_bytes();
        let device = Store::format(Arc::new(memory(128, 2, 12)), Some(512), 1).unwrap();
        let store = open(device, Options::default());
        let full =
            (0..400).find_map(|number| store.put(&key(number % keys), &vec![number as u8; bytes]).err());
        assert!(matches!(full, Some(Error::Full { .. })), "{keys} values of {bytes} bytes: {full:?}");
        let statistics = store.statistics();
        let (live, usable) = (statistics.live_blocks, statistics.usable_blocks);
        assert!(3 * live >= 2 * usable, "{keys} values of {bytes} bytes: {live} of {usable} blocks");
        let last = key(store.len() - 1);
        let gone = (0..4).find(|&gone| {
            assert!(store.delete(&key(gone)).unwrap());
            store.put(&last, &vec![255; bytes]).is_ok()
        });
        assert!(gone.is_some(), "{keys} values of {bytes} bytes: full after four were deleted");
        assert_eq!(store.get(&last).unwrap(), Some(vec![255; bytes]));
    }
}
