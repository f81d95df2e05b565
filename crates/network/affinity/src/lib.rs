//! Chooses the CPUs for a network flow on a Linux host: one for its interrupts and protocol processing, and one for its
//! application. Measures all pairs, explains the results, and recommends settings. Does not depend on the simulator.
//! Nothing in this crate prints.
//!
//! Source: Hanford et al., "Analysis of the effect of core affinity on high-throughput flows" (2014).

pub mod advice;
pub mod analysis;
pub mod child;
pub mod counters;
pub mod fake;
pub mod files;
pub mod host;
pub mod identity;
pub mod interface;
pub mod journal;
pub mod load;
pub mod netns_testbed;
pub mod numa;
pub mod owners;
pub mod pairs;
pub mod preflight;
pub mod recording;
pub mod schedule;
pub mod setting;
pub mod steering;
pub mod sweep;
pub mod threads;
pub mod tune;
pub mod vary;
pub mod watch;

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
