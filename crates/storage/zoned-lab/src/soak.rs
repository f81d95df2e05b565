//! Soak test: a mixed load on a nearly full map, with every value verified. It measures whether the throughput stays
//! constant.

use crate::ycsb::{Rng, scatter};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::{Error, Result};
use longma_zoned::map::KeyRange;
use longma_zoned::store::{Batch, Statistics, Store};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Soak options.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// The fraction of the device's blocks to fill before the load, 0 to 1. It is limited to 95 % of the usable space.
    pub fill: f64,
    /// The minimum duration of the load. The load ends at the end of a window.
    pub duration: Duration,
    /// The minimum number of windows.
    pub windows: usize,
    /// The minimum number of operations in a window. Throughput is measured for each window.
    pub window_operations: u64,
    /// The minimum duration of a window.
    pub window: Duration,
    /// The number of windows between checks of the whole map.
    pub check_every: usize,
    /// The number of changes per batch.
    pub batch: u64,
    /// The rate at which operations are due, per second, independent of the completion of earlier ones. `None` runs
    /// them as fast as possible. With a rate, a window contains the operations due in its duration, and takes longer if
    /// the map cannot keep up.
    pub rate: Option<f64>,
    /// The length of values, bytes, at least 12.
    pub value_bytes: usize,
    /// The random seed.
    pub seed: u64,
}

impl Default for SoakOptions {
    /// 90 % full, one minute, windows of 100 000 operations with a check after each, batches of 1000, values of 100
    /// bytes.
    fn default() -> Self {
        Self {
            fill: 0.9,
            duration: Duration::from_secs(60),
            windows: 4,
            window_operations: 100_000,
            window: Duration::ZERO,
            check_every: 1,
            batch: 1000,
            rate: None,
            value_bytes: 100,
            seed: 1,
        }
    }
}

/// The measurements of a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Operations.
    pub operations: u64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Operations per second of processor time, if the kernel reports it. On a shared machine this varies less.
    pub operations_per_processor_second: Option<f64>,
    /// Blocks written, of all kinds.
    pub blocks_written: u64,
    /// The longest duration of a batch, seconds.
    pub longest_batch: f64,
    /// The longest time from when a put or deletion was due until it was durable, seconds. Only at a constant rate.
    pub longest_put: Option<f64>,
    /// The fraction of the device's blocks in use at the end of the window.
    pub fill: f64,
    /// Zones reset, including journal zones.
    pub zones_reset: u64,
    /// Empty sequential zones at the end of the window.
    pub empty_zones: u64,
    /// The number of nodes checked after the window. `None` if there was no check.
    pub checked_nodes: Option<u64>,
}

/// The results of a soak.
#[derive(Clone, Debug, Serialize)]
pub struct SoakReport {
    /// The number of records when the load began.
    pub records: u64,
    /// The fraction of the device's blocks in use when the load began and at the end.
    pub fill: [f64; 2],
    /// The windows, in order.
    pub windows: Vec<Window>,
    /// The mean throughput, operations per second.
    pub mean: f64,
    /// The lowest throughput of a window.
    pub lowest: f64,
    /// The mean throughput per second of processor time.
    pub processor_mean: Option<f64>,
    /// The lowest throughput of a window per second of processor time.
    pub processor_lowest: Option<f64>,
    /// The longest duration of a batch during the load, seconds.
    pub longest_batch: f64,
    /// The longest latency of a put or deletion during the load, as in [`Window::longest_put`].
    pub longest_put: Option<f64>,
    /// Zones reset during the load, including journal zones.
    pub zones_reset: u64,
    /// The number of checks of the whole map.
    pub checks: u64,
    /// Problems found by a check. The soak ends at the first check that finds any.
    pub problems: Vec<String>,
    /// The statistics of the map at the end.
    pub statistics: Statistics,
}

/// The maximum fraction of the device's blocks to fill. A map at its very limit still accepts updates, but each of them
/// has to wait for garbage collection.
fn max_fill<D: ZonedDevice>(store: &Store<D>) -> f64 {
    let (statistics, geometry) = (store.statistics(), store.device().geometry());
    let capacity = u64::from(geometry.sequential_zones) * geometry.zone_capacity_blocks;
    // Conventional slots are not included in the usable blocks.
    0.95 * statistics.usable_blocks as f64 / capacity as f64
}

/// The fraction of the device's blocks in use.
pub fn fill<D: ZonedDevice>(store: &Store<D>) -> f64 {
    let (statistics, geometry) = (store.statistics(), store.device().geometry());
    let capacity = u64::from(geometry.sequential_zones) * geometry.zone_capacity_blocks;
    let node = 4096.max(u64::from(geometry.block_bytes)) / u64::from(geometry.block_bytes);
    let used = statistics.live_blocks + statistics.slots_used * node;
    used as f64 / (capacity + statistics.slots * node) as f64
}

