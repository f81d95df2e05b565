//! What `longma-zoned` is studied with: the trees as published, a drive in simulated time, YCSB's workloads and
//! what they cost, and a soak.
//! Not for keeping data: the map is `longma-zoned`'s. Nothing here is needed to use it.

pub mod bench;
mod modelled;
pub mod paper;
pub mod soak;
pub mod ycsb;

pub use modelled::{Emulated, Latencies, ModelledDevice, Parameters};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
