//! Runs the map against a `BTreeMap` on a faulty device. A byte script selects the operations and the faults: power
//! cuts, errors, lost, torn and misdirected writes, flipped bits and stale blocks. `random_faults` and the fuzz target
//! `zoned_map` drive it.
//!
//! Invariants:
//! - Acknowledged data is present unless it was damaged; reading damaged data is an error; no data is made up.
//! - All data readable at one time belongs to a single state of the map, which is not older than the last durable one.
//! - Without damage there are no errors.
//! - After a repair, everything that the report does not list as lost is present.

use longma_zoned::device::{Block, Condition, Fault, FaultyDevice, Geometry};
use longma_zoned::store::{LostRange, RepairReport};
use longma_zoned::{Batch, Durability, Error, Options, Store, ZonedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Device = Arc<FaultyDevice>;

/// The events of the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encountered {
    pub cuts: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    pub lost_writes: u64,
    pub torn_writes: u64,
    pub misdirected_writes: u64,
    pub flipped_bits: u64,
    pub old_versions: u64,
    /// Rejected opens, failed reads and scans, and repairs.
    pub refused: u64,
    pub unreadable: u64,
    pub repairs: u64,
    pub batches: u64,
}

impl Encountered {
    /// The number of power cuts and other faults.
    pub const fn faults(&self) -> u64 {
        self.cuts
            + self.read_errors
            + self.write_errors
            + self.flush_errors
            + self.lost_writes
            + self.torn_writes
            + self.misdirected_writes
            + self.flipped_bits
            + self.old_versions
    }

    pub const fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.read_errors += other.read_errors;
        self.write_errors += other.write_errors;
        self.flush_errors += other.flush_errors;
        self.lost_writes += other.lost_writes;
        self.torn_writes += other.torn_writes;
        self.misdirected_writes += other.misdirected_writes;
        self.flipped_bits += other.flipped_bits;
        self.old_versions += other.old_versions;
        self.refused += other.refused;
        self.unreadable += other.unreadable;
        self.repairs += other.repairs;
        self.batches += other.batches;
    }
}

/// The byte script. It continues with zeros after its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u64 {
        self.0.split_off_first().copied().unwrap_or(0).into()
    }

    fn number(&mut self) -> u64 {
        self.byte() << 8 | self.byte()
    }
}

struct World<'a> {
    script: Script<'a>,
    device: Device,
    store: Option<Store<Device>>,
    options: Options,
    keys: u64,
    large: bool,
    /// The states that the map may be in. The first one is durable, and the last one includes the latest change
    /// attempted.
    states: Vec<Model>,
    /// The index of the newest acknowledged state.
    acknowledged: usize,
    /// All values that each key ever had, and the keys changed since the checkpoint before the last one.
    ever: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    recent: Vec<BTreeSet<Vec<u8>>>,
    generation: u64,
    /// Whether the medium was damaged, so that errors are allowed.
    damaged: bool,
    /// A damaging fault for the next write is pending.
    armed: bool,
    may_damage: bool,
    faced: Encountered,
}

