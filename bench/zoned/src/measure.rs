//! The phases measured for an engine: loading in order, inserting in random order, reading, scanning, and a mixture,
//! all in one thread.
//! Source: the kernel's Documentation/block/stat.rst for the sectors written to a block device. /proc/self/io is
//! unsuitable: it counts a whole large folio of the page cache for 4 KiB of it (Linux 6.18: 209 MB for a thousand
//! writes of 4 KiB that reached the disk as 4 MB).

use crate::Durability;
use crate::engine::{self, Engine, Fallible, Record};
use crate::records::{Shape, mixed};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// The parameters of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub engine: String,
    pub shape: Shape,
    pub durability: Durability,
    pub records: u64,
    /// Records per write batch.
    pub batch: u64,
    /// Memory for an engine's cache, in MiB.
    #[serde(default = "usual_cache_mib")]
    pub cache_mib: u64,
    /// Memory limit of the process, including its page cache, in MiB; `None` in results without a limit.
    #[serde(default)]
    pub memory_mib: Option<u64>,
}

/// The value for results that do not state it.
const fn usual_cache_mib() -> u64 {
    1024
}

impl Task {
    /// A name for its folder and its lines.
    pub fn name(&self) -> String {
        let Self { engine, shape, durability, records, batch, cache_mib, memory_mib } = self;
        let memory = memory_mib.map_or(String::new(), |mib| format!("-of-{mib}"));
        format!("{engine}-{}-{}-{records}-{batch}-{cache_mib}{memory}", shape.name(), durability.name())
    }
}

/// A phase of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Writes all records in key order into a new map.
    Load,
    /// Writes all records in random order into a new map, which the other phases use.
    Insert,
    /// Looks up existing keys.
    Read,
    /// Reads all records in order.
    Scan,
    /// Alternates batches of lookups and batches of updates.
    Mixed,
}

impl Phase {
    pub const ALL: [Self; 5] = [Self::Load, Self::Insert, Self::Read, Self::Scan, Self::Mixed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Insert => "insert",
            Self::Read => "read",
            Self::Scan => "scan",
            Self::Mixed => "mixed",
        }
    }

    /// Number of operations.
    pub fn operations(self, task: &Task) -> u64 {
        match self {
            Self::Load | Self::Insert | Self::Scan => task.records,
            Self::Read => task.records.min(2_000_000),
            Self::Mixed => task.records.min(1_000_000),
        }
    }

    /// Whether it needs an empty folder.
    pub const fn begins_anew(self) -> bool {
        matches!(self, Self::Load | Self::Insert)
    }
}

/// The result of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub task: Task,
    pub phase: Phase,
    /// The first operation of the phase in this piece.
    pub from: u64,
    /// The first operation after this piece.
    pub to: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Processor time of all threads of the process, including kernel time. Other programs and a busy disk hardly
    /// influence it.
    #[serde(default)]
    pub processor_seconds: Option<f64>,
    /// Bytes of keys and values written.
    pub payload_bytes: u64,
    /// Bytes written to the disk by all processes, including opening, closing and flushing the page cache; `None` if
    /// the folder is not on a block device.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Size of the files afterwards, in bytes.
    pub space_bytes: u64,
    /// Load average of the machine over the last minute, including this process (proc(5), loadavg).
    pub load_average: f64,
}

/// Runs a phase from an operation on, until it is done or `max_seconds` have passed. `folder` is empty for the first
/// piece of a phase that starts afresh; otherwise it has the previous piece's files.
pub fn measure(task: &Task, phase: Phase, from: u64, max_seconds: f64, folder: &Path) -> Fallible<Piece> {
    let before = disk_bytes(folder)?;
    let open = || engine::open(&task.engine, folder, task.durability, (task.cache_mib as usize) << 20);
    let mut engine = open()?;
    let mut clock = Clock { seconds: 0.0, processor_seconds: 0.0, max_seconds };
    let engine_ref = engine.as_mut();
    let to = match phase {
        Phase::Load => clock.write(engine_ref, task, from, |number| task.shape.ascending_key(number))?,
        Phase::Insert => clock.write(engine_ref, task, from, |number| task.shape.random_key(number))?,
        Phase::Read => {
            // Warm up the caches, as in a long-running process.
            engine.scan()?;
            clock.read(engine.as_mut(), task)?
        }
        Phase::Scan => {
            engine.scan()?;
            clock.scan(engine.as_mut(), task)?
        }
        Phase::Mixed => {
            engine.scan()?;
            clock.mixture(engine.as_mut(), task, from)?
        }
    };
    drop(engine);
    if phase == Phase::Insert {
        // Writes at the next start, from recovering the log, are part of the cost of inserting.
        drop(open()?);
    }
    let written = matches!(phase, Phase::Load | Phase::Insert | Phase::Mixed);
    Ok(Piece {
        task: task.clone(),
        phase,
        from,
        to,
        seconds: clock.seconds,
        processor_seconds: Some(clock.processor_seconds),
        payload_bytes: if written { (to - from) * task.shape.record_bytes() } else { 0 },
        disk_bytes: disk_bytes(folder)?.zip(before).map(|(after, before)| after - before),
        space_bytes: used_bytes(folder)?,
        load_average: load_average()?,
    })
}

