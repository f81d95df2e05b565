//! Small devices filled up under a snapshot: deletions always have space, and once the snapshot is dropped, inserts
//! have space again.

use crate::support::{Model, assert_same, busy, campaign, open};
use longma_zoned::device::{Geometry, MemoryDevice};
use longma_zoned::{Batch, Error, Options, Store};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

/// How the map gets full while a snapshot exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filling {
    /// Inserts of new keys.
    Growing,
    /// Updates of keys in the snapshot.
    Overwriting,
}

#[derive(Clone, Copy, Debug)]
struct SetUp {
    geometry: Geometry,
    node_bytes: u32,
    options: Options,
    value_bytes: u64,
    filling: Filling,
    /// Changes per batch.
    batch: u64,
    /// The share of the map, in tenths, that the keys take before the snapshot.
    part: u64,
    seed: u64,
}

fn set_up(seed: u64) -> SetUp {
    let mut rng = Rng::new(seed);
    let zone_blocks = [64, 128, 256][rng.below(3) as usize];
    let sequential = 10 + rng.below(31) as u32;
    let conventional = 1 + rng.below(3) as u32;
    let node_bytes = [512, 1024, 2048, 4096][rng.below(4) as usize];
    let mut geometry = crate::support::geometry(zone_blocks, conventional, sequential);
    if rng.below(2) == 0 {
        geometry.zone_capacity_blocks = zone_blocks;
    }
    if rng.below(2) == 0 {
        (geometry.max_open_zones, geometry.max_active_zones) = (0, 0);
    }
    let cache = [20_000, 100_000, 1 << 20, 256 << 20][rng.below(4) as usize];
    let options = busy(cache, cache / 4);
    let value_bytes = [8, 100, 400, 2_000, 5_000, 20_000][rng.below(6) as usize];
    let filling = if rng.below(2) == 0 { Filling::Growing } else { Filling::Overwriting };
    SetUp {
        geometry,
        node_bytes,
        options,
        value_bytes,
        filling,
        batch: [1, 10, 100][rng.below(3) as usize],
        part: 1 + rng.below(9),
        seed,
    }
}

