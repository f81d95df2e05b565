//! Tests `longma affinity sweep`, `report`, `advise` and `show` with real sweeps over veth pairs, including killed and
//! disturbed ones. The tests need root to create network namespaces.

mod subcommand;
mod veth;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use subcommand::{Subcommand, text};
use veth::{Network, end_with_test, signal};

const AFFINITY: Subcommand = Subcommand("affinity");

/// Whether this host can run the tests. Prints the missing prerequisite, so that a skipped test is visible.
fn can_sweep() -> bool {
    let has = |name: &str, flag: &str| {
        Command::new(name).arg(flag).output().is_ok_and(|output| output.status.success())
    };
    // SAFETY: a call without arguments that cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let can = root
        && has("iperf3", "--version")
        && has("ip", "-V")
        && has("unshare", "--version")
        && Command::new("unshare")
            .args(["--net", "true"])
            .output()
            .is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: a sweep needs root, ip and iperf3");
    }
    can
}

fn interfaces() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir("/sys/class/net")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_sweep_in_the_lab_measures_every_pair_and_leaves_nothing() {
    if !can_sweep() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let before = interfaces();
    let (file, journal) = (path("r.jsonl"), path("journal"));
    let words = [
        "sweep",
        "--lab",
        "--cpus",
        "0",
        "--seconds",
        "1",
        "--repeats",
        "2",
        "--output",
        &file,
        "--journal",
        &journal,
    ];
    let mut sweep = AFFINITY.command(&[&words[..], &["--format", "json"]].concat());
    end_with_test(&mut sweep);
    let output = sweep.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let pairs = result["analysis"]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1);
    assert_eq!(pairs[0]["gbps"].as_array().unwrap().len(), 2);
    assert!(pairs[0]["median_gbps"].as_f64().unwrap() > 0.01, "{result}");
    assert_eq!(interfaces(), before);
    // The same command has no runs left to make; the report needs no privileges.
    assert!(AFFINITY.success(&words).contains("Throughput by pair"));
    let page = path("r.html");
    let report = AFFINITY.success(&["report", &file, "--html", &page]);
    assert!(report.contains("same-cpu") && report.lines().all(|line| line.chars().count() <= 80), "{report}");
    assert!(std::fs::read_to_string(page).unwrap().contains("<figure class=\"chart circles\""));
    let advice = AFFINITY.success(&["advise", "--results", &file]);
    assert!(advice.contains("taskset -c 0") && advice.contains("CPUAffinity=0"), "{advice}");
}

#[test]
fn restore_recovers_all_settings_after_sigkill() {
    if !can_sweep() {
        return;
    }
    let network = Network::new("k");
    // A mask that no pair sets.
    network.set_rps("0");
    let before = network.settings();
    let mut sweep = network.sweep("50");
    network.wait_for_change(0);
    signal(&sweep, libc::SIGKILL);
    sweep.wait().unwrap();
    assert_ne!(network.settings(), before);
    let refused = network.sweep("1").wait_with_output().unwrap();
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("longma affinity restore"),
        "{}",
        text(&refused.stderr)
    );
    let restored = network.longma(&["restore"]).output().unwrap();
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert_eq!(network.settings(), before);
    let again = network.longma(&["restore"]).output().unwrap();
    assert!(text(&again.stdout).contains("Nothing to restore"));
}

#[test]
fn an_interrupted_sweep_restores_settings_and_continues_later() {
    if !can_sweep() {
        return;
    }
    for asked in [libc::SIGINT, libc::SIGTERM] {
        let network = Network::new("t");
        network.set_rps("0");
        let before = network.settings();
        let sweep = network.sweep("2");
        network.wait_for_change(0);
        signal(&sweep, asked);
        let ended = sweep.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
        assert_eq!(network.settings(), before);
        let rest = network.sweep("2").wait_with_output().unwrap();
        assert!(rest.status.success(), "{}", text(&rest.stderr));
        assert_eq!(network.settings(), before);
    }
}

#[test]
fn a_second_writer_is_detected_reported_and_not_overwritten() {
    if !can_sweep() {
        return;
    }
    let network = Network::new("w");
    network.set_rps("0");
    let sweep = network.sweep("50");
    network.wait_for_change(0);
    let other = network.sweep("1").wait_with_output().unwrap();
    assert!(text(&other.stderr).contains("another"), "{}", text(&other.stderr));
    network.set_rps("0");
    let ended = sweep.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("another program set"), "{}", text(&ended.stderr));
    assert_eq!(network.rps(), 0);
}

