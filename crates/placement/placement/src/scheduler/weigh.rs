//! Weighers score the nodes and hosts that the filters admit, from 0 to 1. Each weigher has its own file.

mod balance;
mod device;
mod host_in_use;
mod host_packing;
mod lifetime;
mod load;
mod locality;
mod node_in_use;
mod packing;

use super::demand::Demand;
use super::filter::Candidate;
use crate::inventory::HostState;
use serde::{Deserialize, Serialize};

/// Scores nodes.
pub(crate) trait NodeWeigher: Sync {
    /// Name in explanations.
    fn name(&self) -> &'static str;
    /// Score of the node, 0 to 1.
    fn weigh(&self, candidate: &Candidate<'_>) -> f32;
    /// Weight of the score.
    fn weight(&self, weights: &Weights) -> f32;
}

/// Scores hosts.
pub(crate) trait HostWeigher: Sync {
    /// Name in explanations.
    fn name(&self) -> &'static str;
    /// Score of the host, 0 to 1.
    fn weigh(&self, host: &HostState, demand: &Demand) -> f32;
    /// Weight of the score.
    fn weight(&self, weights: &Weights) -> f32;
}

/// Weights of the weighers. Only their ratios matter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// Prefers nodes that become fuller, so that small gaps are filled before large ones.
    pub packing: f32,
    /// Prefers nodes whose CPUs and memory run out together.
    pub balance: f32,
    /// Prefers nodes already in use, so that empty ones stay available to requests that need a whole node.
    pub node_in_use: f32,
    /// Prefers hosts already in use.
    pub host_in_use: f32,
    /// Prefers hosts with little free memory, or few free CPUs.
    pub host_packing: f32,
    /// Prefers nodes with a low load.
    pub load: f32,
    /// Prefers nodes that hold all of the memory, if the policy allows borrowing.
    pub locality: f32,
    /// Prefers nodes close to the requested devices, and keeps requests without devices away from nodes that have some.
    pub device: f32,
    /// Prefers virtual nodes close to each other.
    pub distance: f32,
    /// Prefers sets of nodes after which the most further virtual machines of the same shape still fit.
    pub capacity: f32,
    /// Prefers nodes on which some virtual machine is expected to stay as long as the new one, if its lifetime is stated. 0 by
    /// default, because it did not measurably lower the refused memory.
    pub lifetime: f32,
}

impl Weights {
    /// The default weights, and stated lifetimes weighed too.
    pub fn with_lifetimes() -> Self {
        Self { lifetime: 4.0, ..Self::default() }
    }
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            packing: 2.8,
            balance: 0.2,
            node_in_use: 1.0,
            host_in_use: 0.5,
            host_packing: 1.2,
            load: 4.0,
            locality: 4.0,
            device: 1.0,
            distance: 2.0,
            capacity: 8.0,
            lifetime: 0.0,
        }
    }
}

/// All node weighers.
pub(crate) const NODE_WEIGHERS: [&dyn NodeWeigher; 7] = [
    &packing::Packing,
    &balance::Balance,
    &node_in_use::NodeInUse,
    &load::Load,
    &locality::Locality,
    &device::Device,
    &lifetime::Lifetime,
];
/// All host weighers.
pub(crate) const HOST_WEIGHERS: [&dyn HostWeigher; 2] = [&host_in_use::HostInUse, &host_packing::HostPacking];

/// CPUs (scaled by the overcommit ratio) and MiB that the node would have left, and its totals.
struct Remainder {
    cpus: f32,
    all_cpus: f32,
    mib: f32,
    all_mib: f32,
}

impl Remainder {
    fn of(c: &Candidate<'_>) -> Self {
        let exclusive = c.demand.exclusive(c.cell, c.shape.threads);
        let percent = c.overcommit_percent.max(1);
        let capacity = c.state.capacity(exclusive, percent);
        let left = capacity.saturating_sub(c.state.shared + c.demand.shared(c.cell));
        let pool = c.shape.pool(c.demand.page_kib).unwrap_or(0);
        let mib = c.shape.pools[pool].mib;
        let left_mib = mib.saturating_sub(u64::from(c.state.used_mib[pool]) + c.demand.pages_mib(c.cell));
        Self {
            cpus: left as f32 * 100.0 / percent as f32,
            all_cpus: f32::from(c.shape.usable).max(1.0),
            mib: left_mib as f32,
            all_mib: mib.max(1) as f32,
        }
    }

    /// Fractions that would be left, 0 to 1.
    fn parts(&self) -> (f32, f32) {
        (self.cpus / self.all_cpus, self.mib / self.all_mib)
    }
}
