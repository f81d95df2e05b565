//! Bulk loads are atomic, whatever else happens during the load.

use crate::support::{Model, Records, assert_same, batch, busy, geometry, memory, open};
use longma_zoned::device::{Fault, FaultyDevice, MemoryDevice};
use longma_zoned::{Error, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A map with some records, and its model.
fn filled<D: ZonedDevice>(device: D) -> (Store<D>, Model) {
    let store = open(Store::format(device, Some(512), 1).unwrap(), busy(30_000, 30_000));
    let mut model = Model::new();
    for number in (0..300).step_by(3) {
        store.put(&key(number), b"before").unwrap();
        model.insert(key(number), b"before".to_vec());
    }
    (store, model)
}

/// Checks that a failed load left the map unchanged, also after a power cut, and that it still accepts changes.
fn assert_as_before(store: Store<Arc<MemoryDevice>>, mut model: Model, what: &str) {
    assert_same(&store.snapshot(), &model, what);
    let device = Arc::clone(store.device());
    store.put(b"later", b"acknowledged").unwrap_or_else(|error| panic!("{what}: {error}"));
    model.insert(b"later".to_vec(), b"acknowledged".to_vec());
    assert_same(&store.snapshot(), &model, what);
    drop(store);
    let store = open(device, busy(30_000, 30_000));
    assert_same(&store.snapshot(), &model, &format!("{what}, after the power was cut"));
    assert_eq!(store.check_now().unwrap().problems, [], "{what}");
    let all: Model = (1_000..4_000u64).map(|n| (key(n), key(n))).collect();
    store.load(&all).unwrap_or_else(|error| panic!("{what}: {error}"));
    model.extend(all);
    assert_same(&store.snapshot(), &model, &format!("{what}, then one that does not fail"));
}

#[test]
fn a_load_that_fails_loads_nothing() {
    let value = |number: u64| if number % 50 == 7 { vec![7; 1_500] } else { key(number) };
    let rows = || (0..5_000u64).map(move |number| (key(number), value(number)));
    for fails_at in [0, 1, 40, 2_500, 4_999] {
        let before =
            |number: usize| move |row: (usize, (Vec<u8>, Vec<u8>))| (row.0 < number).then_some(row.1);
        let first = || rows().enumerate().map_while(before(fails_at));
        let what = format!("it fails at record {fails_at}");

        let (store, model) = filled(Arc::new(memory(256, 2, 24)));
        let again = first().last().unwrap_or((key(9), Vec::new()));
        let unsorted = store.load(first().chain([again.clone(), again]));
        let expected = fails_at.max(1) as u64 + 1;
        assert!(matches!(unsorted, Err(Error::Unsorted { record }) if record == expected), "{unsorted:?}");
        assert_as_before(store, model, &format!("unsorted, {what}"));

        let (store, model) = filled(Arc::new(memory(256, 2, 24)));
        let read_u48 = store.load(first().chain([(vec![255; 400], Vec::new())]));
        assert!(matches!(read_u48, Err(Error::KeyLength { bytes: 400, .. })), "{read_u48:?}");
        assert_as_before(store, model, &format!("a long key, {what}"));

        let (store, model) = filled(Arc::new(memory(256, 2, 24)));
        let panics = (0..1u64).map(|_| -> (Vec<u8>, Vec<u8>) { panic!("the caller's own") });
        let panicked = catch_unwind(AssertUnwindSafe(|| store.load(first().chain(panics))));
        assert!(panicked.is_err());
        assert_as_before(store, model, &format!("a panic, {what}"));
    }
}

#[test]
fn a_load_that_does_not_fit_loads_nothing_and_releases_its_space() {
    let (store, model) = filled(Arc::new(memory(128, 2, 12)));
    let error = store.load((0..1_000_000u64).map(|number| (key(number), key(number)))).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_as_before(store, model, "too much");
}

#[test]
fn records_are_loaded_before_after_and_between_existing_ones() {
    for records in [Records::Fixed, Records::Variable, Records::Large] {
        for seed in 0..12 {
            let mut rng = Rng::new(seed);
            let device = Store::format(Arc::new(memory(512, 4, 24)), Some(512), 1).unwrap();
            let store = open(Arc::clone(&device), busy(20_000, 60_000));
            let mut model = Model::new();
            for _ in 0..4 {
                for _ in 0..rng.below(12) {
                    store.apply(&batch(&mut rng, records, 900, 60, 20, &mut model)).unwrap();
                }
                let (first, step) = (rng.below(900), 1 + rng.below(4));
                let numbers = (first..900).step_by(step as usize).take(1 + rng.below(600) as usize);
                let all: Model = numbers.map(|n| (records.key(n), records.value(&mut rng))).collect();
                assert_eq!(store.load(&all).unwrap(), all.len() as u64);
                model.extend(all);
                assert_same(&store.snapshot(), &model, &format!("{records:?}, seed {seed}"));
            }
            assert_eq!(store.check_now().unwrap().problems, [], "{records:?}, seed {seed}");
            drop(store);
            assert_same(&open(device, busy(20_000, 60_000)).snapshot(), &model, "opened again");
        }
    }
}

#[test]
fn reads_and_writes_work_during_a_load_also_from_the_record_iterator() {
    let (store, mut model) = filled(Arc::new(memory(256, 2, 24)));
    let rows = (0..6_000u64).map(|number| {
        // The iterator reads and writes the map during the load. The load must not be visible yet.
        assert_eq!(store.get(&key(number)).unwrap().is_some(), number < 300 && number % 3 == 0);
        if number % 100 == 50 {
            store.put(&key(10_000 + number), b"meanwhile").unwrap();
            store.delete(&key(number / 100 * 3)).unwrap();
        }
        if number == 3_000 {
            assert_eq!(store.check_now().unwrap().problems, []);
            let inner = (20_000..20_500u64).map(|number| (key(number), key(number)));
            assert_eq!(store.load(inner).unwrap(), 500);
        }
        (key(number), key(number))
    });
    assert_eq!(store.load(rows).unwrap(), 6_000);
    model.extend((0..60).map(|part| (key(10_050 + 100 * part), b"meanwhile".to_vec())));
    model.extend((20_000..20_500u64).chain(0..6_000).map(|number| (key(number), key(number))));
    assert_same(&store.snapshot(), &model, "after the load");
    assert_eq!(store.check_now().unwrap().problems, []);
}

#[test]
fn a_power_cut_or_a_failed_write_leaves_all_of_a_load_or_nothing() {
    let rows: Model = (0..1_500u64).map(|number| (key(number), key(number))).collect();
    let (mut nothing, mut all) = (0, 0);
    for after in 0..60 {
        let (store, model) = filled(Arc::new(FaultyDevice::new(geometry(256, 2, 12)).unwrap()));
        let device = Arc::clone(store.device());
        device.inject(Fault::WriteError { after: device.changes() + after });
        let loaded = store.load(&rows);
        let both: Model = model.clone().into_iter().chain(rows.clone()).collect();
        match &loaded {
            Ok(_) => assert_same(&store.snapshot(), &both, "loaded"),
            // Readers keep the old contents, although writing has stopped.
            Err(_) => assert_same(&store.snapshot(), &model, &format!("a failed write after {after}")),
        }
        drop(store);
        for image in [device.cut().image_with_none(), device.cut().image_with_all()] {
            let store = open(Arc::new(image), busy(30_000, 30_000));
            let is_there = store.len() == both.len() as u64;
            let what = format!("after {after}: {loaded:?}");
            assert!(is_there || loaded.is_err(), "{what}");
            assert_same(&store.snapshot(), if is_there { &both } else { &model }, &what);
            *if is_there { &mut all } else { &mut nothing } += 1;
        }
    }
    assert!(nothing > 5 && all > 5, "{nothing} loads left nothing, {all} left everything");
}
