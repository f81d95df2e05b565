//! Tests of the tuner on a simulated host: the objects that it moves, leaves alone and restores.

use super::*;
use crate::fake::FakeHost;
use crate::host::Host;
use crate::watch::Watch;
use crate::watch::tests::{host, socket, stat, watch};

const IRQ: &str = "proc/irq/50/smp_affinity_list";

/// A tuner on a simulated host.
struct SimulatedTuner<'a> {
    host: &'a FakeHost,
    watch: Watch,
    tuner: Tuner,
    bytes: u64,
    second: u64,
}

impl<'a> SimulatedTuner<'a> {
    fn new(host: &'a FakeHost, exclusions: Exclusions) -> Self {
        Self { host, watch: watch(), tuner: Tuner::new(exclusions), bytes: 0, second: 0 }
    }

    /// Makes `count` observations, one second apart, in which the flow carries bytes.
    fn observe(&mut self, count: usize, mut journal: Option<&mut Journal<'_>>) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for _ in 0..count {
            self.bytes += 1 << 40;
            self.second += 1;
            self.host.put_sockets(vec![socket(1, 100, Some(self.bytes))]);
            let observation = self.watch.observe(self.host);
            decisions.extend(
                self.tuner
                    .step(&observation, journal.as_deref_mut(), Duration::from_secs(self.second))
                    .unwrap(),
            );
        }
        decisions
    }
}

fn journal<'a>(host: &'a FakeHost, folder: &tempfile::TempDir) -> Journal<'a> {
    Journal::begin(&folder.path().join("journal"), host).unwrap()
}

fn acts(decisions: &[Decision], act: DecisionKind) -> Vec<&str> {
    decisions
        .iter()
        .filter(|decision| decision.act == act)
        .map(|decision| decision.subject.as_str())
        .collect()
}

#[test]
fn a_flow_and_its_reader_move_to_two_cores_of_the_nics_socket_and_settings_are_restored() {
    let (host, folder) = (host(), tempfile::tempdir().unwrap());
    let mut journal = journal(&host, &folder);
    let mut work = SimulatedTuner::new(&host, Exclusions::default());
    let decisions = work.observe(4, Some(&mut journal));
    let moved = acts(&decisions, DecisionKind::Moved);
    assert!(!moved.is_empty(), "{decisions:?}");
    let (flow, reader) = (work.watch.observe(&host).queues[0].cpu.unwrap(), host.thread_cpus(7).unwrap());
    assert!(flow < 2 && reader.iter().all(|cpu| cpu < 2 && cpu != flow), "{flow} {reader}");
    assert!(decisions.iter().any(|decision| decision.why.contains("one CPU for both")), "{decisions:?}");
    // Nothing more is changed, however long the tuner runs.
    host.put("proc/7/task/7/stat", &stat("reader", 50, reader.iter().next().unwrap()));
    let more = work.observe(30, Some(&mut journal));
    assert!(more.is_empty(), "{more:?}");
    assert!(journal.restore().unwrap().is_whole());
    assert_eq!(
        (host.read(IRQ).unwrap(), host.thread_cpus(7).unwrap().to_string()),
        ("0-3".into(), "0-3".into())
    );
}

#[test]
fn a_dry_run_reports_each_change_once_and_makes_none() {
    let host = host();
    let before = host.all();
    let mut work = SimulatedTuner::new(&host, Exclusions::default());
    let decisions = work.observe(10, None);
    let would = acts(&decisions, DecisionKind::WouldMove);
    assert!(!would.is_empty() && would.len() <= 2, "{decisions:?}");
    assert_eq!((host.all(), host.thread_cpus(7).unwrap().to_string()), (before, "0-3".into()));
}

