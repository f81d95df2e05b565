//! The state that readers and the writer of a map share.

use crate::io::Io;
use crate::options::Options;
use crate::sizes::Sizes;
use crate::version::Version;
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

/// State that readers and the writer share.
pub struct Shared<D> {
    pub io: Io<D>,
    pub options: Options,
    pub version: RwLock<Arc<Version>>,
    /// The newest batch that readers see.
    pub visible: AtomicU64,
    /// For each batch that is the newest one of a snapshot, the number of these snapshots.
    pub snapshots: Mutex<BTreeMap<u64, usize>>,
}

impl<D> Shared<D> {
    pub fn sizes(&self) -> Sizes {
        Sizes { geometry: self.io.geometry, write_buffer_bytes: self.options.write_buffer_bytes }
    }

    pub fn version(&self) -> Arc<Version> {
        Arc::clone(&self.version.read().ignore_poison())
    }
}