#[test]
fn a_load_command_works_and_an_invalid_results_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.jsonl");
    std::fs::File::create(&file).unwrap().write_all(b"no results\n").unwrap();
    let complaint = AFFINITY.failure(&["report", file.to_str().unwrap()]);
    assert!(complaint.contains("line 1: not a result of an affinity sweep"), "{complaint}");
    assert!(AFFINITY.failure(&["report", "/nowhere/x.jsonl"]).contains("/nowhere/x.jsonl"));
    assert!(AFFINITY.failure(&["sweep", "--lab", "--pair", "0"]).contains("FLOW,APPLICATION"));
    assert!(AFFINITY.failure(&["sweep", "--lab", "--connect", "x"]).contains("cannot be used with"));
}

#[test]
fn a_check_of_a_recorded_tree_reports_missing_settings() {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path: &Path = &folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("sys/devices/system/cpu/online", "0-1");
    put("sys/devices/system/cpu/offline", "2-3");
    put("proc/9/comm", "irqbalance");
    let root = folder.path().to_str().unwrap();
    let output = AFFINITY.output(&["check", "--root", root]);
    let stdout = text(&output.stdout);
    assert!(
        stdout.contains("CPUs 2-3 are offline") && stdout.contains("systemctl stop irqbalance"),
        "{stdout}"
    );
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
}

/// Two CPUs have four pairs. In the rounds, each is measured once, then twice, then as often as requested.
#[test]
fn advice_is_measured_in_rounds() {
    if !can_sweep() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let words = ["advise", "--lab", "--seconds", "1", "--repeats", "3", "--format", "json", "--journal"];
    let mut advise = AFFINITY.command(&[&words[..], &[journal.to_str().unwrap()]].concat());
    end_with_test(&mut advise);
    let output = advise.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let advice: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(advice["measured"]["choice"]["gbps"].as_array().unwrap().len(), 3, "{advice}");
    assert_eq!(advice["pair"], advice["measured"]["choice"]["pair"]);
}

/// Runs `show` in a terminal made by script(1): it refreshes its display, ends on q and Ctrl-C, and restores the
/// terminal.
#[test]
fn the_live_view_ends_on_q_and_ctrl_c_and_restores_the_terminal() {
    let longma = env!("CARGO_BIN_EXE_longma");
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: it needs script(1)");
    }
    for (key, status) in [(&b"q"[..], "ended 0"), (b"\x03", "ended 130")] {
        // Ctrl-C also reaches the shell, which would end dash; the trap prevents that.
        let inner =
            format!("trap : INT; stty -g; {longma} affinity show --interface lo; echo ended $?; stty -g");
        let mut command = Command::new("timeout");
        command.args(["60", "script", "--quiet", "--return", "--command", &inner, "/dev/null"]);
        command.env("SHELL", "/bin/sh");
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_secs(4));
        child.stdin.as_mut().unwrap().write_all(key).unwrap();
        let stdout = text(&child.wait_with_output().unwrap().stdout);
        assert!(stdout.contains(status), "{stdout:?}");
        let (before, rest) = stdout.split_once("\x1b[?1049h\x1b[?25l").unwrap();
        let (shown, after) = rest.split_once("\x1b[?25h\x1b[?1049l").unwrap();
        // Several frames, each drawn over the previous one.
        assert!(shown.matches("APPLICATIONS").count() >= 2 && shown.contains("SOFTIRQ"), "{shown:?}");
        let settings =
            |part: &str| part.lines().rfind(|line| line.matches(':').count() > 10).map(String::from);
        assert!(settings(before).is_some() && settings(before) == settings(after), "{stdout:?}");
    }
    let once = AFFINITY.success(&["show", "--interface", "lo", "--once"]);
    assert!(once.contains("TAKES FROM") && !once.contains('\x1b'), "{once}");
}

