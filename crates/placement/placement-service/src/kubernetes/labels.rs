//! Labels of a Kubernetes node that describe the free resources of its NUMA nodes.
//!
//! Source: Kubernetes' manual, "Labels and Selectors" (syntax); kubelet checkpoints: pkg/kubelet/cm/cpumanager/state
//! (`CPUManagerCheckpoint`) and pkg/kubelet/cm/memorymanager/state (`MemoryManagerCheckpoint`).

use longma_cpu_set::{CpuSet, MAX_CPU};
use longma_placement::Host;
use longma_placement::host::{MAX_NODE_CPUS, MAX_NODES, MAX_POOL_MIB, Node, Pool};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Prefix of all labels.
pub const PREFIX: &str = "longma-placement/";

/// The labels of a node by key.
pub type Labels = BTreeMap<String, String>;

/// Resources that the kubelet has assigned to aligned pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletUse {
    /// CPUs dedicated to a pod.
    pub cpus: CpuSet,
    /// Free memory in MiB by node and page size in KiB, where the memory manager counts it.
    pub free_mib: BTreeMap<(u32, u32), u64>,
}

#[derive(Deserialize)]
struct CpuManagerState {
    #[serde(default)]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryManagerState {
    #[serde(default)]
    machine_state: Option<BTreeMap<u32, MemoryNode>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryNode {
    #[serde(default)]
    memory_map: BTreeMap<String, MemoryTable>,
}

#[derive(Deserialize)]
struct MemoryTable {
    free: u64,
}

/// Largest checkpoint that is read.
const MAX_CHECKPOINT_BYTES: u64 = 16 << 20;

impl KubeletUse {
    /// Reads the checkpoints in the kubelet's folder, by default `/var/lib/kubelet`.
    ///
    /// # Errors
    /// If the folder or a checkpoint cannot be read. The text names it.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let read = |name: &str| {
            let path = folder.join(name);
            let file = match File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file,
            };
            let mut text = String::new();
            let read = file.and_then(|file| file.take(MAX_CHECKPOINT_BYTES).read_to_string(&mut text));
            read.map(|_| Some(text)).map_err(|error| format!("{}: {error}", path.display()))
        };
        if !folder.is_dir() {
            return Err(format!("{}: there is no such folder", folder.display()));
        }
        Self::parse(read("cpu_manager_state")?.as_deref(), read("memory_manager_state")?.as_deref())
    }

    /// Reads the kubelet's checkpoints `cpu_manager_state` and `memory_manager_state`. A file that does not exist means
    /// that the manager is off.
    ///
    /// # Errors
    /// If a checkpoint cannot be parsed. The text names the file.
    pub fn parse(cpu_manager: Option<&str>, memory_manager: Option<&str>) -> Result<Self, String> {
        let mut all = Self::default();
        if let Some(text) = cpu_manager {
            let wrong = |why: String| format!("cpu_manager_state: {why}");
            let state: CpuManagerState = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
            for cpus in state.entries.unwrap_or_default().values().flat_map(BTreeMap::values) {
                let cpus: CpuSet = cpus.parse().map_err(|e| wrong(format!("{cpus:?}: {e}")))?;
                all.cpus.extend(cpus.iter());
            }
        }
        if let Some(text) = memory_manager {
            let state: MemoryManagerState =
                serde_json::from_str(text).map_err(|e| format!("memory_manager_state: {e}"))?;
            for (node, memory) in state.machine_state.unwrap_or_default() {
                for (kind, table) in memory.memory_map {
                    let page_kib = match kind.strip_prefix("hugepages-") {
                        None => Some(ORDINARY_KIB),
                        Some(size) => super::quantity::thousandths(size)
                            .and_then(|size| u32::try_from(size / 1000 / 1024).ok()),
                    };
                    all.free_mib.extend(page_kib.map(|kib| ((node, kib), table.free >> 20)));
                }
            }
        }
        Ok(all)
    }
}

/// Ordinary pages in labels. Their real size does not matter to a pod.
const ORDINARY_KIB: u32 = 4;

