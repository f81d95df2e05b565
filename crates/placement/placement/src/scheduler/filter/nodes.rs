//! The host has a distinct physical node for each virtual node.

use super::{Demand, HostFilter, HostState, Shortage};

pub(crate) struct Nodes;

impl HostFilter for Nodes {
    fn name(&self) -> &'static str {
        "nodes"
    }
    fn what(&self) -> &'static str {
        "nodes"
    }
    fn shortage(&self, host: &HostState, demand: &Demand) -> Option<Shortage> {
        Shortage::unless(demand.cells.into(), host.nodes.len() as u64)
    }
}
