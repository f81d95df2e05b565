//! Tests of the placement of queues on hosts with several queues, sockets and hardware threads.

use super::*;
use crate::fake::topology;
use crate::interface::Irq;
use std::collections::BTreeMap;

fn nic(node: Option<u32>, queues: u32) -> Nic {
    let irq = |queue| Irq {
        number: 40 + queue,
        name: format!("eth0-TxRx-{queue}"),
        cpus: Some("0-15".parse().unwrap()),
    };
    Nic {
        rx_queues: (0..queues).collect(),
        irqs: (0..queues).map(irq).collect(),
        ..crate::advice::tests::nic(node)
    }
}

const ALL: DriverCapabilities = DriverCapabilities { is_combined: Some(true), has_table: true };

fn pair(flow: u32, application: u32) -> Pair {
    Pair { flow, application }
}

fn cpus(spread: &QueuePlacement) -> Vec<u32> {
    spread.nics.iter().flat_map(|nic| nic.used.iter().map(|(_, cpu)| *cpu)).collect()
}

#[test]
fn sixteen_queues_become_one_for_each_of_half_of_the_cores_of_the_nics_node() {
    let places = topology(2, 1, 8, 1);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(1), 16), ALL)], pair(8, 9), None, false);
    assert_eq!(cpus(&spread), [8, 10, 11, 12]);
    assert_eq!(spread.applications.to_string(), "9,13-15");
    assert_eq!(spread.counts(), (4, 16));
}

#[test]
fn queues_that_cannot_be_reduced_share_the_cpus_of_the_node_evenly() {
    let places = topology(2, 1, 8, 1);
    let spread = QueuePlacement::of(
        &places,
        &[(&nic(Some(1), 16), DriverCapabilities::default())],
        pair(8, 9),
        None,
        false,
    );
    let mut counts = BTreeMap::new();
    cpus(&spread).into_iter().for_each(|cpu| *counts.entry(cpu).or_insert(0) += 1);
    assert_eq!(counts, (8..16).map(|cpu| (cpu, 2)).collect());
    // There are fewer queues than cores: the other cores are for applications.
    let spread = QueuePlacement::of(
        &places,
        &[(&nic(Some(1), 6), DriverCapabilities::default())],
        pair(8, 9),
        None,
        false,
    );
    assert_eq!(
        (cpus(&spread), spread.applications.to_string()),
        (vec![8, 10, 11, 12, 13, 14], "9,15".into())
    );
}

#[test]
fn siblings_come_last_and_cpu_0_after_other_cores() {
    // CPUs 0 to 3 and their siblings 8 to 11 on node 0.
    let places = topology(2, 1, 4, 2);
    let spread = QueuePlacement::of(
        &places,
        &[(&nic(Some(0), 8), DriverCapabilities::default())],
        pair(1, 2),
        None,
        false,
    );
    assert_eq!(cpus(&spread), [1, 3, 0, 2, 9, 11, 8, 10]);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 8), ALL)], pair(1, 2), None, false);
    assert_eq!((cpus(&spread), spread.applications.to_string()), (vec![1, 3], "0,2,8,10".into()));
}

#[test]
fn an_unknown_node_is_that_of_the_pair_and_a_cpuset_narrows_applications_only() {
    let places = topology(2, 1, 4, 1);
    let allowed: CpuSet = "4-6".parse().unwrap();
    for node in [None, Some(7)] {
        let spread = QueuePlacement::of(&places, &[(&nic(node, 2), ALL)], pair(7, 4), Some(&allowed), false);
        assert_eq!((cpus(&spread), spread.applications.to_string()), (vec![7, 5], "4,6".into()));
    }
    // No CPU of the node is allowed: applications run on the CPU of the measured pair.
    let only: CpuSet = "1".parse().unwrap();
    let spread = QueuePlacement::of(&places, &[(&nic(Some(1), 2), ALL)], pair(4, 1), Some(&only), false);
    assert_eq!(spread.applications, only);
}

#[test]
fn two_nics_divide_the_cores_and_one_queue_stays_where_it_was_measured() {
    let places = topology(2, 1, 8, 1);
    let (one, other) = (nic(Some(0), 8), nic(Some(0), 8));
    let spread = QueuePlacement::of(&places, &[(&one, ALL), (&other, ALL)], pair(1, 2), None, false);
    assert_eq!(cpus(&spread), [1, 3, 4, 5]);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 1), ALL)], pair(1, 2), None, false);
    assert_eq!((cpus(&spread), spread.counts()), (vec![1], (1, 1)));
    assert_eq!(spread.applications.to_string(), "2");
}

#[test]
fn a_pair_on_one_core_leaves_all_cores_to_both() {
    let places = topology(1, 1, 4, 1);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 8), ALL)], pair(1, 1), None, false);
    assert_eq!((cpus(&spread), spread.applications.to_string()), (vec![1, 2, 3, 0], "0-3".into()));
}

#[test]
fn software_steering_uses_the_receive_queues_and_never_reduces_them() {
    let places = topology(1, 1, 4, 1);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 2), ALL)], pair(1, 2), None, true);
    let used: Vec<Target> = spread.nics[0].used.iter().map(|(target, _)| target.clone()).collect();
    assert_eq!(used, [Target::Rps { queue: 0 }, Target::Rps { queue: 1 }]);
}

/// The groups of a spread: interfaces, CPUs of queues, CPUs of applications.
fn groups(spread: &QueuePlacement) -> Vec<(String, String, String)> {
    let words = |group: &Group| {
        let names: Vec<&str> = group.interfaces.iter().map(Interface::name).collect();
        (names.join(" "), group.flows.to_string(), group.applications.to_string())
    };
    spread.groups.iter().map(words).collect()
}