/// Describes a host and its free resources.
pub fn labels(host: &Host, used: &KubeletUse) -> Labels {
    let mut all = Labels::new();
    let mut put = |key: String, value: u64| drop(all.insert(format!("{PREFIX}{key}"), value.to_string()));
    put("nodes".into(), host.nodes.len() as u64);
    let (mut most_cpus, mut most_mib) = (0, 0);
    for node in &host.nodes {
        let cpus = node.cpus().difference(&host.reserved);
        let free = cpus.difference(&used.cpus).len() as u64;
        let threads = node.cores.iter().map(CpuSet::len).max().unwrap_or(1);
        put(format!("node-{}.cpus", node.id), cpus.len() as u64);
        put(format!("node-{}.free-cpus", node.id), free);
        put(format!("node-{}.threads", node.id), threads as u64);
        most_cpus = free.max(most_cpus);
        for (at, pool) in node.memory.iter().enumerate() {
            let page_kib = if at == 0 { ORDINARY_KIB } else { pool.page_kib };
            let free = used.free_mib.get(&(node.id, page_kib)).map_or(pool.mib, |free| pool.mib.min(*free));
            put(format!("node-{}.mib-{page_kib}", node.id), pool.mib);
            put(format!("node-{}.free-mib-{page_kib}", node.id), free);
            if at == 0 {
                most_mib = free.max(most_mib);
            }
        }
    }
    // For pods that select nodes by a label, without the extender.
    put("most-free-cpus".into(), most_cpus);
    put("most-free-mib".into(), most_mib);
    all
}

/// The free resources of a host as its labels describe them; `None` if it has no such labels, an error if a label is
/// invalid or contradicts another one.
///
/// # Errors
/// The label that is wrong.
pub(super) fn free_host(name: &str, labels: &Labels) -> Result<Option<Host>, String> {
    let number = |key: &str| {
        let text = labels.get(&format!("{PREFIX}{key}"));
        let number =
            text.map(|text| text.parse::<u64>().map_err(|_| format!("{PREFIX}{key} is not a number")));
        number.transpose()
    };
    let Some(count) = number("nodes")? else { return Ok(None) };
    let mut nodes = BTreeMap::<u32, Node>::new();
    for (key, text) in labels.range(format!("{PREFIX}node-")..format!("{PREFIX}node.")) {
        let parsed = key[PREFIX.len() + "node-".len()..]
            .split_once('.')
            .and_then(|(id, what)| Some((id.parse::<u32>().ok()?, what, text.parse::<u64>().ok()?)));
        let (id, what, amount) = parsed.ok_or_else(|| format!("{key} has an unknown form"))?;
        let node = nodes.entry(id).or_insert_with(|| Node { id, cores: Vec::new(), memory: Vec::new() });
        if what == "free-cpus" {
            let cpus = usize::try_from(amount).ok().filter(|cpus| *cpus <= MAX_NODE_CPUS);
            let cpus = cpus.ok_or_else(|| format!("{key}: a node has at most {MAX_NODE_CPUS} CPUs"))?;
            let threads = number(&format!("node-{id}.threads"))?.unwrap_or(1).clamp(1, 8) as usize;
            node.cores = cores(cpus, threads);
        } else if let Some(page_kib) = what.strip_prefix("free-mib-") {
            let page_kib = page_kib.parse().map_err(|_| format!("{key} has no page size"))?;
            let mib = amount.min(MAX_POOL_MIB - 1);
            match page_kib {
                ORDINARY_KIB => node.memory.insert(0, Pool { page_kib, mib }),
                _ => node.memory.push(Pool { page_kib, mib }),
            }
        }
    }
    if nodes.len() > MAX_NODES || nodes.values().any(|node| node.memory.is_empty()) {
        return Err(format!(
            "{PREFIX}node-N.free-mib-{ORDINARY_KIB} is missing, or there are too many nodes"
        ));
    }
    if nodes.len() as u64 != count {
        return Err(format!("{PREFIX}nodes is {count}, but {} are described", nodes.len()));
    }
    let cpus: usize = nodes.values().flat_map(|node| &node.cores).map(CpuSet::len).sum();
    if cpus >= MAX_CPU as usize {
        return Err(format!("{cpus} free CPUs; at most {}", MAX_CPU - 1));
    }
    // CPUs are numbered consecutively, whatever their real numbers: the kubelet, not the scheduler, assigns CPUs to
    // pods.
    let mut next = 0;
    for core in nodes.values_mut().flat_map(|node| &mut node.cores) {
        let threads = core.len() as u32;
        *core = (next..next + threads).collect();
        next += threads;
    }
    let reserved = CpuSet::from_iter([next]);
    if let Some(node) = nodes.values_mut().min_by_key(|node| node.cpus().len()) {
        // The kubelet's static policy keeps at least one CPU for the system, which is not among the free ones.
        node.cores.push(reserved.clone());
    }
    let host = Host { reserved, ..Host::new(name, nodes.into_values().collect()) };
    host.check().map_err(|error| error.problem)?;
    Ok(Some(host))
}

/// `cpus` CPUs grouped into cores of `threads` CPUs; the last core may have fewer.
fn cores(cpus: usize, threads: usize) -> Vec<CpuSet> {
    (0..cpus.div_ceil(threads))
        .map(|core| (0..threads.min(cpus - core * threads)).map(|cpu| cpu as u32).collect())
        .collect()
}
