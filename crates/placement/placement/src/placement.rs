//! Where a virtual machine lies: its host, and for each virtual node the physical node, the CPUs and the memory.
//! Not how it is made so: that is the hypervisor's (`hypervisor`, `reconcile`).

use crate::host::Host;
use crate::request::{CpuPolicy, EmulatorPolicy, MemoryPolicy};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where one virtual machine lies. Nodes are named by the system's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Placement {
    /// The host.
    pub host: String,
    /// Binding of CPUs.
    pub cpu: CpuPolicy,
    /// Binding of memory.
    pub memory: MemoryPolicy,
    /// Place of the emulator's threads.
    pub emulator: EmulatorPolicy,
    /// The emulator's own CPU, on the node of the first cell; with [`EmulatorPolicy::Isolated`] only.
    pub emulator_cpu: Option<u32>,
    /// The virtual nodes, in order.
    pub cells: Vec<Cell>,
    /// Nodes that the memory may lie on: the cells' own, and with preferred memory those it may borrow from.
    pub bound: Vec<u32>,
    /// Devices it was given, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Groups it is in, as "tenant/group".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// One virtual node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cell {
    /// The physical node.
    pub node: u32,
    /// How many virtual CPUs it has. They are numbered through the cells.
    pub vcpus: u32,
    /// With exclusive CPUs, the CPU of each virtual CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// CPUs that must stay idle beside them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<u32>,
    /// Its memory; the first share is on its own node if any is.
    pub memory: Vec<Share>,
}

/// Memory on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Share {
    /// The physical node.
    pub node: u32,
    /// Size of its pages in KiB.
    pub page_kib: u32,
    /// How much, MiB.
    pub mib: u64,
}

/// What a placement takes from its host, added up: what reservations, releases and checks all go by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// CPUs that nobody else may have, with their node.
    pub exclusive: Vec<(u32, u32)>,
    /// Virtual CPUs on shared CPUs by node.
    pub shared: BTreeMap<u32, u32>,
    /// Memory in MiB by node and size of page in KiB.
    pub memory: BTreeMap<(u32, u32), u64>,
    /// Devices by name.
    pub devices: BTreeMap<String, u32>,
}

impl Placement {
    /// What it takes, added up.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for cell in &self.cells {
            tally.exclusive.extend(cell.cpus.iter().chain(&cell.idle).map(|cpu| (cell.node, *cpu)));
            if self.cpu != CpuPolicy::Exclusive {
                *tally.shared.entry(cell.node).or_default() += cell.vcpus;
            }
            for share in &cell.memory {
                *tally.memory.entry((share.node, share.page_kib)).or_default() += share.mib;
            }
        }
        if let (Some(cpu), Some(first)) = (self.emulator_cpu, self.cells.first()) {
            tally.exclusive.push((first.node, cpu));
        }
        for device in &self.devices {
            *tally.devices.entry(device.clone()).or_default() += 1;
        }
        tally
    }

    /// What keeps this from being where the virtual machine at `other` may move on its host, if anything: it takes as much as there, of what
    /// the host has. Whether that is free is the store's to say.
    pub fn unlike(&self, other: &Self, host: &Host) -> Option<String> {
        let pages = |placement: &Self| {
            let mut by_size = BTreeMap::<u32, u64>::new();
            for ((_, page_kib), mib) in placement.tally().memory {
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
        let wrong = [
            (kind(self) != kind(other), "its policies are not those that were asked for"),
            (
                self.cells.len() != other.cells.len() || self.vcpus() != other.vcpus(),
                "it has not as many virtual nodes and CPUs",
            ),
            (pages(self) != pages(other), "it has not as much memory of each size of page"),
            (self.devices != other.devices, "its devices are others"),
            (self.groups != other.groups, "its groups are others"),
            (
                exclusive && self.cells.iter().any(|c| c.cpus.len() != c.vcpus as usize),
                "not every virtual CPU has a CPU of its own",
            ),
            (
                tally.exclusive.iter().any(|(node, cpu)| !has(*node, *cpu)),
                "a CPU of its own is not on its node",
            ),
            (
                nodes.chain(self.bound.iter().copied()).any(|node| cpus_of(node).is_none()),
                "a node of it is not there",
            ),
        ];
        wrong.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, what)| what.to_string())
    }

    /// Virtual CPUs of all cells.
    pub fn vcpus(&self) -> u32 {
        self.cells.iter().map(|c| c.vcpus).sum()
    }

    /// Memory in MiB, and how much of it is not on its cell's own node.
    pub fn memory_mib(&self) -> (u64, u64) {
        let shares = || self.cells.iter().flat_map(|c| c.memory.iter().map(move |s| (c.node, s)));
        let remote = shares().filter(|(node, share)| *node != share.node).map(|(_, s)| s.mib).sum();
        (shares().map(|(_, s)| s.mib).sum(), remote)
    }
}
