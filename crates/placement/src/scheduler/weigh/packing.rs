//! The fuller a node becomes, the better: best fit, by node.

use super::{Candidate, NodeWeigher, Weights, left};

pub(crate) struct Packing;

impl NodeWeigher for Packing {
    fn name(&self) -> &'static str {
        "packing"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let (cpu, memory) = left(c);
        1.0 - (cpu + memory) / 2.0
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.packing
    }
}
