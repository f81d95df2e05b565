//! Inspects all running virtual machines of a libvirt host, including those that Longma did not create: the location of
//! their threads and memory, the cost of remote accesses, and commands that reduce it. Changes nothing.
//!
//! Source: proc(5) for threads and numa_maps; the firmware's distances (ACPI SLIT), where 10 is local.

use super::process::{Thread, all_memory, pid_of_domain, vcpu_threads};
use super::virsh::Virsh;
use longma_placement::hypervisor::HypervisorError;
use longma_placement::{CpuSet, Host, collect};
use longma_text::quote_for_shell;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Fraction of remote accesses below which no change is suggested.
const MIN_REMOTE_FRACTION: f64 = 0.05;
/// If one node has at least this fraction of the memory, move the threads there; otherwise move the memory to the
/// threads.
const MAIN_NODE_FRACTION: f64 = 0.75;

/// A running virtual machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Locality {
    /// Domain name.
    pub domain: String,
    /// Process ID of QEMU.
    pub pid: u32,
    /// Number of virtual CPUs.
    pub vcpus: usize,
    /// Fraction of virtual CPU time by node.
    pub runs_on: BTreeMap<u32, f64>,
    /// Memory in MiB by node.
    pub memory_mib: BTreeMap<u32, u64>,
    /// Fraction of memory accesses that are remote, if all memory is accessed equally often.
    pub remote: f64,
    /// Mean cost of an access relative to a local one, by the firmware's distances.
    pub cost: f64,
    /// Whether its threads may leave their current nodes.
    pub may_drift: bool,
    /// Commands that improve its locality; empty if none are needed.
    pub mend: Vec<String>,
    /// Reason for these commands, or for none.
    pub why: String,
}

fn node_of(host: &Host, cpu: u32) -> Option<usize> {
    host.nodes.iter().position(|n| n.cpus().contains(cpu))
}

/// Evaluates one virtual machine.
fn evaluate(
    domain: &str,
    pid: u32,
    threads: &[Thread],
    memory_mib: BTreeMap<u32, u64>,
    host: &Host,
) -> Locality {
    let busy: f64 = threads.iter().map(|t| t.ticks).sum();
    // If all threads are idle, weigh them equally by the CPU they last ran on.
    let weight = |t: &Thread| if busy > 0.0 { t.ticks / busy } else { 1.0 / threads.len() as f64 };
    let mut runs_on: BTreeMap<u32, f64> = BTreeMap::new();
    for thread in threads {
        if let Some(at) = node_of(host, thread.cpu) {
            *runs_on.entry(host.nodes[at].id).or_default() += weight(thread);
        }
    }
    let total: u64 = memory_mib.values().sum();
    let part = |node: u32| memory_mib.get(&node).map_or(0.0, |mib| *mib as f64 / total.max(1) as f64);
    let (mut remote, mut cost) = (0.0, 0.0);
    for (from, share) in &runs_on {
        let Some(row) = host.nodes.iter().position(|n| n.id == *from) else { continue };
        for (column, node) in host.nodes.iter().enumerate() {
            let accesses = share * part(node.id);
            remote += if node.id == *from { 0.0 } else { accesses };
            cost += accesses * f64::from(host.distances[row][column]) / 10.0;
        }
    }
    if total == 0 {
        cost = 1.0;
    }
    let may_drift = host.nodes.len() > 1
        && threads.iter().any(|t| {
            let nodes = host.nodes.iter().filter(|n| n.cpus().intersects(&t.allowed));
            nodes.count() > 1
        });
    let vcpus = threads.len();
    let mut locality = Locality {
        domain: domain.into(),
        pid,
        vcpus,
        runs_on,
        memory_mib,
        remote,
        cost,
        may_drift,
        mend: Vec::new(),
        why: String::new(),
    };
    advise(&mut locality, host);
    locality
}