/// 3000 cycles per frame of 8960 bytes are 41.85 million cycles per Gbit, which the results must contain. No rate may
/// exceed the payload of a 40 Gb/s link.
#[test]
fn a_modelled_sweep_reports_cycles_by_stage() {
    let words = "sweep --model sandybridge-2x6 --frame-cycles 3000 --megabytes 2 --pair 1,2 --pair 3,4 --pair 7,1 --format json";
    let report = AFFINITY.success(&words.split(' ').collect::<Vec<_>>());
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let pairs = report["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 3);
    // Cores of one socket are equal, but the random choices differ.
    assert_ne!(pairs[0]["costs"], pairs[1]["costs"]);
    for pair in pairs {
        let gbps = pair["gbps"].as_f64().unwrap();
        assert!((36.0..=40.0 * 8960.0 / 9038.0).contains(&gbps), "{pair}");
        let stages = pair["cycles by stage, M/Gbit"].as_object().unwrap();
        let of = |name: &str| stages[name].as_f64().unwrap();
        let all: f64 = stages.values().filter_map(serde_json::Value::as_f64).sum();
        assert!((all - pair["costs"]["cycles, M/Gbit"].as_f64().unwrap()).abs() < 1e-6, "{pair}");
        // The range is wide: some frames were in the socket already when the measurement began.
        assert!((34.0..46.0).contains(&of("rest of a frame")), "{pair}");
        assert!(of("copy") > 5.0 && of("driver") > 2.0 && of("protocol") > 2.0, "{pair}");
        // Cycles without an assigned stage would appear here.
        assert!(of("the program") < 0.2 * all, "{pair}");
    }
}

/// Varies offloads and packet sizes on the test's own interface. They are restored at the end and, after SIGKILL, by
/// `restore`.
#[test]
fn varied_settings_are_restored_even_after_sigkill() {
    if !can_sweep() {
        return;
    }
    let network = Network::new("v");
    // The findings of `check` about the offload, which it reads from the driver; none if the offload is on.
    let gro = || {
        let stdout = text(&network.longma(&["check", "--interface", "in0"]).output().unwrap().stdout);
        let lines: Vec<&str> = stdout.lines().filter(|line| line.to_lowercase().contains("gro ")).collect();
        lines.concat()
    };
    let state = || (network.settings(), gro());
    let before = state();
    assert!(!before.1.is_empty(), "a veth pair has it off at first");
    let file = network.path("varied.jsonl");
    let sweep = |repeats: &str, more: &[&str]| {
        let words =
            ["sweep", "--interface", "in0", "--connect", "198.18.1.1", "--cpus", "0", "--seconds", "1"];
        let mut command = network.longma(&words);
        command.args(["--vary", "mtu=1300,1400", "--vary", "gro=1,0", "--repeats", repeats]).args(more);
        command.arg("--output").arg(&file);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut killed = sweep("20", &[]);
    let begin = std::time::Instant::now();
    while text(&network.in_receiver("cat /sys/class/net/in0/mtu").stdout).trim() == "1500" {
        assert!(begin.elapsed().as_secs() < 60, "nothing is varied");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    signal(&killed, libc::SIGKILL);
    killed.wait().unwrap();
    assert_ne!(state(), before);
    // The same command reports the unrestored settings, not a difference between the MTU and that of the results file.
    let refused = sweep("20", &[]).wait_with_output().unwrap();
    assert!(text(&refused.stderr).contains("longma affinity restore"), "{}", text(&refused.stderr));
    assert!(network.longma(&["restore"]).output().unwrap().status.success());
    assert_eq!(state(), before);
    let whole = sweep("1", &["--format", "json"]).wait_with_output().unwrap();
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    assert_eq!(state(), before);
    let result: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(
        (result["variants"].as_array().unwrap().len(), result["effects"].as_array().unwrap().len()),
        (4, 2)
    );
    let report = network.longma(&["report"]).arg(&file).output().unwrap();
    assert!(text(&report.stdout).contains("gro") && text(&report.stdout).contains("Effect of each setting"));
    let advice = network.longma(&["advise", "--results"]).arg(&file).output().unwrap();
    assert!(text(&advice.stdout).contains("mtu=1"), "{advice:?}");
    let page = network.path("varied.html");
    assert!(network.longma(&["report", "--html"]).arg(&page).arg(&file).output().unwrap().status.success());
    assert!(std::fs::read_to_string(page).unwrap().contains("The variant with the fastest pair, of 4: "));
    // The kernel rejects threaded NAPI without GRO, in either order. Rejected combinations are skipped, and the
    // others are measured.
    for seed in ["1", "2", "3", "4"] {
        let words =
            ["sweep", "--interface", "in0", "--software", "--pair", "0,0", "--seconds", "1", "--seed", seed];
        let mut command = network.longma(&words);
        command.args(["--repeats", "1", "--vary", "gro=1,0", "--vary", "threaded=0,1"]);
        command.arg("--output").arg(network.path(&format!("threads-{seed}.jsonl")));
        let swept = command.args(["--", "sh", "-c", "sleep 1; echo 5 Gbit/s"]).output().unwrap();
        assert!(swept.status.success(), "seed {seed}: {}", text(&swept.stderr));
        let lines = std::fs::read_to_string(network.path(&format!("threads-{seed}.jsonl"))).unwrap();
        let refused = lines.lines().filter(|line| line.contains("\"refused\":true")).count();
        assert_eq!(text(&swept.stderr).matches("rejects").count(), refused, "each is reported once");
        assert_eq!(lines.lines().count(), 1 + 4, "every combination has its line");
        println!("seed {seed}: {refused} of 4 combinations refused");
        let threaded = text(&network.in_receiver("cat /sys/class/net/in0/threaded").stdout);
        assert_eq!((threaded.trim(), state()), ("0", before.clone()), "seed {seed}");
        let restored = network.longma(&["restore"]).output().unwrap();
        assert!(restored.status.success(), "seed {seed}: {}", text(&restored.stderr));
    }
    let refused = AFFINITY.failure(&["sweep", "--lab", "--vary", "rfs=0,64"]);
    assert!(refused.contains("a setting of the whole host"), "{refused}");
}
