//! Prefers hosts already in use, so that empty hosts stay empty.

use super::{Demand, HostState, HostWeigher, Weights};

pub(crate) struct HostInUse;

impl HostWeigher for HostInUse {
    fn name(&self) -> &'static str {
        "host-in-use"
    }
    fn weigh(&self, host: &HostState, _: &Demand) -> f32 {
        if host.vms == 0 { 0.0 } else { 1.0 }
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.host_in_use
    }
}
