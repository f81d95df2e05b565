//! Tests of the analysis on synthetic sweeps of the published host.

use super::*;
use crate::counters::{CpuShares, HardwareCounts, KernelCounts};
use crate::interface::Nic;
use crate::load::{Load, Rate};
use crate::pairs::{all_pairs, classify, of_machine};
use crate::steering::Steering;
use crate::sweep::Header;
use longma_topology::Machine;

/// A sweep of all 144 pairs, three times, with rates and CPU shares by class.
fn results(rate: impl Fn(Class) -> f64, shares: impl Fn(Class) -> (f64, f64)) -> Results {
    let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
    let name = || "eth0".parse().unwrap();
    let nic = Nic {
        name: name(),
        kind: Default::default(),
        lower: vec![],
        distances: Default::default(),
        driver: None,
        device: None,
        node: Some(0),
        speed_mbps: Some(40_000),
        mtu: Some(9000),
        state: "up".into(),
        rx_queues: vec![0],
        tx_queues: vec![0],
        irqs: vec![],
    };
    let header = Header {
        affinity_sweep: Header::FORMAT,
        kernel: String::new(),
        processor: String::new(),
        places,
        steering: Steering::of(&nic).unwrap(),
        nic,
        load: Load::Command(vec![]),
        seconds: 1,
        sender: None,
    };
    let mut samples = Vec::new();
    for repeat in 0..3u32 {
        for pair in all_pairs(&(0..12).collect::<Vec<_>>()) {
            let class = classify(&header.places, pair).unwrap();
            let gbps = rate(class) + f64::from(repeat) * 0.1 + f64::from(pair.flow) * 0.01;
            let (flow, application) = shares(class);
            let spent = |softirq, system| CpuShares {
                softirq,
                system,
                idle: 1.0 - softirq - system,
                ..CpuShares::default()
            };
            let mut cpus = BTreeMap::from([(pair.flow, spent(flow, 0.0))]);
            cpus.insert(
                pair.application,
                if pair.flow == pair.application {
                    spent(flow, application)
                } else {
                    spent(0.0, application)
                },
            );
            let kernel = KernelCounts {
                seconds: 1.0,
                interrupts: cpus.keys().map(|cpu| (*cpu, 1000)).collect(),
                cpus,
                context_switches: 5000,
                ..KernelCounts::default()
            };
            let counted = HardwareCounts {
                instructions: Some(2e9),
                first_misses: Some(5e7),
                second_misses: Some(3e7),
                cache_references: Some(1e7),
                ..HardwareCounts::default()
            };
            let hardware = [pair.flow, pair.application].map(|cpu| (cpu, counted)).into_iter().collect();
            let rate = Some(Rate { gbps, ..Rate::default() });
            samples.push(Sample {
                variant: Default::default(),
                pair,
                class,
                repeat,
                at: 0,
                rate,
                failure: None,
                kernel,
                hardware,
                migrations: None,
                refused: false,
            });
        }
    }
    Results { header, samples, is_cut: false }
}

fn of(analysis: &Analysis, class: Class) -> &ClassResult {
    analysis.classes.iter().find(|found| found.class == class).unwrap()
}

#[test]
fn classes_have_means_over_their_pairs_and_their_own_limits() {
    let rate = |class| match class {
        Class::SharedCache => 30.0,
        Class::OtherSocket => 20.0,
        _ => 10.0,
    };
    let shares = |class| match class {
        Class::SameCpu => (0.5, 0.48),
        Class::OtherSocket => (0.5, 0.99),
        _ => (0.97, 0.6),
    };
    let analysis = Analysis::of(&results(rate, shares));
    assert_eq!((analysis.pairs.len(), analysis.classes.len(), analysis.failed), (144, 3, 0));
    let shared = of(&analysis, Class::SharedCache);
    assert_eq!((shared.pairs, shared.runs, shared.over_pairs), (60, 180, true));
    assert!((shared.gbps.mean - 30.155).abs() < 1e-9 && shared.gbps.half.unwrap() < 0.02);
    assert_eq!(shared.bottleneck.limit, Limit::FlowCpu);
    assert_eq!(of(&analysis, Class::OtherSocket).bottleneck.limit, Limit::ApplicationCpu);
    let same = of(&analysis, Class::SameCpu);
    assert_eq!(same.bottleneck.limit, Limit::SharedCpu);
    assert!(same.bottleneck.evidence.contains("98 % busy"), "{}", same.bottleneck.evidence);
    assert_eq!(analysis.best().unwrap().class, Class::SharedCache);
}

