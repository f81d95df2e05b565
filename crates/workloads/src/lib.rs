//! What an experiment can run: programs on a node, messages over a network, trees on zoned flash.
//! Not who runs them at which points: that is `longma-lab`. Not what they run on: those crates are below.

pub mod program;
pub mod via;
pub mod zoned;

use longma_lab::Registry;
use std::path::PathBuf;

/// Every workload there is; `longma` is the command that runs programs.
pub fn registry(longma: impl Into<PathBuf>) -> Registry {
    let mut registry = Registry::default();
    registry.add(program::Program::new(longma));
    registry.add(zoned::PaperTrees::default());
    registry.add(via::Via::default());
    registry
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
