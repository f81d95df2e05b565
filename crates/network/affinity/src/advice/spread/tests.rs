//! Tests of where queues go on hosts with several queues, sockets and hardware threads.

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

const ALL: Abilities = Abilities { is_combined: Some(true), has_table: true };

fn pair(flow: u32, application: u32) -> Pair {
    Pair { flow, application }
}

fn cpus(spread: &Spread) -> Vec<u32> {
    spread.nics.iter().flat_map(|nic| nic.used.iter().map(|(_, cpu)| *cpu)).collect()
}

#[test]
fn sixteen_queues_become_one_for_each_of_half_of_the_cores_of_the_nics_node() {
    let places = topology(2, 1, 8, 1);
    let spread = Spread::of(&places, &[(&nic(Some(1), 16), ALL)], pair(8, 9), None, false);
    assert_eq!(cpus(&spread), [8, 10, 11, 12]);
    assert_eq!(spread.applications.to_string(), "9,13-15");
    assert_eq!(spread.counts(), (4, 16));
}

#[test]
fn queues_that_cannot_be_reduced_share_the_cpus_of_the_node_evenly() {
    let places = topology(2, 1, 8, 1);
    let spread = Spread::of(&places, &[(&nic(Some(1), 16), Abilities::default())], pair(8, 9), None, false);
    let mut counts = BTreeMap::new();
    cpus(&spread).into_iter().for_each(|cpu| *counts.entry(cpu).or_insert(0) += 1);
    assert_eq!(counts, (8..16).map(|cpu| (cpu, 2)).collect());
    // Fewer than the cores: the rest is for applications.
    let spread = Spread::of(&places, &[(&nic(Some(1), 6), Abilities::default())], pair(8, 9), None, false);
    assert_eq!(
        (cpus(&spread), spread.applications.to_string()),
        (vec![8, 10, 11, 12, 13, 14], "9,15".into())
    );
}

#[test]
fn siblings_come_last_and_cpu_0_after_other_cores() {
    // CPUs 0 to 3 and their siblings 8 to 11 on node 0.
    let places = topology(2, 1, 4, 2);
    let spread = Spread::of(&places, &[(&nic(Some(0), 8), Abilities::default())], pair(1, 2), None, false);
    assert_eq!(cpus(&spread), [1, 3, 0, 2, 9, 11, 8, 10]);
    let spread = Spread::of(&places, &[(&nic(Some(0), 8), ALL)], pair(1, 2), None, false);
    assert_eq!((cpus(&spread), spread.applications.to_string()), (vec![1, 3], "0,2,8,10".into()));
}

#[test]
fn an_unknown_node_is_that_of_the_pair_and_a_cpuset_narrows_applications_only() {
    let places = topology(2, 1, 4, 1);
    let allowed: CpuSet = "4-6".parse().unwrap();
    for node in [None, Some(7)] {
        let spread = Spread::of(&places, &[(&nic(node, 2), ALL)], pair(7, 4), Some(&allowed), false);
        assert_eq!((cpus(&spread), spread.applications.to_string()), (vec![7, 5], "4,6".into()));
    }
    // No CPU of the node is allowed: the pair's own.
    let only: CpuSet = "1".parse().unwrap();
    let spread = Spread::of(&places, &[(&nic(Some(1), 2), ALL)], pair(4, 1), Some(&only), false);
    assert_eq!(spread.applications, only);
}

#[test]
fn two_nics_divide_the_cores_and_one_queue_stays_where_it_was_measured() {
    let places = topology(2, 1, 8, 1);
    let (one, other) = (nic(Some(0), 8), nic(Some(0), 8));
    let spread = Spread::of(&places, &[(&one, ALL), (&other, ALL)], pair(1, 2), None, false);
    assert_eq!(cpus(&spread), [1, 3, 4, 5]);
    let spread = Spread::of(&places, &[(&nic(Some(0), 1), ALL)], pair(1, 2), None, false);
    assert_eq!((cpus(&spread), spread.counts()), (vec![1], (1, 1)));
    assert_eq!(spread.applications.to_string(), "2");
}

#[test]
fn a_pair_on_one_core_leaves_all_cores_to_both() {
    let places = topology(1, 1, 4, 1);
    let spread = Spread::of(&places, &[(&nic(Some(0), 8), ALL)], pair(1, 1), None, false);
    assert_eq!((cpus(&spread), spread.applications.to_string()), (vec![1, 2, 3, 0], "0-3".into()));
}

#[test]
fn software_steering_uses_the_receive_queues_and_never_reduces_them() {
    let places = topology(1, 1, 4, 1);
    let spread = Spread::of(&places, &[(&nic(Some(0), 2), ALL)], pair(1, 2), None, true);
    let used: Vec<Target> = spread.nics[0].used.iter().map(|(target, _)| target.clone()).collect();
    assert_eq!(used, [Target::Rps { queue: 0 }, Target::Rps { queue: 1 }]);
}
