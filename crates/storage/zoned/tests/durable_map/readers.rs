//! Readers never block other threads; iterators work from both ends; a dropped snapshot releases its space; a map
//! opened for reading is not modified.

use crate::support::{Model, Records, assert_same, batch, busy, geometry, memory, open};
use longma_zoned::device::{Counted, Counts, Fault, FaultyDevice, MemoryDevice};
use longma_zoned::{Batch, Error, Iter, KeyRange, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

type Memory = Arc<MemoryDevice>;

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A map of `records` records, some of which were changed after loading so that leaves have logs, and its model.
fn filled(records: u64, cache_bytes: u64) -> (Store<Memory>, Model) {
    let device = Store::format(Arc::new(memory(256, 2, 24)), Some(512), 1).unwrap();
    let store = open(device, busy(cache_bytes, 100_000));
    let mut model: Model = (0..records).map(|n| (key(2 * n), key(n))).collect();
    store.load(&model).unwrap();
    for number in (0..records).step_by(7) {
        store.put(&key(2 * number), b"changed!").unwrap();
        model.insert(key(2 * number), b"changed!".to_vec());
    }
    (store, model)
}

#[test]
fn a_write_in_the_middle_of_a_scan_is_done_and_the_scan_does_not_see_it() {
    let (store, model) = filled(2_000, 40_000);
    let mut seen = 0;
    for row in store.iter() {
        let row = row.unwrap();
        assert_eq!(model.get(row.key()).map(Vec::as_slice), Some(row.value()));
        store.delete(row.key()).unwrap();
        store.put(&[&[1], row.key()].concat(), row.value()).unwrap();
        seen += 1;
    }
    assert_eq!((seen, store.len()), (2_000, 2_000));
    let moved: Model = model.into_iter().map(|(key, value)| ([&[1], &key[..]].concat(), value)).collect();
    assert_same(&store.snapshot(), &moved, "after the scan");
}

#[test]
fn a_stopped_reader_that_delays_reclamation_does_not_make_a_map_look_damaged() {
    // As a thread that the scheduler has stopped in the middle of a read: no evicted node is freed.
    let _pin = crossbeam_epoch::pin();
    let device = Store::format(Arc::new(memory(16, 1, 14)), Some(512), 1).unwrap();
    let store = open(device, busy(2_000, 6_000));
    let (mut rng, mut model) = (Rng::new(1), Model::new());
    for _ in 0..1_500 {
        store.apply(&batch(&mut rng, Records::Fixed, 2_500, 12, 30, &mut model)).unwrap();
    }
    assert_same(&store.snapshot(), &model, "after 1,500 batches");
}

#[test]
fn readers_see_whole_batches_while_all_kinds_of_nodes_are_evicted() {
    const ACCOUNTS: u64 = 6_000;
    let device = Store::format(Arc::new(memory(256, 2, 48)), Some(512), 1).unwrap();
    // The references to the leaves alone take more than the cache.
    let store = open(device, busy(16_000, 40_000));
    store.load((0..ACCOUNTS).map(|number| (key(number), 100u64.to_be_bytes()))).unwrap();
    let amount = |value: &[u8]| u64::from_be_bytes(value.try_into().unwrap());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (store, is_over) = (&store, &is_over);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    let sum: u64 = snapshot.iter().map(|row| amount(row.unwrap().value())).sum();
                    assert_eq!(sum, 100 * ACCOUNTS);
                    for _ in 0..100 {
                        let account = key(rng.below(ACCOUNTS));
                        let one = snapshot.get(&account).unwrap();
                        assert_eq!(snapshot.get_with(&account, <[u8]>::to_vec).unwrap(), one);
                        assert!(store.get(&account).unwrap().is_some());
                    }
                    let sum: u64 = snapshot.iter().rev().map(|row| amount(row.unwrap().value())).sum();
                    assert_eq!(sum, 100 * ACCOUNTS);
                }
            });
        }
        let mut rng = Rng::new(9);
        for _ in 0..crate::support::campaign("LONGMA_ZONED_OPERATIONS", 120_000) / 300 {
            let mut batch = Batch::new();
            for _ in 0..10 {
                let first = rng.below(ACCOUNTS / 2);
                let (from, to) = (key(first), key(first + 1 + rng.below(ACCOUNTS / 2 - 1)));
                batch.clear();
                let values = [&from, &to].map(|account| amount(&store.get(account).unwrap().unwrap()));
                let moved = rng.below(values[0] + 1);
                batch.put(&from, &(values[0] - moved).to_be_bytes());
                batch.put(&to, &(values[1] + moved).to_be_bytes());
                store.apply(&batch).unwrap();
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(store.check_now().unwrap().problems.is_empty());
}

#[test]
fn a_reader_may_wait_for_the_writer_in_its_closure() {
    let (store, _) = filled(500, 1 << 20);
    let snapshot = store.snapshot();
    let (to_writer, asked) = mpsc::channel::<()>();
    let (answer, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || {
            asked.recv().unwrap();
            // All leaves, including the reader's, are changed, written out, and read by others.
            for number in 0..500 {
                store.put(&key(2 * number), b"written!").unwrap();
            }
            store.checkpoint().unwrap();
            answer.send(store.get(&key(0)).unwrap()).unwrap();
        });
        let before = snapshot.get_with(&key(0), |value| {
            to_writer.send(()).unwrap();
            // If the reader held a lock, this would deadlock.
            assert_eq!(answered.recv().unwrap(), Some(b"written!".to_vec()));
            value.to_vec()
        });
        assert_eq!(before.unwrap(), Some(b"changed!".to_vec()));
    });
}

