//! Reads a host's topology, memory, huge pages, distances, devices and load from sysfs and procfs below any root
//! directory. A file that is unreadable or inconsistent is an error that names the file.
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-node, sysfs-devices-system-cpu,
//! testing/sysfs-kernel-mm-hugepages; proc_stat(5).

mod devices;

use crate::cpus::CpuSet;
use crate::host::{Host, HostError, Node, NodeLoad, Pool};
use devices::devices;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum number of bytes read from a file. The sysfs and procfs files used here are far shorter.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Why a host could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A file has unexpected content.
    #[error("{path}: {problem}")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        problem: String,
    },
    /// The host's description is inconsistent.
    #[error(transparent)]
    Host(#[from] HostError),
}

fn read(path: &Path) -> Result<String, CollectError> {
    use std::io::Read;
    let error = |error| CollectError::Read { path: path.into(), error };
    let mut text = Vec::new();
    std::fs::File::open(path).map_err(error)?.take(MAX_FILE_BYTES).read_to_end(&mut text).map_err(error)?;
    Ok(String::from_utf8_lossy(&text).trim().to_string())
}

/// Reads a file; `None` if it does not exist.
fn read_if_there(path: &Path) -> Result<Option<String>, CollectError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(CollectError::Read { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn invalid(path: &Path, problem: impl Into<String>) -> CollectError {
    CollectError::Content { path: path.into(), problem: problem.into() }
}

fn cpu_list(path: &Path) -> Result<CpuSet, CollectError> {
    read(path)?.parse().map_err(|e: crate::cpus::CpuSetError| invalid(path, e.to_string()))
}

/// Names of the entries of a directory, sorted; empty if it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Parses a node's meminfo file into values by name. Sizes are in KiB.
fn meminfo(path: &Path) -> Result<BTreeMap<String, u64>, CollectError> {
    let text = read(path)?;
    // "Node 0 MemTotal:       32657492 kB"; HugePages_ lines have no unit.
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let name = name.split_whitespace().last()?;
        Some((name.to_string(), value.split_whitespace().next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn node_folders(root: &Path) -> Result<Vec<(u32, PathBuf)>, CollectError> {
    let base = root.join("sys/devices/system/node");
    let number = |name: &String| Some((name.strip_prefix("node")?.parse::<u32>().ok()?, base.join(name)));
    let mut nodes: Vec<_> = names(&base).iter().filter_map(number).collect();
    nodes.sort();
    match nodes.is_empty() {
        true => Err(invalid(
            &base,
            "there is no folder node0: is sysfs mounted, and is the kernel built with NUMA?",
        )),
        false => Ok(nodes),
    }
}

/// Reads the host from `sys` and `proc` below `root`: "/" for the running system, or a recorded tree. Offline CPUs are
/// left out.
///
/// # Errors
/// If a file is missing, unreadable or malformed; the error names it.
pub fn collect(root: &Path, name: &str) -> Result<Host, CollectError> {
    let folders = node_folders(root)?;
    let online = cpu_list(&root.join("sys/devices/system/cpu/online"))?;
    let mut nodes = Vec::new();
    let mut distances = Vec::new();
    for (id, folder) in &folders {
        let listed = cpu_list(&folder.join("cpulist"))?;
        let cpus: CpuSet = listed.iter().filter(|c| online.contains(*c)).collect();
        nodes.push(Node { id: *id, cores: cores(root, &cpus)?, memory: memory(root, folder)? });
        let path = folder.join("distance");
        let row: Option<Vec<u32>> = read(&path)?.split_whitespace().map(|d| d.parse().ok()).collect();
        distances.push(row.filter(|r| r.len() == folders.len()).ok_or_else(|| {
            invalid(&path, format!("expected {} numbers, one for each node", folders.len()))
        })?);
    }
    let known: Vec<u32> = nodes.iter().map(|n| n.id).collect();
    let devices = devices(root, &known)?;
    let host = Host {
        name: name.into(),
        nodes,
        distances,
        devices,
        reserved: CpuSet::new(),
        gone: CpuSet::new(),
        foreign: Default::default(),
    };
    host.check()?;
    Ok(host)
}

/// Groups a node's CPUs by core.
fn cores(root: &Path, cpus: &CpuSet) -> Result<Vec<CpuSet>, CollectError> {
    let mut cores: Vec<CpuSet> = Vec::new();
    let mut ungrouped = cpus.clone();
    for cpu in cpus.iter() {
        if !ungrouped.contains(cpu) {
            continue;
        }
        let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        // Linux 5.2 renamed this file. Some containers have neither.
        let siblings = match read_if_there(&folder.join("core_cpus_list"))? {
            Some(text) => Some((text, "core_cpus_list")),
            None => read_if_there(&folder.join("thread_siblings_list"))?.map(|t| (t, "thread_siblings_list")),
        };
        let siblings: CpuSet = match siblings {
            Some((text, file)) => text
                .parse()
                .map_err(|e: crate::cpus::CpuSetError| invalid(&folder.join(file), e.to_string()))?,
            None => [cpu].into_iter().collect(),
        };
        // Ignore siblings that are offline or on another node. Some virtual machines report such siblings.
        let mut core: CpuSet = siblings.iter().filter(|c| ungrouped.contains(*c)).collect();
        core.insert(cpu);
        ungrouped = ungrouped.difference(&core);
        cores.push(core);
    }
    Ok(cores)
}

/// A node's memory: ordinary pages first, then huge pages by size.
fn memory(root: &Path, folder: &Path) -> Result<Vec<Pool>, CollectError> {
    let path = folder.join("meminfo");
    let total_kib = *meminfo(&path)?.get("MemTotal").ok_or_else(|| invalid(&path, "has no MemTotal line"))?;
    let mut pools = Vec::new();
    for size in names(&folder.join("hugepages")) {
        let path = folder.join("hugepages").join(&size);
        let kib = size.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB")?.parse::<u32>().ok());
        let kib =
            kib.filter(|k| k.is_power_of_two()).ok_or_else(|| invalid(&path, "is not a huge page size"))?;
        let file = path.join("nr_hugepages");
        let pages: u64 = read(&file)?.parse().map_err(|_| invalid(&file, "is not a number"))?;
        let mib = pages.checked_mul(kib.into()).ok_or_else(|| invalid(&file, "is too large"))? >> 10;
        pools.push(Pool { page_kib: kib, mib });
    }
    pools.sort_by_key(|p| p.page_kib);
    let huge: u64 = pools.iter().map(|p| p.mib << 10).sum();
    let ordinary = total_kib.checked_sub(huge);
    let ordinary = ordinary.ok_or_else(|| {
        invalid(&path, format!("huge pages take {huge} KiB, more than the total of {total_kib} KiB"))
    })?;
    let page_kib = page_kib(root)?;
    pools.retain(|p| p.mib > 0 && p.page_kib != page_kib);
    pools.insert(0, Pool { page_kib, mib: ordinary >> 10 });
    Ok(pools)
}

/// Size of an ordinary page, read from a process's smaps, which reports it on every architecture. 4 KiB if the tree has
/// no smaps file.
fn page_kib(root: &Path) -> Result<u32, CollectError> {
    let path = root.join("proc/self/smaps");
    let Some(text) = read_if_there(&path)? else { return Ok(4) };
    let line = text.lines().find_map(|l| l.strip_prefix("KernelPageSize:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u32>().ok());
    Ok(kib.filter(|k| k.is_power_of_two()).unwrap_or(4))
}

/// Cumulative counters of a host. The load is computed from the difference of two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Busy and total ticks of each CPU.
    cpus: BTreeMap<u32, (u64, u64)>,
    /// Used and total KiB of each node, in the order of the nodes.
    memory: Vec<(u64, u64)>,
}

/// Reads the counters of the host below `root`.
///
/// # Errors
/// If a file is missing, unreadable or malformed; the error names it.
pub fn counters(root: &Path) -> Result<Counters, CollectError> {
    let path = root.join("proc/stat");
    let mut cpus = BTreeMap::new();
    for line in read(&path)?.lines() {
        let mut words = line.split_whitespace();
        let Some(cpu) = words.next().and_then(|w| w.strip_prefix("cpu")).and_then(|n| n.parse().ok()) else {
            continue;
        };
        // Columns: user nice system idle iowait irq softirq steal. Guest time is already included in user.
        let ticks: Option<Vec<u64>> = words.take(8).map(|w| w.parse().ok()).collect();
        let ticks = ticks
            .filter(|t| t.len() >= 4)
            .ok_or_else(|| invalid(&path, format!("cpu{cpu} has no tick counts")))?;
        let all = ticks.iter().fold(0u64, |sum, t| sum.saturating_add(*t));
        let idle = ticks[3].saturating_add(ticks.get(4).copied().unwrap_or(0));
        cpus.insert(cpu, (all.saturating_sub(idle), all));
    }
    let mut memory = Vec::new();
    for (_, folder) in node_folders(root)? {
        let numbers = meminfo(&folder.join("meminfo"))?;
        let number = |name: &str| numbers.get(name).copied().unwrap_or(0);
        // The page cache is reclaimable, except for shared memory.
        let free = number("MemFree").saturating_add(number("FilePages")).saturating_sub(number("Shmem"));
        memory.push((number("MemTotal").saturating_sub(free), number("MemTotal")));
    }
    Ok(Counters { cpus, memory })
}

impl Counters {
    /// Load of `host`'s nodes between `earlier` and these counters. CPUs without counters in both samples are ignored.
    pub fn load_since(&self, earlier: &Counters, host: &Host) -> Vec<NodeLoad> {
        let part = |used: u64, all: u64| {
            if all == 0 { 0.0 } else { (used as f64 / all as f64).clamp(0.0, 1.0) as f32 }
        };
        let node = |(at, node): (usize, &Node)| {
            let cpus = node.cpus();
            let ticks = cpus.iter().filter_map(|c| Some((self.cpus.get(&c)?, earlier.cpus.get(&c)?)));
            let (busy, all) = ticks.fold((0, 0), |sum, (now, then)| {
                (sum.0 + now.0.saturating_sub(then.0), sum.1 + now.1.saturating_sub(then.1))
            });
            let (used, total) = self.memory.get(at).copied().unwrap_or_default();
            NodeLoad { cpu: part(busy, all), memory: part(used, total) }
        };
        host.nodes.iter().enumerate().map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A tree with two nodes, numbered 0 and 8 as on POWER, each with two cores of two threads. CPU 7 is offline.
    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(root, "sys/devices/system/cpu/online", "0-6\n");
        for (at, (id, cpus)) in [(0, "0-1,4-5"), (8, "2-3,6-7")].into_iter().enumerate() {
            let node = format!("sys/devices/system/node/node{id}");
            put(root, &format!("{node}/cpulist"), cpus);
            put(root, &format!("{node}/distance"), if at == 0 { "10 20" } else { "20 10" });
            let total = format!("Node {id} MemTotal: 16777216 kB\nNode {id} MemFree: 4194304 kB\n");
            put(root, &format!("{node}/meminfo"), &format!("{total}Node {id} FilePages: 4194304 kB\n"));
            put(root, &format!("{node}/hugepages/hugepages-2048kB/nr_hugepages"), "1024\n");
            put(root, &format!("{node}/hugepages/hugepages-1048576kB/nr_hugepages"), "0\n");
        }
        for cpu in 0..7 {
            let siblings = format!("{},{}", cpu % 4, cpu % 4 + 4);
            put(root, &format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), &siblings);
        }
        put(root, "sys/bus/pci/devices/0000:01:00.0/class", "0x020000\n");
        put(root, "sys/bus/pci/devices/0000:01:00.0/numa_node", "8\n");
        put(root, "proc/stat", &stat(0));
        folder
    }

    fn stat(busy: u64) -> String {
        let cpu =
            |c: u32| format!("cpu{c} {} 0 0 {} 0 0 0 0 0 0\n", if c % 4 < 2 { busy } else { 0 }, 1000 - busy);
        format!("cpu 1 2 3 4\n{}intr 5\n", (0..7).map(cpu).collect::<String>())
    }

    #[test]
    fn a_recorded_tree_becomes_a_host() {
        let folder = tree();
        let host = collect(folder.path(), "power").unwrap();
        assert_eq!(host.nodes.iter().map(|n| n.id).collect::<Vec<_>>(), [0, 8]);
        let cores = |n: usize| host.nodes[n].cores.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (cores(0), cores(1)),
            (vec!["0,4".to_string(), "1,5".into()], vec!["2,6".to_string(), "3".into()])
        );
        let pools = [Pool { page_kib: 4, mib: 14336 }, Pool { page_kib: 2048, mib: 2048 }];
        assert_eq!(host.nodes[1].memory, pools);
        assert_eq!((&*host.devices[0].name, host.devices[0].node), ("0000:01:00.0", Some(8)));
    }

    #[test]
    fn load_is_the_difference_of_two_readings() {
        let folder = tree();
        let host = collect(folder.path(), "power").unwrap();
        let before = counters(folder.path()).unwrap();
        // CPUs of node 0 are busy a quarter of the time.
        put(folder.path(), "proc/stat", &stat(250).replace(" 750 ", " 1750 "));
        let load = counters(folder.path()).unwrap().load_since(&before, &host);
        assert!((load[0].cpu - 0.25).abs() < 0.001 && load[1].cpu == 0.0, "{load:?}");
        assert!((load[0].memory - 0.5).abs() < 0.001);
    }

    #[test]
    fn errors_name_the_file() {
        let message = |path: &str, text: &str| {
            let folder = tree();
            put(folder.path(), path, text);
            collect(folder.path(), "power").unwrap_err().to_string()
        };
        let node = "sys/devices/system/node/node8";
        assert!(message(&format!("{node}/cpulist"), "2-").contains("node8/cpulist"));
        assert!(message(&format!("{node}/distance"), "10").contains("2 numbers"));
        assert!(message(&format!("{node}/meminfo"), "x").contains("MemTotal"));
        assert!(
            message(&format!("{node}/hugepages/hugepages-2048kB/nr_hugepages"), "999999")
                .contains("huge pages take")
        );
        assert!(message(&format!("{node}/cpulist"), "0-3").contains("CPU 0 is listed twice"));
        assert!(message("sys/bus/pci/devices/0000:01:00.0/numa_node", "x").contains("numa_node"));
        let empty = tempfile::tempdir().unwrap();
        assert!(collect(empty.path(), "x").unwrap_err().to_string().contains("is sysfs mounted"));
    }
}