struct World {
    store: Store<Arc<MemoryDevice>>,
    model: Model,
    rng: Rng,
    set_up: SetUp,
    /// The number of keys in the snapshot, and the last key tried.
    records: u64,
    last: u64,
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl World {
    /// A value of fixed length, or of a random length up to that.
    fn value(&mut self) -> Vec<u8> {
        let SetUp { seed, value_bytes, .. } = self.set_up;
        let bytes = if seed % 2 == 0 { value_bytes } else { self.rng.below(value_bytes + 1) };
        vec![self.rng.next_u64() as u8; bytes as usize]
    }

    /// Inserts keys. Returns false if the map is full.
    fn put(&mut self, numbers: impl IntoIterator<Item = u64>) -> Result<bool, String> {
        let (mut batch, mut changed) = (Batch::new(), Vec::new());
        for number in numbers {
            let value = self.value();
            batch.put(&key(number), &value);
            changed.push((key(number), value));
        }
        match self.store.apply(&batch) {
            Ok(_) => self.model.extend(changed),
            Err(Error::Full { .. }) => return Ok(false),
            Err(error) => return Err(format!("a put: {error}")),
        }
        Ok(true)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        self.store.delete(key)?;
        self.model.remove(key);
        Ok(())
    }

    /// Inserts up to `records` keys, or until the map is full.
    fn begin(&mut self, records: u64) -> Result<(), String> {
        for number in 0..records {
            if !self.put([number])? {
                break;
            }
        }
        self.records = self.model.len() as u64;
        self.last = self.records;
        Ok(())
    }

    fn fill(&mut self) -> Result<(), String> {
        for _ in 0..1_000_000 {
            let SetUp { batch, filling, .. } = self.set_up;
            let numbers: Vec<u64> = match filling {
                Filling::Growing => (self.last..self.last + batch).collect(),
                Filling::Overwriting => (0..batch).map(|_| self.rng.below(self.records)).collect(),
            };
            self.last += if filling == Filling::Growing { batch } else { 0 };
            if !self.put(numbers)? {
                return Ok(());
            }
        }
        Err("it does not get full".into())
    }

    /// Random operations while the snapshot exists. They may be rejected, but must leave enough space for recovery
    /// after it is dropped.
    fn go_on_trying(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.below(200) {
            let number = self.rng.below(self.last);
            match self.rng.below(3) {
                0 => match self.delete(&key(number)) {
                    Ok(()) | Err(Error::Full { .. }) => {}
                    Err(error) => return Err(format!("a delete under the snapshot: {error}")),
                },
                1 => _ = self.put([number])?,
                _ => self
                    .store
                    .checkpoint()
                    .map_err(|error| format!("a checkpoint under the snapshot: {error}"))?,
            }
        }
        Ok(())
    }

    /// Updates and deletions that must succeed without a snapshot.
    fn recover(&mut self) -> Result<(), String> {
        if self.set_up.filling == Filling::Growing {
            for key in self.model.keys().cloned().collect::<Vec<_>>().iter().step_by(2) {
                self.delete(key).map_err(|error| format!("a delete: {error}"))?;
            }
        }
        let keys: Vec<_> = self.model.keys().cloned().collect();
        for round in 0..200.min(50 * keys.len()) {
            let key = &keys[self.rng.below(keys.len() as u64) as usize];
            // No longer than the old value: a full map may reject growth.
            let value = vec![round as u8; self.model[key].len()];
            let put = self.store.put(key, &value);
            put.map_err(|error| format!("update {round} of {} keys: {error}", keys.len()))?;
            self.model.insert(key.clone(), value);
        }
        for key in keys.iter().step_by(3) {
            self.delete(key).map_err(|error| format!("a delete in the end: {error}"))?;
        }
        Ok(())
    }
}

/// Runs one setup. The error describes what failed.
fn run(set_up: SetUp) -> Result<(), String> {
    let SetUp { geometry, node_bytes, options, value_bytes, part, seed, .. } = set_up;
    let device = Arc::new(MemoryDevice::new(geometry).unwrap());
    let Ok(device) = Store::format(device, Some(node_bytes), 1) else { return Ok(()) };
    if 3 * (value_bytes / u64::from(geometry.block_bytes) + 2) >= geometry.zone_capacity_blocks {
        // With values as large as a third of a zone, a map may be too full even for updates.
        return Ok(());
    }
    let store = open(Arc::clone(&device), options);
    let usable = store.statistics().usable_blocks * u64::from(geometry.block_bytes);
    let (model, rng) = (Model::new(), Rng::new(seed ^ 0x5eed));
    let mut world = World { store, model, rng, set_up, records: 0, last: 0 };
    world.begin((usable * part / 10 / (value_bytes + 24)).clamp(8, 20_000))?;
    let (at_first, kept) = (world.model.clone(), world.store.snapshot());
    world.fill()?;
    world.go_on_trying()?;
    assert_same(&kept, &at_first, "the snapshot");
    drop(kept);
    world.recover()?;
    let World { store, model, .. } = world;
    assert_same(&store.snapshot(), &model, "in the end");
    let problems = store.check_now().map_err(|error| format!("the check: {error}"))?.problems;
    if !problems.is_empty() {
        return Err(format!("{problems:?}"));
    }
    drop(store);
    assert_same(&open(device, options).snapshot(), &model, "opened again");
    Ok(())
}

/// LONGMA_ZONED_FULL sets the number of setups, LONGMA_ZONED_SEED the first seed.
#[test]
fn a_map_filled_under_a_snapshot_accepts_deletions_and_recovers_after_the_drop() {
    let first = campaign("LONGMA_ZONED_SEED", 1);
    let mut wrong = Vec::new();
    let all = campaign("LONGMA_ZONED_FULL", 60);
    for seed in first..first + all {
        let set_up = set_up(seed);
        if let Err(what) = run(set_up) {
            println!("{what}: {set_up:?}");
            wrong.push(what);
        }
    }
    assert!(wrong.is_empty(), "{} of {all} set-ups", wrong.len());
}
