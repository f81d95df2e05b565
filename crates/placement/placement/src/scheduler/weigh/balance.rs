//! Prefers nodes that would have equal fractions of CPUs and memory left. CPUs without memory are useless, and so is
//! memory without CPUs.

use super::{Candidate, NodeWeigher, Remainder, Weights};

pub(crate) struct Balance;

impl NodeWeigher for Balance {
    fn name(&self) -> &'static str {
        "balance"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let (cpu, memory) = Remainder::of(c).parts();
        1.0 - (cpu - memory).abs()
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.balance
    }
}
