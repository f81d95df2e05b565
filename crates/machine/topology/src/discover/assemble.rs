//! Groups the CPUs, caches and nodes of a host into types of cores, caches and chips. A cache is listed with the
//! smallest group that contains all its sharers: core, cluster, node or chip.

use super::GUESSED_CLOCK;
use super::sysfs::{CacheInfo, Cpu, Node};
use crate::parts::*;
use crate::read::{Cited, Map, Name, SourcePositions};
use crate::units::{Frequency, Size};
use longma_cpu_set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};

/// The parts of a host by name, and the order of its nodes.
pub(super) struct Assembled {
    pub cores: Map<Core>,
    pub caches: Map<Cache>,
    pub memories: Map<Memory>,
    pub chips: Map<Chip>,
    /// The type of each socket's chip.
    pub sockets: Vec<String>,
    /// The system's node numbers in the order of the machine file.
    pub node_order: Vec<u32>,
    /// The socket of each node of `node_order`.
    pub node_socket: Vec<usize>,
    pub clock_guessed: bool,
}

/// Gives identical parts the same name.
struct Types<T> {
    parts: Map<T>,
}

impl<T: PartialEq> Types<T> {
    fn name(&mut self, base: &str, part: T) -> String {
        if let Some((name, _)) =
            self.parts.iter().find(|p| *p.1 == part && (p.0 == base || p.0.starts_with(&format!("{base}-"))))
        {
            return name.clone();
        }
        let names = (1..).map(|n| if n == 1 { base.to_string() } else { format!("{base}-{n}") });
        let name = names.into_iter().find(|n| !self.parts.contains_key(n)).unwrap_or_default();
        self.parts.insert(name.clone(), part);
        name
    }
}

struct Builder<'a> {
    cpus: BTreeMap<u32, &'a Cpu>,
    cores: Types<Core>,
    caches: Types<Cache>,
    clock_guessed: bool,
}

pub(super) fn assemble(cpus: &[Cpu], nodes: &[Node], notes: &mut Vec<String>) -> Assembled {
    let by_id: BTreeMap<u32, &Cpu> = cpus.iter().map(|c| (c.id, c)).collect();
    let groups = sockets(&by_id, nodes, notes);
    let mut builder = Builder {
        cpus: by_id,
        cores: Types { parts: Map::new() },
        caches: Types { parts: Map::new() },
        clock_guessed: false,
    };
    let (mut chips, mut sockets) = (Map::new(), Vec::new());
    let (mut node_order, mut node_socket) = (Vec::new(), Vec::new());
    for (socket, members) in groups.iter().enumerate() {
        let chip = builder.chip(members, notes);
        // Each socket needs its own type, because the lists of CPUs differ.
        let name = format!("socket{socket}");
        chips.insert(name.clone(), chip);
        sockets.push(name);
        node_order.extend(members.iter().map(|n| n.id));
        node_socket.extend(members.iter().map(|_| socket));
    }
    let memories = Map::from([("memory".to_string(), memory())]);
    let Builder { cores, caches, clock_guessed, .. } = builder;
    let (cores, caches) = (cores.parts, caches.parts);
    Assembled { cores, caches, memories, chips, sockets, node_order, node_socket, clock_guessed }
}

/// Nodes by socket. Sockets that share a node are treated as one; a node without CPUs is attached to the first.
fn sockets<'a>(cpus: &BTreeMap<u32, &Cpu>, nodes: &'a [Node], notes: &mut Vec<String>) -> Vec<Vec<&'a Node>> {
    let packages = |n: &Node| n.cpus.iter().map(|c| cpus[c].package).collect::<BTreeSet<i64>>();
    let mut groups: Vec<(BTreeSet<i64>, Vec<&Node>)> = Vec::new();
    for node in nodes.iter().filter(|n| !n.cpus.is_empty()) {
        let mut node_group = (packages(node), vec![node]);
        let (joined, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|g| !g.0.is_disjoint(&node_group.0));
        groups = apart;
        for (packages, mut members) in joined {
            node_group.0.extend(packages);
            members.append(&mut node_group.1);
            node_group.1 = members;
        }
        groups.push(node_group);
    }
    groups.sort_by_key(|g| g.1.iter().map(|n| n.id).min());
    if groups.iter().any(|g| g.0.len() > 1) {
        notes.push("packages that share a NUMA node are described as one chip".into());
    }
    for node in nodes.iter().filter(|n| n.cpus.is_empty() && n.memory_kib.is_some()) {
        notes.push(format!("node {} has memory but no CPU; it is listed with the first chip", node.id));
        if let Some(first) = groups.first_mut() {
            first.1.push(node);
        }
    }
    groups.into_iter().map(|g| g.1).collect()
}

