//! Reads Linux's files about CPUs, caches and NUMA nodes. Every file may be missing or malformed. `assemble` groups the
//! result into parts.
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node.

use super::root::{HostRoot, UnreadableFile};
use crate::parts::{CacheKind, Isa, LINE_BYTES};
use longma_cpu_set::{CpuSet, MAX_CPU};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The sysfs and procfs of a host: the live ones, or a recorded tree.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: HostRoot,
}

/// A hardware thread.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cpu {
    pub id: u32,
    pub package: i64,
    /// Hardware threads of its core, itself included.
    pub siblings: BTreeSet<u32>,
    pub khz: Option<u64>,
    pub isa: Isa,
    pub model: Option<String>,
    pub identity: Option<Identity>,
    /// "P" or "E" on hybrid processors, or a capacity class.
    pub class: Option<String>,
    pub caches: Vec<CacheInfo>,
}

/// A processor's identity, as CPUID reports it on x86.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub vendor: String,
    pub family: u32,
    pub model: u32,
}

/// A cache as reported for one CPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CacheInfo {
    pub level: u32,
    pub kind: CacheKind,
    pub bytes: u64,
    pub ways: Option<u32>,
    pub line: u64,
    pub shared: BTreeSet<u32>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub id: u32,
    pub cpus: BTreeSet<u32>,
    pub memory_kib: Option<u64>,
    /// The distances to all nodes, in ascending order of their numbers.
    pub distances: Vec<u32>,
}

impl Sysfs {
    /// The host that this program runs on.
    pub fn live() -> Self {
        Self { root: HostRoot::live("/") }
    }

