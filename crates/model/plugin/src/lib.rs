//! User-defined models as sandboxed WebAssembly modules.
//!
//! The results of a module depend only on its inputs: a module can import only the functions that this crate provides,
//! and it has no clock, no files and no random numbers. A simulation result is therefore reproducible if its key
//! includes the module.

mod branches;
mod prefetcher;
mod replacement;
mod sandbox;

pub use branches::{DirectionPlugin, PredictorSizes, TargetPlugin};
pub use prefetcher::{Event, Geometry, MAX_LINES, PrefetcherPlugin};
pub use replacement::{AccessKind, CacheAccess, CacheShape, ReplacementPlugin};
pub use sandbox::{MAX_INSTRUCTIONS, MAX_MEMORY_BYTES, PluginError};
