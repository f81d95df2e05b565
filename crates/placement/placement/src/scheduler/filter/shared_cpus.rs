//! Shared virtual CPUs stay within the overcommit ratio. One virtual machine never has more of them than the node has
//! shared CPUs, because they would preempt each other.

use super::{Candidate, NodeFilter, Shortage};

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
    fn copies(&self, c: &Candidate<'_>) -> u64 {
        free_vcpus(c).checked_div(c.demand.shared(c.cell)).map_or(u64::MAX, u64::from)
    }
}
