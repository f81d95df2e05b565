//! Space on the device: allocation, reservation, and garbage collection.

/// Which blocks are in use, and where the next ones are written.
pub(crate) mod allocation;
/// Garbage collection with wear levelling.
pub(crate) mod reclaim;
/// Makes sure that a batch and the checkpoint after it have room before anything is written.
pub(crate) mod reservation;
