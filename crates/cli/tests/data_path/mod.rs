//! Compiled programs use the copy engine, the CAM and the MAC, and check every byte themselves.
//! Not how long it takes.
//! Source: none.

use super::guest;
use std::process::Command;

/// What a program prints when it runs on `machine` with these variables: standard output, then standard error.
fn run(machine: &str, options: &[&str], variables: &[(&str, &str)], words: &str) -> (String, String) {
    let mut words = words.split(' ');
    let run = Command::new(env!("CARGO_BIN_EXE_longma"))
        .args(["run", "--machine", machine, "--level", "timing", "--quiet"])
        .args(options)
        .arg(guest(words.next().unwrap()))
        .args(words)
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
fn what_programs_do_by_the_copy_engine_comes_out_as_by_loads_and_stores() {
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
fn virtual_machines_take_turns_at_one_engine_without_a_wrong_byte_or_translation() {
    for how in ["wait", "restart", "save"] {
        for translation in ["flush", "cam"] {
            let words = format!("vm_switch {how} {translation} 3 128 100");
            assert_eq!(run("godson3", &["--roi"], &[], &words).0, "vm_switch: 3 machines right\n", "{words}");
        }
    }
    let (moved, _) = run("godson3-two-chips", &["--roi"], &[], "page_migration rdma 4 4");
    assert_eq!(moved, "page_migration: 4 pages right\n");
}

#[test]
fn a_stream_over_a_bad_wire_arrives_right_and_everything_dropped_is_counted() {
    let wire =
        "eth0,tcp,bytes=300000,lost=20000,damaged=40000,doubled=20000,late=20000,lateness_us=100,seed=5";
    let receive = |wire: &str, variables: &[(&str, &str)]| {
        let (printed, report) = run("godson3", &["--wire", wire], variables, "tcp_receive eth0");
        assert_eq!(printed, "tcp_receive: 300000 bytes right\n", "{report}");
        report
    };
    let report = receive(wire, &[("dca", "1"), ("lock", "1")]);
    for what in ["MAC bad check sequence", "out of order", "duplicates"] {
        assert!(count(&report, what) > 0, "{what}: {report}");
    }
    let report = receive("eth0,tcp,bytes=300000", &[("malformed", "17")]);
    assert!(count(&report, "MAC bad descriptor") > 0 && count(&report, "descriptors with errors") > 0);
    let report = receive("eth0,tcp,bytes=300000", &[("ring", "2")]);
    assert!(count(&report, "MAC starved") > 0, "{report}");
}

/// Packets that go into the shared cache are nearer to the core than packets in memory, on whatever bus they came.
#[test]
fn over_pci_direct_cache_access_is_never_slower_than_none() {
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
fn a_machine_without_an_engine_is_told_so_by_name() {
    let run = super::longma(
        &["--machine", "godson3-conventional", "--level", "timing", "--quiet"],
        "idma_fft",
        &["idma"],
    );
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("name a machine that has one"));
}
