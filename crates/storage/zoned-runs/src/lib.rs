//! An ordered, crash-safe key-value map for zoned flash and data larger than memory: sorted runs in tiers, with a
//! write-ahead log, filters and merges in slices. **Experimental**: prefer `longma-zoned` unless the data is many times
//! larger than the cache.
//!
//! Sources: O'Neil et al., "The Log-Structured Merge-Tree", 1996; Jagadish et al., "Incremental Organization for Data Recording
//! and Warehousing", VLDB 1997 (tiers); NVMe Zoned Namespace Command Set 1.1.

/// Changes that are applied together.
mod batch;
/// Data blocks.
mod block;
/// Writes runs.
mod build;
mod cache;
mod codec;
/// Cursors over runs and their merge.
mod cursor;
mod error;
mod filter;
/// Access to the device.
mod io;
/// The flush and the merges in progress.
mod jobs;
/// The write-ahead log.
mod log;
/// Reads the log back.
mod log_reader;
/// Flushes and merges, in slices.
mod maintenance;
mod manifest;
/// The write buffer.
mod memtable;
/// Format, open and recovery.
mod open;
/// Runtime settings.
mod options;
/// Snapshots and iterators.
mod read;
/// Offline repair.
mod repair;
/// The state that readers and the writer share.
mod shared;
/// Sizes that follow from the device and the write buffer.
mod sizes;
/// The map.
mod store;
mod table;
mod table_writer;
/// Versions: the live runs at one moment.
mod version;
mod writer;
mod zones;

/// The decoders behind the checksums, for fuzzing. Not part of the public interface.
#[doc(hidden)]
pub mod testing {
    /// Decodes bytes in every format, and uses the valid results.
    pub fn decode(bytes: &[u8], geometry: &longma_zoned_device::Geometry, key: &[u8]) {
        if let Some(block) = crate::block::DataBlock::of_content(bytes) {
            let mut own = Vec::new();
            for at in 0..block.len() {
                block.key_to(at, &mut own);
                assert_eq!(block.find(&own), Ok(at));
                let _ = block.value(at);
            }
            let _ = block.find(key);
        }
        for pages in [1, 2, u32::MAX] {
            if let Some(index) = crate::table::TableIndex::of_content(bytes, pages) {
                let _ = (index.pages_of(index.block_of(key)), index.may_contain(crate::filter::hash(key)));
            }
        }
        if let Ok(manifest) = crate::manifest::Manifest::decode(bytes, geometry) {
            let _ = manifest.runs.iter().map(|run| run.records() + run.pages()).sum::<u64>();
            let _ = manifest.runs.iter().filter_map(|run| run.piece(key)).count();
        }
        if let Some(batch) = crate::batch::Batch::decode(bytes) {
            assert_eq!(batch.changes().count(), batch.len());
        }
    }
}

pub use batch::Batch;
pub use error::{Error, LostBatches, Result};
pub use io::TrafficCounts;
pub use longma_zoned_device::{self as device, ZonedDevice};
pub use open::Info;
pub use options::{Durability, Options};
pub use read::{Iter, Snapshot};
pub use repair::RepairReport;
pub use store::{CheckReport, Statistics, Store, TierStatistics};
