//! Best fit by node: the less capacity would be left, the higher the score. It scores absolute amounts instead of
//! fractions, so that small nodes fill up before large ones, which are the only ones that hold large requests.

use super::{Candidate, NodeWeigher, Remainder, Weights};

/// Remaining amounts that score one half.
const CPUS: f32 = 8.0;
const MIB: f32 = 16384.0;

pub(crate) struct Packing;

impl NodeWeigher for Packing {
    fn name(&self) -> &'static str {
        "packing"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let left = Remainder::of(c);
        let (cpu, memory) = (left.cpus / (left.cpus + CPUS), left.mib / (left.mib + MIB));
        1.0 - (cpu + memory) / 2.0
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.packing
    }
}
