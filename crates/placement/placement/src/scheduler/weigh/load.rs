//! Prefers nodes with a low load. Loads up to one half score the same; above that, each load step lowers the score.

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
