//! The engines, behind the little that the benchmark asks of them.
//! Not their tuning: each runs as its documentation opens it, with a cache as large as the others'.
//! Source: each engine's documentation.

mod canopy;
mod fjall;
mod lmdb;
mod longma;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use crate::Durability;
use std::path::Path;

/// What went wrong, as the engine says it.
pub type Fallible<T> = Result<T, String>;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// An ordered map on disk.
pub trait Engine {
    /// Writes records as one transaction, which outlasts a power cut when this returns if the engine was opened so.
    fn write(&mut self, records: &[Record]) -> Fallible<()>;

    /// Looks up keys in one transaction; how many there were.
    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64>;

    /// Reads all records in order: how many, and the sum of the values' first bytes.
    fn scan(&mut self) -> Fallible<(u64, u64)>;

    /// Makes all that was written outlast a power cut.
    fn sync(&mut self) -> Fallible<()>;
}

/// The engines' names, in the order they are run.
pub const NAMES: &[&str] = &[
    "longma",
    "lmdb",
    "redb",
    "canopydb",
    "fjall",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
];

/// Opens the map in a folder that is there; a new one, if the folder is empty. It may use so many bytes of memory to keep what it read;
/// one that maps its file has the page cache, as far as the process's limit on memory allows.
pub fn open(
    name: &str,
    folder: &Path,
    durability: Durability,
    cache_bytes: usize,
) -> Fallible<Box<dyn Engine>> {
    let synced = durability == Durability::Synced;
    Ok(match name {
        "longma" => Box::new(longma::Longma::open(folder, synced, cache_bytes)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(folder, synced)?),
        "redb" => Box::new(redb::Redb::open(folder, synced, cache_bytes)?),
        "canopydb" => Box::new(canopy::Canopy::open(folder, synced, cache_bytes)?),
        "fjall" => Box::new(fjall::Fjall::open(folder, synced, cache_bytes)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::RocksDb::open(folder, synced, cache_bytes)?),
        other => return Err(format!("there is no engine {other}")),
    })
}

/// An engine's error in words.
fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}
