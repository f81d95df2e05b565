//! Tests on the recorded tree of a two-socket host: the data read, the recommendations, and the findings reported as
//! missing.

use longma_affinity::advice::candidates;
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface;
use longma_affinity::journal::Journal;
use longma_affinity::pairs::{Class, Pair, all_pairs};
use longma_affinity::preflight::{Severity, check};
use longma_affinity::steering::Steering;
use std::path::Path;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Eight CPUs in two sockets, CPU 7 offline. A 40 Gb/s NIC on the second socket with two receive queues, each with an
/// interrupt.
fn host() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "sys/devices/system/cpu/online", "0-6\n");
    put(root, "sys/devices/system/cpu/offline", "7\n");
    for cpu in 0..7 {
        let socket = cpu / 4;
        let base = format!("sys/devices/system/cpu/cpu{cpu}");
        put(root, &format!("{base}/topology/physical_package_id"), &format!("{socket}\n"));
        put(root, &format!("{base}/topology/core_cpus_list"), &format!("{cpu}\n"));
        let shared = if socket == 0 { "0-3" } else { "4-7" };
        for (name, fact) in
            [("level", "3"), ("type", "Unified"), ("size", "15360K"), ("shared_cpu_list", shared)]
        {
            put(root, &format!("{base}/cache/index3/{name}"), fact);
        }
    }
    for (node, cpus) in [(0, "0-3"), (1, "4-7")] {
        put(root, &format!("sys/devices/system/node/node{node}/cpulist"), cpus);
        put(root, &format!("sys/devices/system/node/node{node}/distance"), ["10 20", "20 10"][node]);
    }
    let nic = "sys/class/net/eth2";
    for (file, text) in [("mtu", "1500"), ("speed", "40000"), ("operstate", "up"), ("device/numa_node", "1")]
    {
        put(root, &format!("{nic}/{file}"), text);
    }
    for queue in 0..2 {
        put(root, &format!("{nic}/queues/rx-{queue}/rps_cpus"), "00\n");
        put(root, &format!("{nic}/queues/rx-{queue}/rps_flow_cnt"), "0\n");
        put(root, &format!("proc/irq/{}/smp_affinity_list", 60 + queue), "0-7\n");
    }
    put(
        root,
        "proc/interrupts",
        "  CPU0\n 60: 1 PCI-MSI eth2-TxRx-0\n 61: 1 PCI-MSI eth2-TxRx-1\n 62: 1 PCI-MSI eth2-async\n",
    );
    put(root, "proc/sys/kernel/perf_event_paranoid", "4\n");
    put(root, "proc/self/status", "Cpus_allowed_list:\t0-5\n");
    folder
}

#[test]
fn the_best_pair_is_on_the_nics_socket_without_the_cpu_that_is_offline() {
    let folder = host();
    let host = Tree::recorded(folder.path());
    let places = host.places();
    assert_eq!(places.iter().map(|place| place.cpu).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((places[6].socket, places[6].node, places[6].last_cache.clone()), (1, 1, Some(vec![4, 5, 6])));
    let nic = interface::read(&host, &"eth2".parse().unwrap()).unwrap();
    assert_eq!(nic.irqs.iter().map(|irq| irq.number).collect::<Vec<_>>(), [60, 61]);
    let ranking = candidates(&places, &nic, &all_pairs(&[0, 1, 2, 3, 4, 5, 6]));
    assert_eq!((ranking[0].pair, ranking[0].class), (Pair { flow: 4, application: 5 }, Class::SharedCache));
}

/// The queues of such a NIC cannot stay near it.
#[test]
fn a_nic_whose_node_has_no_cpu_online_is_noted() {
    let folder = host();
    put(folder.path(), "sys/devices/system/cpu/online", "0-3\n");
    let findings = check(&Tree::recorded(folder.path()), Some(&"eth2".parse().unwrap()), None);
    let node = findings.iter().find(|finding| finding.subject == "NUMA node").unwrap();
    assert_eq!(node.weight, Severity::Note, "{node:?}");
    assert!(node.found.contains("attached to node 1, none of whose CPUs is online"), "{node:?}");
}

#[test]
fn steering_is_written_into_the_tree_and_undone() {
    let folder = host();
    let host = Tree::recorded(folder.path());
    let nic = interface::read(&host, &"eth2".parse().unwrap()).unwrap();
    let read = |path: &str| host.read(path).unwrap();
    let mut journal = Journal::begin(&folder.path().join("journal"), &host).unwrap();
    Steering::of(&nic).unwrap().apply(&mut journal, 5).unwrap();
    assert_eq!(
        (read("proc/irq/60/smp_affinity_list"), read("proc/irq/61/smp_affinity_list")),
        ("5".into(), "5".into())
    );
    assert!(journal.restore().unwrap().is_whole());
    assert_eq!(
        (read("proc/irq/60/smp_affinity_list"), read("proc/irq/61/smp_affinity_list")),
        ("0-7".into(), "0-7".into())
    );
}

#[test]
fn missing_host_features_are_reported_and_do_not_prevent_a_sweep() {
    let folder = host();
    let findings = check(&Tree::recorded(folder.path()), Some(&"eth2".parse().unwrap()), None);
    let weight = |subject: &str| {
        findings.iter().find(|finding| finding.subject == subject).map(|finding| finding.weight)
    };
    assert_eq!(weight("offline CPUs"), Some(Severity::Note));
    assert_eq!(weight("cpuset"), Some(Severity::Note));
    assert_eq!(weight("MTU"), Some(Severity::Note));
    assert_eq!(weight("steering"), Some(Severity::Good));
    assert_eq!(weight("NUMA node"), Some(Severity::Good));
    let prevents = findings.iter().filter(|finding| finding.weight == Severity::Prevents);
    // Whether the test runs as root does not depend on the tree.
    assert!(prevents.into_iter().all(|finding| finding.subject == "rights"), "{findings:?}");
}
