//! The machine expanded into instances: every host, NUMA node, core and cache, numbered in the order that Linux uses.
//! An instance names its type; [`crate::Machine`] holds the types.

use crate::parts::{Chip, Host, MachineFile};
use serde::Serialize;

/// The maximum number of cores of a machine; a file with more is rejected.
pub(crate) const MAX_CORES: u64 = 65_536;

/// Every instance of every host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layout {
    /// The hosts in the order of the file, each copy separately.
    pub hosts: Vec<HostInstance>,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostInstance {
    /// Its name.
    pub name: String,
    /// The index of the entry in the file's `[[hosts]]` that it is a copy of.
    pub of: usize,
    /// The type of each chip.
    pub chips: Vec<String>,
    /// NUMA nodes, numbered over all chips.
    pub nodes: Vec<NodeInstance>,
    /// Cores, numbered over all chips.
    pub cores: Vec<CoreInstance>,
    /// Caches, numbered over all chips.
    pub caches: Vec<CacheInstance>,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeInstance {
    /// The chip it is on.
    pub chip: usize,
    /// The index of the entry in the chip's `nodes` that it is a copy of.
    pub of: usize,
    /// Its cores.
    pub cores: Vec<usize>,
    /// Memory of all its controllers in bytes, if given.
    pub memory_bytes: Option<u64>,
    /// The type of each of its memory controllers.
    pub memories: Vec<String>,
}

/// One core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreInstance {
    /// Its type.
    pub core: String,
    /// The chip it is on.
    pub chip: usize,
    /// Its NUMA node, numbered over the host.
    pub node: usize,
    /// Its cluster, numbered over the host.
    pub cluster: usize,
    /// Every cache in its hierarchy, nearest first.
    pub caches: Vec<usize>,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheInstance {
    /// Its type.
    pub cache: String,
    /// The cores that share it.
    pub cores: Vec<usize>,
}

impl Layout {
    /// Expands the hosts of `file`. Every reference in the file must be valid.
    pub(crate) fn of(file: &MachineFile) -> Self {
        let mut hosts = Vec::new();
        for (of, host) in file.hosts.iter().enumerate() {
            for copy in 0..host.count {
                let name = if host.count == 1 { host.name.clone() } else { format!("{}{copy}", host.name) };
                hosts.push(HostInstance::of(file, host, of, name));
            }
        }
        Self { hosts }
    }
}

/// The names of the copies of a host.
pub(crate) fn host_names(host: &Host) -> Vec<String> {
    match host.count {
        1 => vec![host.name.clone()],
        // `limits` checks the number of hosts; this bound only keeps a hostile file from exhausting memory.
        n => (0..n.min(4096)).map(|copy| format!("{}{copy}", host.name)).collect(),
    }
}

/// The number of cores of one chip of this type.
pub(crate) fn chip_cores(chip: &Chip) -> u64 {
    let clusters = |n: &crate::parts::ChipNode| -> u64 {
        let cores = |c: &crate::parts::Cluster| u64::from(c.count).saturating_mul(c.cores.into());
        n.clusters.iter().map(cores).fold(0, u64::saturating_add)
    };
    chip.nodes.iter().map(|n| u64::from(n.count).saturating_mul(clusters(n))).fold(0, u64::saturating_add)
}

/// The number of NUMA nodes of one chip of this type.
pub(crate) fn chip_nodes(chip: &Chip) -> u64 {
    chip.nodes.iter().map(|n| u64::from(n.count)).sum()
}

impl HostInstance {
    fn of(file: &MachineFile, host: &Host, of: usize, name: String) -> Self {
        let chips = host.chips.iter().map(|c| c.to_string()).collect();
        let mut built = Self { name, of, chips, nodes: vec![], cores: vec![], caches: vec![] };
        let mut clusters = 0;
        for (index, name) in host.chips.iter().enumerate() {
            if let Some(chip) = file.chips.get(&**name) {
                built.add_chip(file, chip, index, &mut clusters);
            }
        }
        built
    }

    fn add_chip(&mut self, file: &MachineFile, chip: &Chip, index: usize, clusters: &mut usize) {
        let chip_from = self.cores.len();
        for (of, node) in chip.nodes.iter().enumerate() {
            for _ in 0..node.count {
                let node_from = self.cores.len();
                for cluster in node.clusters.iter().flat_map(|c| (0..c.count).map(move |_| c)) {
                    let cluster_from = self.cores.len();
                    for _ in 0..cluster.cores {
                        let core = cluster.core.to_string();
                        let node = self.nodes.len();
                        let cluster = *clusters;
                        self.cores.push(CoreInstance { core, chip: index, node, cluster, caches: vec![] });
                        let private = file.cores.get(&*self.cores[self.cores.len() - 1].core);
                        self.share(private.map_or(&[][..], |c| &c.caches), self.cores.len() - 1);
                    }
                    self.share(&cluster.caches, cluster_from);
                    *clusters += 1;
                }
                self.share(&node.caches, node_from);
                let memories = node.memory.iter();
                let memories = memories.flat_map(|m| (0..m.count).map(|_| m.memory.to_string())).collect();
                let capacity = node.memory.iter().filter_map(|m| m.capacity).map(|c| c.bytes());
                let memory_bytes = capacity.reduce(u64::saturating_add);
                let cores = (node_from..self.cores.len()).collect();
                self.nodes.push(NodeInstance { chip: index, of, cores, memory_bytes, memories });
            }
        }
        self.share(&chip.caches, chip_from);
    }

    /// Adds one instance of each of `caches`, shared by all cores from `first` on.
    fn share(&mut self, caches: &[crate::read::Name], first: usize) {
        for cache in caches {
            for core in &mut self.cores[first..] {
                core.caches.push(self.caches.len());
            }
            self.caches
                .push(CacheInstance { cache: cache.to_string(), cores: (first..self.cores.len()).collect() });
        }
    }
}
