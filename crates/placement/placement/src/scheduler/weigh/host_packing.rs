//! Prefers hosts with little free memory, or few free virtual CPUs, so that the others stay empty enough for large requests.

use super::{Demand, HostState, HostWeigher, Weights};

/// Free memory that scores one half, MiB.
const MIB: f32 = 65536.0;
/// Free memory that counts like a free virtual CPU, MiB: with less free memory per free virtual CPU, memory runs out first.
const MIB_PER_VCPU: f32 = 4096.0;

pub(crate) struct HostPacking;

impl HostWeigher for HostPacking {
    fn name(&self) -> &'static str {
        "host-packing"
    }
    fn weigh(&self, host: &HostState, _: &Demand) -> f32 {
        let free = (host.free.host_mib as f32).min(host.free.host_vcpus as f32 * MIB_PER_VCPU);
        MIB / (MIB + free)
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.host_packing
    }
}
