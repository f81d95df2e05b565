//! Enough CPUs are free to be dedicated, as whole cores if requested, and the remaining CPUs still carry the shared
//! virtual CPUs.

use super::{Candidate, NodeFilter, Shortage};
use crate::request::{CpuPolicy, SmtPolicy};

pub(crate) struct ExclusiveCpus;

impl NodeFilter for ExclusiveCpus {
    fn name(&self) -> &'static str {
        "exclusive-cpus"
    }
    fn what(&self, _: &Candidate<'_>) -> &'static str {
        "free CPUs (or whole cores) that the virtual machines with shared CPUs can spare"
    }
    fn shortage(&self, c: &Candidate<'_>) -> Option<Shortage> {
        if c.demand.cpu != CpuPolicy::Exclusive {
            return None;
        }
        let threads = u32::from(c.shape.threads);
        let cores = match c.demand.smt {
            SmtPolicy::Prefer => 0,
            SmtPolicy::Avoid => c.cell.vcpus,
            // Only whole cores qualify: cores must have siblings, and the number of virtual CPUs must be a multiple of
            // the threads per core.
            SmtPolicy::Require if threads < 2 || !c.cell.vcpus.is_multiple_of(threads) => {
                return Some(Shortage { needed: c.cell.vcpus.into(), available: 0 });
            }
            SmtPolicy::Require => c.cell.vcpus / threads,
        };
        let needed = c.demand.exclusive(c.cell, c.shape.threads);
        // Fewest CPUs that carry the current shared virtual CPUs.
        let kept = (c.state.shared * 100).div_ceil(c.overcommit_percent.max(1));
        let free = u32::from(c.state.free_cpus).saturating_sub(kept);
        Shortage::unless(cores.into(), c.state.free_cores.into())
            .or_else(|| Shortage::unless(needed.into(), free.into()))
    }
}
