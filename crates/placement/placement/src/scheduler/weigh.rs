//! What prefers one node or host to another, one file each; every weight is from 0 to 1.
//! Not what rules it out (`filter`).

mod balance;
mod device;
mod host_in_use;
mod load;
mod locality;
mod node_in_use;
mod packing;

use super::demand::Demand;
use super::filter::Candidate;
use crate::inventory::HostState;
use serde::{Deserialize, Serialize};

/// Prefers nodes.
pub(crate) trait NodeWeigher: Sync {
    /// Its name in explanations.
    fn name(&self) -> &'static str;
    /// How good the node is, 0 to 1.
    fn weigh(&self, candidate: &Candidate<'_>) -> f32;
    /// How much it counts.
    fn weight(&self, weights: &Weights) -> f32;
}

/// Prefers hosts.
pub(crate) trait HostWeigher: Sync {
    /// Its name in explanations.
    fn name(&self) -> &'static str;
    /// How good the host is, 0 to 1.
    fn weigh(&self, host: &HostState, demand: &Demand) -> f32;
    /// How much it counts.
    fn weight(&self, weights: &Weights) -> f32;
}

/// How much each weigher counts. Only their proportions matter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// Nodes that become fuller: small gaps are used before large ones.
    pub packing: f32,
    /// Nodes whose CPUs and memory run out together.
    pub balance: f32,
    /// Nodes that something runs on already: empty ones stay for those who need all of one.
    pub node_in_use: f32,
    /// Hosts that something runs on already.
    pub host_in_use: f32,
    /// Nodes that are not busy.
    pub load: f32,
    /// Nodes that hold all of the memory, if it may be borrowed.
    pub locality: f32,
    /// Nodes near the wanted devices, and no devices wasted beside those who want none.
    pub device: f32,
    /// Virtual nodes near each other.
    pub distance: f32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            packing: 4.0,
            balance: 0.2,
            node_in_use: 1.0,
            host_in_use: 0.5,
            load: 4.0,
            locality: 4.0,
            device: 1.0,
            distance: 2.0,
        }
    }
}

/// All of them.
pub(crate) const NODE_WEIGHERS: [&dyn NodeWeigher; 6] = [
    &packing::Packing,
    &balance::Balance,
    &node_in_use::NodeInUse,
    &load::Load,
    &locality::Locality,
    &device::Device,
];
/// All of them.
pub(crate) const HOST_WEIGHERS: [&dyn HostWeigher; 1] = [&host_in_use::HostInUse];

/// CPUs (those of the host's ratio) and MiB that would be left free on the node, and how many there are in all.
struct Left {
    cpus: f32,
    all_cpus: f32,
    mib: f32,
    all_mib: f32,
}

impl Left {
    fn of(c: &Candidate<'_>) -> Self {
        let exclusive = c.demand.exclusive(c.cell, c.shape.threads);
        let percent = c.overcommit_percent.max(1);
        let capacity = c.state.capacity(exclusive, percent);
        let left = capacity.saturating_sub(c.state.shared + c.demand.shared(c.cell));
        let pool = c.shape.pool(c.demand.page_kib).unwrap_or(0);
        let mib = c.shape.pools[pool].mib;
        let left_mib = mib.saturating_sub(u64::from(c.state.used_mib[pool]) + c.cell.mib);
        Self {
            cpus: left as f32 * 100.0 / percent as f32,
            all_cpus: f32::from(c.shape.usable).max(1.0),
            mib: left_mib as f32,
            all_mib: mib.max(1) as f32,
        }
    }

    /// The parts that would be left, 0 to 1.
    fn parts(&self) -> (f32, f32) {
        (self.cpus / self.all_cpus, self.mib / self.all_mib)
    }
}
