//! The part of a request that decides where it fits. Requests with equal demands share a cached ranking of hosts.
//! Names, tenants and groups are not part of it; they are checked for each decision.

use super::Overhead;
use crate::lifetime;
use crate::request::{
    CpuPolicy, DeviceNeed, EmulatorPolicy, MAX_VIRTUAL_NODES, MemoryPolicy, Request, SmtPolicy,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Demand {
    /// Number of virtual nodes.
    pub cells: u32,
    pub vcpus: u32,
    pub mib: u64,
    /// MiB of ordinary pages besides the guest memory.
    pub overhead_mib: u64,
    pub page_kib: Option<u32>,
    pub cpu: CpuPolicy,
    /// The request's policy, or `Strict` to try without borrowed memory.
    pub memory: MemoryPolicy,
    pub smt: SmtPolicy,
    pub emulator: EmulatorPolicy,
    pub devices: Vec<DeviceNeed>,
    /// Class of the expected lifetime; `None` if it is not known or not weighed.
    pub lifetime_class: Option<u8>,
}

/// The demand of one virtual node. It never increases from one virtual node to the next, so a node that fits the first
/// fits any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellDemand {
    pub vcpus: u32,
    pub mib: u64,
    /// The virtual node's part of the overhead, MiB.
    pub overhead_mib: u64,
    /// Whether this is the first virtual node, which also hosts the emulator and the local devices.
    pub first: bool,
}

impl Demand {
    /// The demands to try for `request`, in order: the requested number of virtual nodes, or increasing numbers if the
    /// request leaves it open; for each number, first without borrowed memory.
    pub fn of(request: &Request, overhead: Overhead) -> Vec<Self> {
        let demand = |(cells, memory): (u32, MemoryPolicy)| Self {
            cells,
            vcpus: request.vcpus,
            mib: request.memory_mib,
            overhead_mib: overhead.mib(request.vcpus),
            page_kib: request.huge_page_kib,
            cpu: request.cpu,
            memory,
            smt: request.smt,
            emulator: request.emulator,
            devices: {
                let each = request.devices.iter().flat_map(|need| {
                    let one = DeviceNeed { count: 1, ..*need };
                    std::iter::repeat_n(one, need.count as usize)
                });
                let mut devices: Vec<_> = each.collect();
                devices.sort_unstable();
                devices
            },
            lifetime_class: request.lifetime_s.map(lifetime::class),
        };
        let cells = match request.virtual_nodes {
            Some(cells) => vec![cells],
            None => {
                let max_nodes = request.vcpus.min(MAX_VIRTUAL_NODES);
                [1, 2, 4, 8, 16].into_iter().filter(|n| *n <= max_nodes).collect()
            }
        };
        let local = (request.memory != MemoryPolicy::Strict).then_some(MemoryPolicy::Strict);
        let policies = |cells| local.into_iter().chain([request.memory]).map(move |memory| (cells, memory));
        cells.into_iter().flat_map(policies).map(demand).collect()
    }

    /// Granularity of memory in MiB.
    pub fn unit_mib(&self) -> u64 {
        u64::from(self.page_kib.unwrap_or(4)).div_ceil(1024).max(1)
    }

    /// MiB that a virtual node needs in pages of the requested size. Includes the overhead if these are ordinary pages.
    pub fn pages_mib(&self, cell: &CellDemand) -> u64 {
        if self.page_kib.is_some() { cell.mib } else { cell.mib + cell.overhead_mib }
    }

    /// MiB of all virtual nodes in pages of the requested size.
    pub fn all_pages_mib(&self) -> u64 {
        if self.page_kib.is_some() { self.mib } else { self.mib + self.overhead_mib }
    }

    pub fn cell(&self, at: u32) -> CellDemand {
        let n = u64::from(self.cells);
        let part = |total: u64| total / n + u64::from(u64::from(at) < total % n);
        let unit = self.unit_mib();
        CellDemand {
            vcpus: part(self.vcpus.into()) as u32,
            mib: part(self.mib.div_ceil(unit)) * unit,
            overhead_mib: part(self.overhead_mib),
            first: at == 0,
        }
    }

    /// Whether two virtual nodes need nearly the same: as many CPUs, and memory that differs by less than a percent.
    pub fn is_similar(&self, one: &CellDemand, other: &CellDemand) -> bool {
        let own_cpu = |cell: &CellDemand| self.exclusive(cell, 1) + self.shared(cell);
        let (one_mib, other_mib) = (self.pages_mib(one), self.pages_mib(other));
        own_cpu(one) == own_cpu(other) && one_mib.abs_diff(other_mib) * 100 < one_mib.max(other_mib).max(100)
    }

    /// The demand under which rankings are cached. Memory is rounded up to three significant bits, so that there are
    /// few kinds, and fields that do not affect where the request fits are normalized. Common sizes (1.75, 3.5, 4, 6,
    /// 7, 8 GiB) are not changed by the rounding.
    pub fn kind(&self) -> Self {
        let unit = self.unit_mib() * u64::from(self.cells);
        let shift = (63 - self.mib.max(1).leading_zeros()).saturating_sub(3);
        let mib = (self.mib.div_ceil(1 << shift) << shift).div_ceil(unit) * unit;
        let cpu = if self.cpu == CpuPolicy::None { CpuPolicy::Range } else { self.cpu };
        let isolated = self.emulator == EmulatorPolicy::Isolated;
        let emulator = if isolated { EmulatorPolicy::Isolated } else { EmulatorPolicy::Shared };
        Self { mib, cpu, emulator, ..self.clone() }
    }

    /// Number of dedicated CPUs. `threads` is the largest number of threads of a core.
    pub fn exclusive(&self, cell: &CellDemand, threads: u16) -> u32 {
        if self.cpu != CpuPolicy::Exclusive {
            return 0;
        }
        let own = match self.smt {
            SmtPolicy::Avoid => cell.vcpus * u32::from(threads),
            SmtPolicy::Prefer | SmtPolicy::Require => cell.vcpus,
        };
        own + u32::from(cell.first && self.emulator == EmulatorPolicy::Isolated)
    }

    /// Number of virtual CPUs on shared CPUs.
    pub fn shared(&self, cell: &CellDemand) -> u32 {
        if self.cpu == CpuPolicy::Exclusive { 0 } else { cell.vcpus }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_the_first_is_the_largest() {
        let mut request = Request::new("a", 7, 10_001);
        request.virtual_nodes = Some(3);
        let demand = &Demand::of(&request, Overhead::default())[0];
        let cells: Vec<_> = (0..3).map(|c| demand.cell(c)).collect();
        assert_eq!(cells.iter().map(|c| c.vcpus).collect::<Vec<_>>(), [3, 2, 2]);
        assert_eq!(cells.iter().map(|c| c.mib).sum::<u64>(), 10_001);
        assert!(cells[0].mib >= cells[1].mib && cells[1].mib >= cells[2].mib);
    }

    #[test]
    fn common_sizes_are_not_rounded_and_others_are_grouped() {
        let rounded = |mib| Demand::of(&Request::new("a", 1, mib), Overhead::default())[0].kind().mib;
        for mib in [512, 1792, 3584, 4096, 6144, 7168, 8192, 14336, 65536, 114_688] {
            assert_eq!(rounded(mib), mib);
        }
        assert_eq!(rounded(4097), 4608);
        let all: std::collections::BTreeSet<u64> = (1024..65536).map(rounded).collect();
        assert!(all.len() < 60, "{}", all.len());
    }
}
