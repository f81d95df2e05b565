//! Export and import of translations between processes that run the same program. `keep` exports units; `wake` imports
//! them and activates each one at its first use. A unit is activated only if the source words in memory are those that
//! it was translated from. The caller decides where the data is stored.

mod keep;
mod wake;

use std::sync::Arc;

pub use crate::positions::Written;
use bytes::Bytes;

/// The exported translations of a process.
#[derive(Clone)]
pub struct Kept {
    /// The index of all units.
    pub index: Bytes,
    /// The metadata of the units.
    pub units: Bytes,
    /// The LoongArch code of the units.
    pub words: Bytes,
    /// The positions of the units.
    pub positions: Arc<Written>,
}

/// The size of the translations that can be exported, in words of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// All units.
    pub all: u64,
    /// Units that were translated by this process and are still reachable.
    pub new: u64,
    /// Imported units whose source has changed.
    pub useless: u64,
}
