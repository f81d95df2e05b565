//! Prefers nodes on which some virtual machine is expected to stay at least as long as the new one, which then does not
//! delay the time at which the node becomes empty.
//!
//! Source: Ling et al., "LAVA" (MLSys 2025), section on non-invasive lifetime-aware scoring.

use super::{Candidate, NodeWeigher, Weights};
use crate::lifetime::MAX_CLASS;

pub(crate) struct Lifetime;

impl NodeWeigher for Lifetime {
    fn name(&self) -> &'static str {
        "lifetime"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let class = c.demand.lifetime_class.unwrap_or(0);
        let longer = class.saturating_sub(c.state.lifetime_class);
        1.0 - f32::from(longer) / f32::from(MAX_CLASS)
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.lifetime
    }
}