/// Runs a script. Panics if an invariant is violated.
pub fn run(bytes: &[u8]) -> Encountered {
    let mut script = Script(bytes);
    let shape = script.byte();
    let geometry = Geometry {
        block_bytes: 512,
        zone_blocks: [32, 48, 64][(shape % 3) as usize],
        zone_capacity_blocks: [32, 44, 60][(shape % 3) as usize],
        conventional_zones: 1 + (shape / 3 % 2) as u32,
        sequential_zones: 14,
        max_open_zones: 5,
        max_active_zones: 6,
    };
    let node_bytes = [512, 1024, 2048][(shape / 6 % 3) as usize];
    let kind = script.byte();
    let durability = if kind % 4 == 0 { Durability::Relaxed } else { Durability::EachBatch };
    let cache_bytes = if kind / 4 % 2 == 0 { 8_000 } else { 60_000 };
    let options = Options { cache_bytes, journal_bytes: 6_000, durability };
    let device = Arc::new(FaultyDevice::new(geometry).expect("a possible geometry"));
    let device = Store::format(device, Some(node_bytes), 1).expect("room enough");
    device.track_versions();
    let mut world = World {
        store: Some(Store::open(Arc::clone(&device), options).expect("a new map")),
        device,
        options,
        keys: 40 + 40 * (kind / 8 % 4),
        large: kind / 32 % 2 == 0,
        states: vec![Model::new()],
        acknowledged: 0,
        ever: BTreeMap::new(),
        recent: vec![BTreeSet::new(); 3],
        generation: 1,
        damaged: false,
        armed: false,
        may_damage: kind / 64 % 4 != 0,
        script,
        faced: Encountered::default(),
    };
    while !world.script.0.is_empty() {
        world.step();
    }
    world.open_again();
    world.faced
}