/// Pairs 0,1 and 1,0 have runs 10, 10, 1; pair 0,0 has 5, 5, 8; pair 1,1 has 6, 6, 9.
#[test]
fn a_class_has_the_mean_of_its_pairs_medians() {
    let mut results = results(|_| 1.0, |_| (0.1, 0.1));
    results.samples.retain(|sample| sample.pair.flow < 2 && sample.pair.application < 2);
    for sample in &mut results.samples {
        let runs = match (sample.pair.flow, sample.pair.application) {
            (0, 0) => [5.0, 5.0, 8.0],
            (1, 1) => [6.0, 6.0, 9.0],
            _ => [10.0, 10.0, 1.0],
        };
        sample.rate = Some(Rate { gbps: runs[sample.repeat as usize], ..Rate::default() });
    }
    let analysis = Analysis::of(&results);
    let mean = |class| of(&analysis, class).gbps.mean;
    assert_eq!((mean(Class::SharedCache), mean(Class::SameCpu)), (10.0, 5.5));
}

#[test]
fn costs_are_sums_over_the_pairs_cpus_per_received_gbit() {
    let analysis = Analysis::of(&results(|_| 10.0, |_| (0.4, 0.2)));
    let at = |flow, application| {
        analysis.pairs.iter().find(|found| found.pair == Pair { flow, application }).unwrap()
    };
    let two = at(0, 1).costs;
    assert!((two.core_ms.unwrap() - 600.0 / 10.1).abs() < 1e-9);
    assert!((two.softirq_ms.unwrap() - 400.0 / 10.1).abs() < 1e-9);
    assert!((two.instructions_m.unwrap() - 4000.0 / 10.1).abs() < 1e-9);
    assert!((two.first_misses_k.unwrap() - 100_000.0 / 10.1).abs() < 1e-9);
    assert!((two.second_misses_k.unwrap() - 60_000.0 / 10.1).abs() < 1e-9);
    assert!((two.cache_references_k.unwrap() - 20_000.0 / 10.1).abs() < 1e-9);
    assert!((at(0, 0).costs.instructions_m.unwrap() - 2000.0 / 10.1).abs() < 1e-9);
    assert_eq!(two.cycles_m, None);
    let names: Vec<&str> = analysis.counted_costs().iter().map(|cost| cost.0).collect();
    assert_eq!(names[..5], ["core time", "softirq time", "context switches", "interrupts", "instructions"]);
    assert_eq!(names[5..], ["L1D load misses", "L2 load misses", "last-cache references"]);
}

#[test]
fn a_limit_that_no_counter_shows_is_not_named_and_a_full_link_is() {
    let quiet = Analysis::of(&results(|_| 5.0, |_| (0.3, 0.3)));
    assert!(quiet.classes.iter().all(|class| class.bottleneck.limit == Limit::Unknown));
    let mut full = results(|_| 38.0, |_| (0.99, 0.3));
    full.samples.iter_mut().for_each(|sample| sample.kernel.link_share = Some(0.99));
    let full = Analysis::of(&full);
    assert!(full.classes.iter().all(|class| class.bottleneck.limit == Limit::Link));
    assert!(full.pairs.iter().all(|pair| pair.bottleneck.limit == Limit::Link));
}

/// The link is like one between veths, which report 10 Gb/s.
#[test]
fn a_nominal_rate_without_a_counted_link_limits_nothing() {
    let mut results = results(|_| 38.0, |_| (0.5, 0.3));
    results.header.nic.speed_mbps = Some(10_000);
    let analysis = Analysis::of(&results);
    assert!(analysis.classes.iter().all(|class| class.bottleneck.limit == Limit::Unknown));
    assert_eq!(Limit::Unknown.words(), "not known");
}

#[test]
fn runs_with_different_limits_have_none_in_common() {
    let mut results = results(|_| 38.0, |_| (0.5, 0.3));
    results.samples.retain(|sample| sample.pair == Pair { flow: 0, application: 1 });
    // The mean of these shares, 97.3 %, would count as full.
    for (sample, share) in results.samples.iter_mut().zip([0.96, 1.0, 0.96]) {
        sample.kernel.link_share = Some(share);
    }
    let of_pair = |results: &Results| Analysis::of(results).pairs[0].bottleneck.clone();
    let found = of_pair(&results);
    assert_eq!(found.limit, Limit::Unknown, "{found:?}");
    assert!(found.evidence.ends_with("in 2 of 3 runs"), "{found:?}");
    results.samples[0].kernel.cpus.get_mut(&1).unwrap().system = 0.95;
    let found = of_pair(&results);
    assert_eq!(found.limit, Limit::Unknown, "{found:?}");
    let each = ["the application's CPU in 1", "the link in 1", "not known in 1"];
    assert!(each.iter().all(|words| found.evidence.contains(words)), "{found:?}");
}