#[test]
fn pinned_or_excluded_objects_are_unchanged() {
    let pinned = |cpus: &str, irq: &str, exclusions: Exclusions| {
        let (host, folder) = (host(), tempfile::tempdir().unwrap());
        host.put_thread(7, cpus.parse().unwrap());
        host.put(IRQ, irq);
        host.put("proc/7/exe", "-> /usr/bin/a-program-of-many-letters");
        let mut journal = journal(&host, &folder);
        let decisions = SimulatedTuner::new(&host, exclusions).observe(6, Some(&mut journal));
        (host.thread_cpus(7).unwrap().to_string(), host.read(IRQ).unwrap(), decisions)
    };
    // Both were pinned by another program.
    let (reader, irq, decisions) = pinned("0", "0", Exclusions::default());
    assert_eq!((reader.as_str(), irq.as_str(), acts(&decisions, DecisionKind::Moved).len()), ("0", "0", 0));
    assert_eq!(acts(&decisions, DecisionKind::LeftAlone).len(), 2, "{decisions:?}");
    // A pinned reader keeps its CPU, and its flow moves close to it.
    let (reader, irq, _) = pinned("0", "0-3", Exclusions::default());
    assert_eq!((reader.as_str(), irq.as_str()), ("0", "1"));
    let named = |name: &str| Exclusions {
        processes: BTreeSet::from([name.into()]),
        irqs: BTreeSet::from([50]),
        ..Default::default()
    };
    for name in ["reader", "7", "a-program-of-many-letters"] {
        let (reader, irq, decisions) = pinned("0-3", "0-3", named(name));
        assert_eq!(
            (reader.as_str(), irq.as_str(), acts(&decisions, DecisionKind::Moved).len()),
            ("0-3", "0-3", 0)
        );
    }
    let port = Exclusions { ports: BTreeSet::from([5201]), ..Default::default() };
    assert_eq!(acts(&pinned("0-3", "0-3", port).2, DecisionKind::Moved).len(), 0);
    let only = Exclusions { cpus: Some("2-3".parse().unwrap()), ..Default::default() };
    let (reader, irq, _) = pinned("0-3", "0-3", only);
    let all: CpuSet = format!("{reader},{irq}").parse().unwrap();
    assert!(all.iter().all(|cpu| cpu >= 2), "{all}");
}

/// The kernel keeps 15 characters of a thread's name.
#[test]
fn a_process_is_excluded_by_a_long_name_and_by_that_of_any_of_its_threads() {
    for (thread, excluded, is) in [
        ("a-thread-of-its", "a-thread-of-its-own", true),
        ("a-thread-of-its", "a-thread-of-its", true),
        ("a-thread", "a-thread-of-its-own", false),
        ("a-thread-of-it", "a-thread-of-its-own", false),
    ] {
        let (host, folder) = (host(), tempfile::tempdir().unwrap());
        // The reader is another thread of the same process: it is blocked on the flow's descriptor.
        host.put("proc/7/task/8/stat", &stat(thread, 0, 1));
        let read = if cfg!(target_arch = "x86_64") { 0 } else { 63 };
        host.put("proc/7/task/7/syscall", &format!("{read} 0x3 0x0"));
        let mut journal = journal(&host, &folder);
        let exclusions = Exclusions { processes: [excluded.into()].into(), ..Default::default() };
        SimulatedTuner::new(&host, exclusions).observe(6, Some(&mut journal));
        assert_eq!(host.thread_cpus(7).unwrap().to_string() == "0-3", is, "{thread} {excluded}");
    }
}

#[test]
fn external_changes_are_kept() {
    let (host, folder) = (host(), tempfile::tempdir().unwrap());
    let mut journal = journal(&host, &folder);
    let mut work = SimulatedTuner::new(&host, Exclusions::default());
    work.observe(4, Some(&mut journal));
    host.put_thread(7, "3".parse().unwrap());
    host.put("proc/7/task/7/stat", &stat("reader", 50, 3));
    let decisions = work.observe(4, Some(&mut journal));
    assert!(
        decisions
            .iter()
            .any(|decision| decision.act == DecisionKind::LeftAlone
                && decision.why.contains("another program")),
        "{decisions:?}"
    );
    assert_eq!(host.thread_cpus(7).unwrap().to_string(), "3");
    journal.restore().unwrap();
    assert_eq!(host.thread_cpus(7).unwrap().to_string(), "3");
}