fn named(name: &str, nic: Nic) -> Nic {
    Nic { name: name.parse().unwrap(), ..nic }
}

#[test]
fn each_nic_of_a_bond_has_cpus_of_its_own_node() {
    let places = topology(2, 1, 8, 1);
    let (one, other) = (named("eth0", nic(Some(0), 16)), named("eth1", nic(Some(1), 16)));
    let spread = QueuePlacement::of(&places, &[(&one, ALL), (&other, ALL)], pair(1, 2), None, false);
    let expected = [("eth0", "1,3-5", "0,2,6-7"), ("eth1", "8-11", "12-15")];
    let expected = expected.map(|(nic, flows, apps)| (nic.into(), flows.into(), apps.into()));
    assert_eq!(groups(&spread), expected);
    // A slave whose node is unknown is treated as attached to the pair's node.
    let unknown = named("eth1", nic(None, 16));
    let spread = QueuePlacement::of(&places, &[(&one, ALL), (&unknown, ALL)], pair(1, 2), None, false);
    assert_eq!(cpus(&spread), [1, 3, 4, 5]);
    assert_eq!(groups(&spread).len(), 1);
}

#[test]
fn queues_and_their_applications_share_a_cache_on_hosts_with_many() {
    // Four caches of four cores on each of two sockets.
    let places = topology(2, 4, 4, 1);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 3), ALL)], pair(5, 6), None, false);
    assert_eq!(cpus(&spread), [5, 4, 1]);
    let expected = [("eth0", "4-5", "6-7"), ("eth0", "1", "0,2-3")];
    assert_eq!(groups(&spread), expected.map(|(nic, flows, apps)| (nic.into(), flows.into(), apps.into())));
    // If the number of queues is fixed, every cache has the same number of CPUs left for applications.
    let spread = QueuePlacement::of(
        &places,
        &[(&nic(Some(0), 12), DriverCapabilities::default())],
        pair(5, 6),
        None,
        false,
    );
    for group in &spread.groups {
        assert_eq!((group.flows.len(), group.applications.len()), (3, 1), "{group:?}");
        let first = group.flows.iter().next().unwrap() / 4;
        assert!(group.flows.iter().chain(group.applications.iter()).all(|cpu| cpu / 4 == first), "{group:?}");
    }
}

#[test]
fn a_cache_in_which_no_application_may_run_has_no_queues() {
    let places = topology(1, 4, 4, 1);
    let allowed: CpuSet = "8-11".parse().unwrap();
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 16), ALL)], pair(8, 9), Some(&allowed), false);
    assert_eq!(groups(&spread), [("eth0".into(), "8,10".into(), "9,11".into())]);
}

/// With sub-NUMA clustering, the CPUs of both nodes of a socket share its cache.
#[test]
fn applications_stay_on_the_nics_node_where_a_cache_spans_two() {
    let mut places = topology(2, 1, 8, 1);
    places.iter_mut().for_each(|place| place.node = place.cpu / 4);
    let all: Vec<u32> = (0..16).collect();
    let found = crate::advice::candidates(&places, &nic(Some(1), 8), &crate::pairs::all_pairs(&all));
    // If the application's CPU could be on another node than the NIC's, a pair with CPU 1 of node 0 would be first.
    assert_eq!(found[0].pair, pair(4, 5));
    assert!(found[..12].iter().all(|of| of.is_near == Some(true) && of.is_application_near == Some(true)));
    let spread = QueuePlacement::of(&places, &[(&nic(Some(1), 8), ALL)], pair(4, 5), None, false);
    assert_eq!(groups(&spread), [("eth0".into(), "4,6".into(), "5,7".into())]);
}

/// Node 2 is closest to the NIC's node 0, although node 1 has the next number.
#[test]
fn the_closest_node_takes_the_place_of_one_without_cpus() {
    let places: Vec<CpuLocation> = topology(4, 1, 4, 1).into_iter().filter(|place| place.node > 0).collect();
    let distances = crate::numa::NodeDistances([(0, 10), (1, 32), (2, 16), (3, 32)].into());
    let nic = Nic { distances, ..nic(Some(0), 2) };
    let all: Vec<u32> = (4..16).collect();
    let found = crate::advice::candidates(&places, &nic, &crate::pairs::all_pairs(&all));
    assert_eq!((found[0].pair, found[0].is_near), (pair(8, 9), Some(false)));
    let spread = QueuePlacement::of(&places, &[(&nic, ALL)], pair(4, 5), None, false);
    assert_eq!(groups(&spread), [("eth0".into(), "8-9".into(), "10-11".into())]);
    // The node has CPUs, but none for applications.
    let places = topology(4, 1, 4, 1);
    let allowed: CpuSet = "4-15".parse().unwrap();
    let spread = QueuePlacement::of(&places, &[(&nic, ALL)], pair(1, 4), Some(&allowed), false);
    assert_eq!(groups(&spread), [("eth0".into(), "1-2".into(), "8-11".into())]);
}

/// Some hypervisors report a cache for each CPU.
#[test]
fn caches_of_one_core_count_as_one() {
    let places = topology(1, 8, 1, 1);
    let spread = QueuePlacement::of(&places, &[(&nic(Some(0), 8), ALL)], pair(1, 2), None, false);
    assert_eq!(groups(&spread), [("eth0".into(), "1,3-5".into(), "0,2,6-7".into())]);
}
