//! Tests failures during `longma affinity`: killed loads and servers, removed and reused namespaces, resource limits,
//! Ctrl-C.

mod subcommand;
mod veth;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use subcommand::{Subcommand, text};
use veth::{Network, end_with_test, signal};

const AFFINITY: Subcommand = Subcommand("affinity");

/// Whether sweeps with --lab are possible, as in `affinity.rs`.
fn can_sweep() -> bool {
    let runs = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success())
    };
    // SAFETY: a call without arguments that cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let can =
        root && runs(&["iperf3", "--version"]) && runs(&["ip", "-V"]) && runs(&["unshare", "--net", "true"]);
    if !can {
        eprintln!("skipped: a sweep needs root, ip and iperf3");
    }
    can
}

fn waits(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Finds a child of a process that has `word` on its command line.
fn child_with(parent: u32, word: &str) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|of| of == word.as_bytes())
    })
}

fn kill(process: u32) {
    // SAFETY: a signal to a process that a child of this test started.
    unsafe { libc::kill(process as i32, libc::SIGKILL) };
}

/// Starts a sweep of one pair with --lab. Returns it and the path of its results file.
fn lab(folder: &Path, repeats: &str) -> (Child, PathBuf) {
    let file = folder.join("lab.jsonl");
    let words = ["sweep", "--lab", "--pair", "0,0", "--seconds", "2", "--repeats", repeats];
    let mut command = AFFINITY.command(&words);
    command.arg("--output").arg(&file).arg("--journal").arg(folder.join("journal"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_test(&mut command);
    (command.spawn().unwrap(), file)
}

#[test]
fn a_killed_load_or_server_is_reported_and_the_sweep_continues() {
    if !can_sweep() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (sweep, file) = lab(folder.path(), "3");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    // Kill the client during the first run and the server during the second.
    waits("no load", || child_with(sweep.id(), "--client").is_some());
    let client = child_with(sweep.id(), "--client").unwrap();
    kill(client);
    waits("no second run", || lines() == 2 && child_with(sweep.id(), "--client").is_some());
    std::thread::sleep(Duration::from_millis(500));
    let server = child_with(sweep.id(), "--server").unwrap();
    kill(server);
    let ended = sweep.wait_with_output().unwrap();
    let stderr = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("`iperf3` (process {client}) was killed by SIGKILL")), "{stderr}");
    let words =
        format!("the lab's server (`iperf3`, process {server}) was killed by SIGKILL and was restarted");
    assert!(stderr.contains(&words), "{stderr}");
    assert!(stderr.contains("2 runs failed; the same command makes them again"), "{stderr}");
    let again = lab(folder.path(), "3").0.wait_with_output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(lines(), 1 + 3 + 2);
}

#[test]
fn a_deleted_lab_namespace_ends_the_sweep_and_results_are_kept() {
    if !can_sweep() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (sweep, file) = lab(folder.path(), "50");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    waits("no run", || lines() >= 2);
    // The receiver's process is started first.
    let holder = child_with(sweep.id(), "cat").unwrap();
    kill(holder);
    let ended = sweep.wait_with_output().unwrap();
    let stderr = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    let words = format!(
        "the testbed is gone: the process that keeps the receiver's namespace open (`cat`, process {holder}) was killed by SIGKILL"
    );
    assert!(stderr.contains(&words), "{stderr}");
    assert!(stderr.contains("with a result") && stderr.contains("the same command continues"), "{stderr}");
}

/// The kernel reuses the inode numbers of namespaces. Changes made in a removed namespace must not be restored in a
/// later one with the same number.
#[test]
fn a_journal_of_a_deleted_namespace_does_not_apply_to_one_with_the_same_number() {
    if !can_sweep() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let inode = |network: &Network| text(&network.in_receiver("stat -L -c %i /proc/self/ns/net").stdout);
    let first = Network::new("a");
    first.set_rps("0");
    let mut sweep = first.sweep("50");
    first.wait_for_change(0);
    signal(&sweep, libc::SIGKILL);
    sweep.wait().unwrap();
    let (was, left) = (inode(&first), first.rps());
    std::fs::copy(first.path("journal"), &journal).unwrap();
    drop(first);
    // Other processes may create namespaces too, so try several times.
    let mut made = Vec::new();
    for number in 0..20 {
        let network = Network::bare(&format!("b{number}"));
        let is_same = inode(&network) == was;
        made.push(network);
        if is_same {
            break;
        }
    }
    let second = made.last().unwrap();
    if inode(second) != was {
        eprintln!("the number was not reused: trying another namespace nevertheless");
    }
    // Set the value that the sweep left, so that a journal mistaken for this namespace's would be applied.
    second.set_rps(&format!("{left:x}"));
    let restored = second.longma(&["restore", "--journal"]).arg(&journal).output().unwrap();
    assert_eq!(restored.status.code(), Some(1), "{}", text(&restored.stdout));
    assert!(
        text(&restored.stderr).contains("another boot or network namespace"),
        "{}",
        text(&restored.stderr)
    );
    assert_eq!(second.rps(), left);
}