#[test]
fn a_managed_interrupt_is_given_up_and_its_application_follows() {
    let (mut host, folder) = (host(), tempfile::tempdir().unwrap());
    host.refused.insert(IRQ.into());
    host.put("proc/irq/50/effective_affinity_list", "2");
    let mut journal = journal(&host, &folder);
    let decisions = SimulatedTuner::new(&host, Exclusions::default()).observe(10, Some(&mut journal));
    assert!(decisions.iter().any(|decision| decision.why.contains("its driver manages it")), "{decisions:?}");
    assert_eq!(host.thread_cpus(7).unwrap().to_string(), "3");
    // The thread cannot be bound either.
    let mut host = self::host();
    host.refused.extend([IRQ.into(), "thread 7".into()]);
    let folder = tempfile::tempdir().unwrap();
    let mut journal = self::journal(&host, &folder);
    let decisions = SimulatedTuner::new(&host, Exclusions::default()).observe(10, Some(&mut journal));
    assert_eq!(acts(&decisions, DecisionKind::Moved).len(), 0);
    assert!(acts(&decisions, DecisionKind::LeftAlone).len() >= 2, "{decisions:?}");
}

#[test]
fn threads_move_only_to_cpus_of_their_cpuset_that_are_plugged_in() {
    let (mut host, folder) = (host(), tempfile::tempdir().unwrap());
    host.put("proc/7/cgroup", "0::/box");
    host.put("sys/fs/cgroup/box/cpuset.cpus.effective", "2-3");
    host.put_thread(7, "2-3".parse().unwrap());
    host.put("proc/7/task/7/stat", &stat("reader", 50, 2));
    host.cpus.retain(|place| place.cpu != 3);
    let mut journal = journal(&host, &folder);
    let decisions = SimulatedTuner::new(&host, Exclusions::default()).observe(6, Some(&mut journal));
    for decision in &decisions {
        let to: CpuSet = decision.to.clone().unwrap_or_default().parse().unwrap();
        assert!(!to.contains(3), "{decision:?}");
    }
    assert_eq!(host.thread_cpus(7).unwrap().iter().find(|cpu| *cpu < 2), None);
}

#[test]
fn threads_started_by_a_bound_one_are_restored_with_it() {
    let (host, folder) = (host(), tempfile::tempdir().unwrap());
    let mut journal = journal(&host, &folder);
    let mut work = SimulatedTuner::new(&host, Exclusions::default());
    work.observe(4, Some(&mut journal));
    let bound = host.thread_cpus(7).unwrap();
    assert_ne!(bound.to_string(), "0-3");
    // A thread and a child process that inherited the affinity.
    host.put("proc/7/task/8/stat", &stat("reader", 0, 1));
    host.put("proc/7/task/8/children", "20");
    host.put("proc/20/task/20/stat", &stat("child", 0, 1));
    [8, 20].into_iter().for_each(|thread| host.put_thread(thread, bound.clone()));
    // A thread that bound itself elsewhere has inherited nothing.
    host.put("proc/7/task/9/stat", &stat("own", 0, 3));
    host.put_thread(9, "3".parse().unwrap());
    assert!(journal.restore().unwrap().is_whole());
    let now = [7, 8, 20, 9].map(|thread| host.thread_cpus(thread).unwrap().to_string());
    assert_eq!(now, ["0-3", "0-3", "0-3", "3"]);
}

#[test]
fn an_oscillating_load_causes_no_oscillating_changes() {
    let (host, folder) = (host(), tempfile::tempdir().unwrap());
    let mut journal = journal(&host, &folder);
    let mut work = SimulatedTuner::new(&host, Exclusions::default());
    let mut moved = Vec::new();
    for second in 0u64..120 {
        // The kernel moves the reader among its CPUs, and other load comes and goes.
        let open = host.thread_cpus(7).unwrap();
        let cpu = open.iter().nth(second as usize % open.iter().count()).unwrap();
        host.put("proc/7/task/7/stat", &stat("reader", second * 40, cpu));
        let busy = |of: u64| if (second / 3) % 4 == of { second * 100 } else { 0 };
        let lines: Vec<String> = (0..4)
            .map(|of| format!("cpu{of} {} 0 0 {} 0 0 0 0", busy(of), second * 100 - busy(of)))
            .collect();
        host.put("proc/stat", &lines.join("\n"));
        let decisions = work.observe(1, Some(&mut journal));
        moved.extend(
            acts(&decisions, DecisionKind::Moved).into_iter().map(|subject| (second, subject.to_string())),
        );
    }
    for (second, subject) in &moved {
        let inside = moved.iter().filter(|(at, of)| of == subject && at >= second && at - second < 60);
        assert!(inside.count() <= damping::MAX_CHANGES, "{moved:?}");
    }
    assert!(!moved.is_empty());
}

