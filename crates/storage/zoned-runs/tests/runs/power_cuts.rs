//! A power cut, a failed write and a failed flush lose no acknowledged batch and never damage the map.

use crate::support::{Model, assert_same, batch, busy, campaign, geometry, open};
use longma_random::SplitMix64;
use longma_zoned_runs::device::{Fault, FaultyDevice, MemoryDevice};
use longma_zoned_runs::{Durability, Error, Options, Store};
use std::sync::Arc;

fn formatted() -> Arc<FaultyDevice> {
    Store::format(Arc::new(FaultyDevice::new(geometry(40)).unwrap()), 7).unwrap()
}

/// The state of the model after each batch, with the number of device changes before it was acknowledged.
struct History {
    states: Vec<(u64, Model)>,
}

impl History {
    /// Checks that a map has the state after some batch: at least the last one acknowledged before change `cut`.
    fn check(&self, store: &Store<MemoryDevice>, cut: u64, durable: bool, what: &str) {
        let acknowledged = self.states.iter().rposition(|(changes, _)| *changes <= cut).unwrap_or(0);
        let rows: Model = store.iter().map(Result::unwrap).collect();
        let from = if durable { acknowledged } else { 0 };
        let to = (acknowledged + 2).min(self.states.len());
        let found = self.states[from..to].iter().rev().find(|(_, model)| *model == rows);
        let Some((_, model)) = found else {
            panic!("{what}: {} rows are no state from {from} to {to}", rows.len())
        };
        assert_same(store, model, what);
    }
}

fn run(device: &Arc<FaultyDevice>, options: Options, seed: u64, batches: u64) -> History {
    let store = open(Arc::clone(device), options);
    let (mut rng, mut model) = (SplitMix64::new(seed), Model::new());
    let mut history = History { states: vec![(device.changes(), model.clone())] };
    device.record();
    for number in 0..batches {
        store.apply(&batch(&mut rng, 400, 12, 20, &mut model)).unwrap();
        if number % 40 == 39 {
            store.sync().unwrap();
        }
        history.states.push((device.changes(), model.clone()));
    }
    let statistics = store.statistics();
    assert!(statistics.flushes > 4 && statistics.merges > 0, "{statistics:?}");
    history
}

#[test]
fn a_power_cut_after_any_write_loses_no_acknowledged_batch() {
    for (seed, durability) in [(1, Durability::EachBatch), (2, Durability::Relaxed)] {
        let device = formatted();
        let options = Options { durability, ..busy(40_000) };
        let history = run(&device, options, seed, campaign("LONGMA_RUNS_BATCHES", 90));
        let recording = device.recording().unwrap();
        let (mut images, mut cuts) = (0, 0);
        for (changes, cut) in recording.cuts() {
            cuts += 1;
            for image in cut.images(if changes % 5 == 0 { 6 } else { 2 }, changes) {
                images += 1;
                let store =
                    Store::open(image, options).unwrap_or_else(|error| panic!("cut {changes}: {error}"));
                history.check(
                    &store,
                    changes,
                    durability == Durability::EachBatch,
                    &format!("cut {changes}"),
                );
            }
        }
        assert!(cuts > 200 && images > cuts + 200, "{cuts} cuts, {images} images");
    }
}

#[test]
fn a_power_cut_while_the_map_recovers_loses_nothing() {
    let device = formatted();
    let history = run(&device, busy(40_000), 3, 110);
    let recording = device.recording().unwrap();
    let mut cuts = 0;
    for (changes, cut) in recording.cuts().step_by(37) {
        for after in (0..24).step_by(2) {
            let again = Arc::new(FaultyDevice::over(cut.image_with_all()));
            again.inject(Fault::PowerCut { after });
            cuts += u64::from(Store::open(Arc::clone(&again), busy(40_000)).is_err());
            for image in again.cut().images(3, after) {
                let store =
                    Store::open(image, busy(40_000)).unwrap_or_else(|error| panic!("cut {changes}: {error}"));
                history.check(&store, changes, true, &format!("cut {changes}, then after {after}"));
            }
        }
    }
    assert!(cuts > 20, "{cuts}");
}

#[test]
fn a_failed_write_or_flush_stops_writing_and_loses_nothing() {
    for after in (0..500).step_by(11) {
        for fails_flush in [false, true] {
            let device = formatted();
            let store = open(Arc::clone(&device), busy(40_000));
            let after = device.changes() + after;
            device.inject(if fails_flush {
                Fault::FlushError { after }
            } else {
                Fault::WriteError { after }
            });
            let (mut rng, mut model) = (SplitMix64::new(after), Model::new());
            let mut attempted = model.clone();
            let mut stopped = false;
            for _ in 0..200 {
                match store.apply(&batch(&mut rng, 400, 12, 20, &mut attempted)) {
                    Ok(()) => model = attempted.clone(),
                    Err(error) => {
                        assert!(matches!(error, Error::Device(_) | Error::Stopped { .. }), "{error}");
                        stopped = true;
                        break;
                    }
                }
            }
            assert!(stopped, "fault after {after} was not met");
            assert!(matches!(store.put(b"key", b""), Err(Error::Stopped { .. })));
            assert_same(&store, &model, &format!("stopped after {after}, flush {fails_flush}"));
            drop(store);
            // Open the map without a power cut, and then with one. The second must not lose batches that the first
            // shows.
            let live = open(Arc::clone(&device), busy(40_000));
            let shown: Model = live.iter().map(Result::unwrap).collect();
            assert!(shown == model || shown == attempted, "reopened after {after}, flush {fails_flush}");
            std::mem::forget(live);
            let cut = open(device.cut().image_with_none(), busy(40_000));
            assert_same(&cut, &shown, &format!("cut after {after}, flush {fails_flush}"));
        }
    }
}

/// Recovery needs space, because the log's batches become a run.
#[test]
fn a_power_cut_of_a_full_map_loses_nothing_and_deletions_still_succeed() {
    let device = formatted();
    let store = open(Arc::clone(&device), busy(100_000));
    let mut model = Model::new();
    for number in 0u64.. {
        let (key, value) =
            (number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(), vec![number as u8; 5_000]);
        match store.put(&key, &value) {
            Ok(()) => drop(model.insert(key, value)),
            Err(Error::Full { is_merging: true, .. }) => {}
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let mut history = History { states: vec![(device.changes(), model.clone())] };
    device.record();
    let gone: Vec<Vec<u8>> = model.keys().step_by(3).cloned().collect();
    for key in gone {
        store.delete(&key).unwrap();
        model.remove(&key);
        history.states.push((device.changes(), model.clone()));
    }
    let recording = device.recording().unwrap();
    let mut images = 0;
    for (changes, cut) in recording.cuts().step_by(9) {
        for image in cut.images(2, changes) {
            images += 1;
            let store =
                Store::open(image, busy(100_000)).unwrap_or_else(|error| panic!("cut {changes}: {error}"));
            history.check(&store, changes, true, &format!("cut {changes}"));
            for (key, _) in history.states[0].1.iter().skip(1).step_by(3).take(40) {
                store.delete(key).unwrap_or_else(|error| panic!("cut {changes}: {error}"));
                assert_eq!(store.get(key).unwrap(), None);
            }
        }
    }
    assert!(images > 40, "{images}");
}
