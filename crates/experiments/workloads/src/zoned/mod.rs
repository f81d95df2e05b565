//! The workload `zoned`: a published tree under a YCSB workload, on the zoned device of a machine file.
//! `longma-zoned-lab` implements the trees and the device.

mod drive;
mod paper_trees;

pub use paper_trees::PaperTrees;