#[test]
fn expensive_observations_are_rarer_and_changes_are_still_followed_within_two_seconds() {
    let of = |micros| pause(Duration::from_micros(micros));
    assert_eq!((of(0), of(1000), of(1_000_000)), (MIN_INTERVAL, MIN_INTERVAL, MAX_INTERVAL));
    // 5 ms in 1.25 s are 0.4 %.
    assert_eq!(of(5000), Duration::from_millis(1250));
    assert!(MAX_INTERVAL + CONFIRM_INTERVAL < Duration::from_secs(2));
}

/// The common test host with a second queue on CPU 3 and two readers with one flow each. The driver's table selects the
/// queue by the lowest bit of the hash.
fn with_two_queues(table: Vec<u32>) -> FakeHost {
    let mut host = host();
    host.put("sys/class/net/eth0/queues/rx-1/rps_cpus", "0");
    host.put("proc/irq/51/smp_affinity_list", "0-3");
    host.put("proc/irq/51/effective_affinity_list", "3");
    host.put("proc/7/fd/3", "-> socket:[100]");
    host.put("proc/8/fd/3", "-> socket:[200]");
    host.put("proc/8/task/8/stat", &stat("other", 10, 2));
    host.put_thread(8, "0-3".parse().unwrap());
    let key = (0..40).map(|at: u8| at.wrapping_mul(37) ^ 0x6d).collect();
    host.rss_table = Some(longma_linux_network::rss_table::RssTable {
        key,
        table,
        ports: [true; 2],
        datagram_ports: [Some(true); 2],
    });
    host
}

/// Two observations in which each process's flow carries bytes and both queues receive interrupts.
fn observed(host: &FakeHost) -> Observation {
    let mut watch = watch();
    for look in 0..2u64 {
        host.put(
            "proc/interrupts",
            &format!(
                "  CPU0 CPU1 CPU2 CPU3\n 50: {0} 0 0 0 PCI eth0-TxRx-0\n 51: 0 0 0 {0} PCI eth0-TxRx-1",
                100 * look
            ),
        );
        host.put_sockets(vec![socket(1, 100, Some(look << 40)), socket(2, 200, Some(look << 39))]);
        if look == 1 {
            return watch.observe(host);
        }
        watch.observe(host);
    }
    unreachable!("the second look is given")
}

#[test]
fn a_flow_counts_for_the_queue_that_it_is_hashed_to_and_for_no_other() {
    let seen = observed(&with_two_queues(vec![0, 1]));
    let queues: Vec<Option<u32>> = seen.flows.iter().map(|flow| flow.arrives[0].1).collect();
    let rss_table = with_two_queues(vec![0, 1]).rss_table.unwrap();
    for flow in &seen.flows {
        assert_eq!(flow.arrives[0].1, rss_table.queue_of(flow.local, flow.remote), "{queues:?}");
    }
    assert_ne!(queues[0], queues[1], "by this key they are on different queues");
    let links = links(&seen, &Exclusions::default());
    assert_eq!(links.len(), 2, "{links:?}");
    for link in links {
        let flow = seen.flows.iter().find(|flow| flow.thread == Some(link.thread)).unwrap();
        assert_eq!(seen.queues[link.queue].number, flow.arrives[0].1);
        let bytes: f64 = seen.flows.iter().map(Flow::bytes).sum();
        assert!((link.weight - flow.bytes() / bytes).abs() < 1e-9, "{link:?}");
    }
}

#[test]
fn without_a_usable_hash_a_flow_counts_for_all_queues() {
    let mut untold = with_two_queues(vec![0, 1]);
    untold.rss_table = None;
    for host in [untold, with_two_queues(vec![9])] {
        let links = links(&observed(&host), &Exclusions::default());
        assert_eq!(links.len(), 4, "{links:?}");
    }
}

