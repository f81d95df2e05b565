//! Property tests of all parsers of this crate: whatever the text, they reject it with a message or return plausible
//! values, and never panic. `fuzz/fuzz_targets/affinity_*.rs` search further.

use longma_affinity::analysis::Analysis;
use longma_affinity::counters::Reading;
use longma_affinity::fake::{FakeHost, topology};
use longma_affinity::interface;
use longma_affinity::journal::Journal;
use longma_affinity::load::{Iperf, Load, MAX_CPUS, MAX_GBPS, MIN_GBPS};
use longma_affinity::numa::NodeDistances;
use longma_affinity::preflight;
use longma_affinity::recording::{self, Recording, dry_run};
use longma_affinity::setting::Setting;
use longma_affinity::sweep::Results;
use longma_affinity::tune::{Exclusions, history, log, metrics::Metrics};
use longma_affinity::vary::{SweepParameter, Value, Variation};
use longma_affinity::watch::Watch;
use longma_linux_network::sockets::DatagramSocket;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder and a file in it with these bytes.
fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

/// A text with some bytes replaced, or any text.
fn damaged(text: &'static str) -> impl Strategy<Value = String> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..4);
    let changed = changes.prop_map(move |changes| {
        let mut letters: Vec<char> = text.chars().collect();
        for (at, letter) in changes {
            let at = at.index(letters.len());
            letters[at] = letter;
        }
        letters.into_iter().collect()
    });
    prop_oneof![4 => changed, 1 => ".*"]
}

const IPERF: &str = r#"{"end":{"sum":{"bits_per_second":4e9,"lost_percent":25},"sum_sent":{"bits_per_second":9e9,"retransmits":4},
    "sum_received":{"bits_per_second":8.5e9},"cpu_utilization_percent":{"remote_total":55.0}}}"#;

const RESULTS: &str = concat!(
    r#"{"affinity_sweep":1,"kernel":"6.1","processor":"p","places":[{"cpu":0,"core":[0],"last_cache":[0,1],"socket":0,"node":0},"#,
    r#"{"cpu":1,"core":[1],"last_cache":[0,1],"socket":0,"node":0}],"nic":{"name":"eth0","driver":null,"node":null,"distances":{"0":10,"1":20},"#,
    r#""speed_mbps":1000,"mtu":1500,"state":"up","rx_queues":[0],"tx_queues":[0],"irqs":[]},"steering":{"rps":{"interface":"eth0","queues":[0]}},"#,
    r#""load":{"command":["true"]},"seconds":2,"sender":null}"#,
    "\n",
    r#"{"pair":{"flow":0,"application":1},"class":"shared-cache","repeat":0,"variant":{"gro":1,"xps":"1,00000000,00000000"},"at":1,"rate":{"gbps":9.5,"#,
    r#""retransmits":1,"lost":null,"remote_cpu":0.5},"failure":null,"kernel":{"seconds":1.5,"cpus":{},"interrupts":{},"receptions":{},"#,
    r#""context_switches":3,"running_before":1},"hardware":{},"migrations":2}"#,
    "\n",
);

/// The contents of the kernel's files on a small host.
const FILES: [(&str, &str); 14] = [
    ("proc/interrupts", "  CPU0 CPU1\n 50: 100 7 PCI eth0-TxRx-0\n NMI: 1 2\n"),
    (
        "proc/stat",
        "cpu  1 2 3 4 5 6 7 8\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 2 3 4 5 6 7 8\nctxt 99\nprocs_running 2\n",
    ),
    ("proc/softirqs", "      CPU0 CPU1\n NET_RX: 5 6\n"),
    (
        "proc/net/softnet_stat",
        "0000a 00000001 00000002 0 0 0 0 0 0 0 0 0 00000000\n0000b 0 0 0 0 0 0 0 0 0 0 0 1\n",
    ),
    ("proc/net/tcp", " sl\n 0: 070200C0:1451 090200C0:0001 01 0:0 0:0 0 0 0 100\n"),
    ("proc/net/snmp", "Udp: InDatagrams OutDatagrams\nUdp: 5 6\n"),
    ("proc/net/snmp6", "Udp6InDatagrams 5\n"),
    (
        "proc/7/task/7/stat",
        "7 (a b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 1\n",
    ),
    ("proc/7/task/7/syscall", "0 0x3 0x0"),
    ("proc/7/cgroup", "0::/a/b\n"),
    ("sys/fs/cgroup/a/cpuset.cpus.effective", "0-1"),
    ("proc/irq/50/smp_affinity_list", "0-1"),
    ("sys/devices/system/node/node0/distance", "10 20"),
    ("sys/class/net/eth0/statistics/rx_bytes", "99999999"),
];

fn host() -> FakeHost {
    let mut host = FakeHost::with(&[
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
        ("sys/class/net/eth0/device/numa_node", "0"),
        ("sys/class/net/eth0/operstate", "up"),
        ("sys/class/net/eth0/statistics/tx_bytes", "1"),
        ("sys/devices/system/node/node1/distance", "20 10"),
        ("proc/irq/default_smp_affinity", "3"),
        ("proc/7/fd/3", "-> socket:[100]"),
    ]);
    FILES.iter().for_each(|(path, text)| host.put(path, text));
    host.put_thread(7, "0-1".parse().unwrap());
    host.addresses = vec!["192.0.2.7".parse().unwrap()];
    let local = "0.0.0.0:443".parse().unwrap();
    host.datagram_sockets = vec![DatagramSocket { local, remote: None, inode: 100, dropped: Some(1) }];
    host.cpus = topology(1, 1, 2, 1);
    host
}

