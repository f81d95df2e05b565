//! Bulk loads of large values that fail halfway leave neither records nor allocated blocks behind.

use crate::support::{Model, assert_same, busy, campaign, geometry, open};
use longma_zoned::device::{Fault, FaultyDevice};
use longma_zoned::{Batch, Error, Store};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

fn key(number: u64) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// A value of one of several lengths: in a leaf, in one block, or in several blocks.
fn value(rng: &mut Rng) -> Vec<u8> {
    let bytes = [8, 30, 100, 200, 400, 1_000, 3_000][rng.below(7) as usize];
    vec![rng.next_u64() as u8; bytes]
}

/// Returns the store after an error, with the faults removed, either as it is or reopened. In both cases the space
/// accounts must be correct.
fn settle(
    device: &Arc<FaultyDevice>,
    store: Store<Arc<FaultyDevice>>,
    options: longma_zoned::Options,
) -> Store<Arc<FaultyDevice>> {
    device.clear_faults();
    match store.check_now() {
        Ok(report) => {
            assert_eq!(report.problems, [], "without opening again");
            store
        }
        Err(_) => {
            drop(store);
            assert_eq!(Store::check(Arc::clone(device)).unwrap().problems, [], "before opening again");
            let store = open(Arc::clone(device), options);
            assert_eq!(store.check_now().unwrap().problems, [], "after opening again");
            store
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let device = Arc::new(FaultyDevice::new(geometry([48, 64][rng.below(2) as usize], 1, 16)).unwrap());
    let device = Store::format(device, Some([512, 1024][rng.below(2) as usize]), 1).unwrap();
    let options = busy([8_000, 40_000][rng.below(2) as usize], 6_000);
    let mut store = open(Arc::clone(&device), options);
    let mut model = Model::new();
    for _ in 0..40 {
        if rng.below(3) == 0 {
            let after = device.changes() + rng.below(30);
            device.inject(match rng.below(3) {
                0 => Fault::WriteError { after },
                1 => Fault::FlushError { after },
                _ => Fault::TransientReadError { after: rng.below(12) },
            });
        }
        let mut changed = model.clone();
        let (first, count) = (rng.below(150), rng.below(60));
        let result = if rng.below(2) == 0 {
            let mut records: Model = (0..count).map(|n| (key(first + n), value(&mut rng))).collect();
            if rng.below(4) == 0 {
                records.retain(|key, _| key[5] % 3 == 0);
            }
            changed.extend(records.clone());
            let unsorted = (rng.below(4) == 0).then(|| (key(0), vec![1; 300]));
            let is_unsorted = unsorted.is_some() && !records.is_empty();
            let result = store.load(records.into_iter().chain(unsorted.filter(|_| is_unsorted)));
            assert!(!is_unsorted || result.is_err());
            result.map(|_| ())
        } else {
            let mut batch = Batch::new();
            for _ in 0..count % 9 {
                let key = key(rng.below(210));
                if rng.below(3) == 0 {
                    batch.delete(&key);
                    changed.remove(&key);
                } else {
                    let value = value(&mut rng);
                    batch.put(&key, &value);
                    changed.insert(key, value);
                }
            }
            store.apply(&batch).map(|_| ())
        };
        match result {
            Ok(()) => model = changed,
            Err(error) => {
                let is_undone = matches!(error, Error::Full { .. } | Error::Unsorted { .. });
                store = settle(&device, store, options);
                let content: Model = store.iter().map(|row| row.unwrap().to_pair()).collect();
                assert!(
                    content == model || (!is_undone && content == changed),
                    "a partial load remained: {error}"
                );
                model = content;
            }
        }
    }
    store = settle(&device, store, options);
    assert_same(&store.snapshot(), &model, "in the end");
}

/// LONGMA_ZONED_LOADS sets the number of runs, LONGMA_ZONED_SEED the first seed.
#[test]
fn a_load_that_fails_leaves_nothing_behind() {
    let first = campaign("LONGMA_ZONED_SEED", 1);
    let mut wrong = Vec::new();
    for seed in first..first + campaign("LONGMA_ZONED_LOADS", 60) {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            wrong.push(seed);
        }
    }
    assert!(wrong.is_empty(), "runs {wrong:?}");
}