struct Soak<'a, D> {
    store: &'a Store<D>,
    options: SoakOptions,
    rng: Rng,
    /// The version of each record; 0 if it is deleted.
    versions: Vec<u32>,
    batch: Batch,
    /// The records changed by the current batch.
    pending: Vec<u64>,
    longest_batch: Duration,
    /// At a constant rate: the due times of the current operation and of the first operation of the batch.
    due: Option<Instant>,
    first_due: Option<Instant>,
    longest_put: Duration,
}

impl<D: ZonedDevice> Soak<'_, D> {
    fn value(&self, record: u64, version: u32) -> Vec<u8> {
        let mut value = vec![version as u8; self.options.value_bytes.max(12)];
        value[..8].copy_from_slice(&record.to_le_bytes());
        value[8..12].copy_from_slice(&version.to_le_bytes());
        value
    }

    fn put(&mut self, record: u64) {
        let version = &mut self.versions[record as usize];
        *version += 1;
        let version = *version;
        let value = self.value(record, version);
        self.batch.put(&scatter(record).to_be_bytes(), &value);
        self.pending.push(record);
    }

    fn apply(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.store.apply(&self.batch)?;
        self.longest_batch = self.longest_batch.max(begin.elapsed());
        if let Some(due) = self.first_due.take() {
            self.longest_put = self.longest_put.max(due.elapsed());
        }
        self.batch.clear();
        self.pending.clear();
        Ok(())
    }

    /// Bulk-loads half of the records, then inserts the rest in random order, so that leaves are partly full and
    /// scattered.
    fn load(&mut self) -> Result<()> {
        let statistics = self.store.statistics();
        let geometry = self.store.device().geometry();
        let bytes = statistics.zones * geometry.zone_capacity_blocks * u64::from(geometry.block_bytes);
        let target = self.options.fill.min(max_fill(self.store));
        let records = bytes as f64 * target / 2.0 / (8 + self.options.value_bytes.max(12)) as f64;
        self.versions = vec![1; records as usize];
        let mut order: Vec<u64> = (0..self.versions.len() as u64).collect();
        order.sort_unstable_by_key(|&record| scatter(record));
        self.store
            .load(order.iter().map(|&record| (scatter(record).to_be_bytes(), self.value(record, 1))))?;
        // The fill phase is not measured, and batches of one change would take hours. A batch must still fit into the
        // remaining space.
        let batch =
            self.options.batch.max((statistics.zones * geometry.zone_capacity_blocks / 1000).min(1000));
        for batches in 1_u64.. {
            if fill(self.store) >= target {
                break;
            }
            for _ in 0..batch {
                self.versions.push(0);
                self.put(self.versions.len() as u64 - 1);
            }
            self.apply()?;
            if batches.is_multiple_of(16) {
                self.store.checkpoint()?;
            }
        }
        self.store.checkpoint()
    }

    /// Runs a window: half updates, a fifth deletions and inserts, a quarter gets, and scans. Returns the number of
    /// operations.
    fn window(&mut self) -> Result<u64> {
        if let Some(rate) = self.options.rate {
            return self.window_at(rate);
        }
        let (begin, mut done) = (Instant::now(), 0);
        while done < self.options.window_operations || begin.elapsed() < self.options.window {
            for _ in 0..100.min(self.options.window_operations.max(1)) {
                self.operation()?;
                done += 1;
            }
        }
        self.apply()?;
        Ok(done)
    }

    /// Like `window`, but starts each operation when it is due, or immediately if it is late.
    fn window_at(&mut self, rate: f64) -> Result<u64> {
        let all = ((rate * self.options.window.as_secs_f64()) as u64).max(self.options.window_operations);
        let begin = Instant::now();
        for number in 0..all {
            let due = begin + Duration::from_secs_f64(number as f64 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.due = Some(due);
            self.operation()?;
        }
        self.apply()?;
        self.due = None;
        Ok(all)
    }

    fn operation(&mut self) -> Result<()> {
        let record = self.rng.below(self.versions.len() as u64);
        match self.rng.below(20) {
            0..10 => self.put(record),
            // A deleted record is inserted again when it is drawn, so the numbers of deletions and inserts balance.
            10..14 if self.versions[record as usize] != 0 => {
                self.batch.delete(&scatter(record).to_be_bytes());
                self.pending.push(record);
                self.versions[record as usize] = 0;
            }
            10..14 => self.put(record),
            14..19 => self.get(record)?,
            _ => self.scan(record)?,
        }
        if !self.batch.is_empty() {
            self.first_due = self.first_due.or(self.due);
        }
        match self.batch.len() as u64 >= self.options.batch {
            true => self.apply(),
            false => Ok(()),
        }
    }

    fn get(&mut self, record: u64) -> Result<()> {
        if self.pending.contains(&record) {
            self.apply()?;
        }
        let found = self.store.get(&scatter(record).to_be_bytes())?;
        let version = self.versions[record as usize];
        let expected = (version != 0).then(|| self.value(record, version));
        if found == expected {
            return Ok(());
        }
        let what = format!("record {record} does not have its last value");
        Err(Error::Damaged { block: longma_zoned::device::Block(0), what })
    }

    fn scan(&mut self, record: u64) -> Result<()> {
        let mut rows = self.store.range(KeyRange::from(&scatter(record).to_be_bytes()));
        let (mut last, mut ordered) = (Vec::new(), true);
        for _ in 0..100 {
            let Some((key, _)) = rows.next_row()? else { break };
            ordered &= last.as_slice() < key;
            last.clear();
            last.extend_from_slice(key);
        }
        match ordered {
            true => Ok(()),
            false => {
                let what = format!("a scan from record {record} on is out of order");
                Err(Error::Damaged { block: longma_zoned::device::Block(0), what })
            }
        }
    }
}