/// The bytes of a recorded host.
fn recorded() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.tar");
    recording::record(&host(), &mut || (), &path).unwrap();
    std::fs::read(path).unwrap()
}

/// A journal with two changes, as a killed process leaves it.
fn journal() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let host = host();
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&Setting::Irq(50), "1").unwrap();
    journal.set(&Setting::Rps { interface: "eth0".parse().unwrap(), queue: 0 }, "2").unwrap();
    std::fs::read(&path).unwrap()
}

fn opens_recording(path: &Path) -> bool {
    let Ok(recording) = Recording::open(path) else { return false };
    recording.check(None);
    dry_run(&recording, &[], Exclusions::default()).unwrap();
    true
}

#[test]
fn the_undamaged_texts_are_accepted() {
    let (_folder, path) = file(RESULTS.as_bytes());
    assert_eq!(Results::read(&path).unwrap().samples.len(), 1);
    let (_folder, path) = file(&recorded());
    assert!(opens_recording(&path));
    let (_folder, path) = file(&journal());
    assert!(Journal::recover(&path, &host(), false).unwrap().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_rate_is_plausible_or_missing(text in damaged(IPERF), udp: bool) {
        let iperf = Iperf { server: "a".into(), port: 1, zero_copy: false, reverse: true, udp, flows: 1 };
        for load in [Load::Iperf(iperf), Load::Command(vec![])] {
            let Ok(rate) = load.rate(&text) else { continue };
            prop_assert!((MIN_GBPS..=MAX_GBPS).contains(&rate.gbps), "{rate:?}");
            prop_assert!(rate.lost.is_none_or(|lost| (0.0..=1.0).contains(&lost)), "{rate:?}");
            prop_assert!(rate.remote_cpu.is_none_or(|cpus| (0.0..=MAX_CPUS).contains(&cpus)), "{rate:?}");
        }
    }

    #[test]
    fn results_are_read_or_rejected(text in damaged(RESULTS)) {
        let (_folder, path) = file(text.as_bytes());
        if let Ok(results) = Results::read(&path) {
            let analysis = Analysis::of(&results);
            prop_assert!(analysis.pairs.iter().all(|pair| pair.median_gbps.is_finite()));
        }
    }

    #[test]
    fn a_varied_value_is_printed_as_it_is_read(
        which in 0..SweepParameter::ALL.len(),
        number: u64,
        cpus in prop::collection::btree_set(0..300u32, 0..20),
    ) {
        let parameter = SweepParameter::ALL[which];
        let value = if parameter == SweepParameter::Xps {
            Value::of_cpus(cpus.into_iter().collect())
        } else {
            let range = parameter.range();
            Value::Number(number % (range.end() - range.start()).saturating_add(1).max(1) + range.start())
        };
        let text = format!("{parameter}={}", parameter.shown(&value));
        prop_assert_eq!(text.parse::<Variation>().unwrap().values, [value]);
    }

    #[test]
    fn any_variation_is_accepted_or_rejected(text in "[a-z0-9-]{0,12}=[0-9a-fx,-]{0,30}|(xps|gro|rfs|mtu)=.*|.*") {
        if let Ok(variation) = text.parse::<Variation>() {
            prop_assert!(variation.values.iter().all(|value| variation.parameter.takes(value)));
        }
    }

    #[test]
    fn a_host_with_any_text_in_a_file_is_observed(which in 0..FILES.len(), text in ".*|[ 0-9a-f:\n]*", letters in damaged(FILES[0].1)) {
        let host = host();
        let mut watch = Watch::new(vec!["eth0".parse().unwrap()]);
        watch.observe(&host);
        for text in [&text, &letters] {
            host.put(FILES[which].0, text);
            let observation = watch.observe(&host);
            prop_assert!(observation.flows.iter().all(|flow| flow.thread.is_none_or(|at| at < observation.threads.len())));
            Metrics::default().observe(&observation, 0.0);
            let before = Reading::now(&host);
            preflight::check(&host, None, Some((&before, &Reading::now(&host))));
            let nic = interface::read(&host, &"eth0".parse().unwrap()).unwrap();
            NodeDistances::from(&host, 0).sorted(0, [1, 0]);
            Reading::of(&host, &nic);
        }
    }

    #[test]
    fn the_log_of_decisions_is_read_whatever_it_holds(text in damaged("{\"at\":1.5,\"act\":\"begun\",\"subject\":\"longma\",\"why\":\"x\"}\n{\"at\":2,\"act\":\"moved\",\"subject\":\"s\",\"from\":\"0\",\"to\":\"1\",\"why\":\"y\"}\n")) {
        let (_folder, path) = file(text.as_bytes());
        let (decisions, _) = log::read(&path).unwrap();
        history::runs(&decisions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_damaged_recording_is_refused_or_can_be_examined(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = recorded();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let (_folder, path) = file(&bytes);
        opens_recording(&path);
    }

    #[test]
    fn a_damaged_journal_changes_nothing(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (original, host) = (journal(), host());
        let mut bytes = original.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        prop_assume!(bytes != original);
        let (_folder, path) = file(&bytes);
        let before = host.all();
        prop_assert!(Journal::recover(&path, &host, false).is_err());
        prop_assert_eq!(host.all(), before);
        prop_assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}
