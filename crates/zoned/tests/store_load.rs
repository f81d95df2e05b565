//! Readers beside a writer, and a mixed load on a nearly full device.
//! Not single operations: see `store_model`.
//! Source: our own.

mod support;

use longma_zoned::device::{Geometry, MemoryDevice};
use longma_zoned::soak::{SoakOptions, soak};
use longma_zoned::ycsb::Chance;
use longma_zoned::{Batch, Direction, Durability, KeyRange, Options, Store};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{busy, memory, open};

#[test]
fn readers_beside_a_writer_see_whole_batches_and_one_moment() {
    const ACCOUNTS: u64 = 2_000;
    const EACH: u64 = 1_000;
    let device = Store::format(Arc::new(memory(256, 2, 16)), Some(512), 1).unwrap();
    // A cache so small that readers read from the device while the writer's checkpoints give blocks up.
    let store = open(device, busy(30_000, 30_000));
    let key = |account: u64| account.to_be_bytes();
    store.load((0..ACCOUNTS).map(|account| (key(account), EACH.to_le_bytes()))).unwrap();
    let (stop, scans) = (AtomicBool::new(false), AtomicU64::new(0));
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (store, stop, scans) = (store.clone(), &stop, &scans);
            scope.spawn(move || {
                let mut chance = Chance::new(reader);
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    let direction = if reader == 1 { Direction::Descending } else { Direction::Ascending };
                    let sum = || {
                        let mut sum = 0;
                        let mut add = |_: &[u8], value: &[u8]| {
                            sum += number(value);
                            ControlFlow::Continue(())
                        };
                        snapshot.scan(KeyRange::ALL, direction, &mut add).unwrap();
                        sum
                    };
                    assert_eq!(sum(), ACCOUNTS * EACH);
                    let account = key(chance.below(ACCOUNTS));
                    let before = snapshot.get(&account).unwrap();
                    std::thread::yield_now();
                    assert_eq!(snapshot.get(&account).unwrap(), before, "a snapshot does not change");
                    assert_eq!(sum(), ACCOUNTS * EACH);
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut chance = Chance::new(77);
        let mut transfers = 0;
        while transfers < 2_000 || scans.load(Ordering::Relaxed) < 30 {
            let mut batch = Batch::new();
            for _ in 0..chance.below(10) + 1 {
                let (from, to) =
                    (key(chance.below(ACCOUNTS / 2)), key(ACCOUNTS / 2 + chance.below(ACCOUNTS / 2)));
                let read = |key: &[u8]| number(&store.get(key).unwrap().unwrap());
                // Each account once a batch, as amounts are read before it.
                if batch.is_empty() {
                    let amount = chance.below(read(&from) + 1);
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

/// 4 conventional zones and 188 sequential ones of 64 blocks of 4 KiB: 48 MiB.
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

#[test]
fn a_mixed_load_on_a_nearly_full_device_goes_on_as_it_began() {
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
    // Time depends on the machine, what is written does not: no window costs more than twice the mean.
    let blocks: Vec<u64> = report.windows.iter().map(|window| window.blocks_written).collect();
    let mean = blocks.iter().sum::<u64>() / blocks.len() as u64;
    println!("{blocks:?} {:?}", report.statistics.reclaim);
    assert!(blocks.iter().all(|&blocks| blocks < 2 * mean), "{blocks:?}");
}
