//! Enough memory in ordinary pages is free on the node for the overhead of a virtual machine whose guest memory is in
//! huge pages. Otherwise the memory filter counts the overhead.

use super::{Candidate, CellDemand, NodeFilter, Shortage, free_mib, parts_beside};

pub(crate) struct Overhead;

impl NodeFilter for Overhead {
    fn name(&self) -> &'static str {
        "overhead"
    }
    fn what(&self, _: &Candidate<'_>) -> &'static str {
        "MiB free in ordinary pages"
    }
    fn shortage(&self, c: &Candidate<'_>) -> Option<Shortage> {
        c.demand.page_kib?;
        Shortage::unless(c.cell.overhead_mib, free_mib(c.host, c.at, None))
    }
    fn copies_beside(&self, c: &Candidate<'_>, other: &CellDemand, count: u32) -> u64 {
        let needed = |cell: &CellDemand| c.demand.page_kib.map_or(0, |_| cell.overhead_mib);
        parts_beside(free_mib(c.host, c.at, None), needed(c.cell), needed(other), count)
    }
}
