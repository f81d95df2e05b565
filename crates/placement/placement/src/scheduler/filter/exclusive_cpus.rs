//! Enough CPUs are free to be dedicated, as whole cores if requested, and the remaining CPUs still carry the shared
//! virtual CPUs.

use super::{Candidate, CellDemand, NodeFilter, Shortage, parts_beside};
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
        let Some(cores) = whole_cores(c, c.cell) else {
            return Some(Shortage { needed: c.cell.vcpus.into(), available: 0 });
        };
        Shortage::unless(cores.into(), c.state.free_cores.into())
            .or_else(|| Shortage::unless(cpus(c, c.cell).into(), spare_cpus(c).into()))
    }
    fn copies_beside(&self, c: &Candidate<'_>, other: &CellDemand, count: u32) -> u64 {
        if c.demand.cpu != CpuPolicy::Exclusive {
            return u64::MAX;
        }
        let (Some(cores), Some(other_cores)) = (whole_cores(c, c.cell), whole_cores(c, other)) else {
            return 0;
        };
        let by_cores = parts_beside(c.state.free_cores.into(), cores.into(), other_cores.into(), count);
        by_cores.min(parts_beside(spare_cpus(c).into(), cpus(c, c.cell).into(), cpus(c, other).into(), count))
    }
}

/// Number of whole cores that the virtual node needs. `None` if the node cannot supply whole cores only: they have no
/// siblings, or the number of virtual CPUs is not a multiple of the threads per core.
fn whole_cores(c: &Candidate<'_>, cell: &CellDemand) -> Option<u32> {
    let threads = u32::from(c.shape.threads);
    match c.demand.smt {
        SmtPolicy::Prefer => Some(0),
        SmtPolicy::Avoid => Some(cell.vcpus),
        SmtPolicy::Require if threads < 2 || !cell.vcpus.is_multiple_of(threads) => None,
        SmtPolicy::Require => Some(cell.vcpus / threads),
    }
}

/// Number of CPUs that the virtual node needs.
fn cpus(c: &Candidate<'_>, cell: &CellDemand) -> u32 {
    c.demand.exclusive(cell, c.shape.threads)
}

/// Number of free CPUs that the shared virtual CPUs do not need.
fn spare_cpus(c: &Candidate<'_>) -> u32 {
    c.state.spare_cpus(c.shape, c.overcommit_percent)
}