#[test]
fn a_polling_application_is_not_the_limit_because_its_cpu_is_busy() {
    let mut results = results(|_| 5.0, |_| (0.3, 0.69));
    results.samples.iter_mut().for_each(|sample| {
        sample.kernel.cpus.get_mut(&sample.pair.application).unwrap().user = 0.3;
        sample.variant = [(crate::vary::SweepParameter::BusyPoll, 50.into())].into();
    });
    let limits = |results: &Results| {
        let analysis = Analysis::of(results);
        analysis.classes.into_iter().map(|class| class.bottleneck).collect::<Vec<_>>()
    };
    let polling = limits(&results);
    assert!(polling.iter().all(|found| found.limit == Limit::Unknown), "{polling:?}");
    assert!(polling[0].evidence.contains("poll while they wait"), "{polling:?}");
    // The result is the same if a setting of the host enables busy polling.
    for sample in &mut results.samples {
        (sample.variant, sample.kernel.is_busy_polling) = (Default::default(), true);
    }
    assert!(limits(&results).iter().all(|found| found.limit == Limit::Unknown));
    results.samples.iter_mut().for_each(|sample| sample.kernel.is_busy_polling = false);
    assert!(limits(&results).iter().all(|found| found.limit != Limit::Unknown));
}

#[test]
fn full_cpus_on_a_crowded_host_are_attributed_to_other_load() {
    let mut results = results(|_| 5.0, |_| (0.6, 0.4));
    results.samples.iter_mut().for_each(|sample| sample.kernel.running_before = 20);
    let analysis = Analysis::of(&results);
    assert_eq!(of(&analysis, Class::SameCpu).bottleneck.limit, Limit::OtherLoad);
    assert!(analysis.remarks.iter().any(|remark| remark.contains("other load")), "{:?}", analysis.remarks);
}

#[test]
fn stolen_time_and_failed_runs_are_reported() {
    let mut results = results(|_| 5.0, |_| (0.3, 0.3));
    results.samples[0].rate = None;
    results.samples[1].kernel.cpus.values_mut().for_each(|shares| shares.steal = 0.05);
    let analysis = Analysis::of(&results);
    assert_eq!(analysis.failed, 1);
    assert!(
        analysis
            .remarks
            .iter()
            .any(|remark| remark.starts_with("1 of 431 runs had more than 2 % steal time")),
        "{:?}",
        analysis.remarks
    );
    assert!(analysis.remarks.iter().any(|remark| remark == "1 run failed and is excluded"));
    assert!(analysis.pairs.iter().all(|pair| pair.costs.core_ms.is_some()));
}

#[test]
fn no_results_are_an_empty_analysis() {
    let mut results = results(|_| 1.0, |_| (0.1, 0.1));
    results.samples.clear();
    let analysis = Analysis::of(&results);
    assert!(analysis.pairs.is_empty() && analysis.classes.is_empty() && analysis.best().is_none());
}

#[test]
fn losses_stand_beside_the_rate_and_lower_the_net_rate() {
    let mut results = results(|_| 8.0, |_| (0.5, 0.5));
    results.header.load = Load::Iperf(crate::load::Iperf {
        server: "a".into(),
        port: 1,
        zero_copy: false,
        reverse: true,
        udp: true,
        flows: 1,
    });
    for sample in &mut results.samples {
        let is_lossy = sample.class == Class::SameCpu;
        sample.rate.as_mut().unwrap().lost = Some(if is_lossy { 0.63 } else { 0.0 });
        sample.kernel.backlog_drops = BTreeMap::from([(sample.pair.flow, if is_lossy { 80_000 } else { 0 })]);
        sample.kernel.squeezes = BTreeMap::from([(0, 160), (1, 0)]);
        sample.kernel.nic_drops = Some(0);
    }
    let analysis = Analysis::of(&results);
    let (same, shared) = (of(&analysis, Class::SameCpu), of(&analysis, Class::SharedCache));
    assert_eq!((same.loss, shared.loss), (0.63, 0.0));
    assert_eq!((same.costs.lost_percent, shared.costs.lost_percent), (Some(63.0), Some(0.0)));
    assert!(same.costs.backlog_drops.unwrap() > 9000.0 && shared.costs.backlog_drops == Some(0.0));
    assert!(shared.costs.squeezes.unwrap() > 15.0 && shared.costs.nic_drops == Some(0.0));
    let pair = analysis.pairs.iter().find(|pair| pair.class == Class::SameCpu).unwrap();
    assert!((pair.weighed_gbps[0] - 0.37 * pair.gbps[0]).abs() < 1e-9, "{pair:?}");
    assert!(analysis.best().unwrap().class != Class::SameCpu);
}

