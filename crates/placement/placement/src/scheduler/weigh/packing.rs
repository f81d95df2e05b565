//! The less is left on a node, the better: best fit, by node. What is left counts and not its part of the node, so that small nodes fill before
//! large ones, which alone hold what is large.

use super::{Candidate, Left, NodeWeigher, Weights};

/// What is left that counts as half of the worst.
const CPUS: f32 = 8.0;
const MIB: f32 = 16384.0;

pub(crate) struct Packing;

impl NodeWeigher for Packing {
    fn name(&self) -> &'static str {
        "packing"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let left = Left::of(c);
        let (cpu, memory) = (left.cpus / (left.cpus + CPUS), left.mib / (left.mib + MIB));
        1.0 - (cpu + memory) / 2.0
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.packing
    }
}