impl World<'_> {
    fn step(&mut self) {
        match self.script.byte() % 40 {
            0..16 => self.apply(),
            16..18 => self.get(),
            18 => self.make_safe(|store| store.checkpoint()),
            19 => self.make_safe(|store| store.sync()),
            20 => self.load(),
            21 => self.look_at_all(false),
            22..24 => self.open_again(),
            24..27 => self.cut_power(),
            27 => {
                self.faced.read_errors += 1;
                self.device.inject(Fault::TransientReadError { after: self.script.byte() % 8 });
            }
            28 => {
                self.faced.write_errors += 1;
                let after = self.soon();
                self.device.inject(Fault::WriteError { after });
            }
            29 => {
                self.faced.flush_errors += 1;
                let after = self.soon();
                self.device.inject(Fault::FlushError { after });
            }
            30..34 => self.damage_a_write(),
            34..37 => self.flip_a_bit(),
            _ => self.take_a_block_back(),
        }
        self.note_checkpoint();
    }

    fn soon(&mut self) -> u64 {
        self.device.changes() + self.script.byte() % 24
    }

    fn newest(&self) -> &Model {
        self.states.last().expect("there is always one")
    }

    /// Tracks which changes may be only in the journal.
    fn note_checkpoint(&mut self) {
        let Ok(info) = Store::info(&self.device) else { return };
        if info.generation > self.generation {
            self.generation = info.generation;
            self.recent.remove(0);
            self.recent.push(BTreeSet::new());
        }
    }

    fn note(&mut self, key: &[u8], value: Option<&[u8]>) {
        let values = self.ever.entry(key.to_vec()).or_default();
        if let Some(value) = value {
            values.insert(value.to_vec());
        }
        self.recent.last_mut().expect("there are three").insert(key.to_vec());
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.script.byte() % self.keys;
        match self.keys % 80 {
            0 => number.to_be_bytes().to_vec(),
            _ => {
                let mut key = format!("{:02}", number / 3).into_bytes();
                key.resize(key.len() + (number % 3) as usize * 5, b'.');
                key
            }
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let kind = self.script.byte();
        let bytes = match kind % 8 {
            6 => 30,
            7 if self.large => [400, 900, 1700, 3000][(kind / 8 % 4) as usize],
            _ => 8,
        };
        let seed = self.script.number() << 16 | self.faced.batches;
        (0..bytes).map(|index: u64| (seed >> (index % 4 * 8)) as u8 ^ index as u8).collect()
    }

    /// After an error: reopens the map, which must be in one of the possible states.
    fn failed(&mut self, error: &Error) {
        match error {
            Error::Full { .. } | Error::Device(_) | Error::Stopped { .. } => {}
            Error::Damaged { .. } if self.damaged || self.armed => {}
            error => panic!("{error}"),
        }
        self.open_again();
    }

    fn apply(&mut self) {
        let (mut batch, mut state) = (Batch::new(), self.newest().clone());
        let first = state.clone();
        for _ in 0..=self.script.byte() % 8 {
            let key = self.key();
            if self.script.byte().is_multiple_of(4) {
                batch.delete(&key);
                state.remove(&key);
                self.note(&key, None);
            } else {
                let value = self.value();
                batch.put(&key, &value);
                self.note(&key, Some(&value));
                state.insert(key, value);
            }
        }
        self.faced.batches += 1;
        let Some(store) = &self.store else { return };
        let applied = store.apply(&batch);
        if matches!(applied, Err(Error::Full { .. })) {
            // The error guarantees that nothing was changed.
            state = first;
        }
        self.states.push(state);
        match applied {
            Ok(_) if self.options.durability == Durability::EachBatch => self.all_safe(),
            Ok(_) => self.acknowledged = self.states.len() - 1,
            Err(error) => self.failed(&error),
        }
    }

    fn all_safe(&mut self) {
        self.states.drain(..self.states.len() - 1);
        self.acknowledged = 0;
    }

    fn make_safe(&mut self, how: impl Fn(&Store<Device>) -> longma_zoned::Result<()>) {
        let Some(store) = &self.store else { return };
        match how(store) {
            Ok(()) => self.all_safe(),
            Err(error) => self.failed(&error),
        }
    }

    fn load(&mut self) {
        let mut records = Model::new();
        for _ in 0..=self.script.byte() % 6 {
            let (key, value) = (self.key(), self.value());
            self.note(&key, Some(&value));
            records.insert(key, value);
        }
        let Some(store) = &self.store else { return };
        let loaded = store.load(&records);
        let mut state = self.newest().clone();
        state.extend(records);
        self.states.push(state);
        match loaded {
            Ok(_) => self.all_safe(),
            Err(error) => self.failed(&error),
        }
    }

    fn get(&mut self) {
        let key = self.key();
        let Some(store) = &self.store else { return };
        match store.get(&key) {
            Ok(value) => assert_eq!(value.as_ref(), self.newest().get(&key), "{key:?}"),
            Err(error) => self.expect_damage(&error),
        }
    }

    /// Checks that a read error is justified by earlier damage.
    fn expect_damage(&mut self, error: &Error) {
        self.faced.unreadable += 1;
        match error {
            Error::Device(_) => {}
            Error::Damaged { .. } => assert!(self.damaged, "nothing was damaged: {error}"),
            error => panic!("{error}"),
        }
    }

    fn cut_power(&mut self) {
        self.faced.cuts += 1;
        self.clear_pending_faults();
        let (way, seed) = (self.script.byte() % 4, self.script.number());
        let cut = self.device.cut();
        let image = match way {
            0 => cut.image_with_all(),
            1 => cut.image_with_none(),
            _ => cut.random_image(seed),
        };
        self.store = None;
        self.device = Arc::new(FaultyDevice::over(image));
        self.device.track_versions();
        // Changes that were not durable may be lost.
        self.acknowledged = 0;
        self.open_again();
    }

    /// Removes the faults that have not occurred.
    fn clear_pending_faults(&mut self) {
        for fault in self.device.waiting() {
            let count = match fault {
                Fault::TransientReadError { .. } => &mut self.faced.read_errors,
                Fault::WriteError { .. } => &mut self.faced.write_errors,
                Fault::FlushError { .. } => &mut self.faced.flush_errors,
                Fault::TornWrite { sectors: 0, .. } => &mut self.faced.lost_writes,
                Fault::TornWrite { .. } => &mut self.faced.torn_writes,
                Fault::MisdirectedWrite { .. } => &mut self.faced.misdirected_writes,
                _ => continue,
            };
            *count -= 1;
        }
        self.device.clear_faults();
        self.armed = false;
    }

    fn open_again(&mut self) {
        self.store = None;
        self.clear_pending_faults();
        let checked = Store::check(Arc::clone(&self.device));
        if self.damaged {
            // If the check finds nothing, no damage may show up later.
            self.damaged = !checked.is_ok_and(|report| report.problems.is_empty());
        } else {
            let problems = checked.expect("nothing was damaged").problems;
            assert!(problems.is_empty(), "nothing was damaged: {problems:?}");
        }
        match Store::open(Arc::clone(&self.device), self.options) {
            Ok(store) => {
                self.store = Some(store);
                self.look_at_all(true);
            }
            Err(error) => {
                assert!(self.damaged, "nothing was damaged: {error}");
                self.faced.refused += 1;
                let refused = !matches!(error, Error::Inconsistent { .. } | Error::Stopped { .. });
                assert!(refused, "{error}");
                let check = Store::check(Arc::clone(&self.device));
                assert!(check.is_err() || check.is_ok_and(|report| !report.problems.is_empty()), "{error}");
                self.repair();
            }
        }
    }

    /// Reads every key individually and by scans. All results must belong to one state: the newest one, unless the map
    /// was just opened.
    fn look_at_all(&mut self, opened: bool) {
        let Some(store) = self.store.take() else { return };
        let names: BTreeSet<_> = self.ever.keys().cloned().collect();
        let (mut content, mut errors) = (Vec::new(), 0);
        for key in &names {
            match store.get(key) {
                Ok(value) => content.push((key, value)),
                Err(error) => {
                    errors += 1;
                    self.expect_damage(&error);
                }
            }
        }
        let (mut rows, mut whole) = (Vec::new(), true);
        for row in store.iter() {
            match row {
                Ok(row) => rows.push(row.to_pair()),
                Err(error) => {
                    self.expect_damage(&error);
                    whole = false;
                }
            }
        }
        let is_it = |state: &Model| {
            content.iter().all(|(key, value)| state.get(*key) == value.as_ref())
                && (!whole
                    || (state.len() == rows.len() && state.iter().eq(rows.iter().map(|(k, v)| (k, v)))))
                && (whole || rows.iter().all(|(key, value)| state.get(key) == Some(value)))
                && (errors > 0 || !whole || store.len() == state.len() as u64)
        };
        if !opened {
            self.acknowledged = self.states.len() - 1;
        }
        // The newest matching state.
        let found = self.states.iter().skip(self.acknowledged).rposition(is_it);
        let Some(found) = found else {
            panic!(
                "the contents match none of {} states; damaged: {}, {errors} errors, {whole}; {} keys, of the last state {:?}",
                self.states.len() - self.acknowledged,
                self.damaged,
                store.len(),
                content
                    .iter()
                    .filter(|(key, value)| self.newest().get(*key) != value.as_ref())
                    .collect::<Vec<_>>()
            )
        };
        if opened {
            // Opening made this state durable.
            self.states = vec![self.states.swap_remove(self.acknowledged + found)];
            self.acknowledged = 0;
        }
        self.store = Some(store);
        if errors > 0 || !whole {
            self.clear_pending_faults();
            self.repair_if_damaged();
        }
    }

    /// If something is unreadable although no fault is pending, a check must find it. Then repairs the map.
    fn repair_if_damaged(&mut self) {
        self.store = None;
        let report = Store::check(Arc::clone(&self.device));
        if report.is_ok_and(|report| report.problems.is_empty()) {
            // The error was transient.
            self.store = Store::open(Arc::clone(&self.device), self.options).ok();
            assert!(self.store.is_some());
            return;
        }
        assert!(self.damaged);
        self.repair();
    }

    fn repair(&mut self) {
        self.faced.repairs += 1;
        let report = Store::repair(Arc::clone(&self.device), self.options);
        let report = report.unwrap_or_else(|error| panic!("a repair: {error}"));
        let checked = Store::check(Arc::clone(&self.device)).expect("a repaired map can be checked");
        assert!(checked.problems.is_empty(), "after a repair: {:?}, {report:?}", checked.problems);
        let store = Store::open(Arc::clone(&self.device), self.options).expect("a repaired map opens");
        assert_eq!(store.len(), report.keys);
        let rows: Model =
            store.iter().map(|row| row.expect("a repaired map can be read").to_pair()).collect();
        for (key, value) in &rows {
            assert!(self.ever.get(key).is_some_and(|values| values.contains(value)), "{key:?} was invented");
        }
        let is_named = |key: &Vec<u8>| {
            is_lost(&report, key)
                || (!report.lost_batches.is_empty() && self.recent.iter().any(|keys| keys.contains(key)))
        };
        let is_old = report.superblock_lost || report.superblock_old;
        let is_it =
            |state: &&Model| self.ever.keys().all(|key| rows.get(key) == state.get(key) || is_named(key));
        let found = is_old || self.states[self.acknowledged..].iter().rev().any(|state| is_it(&state));
        assert!(found, "a repair lost what it does not name: {report:?}");
        // The repair made the current contents durable.
        self.states = vec![rows];
        self.acknowledged = 0;
        self.damaged = false;
        self.store = Some(store);
    }

    fn damage_a_write(&mut self) {
        let (kind, after, place) =
            (self.script.byte() % 4, self.device.changes() + self.script.byte() % 8, self.script.number());
        if !self.may_damage || self.damaged || self.armed {
            return;
        }
        self.armed = true;
        let fault = match kind {
            0 | 1 => {
                self.faced.lost_writes += 1;
                Fault::TornWrite { after, sectors: 0 }
            }
            2 => {
                self.faced.torn_writes += 1;
                Fault::TornWrite { after, sectors: 1 + place % 4 }
            }
            _ => {
                self.faced.misdirected_writes += 1;
                Fault::MisdirectedWrite { after, to: self.block(place) }
            }
        };
        self.device.inject(fault);
        // The fault may occur at any time from now on.
        self.damaged = true;
    }

    /// Picks a written block, preferring superblocks and space tables.
    fn block(&self, place: u64) -> Block {
        if place.is_multiple_of(16) {
            let end = self.device.geometry().zone_blocks;
            return Block([0, 1, 2, 3, 4, 5, end - 2, end - 1][(place / 16 % 8) as usize]);
        }
        let zones = self.device.zones().expect("it is on");
        let written = |zone: &&longma_zoned::device::Zone| {
            zone.condition == Condition::Conventional || zone.write_pointer > 0
        };
        let zones: Vec<_> = zones.iter().filter(written).collect();
        let zone = zones[(place / 16) as usize % zones.len()];
        let blocks =
            if zone.condition == Condition::Conventional { zone.capacity_blocks } else { zone.write_pointer };
        Block(zone.start.0 + place % 251 % blocks)
    }

    fn flip_a_bit(&mut self) {
        let (place, bit) = (self.script.number(), self.script.number());
        if !self.may_damage || self.damaged {
            return;
        }
        self.faced.flipped_bits += 1;
        self.damaged = true;
        self.device.flip_bit(self.block(place), bit % (512 * 8)).expect("it is on the device");
    }

    fn take_a_block_back(&mut self) {
        let place = self.script.number();
        if !self.may_damage || self.damaged {
            return;
        }
        let blocks = self.device.revertible_blocks();
        if !blocks.is_empty() {
            assert!(self.device.revert_block(blocks[place as usize % blocks.len()]));
            self.faced.old_versions += 1;
            self.damaged = true;
        }
    }
}

fn is_lost(report: &RepairReport, key: &[u8]) -> bool {
    let inside = |lost: &LostRange| key >= &lost.from[..] && lost.to.as_ref().is_none_or(|to| key < &to[..]);
    report.lost.iter().chain(&report.lost_changes).any(inside)
        || report.lost_values.iter().any(|lost| lost == key)
}
