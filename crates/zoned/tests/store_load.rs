//! Readers beside a writer.
//! Not single operations: see `store_model`.
//! Source: our own.

mod support;

use longma_zoned::ycsb::Chance;
use longma_zoned::{Batch, Direction, KeyRange, Store};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
