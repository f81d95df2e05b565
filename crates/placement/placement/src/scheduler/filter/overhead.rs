//! Enough memory in ordinary pages is free on the node for the overhead of a virtual machine whose guest memory is in
//! huge pages. Otherwise the memory filter counts the overhead.

use super::{Candidate, NodeFilter, Shortage, free_mib};

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
    fn copies(&self, c: &Candidate<'_>) -> u64 {
        let needed = c.demand.page_kib.map_or(0, |_| c.cell.overhead_mib);
        free_mib(c.host, c.at, None).checked_div(needed).unwrap_or(u64::MAX)
    }
}
