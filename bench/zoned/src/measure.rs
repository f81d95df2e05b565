//! What is measured of an engine: loading in order, inserting in random order, reading, scanning, and a mixture.
//! Not many threads: one does it all.
//! Source: /proc/self/io (proc(5)): `write_bytes` is what the process caused to be sent to the storage layer.

use crate::Durability;
use crate::engine::{self, Engine, Fallible, Record};
use crate::records::{Shape, mixed};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// What an engine is put through.
pub struct Task {
    pub shape: Shape,
    pub durability: Durability,
    pub records: u64,
    /// Records that are written together.
    pub batch: u64,
}

/// How an engine did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub engine: String,
    pub shape: Shape,
    pub durability: String,
    pub records: u64,
    pub batch: u64,
    /// Records a second, written in the order of their keys into a new map.
    pub load_per_s: f64,
    /// Records a second, written in random order into a new map.
    pub insert_per_s: f64,
    /// Lookups a second of keys that are there.
    pub read_per_s: f64,
    /// Records a second, all in order.
    pub scan_per_s: f64,
    /// Operations a second: half lookups, half new values for keys that are there.
    pub mixed_per_s: f64,
    /// Bytes written to the storage layer for each byte of keys and values that was inserted in random order, until all was synced.
    pub written_per_byte: f64,
    /// The same while half of the operations of the mixture gave keys new values.
    pub mixed_written_per_byte: f64,
    /// Bytes of the files after the random inserts, for each byte of keys and values.
    pub space_per_byte: f64,
}

/// Runs all phases with one engine, in an empty folder.
pub fn measure(name: &str, task: &Task, folder: &Path) -> Fallible<Figures> {
    let shape = task.shape;
    let load_per_s = {
        let place = subfolder(folder, "load")?;
        let mut engine = engine::open(name, &place, task.durability)?;
        let rate = write_all(engine.as_mut(), task, |number| shape.ascending_key(number))?;
        drop(engine);
        std::fs::remove_dir_all(&place).map_err(engine_error)?;
        rate
    };
    let place = subfolder(folder, "insert")?;
    let mut engine = engine::open(name, &place, task.durability)?;
    let before = written_bytes()?;
    let insert_per_s = write_all(engine.as_mut(), task, |number| shape.random_key(number))?;
    let payload = (task.records * shape.record_bytes()) as f64;
    let written_per_byte = (written_bytes()? - before) as f64 / payload;
    let space_per_byte = used_bytes(&place)? as f64 / payload;
    let read_per_s = read_all(engine.as_mut(), task)?;
    let begin = Instant::now();
    let (count, _) = engine.scan()?;
    let scan_per_s = count as f64 / begin.elapsed().as_secs_f64();
    if count != task.records {
        return Err(format!("{name} has {count} records instead of {}", task.records));
    }
    let before = written_bytes()?;
    let (mixed_per_s, updates) = mixture(engine.as_mut(), task)?;
    let payload = (updates * shape.record_bytes()) as f64;
    let mixed_written_per_byte = (written_bytes()? - before) as f64 / payload;
    Ok(Figures {
        engine: name.into(),
        shape,
        durability: task.durability.name().into(),
        records: task.records,
        batch: task.batch,
        load_per_s,
        insert_per_s,
        read_per_s,
        scan_per_s,
        mixed_per_s,
        written_per_byte,
        mixed_written_per_byte,
        space_per_byte,
    })
}

/// Writes every record once, in batches; records a second until all is synced.
fn write_all(engine: &mut dyn Engine, task: &Task, key: impl Fn(u64) -> Vec<u8>) -> Fallible<f64> {
    let mut seconds = 0.0;
    for start in (0..task.records).step_by(task.batch as usize) {
        let numbers = start..(start + task.batch).min(task.records);
        let batch: Vec<Record> = numbers.map(|number| (key(number), task.shape.value(number, 0))).collect();
        let begin = Instant::now();
        engine.write(&batch)?;
        seconds += begin.elapsed().as_secs_f64();
    }
    let begin = Instant::now();
    engine.sync()?;
    Ok(task.records as f64 / (seconds + begin.elapsed().as_secs_f64()))
}

/// Looks up keys that are there, in random order, as many as there are records but at most two million.
fn read_all(engine: &mut dyn Engine, task: &Task) -> Fallible<f64> {
    let count = task.records.min(2_000_000);
    let (mut seconds, mut found) = (0.0, 0);
    for start in (0..count).step_by(1000) {
        let numbers = (start..(start + 1000).min(count)).map(|n| mixed(n ^ 0x5555) % task.records);
        let keys: Vec<_> = numbers.map(|number| task.shape.random_key(number)).collect();
        let begin = Instant::now();
        found += engine.read(&keys)?;
        seconds += begin.elapsed().as_secs_f64();
    }
    if found != count {
        Err(format!("{found} of {count} keys were found"))
    } else {
        Ok(count as f64 / seconds)
    }
}

/// A batch of new values after each batch of lookups; operations a second, and how many were new values.
fn mixture(engine: &mut dyn Engine, task: &Task) -> Fallible<(f64, u64)> {
    let updates = task.records.min(1_000_000);
    let mut seconds = 0.0;
    for start in (0..updates).step_by(task.batch as usize) {
        let numbers = || (start..(start + task.batch).min(updates)).map(|n| mixed(n ^ 0xaaaa) % task.records);
        let keys: Vec<_> =
            numbers().map(|number| task.shape.random_key(mixed(number) % task.records)).collect();
        let batch: Vec<Record> =
            numbers().map(|number| (task.shape.random_key(number), task.shape.value(number, 1))).collect();
        let begin = Instant::now();
        engine.read(&keys)?;
        engine.write(&batch)?;
        seconds += begin.elapsed().as_secs_f64();
    }
    let begin = Instant::now();
    engine.sync()?;
    Ok((2.0 * updates as f64 / (seconds + begin.elapsed().as_secs_f64()), updates))
}

/// What this process caused to be written so far, bytes.
fn written_bytes() -> Fallible<u64> {
    let text = std::fs::read_to_string("/proc/self/io").map_err(engine_error)?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|number| number.trim().parse().ok())
        .ok_or_else(|| "/proc/self/io has no write_bytes".into())
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

fn subfolder(folder: &Path, name: &str) -> Fallible<std::path::PathBuf> {
    let place = folder.join(name);
    std::fs::create_dir(&place).map_err(engine_error)?;
    Ok(place)
}

fn engine_error(error: std::io::Error) -> String {
    error.to_string()
}
