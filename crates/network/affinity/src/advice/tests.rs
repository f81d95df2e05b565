//! Tests of the advice on recorded and simulated hosts.

use super::*;
use crate::analysis::median;
use crate::pairs::{all_pairs, of_machine, pairs_of};
use longma_topology::Machine;

pub(super) fn nic(node: Option<u32>) -> Nic {
    let name = "eth0".parse().unwrap();
    Nic {
        name,
        kind: Default::default(),
        lower: vec![],
        distances: Default::default(),
        driver: None,
        device: None,
        node,
        speed_mbps: None,
        mtu: None,
        state: "up".into(),
        rx_queues: vec![0],
        tx_queues: vec![],
        irqs: vec![],
    }
}

#[test]
fn different_cores_of_the_nics_socket_come_first_and_the_first_cpu_last_among_them() {
    let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
    let cpus: Vec<u32> = (0..12).collect();
    let all = candidates(&places, &nic(Some(1)), &all_pairs(&cpus));
    assert_eq!(all.len(), 144);
    assert_eq!((all[0].pair, all[0].class), (Pair { flow: 6, application: 7 }, Class::SharedCache));
    assert!(
        all[..30].iter().all(|candidate| candidate.class == Class::SharedCache && candidate.pair.flow >= 6)
    );
    let all = candidates(&places, &nic(Some(0)), &all_pairs(&cpus));
    assert_eq!(all[0].pair, Pair { flow: 1, application: 2 });
    assert!(all[20..30].iter().all(|candidate| candidate.pair.flow == 0 || candidate.pair.application == 0));
}

/// A measurement of two pairs of the published host: two cores of a socket, and one CPU for both.
fn two_pairs(shared: &[f64], same: &[f64]) -> Analysis {
    let result = |pair, class, gbps: &[f64]| PairResult {
        pair,
        class,
        gbps: gbps.into(),
        median_gbps: median(gbps).unwrap(),
        costs: Default::default(),
        core_ms: Vec::new(),
        bottleneck: Default::default(),
        loss: 0.0,
        weighed_gbps: gbps.into(),
    };
    let shared = result(Pair { flow: 1, application: 2 }, Class::SharedCache, shared);
    let same = result(Pair { flow: 1, application: 1 }, Class::SameCpu, same);
    Analysis { pairs: vec![same, shared], classes: vec![], failed: 0, remarks: vec![] }
}

#[test]
fn topology_decides_only_where_the_measurement_does_not() {
    let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
    let ranking = candidates(&places, &nic(Some(0)), &all_pairs(&[1, 2]));
    let choice =
        |shared: &[f64], same: &[f64]| evaluate(&two_pairs(shared, same), &ranking).unwrap().choice.class;
    assert_eq!(choice(&[30.0, 31.0, 29.0], &[30.2, 31.2, 29.2]), Class::SharedCache);
    // A difference that is not significant may still be too large to ignore.
    assert_eq!(choice(&[30.0, 31.0, 29.0], &[30.5, 31.5, 29.5]), Class::SameCpu);
    assert_eq!(choice(&[30.0, 31.0, 29.0], &[40.0, 41.0, 39.0]), Class::SameCpu);
    assert_eq!(choice(&[30.0], &[30.1]), Class::SameCpu);
}

#[test]
fn a_cpuset_narrows_where_applications_may_run_and_not_where_packets_go() {
    let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
    let all: Vec<u32> = (0..12).collect();
    let ranking = candidates(&places, &nic(Some(0)), &pairs_of(&all, &[0]));
    assert_eq!((ranking.len(), ranking[0].class), (12, Class::SharedCache));
    assert!(ranking.iter().all(|candidate| candidate.pair.application == 0));
}

/// A slightly higher rate does not outweigh the loss of most packets.
#[test]
fn losses_weigh_against_a_pair() {
    let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
    let ranking = candidates(&places, &nic(Some(0)), &all_pairs(&[1, 2]));
    let mut analysis = two_pairs(&[9.0, 9.1, 8.9], &[10.0, 10.1, 9.9]);
    assert_eq!(evaluate(&analysis, &ranking).unwrap().choice.class, Class::SameCpu);
    let same = &mut analysis.pairs[0];
    (same.loss, same.weighed_gbps) = (0.63, same.gbps.iter().map(|gbps| gbps * 0.37).collect());
    let found = evaluate(&analysis, &ranking).unwrap();
    assert_eq!((found.choice.class, found.best.class), (Class::SharedCache, Class::SharedCache));
}
