//! Workloads for experiments: guest programs, native or translated; VIA messages over a network; a flow on each pair of
//! cores; virtual machines on NUMA hosts; trees on zoned flash. `longma-lab` runs them.

pub mod pairs;
pub mod program;
pub mod translation;
pub mod via;
#[cfg(feature = "placement")]
pub mod vm;
pub mod zoned;

use longma_lab::Registry;
use std::path::PathBuf;

/// A registry with all workloads. `longma` is the path of the command that runs programs.
pub fn registry(longma: impl Into<PathBuf>) -> Registry {
    let mut registry = Registry::default();
    let longma = longma.into();
    registry.add(program::Program::new(longma.clone()));
    registry.add(translation::Translation::new(longma.clone()));
    #[cfg(feature = "placement")]
    {
        registry.add(vm::Guest::new(longma));
        registry.add(vm::VmHost::default());
        registry.add(vm::Churn::default());
    }
    registry.add(zoned::PaperTrees::default());
    registry.add(via::Via::default());
    registry
}

/// Compiles and runs the README's example as a doctest.
#[cfg(all(doctest, feature = "placement"))]
#[doc = include_str!("../README.md")]
struct Readme;
