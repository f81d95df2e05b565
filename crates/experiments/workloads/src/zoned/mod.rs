//! The workload `zoned`: a tree as published under a YCSB workload, on the zoned device of a machine file.
//! Not the trees or the device: those are `longma-zoned-lab`'s.

mod drive;
mod paper_trees;

pub use paper_trees::PaperTrees;