impl Builder<'_> {
    fn chip(&mut self, members: &[&Node], notes: &mut Vec<String>) -> Chip {
        let all: BTreeSet<u32> = members.iter().flat_map(|n| n.cpus.iter().copied()).collect();
        let mut chip_caches = BTreeSet::new();
        let nodes: Vec<_> =
            members.iter().map(|node| self.node(node, &all, &mut chip_caches, notes)).collect();
        let title = all.iter().find_map(|c| self.cpus[c].model.clone());
        Chip {
            title,
            uncore_clock: None,
            caches: chip_caches.into_iter().map(Name::new).collect(),
            nodes,
            crossbars: Vec::new(),
            ports: Vec::new(),
            address_windows: None,
            source: Cited::one("sysfs"),
            source_of: Map::new(),
            marks: SourcePositions::default(),
        }
    }

    fn node(
        &mut self,
        node: &Node,
        chip: &BTreeSet<u32>,
        chip_caches: &mut BTreeSet<String>,
        notes: &mut Vec<String>,
    ) -> ChipNode {
        let mut node_caches = BTreeSet::new();
        let mut clusters: BTreeMap<(u32, String), Vec<u32>> = BTreeMap::new();
        let mut cluster_caches: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        // Describe each core once, by its first hardware thread.
        let first = |c: &u32| self.cpus[c].siblings.iter().find(|s| node.cpus.contains(s)) == Some(c);
        let leaders: Vec<u32> = node.cpus.iter().copied().filter(first).collect();
        for leader in leaders {
            let cpu = self.cpus[&leader];
            let core: BTreeSet<u32> = cpu.siblings.intersection(&node.cpus).copied().collect();
            let cluster = self.cluster_of(cpu, &core, node);
            // The first CPU identifies a cluster; cores that share no cache form one cluster of the node.
            let key = cluster.as_ref().and_then(|c| c.first().copied()).unwrap_or(u32::MAX);
            let mut private = Vec::new();
            for (index, cache) in cpu.caches.iter().enumerate() {
                let name = self.cache(cpu, index, cache);
                let list = if cache.shared.is_subset(&core) {
                    private.push(name.clone());
                    continue;
                } else if cluster.as_ref().is_some_and(|c| cache.shared.is_subset(c)) {
                    cluster_caches.entry(key).or_default()
                } else if cache.shared.is_subset(&node.cpus) {
                    &mut node_caches
                } else {
                    if cache.shared != *chip {
                        note(
                            notes,
                            "the CPUs that share a cache match neither a node nor a chip; it is listed with the chip",
                        );
                    }
                    &mut *chip_caches
                };
                list.insert(name);
            }
            let name = self.core(cpu, core.len() as u32, private);
            clusters.entry((key, name)).or_default().push(leader);
        }
        let cluster = |((key, core), leaders): ((u32, String), Vec<u32>)| {
            let threads: BTreeSet<u32> = leaders
                .iter()
                .flat_map(|l| self.cpus[l].siblings.intersection(&node.cpus).copied())
                .collect();
            let caches = cluster_caches.get(&key).into_iter().flatten().map(Name::new).collect();
            let cpus = Some(CpuSet::from_iter(threads).to_string());
            Cluster {
                count: 1,
                core: Name::new(core),
                cores: leaders.len() as u32,
                caches,
                cpus,
                marks: SourcePositions::default(),
            }
        };
        let clusters = clusters.into_iter().map(cluster).collect();
        let memory = MemoryUse {
            memory: Name::new("memory"),
            count: 1,
            capacity: node.memory_kib.map(|k| Size::new(k << 10)),
            marks: SourcePositions::default(),
        };
        let caches = node_caches.into_iter().map(Name::new).collect();
        ChipNode { count: 1, caches, clusters, memory: vec![memory], marks: SourcePositions::default() }
    }

    /// The CPUs that share the nearest shared cache, unless that is all CPUs of the node.
    fn cluster_of(&self, cpu: &Cpu, core: &BTreeSet<u32>, node: &Node) -> Option<BTreeSet<u32>> {
        let shared = cpu.caches.iter().map(|c| &c.shared).filter(|s| !s.is_subset(core));
        let inside = shared.filter(|s| s.is_subset(&node.cpus) && s.len() < node.cpus.len());
        inside.min_by_key(|s| s.len()).cloned()
    }

    fn cache(&mut self, cpu: &Cpu, index: usize, info: &CacheInfo) -> String {
        let further = cpu.caches[index..].iter().find(|c| c.level > info.level).cloned();
        let next = match further {
            Some(further) => {
                let index = cpu.caches.iter().position(|c| *c == further).unwrap_or(index);
                self.cache(cpu, index, &further)
            }
            None => "memory".into(),
        };
        let ways = info.ways.map_or(info.bytes / info.line, u64::from);
        let sets = info.bytes / (info.line * ways.max(1));
        let part = Cache {
            level: info.level,
            kind: info.kind,
            size: Size::new(info.bytes),
            ways: info.ways,
            line: Size::new(info.line),
            banks: 1,
            index: if sets.is_power_of_two() { CacheIndex::Bits } else { CacheIndex::Hashed },
            latency: None,
            bandwidth: None,
            next: Name::new(next),
            replacement: Replacement::Unknown,
            replacement_module: None,
            inclusion: Inclusion::NonInclusive,
            write: WritePolicy::Back,
            coherence: Coherence::None,
            mshrs: None,
            lock: None,
            dca: None,
            prefetcher: None,
            source: Cited::one("sysfs"),
            source_of: Map::new(),
            marks: SourcePositions::default(),
        };
        self.caches.name(&part.short_name().to_lowercase(), part)
    }

    fn core(&mut self, cpu: &Cpu, threads: u32, caches: Vec<String>) -> String {
        let clock = cpu.khz.map_or(GUESSED_CLOCK, |k| Frequency::new(k * 1000));
        let guessed = cpu.khz.is_none();
        self.clock_guessed |= guessed;
        let source_of =
            if guessed { Map::from([("clock".to_string(), Cited::one("guess"))]) } else { Map::new() };
        let part = Core {
            title: cpu.class.as_ref().map(|c| format!("{c}-core")).or(cpu.model.clone()),
            isa: cpu.isa,
            extensions: Vec::new(),
            clock,
            threads,
            caches: caches.into_iter().map(Name::new).collect(),
            out_of_order: true,
            fetch_width: None,
            decode_width: None,
            issue_width: None,
            retire_width: None,
            rob_entries: None,
            int_queue_entries: None,
            fp_queue_entries: None,
            memory_queue_entries: None,
            load_queue_entries: None,
            store_queue_entries: None,
            int_registers: None,
            fp_registers: None,
            vector_width: None,
            page_size: None,
            branch: None,
            memory_order: None,
            units: Vec::new(),
            operations: Map::new(),
            instruction_timing: None,
            tlbs: Vec::new(),
            tlb_refill: TlbRefill::Walker,
            page_walkers: 1,
            store: None,
            idma: None,
            cam: None,
            source: Cited::one("sysfs"),
            source_of,
            marks: SourcePositions::default(),
        };
        let base = match cpu.class.as_deref() {
            Some("P") => "performance",
            Some("E") => "efficiency",
            _ => "core",
        };
        self.cores.name(base, part)
    }
}

fn note(notes: &mut Vec<String>, text: &str) {
    if !notes.iter().any(|n| n == text) {
        notes.push(text.into());
    }
}

fn memory() -> Memory {
    Memory {
        title: None,
        technology: Technology::Unknown,
        rate: None,
        width: None,
        channels: 1,
        ranks: 1,
        banks: None,
        row_buffer: None,
        page_policy: PagePolicy::Open,
        bank_groups: 1,
        cl: None,
        trcd: None,
        trp: None,
        tras: None,
        trefi: None,
        trfc: None,
        interleave: None,
        refresh: None,
        queue_entries: None,
        latency: None,
        bandwidth: None,
        source: Cited::one("sysfs"),
        source_of: Map::new(),
        marks: SourcePositions::default(),
    }
}