#[test]
fn packets_beyond_an_interfaces_limit_are_refused_before_anything_is_changed() {
    let refused =
        AFFINITY.failure(&["sweep", "--model", "sandybridge-2x6", "--mtu", "9001", "--pair", "1,2"]);
    assert!(
        refused.contains("sandybridge-2x6: packets of 9001 bytes: the NIC eth0 accepts at most 9000"),
        "{refused}"
    );
    let refused = AFFINITY.failure(&["sweep", "--model", "sandybridge-2x6", "--cpus", "0-99"]);
    assert!(refused.contains("sandybridge-2x6 has no CPU 12: give --cpus or --pair"), "{refused}");
    if !can_sweep() {
        return;
    }
    let network = Network::bare("m");
    let before = network.settings();
    let mut command =
        network.longma(&["sweep", "--interface", "in0", "--vary", "mtu=1500,70000", "--output"]);
    let output = command.arg(network.path("m.jsonl")).args(["--", "echo", "1"]).output().unwrap();
    let stderr = text(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("mtu=70000: in0 accepts packets of 68 to 65535 bytes"),
        "{stderr}"
    );
    assert_eq!(network.settings(), before);
}

/// Writes a results file with one run of the pair 0,0 that has no rate.
fn without_results(path: &Path, refused: bool) {
    let header = r#"{"affinity_sweep":1,"kernel":"6.1","processor":"some","places":[{"cpu":0,"core":[0],"last_cache":[0],"socket":0,"node":0}],"nic":{"name":"eth7","driver":null,"node":null,"speed_mbps":null,"mtu":1500,"state":"up","rx_queues":[0],"tx_queues":[0],"irqs":[]},"steering":{"rps":{"interface":"eth7","queues":[0]}},"load":{"command":["x"]},"seconds":1,"sender":null}"#;
    let run = format!(
        r#"{{"pair":{{"flow":0,"application":0}},"class":"same-cpu","repeat":0,"at":0,"rate":null,"failure":"the server is gone","refused":{refused},"kernel":{{"seconds":0.0,"cpus":{{}},"interrupts":{{}},"receptions":{{}},"context_switches":0,"running_before":0}},"hardware":{{}},"migrations":null}}"#
    );
    std::fs::write(path, format!("{header}\n{run}\n")).unwrap();
}

#[test]
fn advice_from_a_file_without_results_is_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let file = path.to_str().unwrap();
    for (refused, what) in [
        (false, "none of its 1 runs has a result (the last one: the server is gone)"),
        (true, "none of its 1 runs was made: the interface rejected their settings"),
    ] {
        without_results(&path, refused);
        let message = AFFINITY.failure(&["advise", "--results", file]);
        assert!(message.contains(what) && message.contains(file), "{message}");
        assert!(message.contains("longma affinity advise --interface eth7"), "{message}");
        assert!(AFFINITY.failure(&["report", file]).contains(what));
    }
    let header = std::fs::read_to_string(&path).unwrap().lines().next().unwrap().to_string() + "\n";
    std::fs::write(&path, header).unwrap();
    assert!(AFFINITY.failure(&["advise", "--results", file]).contains("it has no run"));
}

