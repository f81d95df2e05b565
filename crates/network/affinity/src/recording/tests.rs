//! Tests that a recording answers like its host, holds no secrets, and that hostile files are refused.

use super::*;
use crate::counters::CpuShares;
use crate::fake::{FakeHost, topology};
use crate::preflight;
use crate::tune::Exclusions;
use crate::tune::log::DecisionKind;
use crate::watch::{Flow, Queue, Thread};
use crate::{advice, interface, setting::Setting};
use std::path::{Path, PathBuf};

/// A bond of two NICs on a host with two sockets.
fn host() -> FakeHost {
    let net = "sys/class/net";
    let mut host = FakeHost::with(&[
        ("sys/class/net/bond0/bonding/slaves", "eth0 eth1"),
        ("sys/class/net/bond0/operstate", "up"),
        ("sys/class/net/bond0/address", "aa:bb:cc:dd:ee:01"),
        ("sys/class/net/bond0/ifalias", "customer 17"),
        ("proc/1/comm", "payroll"),
        ("proc/stat", "cpu0 1 2 3 4\nbtime 1764316800\nctxt 5"),
        ("proc/77/comm", "irqbalance"),
        ("proc/78/comm", "secretd"),
        ("proc/78/cmdline", "secretd --password=hunter2"),
        ("proc/cpuinfo", "model name : A processor\nSerial : 0000c0ffee"),
        ("proc/self/status", "Name: longma\nCpus_allowed_list:\t0-5"),
        ("proc/sys/kernel/random/boot_id", "5b0c-boot"),
    ]);
    for nic in 0..2 {
        for (file, text) in [("operstate", "up"), ("device/numa_node", "1"), ("queues/rx-0/rps_cpus", "0")] {
            host.put(&format!("{net}/eth{nic}/{file}"), text);
        }
        host.put(&format!("{net}/eth{nic}/device"), "-> ../../../0000:03:00.0");
        host.put(&format!("{net}/eth{nic}/device/driver"), "-> ../bus/pci/drivers/ixgbe");
        host.put(&format!("{net}/eth{nic}/address"), "aa:bb:cc:dd:ee:02");
        host.put(&format!("proc/irq/4{nic}/smp_affinity_list"), "0-7");
        host.put_driver(&format!("eth{nic}"), DriverProperty::MaxChannels, 8);
        host.put_driver(&format!("eth{nic}"), DriverProperty::CombinedChannels, 1);
    }
    host.put("proc/interrupts", "  CPU0\n 40: 1 PCI eth0-TxRx-0\n 41: 1 PCI eth1-TxRx-0");
    host.cpus = topology(2, 1, 4, 1);
    host
}

fn bytes(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.pack(&mut bytes).unwrap();
    bytes
}

/// Opens a file with these bytes.
fn opened(bytes: &[u8]) -> Result<Recording, RecordingError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.tar");
    std::fs::write(&path, bytes).unwrap();
    Recording::open(&path)
}

