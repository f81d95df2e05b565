//! Tools to study `longma-zoned`: the published trees, a drive model in simulated time, YCSB workloads with a
//! benchmark, and a soak test. None of it is needed to use the map.

pub mod bench;
mod modelled;
pub mod paper;
pub mod soak;
pub mod ycsb;

pub use modelled::{Emulated, Latencies, ModelledDevice, Parameters};

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
