//! Filters exclude hosts and nodes that cannot satisfy a demand. Each filter has its own file. Group rules depend on
//! the other members and are in `groups`.

mod common_cpus;
mod devices;
mod exclusive_cpus;
mod local_devices;
mod memory;
mod nodes;
mod overhead;
mod shared_cpus;
mod status;

use super::demand::{CellDemand, Demand};
use crate::inventory::{HostState, NodeState};
use crate::shape::NodeShape;
pub(crate) use memory::free_mib;

/// A node evaluated for one virtual node.
pub(crate) struct Candidate<'a> {
    pub host: &'a HostState,
    /// Index of the node on the host.
    pub at: usize,
    pub shape: &'a NodeShape,
    pub state: &'a NodeState,
    pub demand: &'a Demand,
    pub cell: &'a CellDemand,
    pub overcommit_percent: u32,
}

/// An insufficient amount of a resource.
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

/// Excludes hosts.
pub(crate) trait HostFilter: Sync {
    /// Name in explanations.
    fn name(&self) -> &'static str;
    /// The resource it counts.
    fn what(&self) -> &'static str;
    /// The resource that the host lacks; `None` if it passes.
    fn shortage(&self, host: &HostState, demand: &Demand) -> Option<Shortage>;
}

/// Excludes nodes.
pub(crate) trait NodeFilter: Sync {
    /// Name in explanations.
    fn name(&self) -> &'static str;
    /// The resource it counts on this node, the scarcest one if there are several.
    fn what(&self, candidate: &Candidate<'_>) -> &'static str;
    /// The resource that the node lacks; `None` if it passes.
    fn shortage(&self, candidate: &Candidate<'_>) -> Option<Shortage>;
    /// Number of virtual nodes like the candidate's for which the resource suffices beside `count` virtual nodes like
    /// `other`, if the node passes.
    fn copies_beside(&self, candidate: &Candidate<'_>, other: &CellDemand, count: u32) -> u64;
}

/// Number of parts of a size in `available` beside `count` parts of another size. Unlimited if the size is 0.
fn parts_beside(available: u64, size: u64, other: u64, count: u32) -> u64 {
    available.saturating_sub(other.saturating_mul(count.into())).checked_div(size).unwrap_or(u64::MAX)
}

/// All host filters, cheap ones first.
pub(crate) const HOST_FILTERS: [&dyn HostFilter; 4] =
    [&status::Status, &nodes::Nodes, &devices::Devices, &common_cpus::CommonCpus];
/// All node filters, cheap ones first.
pub(crate) const NODE_FILTERS: [&dyn NodeFilter; 5] = [
    &shared_cpus::SharedCpus,
    &exclusive_cpus::ExclusiveCpus,
    &memory::Memory,
    &overhead::Overhead,
    &local_devices::LocalDevices,
];