#[test]
fn a_panic_in_a_readers_closure_does_not_affect_the_map() {
    let (store, mut model) = filled(500, 20_000);
    let snapshot = store.snapshot();
    for number in 0..500 {
        let look = || snapshot.get_with(&key(2 * number), |_| panic!("the reader's own"));
        assert!(catch_unwind(AssertUnwindSafe(look)).is_err());
    }
    let mut rows = store.iter();
    let looked = catch_unwind(AssertUnwindSafe(|| assert!(rows.next().is_none(), "the reader's own")));
    assert!(looked.is_err());
    assert_eq!(rows.count(), 499);
    for number in 0..500 {
        store.put(&key(2 * number), b"go on").unwrap();
        model.insert(key(2 * number), b"go on".to_vec());
    }
    store.checkpoint().unwrap();
    assert_same(&store.snapshot(), &model, "after the panics");
}

#[test]
fn an_iterator_outlives_its_store_moves_between_threads_and_keeps_its_version() {
    let (store, model) = filled(1_000, 20_000);
    let rows: Iter<Memory> = store.iter();
    for number in 0..1_000 {
        store.delete(&key(2 * number)).unwrap();
    }
    assert!(matches!(store.close(), Err(Error::StillOpen { handles: 1, .. })));
    let rows = std::thread::spawn(move || rows.map(|row| row.unwrap().to_pair()).collect::<Model>());
    assert_eq!(rows.join().unwrap(), model);
}

