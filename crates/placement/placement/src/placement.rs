//! The placement of a virtual machine: its host, and the physical node, CPUs and memory of each virtual node.

use crate::host::Host;
use crate::lifetime::Lifetime;
use crate::request::{CpuPolicy, EmulatorPolicy, MemoryPolicy};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Placement of one virtual machine. Nodes are identified by the operating system's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Placement {
    /// Name of the host.
    pub host: String,
    /// CPU binding policy.
    pub cpu: CpuPolicy,
    /// Memory binding policy.
    pub memory: MemoryPolicy,
    /// Placement of the emulator threads.
    pub emulator: EmulatorPolicy,
    /// Dedicated CPU of the emulator, on the first cell's node. Only with [`EmulatorPolicy::Isolated`].
    pub emulator_cpu: Option<u32>,
    /// Virtual nodes in order.
    pub cells: Vec<Cell>,
    /// Nodes that memory may come from: those of the cells and, with the policy `preferred`, those it may borrow from.
    pub bound: Vec<u32>,
    /// Names of assigned devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Memory in ordinary pages besides the guest memory, for the emulator. Placements of older versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overhead: Vec<Share>,
    /// Groups of the virtual machine, as "tenant/group".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Expected lifetime, if the request states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
}

/// One virtual node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cell {
    /// Number of the physical node.
    pub node: u32,
    /// Number of virtual CPUs. They are numbered consecutively across the cells.
    pub vcpus: u32,
    /// With exclusive CPUs, the dedicated CPU of each virtual CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// Sibling CPUs that must stay idle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<u32>,
    /// Memory of the cell. If any memory is local, it is the first share.
    pub memory: Vec<Share>,
}

/// Memory on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Share {
    /// Number of the physical node.
    pub node: u32,
    /// Page size in KiB.
    pub page_kib: u32,
    /// Amount in MiB.
    pub mib: u64,
}

/// Resources that a placement uses, summed up. Reservations, releases and checks are all based on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// CPUs that no other placement may use, as (node, CPU).
    pub exclusive: Vec<(u32, u32)>,
    /// Virtual CPUs on shared CPUs, by node.
    pub shared: BTreeMap<u32, u32>,
    /// Memory in MiB by (node, page size in KiB).
    pub memory: BTreeMap<(u32, u32), u64>,
    /// Slots of each device, by name.
    pub devices: BTreeMap<String, u32>,
}

impl Placement {
    /// Sums up the resources of the placement.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for cell in &self.cells {
            tally.exclusive.extend(cell.cpus.iter().chain(&cell.idle).map(|cpu| (cell.node, *cpu)));
            if self.cpu != CpuPolicy::Exclusive {
                *tally.shared.entry(cell.node).or_default() += cell.vcpus;
            }
        }
        tally.memory = self.guest_memory();
        for share in &self.overhead {
            *tally.memory.entry((share.node, share.page_kib)).or_default() += share.mib;
        }
        if let (Some(cpu), Some(first)) = (self.emulator_cpu, self.cells.first()) {
            tally.exclusive.push((first.node, cpu));
        }
        for device in &self.devices {
            *tally.devices.entry(device.clone()).or_default() += 1;
        }
        tally
    }

    /// Guest memory in MiB by (node, page size in KiB), without the overhead.
    pub fn guest_memory(&self) -> BTreeMap<(u32, u32), u64> {
        let mut memory = BTreeMap::new();
        for share in self.cells.iter().flat_map(|cell| &cell.memory) {
            *memory.entry((share.node, share.page_kib)).or_default() += share.mib;
        }
        memory
    }

    /// Returns why a virtual machine cannot move on its host from `other` to this placement, or `None` if the two use
    /// equal amounts of existing resources. The store checks whether those resources are free.
    pub fn mismatch(&self, other: &Self, host: &Host) -> Option<String> {
        let pages = |placement: &Self| {
            let mut by_size = BTreeMap::<u32, u64>::new();
            for ((_, page_kib), mib) in placement.guest_memory() {
                *by_size.entry(page_kib).or_default() += mib;
            }
            by_size
        };
        let kind = |p: &Self| (p.host.clone(), p.cpu, p.memory, p.emulator, p.emulator_cpu.is_some());
        let cpus_of = |node: u32| host.nodes.iter().find(|n| n.id == node).map(|n| n.cpus());
        let has = |node: u32, cpu: u32| cpus_of(node).is_some_and(|cpus| cpus.contains(cpu));
        let tally = self.tally();
        let exclusive = self.cpu == CpuPolicy::Exclusive;
        let nodes = self.cells.iter().flat_map(|c| c.memory.iter().map(|s| s.node).chain([c.node]));
        let nodes = nodes.chain(self.overhead.iter().map(|share| share.node));
        let wrong = [
            (kind(self) != kind(other), "its policies differ"),
            (
                self.cells.len() != other.cells.len() || self.vcpus() != other.vcpus(),
                "its number of virtual nodes or virtual CPUs differs",
            ),
            (pages(self) != pages(other), "its amount of memory of some page size differs"),
            (self.devices != other.devices, "its devices differ"),
            (self.groups != other.groups, "its groups differ"),
            (
                exclusive && self.cells.iter().any(|c| c.cpus.len() != c.vcpus as usize),
                "not every virtual CPU has a dedicated CPU",
            ),
            (
                tally.exclusive.iter().any(|(node, cpu)| !has(*node, *cpu)),
                "a dedicated CPU is not on the virtual node's host node",
            ),
            (
                nodes.chain(self.bound.iter().copied()).any(|node| cpus_of(node).is_none()),
                "it uses a node that the host does not have",
            ),
        ];
        wrong.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, what)| what.to_string())
    }

    /// Total overhead in MiB.
    pub fn overhead_mib(&self) -> u64 {
        self.overhead.iter().map(|share| share.mib).sum()
    }

    /// Virtual CPUs of all cells.
    pub fn vcpus(&self) -> u32 {
        self.cells.iter().map(|c| c.vcpus).sum()
    }

    /// Total memory in MiB, and the part of it that is not on its cell's own node.
    pub fn memory_mib(&self) -> (u64, u64) {
        let shares = || self.cells.iter().flat_map(|c| c.memory.iter().map(move |s| (c.node, s)));
        let remote = shares().filter(|(node, share)| *node != share.node).map(|(_, s)| s.mib).sum();
        (shares().map(|(_, s)| s.mib).sum(), remote)
    }
}
