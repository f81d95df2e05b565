//! Runs a YCSB workload on a map: a load phase and an operation phase, each timed and with the device's operations
//! counted. Values are not verified; `soak` does that.
//!
//! Source: the two phases are those of the YCSB benchmark. Times are wall-clock times.

use crate::ycsb::{Operation, Workload, scatter};
use longma_zoned::device::{Counted, Counts, ZonedDevice};
use longma_zoned::error::Error;
use longma_zoned::map::KeyRange;
use longma_zoned::store::{Batch, Store};
use longma_zoned_runs as runs;
use std::ops::Bound;
use std::time::Instant;

/// Benchmark options.
#[derive(Clone, Copy, Debug)]
pub struct BenchOptions {
    /// The workload that follows the load.
    pub workload: Workload,
    /// The number of records to load first, in order of their numbers.
    pub records: u64,
    /// The number of operations after the load.
    pub operations: u64,
    /// The number of changes per batch, at least 1.
    pub batch: usize,
    /// The length of values, bytes.
    pub value_bytes: u32,
    /// The seed for choosing operations.
    pub seed: u64,
}

/// The results of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// `load`, or the workload's name.
    pub name: &'static str,
    /// The number of operations completed.
    pub operations: u64,
    /// The duration until all changes were durable, seconds.
    pub seconds: f64,
    /// The device operations during the phase.
    pub counts: Counts,
    /// Bytes of keys and values written by puts.
    pub put_bytes: u64,
}

impl Phase {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Write amplification: bytes written to a device with blocks of `block_bytes` per byte put. `None` if no value was
    /// written.
    pub fn written_per_byte_put(&self, block_bytes: u32) -> Option<f64> {
        let written = self.counts.blocks_written() as f64 * f64::from(block_bytes);
        (self.put_bytes != 0).then(|| written / self.put_bytes as f64)
    }
}

/// A change: a key, and its value, or `None` for a deletion.
type Change = ([u8; 8], Option<Vec<u8>>);

/// A map that can be measured.
pub trait BenchMap {
    /// The map's errors.
    type Error;

    /// The operations on its device so far.
    fn counts(&self) -> Counts;

    /// Applies changes as one batch.
    ///
    /// # Errors
    /// The map's.
    fn apply(&self, changes: &[Change]) -> Result<(), Self::Error>;

    /// Makes all changes durable.
    ///
    /// # Errors
    /// The map's.
    fn sync(&self) -> Result<(), Self::Error>;

    /// Looks up a key.
    ///
    /// # Errors
    /// The map's.
    fn get(&self, key: &[u8]) -> Result<(), Self::Error>;

    /// Reads at most `length` records from a key on.
    ///
    /// # Errors
    /// The map's.
    fn scan(&self, from: &[u8], length: u32) -> Result<(), Self::Error>;
}

impl<D: ZonedDevice> BenchMap for Store<Counted<D>> {
    type Error = Error;

    fn counts(&self) -> Counts {
        self.device().counts()
    }

