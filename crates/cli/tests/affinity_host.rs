//! Tests `longma affinity` on a host that changes during a command: renamed interfaces, a /sys of another namespace,
//! signals, closed pipes, names with control characters.

mod subcommand;
mod veth;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use subcommand::{Subcommand, text};
use veth::{Network, end_with_test, signal};

const AFFINITY: Subcommand = Subcommand("affinity");

/// A load of one second that needs no peer.
const LOAD: &str = "sleep 1; echo 5 Gbit/s";

fn can_change() -> bool {
    let unshares = Command::new("unshare").args(["--net", "true"]).output();
    let can = rustix::process::geteuid().is_root() && unshares.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: it needs root, ip and unshare");
    }
    can
}

fn sweep(network: &Network, repeats: &str, file: &str, load: &str) -> Command {
    let words = ["sweep", "--interface", "in0", "--pair", "0,0", "--seconds", "1", "--vary", "mtu=1400"];
    let mut command = network.longma(&words);
    command.args(["--repeats", repeats, "--output"]).arg(network.path(file)).args(["--", "sh", "-c", load]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a sweep and waits until it has changed the interface.
fn begun(network: &Network, load: &str) -> Child {
    let mut sweep = sweep(network, "9", "r.jsonl", load).spawn().unwrap();
    waits("nothing is varied", || {
        assert!(sweep.try_wait().unwrap().is_none(), "the sweep is over");
        mtu(network, "in0") == "1400"
    });
    sweep
}

/// A network namespace; removed when dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

fn mtu(network: &Network, name: &str) -> String {
    text(&network.in_receiver(&format!("cat /sys/class/net/{name}/mtu")).stdout).trim().into()
}

fn waits(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs the command in the network namespace `net` with the /sys `sys`.
fn mixed(network: &Network, sys: &[&str], words: &[&str]) -> Output {
    let net = format!("--net=/run/netns/{}", network.names[0]);
    let nsenter = ["nsenter", &net, env!("CARGO_BIN_EXE_longma"), "affinity"];
    let all = [sys, &nsenter, words].concat();
    let mut command = Command::new(all[0]);
    command.args(&all[1..]);
    command.env("LONGMA_AFFINITY_JOURNAL", network.path("journal"));
    command.env("LONGMA_AFFINITY_STATE", network.path("decisions"));
    end_with_test(&mut command);
    command.output().unwrap()
}

#[test]
fn an_interface_renamed_during_a_sweep_is_restored() {
    if !can_change() {
        return;
    }
    let network = Network::bare("rn");
    network.set_rps("0");
    let of = |name: &str| {
        let files = format!("cd /sys/class/net/{name} && grep . queues/*/* mtu 2>/dev/null");
        text(&network.in_receiver(&files).stdout)
    };
    let before = of("in0");
    let sweep = begun(&network, LOAD);
    assert!(network.in_receiver("ip link set in0 down && ip link set in0 name zz0").status.success());
    let ended = sweep.wait_with_output().unwrap();
    let stderr = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("was renamed to zz0") && stderr.contains("all settings are restored"),
        "{stderr}"
    );
    assert_eq!(of("zz0"), before);
}

/// Kills a sweep after it has changed settings.
fn leave_changed(network: &Network) {
    let mut killed = begun(network, LOAD);
    signal(&killed, libc::SIGKILL);
    killed.wait().unwrap();
}

#[test]
fn a_moved_interface_stays_in_the_journal_until_it_is_back() {
    if !can_change() {
        return;
    }
    let network = Network::bare("mv");
    // A namespace with no other interfaces, so that the moved interface keeps its number.
    let away = Namespace(format!("{}away", network.names[0]));
    assert!(Command::new("ip").args(["netns", "add", &away.0]).output().unwrap().status.success());
    let ip = |from: &str, words: &str| {
        let words = [&["-n", from][..], &words.split(' ').collect::<Vec<_>>()].concat();
        assert!(Command::new("ip").args(words).output().unwrap().status.success());
    };
    let (own, other) = (&network.names[0], &away.0);
    let sweep = begun(&network, LOAD);
    ip(own, &format!("link set in0 netns {other}"));
    let ended = sweep.wait_with_output().unwrap();
    let stderr = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("and was `1500`; the journal keeps it"), "{stderr}");
    assert!(stderr.contains("not all settings are restored"), "{stderr}");
    let owed = network.longma(&["restore"]).output().unwrap();
    assert_eq!(owed.status.code(), Some(1), "{}", text(&owed.stdout));
    ip(other, &format!("link set in0 netns {own}"));
    let restored = network.longma(&["restore"]).output().unwrap();
    assert!(restored.status.success(), "{}{}", text(&restored.stdout), text(&restored.stderr));
    assert_eq!(mtu(&network, "in0"), "1500");
}

#[test]
fn a_removed_interface_stays_in_the_journal_until_it_is_dropped() {
    if !can_change() {
        return;
    }
    let network = Network::bare("rm");
    leave_changed(&network);
    let removal = ["-n", &network.names[0], "link", "delete", "in0"];
    assert!(Command::new("ip").args(removal).output().unwrap().status.success());
    let restore = |words: &[&str], code: i32, expected: &str| {
        let output = network.longma(&[&["restore"], words].concat()).output().unwrap();
        let messages = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.code() == Some(code) && messages.contains(expected), "{words:?}: {output:?}");
    };
    restore(&[], 1, "no longer exists here");
    restore(&["--forget-gone"], 0, "no longer exist.");
    restore(&[], 0, "Nothing to restore");
}

