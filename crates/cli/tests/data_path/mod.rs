//! Runs compiled programs that use the copy engine, the CAM and the MAC and check every byte themselves.

use super::guest;
use std::process::Command;

const TIMING: [&str; 3] = ["--level", "timing", "--quiet"];

/// Standard output and standard error of a program run at level `timing` on `machine` with these environment variables.
fn run(machine: &str, options: &[&str], variables: &[(&str, &str)], command: &str) -> (String, String) {
    run_at(&TIMING, machine, options, variables, command)
}

/// Like `run`, at any level.
fn run_at(
    level: &[&str],
    machine: &str,
    options: &[&str],
    variables: &[(&str, &str)],
    command: &str,
) -> (String, String) {
    let mut arguments = command.split(' ');
    let run = Command::new(env!("CARGO_BIN_EXE_longma"))
        .args(["run", "--machine", machine])
        .args(level)
        .args(options)
        .arg(guest(arguments.next().unwrap()))
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
    (text(&run.stdout), text(&run.stderr))
}

/// The count that the receive path reports under `name`.
fn count(report: &str, name: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {report}")).parse().unwrap()
}

#[test]
fn the_copy_engine_gives_the_same_results_as_loads_and_stores() {
    for bytes in ["1", "33", "1001", "70000"] {
        let copies = ["plain", "idma", "tags"]
            .map(|how| run("godson3", &["--roi"], &[], &format!("idma_memcpy {bytes} {how} 128 5")).0);
        assert_eq!(copies[0], copies[1], "{bytes} bytes");
        assert_eq!(copies[0], copies[2], "{bytes} bytes, handed on by tags");
    }
    for program in ["idma_fft-lasx idma 10 1", "idma_fft-lasx idma 13 1", "idma_matmul-lasx idma 96 1"] {
        let (printed, _) = run("godson3", &["--roi"], &[], program);
        assert!(printed.contains("right"), "{program}: {printed}");
    }
}

#[test]
fn virtual_machines_share_an_engine_correctly() {
    for how in ["wait", "restart", "save"] {
        for translation in ["flush", "cam"] {
            let command = format!("vm_switch {how} {translation} 3 128 100");
            assert_eq!(
                run("godson3", &["--roi"], &[], &command).0,
                "vm_switch: 3 machines right\n",
                "{command}"
            );
        }
    }
    let (moved, _) = run("godson3-two-chips", &["--roi"], &[], "page_migration rdma 4 4");
    assert_eq!(moved, "page_migration: 4 pages right\n");
}

#[test]
fn a_stream_over_a_lossy_wire_arrives_correctly_and_drops_are_counted() {
    let wire =
        "eth0,tcp,bytes=300000,lost=20000,damaged=40000,doubled=20000,late=20000,lateness_us=100,seed=5";
    let odd = "eth0,tcp,bytes=300000,corrupted=20000,cut=20000,stretched=20000,seed=3";
    let receive = |wire: &str, variables: &[(&str, &str)]| {
        let (printed, report) = run("godson3", &["--wire", wire], variables, "tcp_receive eth0");
        assert_eq!(printed, "tcp_receive: 300000 bytes right\n", "{report}");
        report
    };
    let report = receive(wire, &[("dca", "1"), ("lock", "1")]);
    for what in ["MAC bad check sequence", "out of order", "duplicates"] {
        assert!(count(&report, what) > 0, "{what}: {report}");
    }
    let report = receive(odd, &[]);
    for what in ["MAC too long", "MAC too short", "bad checksum"] {
        assert!(count(&report, what) > 0, "{what}: {report}");
    }
    let report = receive("eth0,tcp,bytes=300000", &[("malformed", "17")]);
    assert!(count(&report, "MAC bad descriptor") > 0 && count(&report, "descriptors with errors") > 0);
    let report = receive("eth0,tcp,bytes=300000", &[("ring", "2")]);
    assert!(count(&report, "MAC starved") > 0, "{report}");
}

/// Packets placed into the shared cache are closer to the core than packets in memory, on any bus.
#[test]
fn direct_cache_access_over_pci_is_never_slower() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/machines/godson3-and-pci.toml");
    for message in ["256", "1024"] {
        let wire = format!("nic0,tcp,bytes=150000,message={message},message_interval_ns=2100");
        let rate = |dca: &str| {
            let variables = [("message", message), ("check", "1"), ("dca", dca), ("ways", "4")];
            let (_, report) =
                run(machine, &["--roi", "--wire", wire.as_str()], &variables, "tcp_receive nic0");
            let line = report.lines().find_map(|line| line.strip_suffix(" Mb/s"));
            line.unwrap_or_else(|| panic!("no rate in {report}")).parse::<f64>().unwrap()
        };
        let (without, with) = (rate("0"), rate("1"));
        assert!(with >= without, "messages of {message}: {with} Mb/s with DCA, {without} without");
    }
}

