//! `longma zoned`: maps on zoned devices, and the workload `zoned` of experiments.
//! Not the maps or devices: those are `longma-zoned`.
//! Source: none.

mod paper_trees;

pub use paper_trees::PaperTrees;
