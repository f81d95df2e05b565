//! Best fit by node: the score increases as the remainder of the scarcer resource, CPUs or memory, decreases. Absolute
//! amounts are scored instead of fractions, so that small nodes fill up first, and large nodes stay free for large
//! requests.

use super::{Candidate, NodeWeigher, Remainder, Weights};

/// Remainders with a score of one half.
const CPUS: f32 = 16.0;
const MIB: f32 = 32768.0;

pub(crate) struct Packing;

impl NodeWeigher for Packing {
    fn name(&self) -> &'static str {
        "packing"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let left = Remainder::of(c);
        let scarce = (left.cpus / CPUS).min(left.mib / MIB);
        1.0 / (1.0 + scarce)
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.packing
    }
}
