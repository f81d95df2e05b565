//! Reads any text as a load's output, as varied values, and as the kernel's files of a host. Accepted texts must have
//! plausible values; no parser may panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_affinity::counters::Reading;
use longma_affinity::fake::{FakeHost, topology};
use longma_affinity::load::{Iperf, Load, MAX_GBPS, MIN_GBPS};
use longma_affinity::preflight;
use longma_affinity::vary::Variation;
use longma_affinity::watch::Watch;

/// Files that hold one part of the text each, separated by zeros.
const FILES: [&str; 14] = [
    "proc/interrupts",
    "proc/stat",
    "proc/softirqs",
    "proc/net/softnet_stat",
    "proc/net/tcp",
    "proc/net/snmp",
    "proc/7/task/7/stat",
    "proc/7/task/7/syscall",
    "proc/7/cgroup",
    "proc/irq/50/smp_affinity_list",
    "proc/loadavg",
    "sys/class/net/eth0/queues/rx-0/rps_cpus",
    "sys/class/net/eth0/statistics/rx_bytes",
    "sys/devices/system/node/node0/distance",
];

fn rates(text: &str) {
    let iperf = |udp| Iperf { server: "a".into(), port: 1, zero_copy: false, reverse: true, udp, flows: 1 };
    for load in [Load::Iperf(iperf(false)), Load::Iperf(iperf(true)), Load::Command(vec![])] {
        if let Ok(rate) = load.rate(text) {
            assert!((MIN_GBPS..=MAX_GBPS).contains(&rate.gbps), "{rate:?}");
        }
    }
}

fn variations(text: &str) {
    let Ok(variation) = text.parse::<Variation>() else { return };
    for value in &variation.values {
        assert!(variation.parameter.takes(value), "{value}");
        let same = format!("{}={}", variation.parameter, variation.parameter.shown(value));
        assert_eq!(same.parse::<Variation>().expect("it was printed").values, std::slice::from_ref(value));
    }
}

fn files(text: &str) {
    let mut host = FakeHost::with(&[
        ("sys/class/net/eth0/operstate", "up"),
        ("sys/class/net/eth0/device/numa_node", "0"),
        ("proc/7/fd/3", "-> socket:[100]"),
    ]);
    host.cpus = topology(1, 1, 2, 1);
    host.addresses = vec!["192.0.2.7".parse().expect("an address")];
    host.put_thread(7, "0-1".parse().expect("a list"));
    let mut watch = Watch::new(vec!["eth0".parse().expect("a name")]);
    watch.observe(&host);
    for (path, part) in FILES.iter().zip(text.split('\0')) {
        host.put(path, part);
    }
    let before = Reading::now(&host);
    let observation = watch.observe(&host);
    assert!(observation.flows.iter().all(|flow| flow.thread.is_none_or(|at| at < observation.threads.len())));
    preflight::check(&host, None, Some((&before, &Reading::now(&host))));
}

fuzz_target!(|input: (u8, &str)| {
    match input.0 % 3 {
        0 => rates(input.1),
        1 => variations(input.1),
        _ => files(input.1),
    }
});