/// With segments of 9000 bytes, a Gbit has 13951 of them.
#[test]
fn retransmits_and_drops_are_fractions_of_the_packets() {
    let mut results = results(|_| 10.0, |_| (0.5, 0.5));
    for sample in &mut results.samples {
        sample.rate = Some(Rate { gbps: 10.0, retransmits: Some(1395), ..Rate::default() });
    }
    let loss = |results: &Results| Analysis::of(results).pairs[0].loss;
    assert!((loss(&results) - 0.01).abs() < 1e-4, "{}", loss(&results));
    assert!((Analysis::of(&results).pairs[0].costs.retransmits.unwrap() - 139.5).abs() < 1e-9);
    // More packets were dropped than retransmitted.
    results.samples.iter_mut().for_each(|sample| sample.kernel.nic_drops = Some(139_508));
    assert!((loss(&results) - 0.5).abs() < 1e-3, "{}", loss(&results));
}

#[test]
fn runs_whose_flow_ran_elsewhere_are_excluded_and_named() {
    let mut results = results(|_| 10.0, |_| (0.5, 0.5));
    for sample in &mut results.samples {
        // Whatever the pair, everything was processed on CPU 2.
        sample.kernel.packets = BTreeMap::from([(0, 5), (2, 90_000)]);
    }
    let analysis = Analysis::of(&results);
    assert!(!analysis.pairs.is_empty() && analysis.pairs.iter().all(|pair| pair.pair.flow == 2));
    assert_eq!(analysis.failed, 0);
    let remark = analysis.remarks.iter().find(|remark| remark.contains("processed on the wrong")).unwrap();
    assert!(
        remark.contains("396 runs are excluded because their flows were processed on the wrong CPUs")
            && remark.contains("(0,1)"),
        "{remark}"
    );
    assert!(remark.contains("CPU 2 had 100 % of the packets"), "{remark}");
    assert!(!remark.contains("(2,1)"), "{remark}");
}

/// If the load's CPU time is spent on something other than the network, a busy CPU does not show that the pair is slow.
#[test]
fn a_busy_cpu_is_not_blamed_if_the_load_hardly_uses_the_network() {
    let limit = |rate: f64, user: f64| {
        let mut results = results(|_| rate, |_| (0.05, 0.97));
        for sample in &mut results.samples {
            sample.rate = Some(Rate { gbps: rate, ..Rate::default() });
            let shares = sample.kernel.cpus.get_mut(&sample.pair.application).unwrap();
            (shares.user, shares.system) = (user, shares.system - user);
        }
        of(&Analysis::of(&results), Class::SharedCache).bottleneck.clone()
    };
    assert_eq!(limit(10.0, 0.0).limit, Limit::ApplicationCpu);
    let computes = limit(1.0, 0.95);
    assert_eq!(computes.limit, Limit::Program, "{computes:?}");
    // 0.1 Mb/s, and the kernel is busy.
    let idle = limit(1e-4, 0.0);
    assert_eq!(idle.limit, Limit::Unknown);
    assert!(idle.evidence.contains("hardly uses the network, 0.1 Mb/s"), "{idle:?}");
    // Small packets at a low rate are work for the network.
    let mut small = results(|_| 1e-3, |_| (0.05, 0.97));
    for sample in &mut small.samples {
        sample.rate = Some(Rate { gbps: 1e-3, ..Rate::default() });
        sample.kernel.packets = BTreeMap::from([(sample.pair.flow, 200_000)]);
    }
    assert_eq!(of(&Analysis::of(&small), Class::SharedCache).bottleneck.limit, Limit::ApplicationCpu);
}
