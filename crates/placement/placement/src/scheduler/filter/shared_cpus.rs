//! Shared virtual CPUs stay within the overcommit ratio. One virtual machine never has more of them than the node has
//! shared CPUs, because they would preempt each other.

use super::{Candidate, CellDemand, NodeFilter, Shortage, parts_beside};

pub(crate) struct SharedCpus;

/// Virtual CPUs that the overcommit ratio still admits.
fn free_vcpus(c: &Candidate<'_>) -> u32 {
    c.state.capacity(0, c.overcommit_percent).saturating_sub(c.state.shared)
}

impl NodeFilter for SharedCpus {
    fn name(&self) -> &'static str {
        "shared-cpus"
    }
    fn what(&self, c: &Candidate<'_>) -> &'static str {
        match free_vcpus(c) <= u32::from(c.state.free_cpus) {
            true => "virtual CPUs within the overcommit ratio",
            false => "CPUs that are not dedicated, one for each of its virtual CPUs",
        }
    }
    fn shortage(&self, c: &Candidate<'_>) -> Option<Shortage> {
        let needed = c.demand.shared(c.cell);
        if needed == 0 {
            return None;
        }
        Shortage::unless(needed.into(), free_vcpus(c).min(c.state.free_cpus.into()).into())
    }
    fn copies_beside(&self, c: &Candidate<'_>, other: &CellDemand, count: u32) -> u64 {
        let shared = |cell| c.demand.shared(cell).into();
        parts_beside(free_vcpus(c).into(), shared(c.cell), shared(other), count)
    }
}
