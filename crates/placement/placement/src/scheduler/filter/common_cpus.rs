//! At least one CPU of the host stays available to the host itself and to shared emulator threads.

use super::{Demand, HostFilter, HostState, Shortage};

pub(crate) struct CommonCpus;

impl HostFilter for CommonCpus {
    fn name(&self) -> &'static str {
        "common-cpus"
    }
    fn what(&self) -> &'static str {
        "CPUs, of which one stays free for the host"
    }
    fn shortage(&self, host: &HostState, demand: &Demand) -> Option<Shortage> {
        let threads = host.shape.nodes.iter().map(|n| n.threads).max().unwrap_or(1);
        let needed: u32 = (0..demand.cells).map(|c| demand.exclusive(&demand.cell(c), threads)).sum();
        if needed == 0 {
            return None;
        }
        Shortage::unless(u64::from(needed) + 1, host.undedicated_cpus().into())
    }
}
