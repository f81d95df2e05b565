//! CPUs without memory and memory without CPUs are of no use: what is left of both should be alike.

use super::{Candidate, Left, NodeWeigher, Weights};

pub(crate) struct Balance;

impl NodeWeigher for Balance {
    fn name(&self) -> &'static str {
        "balance"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let (cpu, memory) = Left::of(c).parts();
        1.0 - (cpu - memory).abs()
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.balance
    }
}
