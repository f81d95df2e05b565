//! What rules a host or a node out, one file each.
//! Not what prefers one to another (`weigh`), nor groups, which depend on who else is there (`groups`).

mod common_cpus;
mod devices;
mod exclusive_cpus;
mod local_devices;
mod memory;
mod nodes;
mod shared_cpus;
mod status;

use super::demand::{CellDemand, Demand};
use crate::inventory::{HostState, NodeState};
use crate::shape::NodeShape;
pub(crate) use memory::free_mib;

/// A node that is considered for one virtual node.
pub(crate) struct Candidate<'a> {
    pub host: &'a HostState,
    /// Its place on the host.
    pub at: usize,
    pub shape: &'a NodeShape,
    pub state: &'a NodeState,
    pub demand: &'a Demand,
    pub cell: &'a CellDemand,
    pub overcommit_percent: u32,
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub needed: u64,
    pub available: u64,
}

impl Shortage {
    pub(super) fn unless(needed: u64, available: u64) -> Option<Self> {
        (needed > available).then_some(Self { needed, available })
    }
}

/// Rules out hosts.
pub(crate) trait HostFilter: Sync {
    /// Its name in explanations.
    fn name(&self) -> &'static str;
    /// What it counts.
    fn what(&self) -> &'static str;
    /// What the host lacks; none if it passes.
    fn shortage(&self, host: &HostState, demand: &Demand) -> Option<Shortage>;
}

/// Rules out nodes.
pub(crate) trait NodeFilter: Sync {
    /// Its name in explanations.
    fn name(&self) -> &'static str;
    /// What it counts, of what is scarcest on this node.
    fn what(&self, candidate: &Candidate<'_>) -> &'static str;
    /// What the node lacks; none if it passes.
    fn shortage(&self, candidate: &Candidate<'_>) -> Option<Shortage>;
}

/// All of them, cheap ones first.
pub(crate) const HOST_FILTERS: [&dyn HostFilter; 4] =
    [&status::Status, &nodes::Nodes, &devices::Devices, &common_cpus::CommonCpus];
/// All of them, cheap ones first.
pub(crate) const NODE_FILTERS: [&dyn NodeFilter; 4] =
    [&shared_cpus::SharedCpus, &exclusive_cpus::ExclusiveCpus, &memory::Memory, &local_devices::LocalDevices];