fn advise(locality: &mut Locality, host: &Host) {
    let largest = |parts: Vec<(u32, f64)>| parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let total: u64 = locality.memory_mib.values().sum();
    let memory =
        largest(locality.memory_mib.iter().map(|(n, mib)| (*n, *mib as f64 / total.max(1) as f64)).collect());
    let threads = largest(locality.runs_on.iter().map(|(n, part)| (*n, *part)).collect());
    let (Some(memory), Some(threads)) = (memory, threads) else {
        locality.why = "its memory placement is not readable: run this as root on the host".into();
        return;
    };
    if locality.remote < MIN_REMOTE_FRACTION && !locality.may_drift {
        locality.why = "local, and bound to stay local".into();
        return;
    }
    let home = if memory.1 >= MAIN_NODE_FRACTION { memory.0 } else { threads.0 };
    let Some(node) = host.nodes.iter().find(|n| n.id == home) else { return };
    let cpus = node.cpus();
    if locality.vcpus > cpus.len() {
        locality.why = format!(
            "it has more virtual CPUs than node {home} has CPUs: split it into virtual nodes, each on a separate node"
        );
        return;
    }
    locality.why = match (locality.remote < MIN_REMOTE_FRACTION, memory.1 >= MAIN_NODE_FRACTION) {
        (true, _) => "local, but its threads may drift to other nodes".into(),
        (false, true) => format!(
            "{:.0} % of its memory is on node {home}: its threads should run there too",
            memory.1 * 100.0
        ),
        (false, false) => format!("its threads run mostly on node {home}: its memory should move there"),
    };
    // A name that begins with a dash needs the explicit option.
    let dash = if locality.domain.starts_with('-') { "--domain " } else { "" };
    let domain = format!("{dash}{}", quote_for_shell(&locality.domain));
    let pin = |vcpu: usize| format!("virsh vcpupin {domain} {vcpu} {cpus} --live");
    locality.mend = (0..locality.vcpus).map(pin).collect();
    locality.mend.push(format!("virsh emulatorpin {domain} {cpus} --live"));
    let others: CpuSet = locality.memory_mib.keys().copied().filter(|n| *n != home).collect();
    if locality.remote >= MIN_REMOTE_FRACTION && !others.is_empty() {
        locality.mend.push(format!("migratepages {} {others} {home}", locality.pid));
    }
}