    /// A tree recorded on another host, with the directories `root/sys` and `root/proc`.
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: HostRoot::recorded(root) }
    }

    /// The files below `root`.
    pub fn of(root: &HostRoot) -> Self {
        Self { root: root.clone() }
    }

    /// The first file of a recorded tree that was refused: a device, a pipe, or a file that is too long.
    pub fn unreadable(&self) -> Option<&UnreadableFile> {
        self.root.unreadable()
    }

    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(super) fn is_live(&self) -> bool {
        self.root() == Path::new("/")
    }

    /// The trimmed text of a file; `None` if it is missing, empty or not readable.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let bytes = self.root.read(path).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim().to_string();
        (!text.is_empty()).then_some(text)
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    fn list(&self, path: &str) -> Option<BTreeSet<u32>> {
        Some(self.read(path)?.parse::<CpuSet>().ok()?.iter().collect())
    }

    /// The names in a directory, sorted.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root().join(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root().join(path).exists()
    }

    /// Notes on the system for the reader of the description.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let offline = self.list("sys/devices/system/cpu/offline").unwrap_or_default();
        if !offline.is_empty() {
            notes.push(format!("CPUs {} are offline and were omitted", CpuSet::from_iter(offline)));
        }
        if self
            .read("proc/cpuinfo")
            .is_some_and(|i| i.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor")))
        {
            notes.push("a virtual machine: topology and caches are as reported by the hypervisor".into());
        }
        notes
    }

    fn online(&self) -> BTreeSet<u32> {
        if let Some(online) = self.list("sys/devices/system/cpu/online").filter(|l| !l.is_empty()) {
            return online;
        }
        let folders = self.names("sys/devices/system/cpu").into_iter();
        let found: BTreeSet<u32> =
            folders.filter_map(|n| n.strip_prefix("cpu")?.parse().ok()).filter(|c| *c < MAX_CPU).collect();
        if !found.is_empty() || !self.is_live() {
            return found;
        }
        // Some containers hide sysfs altogether.
        (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32).min(MAX_CPU)).collect()
    }

    /// Every CPU that is online.
    pub(super) fn cpus(&self) -> Vec<Cpu> {
        let online = self.online();
        let info = self.cpuinfo();
        let efficient = self.list("sys/devices/cpu_atom/cpus").unwrap_or_default();
        let capacity = |id: u32| self.number(&format!("sys/devices/system/cpu/cpu{id}/cpu_capacity"));
        let capacities: BTreeSet<_> = online.iter().filter_map(|c| capacity(*c)).collect();
        let cpu = |&id: &u32| {
            let base = format!("sys/devices/system/cpu/cpu{id}");
            let topology = format!("{base}/topology");
            let mut siblings = ["core_cpus_list", "thread_siblings_list"].iter();
            let siblings = siblings.find_map(|f| self.list(&format!("{topology}/{f}"))).unwrap_or_default();
            let mut siblings: BTreeSet<u32> = siblings.intersection(&online).copied().collect();
            siblings.insert(id);
            let class = match (efficient.is_empty(), capacities.len() > 1) {
                (false, _) => Some(if efficient.contains(&id) { "E" } else { "P" }.to_string()),
                (true, true) => capacity(id).map(|c| format!("capacity {c}")),
                _ => None,
            };
            let fields = info.get(&id);
            let field = |names: &[&str]| names.iter().find_map(|n| fields?.get(*n).cloned());
            let mhz: Option<f64> = field(&["cpu MHz", "CPU MHz"]).and_then(|m| m.parse().ok());
            // Round to whole MHz: the last digits in /proc/cpuinfo are noise.
            let mhz = mhz.filter(|m| (1.0..100_000.0).contains(m)).map(|m| m.round() as u64 * 1000);
            let package =
                self.read(&format!("{topology}/physical_package_id")).and_then(|p| p.parse::<i64>().ok());
            Cpu {
                id,
                package: package.unwrap_or(0).max(0),
                siblings,
                khz: self.number(&format!("{base}/cpufreq/cpuinfo_max_freq")).filter(|k| *k > 0).or(mhz),
                isa: self.isa(fields),
                model: field(&["model name", "Model Name", "Model name", "cpu model"]),
                identity: field(&["vendor_id"]).and_then(|vendor| {
                    let number = |key: &str| field(&[key]).and_then(|t| t.parse().ok());
                    Some(Identity { vendor, family: number("cpu family")?, model: number("model")? })
                }),
                class,
                caches: self.caches(&base, id, &online),
            }
        };
        online.iter().map(cpu).collect()
    }

    /// The fields of /proc/cpuinfo by CPU; empty if it cannot be read.
    pub fn cpuinfo(&self) -> BTreeMap<u32, BTreeMap<String, String>> {
        let mut all: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
        let mut current = None;
        for line in self.read("proc/cpuinfo").unwrap_or_default().lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let (key, value) = (key.trim(), value.trim());
            if key == "processor" {
                current = value.parse().ok();
            }
            if let Some(id) = current {
                all.entry(id).or_default().insert(key.into(), value.into());
            }
        }
        all
    }

    fn isa(&self, fields: Option<&BTreeMap<String, String>>) -> Isa {
        let has = |key: &str| fields.is_some_and(|f| f.contains_key(key));
        match () {
            _ if has("CPU implementer") => Isa::Aarch64,
            _ if has("vendor_id")
                && fields
                    .is_some_and(|f| f.get("flags").is_some_and(|l| l.split(' ').any(|w| w == "lm"))) =>
            {
                Isa::X86_64
            }
            _ if has("vendor_id") => Isa::X86,
            _ if has("CPU Family") => Isa::LoongArch64,
            _ if fields.is_some_and(|f| f.get("isa").is_some_and(|i| i.starts_with("rv64"))) => Isa::Riscv64,
            _ if self.is_live() => match std::env::consts::ARCH {
                "x86_64" => Isa::X86_64,
                "aarch64" => Isa::Aarch64,
                "loongarch64" => Isa::LoongArch64,
                "riscv64" => Isa::Riscv64,
                "mips64" => Isa::Mips64,
                _ => Isa::Other,
            },
            _ => Isa::Other,
        }
    }

    fn caches(&self, base: &str, cpu: u32, online: &BTreeSet<u32>) -> Vec<CacheInfo> {
        let folders = self.names(&format!("{base}/cache")).into_iter().filter(|n| n.starts_with("index"));
        let cache = |folder: String| {
            let file = |name: &str| self.read(&format!("{base}/cache/{folder}/{name}"));
            let kind = match file("type")?.as_str() {
                "Data" => CacheKind::Data,
                "Instruction" => CacheKind::Instruction,
                "Unified" => CacheKind::Unified,
                _ => return None,
            };
            let size = file("size")?;
            let (digits, scale) =
                match size.strip_suffix('K').map(|d| (d, 10)).or(size.strip_suffix('M').map(|d| (d, 20))) {
                    Some((digits, shift)) => (digits, 1u64 << shift),
                    None => (size.as_str(), 1),
                };
            let bytes = digits.parse::<u64>().ok()?.checked_mul(scale)?;
            let number = |name: &str| file(name).and_then(|t| t.parse::<u64>().ok());
            let line = number("coherency_line_size").filter(|l| l.is_power_of_two()).unwrap_or(LINE_BYTES);
            // Hypervisors may report 0 ways, or a number of ways that does not divide the size. Treat such a cache
            // as fully associative.
            let ways = number("ways_of_associativity").filter(|w| *w > 0 && *w <= u64::from(u32::MAX));
            let ways = ways.filter(|w| bytes % line.saturating_mul(*w) == 0).map(|w| w as u32);
            if bytes == 0 || bytes % line != 0 {
                return None;
            }
            let shared = file("shared_cpu_list").and_then(|l| l.parse::<CpuSet>().ok()).unwrap_or_default();
            let mut shared: BTreeSet<u32> = shared.iter().filter(|c| online.contains(c)).collect();
            shared.insert(cpu);
            let level = number("level").filter(|l| (1..=8).contains(l))? as u32;
            Some(CacheInfo { level, kind, bytes, ways, line, shared })
        };
        let mut caches: Vec<_> = folders.filter_map(cache).collect();
        caches.sort_by_key(|c| (c.level, c.kind));
        caches
    }

    /// Every NUMA node with CPUs or memory; a single node for all CPUs if the system reports none.
    pub(super) fn nodes(&self, cpus: &[Cpu]) -> Vec<Node> {
        let online: BTreeSet<u32> = cpus.iter().map(|c| c.id).collect();
        let folders = self.names("sys/devices/system/node").into_iter();
        let mut ids: Vec<u32> = folders.filter_map(|n| n.strip_prefix("node")?.parse().ok()).collect();
        ids.sort_unstable();
        let node = |id: &u32| {
            let base = format!("sys/devices/system/node/node{id}");
            let listed = self.list(&format!("{base}/cpulist")).unwrap_or_default();
            let distances = self.read(&format!("{base}/distance")).unwrap_or_default();
            let memory = self.read(&format!("{base}/meminfo")).and_then(|m| total_kib(&m, "MemTotal:"));
            Node {
                id: *id,
                cpus: listed.intersection(&online).copied().collect(),
                memory_kib: memory.filter(|m| *m > 0),
                distances: distances.split_whitespace().filter_map(|d| d.parse().ok()).collect(),
            }
        };
        let mut nodes: Vec<Node> = ids.iter().map(node).collect();
        let named: BTreeSet<u32> = nodes.iter().flat_map(|n| n.cpus.iter().copied()).collect();
        let rest: BTreeSet<u32> = online.difference(&named).copied().collect();
        if nodes.is_empty() {
            let memory_kib = self.read("proc/meminfo").and_then(|m| total_kib(&m, "MemTotal:"));
            return vec![Node { id: 0, cpus: online, memory_kib, distances: vec![10] }];
        }
        // A CPU belongs to one node. Count it once even if an invalid list names it twice.
        let mut assigned = rest.clone();
        nodes[0].cpus.extend(rest);
        for (index, node) in nodes.iter_mut().enumerate() {
            node.cpus.retain(|c| assigned.insert(*c) || (index == 0 && !named.contains(c)));
        }
        nodes
    }
}

fn total_kib(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.contains(key))?;
    line.split(key).nth(1)?.split_whitespace().next()?.parse().ok()
}