#[test]
fn a_recording_answers_like_its_host() {
    let host = host();
    let recording = opened(&bytes(&recorder::of(&host, &mut || {}))).unwrap();
    let name: Interface = "bond0".parse().unwrap();
    let (nic, recorded) =
        (interface::read(&host, &name).unwrap(), interface::read(&recording, &name).unwrap());
    assert_eq!(nic.physical().len(), 2);
    assert_eq!((&nic.kind, nic.node, recorded.physical()), (&recorded.kind, recorded.node, nic.physical()));
    assert_eq!(preflight::check(&recording, Some(&name), None), preflight::check(&host, Some(&name), None));
    assert_eq!(recording.places(), host.places());
    for nic in nic.physical() {
        assert_eq!(
            advice::DriverCapabilities::of(&recording, nic),
            advice::DriverCapabilities::of(&host, nic)
        );
    }
    assert!(recording.write("proc/irq/40/smp_affinity_list", "1").is_err());
    assert_eq!(recording.read("proc/sys/kernel/random/boot_id").unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// A virtio NIC has the NUMA node and the interrupts of its parent PCI device.
#[test]
fn a_nic_whose_node_is_that_of_the_device_above_its_own_is_recorded() {
    let host = host();
    let above = "sys/class/net/eth0/device/..";
    host.put("sys/class/net/eth0/device/numa_node", "-1");
    host.put(&format!("{above}/numa_node"), "1");
    host.put(&format!("{above}/msi_irqs/40"), "msix");
    let name: Interface = "eth0".parse().unwrap();
    let recording = opened(&bytes(&recorder::of(&host, &mut || {}))).unwrap();
    let nic = interface::read(&recording, &name).unwrap();
    assert_eq!((nic.node, nic.irqs.len()), (Some(1), 1));
    assert_eq!(Some(nic), interface::read(&host, &name));
}

/// Where the members of an archive begin.
fn beginnings(bytes: &[u8]) -> Vec<usize> {
    let mut archive = tar::Archive::new(bytes);
    archive.entries().unwrap().map(|entry| entry.unwrap().raw_header_position() as usize).collect()
}

#[test]
fn a_recording_without_its_end_or_some_of_its_files_is_incomplete() {
    let whole = bytes(&recorder::of(&host(), &mut || {}));
    for end in beginnings(&whole).into_iter().skip(1) {
        let mut cut = whole[..end].to_vec();
        assert!(refused(&cut).contains("the recording is incomplete"), "{end}");
        cut.extend([0; 1024]);
        assert!(refused(&cut).contains("the recording is incomplete"), "{end}");
    }
    let mut recording = recorder::of(&host(), &mut || {});
    let complete = bytes(&recording);
    recording.files.pop_last();
    let fewer = bytes(&recording);
    let end = |bytes: &[u8]| *beginnings(bytes).last().unwrap();
    let lost = [&fewer[..end(&fewer)], &complete[end(&complete)..]].concat();
    assert!(refused(&lost).contains("files; record the host again"), "{}", refused(&lost));
}

#[test]
fn a_recording_gets_its_name_when_it_is_complete_and_replaces_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.tar");
    record(&host(), &mut || assert!(!path.exists()), &path).unwrap();
    assert!(Recording::open(&path).is_ok());
    let error = record(&host(), &mut || {}, &path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    // Another program creates the file during the pause.
    let other = folder.path().join("o.tar");
    let error = record(&host(), &mut || std::fs::write(&other, "x").unwrap(), &other).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    let names: BTreeSet<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, BTreeSet::from(["o.tar".into(), "r.tar".into()]));
}

#[test]
fn the_load_of_a_recorded_host_disturbs_a_sweep_there() {
    let of = |user: f64| {
        let mut recording = recorder::of(&host(), &mut || {});
        let shares = CpuShares { user, idle: 1.0 - user, ..CpuShares::default() };
        recording.facts.observation.cpus = (0..8).map(|cpu| (cpu, shares)).collect();
        let recording = opened(&bytes(&recording)).unwrap();
        let findings = recording.check(None);
        findings.into_iter().find(|finding| finding.subject == "other load").unwrap()
    };
    assert_eq!(of(0.0).weight, preflight::Severity::Good);
    let busy = of(0.75);
    assert!(busy.weight == preflight::Severity::Disturbs && busy.found.starts_with("75 %"), "{busy:?}");
}

#[test]
fn a_recording_holds_no_secrets() {
    let bytes = bytes(&recorder::of(&host(), &mut || {}));
    let text = String::from_utf8_lossy(&bytes);
    for secret in
        ["aa:bb:cc", "customer 17", "secretd", "hunter2", "c0ffee", "5b0c-boot", "Name:", "payroll", "btime"]
    {
        assert!(!text.contains(secret), "{secret}");
    }
    // The other files are recorded.
    for kept in ["irqbalance", "eth1-TxRx-0", "0000:03:00.0", "A processor", "Cpus_allowed_list", "ctxt 5"] {
        assert!(text.contains(kept), "{kept}");
    }
}

/// Two flows of one thread on CPU 0, whose queue's interrupt is on CPU 7 of the other socket.
fn observation() -> Observation {
    let flow = |port: u16| Flow {
        local: "10.1.2.3:443".parse().unwrap(),
        remote: format!("[2a02:db8::77]:{port}").parse().unwrap(),
        interface: "eth0".parse().unwrap(),
        protocol: crate::watch::Protocol::Tcp,
        drops: None,
        arrives: vec![("eth0".parse().unwrap(), None)],
        received: Some(1e9),
        sent: Some(0.0),
        thread: Some(0),
    };
    Observation {
        seconds: 1.0,
        queues: vec![Queue {
            interface: "eth0".parse().unwrap(),
            node: Some(1),
            setting: Setting::Irq(40),
            name: "eth0-TxRx-0".into(),
            number: Some(0),
            cpu: Some(0),
            interrupts: Some(9000.0),
            load: 0.5,
            taken: None,
        }],
        flows: vec![flow(5001), flow(5002)],
        threads: vec![Thread {
            process: 4711,
            thread: 4712,
            started: 99,
            name: "secretd".into(),
            names: BTreeSet::from(["secretd".into(), "worker".into()]),
            cpu: 0,
            load: 0.9,
            bound: "0-7".parse().unwrap(),
            open: "0-7".parse().unwrap(),
        }],
        ..Observation::default()
    }
}

#[test]
fn flows_and_programs_are_anonymous_and_equal_ones_stay_equal() {
    let found = redaction::anonymised(observation());
    let text = serde_json::to_string(&found).unwrap();
    for secret in ["10.1.2.3", "2a02", "4711", "4712", "secretd", "worker"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let [one, other] = &found.flows[..] else { panic!("{found:?}") };
    assert_eq!((one.local, one.remote.ip()), (other.local, other.remote.ip()));
    assert_eq!((one.remote.port(), other.remote.port()), (5001, 5002));
    assert!(one.local.is_ipv4() && one.remote.is_ipv6());
}

#[test]
fn a_dry_run_of_tune_decides_on_the_recorded_flows() {
    let mut recording = recorder::of(&host(), &mut || {});
    recording.facts.observation = redaction::anonymised(observation());
    let recording = opened(&bytes(&recording)).unwrap();
    let decisions = |names: &[&str], exclusions| {
        let names: Vec<Interface> = names.iter().map(|name| name.parse().unwrap()).collect();
        dry_run(&recording, &names, exclusions).unwrap()
    };
    let all = decisions(&[], Exclusions::default());
    let moves: Vec<_> = all.iter().filter(|decision| decision.act == DecisionKind::WouldMove).collect();
    let near =
        |to: &Option<String>| to.as_ref().is_some_and(|cpu| ["4", "5", "6", "7"].contains(&cpu.as_str()));
    assert!(moves.iter().any(|decision| decision.subject.contains("eth0") && near(&decision.to)), "{all:?}");
    let of_eth1 = decisions(&["eth1"], Exclusions::default());
    assert!(of_eth1.iter().all(|decision| decision.act != DecisionKind::WouldMove), "{of_eth1:?}");
    let no_irq = Exclusions { irqs: [40].into(), ..Exclusions::default() };
    assert!(decisions(&[], no_irq).iter().all(|decision| !decision.subject.contains("irq/40")));
}

/// A tar file with one entry of any kind and name, and a valid `recording.json`.
fn with_entry(kind: tar::EntryType, name: &str, target: &str, text: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(text);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(self::bytes(&recorder::of(&host(), &mut || {})));
    bytes
}

fn refused(bytes: &[u8]) -> String {
    opened(bytes).unwrap_err().to_string()
}

#[test]
fn paths_that_leave_the_tree_links_and_devices_are_refused() {
    let regular = tar::EntryType::Regular;
    assert!(opened(&with_entry(regular, "./proc/stat2", "", b"x")).is_ok());
    assert!(opened(&with_entry(tar::EntryType::Directory, "./", "", b"")).is_ok());
    for name in ["/etc/shadow", "../etc/shadow", "proc/../../x", "sys//x", "proc/./x"] {
        let error = refused(&with_entry(regular, name, "", b"x"));
        assert!(error.contains("is not allowed"), "{name}: {error}");
    }
    assert!(
        refused(&with_entry(regular, "etc/shadow", "", b"x")).contains("neither below proc nor below sys")
    );
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Char, tar::EntryType::Fifo] {
        let error = refused(&with_entry(kind, "sys/class/net/eth0/mtu", "/etc/shadow", b""));
        assert!(error.contains("is not a regular file"), "{error}");
    }
    assert!(refused(&with_entry(regular, "proc/interrupts", "", b"x")).contains("twice"));
    assert!(refused(&with_entry(regular, "proc/x", "", b"\xff\xfe")).contains("is not text"));
}

#[test]
fn huge_truncated_and_other_files_are_refused() {
    // A size of 8 TiB in the header, in the binary form of GNU tar.
    let mut huge = with_entry(tar::EntryType::Regular, "proc/x", "", b"x");
    let mut header = tar::Header::from_byte_slice(&huge[..512]).clone();
    header.set_size(8 << 40);
    header.set_cksum();
    huge[..512].copy_from_slice(header.as_bytes());
    assert!(refused(&huge).contains("`proc/x`"), "{}", refused(&huge));
    let whole = bytes(&recorder::of(&host(), &mut || {}));
    for length in [0, 1, 511, 512, 1000, whole.len() / 2] {
        let error = refused(&whole[..length]);
        assert!(error.contains("not a recording of"), "{length}: {error}");
    }
    assert!(refused(&[7; 5000]).contains("it is not a tar file"));
    assert!(refused(&whole[..whole.len() - 1300]).contains("damaged or cut off"));
    assert!(refused(&[0x1f, 0x8b, 8, 0, 0]).contains("it is compressed: unpack it with gunzip"));
    assert!(Recording::open(Path::new("/dev/zero")).is_err());
    let missing = Recording::open(&PathBuf::from("/nonexistent/r.tar")).unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/r.tar: "), "{missing}");
}

#[test]
fn facts_with_impossible_numbers_are_refused() {
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut recording = recorder::of(&host(), &mut || {});
        recording.facts.observation = observation();
        change(&mut recording.facts);
        bytes(&recording)
    };
    assert!(opened(&with(&|_| {})).is_ok());
    type Change<'a> = &'a dyn Fn(&mut Facts);
    let cases: [(Change, &str); 6] = [
        (&|facts| facts.affinity_recording = 2, "format 2"),
        (
            &|facts| facts.observation.flows[0].thread = Some(5),
            "a flow has thread 5, but there are 1 threads",
        ),
        (&|facts| facts.places[0].cpu = u32::MAX, "there is no CPU 4294967295"),
        (&|facts| facts.places.swap(0, 1), "ascending order"),
        (&|facts| facts.observation.queues[0].load = -1.0, "a load of -1 CPUs"),
        (&|facts| facts.observation.threads[0].load = 1e300, "CPUs is impossible"),
    ];
    for (change, words) in cases {
        let error = refused(&with(change));
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn a_recording_has_no_name_until_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.tar");
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    let mut during = Vec::new();
    record(&host(), &mut || during.push(entries()), &path).unwrap();
    // A process that is killed while it observes or writes leaves nothing behind.
    assert_eq!((during, entries()), (vec![0], 1));
    assert!(Recording::open(&path).is_ok());
    let again = record(&host(), &mut || {}, &path).unwrap_err();
    assert_eq!((again.kind(), entries()), (io::ErrorKind::AlreadyExists, 1));
}