#[test]
fn receivers_can_sleep_or_poll_and_moderation_saves_interrupts() {
    let receive = |variables: &[(&str, &str)]| {
        // The connection starts when the program polls, and messages arrive one at a time.
        let wire = ["--wire", "eth0,tcp,bytes=100000,begin_us=3000,message_interval_ns=20000"];
        let (printed, report) = run("godson3", &wire, variables, "tcp_receive eth0");
        assert_eq!(printed, "tcp_receive: 100000 bytes right\n", "{variables:?}: {report}");
        let words: Vec<&str> = report.split([' ', '\n']).collect();
        let position = words.iter().position(|word| *word == "interrupts,").unwrap();
        words[position - 1].parse::<u64>().unwrap()
    };
    let [slept, waited, polled] = ["0", "1", "2"].map(|how| receive(&[("wait", how)]));
    assert!(slept > 20 && waited > 20, "{slept} and {waited} interrupts");
    assert_eq!(polled, 0);
    let moderated = receive(&[("wait", "1"), ("delay_ns", "100000"), ("frames", "16")]);
    assert!(moderated * 2 < waited, "{moderated} of {waited} interrupts");
}

#[test]
fn migrated_pages_are_found_with_table_and_cam() {
    let misses = |how: &str| {
        let command = format!("page_migration rdma 8 4 {how} 300");
        let (printed, errors) = run("godson3-two-chips", &["--roi"], &[], &command);
        assert_eq!(printed, "page_migration: 8 pages right\n", "{errors}");
        let (before, _) = errors.split_once(" CAM misses").unwrap();
        before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(["table", "cold", "cam"].map(misses), [0, 8, 0]);
}

#[test]
fn invalid_frames_and_descriptors_are_dropped_and_counted() {
    let outputs = [&TIMING[..], &["--level", "cache", "--quiet"], &["--level", "functional"]]
        .map(|level| run_at(level, "godson3", &["--wire", "eth0,loop"], &[], "device_check mac eth0 30 4"));
    assert!(outputs[0].0.starts_with("device_check: mac 30 rounds right"), "{outputs:?}");
    assert!(outputs.iter().all(|output| *output == outputs[0]), "{outputs:?}");
    let behind_a_bus =
        run("godson3-conventional", &["--wire", "eth0,loop"], &[], "device_check mac eth0 12 2 64");
    assert!(behind_a_bus.0.contains("12 rounds right"), "{behind_a_bus:?}");
}

#[test]
fn devices_behave_the_same_at_level_functional() {
    const FUNCTIONAL: [&str; 0] = [];
    let lossy = ["--wire", "eth0,tcp,bytes=100000,lost=20000,late=20000,lateness_us=100"];
    for (options, command) in [
        (&[][..], "idma_check 24 7"),
        (&[], "idma_memcpy 70000 tags 128 5"),
        (&[], "vm_switch save cam 3 128 100"),
        (&lossy, "tcp_receive eth0"),
    ] {
        let timed = run("godson3", options, &[], command).0;
        let runs = [0; 2].map(|_| run_at(&FUNCTIONAL, "godson3", options, &[], command));
        assert_eq!(runs[0].0, timed, "{command}");
        assert_eq!(runs[0], runs[1], "two runs of {command} do the same");
    }
}

#[test]
fn a_functional_profile_counts_all_instructions_of_a_device_program() {
    let profile = |machine: &[&str], command: &[&str]| {
        let options: Vec<&str> = ["--stats", "--format", "json"].iter().chain(machine).copied().collect();
        let run = super::longma(&options, command[0], &command[1..]);
        let stats: serde_json::Value = serde_json::from_slice(&run.stderr).unwrap();
        stats["instructions"].as_u64().unwrap()
    };
    let queens = ["queens", "6", "4"];
    let [without, with] = [&[][..], &["--machine", "godson3"]].map(|machine| profile(machine, &queens));
    assert!(without.abs_diff(with) * 100 < without, "{without} and {with}");
}

#[test]
fn a_forked_child_cannot_use_its_parents_devices() {
    for level in [&TIMING[..], &["--level", "functional"]] {
        let (printed, errors) = run_at(level, "godson3", &[], &[], "device_check fork");
        assert_eq!(printed, "device_check: fork right\n", "{errors}");
        for what in ["EBUSY", "SIGBUS"] {
            assert!(errors.contains("forked child") && errors.contains(what), "{errors}");
        }
    }
}

#[test]
fn a_checkpoint_is_rejected_while_devices_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let save = ["--checkpoint", path.to_str().unwrap()];
    let (printed, errors) = run("godson3", &save, &[], "device_check save open");
    assert_eq!(printed, "device_check: save right\n");
    assert!(
        errors.contains("/dev/longma/") && errors.contains("after it is closed and unmapped"),
        "{errors}"
    );
    let (printed, errors) = run("godson3", &save, &[], "device_check save closed");
    assert!(printed.contains("right") && errors.contains("is saved in"), "{errors}");
    let restored = Command::new(env!("CARGO_BIN_EXE_longma"))
        .args(["run", "--machine", "godson3", "--restore", save[1]])
        .args(TIMING)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&restored.stdout), "device_check: save right\n", "{restored:?}");
}

#[test]
fn a_missing_engine_is_reported_by_name() {
    let run = super::longma(
        &["--machine", "godson3-conventional", "--level", "timing", "--quiet"],
        "idma_fft",
        &["idma"],
    );
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("name a machine that has one"));
}
