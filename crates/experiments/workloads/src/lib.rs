//! What an experiment can run: programs on a node, for LoongArch or translated, messages over a network, a flow on each pair of cores,
//! virtual machines on NUMA hosts, trees on zoned flash.
//! Not who runs them at which points: that is `longma-lab`. Not what they run on: those crates are below.

pub mod pairs;
pub mod program;
pub mod translation;
pub mod via;
#[cfg(feature = "placement")]
pub mod vm;
pub mod zoned;

use longma_lab::Registry;
use std::path::PathBuf;

/// Every workload there is; `longma` is the command that runs programs.
pub fn registry(longma: impl Into<PathBuf>) -> Registry {
    let mut registry = Registry::default();
    let longma = longma.into();
    registry.add(program::Program::new(longma.clone()));
    registry.add(translation::Translation::new(longma.clone()));
    #[cfg(feature = "placement")]
    {
        registry.add(vm::Guest::new(longma));
        registry.add(vm::OverTime::default());
        registry.add(vm::Churn::default());
    }
    registry.add(zoned::PaperTrees::default());
    registry.add(via::Via::default());
    registry
}

/// The README's example is a test.
#[cfg(all(doctest, feature = "placement"))]
#[doc = include_str!("../README.md")]
struct Readme;
