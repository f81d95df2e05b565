//! The engines, behind a minimal interface. Each is opened as its documentation shows, untuned, with the same cache
//! size.
//! Source: each engine's documentation.

mod canopy;
mod fjall;
mod lmdb;
mod longma;
mod longma_runs;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use crate::Durability;
use std::path::Path;

/// An engine's error as text.
pub type Fallible<T> = Result<T, String>;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// An ordered map on disk.
pub trait Engine {
    /// Writes records in one transaction. If opened as durable, it survives a power cut once this returns.
    fn write(&mut self, records: &[Record]) -> Fallible<()>;

    /// Looks up keys in one transaction; returns how many exist.
    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64>;

    /// Reads all records in order; returns their number and the sum of the values' first bytes.
    fn scan(&mut self) -> Fallible<(u64, u64)>;

    /// Makes all writes durable.
    fn sync(&mut self) -> Fallible<()>;
}

/// The engines' names, in the order in which they run.
pub const NAMES: &[&str] = &[
    "longma",
    "longma-runs",
    "lmdb",
    "redb",
    "canopydb",
    "fjall",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
];

/// Opens the map in an existing directory, or creates one if the directory is empty. `cache_bytes` limits its memory
/// for cached data. An engine that maps its file uses the page cache, within the process's memory limit.
pub fn open(
    name: &str,
    folder: &Path,
    durability: Durability,
    cache_bytes: usize,
) -> Fallible<Box<dyn Engine>> {
    let synced = durability == Durability::Synced;
    Ok(match name {
        "longma" => Box::new(longma::Longma::open(folder, synced, cache_bytes)?),
        "longma-runs" => Box::new(longma_runs::LongmaRuns::open(folder, synced, cache_bytes)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(folder, synced)?),
        "redb" => Box::new(redb::Redb::open(folder, synced, cache_bytes)?),
        "canopydb" => Box::new(canopy::Canopy::open(folder, synced, cache_bytes)?),
        "fjall" => Box::new(fjall::Fjall::open(folder, synced, cache_bytes)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::RocksDb::open(folder, synced, cache_bytes)?),
        other => return Err(format!("there is no engine {other}")),
    })
}

/// Formats an engine's error.
fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}