/// Fills a map, which should be empty, and runs a mixed load on it until `stop` returns true or the duration is over.
/// `tick` is called after each window.
///
/// # Errors
/// Those of the map; [`Error::Damaged`] if a value is wrong.
pub fn soak<D: ZonedDevice>(
    store: &Store<D>,
    options: SoakOptions,
    stop: &dyn Fn() -> bool,
    tick: &mut dyn FnMut(&Window),
) -> Result<SoakReport> {
    let mut soak = Soak {
        store,
        options,
        rng: Rng::new(options.seed),
        versions: Vec::new(),
        batch: Batch::new(),
        pending: Vec::new(),
        longest_batch: Duration::ZERO,
        due: None,
        first_due: None,
        longest_put: Duration::ZERO,
    };
    soak.load()?;
    let (records, filled, before) = (store.len(), fill(store), store.statistics());
    let (mut windows, mut problems, mut checks) = (Vec::new(), Vec::new(), 0);
    let (mut operations, mut busy, mut processor) = (0, Duration::ZERO, Some(0.0));
    let begin = Instant::now();
    while problems.is_empty()
        && !stop()
        && (begin.elapsed() < options.duration || windows.len() < options.windows)
    {
        let (mut window, took) = soak.measure()?;
        if (windows.len() + 1).is_multiple_of(options.check_every.max(1)) {
            let report = store.check_now()?;
            checks += 1;
            window.checked_nodes = Some(report.leaves + report.logs + report.inner_nodes);
            problems.extend(report.problems.into_iter().map(|problem| problem.what));
        }
        (operations, busy) = (operations + window.operations, busy + took);
        let rate = window.operations_per_processor_second;
        processor = processor.zip(rate).map(|(sum, rate)| sum + window.operations as f64 / rate);
        tick(&window);
        windows.push(window);
    }
    let lowest = windows.iter().map(|window| window.operations_per_second).fold(f64::INFINITY, f64::min);
    let processor_rates: Vec<f64> =
        windows.iter().filter_map(|window| window.operations_per_processor_second).collect();
    if problems.is_empty() {
        let report = store.check_now()?;
        checks += 1;
        problems.extend(report.problems.into_iter().map(|problem| problem.what));
    }
    let statistics = store.statistics();
    let longest_put = windows.iter().filter_map(|window| window.longest_put).reduce(f64::max);
    let longest_batch = windows.iter().map(|window| window.longest_batch).fold(0.0, f64::max);
    Ok(SoakReport {
        records,
        fill: [filled, fill(store)],
        windows,
        mean: operations as f64 / busy.as_secs_f64(),
        lowest,
        processor_mean: processor.map(|seconds| operations as f64 / seconds),
        processor_lowest: processor_rates
            .into_iter()
            .fold(None, |lowest: Option<f64>, rate| Some(lowest.map_or(rate, |lowest| lowest.min(rate)))),
        longest_batch,
        longest_put,
        zones_reset: statistics.reclaim.zones_reset - before.reclaim.zones_reset,
        checks,
        problems,
        statistics,
    })
}

/// The processor time of this thread, seconds: the first field of schedstat in proc(5), in nanoseconds.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds / 1e9)
}

impl<D: ZonedDevice> Soak<'_, D> {
    fn measure(&mut self) -> Result<(Window, Duration)> {
        let (start, before) = (Instant::now(), self.store.statistics());
        let processor = processor_seconds();
        (self.longest_batch, self.longest_put) = (Duration::ZERO, Duration::ZERO);
        let operations = self.window()?;
        let (took, after) = (start.elapsed(), self.store.statistics());
        let processor = processor_seconds().zip(processor).map(|(after, before)| after - before);
        let window = Window {
            operations,
            operations_per_second: operations as f64 / took.as_secs_f64(),
            operations_per_processor_second: processor
                .filter(|&seconds| seconds > 0.0)
                .map(|seconds| operations as f64 / seconds),
            blocks_written: after.traffic.written() - before.traffic.written(),
            longest_batch: self.longest_batch.as_secs_f64(),
            longest_put: self.options.rate.map(|_| self.longest_put.as_secs_f64()),
            fill: fill(self.store),
            zones_reset: after.reclaim.zones_reset - before.reclaim.zones_reset,
            empty_zones: after.empty_zones,
            checked_nodes: None,
        };
        Ok((window, took))
    }
}
