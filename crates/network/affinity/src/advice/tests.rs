//! Tests of the advice on recorded and simulated hosts.

use super::*;
use crate::analysis::median;
use crate::pairs::{all_pairs, of_machine, pairs_of};
use longma_topology::Machine;

pub(super) fn nic(node: Option<u32>) -> Nic {
    let name = "eth0".parse().unwrap();
    Nic {
        name,
        driver: None,
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
        |shared: &[f64], same: &[f64]| measured(&two_pairs(shared, same), &ranking).unwrap().choice.class;
    assert_eq!(choice(&[30.0, 31.0, 29.0], &[30.2, 31.2, 29.2]), Class::SharedCache);
    // A difference that is not significant may still be too large to ignore.
    assert_eq!(choice(&[30.0, 31.0, 29.0], &[30.5, 31.5, 29.5]), Class::SameCpu);
    assert_eq!(choice(&[30.0, 31.0, 29.0], &[40.0, 41.0, 39.0]), Class::SameCpu);
    assert_eq!(choice(&[30.0], &[30.1]), Class::SameCpu);
}

#[test]
fn commands_write_what_the_sweep_writes() {
    let steering =
        Steering::Interrupts { interface: "eth0".parse().unwrap(), irqs: vec![38, 40], queues: vec![0] };
    let commands = commands(&steering, Pair { flow: 33, application: 2 });
    assert_eq!(commands.now[0], "echo 33 > /proc/irq/38/smp_affinity_list");
    assert!(commands.now.contains(&"echo 0 > /sys/class/net/eth0/queues/rx-0/rps_cpus".into()));
    assert_eq!(commands.systemd, "[Service]\nCPUAffinity=2\n");
    assert!(commands.udev.contains("NAME==\"eth0\"") && commands.udev.contains("echo 33 > /proc/irq/40/"));
    assert_eq!(commands.keep, ["exclude them from irqbalance: IRQBALANCE_ARGS=\"--banirq=38 --banirq=40\""]);
}

/// The kernel allows every character in a name except `/`, `:` and white space. sh(1) must parse the command back to
/// the intended path.
#[test]
fn commands_for_an_interface_with_any_name_write_to_its_files_and_do_nothing_else() {
    for name in ["a;id", "$(id)", "x'y", "a\"b", "*", "`id`", "a&b", "eth0.100"] {
        let steering = Steering::Rps { interface: name.parse().unwrap(), queues: vec![0] };
        let commands = commands(&steering, Pair { flow: 0, application: 1 });
        let path = commands.now[0].strip_prefix("echo 1 > ").unwrap();
        let script = format!("printf %s {path}");
        let read = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(
            String::from_utf8(read.stdout).unwrap(),
            format!("/sys/class/net/{name}/queues/rx-0/rps_cpus")
        );
        assert_eq!(commands.udev.starts_with("# no rule"), name != "eth0.100", "{}", commands.udev);
        assert_eq!(commands.udev.lines().count(), 1);
    }
}

#[test]
fn a_cpuset_narrows_where_applications_may_run_and_not_where_packets_go() {
    let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
    let all: Vec<u32> = (0..12).collect();
    let ranking = candidates(&places, &nic(Some(0)), &pairs_of(&all, &[0]));
    assert_eq!((ranking.len(), ranking[0].class), (12, Class::SharedCache));
    assert!(ranking.iter().all(|candidate| candidate.pair.application == 0));
}
