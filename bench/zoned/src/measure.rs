//! What is measured of an engine: loading in order, inserting in random order, reading, scanning, and a mixture.
//! Not many threads: one does it all.
//! Source: the kernel's Documentation/block/stat.rst for the sectors that a block device wrote. /proc/self/io is no measure: it counts a whole
//! large folio of the page cache for 4 KiB of it (Linux 6.18: 209 MB for a thousand writes of 4 KiB that reached the disk as 4 MB).

use crate::Durability;
use crate::engine::{self, Engine, Fallible, Record};
use crate::records::{Shape, mixed};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// What an engine is put through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub engine: String,
    pub shape: Shape,
    pub durability: Durability,
    pub records: u64,
    /// Records that are written together.
    pub batch: u64,
    /// How much memory an engine may use to keep what it read, MiB.
    #[serde(default = "usual_cache_mib")]
    pub cache_mib: u64,
    /// How much memory the process may have in all, the page cache that it fills included, MiB; without a limit in results that do not
    /// say it.
    #[serde(default)]
    pub memory_mib: Option<u64>,
}

/// What results have that do not say it.
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

/// A part of what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// All records, in the order of their keys, into a new map.
    Load,
    /// All records, in random order, into a new map, which the other phases use.
    Insert,
    /// Lookups of keys that are there.
    Read,
    /// All records in order.
    Scan,
    /// A batch of lookups, a batch of new values, and so on.
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

    /// How many operations it has.
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

/// What was measured in one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub task: Task,
    pub phase: Phase,
    /// The first operation of the phase that this piece did.
    pub from: u64,
    /// The first that it did not do.
    pub to: u64,
    /// What they took.
    pub seconds: f64,
    /// Processor time of all the process's threads meanwhile, the kernel's work for them included; what other programs do, or a disk that
    /// is busy, hardly changes it.
    #[serde(default)]
    pub processor_seconds: Option<f64>,
    /// Bytes of keys and values written.
    pub payload_bytes: u64,
    /// Bytes written to the disk meanwhile, by whomever, opening and closing and all that was still in the page cache included; not known
    /// if the folder is on no block device.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// What the files take afterwards, bytes.
    pub space_bytes: u64,
    /// How many processes of the machine wanted to run in the minute before its end, this one included (proc(5), loadavg).
    pub load_average: f64,
}

/// Runs a phase of a task from an operation on, until it is done or `most_seconds` are over. `folder` is empty if the phase needs
/// it so, and is what its last piece left otherwise.
pub fn measure(task: &Task, phase: Phase, from: u64, most_seconds: f64, folder: &Path) -> Fallible<Piece> {
    let before = disk_bytes(folder)?;
    let open = || engine::open(&task.engine, folder, task.durability, (task.cache_mib as usize) << 20);
    let mut engine = open()?;
    let mut clock = Clock { seconds: 0.0, processor_seconds: 0.0, most_seconds };
    let engine_ref = engine.as_mut();
    let to = match phase {
        Phase::Load => clock.write(engine_ref, task, from, |number| task.shape.ascending_key(number))?,
        Phase::Insert => clock.write(engine_ref, task, from, |number| task.shape.random_key(number))?,
        Phase::Read => {
            // What was read before is in the caches, as far as they reach, as in a process that runs for long.
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
        // What an engine writes when it finds its log at the next start is a part of what inserting costs.
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

/// The time that an engine took so far, without that of making its records.
struct Clock {
    seconds: f64,
    processor_seconds: f64,
    most_seconds: f64,
}

impl Clock {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (begin, processor) = (Instant::now(), processor_seconds());
        let result = work();
        self.seconds += begin.elapsed().as_secs_f64();
        self.processor_seconds += processor_seconds() - processor;
        result
    }

    /// Writes records from `from` on, in batches, until all are synced; where it came to.
    fn write(
        &mut self,
        engine: &mut dyn Engine,
        task: &Task,
        from: u64,
        key: impl Fn(u64) -> Vec<u8>,
    ) -> Fallible<u64> {
        let mut at = from;
        while at < task.records && self.seconds < self.most_seconds {
            let numbers = at..(at + task.batch).min(task.records);
            at = numbers.end;
            let batch: Vec<Record> =
                numbers.map(|number| (key(number), task.shape.value(number, 0))).collect();
            self.time(|| engine.write(&batch))?;
        }
        self.time(|| engine.sync())?;
        Ok(at)
    }

    /// Looks up keys that are there, in random order.
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

    /// A batch of new values after each batch of lookups; where it came to.
    fn mixture(&mut self, engine: &mut dyn Engine, task: &Task, from: u64) -> Fallible<u64> {
        let updates = Phase::Mixed.operations(task);
        let mut at = from;
        while at < updates && self.seconds < self.most_seconds {
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

/// What was written so far to the disk that a folder is on, bytes, with nothing left in the page cache.
fn disk_bytes(folder: &Path) -> Fallible<Option<u64>> {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: sync(2) takes nothing and always succeeds.
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

/// Processor time that this process has had so far, all threads together (clock_gettime(2), CLOCK_PROCESS_CPUTIME_ID).
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which is there; that clock is always there on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn load_average() -> Fallible<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").map_err(engine_error)?;
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.ok_or_else(|| "/proc/loadavg has no number".into())
}

/// What the files in a folder take on the disk, bytes.
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
