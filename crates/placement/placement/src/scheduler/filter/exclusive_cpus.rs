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
        let Some(cores) = whole_cores(c) else {
            return Some(Shortage { needed: c.cell.vcpus.into(), available: 0 });
        };
        Shortage::unless(cores.into(), c.state.free_cores.into())
            .or_else(|| Shortage::unless(cpus(c).into(), spare_cpus(c).into()))
    }
    fn copies(&self, c: &Candidate<'_>) -> u64 {
        if c.demand.cpu != CpuPolicy::Exclusive {
            return u64::MAX;
        }
        let by_cores =
            whole_cores(c).map_or(Some(0), |cores| u32::from(c.state.free_cores).checked_div(cores));
        let by_cpus = spare_cpus(c).checked_div(cpus(c));
        by_cores.into_iter().chain(by_cpus).min().map_or(u64::MAX, u64::from)
    }
}

/// Number of whole cores that the virtual node needs. `None` if the node cannot supply whole cores only: they have no
/// siblings, or the number of virtual CPUs is not a multiple of the threads per core.
fn whole_cores(c: &Candidate<'_>) -> Option<u32> {
    let threads = u32::from(c.shape.threads);
    match c.demand.smt {
        SmtPolicy::Prefer => Some(0),
        SmtPolicy::Avoid => Some(c.cell.vcpus),
        SmtPolicy::Require if threads < 2 || !c.cell.vcpus.is_multiple_of(threads) => None,
        SmtPolicy::Require => Some(c.cell.vcpus / threads),
    }
}

/// Number of CPUs that the virtual node needs.
fn cpus(c: &Candidate<'_>) -> u32 {
    c.demand.exclusive(c.cell, c.shape.threads)
}

/// Number of free CPUs that the shared virtual CPUs do not need.
fn spare_cpus(c: &Candidate<'_>) -> u32 {
    c.state.spare_cpus(c.shape, c.overcommit_percent)
}