/// The engine's time so far, without generating records.
struct Clock {
    seconds: f64,
    processor_seconds: f64,
    max_seconds: f64,
}

impl Clock {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (begin, processor) = (Instant::now(), processor_seconds());
        let result = work();
        self.seconds += begin.elapsed().as_secs_f64();
        self.processor_seconds += processor_seconds() - processor;
        result
    }

    /// Writes records from `from` on, in batches, until all are synced; returns the end position.
    fn write(
        &mut self,
        engine: &mut dyn Engine,
        task: &Task,
        from: u64,
        key: impl Fn(u64) -> Vec<u8>,
    ) -> Fallible<u64> {
        let mut at = from;
        while at < task.records && self.seconds < self.max_seconds {
            let numbers = at..(at + task.batch).min(task.records);
            at = numbers.end;
            let batch: Vec<Record> =
                numbers.map(|number| (key(number), task.shape.value(number, 0))).collect();
            self.time(|| engine.write(&batch))?;
        }
        self.time(|| engine.sync())?;
        Ok(at)
    }

    /// Looks up existing keys in random order.
    fn read(&mut self, engine: &mut dyn Engine, task: &Task) -> Fallible<u64> {
        let count = Phase::Read.operations(task);
        let mut found = 0;
        for start in (0..count).step_by(1000) {
            let numbers = (start..(start + 1000).min(count)).map(|n| mixed(n ^ 0x5555) % task.records);
            let keys: Vec<_> = numbers.map(|number| task.shape.random_key(number)).collect();
            found += self.time(|| engine.read(&keys))?;
        }
        if found == count { Ok(count) } else { Err(format!("{found} of {count} keys were found")) }
    }

    fn scan(&mut self, engine: &mut dyn Engine, task: &Task) -> Fallible<u64> {
        let (count, _) = self.time(|| engine.scan())?;
        if count == task.records {
            Ok(count)
        } else {
            Err(format!("there are {count} records instead of {}", task.records))
        }
    }

    /// Alternates batches of lookups and batches of updates; returns the end position.
    fn mixture(&mut self, engine: &mut dyn Engine, task: &Task, from: u64) -> Fallible<u64> {
        let updates = Phase::Mixed.operations(task);
        let mut at = from;
        while at < updates && self.seconds < self.max_seconds {
            let numbers = at..(at + task.batch).min(updates);
            at = numbers.end;
            let numbers = || numbers.clone().map(|n| mixed(n ^ 0xaaaa) % task.records);
            let keys: Vec<_> =
                numbers().map(|number| task.shape.random_key(mixed(number) % task.records)).collect();
            let batch: Vec<Record> = numbers()
                .map(|number| (task.shape.random_key(number), task.shape.value(number, 1)))
                .collect();
            let found = self.time(|| engine.read(&keys))?;
            if found != keys.len() as u64 {
                return Err(format!("{found} of {} keys were found", keys.len()));
            }
            self.time(|| engine.write(&batch))?;
        }
        self.time(|| engine.sync())?;
        Ok(at)
    }
}

/// Bytes written so far to the disk of a folder, after flushing the page cache.
fn disk_bytes(folder: &Path) -> Fallible<Option<u64>> {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: sync(2) has no arguments and always succeeds.
    unsafe { libc::sync() };
    let device = std::fs::metadata(folder).map_err(engine_error)?.dev();
    let name = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
    let Ok(text) = std::fs::read_to_string(name) else { return Ok(None) };
    // The seventh number: sectors of 512 bytes written.
    Ok(text
        .split_whitespace()
        .nth(6)
        .and_then(|sectors| sectors.parse::<u64>().ok())
        .map(|sectors| sectors * 512))
}

/// Processor time of this process so far, all threads together (clock_gettime(2), CLOCK_PROCESS_CPUTIME_ID).
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which is valid; the clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn load_average() -> Fallible<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").map_err(engine_error)?;
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.ok_or_else(|| "/proc/loadavg has no number".into())
}

/// Disk space of the files in a folder, in bytes.
fn used_bytes(folder: &Path) -> Fallible<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(engine_error)? {
        let entry = entry.map_err(engine_error)?;
        let data = entry.metadata().map_err(engine_error)?;
        bytes += if data.is_dir() { used_bytes(&entry.path())? } else { data.blocks() * 512 };
    }
    Ok(bytes)
}

fn engine_error(error: std::io::Error) -> String {
    error.to_string()
}
