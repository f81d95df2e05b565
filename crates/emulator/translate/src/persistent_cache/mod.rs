//! Export and import of translations between processes that run the same program. `export` exports units; `activate`
//! imports them and activates each one at its first use. A unit is activated only if its source words in memory are
//! unchanged. The caller decides where the data is stored.

mod activate;
mod export;

use std::sync::Arc;

pub use crate::positions::EncodedPositions;
use bytes::Bytes;

/// The exported translations of a process.
#[derive(Clone)]
pub struct ExportedUnits {
    /// The index of all units.
    pub index: Bytes,
    /// The metadata of the units.
    pub units: Bytes,
    /// The LoongArch code of the units.
    pub words: Bytes,
    /// The positions of the units.
    pub positions: Arc<EncodedPositions>,
}

/// The size of the translations that can be exported, in words of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportSize {
    /// All units.
    pub all: u64,
    /// Units that were translated by this process and are still reachable.
    pub new: u64,
    /// Imported units whose source has changed.
    pub stale: u64,
}
