//! Device errors are reported clearly and lose no acknowledged data.

use crate::support::{Model, Records, assert_same, batch, busy, geometry, open};
use longma_zoned::device::{Block, Condition, DeviceError, Fault, FaultyDevice, ZoneNumber};
use longma_zoned::{Batch, Error, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

/// A map with some data, all of it on the device and no leaf in memory.
fn filled(zones: (u64, u32, u32)) -> (Arc<FaultyDevice>, Model) {
    let device = FaultyDevice::new(geometry(zones.0, zones.1, zones.2)).unwrap();
    let device = Store::format(Arc::new(device), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(50_000, 20_000));
    let (mut rng, mut model) = (Rng::new(5), Model::new());
    for _ in 0..60 {
        store.apply(&batch(&mut rng, Records::Fixed, 900, 24, 10, &mut model)).unwrap();
    }
    store.close().unwrap();
    (device, model)
}

#[test]
fn a_read_error_is_reported_and_the_map_stays_usable() {
    let (device, model) = filled((128, 2, 10));
    let (mut failed, mut changed) = (0, model.clone());
    for after in 0..40 {
        let store = open(Arc::clone(&device), busy(50_000, 20_000));
        device.inject(Fault::TransientReadError { after: 0 });
        let key = model.keys().nth(after * 7 % model.len()).unwrap().clone();
        let mut change = Batch::new();
        change.put(&key, b"changed!");
        match store.apply(&change) {
            Ok(_) => {}
            Err(Error::Device(DeviceError::Media { .. })) => {
                failed += 1;
                assert_same(&store.snapshot(), &changed, "a failed batch changes nothing");
                store.apply(&change).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        device.clear_faults();
        changed.insert(key, b"changed!".to_vec());
        assert_same(&store.snapshot(), &changed, "after the error");
        store.close().unwrap();
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn a_read_error_of_a_writer_with_evicted_dirty_leaves_loses_nothing() {
    let (mut refused, mut stopped) = (0, 0);
    for after in (0..1_200).step_by(7) {
        let (device, mut model) = filled((128, 2, 12));
        let store = open(Arc::clone(&device), busy(9_000, 20_000));
        device.inject(Fault::TransientReadError { after });
        let mut rng = Rng::new(after);
        let mut attempted = model.clone();
        for number in 0..60 {
            let batch = batch(&mut rng, Records::Fixed, 900, 24, 30, &mut attempted);
            match store.apply(&batch) {
                Ok(_) => model = attempted.clone(),
                Err(Error::Device(DeviceError::Media { .. })) if store.apply(&batch).is_ok() => {
                    refused += 1;
                    model = attempted.clone();
                }
                Err(Error::Device(_) | Error::Stopped { .. }) => {
                    stopped += 1;
                    break;
                }
                Err(error) => panic!("batch {number}: {error}"),
            }
        }
        assert!(store.statistics().leaves_remade > 0 || stopped > 0);
        drop(store);
        device.clear_faults();
        let store = open(device, busy(9_000, 20_000));
        let is_last = store.len() == attempted.len() as u64
            && attempted.iter().all(|(key, value)| store.get(key).unwrap().as_ref() == Some(value));
        let state = if is_last { &attempted } else { &model };
        assert_same(&store.snapshot(), state, &format!("fault after {after}"));
    }
    assert!(refused > 5 && stopped > 5, "{refused} refused, {stopped} stopped");
}

#[test]
fn a_failed_write_or_flush_stops_writing_and_reopening_recovers_everything() {
    for after in (0..400).step_by(7) {
        for flush in [false, true] {
            let (device, mut model) = filled((64, 2, 12));
            let store = open(Arc::clone(&device), busy(20_000, 8_000));
            let after = device.changes() + after;
            device.inject(if flush { Fault::FlushError { after } } else { Fault::WriteError { after } });
            let mut rng = Rng::new(after);
            let mut attempted = model.clone();
            let error = loop {
                match store.apply(&batch(&mut rng, Records::Fixed, 900, 24, 30, &mut attempted)) {
                    Ok(_) => model = attempted.clone(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Device(_) | Error::Stopped { .. }), "{error}");
            let again = store.put(b"12345678", b"12345678").unwrap_err();
            assert!(matches!(again, Error::Stopped { .. }), "{again}");
            store.get(b"12345678").unwrap();
            drop(store);
            // The images after a power cut and without one.
            for image in [device.cut().image_with_none(), device.cut().image_with_all()] {
                let store = open(Arc::new(image), busy(20_000, 8_000));
                let snapshot = store.snapshot();
                let state = if snapshot.len() == model.len() as u64
                    && model.iter().all(|(key, value)| snapshot.get(key).unwrap().as_ref() == Some(value))
                {
                    &model
                } else {
                    &attempted
                };
                assert_same(&snapshot, state, &format!("fault after {after}, flush {flush}"));
            }
        }
    }
}

#[test]
fn after_a_failed_write_a_checkpoint_leaves_every_record_readable() {
    let mut stopped = 0;
    for after in (0..600).step_by(3) {
        let (device, mut model) = filled((128, 2, 12));
        let store = open(Arc::clone(&device), busy(20_000, 8_000));
        device.inject(Fault::WriteError { after: device.changes() + after });
        let mut rng = Rng::new(after);
        for _ in 0..200 {
            let mut attempted = model.clone();
            if store.apply(&batch(&mut rng, Records::Fixed, 900, 24, 20, &mut attempted)).is_err() {
                stopped += 1;
                break;
            }
            model = attempted;
        }
        // The reads evict all nodes that can be evicted.
        for round in 0..3 {
            for (key, value) in &model {
                let found = store.get(key).unwrap_or_else(|error| panic!("fault after {after}: {error}"));
                assert_eq!(found.as_ref(), Some(value), "fault after {after}, round {round}");
            }
        }
        assert_same(&store.snapshot(), &model, &format!("fault after {after}"));
    }
    assert!(stopped > 100, "{stopped}");
}

#[test]
fn a_full_device_reports_it_keeps_everything_and_accepts_deletions() {
    for (records, zones) in [(Records::Fixed, (32, 1, 8)), (Records::Large, (64, 1, 12))] {
        let device = FaultyDevice::new(geometry(zones.0, zones.1, zones.2)).unwrap();
        let device = Store::format(Arc::new(device), Some(512), 1).unwrap();
        let store = open(Arc::clone(&device), busy(20_000, 8_000));
        let (mut rng, mut model) = (Rng::new(3), Model::new());
        for round in 0..3 {
            let mut attempted = model.clone();
            let error = loop {
                match store.apply(&batch(&mut rng, records, 1_000_000, 8, 0, &mut attempted)) {
                    Ok(_) => model = attempted.clone(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Full { .. }), "{error}");
            assert_same(&store.snapshot(), &model, "a full map");
            if round == 0 {
                let statistics = store.statistics();
                let (live, usable) = (statistics.live_blocks, statistics.usable_blocks);
                assert!(live * 100 > usable * 95, "full with {live} of {usable} blocks: {statistics:?}");
            }
            let gone: Vec<Vec<u8>> = model.keys().step_by(2).cloned().collect();
            for key in gone {
                assert!(store.delete(&key).unwrap_or_else(|error| panic!("round {round}: {error}")));
                model.remove(&key);
            }
        }
        store.close().unwrap();
        assert_same(&open(Arc::clone(&device), busy(20_000, 8_000)).snapshot(), &model, "opened again");
        assert_eq!(Store::check(device).unwrap().problems, []);
    }
}

#[test]
fn a_worn_out_zone_stops_the_map_until_it_is_reopened_without_that_zone() {
    let mut lost_journals = 0;
    for condition in [Condition::ReadOnly, Condition::Offline] {
        let (device, mut model) = filled((64, 1, 14));
        for round in 0..4u32 {
            let store = open(Arc::clone(&device), busy(20_000, 8_000));
            // Choose an empty zone that will be written soon; an offline zone without data loses nothing.
            let empty =
                device.zones().unwrap().into_iter().find(|zone| zone.condition == Condition::Empty).unwrap();
            let later = if condition == Condition::ReadOnly { 3 } else { 0 };
            device.inject(Fault::WornOut { after: device.changes() + later, zone: empty.number, condition });
            let (mut rng, mut attempted) = (Rng::new(round.into()), model.clone());
            for _ in 0..150 {
                match store.apply(&batch(&mut rng, Records::Fixed, 900, 24, 30, &mut attempted)) {
                    Ok(_) => model = attempted.clone(),
                    Err(Error::Device(_) | Error::Stopped { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            drop(store);
            let store = match Store::open(Arc::clone(&device), busy(20_000, 8_000)) {
                Err(error) => {
                    lost_journals += 1;
                    // The journal was to continue in the offline zone, so it is unknown whether it did.
                    let text = error.to_string();
                    assert!(
                        matches!(error, Error::JournalDamaged { .. }) && condition == Condition::Offline,
                        "{text}"
                    );
                    assert!(
                        text.contains(&format!("it continues in {}, which is offline", empty.number)),
                        "{text}"
                    );
                    let problems = Store::check(Arc::clone(&device)).unwrap().problems;
                    assert!(problems.len() == 1 && problems[0].what.contains("offline"), "{problems:?}");
                    let report = Store::repair(Arc::clone(&device), busy(20_000, 8_000)).unwrap();
                    assert_eq!((report.lost_batches.len(), report.lost.len()), (1, 0), "{report:?}");
                    open(Arc::clone(&device), busy(20_000, 8_000))
                }
                Ok(store) => store,
            };
            assert_same(&store.snapshot(), &model, "opened again");
            store.put(b"12345678", b"12345678").unwrap();
            store.delete(b"12345678").unwrap();
            store.close().unwrap();
        }
    }
    assert!(lost_journals > 0, "no round lost the journal");
}

#[test]
fn a_device_without_a_map_or_of_another_shape_is_refused() {
    let null = Arc::new(FaultyDevice::new(geometry(64, 1, 8)).unwrap());
    let error = Store::open(null, busy(1000, 1000)).err().unwrap();
    assert!(matches!(error, Error::NotFormatted { .. }), "{error}");
    let few = Arc::new(FaultyDevice::new(geometry(64, 1, 3)).unwrap());
    assert!(matches!(Store::format(few, None, 1), Err(Error::Unsuitable { .. })));
    let (device, _) = filled((128, 2, 10));
    let mut block = vec![0; 512];
    device.read(Block(2), &mut block).unwrap();
    let other = Arc::new(FaultyDevice::new(geometry(128, 2, 11)).unwrap());
    other.write(Block(2), &block).unwrap();
    device.read(Block(0), &mut block).unwrap();
    other.write(Block(0), &block).unwrap();
    let error = Store::open(other, busy(1000, 1000)).err().unwrap();
    assert!(matches!(error, Error::Unsuitable { .. }), "{error}");
}

#[test]
fn a_flipped_bit_is_found_and_never_read_as_data() {
    let (device, model) = filled((128, 2, 10));
    let pristine = device.cut().image_with_all();
    let mut rng = Rng::new(8);
    let (mut damaged, mut reported) = (0, 0);
    for round in 0..300 {
        let image = Arc::new(pristine.snapshot());
        // Mostly pick blocks with data.
        let zone = ZoneNumber(rng.below(6) as u32);
        let block = Block(image.geometry().start(zone).0 + rng.below(60));
        image.flip_bit(block, rng.below(512 * 8)).unwrap();
        let problems = Store::check(Arc::clone(&image));
        let store = match Store::open(Arc::clone(&image), busy(50_000, 20_000)) {
            Ok(store) => store,
            Err(error) => {
                assert!(matches!(error, Error::Damaged { .. }), "round {round}: {error}");
                continue;
            }
        };
        let mut wrong = 0;
        for (key, value) in &model {
            match store.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "round {round}"),
                Err(Error::Damaged { .. }) => wrong += 1,
                Err(error) => panic!("{error}"),
            }
        }
        damaged += u32::from(wrong > 0);
        reported += u32::from(wrong > 0 && problems.is_ok_and(|report| !report.problems.is_empty()));
    }
    assert!(damaged > 10 && reported == damaged, "{damaged} damaged, {reported} reported");
}