#[test]
fn nothing_is_read_or_changed_through_the_sys_of_another_namespace() {
    if !can_change() {
        return;
    }
    let network = Network::bare("sy");
    leave_changed(&network);
    let journal = std::fs::read(network.path("journal")).unwrap();
    let refuses = |sys: &[&str], words: &[&str]| {
        let output = mixed(&network, sys, words);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {stderr}");
        assert!(stderr.contains("belongs to another network namespace"), "{words:?}: {stderr}");
        assert!(stderr.contains("ip netns exec") && stderr.contains("mount -t sysfs"), "{words:?}: {stderr}");
    };
    // The host's /sys has no in0; create one in the other namespace.
    refuses(&[], &["restore"]);
    let other = &network.names[1];
    let renamed = ["-n", other, "link", "set", "out0", "down", "name", "in0"];
    assert!(Command::new("ip").args(renamed).output().unwrap().status.success());
    let sys = ["ip", "netns", "exec", other];
    refuses(&sys, &["restore"]);
    refuses(&sys, &["sweep", "--interface", "in0", "--output", "/dev/null", "--", "echo", "1"]);
    refuses(&sys, &["show", "--interface", "in0", "--once"]);
    refuses(&sys, &["tune", "--interface", "in0", "--dry-run", "--for", "1"]);
    refuses(&sys, &["advise", "--interface", "in0"]);
    assert_eq!(std::fs::read(network.path("journal")).unwrap(), journal);
    assert!(network.longma(&["restore"]).output().unwrap().status.success());
    assert_eq!(mtu(&network, "in0"), "1500");
}

#[test]
fn removing_the_journal_does_not_allow_a_second_sweep() {
    if !can_change() {
        return;
    }
    let network = Network::bare("jr");
    let first = begun(&network, LOAD);
    std::fs::remove_file(network.path("journal")).unwrap();
    let second = sweep(&network, "1", "second.jsonl", LOAD).output().unwrap();
    let stderr = text(&second.stderr);
    assert!(!second.status.success() && stderr.contains("another longma"), "{stderr}");
    signal(&first, libc::SIGTERM);
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(mtu(&network, "in0"), "1500");
}

#[test]
fn signals_restore_settings_and_end_the_loads_processes() {
    if !can_change() {
        return;
    }
    let network = Network::bare("sg");
    let number = network.path("number");
    let load = format!("sleep 77 & echo $! > {}; sleep 1; echo 5 Gbit/s; wait", number.display());
    for asked in [libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGKILL] {
        let _ = std::fs::remove_file(&number);
        let sweep = begun(&network, &load);
        waits("no load", || std::fs::read_to_string(&number).is_ok_and(|number| number.ends_with('\n')));
        let left: u32 = std::fs::read_to_string(&number).unwrap().trim().parse().unwrap();
        signal(&sweep, asked);
        let ended = sweep.wait_with_output().unwrap();
        if asked == libc::SIGKILL {
            assert!(network.longma(&["restore"]).output().unwrap().status.success());
        } else {
            assert_eq!(ended.status.code(), Some(130), "{asked}: {}", text(&ended.stderr));
        }
        assert_eq!(mtu(&network, "in0"), "1500", "{asked}");
        waits("the load's child still runs", || !Path::new(&format!("/proc/{left}/fd/0")).exists());
    }
}

