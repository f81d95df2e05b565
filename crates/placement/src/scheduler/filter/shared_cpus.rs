//! Virtual CPUs on shared CPUs: within the over-commit ratio, and no more than there are CPUs, lest they wait for each other.

use super::{Candidate, NodeFilter, Shortage};

pub(crate) struct SharedCpus;

impl NodeFilter for SharedCpus {
    fn name(&self) -> &'static str {
        "shared-cpus"
    }
    fn what(&self) -> &'static str {
        "virtual CPUs within the over-commit ratio"
    }
    fn shortage(&self, c: &Candidate<'_>) -> Option<Shortage> {
        let needed = c.demand.shared(c.cell);
        if needed == 0 {
            return None;
        }
        let room = c.state.capacity(0, c.overcommit_percent).saturating_sub(c.state.shared);
        Shortage::unless(needed.into(), room.min(c.state.free_cpus.into()).into())
    }
}