/// Inspects all virtual machines in libvirt's list for the given interval. `sys` and `proc` are read below `root`.
///
/// # Errors
/// If libvirt does not answer or the host cannot be read.
pub fn survey(uri: &str, root: &Path, interval: Duration) -> Result<Vec<Locality>, HypervisorError> {
    let listed =
        Virsh::new(uri).run(&["list", "--name"]).map_err(|f| HypervisorError::Unreachable(f.text()))?;
    let host = collect(root, "this").map_err(|e| HypervisorError::Unreachable(e.to_string()))?;
    let running: Vec<(String, u32)> = listed
        .split('\n')
        .filter(|l| !l.is_empty())
        .filter_map(|name| Some((name.to_string(), pid_of_domain(name)?)))
        .collect();
    let before: Vec<_> = running.iter().map(|(_, pid)| vcpu_threads(root, *pid)).collect();
    std::thread::sleep(interval);
    let locality = |((name, pid), before): (&(String, u32), BTreeMap<u32, Thread>)| {
        let mut now = vcpu_threads(root, *pid);
        for (number, thread) in &mut now {
            thread.ticks = (thread.ticks - before.get(number).map_or(0.0, |b| b.ticks)).max(0.0);
        }
        let now: Vec<Thread> = now.into_values().collect();
        // Unreadable memory is reported in `why`.
        evaluate(name, *pid, &now, all_memory(root, *pid).unwrap_or_default(), &host)
    };
    Ok(running.iter().zip(before).map(locality).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::process::{misplaced_io_threads, misplaced_vcpus};
    use longma_topology::Machine;
    use std::fs;

    fn host() -> Host {
        Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap()
    }

    fn thread(cpu: u32, ticks: f64, allowed: &str) -> Thread {
        Thread { ticks, cpu, allowed: allowed.parse().unwrap() }
    }

    #[test]
    fn remote_domains_are_listed_with_cost_and_commands() {
        // Node 0 has CPUs 0-7 and 64-71; node 4 is two hops away.
        let threads = [thread(0, 100.0, "0-127"), thread(1, 100.0, "0-127")];
        let locality = evaluate("my vm", 5, &threads, BTreeMap::from([(4, 4000), (0, 96)]), &host());
        assert!(locality.remote > 0.97 && locality.cost > 3.0 && locality.may_drift, "{locality:?}");
        assert_eq!(locality.mend[0], "virsh vcpupin 'my vm' 0 32-39,96-103 --live");
        assert_eq!(locality.mend.last().unwrap(), "migratepages 5 0 4");
        assert!(locality.why.contains("98 %"));
        let locality = evaluate("--all", 5, &threads, BTreeMap::from([(4, 4000), (0, 96)]), &host());
        assert_eq!(locality.mend[0], "virsh vcpupin --domain --all 0 32-39,96-103 --live");
    }

    #[test]
    fn scattered_memory_moves_to_the_threads_and_local_domains_stay() {
        let spread = BTreeMap::from([(0, 1000), (1, 1000), (2, 1000)]);
        let locality = evaluate("a", 5, &[thread(8, 50.0, "8-15")], spread, &host());
        assert_eq!(locality.mend.last().unwrap(), "migratepages 5 0,2 1");
        let well = evaluate("a", 5, &[thread(8, 50.0, "8-15")], BTreeMap::from([(1, 1000)]), &host());
        assert_eq!((well.remote, well.cost, well.mend.len()), (0.0, 1.0, 0));
        let drifting = evaluate("a", 5, &[thread(8, 0.0, "0-127")], BTreeMap::from([(1, 1000)]), &host());
        assert!(drifting.remote == 0.0 && drifting.mend.len() == 2 && drifting.why.contains("drift"));
        let wide: Vec<Thread> = (0..40).map(|cpu| thread(cpu, 1.0, "0-127")).collect();
        assert!(evaluate("a", 5, &wide, BTreeMap::from([(0, 9)]), &host()).why.contains("virtual nodes"));
    }

    #[test]
    fn threads_are_read_from_a_recorded_tree() {
        let folder = tempfile::tempdir().unwrap();
        let task = folder.path().join("proc/9/task");
        let names = [(9, "qemu-system-x86"), (10, "CPU 0/TCG"), (11, "CPU 1/KVM"), (12, "IO iothread7")];
        for (tid, name) in names {
            let folder = task.join(tid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
            let zeros = "0 ".repeat(23);
            fs::write(
                folder.join("stat"),
                format!("{tid} ({name}) S 1 2 3 4 5 6 7 8 9 10 70 30 {zeros} {tid} 0 0"),
            )
            .unwrap();
            fs::write(folder.join("status"), "Name: x\nCpus_allowed_list:\t0-3\n").unwrap();
        }
        let found = vcpu_threads(folder.path(), 9);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found[&1], Thread { ticks: 100.0, cpu: 11, allowed: "0-3".parse().unwrap() });
        // The first thread is also pinned to CPU 5, which is offline. Another program has moved the second thread.
        fs::create_dir_all(folder.path().join("sys/devices/system/cpu")).unwrap();
        fs::write(folder.path().join("sys/devices/system/cpu/online"), "0-4\n").unwrap();
        let pins: Vec<CpuSet> = ["0-3,5", "2"].iter().map(|list| list.parse().unwrap()).collect();
        assert_eq!(misplaced_vcpus(folder.path(), 9, &pins), BTreeMap::from([(1, "0-3".parse().unwrap())]));
        let io =
            |pin: &str| misplaced_io_threads(folder.path(), 9, &BTreeMap::from([(7, pin.parse().unwrap())]));
        assert_eq!(io("2"), BTreeMap::from([(7, "0-3".parse().unwrap())]));
        assert_eq!(io("0-3"), BTreeMap::new());
        fs::write(folder.path().join("proc/9/numa_maps"), "1 default N0=512 N1=256 kernelpagesize_kB=4\n")
            .unwrap();
        assert_eq!(all_memory(folder.path(), 9).unwrap(), BTreeMap::from([(0, 2), (1, 1)]));
    }
}