    fn apply(&self, changes: &[Change]) -> Result<(), Error> {
        let mut batch = Batch::new();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            };
        }
        Self::apply(self, &batch).map(|_| ())
    }

    fn sync(&self) -> Result<(), Error> {
        Self::sync(self)
    }

    fn get(&self, key: &[u8]) -> Result<(), Error> {
        Self::get(self, key).map(|_| ())
    }

    fn scan(&self, from: &[u8], length: u32) -> Result<(), Error> {
        let mut rows = self.range(KeyRange::from(from));
        for _ in 0..length {
            if rows.next_row()?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

impl<D: ZonedDevice> BenchMap for runs::Store<Counted<D>> {
    type Error = runs::Error;

    fn counts(&self) -> Counts {
        self.device().counts()
    }

    fn apply(&self, changes: &[Change]) -> Result<(), runs::Error> {
        let mut batch = runs::Batch::new();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        Self::apply(self, &batch)
    }

    fn sync(&self) -> Result<(), runs::Error> {
        Self::sync(self)
    }

    fn get(&self, key: &[u8]) -> Result<(), runs::Error> {
        Self::get(self, key).map(|_| ())
    }

    fn scan(&self, from: &[u8], length: u32) -> Result<(), runs::Error> {
        let mut rows = self.range(Bound::Included(from), Bound::Unbounded).take(length as usize);
        rows.try_for_each(|row| row.map(|_| ()))
    }
}

/// Loads a map, which should be empty, and runs the workload on it until it ends or `stop` returns true. `tick` is
/// called after each operation. All completed operations are durable when the function returns. It returns the phases
/// that were started, in order.
///
/// # Errors
/// The errors of the map.
pub fn bench<M: BenchMap>(
    map: &M,
    options: &BenchOptions,
    stop: &dyn Fn() -> bool,
    tick: &mut dyn FnMut(),
) -> Result<Vec<Phase>, M::Error> {
    let BenchOptions { workload, records, operations, seed, .. } = *options;
    let mut load = (0..records).map(Operation::Insert);
    let mut phases = vec![Run::new(map, options).phase("load", &mut load, stop, tick)?];
    if !stop() {
        let mut stream = workload.stream(records, operations, seed);
        phases.push(Run::new(map, options).phase(workload.name, &mut stream, stop, tick)?);
    }
    Ok(phases)
}

/// A phase in progress. A read first applies the pending batch.
struct Run<'a, M> {
    map: &'a M,
    options: &'a BenchOptions,
    batch: Vec<Change>,
    done: u64,
    put_bytes: u64,
}

impl<'a, M: BenchMap> Run<'a, M> {
    fn new(map: &'a M, options: &'a BenchOptions) -> Self {
        Self { map, options, batch: Vec::new(), done: 0, put_bytes: 0 }
    }

    fn phase(
        mut self,
        name: &'static str,
        operations: &mut dyn Iterator<Item = Operation>,
        stop: &dyn Fn() -> bool,
        tick: &mut dyn FnMut(),
    ) -> Result<Phase, M::Error> {
        let (begin, before) = (Instant::now(), self.map.counts());
        for operation in operations {
            self.step(operation)?;
            tick();
            if stop() {
                break;
            }
        }
        self.apply()?;
        self.map.sync()?;
        let seconds = begin.elapsed().as_secs_f64();
        let counts = self.map.counts().since(&before);
        Ok(Phase { name, operations: self.done, seconds, counts, put_bytes: self.put_bytes })
    }

    fn step(&mut self, operation: Operation) -> Result<(), M::Error> {
        self.done += 1;
        match operation {
            Operation::Read(record) => self.get(record),
            Operation::Scan(record, length) => self.scan(record, length),
            Operation::Insert(record) | Operation::Update(record) => self.put(record),
            Operation::ReadModifyWrite(record) => {
                self.get(record)?;
                self.put(record)
            }
            Operation::Delete(record) => {
                self.batch.push((key(record), None));
                self.apply_if_full()
            }
        }
    }

    fn get(&mut self, record: u64) -> Result<(), M::Error> {
        self.apply()?;
        self.map.get(&key(record))
    }

    fn scan(&mut self, record: u64, length: u32) -> Result<(), M::Error> {
        self.apply()?;
        self.map.scan(&key(record), length)
    }

    fn put(&mut self, record: u64) -> Result<(), M::Error> {
        let (key, value) = (key(record), value(record, self.done, self.options.value_bytes));
        self.put_bytes += (key.len() + value.len()) as u64;
        self.batch.push((key, Some(value)));
        self.apply_if_full()
    }

    fn apply_if_full(&mut self) -> Result<(), M::Error> {
        if self.batch.len() < self.options.batch { Ok(()) } else { self.apply() }
    }

    fn apply(&mut self) -> Result<(), M::Error> {
        if !self.batch.is_empty() {
            self.map.apply(&self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }
}

/// The key of a record. It is hashed, so that records with adjacent numbers are not adjacent in the map.
fn key(record: u64) -> [u8; 8] {
    scatter(record).to_be_bytes()
}

/// The value that operation `number` of a phase, counted from 1, writes to a record. It differs for each operation.
fn value(record: u64, number: u64, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|n| (record ^ number).wrapping_add(n.into()) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_zoned::device::{Geometry, MemoryDevice};
    use longma_zoned::store::Options;
    use std::cell::Cell;
    use std::collections::BTreeMap;

    const RECORDS: u64 = 300;
    const OPERATIONS: u64 = 1000;

    fn store() -> Store<Counted<MemoryDevice>> {
        let geometry = Geometry {
            block_bytes: 4096,
            zone_blocks: 256,
            zone_capacity_blocks: 256,
            conventional_zones: 4,
            sequential_zones: 12,
            max_open_zones: 0,
            max_active_zones: 0,
        };
        let device = Store::format(MemoryDevice::new(geometry).unwrap(), None, 1).unwrap();
        Store::open(Counted::new(device), Options::with_cache(4 << 20)).unwrap()
    }

    fn options(workload: &str) -> BenchOptions {
        let workload = Workload::named(workload).unwrap();
        BenchOptions {
            workload,
            records: RECORDS,
            operations: OPERATIONS,
            batch: 7,
            value_bytes: 20,
            seed: 3,
        }
    }

    /// Applies the operations of a phase to a model and returns the bytes put.
    fn carry_out(map: &mut BTreeMap<[u8; 8], Vec<u8>>, operations: impl Iterator<Item = Operation>) -> u64 {
        let mut bytes = 0;
        for (number, operation) in (1..).zip(operations) {
            match operation {
                Operation::Insert(record)
                | Operation::Update(record)
                | Operation::ReadModifyWrite(record) => {
                    map.insert(key(record), value(record, number, 20));
                    bytes += 28;
                }
                Operation::Delete(record) => drop(map.remove(&key(record))),
                Operation::Read(_) | Operation::Scan(..) => (),
            }
        }
        bytes
    }

    fn content(store: &Store<Counted<MemoryDevice>>) -> BTreeMap<[u8; 8], Vec<u8>> {
        let (mut rows, mut map) = (store.range(KeyRange::ALL), BTreeMap::new());
        while let Some((key, value)) = rows.next_row().unwrap() {
            map.insert(key.try_into().unwrap(), value.to_vec());
        }
        map
    }

    #[test]
    fn after_a_workload_the_map_holds_what_its_operations_say() {
        for workload in Workload::ALL {
            let (store, options, ticks) = (store(), options(workload.name), Cell::new(0));
            let phases = bench(&store, &options, &|| false, &mut || ticks.set(ticks.get() + 1)).unwrap();
            let mut expected = BTreeMap::new();
            let loaded = carry_out(&mut expected, (0..RECORDS).map(Operation::Insert));
            let changed = carry_out(&mut expected, workload.stream(RECORDS, OPERATIONS, options.seed));
            assert!(content(&store) == expected, "{}", workload.name);
            assert_eq!(phases.iter().map(|phase| phase.name).collect::<Vec<_>>(), ["load", workload.name]);
            assert_eq!([phases[0].operations, phases[1].operations], [RECORDS, OPERATIONS]);
            assert_eq!([phases[0].put_bytes, phases[1].put_bytes], [loaded, changed]);
            assert_eq!(ticks.get(), RECORDS + OPERATIONS);
        }
    }

    #[test]
    fn a_phase_counts_only_its_own_device_operations() {
        let store = store();
        let phases = bench(&store, &options("C"), &|| false, &mut || ()).unwrap();
        // 300 changes in batches of 7, each of which is flushed.
        assert!(phases[0].counts.flushes >= 43, "{:?}", phases[0].counts);
        assert!(phases[0].written_per_byte_put(4096).unwrap() >= 1.0);
        // Workload C only reads.
        assert_eq!((phases[1].counts.blocks_written(), phases[1].put_bytes), (0, 0));
        assert_eq!(phases[1].written_per_byte_put(4096), None);
    }

    #[test]
    fn a_stopped_bench_counts_only_completed_operations_and_starts_no_other_phase() {
        for after in [1, 100, RECORDS + 1, RECORDS + 500] {
            let (store, options, ticks) = (store(), options("W1"), Cell::new(0));
            let stop = || ticks.get() == after;
            let phases = bench(&store, &options, &stop, &mut || ticks.set(ticks.get() + 1)).unwrap();
            let loaded = after.min(RECORDS);
            let operations: Vec<_> = phases.iter().map(|phase| phase.operations).collect();
            let mut expected = BTreeMap::new();
            carry_out(&mut expected, (0..loaded).map(Operation::Insert));
            match after <= RECORDS {
                true => assert_eq!(operations, [after]),
                false => {
                    assert_eq!(operations, [RECORDS, after - RECORDS]);
                    let stream = options.workload.stream(RECORDS, OPERATIONS, options.seed);
                    carry_out(&mut expected, stream.take((after - RECORDS) as usize));
                }
            }
            assert!(content(&store) == expected, "stopped after {after}");
        }
    }
}
