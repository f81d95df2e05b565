//! The immutable part of a host (topology, memory sizes, devices) in the layout that the scheduler reads. Identical
//! hosts share one `Shape`; `inventory` holds the reserved resources of each host.

use crate::cpus::CpuSet;
use crate::host::{Device, Host, MAX_NODE_CPUS, Pool};
use std::hash::{Hash, Hasher};

/// A set of one node's CPUs, indexed by position in the node's CPU list. Hardware threads of a core are adjacent in
/// that list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Bits([u64; MAX_NODE_CPUS / 64]);

impl Bits {
    pub fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    pub fn set(&mut self, at: usize, on: bool) {
        let bit = 1 << (at % 64);
        if on { self.0[at / 64] |= bit } else { self.0[at / 64] &= !bit }
    }

    /// Number of CPUs in the set.
    pub fn count(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Union of the two sets.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// Returns whether the `len` positions from `start` on are all absent.
    pub fn none_of(&self, start: usize, len: usize) -> bool {
        (start..start + len).all(|at| !self.get(at))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeShape {
    pub id: u32,
    /// CPU numbers of the operating system, grouped by core.
    pub cpus: Vec<u32>,
    /// For each core, the index of its first thread in `cpus` and its number of threads.
    pub cores: Vec<(u16, u16)>,
    /// CPUs that the host reserves for itself.
    pub reserved: Bits,
    /// CPUs that are offline or removed but still reserved by a placement. They are not allocated again.
    pub gone: Bits,
    /// CPUs that domains of others are pinned to. They are not dedicated to a virtual machine.
    pub foreign: Bits,
    /// Number of virtual CPUs of these domains.
    pub foreign_vcpus: u32,
    /// Number of CPUs that are not reserved for the host.
    pub usable: u16,
    /// Number of cores whose threads can all be dedicated.
    pub usable_cores: u16,
    /// Largest number of threads of any core.
    pub threads: u16,
    pub pools: Vec<Pool>,
}

impl NodeShape {
    /// Index of the memory pool with pages of `page_kib`; the first pool if `page_kib` is `None`.
    pub fn pool(&self, page_kib: Option<u32>) -> Option<usize> {
        match page_kib {
            None => Some(0),
            Some(kib) => self.pools.iter().position(|p| p.page_kib == kib),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub nodes: Vec<NodeShape>,
    pub distances: Vec<Vec<u32>>,
    /// For each node, the indices of all nodes: the node itself first, then by distance.
    pub by_distance: Vec<Vec<u8>>,
    pub devices: Vec<Device>,
    /// For each device, the index of its node.
    pub device_nodes: Vec<Option<u8>>,
}

impl Shape {
    pub fn of(host: &Host) -> Self {
        let nodes: Vec<NodeShape> = host.nodes.iter().map(|n| node_shape(host, n)).collect();
        let by_distance = |at: usize| {
            let mut order: Vec<u8> = (0..nodes.len() as u8).collect();
            order.sort_by_key(|&n| (usize::from(n) != at, host.distances[at][usize::from(n)], n));
            order
        };
        let by_distance = (0..nodes.len()).map(by_distance).collect();
        let node_index = |id: u32| nodes.iter().position(|n| n.id == id).map(|at| at as u8);
        let device_nodes = host.devices.iter().map(|d| d.node.and_then(node_index)).collect();
        Self {
            distances: host.distances.clone(),
            by_distance,
            devices: host.devices.clone(),
            device_nodes,
            nodes,
        }
    }

    /// Index of the node with the operating system's number `id`.
    pub fn node(&self, id: u32) -> Option<usize> {
        self.nodes.iter().position(|n| n.id == id)
    }

    /// A hash that is equal for equal shapes.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = rustc_hash::FxHasher::default();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

fn node_shape(host: &Host, node: &crate::host::Node) -> NodeShape {
    let mut cpus = Vec::new();
    let mut cores = Vec::new();
    for core in &node.cores {
        cores.push((cpus.len() as u16, core.len() as u16));
        cpus.extend(core.iter());
    }
    let bits = |set: &CpuSet| {
        let mut bits = Bits::default();
        cpus.iter().enumerate().for_each(|(at, cpu)| bits.set(at, set.contains(*cpu)));
        bits
    };
    let (reserved, gone, foreign) = (bits(&host.reserved), bits(&host.gone), bits(&host.foreign.cpus));
    let usable = cpus.iter().filter(|c| !host.reserved.contains(**c)).count() as u16;
    let whole = |c: &&(u16, u16)| [reserved, gone, foreign].iter().all(|b| b.none_of(c.0.into(), c.1.into()));
    let usable_cores = cores.iter().filter(whole).count() as u16;
    let threads = cores.iter().map(|c| c.1).max().unwrap_or(1);
    NodeShape {
        id: node.id,
        cpus,
        cores,
        reserved,
        gone,
        foreign,
        foreign_vcpus: host.foreign.vcpus.get(&node.id).copied().unwrap_or(0),
        usable,
        usable_cores,
        threads,
        pools: node.memory.clone(),
    }
}