/// The model's rows in a range.
fn expected(model: &Model, range: KeyRange<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = |key: &[u8]| range.begins_before(key) && range.ends_after(key);
    model.iter().filter(|(key, _)| inside(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Takes records from both ends in random order, some of them lent, and returns them in key order.
fn from_both_ends(rows: &mut Iter<Memory>, rng: &mut Rng) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let pair = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
    loop {
        // Take several records in a row from one end, so that each end crosses whole leaves.
        let (which, run) = (rng.below(4), rng.below(60));
        for _ in 0..=run {
            let (side, row) = match which {
                0 => (&mut front, rows.next().map(|row| row.unwrap().to_pair())),
                1 => (&mut back, rows.next_back().map(|row| row.unwrap().to_pair())),
                2 => (&mut front, rows.next_row().unwrap().map(pair)),
                _ => (&mut back, rows.next_back_row().unwrap().map(pair)),
            };
            match row {
                Some(row) => side.push(row),
                None => {
                    assert!(
                        rows.next().is_none() && rows.next_back().is_none(),
                        "a finished iterator stays finished"
                    );
                    front.extend(back.into_iter().rev());
                    return front;
                }
            }
        }
    }
}

#[test]
fn an_iterator_matches_a_btree_map_from_both_ends_and_after_seeks() {
    for records in [Records::Fixed, Records::Variable, Records::Large] {
        let device = Store::format(Arc::new(memory(512, 4, 24)), Some(512), 1).unwrap();
        let store = open(device, busy(30_000, 60_000));
        let (mut rng, mut model) = (Rng::new(11), Model::new());
        for number in 0..40 {
            store.apply(&batch(&mut rng, records, 900, 60, 20, &mut model)).unwrap();
            if number % 10 == 5 {
                store.checkpoint().unwrap();
            }
        }
        for round in 0..150 {
            let any = |rng: &mut Rng| records.key(rng.below(900));
            let (low, high) = (any(&mut rng), any(&mut rng));
            let bound = |rng: &mut Rng, key| match rng.below(3) {
                0 => Bound::Unbounded,
                1 => Bound::Included(key),
                _ => Bound::Excluded(key),
            };
            let range = KeyRange { start: bound(&mut rng, &low[..]), end: bound(&mut rng, &high[..]) };
            let mut rows = store.range(range);
            let what = format!("{records:?}, round {round}, {range:?}");
            assert_eq!(from_both_ends(&mut rows, &mut rng), expected(&model, range), "{what}");
            let to = any(&mut rng);
            rows.seek(&to);
            let after: Vec<_> = expected(&model, range).into_iter().filter(|row| row.0 >= to).collect();
            assert_eq!(from_both_ends(&mut rows, &mut rng), after, "{what}, sought {to:?}");
            rows.seek_back(&to);
            let before: Vec<_> = expected(&model, range).into_iter().filter(|row| row.0 <= to).collect();
            assert_eq!(from_both_ends(&mut rows, &mut rng), before, "{what}, sought {to:?} from the back");
            let prefix = &low[..rng.below(low.len() as u64 + 1) as usize];
            let with_prefix: Vec<_> =
                expected(&model, KeyRange::ALL).into_iter().filter(|row| row.0.starts_with(prefix)).collect();
            assert_eq!(
                from_both_ends(&mut store.prefix(prefix), &mut rng),
                with_prefix,
                "{what}, {prefix:?}"
            );
        }
    }
}

#[test]
fn a_prefix_of_the_greatest_bytes_has_its_keys() {
    let device = Store::format(Arc::new(memory(256, 2, 8)), Some(512), 1).unwrap();
    let store = open(device, busy(1 << 20, 1 << 20));
    for key in [&b"\xfe"[..], b"\xfe\xff", b"\xfe\xff\xff", b"\xff", b"\xff\xff", b"\xff\xff\x01", b"a"] {
        store.put(key, b"").unwrap();
    }
    let keys = |prefix: &[u8]| -> Vec<Vec<u8>> {
        store.prefix(prefix).map(|row| row.unwrap().key().to_vec()).collect()
    };
    assert_eq!(keys(b"\xff"), [&b"\xff"[..], b"\xff\xff", b"\xff\xff\x01"]);
    assert_eq!(keys(b"\xff\xff"), [&b"\xff\xff"[..], b"\xff\xff\x01"]);
    assert_eq!(keys(b"\xfe\xff"), [&b"\xfe\xff"[..], b"\xfe\xff\xff"]);
    assert_eq!((keys(b"").len(), keys(b"b").len()), (7, 0));
}

#[test]
fn after_an_unreadable_leaf_an_iterator_returns_one_error_and_continues_after_a_seek() {
    let device = FaultyDevice::new(geometry(256, 2, 12)).unwrap();
    let device = Store::format(Arc::new(device), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(1 << 20, 1 << 20));
    store.load((0..1_000u64).map(|n| (key(n), key(n)))).unwrap();
    drop(store);
    let store = open(Arc::clone(&device), busy(1 << 20, 1 << 20));
    // Inner nodes and the first leaf are in memory.
    store.get(&key(0)).unwrap();
    device.inject(Fault::TransientReadError { after: 0 });
    let mut rows = store.iter();
    let given: Vec<_> = rows.by_ref().collect();
    assert!(given.last().unwrap().is_err() && given[..given.len() - 1].iter().all(Result::is_ok));
    assert!(rows.next().is_none() && rows.next_back().is_none());
    rows.seek(&key(900));
    assert_eq!(
        rows.map(|row| row.unwrap().key().to_vec()).collect::<Vec<_>>(),
        (900..1_000).map(key).collect::<Vec<_>>()
    );
}

/// Updates random records until the blocks pinned by a snapshot fill the map.
fn overwrite_until_full(store: &Store<Memory>, model: &mut Model, rng: &mut Rng, bytes: usize) {
    let keys: Vec<_> = model.keys().cloned().collect();
    let kept = store.snapshot();
    let error = loop {
        let key = &keys[rng.below(keys.len() as u64) as usize];
        let value = vec![rng.next_u64() as u8; bytes];
        match store.put(key, &value) {
            Ok(_) => _ = model.insert(key.clone(), value),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    // The map stays full as long as the snapshot exists.
    let _ = store.checkpoint();
    let again = store.put(&keys[0], &vec![1; bytes]);
    assert!(matches!(again, Err(Error::Full { held: 1.., .. })), "{again:?}");
    assert!(again.unwrap_err().to_string().contains("snapshots and iterators hold"));
    drop(kept);
}

#[test]
fn a_map_filled_by_a_snapshot_has_space_again_after_the_snapshot_is_dropped() {
    for (bytes, records) in [(8, 4_000), (400, 150), (20_000, 8)] {
        for first in ["put", "delete", "checkpoint"] {
            let what = format!("values of {bytes} bytes, first a {first}");
            let device = Store::format(Arc::new(memory(128, 2, 12)), Some(512), 1).unwrap();
            let store = open(Arc::clone(&device), busy(100_000, 20_000));
            let mut rng = Rng::new(3);
            let mut model: Model = (0..records).map(|n| (key(n), vec![0; bytes])).collect();
            for (key, value) in &model {
                store.put(key, value).unwrap();
            }
            overwrite_until_full(&store, &mut model, &mut rng, bytes);
            match first {
                "put" => {
                    _ = store.put(&key(0), &model[&key(0)]).unwrap_or_else(|error| panic!("{what}: {error}"))
                }
                "delete" => {
                    store.delete(&key(0)).unwrap_or_else(|error| panic!("{what}: {error}"));
                    model.remove(&key(0));
                }
                _ => {
                    let full = store.statistics().live_blocks;
                    store.checkpoint().unwrap();
                    assert!(store.statistics().live_blocks < full, "{what}: {:?}", store.statistics());
                }
            }
            // Without a snapshot, the same amount fits again and again.
            for round in 0..300 {
                let (key, value) = (key(rng.below(records)), vec![round as u8; bytes]);
                store.put(&key, &value).unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
                model.insert(key, value);
            }
            assert_same(&store.snapshot(), &model, &what);
            assert_eq!(store.check_now().unwrap().problems, [], "{what}");
            drop(store);
            assert_same(
                &open(device, busy(100_000, 20_000)).snapshot(),
                &model,
                &format!("{what}, opened again"),
            );
        }
    }
}

#[test]
fn a_map_that_is_open_for_reading_has_the_journals_changes_and_writes_nothing() {
    for records in [Records::Fixed, Records::Large] {
        let device = Store::format(Arc::new(Counted::new(memory(256, 2, 16))), Some(512), 1).unwrap();
        let store = open(Arc::clone(&device), busy(1 << 20, 1 << 20));
        let (mut rng, mut model) = (Rng::new(21), Model::new());
        for number in 0..30 {
            store.apply(&batch(&mut rng, records, 600, 40, 20, &mut model)).unwrap();
            if number == 15 {
                store.checkpoint().unwrap();
            }
        }
        assert!(store.statistics().journal_blocks > 0);
        drop(store);
        let (before, zones) = (device.counts(), device.zones().unwrap());
        let store = Store::open_read_only(Arc::clone(&device), busy(10_000, 1_000)).unwrap();
        let snapshot = store.snapshot();
        for _ in 0..3 {
            assert_same(&snapshot, &model, "for reading");
        }
        let refused = [
            store.put(b"key", b"value").map(|_| ()),
            store.delete(model.keys().next().unwrap()).map(|_| ()),
            store.apply(Batch::new().put(b"key", &[0; 3000])).map(|_| ()),
            store.load([(b"key", b"value")]).map(|_| ()),
            store.sync(),
            store.checkpoint(),
            store.check_now().map(|_| ()),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
        }
        assert_same(&snapshot, &model, "after what was refused");
        drop(snapshot);
        store.close().unwrap();
        let after = device.counts();
        let expected = Counts { reads: after.reads, blocks_read: after.blocks_read, ..before };
        assert_eq!((after, device.zones().unwrap()), (expected, zones));
        assert!(after.reads > before.reads);
        assert_same(&open(device, busy(30_000, 200_000)).snapshot(), &model, "for writing again");
    }
}
