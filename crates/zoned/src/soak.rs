//! A mixed load on a nearly full map for as long as wanted, with every value checked: does it go on as fast as it began?
//! Not a benchmark against others.
//! Source: our own.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::map::{Direction, KeyRange};
use crate::store::{Batch, Statistics, Store};
use crate::ycsb::{Chance, scatter};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What a soak does.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// How much of the device's blocks is in use before the load begins, 0 to 1.
    pub fill: f64,
    /// How long the load lasts at least; it ends with a window.
    pub duration: Duration,
    /// How many windows it lasts at least.
    pub windows: usize,
    /// How many operations a window has: throughput is measured window by window.
    pub window_operations: u64,
    /// How many changes a batch has.
    pub batch: u64,
    /// How long values are, bytes, at least 12.
    pub value_bytes: usize,
    /// All that is by chance depends on it.
    pub seed: u64,
}

impl Default for SoakOptions {
    /// 90 % full, one minute, windows of 100 000 operations, batches of 1000, values of 100 bytes.
    fn default() -> Self {
        Self {
            fill: 0.9,
            duration: Duration::from_secs(60),
            windows: 4,
            window_operations: 100_000,
            batch: 1000,
            value_bytes: 100,
            seed: 1,
        }
    }
}

/// A part of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Operations in a second.
    pub operations_per_second: f64,
    /// Blocks written, of all kinds.
    pub blocks_written: u64,
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
    /// Zones reset during the load, those of the journal included.
    pub zones_reset: u64,
    /// Problems that a check at the end found.
    pub problems: Vec<String>,
    /// The map's statistics at the end.
    pub statistics: Statistics,
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
        self.store.apply(&self.batch)?;
        self.batch.clear();
        self.pending.clear();
        Ok(())
    }

    fn load(&mut self) -> Result<()> {
        while fill(self.store) < self.options.fill {
            for _ in 0..self.options.batch {
                self.versions.push(0);
                self.put(self.versions.len() as u64 - 1);
            }
            self.apply()?;
            if (self.versions.len() as u64).is_multiple_of(16 * self.options.batch) {
                self.store.checkpoint()?;
            }
        }
        self.store.checkpoint()
    }

    /// Half updates, a fifth gets, a fifth deletions and inserts, and scans.
    fn window(&mut self) -> Result<()> {
        let end = self.options.window_operations;
        for number in 0..end {
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
            if self.batch.len() as u64 >= self.options.batch {
                self.apply()?;
            }
            if number + 1 == end {
                self.apply()?;
            }
        }
        Ok(())
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
        Err(Error::Damaged { block: crate::device::Block(0), what })
    }

    fn scan(&mut self, record: u64) -> Result<()> {
        let (key, mut left, mut ordered) = (scatter(record).to_be_bytes(), 100, true);
        let mut last = Vec::new();
        self.store.scan(KeyRange::from(&key), Direction::Ascending, &mut |key, _| {
            ordered &= last.as_slice() < key;
            last = key.to_vec();
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        match ordered {
            true => Ok(()),
            false => {
                let what = format!("a scan from record {record} on is out of order");
                Err(Error::Damaged { block: crate::device::Block(0), what })
            }
        }
    }
}

/// Fills a map, which should be empty, and runs a mixed load on it; `tick` is called after each window.
///
/// # Errors
/// As the map's; [`Error::Damaged`] if a value is not what was put.
pub fn soak<D: ZonedDevice>(
    store: &Store<D>,
    options: SoakOptions,
    tick: &mut dyn FnMut(&Window),
) -> Result<SoakReport> {
    let chance = Chance::new(options.seed);
    let mut soak =
        Soak { store, options, chance, versions: Vec::new(), batch: Batch::new(), pending: Vec::new() };
    soak.load()?;
    let (records, filled, before) = (store.len(), fill(store), store.statistics());
    let (mut windows, mut written) = (Vec::new(), before.traffic.written());
    let begin = Instant::now();
    while begin.elapsed() < options.duration || windows.len() < options.windows {
        let start = Instant::now();
        soak.window()?;
        let now = store.statistics().traffic.written();
        let window = Window {
            operations_per_second: options.window_operations as f64 / start.elapsed().as_secs_f64(),
            blocks_written: now - written,
        };
        written = now;
        tick(&window);
        windows.push(window);
    }
    let mean = windows.len() as f64 * options.window_operations as f64 / begin.elapsed().as_secs_f64();
    let lowest = windows.iter().map(|window| window.operations_per_second).fold(f64::INFINITY, f64::min);
    let report = store.check_now()?;
    let statistics = store.statistics();
    Ok(SoakReport {
        records,
        fill: [filled, fill(store)],
        windows,
        mean,
        lowest,
        zones_reset: statistics.reclaim.zones_reset - before.reclaim.zones_reset,
        problems: report.problems.into_iter().map(|problem| problem.what).collect(),
        statistics,
    })
}
