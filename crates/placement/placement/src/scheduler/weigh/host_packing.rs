//! Prefers hosts with little free memory, so that the others stay empty enough for large requests. CPUs do not count: they
//! are overcommitted.

use super::{Demand, HostState, HostWeigher, Weights};

/// Free memory that scores one half, MiB.
const MIB: f32 = 65536.0;

pub(crate) struct HostPacking;

impl HostWeigher for HostPacking {
    fn name(&self) -> &'static str {
        "host-packing"
    }
    fn weigh(&self, host: &HostState, _: &Demand) -> f32 {
        MIB / (MIB + host.free.host_mib as f32)
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.host_packing
    }
}
