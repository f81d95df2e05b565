//! Nodes by their current load: up to half of the CPUs or memory busy is all the same, above that each step counts.

use super::{Candidate, NodeWeigher, Weights};
use crate::inventory::LOAD_STEPS;

pub(crate) struct Load;

impl NodeWeigher for Load {
    fn name(&self) -> &'static str {
        "load"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let busiest = c.state.load[0].max(c.state.load[1]);
        let busy = f32::from(busiest) / LOAD_STEPS;
        1.0 - ((busy - 0.5).max(0.0) * 2.0)
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.load
    }
}
