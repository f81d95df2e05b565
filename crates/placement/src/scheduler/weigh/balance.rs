//! CPUs without memory and memory without CPUs are of no use: what is left of both should be alike.

use super::{Candidate, NodeWeigher, Weights, left};

pub(crate) struct Balance;

impl NodeWeigher for Balance {
    fn name(&self) -> &'static str {
        "balance"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let (cpu, memory) = left(c);
        1.0 - (cpu - memory).abs()
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.balance
    }
}