#[test]
fn a_closed_standard_error_does_not_end_a_sweep() {
    if !can_change() {
        return;
    }
    let network = Network::bare("pi");
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let mut command = sweep(&network, "1", "r.jsonl", "sleep 1; echo none; exit 1");
    let ended = command.stderr(closed()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let other = AFFINITY.command(&["report", "/nowhere"]).stderr(closed()).output().unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert_eq!(mtu(&network, "in0"), "1500");
}

#[test]
fn loads_and_files_cannot_control_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (file, page, log) = (path("r.jsonl"), path("r.html"), path("log"));
    let header = r#"{"affinity_sweep":1,"kernel":"6.1\u001b[31m","processor":"some\u009b31m","places":[{"cpu":0,"core":[0],"last_cache":[0],"socket":0,"node":0}],"nic":{"name":"e\u001b0","driver":null,"node":null,"speed_mbps":null,"mtu":1500,"state":"up","rx_queues":[0],"tx_queues":[0],"irqs":[]},"steering":{"rps":{"interface":"e\u001b0","queues":[0]}},"load":{"command":["x\u001b]0;t\u0007"]},"seconds":1,"sender":null}"#;
    let run = |rate: &str, failure: &str| {
        format!(
            r#"{{"pair":{{"flow":0,"application":0}},"class":"same-cpu","repeat":0,"at":0,"rate":{rate},"failure":{failure},"kernel":{{"seconds":1.0,"cpus":{{}},"interrupts":{{}},"receptions":{{}},"context_switches":0,"running_before":0}},"hardware":{{}},"migrations":null}}"#
        )
    };
    let rate = r#"{"gbps":5.0,"retransmits":null,"lost":null,"remote_cpu":null}"#;
    let is_plain = |output: &Output| {
        for text in [text(&output.stdout), text(&output.stderr)] {
            let order = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(order, None, "{text:?}");
        }
    };
    std::fs::write(&file, format!("{header}\n{}\n", run(rate, "null"))).unwrap();
    for words in [
        &["report", &file, "--html", &page][..],
        &["report", &file, "--format", "json"],
        &["advise", "--results", &file],
    ] {
        let output = AFFINITY.output(words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        is_plain(&output);
    }
    let drawn = std::fs::read_to_string(&page).unwrap();
    assert!(!drawn.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')));
    std::fs::write(&file, format!("{header}\n{}\n", run("null", "\"gone \\u001b[2J\""))).unwrap();
    is_plain(&AFFINITY.output(&["report", &file]));
    is_plain(&AFFINITY.output(&["advise", "--results", &file]));
    is_plain(&AFFINITY.output(&["show", "--once", "--interface", "e\x1b0"]));
    std::fs::write(
        &log,
        "{\"at\":1.0,\"act\":\"moved\",\"subject\":\"e\\u001b[31mv (7)\",\"why\":\"\\u009b2J\"}\n",
    )
    .unwrap();
    let why = AFFINITY.output(&["why", "--state", &log]);
    assert!(text(&why.stdout).contains("[31mv (7)"));
    is_plain(&why);
    // A damaged log is reported; a file that is not a log is an error.
    let decision = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, format!("{decision}{{\"at\":\n")).unwrap();
    let why = AFFINITY.output(&["why", "--state", &log]);
    assert!(text(&why.stdout).contains("(7)"));
    assert!(text(&why.stderr).contains("1 line is not a decision and is ignored"), "{}", text(&why.stderr));
    std::fs::write(&log, "\u{0}\u{0}letter\n").unwrap();
    assert!(AFFINITY.failure(&["why", "--state", &log]).contains("is not a log of decisions"));
}

#[test]
fn affinity_does_not_block_on_a_named_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let begin = Instant::now();
    let pipe = pipe.to_str().unwrap();
    assert!(AFFINITY.failure(&["report", pipe]).contains("it is empty"));
    assert!(AFFINITY.success(&["why", "--state", pipe]).contains("No decisions"));
    let modelled = ["sweep", "--model", "sandybridge-2x6", "--pair", "1,1", "--output", pipe];
    assert!(AFFINITY.failure(&modelled).contains("not a regular file"));
    let tune = AFFINITY.failure(&["tune", "--dry-run", "--interface", "lo", "--for", "1", "--state", pipe]);
    assert!(tune.contains("not a regular file"), "{tune}");
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn invalid_cpus_and_ports_are_rejected() {
    let tune = ["tune", "--dry-run", "--interface", "lo", "--for", "1"];
    let refused = |more: &[&str]| AFFINITY.failure(&[&tune[..], more].concat());
    assert!(refused(&["--cpus", "8000"]).contains("CPU 8000, which does not exist or is offline"));
    assert!(refused(&["--exclude-port", "0"]).contains("1..=65535"));
    let fraction = AFFINITY.failure(&["tune", "--dry-run", "--interface", "lo", "--for", "0.5"]);
    assert!(fraction.contains("give a whole number of seconds from 1 to 31536000"), "{fraction}");
    assert!(refused(&["--exclude-irq", "99999999"]).contains("no such interrupt"));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let remarks =
        AFFINITY.success(&[&tune[..], &["--exclude-port", "9", "--state", log.to_str().unwrap()]].concat());
    let remarks = remarks.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(remarks.contains("left alone: port 9"), "{remarks}");
    if rustix::process::geteuid().is_root() {
        let message = AFFINITY.failure(&["sweep", "--lab", "--sender", "8000"]);
        assert!(message.contains("--sender 8000: the CPU is not online"), "{message}");
    }
}
