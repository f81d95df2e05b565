//! Models of a user's own, as sandboxed WebAssembly modules.
//!
//! A module depends on its inputs alone: it can import only the functions that this crate provides, and it has no
//! clock, no files and no random numbers. So a result is reproducible as long as the module is part of its key.

mod prefetcher;
mod sandbox;

pub use prefetcher::{Event, Geometry, MAX_LINES, PrefetcherPlugin};
pub use sandbox::{MAX_INSTRUCTIONS, MAX_MEMORY_BYTES, PluginError};
