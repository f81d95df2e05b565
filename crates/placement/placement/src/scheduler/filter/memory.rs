//! Enough memory of the requested page size is free: on the node itself if the policy is strict, otherwise including
//! the nodes it may borrow from.

use super::{Candidate, CellDemand, NodeFilter, Shortage, parts_beside};
use crate::inventory::HostState;
use crate::request::MemoryPolicy;

pub(crate) struct Memory;

/// Free MiB of a page size on a node.
pub(crate) fn free_mib(host: &HostState, node: usize, page_kib: Option<u32>) -> u64 {
    let pool = host.shape.nodes[node].pool(page_kib);
    pool.map_or(0, |p| host.shape.nodes[node].pools[p].mib - u64::from(host.nodes[node].used_mib[p]))
}

impl NodeFilter for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }
    fn what(&self, _: &Candidate<'_>) -> &'static str {
        "MiB free in pages of the requested size"
    }
    fn shortage(&self, c: &Candidate<'_>) -> Option<Shortage> {
        let own = free_mib(c.host, c.at, c.demand.page_kib);
        let needed = c.demand.pages_mib(c.cell);
        let available = match c.demand.memory {
            MemoryPolicy::Strict => own,
            _ if own >= needed => own,
            MemoryPolicy::Preferred { within_distance } => {
                let near = |n: &usize| *n == c.at || c.host.shape.distances[c.at][*n] <= within_distance;
                let nodes = (0..c.host.nodes.len()).filter(near);
                nodes.map(|n| free_mib(c.host, n, c.demand.page_kib)).sum()
            }
        };
        Shortage::unless(needed, available)
    }
    fn copies_beside(&self, c: &Candidate<'_>, other: &CellDemand, count: u32) -> u64 {
        // Borrowed memory does not count, even if the policy allows it.
        let own = free_mib(c.host, c.at, c.demand.page_kib);
        parts_beside(own, c.demand.pages_mib(c.cell), c.demand.pages_mib(other), count)
    }
}
