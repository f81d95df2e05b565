//! Space on the device: allocation, reservation, garbage collection, and packing of leaves.

/// Tracks the blocks in use, and chooses the next ones.
pub(crate) mod allocation;
/// Packing of partly empty leaves when the map is full.
pub(crate) mod packing;
/// Garbage collection with wear levelling.
pub(crate) mod reclaim;
/// Ensures that there is space for a batch and the checkpoint after it before anything is written.
pub(crate) mod reservation;
