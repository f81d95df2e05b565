//! Tools to study `longma-zoned`: the published trees, a drive model in simulated time, YCSB workloads with a
//! benchmark, and a soak test. The map itself does not need this crate.

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
