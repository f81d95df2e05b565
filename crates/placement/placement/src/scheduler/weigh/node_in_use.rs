//! Prefers nodes already in use, so that empty nodes stay empty.

use super::{Candidate, NodeWeigher, Weights};

pub(crate) struct NodeInUse;

impl NodeWeigher for NodeInUse {
    fn name(&self) -> &'static str {
        "node-in-use"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let is_unused =
            c.state.shared == 0 && c.state.free_cpus == c.shape.usable && c.state.used_mib == [0; 4];
        if is_unused { 0.0 } else { 1.0 }
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.node_in_use
    }
}
