//! A mixed load on a nearly full map for as long as wanted, with every value checked: does it go on as fast as it began?
//! Not a benchmark against others.

use crate::ycsb::{Chance, scatter};
use longma_zoned::device::ZonedDevice;
use longma_zoned::error::{Error, Result};
use longma_zoned::map::KeyRange;
use longma_zoned::store::{Batch, Statistics, Store};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What a soak does.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// How much of the device's blocks is in use before the load begins, 0 to 1; never more than 95 % of what a map can use.
    pub fill: f64,
    /// How long the load lasts at least; it ends with a window.
    pub duration: Duration,
    /// How many windows it lasts at least.
    pub windows: usize,
    /// How many operations a window has at least: throughput is measured window by window.
    pub window_operations: u64,
    /// How long a window lasts at least.
    pub window: Duration,
    /// After how many windows the whole map is checked.
    pub check_every: usize,
    /// How many changes a batch has.
    pub batch: u64,
    /// How many operations are to begin in a second, evenly and whether those before them are done or not; as many as can be done without.
    /// A window then has as many as belong to its time, and takes longer if the map does not keep up.
    pub rate: Option<f64>,
    /// How long values are, bytes, at least 12.
    pub value_bytes: usize,
    /// All that is by chance depends on it.
    pub seed: u64,
}

impl Default for SoakOptions {
    /// 90 % full, one minute, windows of 100 000 operations with a check after each, batches of 1000, values of 100 bytes.
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

/// A part of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Operations.
    pub operations: u64,
    /// Operations in a second.
    pub operations_per_second: f64,
    /// Operations in a second of processor time, where the kernel says it: on a machine that others use, too, it is the steadier figure.
    pub operations_per_processor_second: Option<f64>,
    /// Blocks written, of all kinds.
    pub blocks_written: u64,
    /// The longest batch, seconds.
    pub longest_batch: f64,
    /// The longest that a put or deletion took until it was safe, from when it was to begin, seconds; at a constant rate only.
    pub longest_put: Option<f64>,
    /// The part of the device's blocks in use at its end.
    pub fill: f64,
    /// Zones reset, those of the journal included.
    pub zones_reset: u64,
    /// Sequential zones that are empty at its end.
    pub empty_zones: u64,
    /// Nodes that a check after it found in order; nothing if there was none.
    pub checked_nodes: Option<u64>,
}

/// What a soak found.
#[derive(Clone, Debug, Serialize)]
pub struct SoakReport {
    /// Records when the load began.
    pub records: u64,
    /// The part of the device's blocks in use then, and at the end.
    pub fill: [f64; 2],
    /// The windows, in order.
    pub windows: Vec<Window>,
    /// The mean throughput, operations in a second, and the lowest of a window.
    pub mean: f64,
    /// The lowest of a window.
    pub lowest: f64,
    /// The same by processor time.
    pub processor_mean: Option<f64>,
    /// The lowest of a window by processor time.
    pub processor_lowest: Option<f64>,
    /// The longest batch during the load, seconds.
    pub longest_batch: f64,
    /// The longest put or deletion during the load, as in [`Window::longest_put`].
    pub longest_put: Option<f64>,
    /// Zones reset during the load, those of the journal included.
    pub zones_reset: u64,
    /// Checks of the whole map.
    pub checks: u64,
    /// Problems that a check found: it is the last one then.
    pub problems: Vec<String>,
    /// The map's statistics at the end.
    pub statistics: Statistics,
}

/// The largest part of the device's blocks that is filled: a map at its limit takes updates, but waits for each.
fn most_fill<D: ZonedDevice>(store: &Store<D>) -> f64 {
    let (statistics, geometry) = (store.statistics(), store.device().geometry());
    let capacity = u64::from(geometry.sequential_zones) * geometry.zone_capacity_blocks;
    // Conventional slots come on top of what the map says that it can use.
    0.95 * statistics.usable_blocks as f64 / capacity as f64
}

/// The part of the device's blocks that is in use.
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
    chance: Chance,
    /// Each record's version; 0 if it is not there.
    versions: Vec<u32>,
    batch: Batch,
    /// The records that the batch changes.
    pending: Vec<u64>,
    longest_batch: Duration,
    /// At a constant rate: when this operation was to begin, and when the first one of the batch was.
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

    /// Half of it at once in order, the rest as it comes: the leaves are not full then, and lie in no order.
    fn load(&mut self) -> Result<()> {
        let statistics = self.store.statistics();
        let geometry = self.store.device().geometry();
        let bytes = statistics.zones * geometry.zone_capacity_blocks * u64::from(geometry.block_bytes);
        let target = self.options.fill.min(most_fill(self.store));
        let records = bytes as f64 * target / 2.0 / (8 + self.options.value_bytes.max(12)) as f64;
        self.versions = vec![1; records as usize];
        let mut order: Vec<u64> = (0..self.versions.len() as u64).collect();
        order.sort_unstable_by_key(|&record| scatter(record));
        self.store
            .load(order.iter().map(|&record| (scatter(record).to_be_bytes(), self.value(record, 1))))?;
        // Filling is not what is measured: one change at a time would take hours. But a batch has to fit into what is left.
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

    /// Half updates, a fifth deletions and inserts, a quarter gets, and scans; says how many.
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

    /// The same, each operation when it is due, or at once if that is over.
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
        let record = self.chance.below(self.versions.len() as u64);
        match self.chance.below(20) {
            0..10 => self.put(record),
            // As many come back as go: each record that is gone is put again when it is drawn.
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
        let what = format!("record {record} is not what was put last");
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

/// Fills a map, which should be empty, and runs a mixed load on it until `stop` says so or its time is over; `tick` is called after
/// each window.
///
/// # Errors
/// As the map's; [`Error::Damaged`] if a value is not what was put.
pub fn soak<D: ZonedDevice>(
    store: &Store<D>,
    options: SoakOptions,
    stop: &dyn Fn() -> bool,
    tick: &mut dyn FnMut(&Window),
) -> Result<SoakReport> {
    let mut soak = Soak {
        store,
        options,
        chance: Chance::new(options.seed),
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

/// How long this thread has had a processor, seconds: the first field of proc(5)'s schedstat, nanoseconds.
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