#[test]
fn flows_below_the_minimum_rate_are_left_alone() {
    let moved = |gbps: f64, min_gbps: f64| {
        let (host, folder) = (host(), tempfile::tempdir().unwrap());
        let mut journal = journal(&host, &folder);
        let exclusions = Exclusions { min_bytes: min_gbps * 125e6, ..Default::default() };
        let (mut watch, mut tuner) = (watch(), Tuner::new(exclusions));
        for second in 0..4 {
            host.put_sockets(vec![socket(1, 100, Some(second << 40))]);
            let mut observation = watch.observe(&host);
            observation.flows.iter_mut().for_each(|flow| flow.received = Some(gbps * 125e6));
            tuner.step(&observation, Some(&mut journal), Duration::from_secs(second)).unwrap();
        }
        host.thread_cpus(7).unwrap().to_string() != "0-3" || host.read(IRQ).unwrap() != "0-3"
    };
    assert!(moved(2.0, 0.1));
    assert!(!moved(0.05, 0.1));
    assert!(moved(0.05, 0.0));
}

/// Sixteen CPUs on two sockets, a NIC with 16 queues on the second one, and a process with a flow for each queue. The
/// kernel delivers all interrupts to CPU 8, as far as their affinity permits.
#[test]
fn sixteen_queues_are_spread_over_the_nics_node() {
    let mut host = FakeHost::with(&[
        ("sys/class/net/eth0/device/numa_node", "1"),
        ("sys/class/net/eth0/operstate", "up"),
        ("proc/irq/default_smp_affinity", "ffff"),
    ]);
    host.cpus = crate::fake::topology(2, 1, 8, 1);
    host.addresses = vec!["192.0.2.7".parse().unwrap()];
    let key = (0..40).map(|at: u8| at.wrapping_mul(37) ^ 0x6d).collect();
    host.rss_table = Some(longma_linux_network::rss_table::RssTable {
        key,
        table: (0..16).collect(),
        ports: [true; 2],
        datagram_ports: [Some(true); 2],
    });
    let folder = tempfile::tempdir().unwrap();
    for queue in 0..16 {
        host.put(&format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "0");
        host.put(&format!("proc/irq/{}/smp_affinity_list", 50 + queue), "0-15");
        host.put(&format!("proc/irq/{}/effective_affinity_list", 50 + queue), "8");
        host.put(&format!("proc/{}/fd/3", 100 + queue), &format!("-> socket:[{}]", 1000 + queue));
        host.put(&format!("proc/{0}/task/{0}/stat", 100 + queue), &stat("reader", 0, queue));
        host.put_thread(100 + queue, "0-15".parse().unwrap());
    }
    let mut journal = journal(&host, &folder);
    let (mut watch, mut tuner) = (watch(), Tuner::new(Exclusions::default()));
    let mut used: BTreeSet<u32> = BTreeSet::new();
    for second in 1..5u64 {
        let sockets = |queue: u32| socket(queue as u16 + 1, 1000 + queue, Some(second << 40));
        host.put_sockets((0..16).map(sockets).collect());
        let line = |queue| {
            format!(" {}: 0 0 0 0 0 0 0 0 {} 0 0 0 0 0 0 0 PCI eth0-TxRx-{queue}", 50 + queue, 100 * second)
        };
        let head: String = (0..16).map(|cpu| format!(" CPU{cpu}")).collect();
        host.put("proc/interrupts", &format!("{head}\n{}", (0..16).map(line).collect::<Vec<_>>().join("\n")));
        let observation = watch.observe(&host);
        used.extend(observation.flows.iter().filter_map(|flow| flow.arrives[0].1));
        tuner.step(&observation, Some(&mut journal), Duration::from_secs(second)).unwrap();
    }
    let mut counts = BTreeMap::new();
    for queue in &used {
        let cpus = host.read(&format!("proc/irq/{}/smp_affinity_list", 50 + queue)).unwrap();
        *counts.entry(cpus.parse::<u32>().unwrap_or(8)).or_insert(0) += 1;
    }
    assert!(used.len() > 8 && counts.len() == 8 && counts.keys().all(|cpu| *cpu >= 8), "{counts:?}");
    assert!(counts.values().all(|count| *count <= 2), "{counts:?}");
    for queue in 0..16 {
        assert!(host.thread_cpus(100 + queue).unwrap().iter().all(|cpu| cpu >= 8));
    }
    assert!(journal.restore().unwrap().is_whole());
}