/// The load's packets do not pass the interface, so they are processed on the application's CPU.
#[test]
fn a_sweep_whose_runs_are_all_excluded_fails_and_says_why() {
    if !can_sweep() || std::thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        return;
    }
    let network = Network::bare("e");
    let load = "iperf3 --server --one-off --port 5999 > /dev/null & sleep 0.5; iperf3 --client 127.0.0.1 --port 5999 --time 4";
    let page = network.path("e.html");
    let mut sweep = network.longma(&["sweep", "--interface", "in0", "--pair", "0,1", "--repeats", "1"]);
    sweep.arg("--output").arg(network.path("e.jsonl")).arg("--html").arg(&page);
    let output = sweep.args(["--seconds", "4", "--", "sh", "-c", load]).output().unwrap();
    let report = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains("1 run is excluded because its flow was processed on the wrong CPU"), "{report}");
    assert!(!output.status.success() && !page.exists(), "{}", text(&output.stderr));
}

/// Ctrl-C on a terminal signals the whole process group, including the runs.
#[test]
fn a_stopped_modelled_sweep_keeps_its_runs_and_continues_to_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.jsonl");
    let words = ["sweep", "--model", "sandybridge-2x6", "--megabytes", "1", "--format", "json"];
    let pairs = ["--pair", "1,1", "--pair", "1,2", "--pair", "1,7", "--pair", "7,1"];
    let sweep = |kept: bool| {
        let mut command = AFFINITY.command(&[&words[..], &pairs].concat());
        if kept {
            command.arg("--output").arg(&file);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    let mut first = sweep(true);
    std::os::unix::process::CommandExt::process_group(&mut first, 0);
    let first = first.spawn().unwrap();
    waits("no run", || lines() >= 2);
    // SAFETY: a signal to the process group of our own child, which has not been waited for.
    unsafe { libc::kill(-(first.id() as i32), libc::SIGINT) };
    let stopped = first.wait_with_output().unwrap();
    let stderr = text(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(130), "{stderr}");
    let kept = lines() - 1;
    assert!((1..4).contains(&kept), "{kept}");
    assert!(
        stderr.contains(&format!("stopped; {kept} of 4 runs are in"))
            && stderr.contains("the same command continues"),
        "{stderr}"
    );
    let rest = sweep(true).output().unwrap();
    assert!(rest.status.success(), "{}", text(&rest.stderr));
    assert_eq!(lines(), 5);
    // A complete sweep on one CPU, without a results file, prints the same bytes.
    let mut alone = Command::new("taskset");
    alone.args(["-c", "0", env!("CARGO_BIN_EXE_longma"), "affinity"]).args(words).args(pairs);
    let uninterrupted = alone.current_dir("/").output().unwrap();
    assert!(uninterrupted.status.success(), "{}", text(&uninterrupted.stderr));
    assert_eq!(text(&rest.stdout), text(&uninterrupted.stdout));
    let third = sweep(true).output().unwrap();
    assert_eq!((text(&third.stdout), lines()), (text(&uninterrupted.stdout), 5), "nothing is left to do");
    let reported = AFFINITY.command(&["report", "--format", "json"]).arg(&file).output().unwrap();
    assert_eq!(
        (text(&reported.stdout), text(&reported.stderr)),
        (text(&uninterrupted.stdout), String::new())
    );
    let report = AFFINITY.command(&["report"]).arg(&file).output().unwrap();
    assert!(text(&report.stdout).contains("0 cycles a frame besides the receiver's own; 4 pairs of 1 MB"));
}

#[test]
fn ineffective_model_settings_are_reported_and_duplicates_rejected() {
    let words =
        ["sweep", "--model", "sandybridge-2x6", "--megabytes", "1", "--pair", "1,1", "--format", "json"];
    // The environments have equal lengths, because they are on the guest's stack. The values of `frames` do not begin
    // with 0, which the guest would parse differently.
    let plain = AFFINITY.output(&[&words[..], &["--with", "xps=0", "--with", "frames=9"]].concat());
    let idle = AFFINITY.output(&[&words[..], &["--with", "xps=1", "--with", "frames=8"]].concat());
    let stderr = text(&idle.stderr);
    assert!(
        stderr.contains("note: xps=1 does nothing: there is only one transmit ring")
            && stderr.contains("note: frames=8 does nothing: interrupts are not delayed"),
        "{stderr}"
    );
    // The notes are true: the results are equal.
    assert_eq!(text(&idle.stdout), text(&plain.stdout));
    let twice = AFFINITY.failure(&[&words[..], &["--with", "gro=1", "--with", "gro=0"]].concat());
    assert!(twice.contains("--with gro is given twice"), "{twice}");
}
