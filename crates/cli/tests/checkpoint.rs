//! Tests that a checkpoint restores everything it contains, and that a process with unsupported state is rejected with
//! a reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn guests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests")
}

/// Runs `longma run` in a folder.
fn run(folder: &Path, options: &[&str], program: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command
        .arg("60")
        .arg(env!("CARGO_BIN_EXE_longma"))
        .args(["run", "--quiet", "--level", "cache"])
        .args(options);
    if let [name, arguments @ ..] = program {
        command.arg(guests().join("prebuilt/loongarch64").join(name)).args(arguments);
    }
    command.current_dir(folder).stdin(Stdio::null()).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_restored_process_has_all_its_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let expected = std::fs::read_to_string(guests().join("expected/kept.txt")).expect("it is committed");
    let saved = run(folder.path(), &["--checkpoint", "saved"], &["kept", "all", "stay"]);
    assert_eq!(text(&saved.stdout), expected, "{}", text(&saved.stderr));
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    let restored = run(folder.path(), &["--restore", "saved"], &[]);
    assert_eq!(text(&restored.stdout), expected, "{}", text(&restored.stderr));
    assert!(restored.status.success());
}

/// Each unsupported kind of state, and a part of the message.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("views", "is also mapped at"),
    ("shared_file", "is shared with a file"),
    ("segment", "is shared with a file or with other processes"),
    ("undo", "semaphore adjustments"),
    ("flock_held", "a locked or leased file"),
    ("range_locked", "a locked or leased file"),
    ("description_locked", "a locked or leased file"),
    ("sends_signals", "a file that sends signals"),
    ("packets", "a packet-mode pipe"),
    ("memory_file", "a file without a name"),
    ("deleted", "a file without a name"),
    ("renamed", "a file without a name"),
    ("a_socket", "a socket"),
    ("timer_file", "a timerfd"),
    ("signal_file", "signalfd"),
    ("watch", "inotify"),
    ("process_file", "pidfd"),
    ("named_pipe", "a named pipe"),
    ("closed_watched", "an epoll set that watches a file whose descriptor is closed"),
    ("child", "has children"),
    ("zombie", "has children"),
    ("pending", "pending signals"),
    ("priority", "changed its priority"),
    ("attributes", "set attributes with prctl"),
    ("processor_timer", "a CPU-time timer"),
];

#[test]
fn unsupported_state_is_rejected() {
    let mut failures = Vec::new();
    for (kind, message) in UNSUPPORTED {
        let folder = tempfile::tempdir().expect("a folder");
        let run = run(folder.path(), &["--checkpoint", "saved"], &["kept", kind]);
        let stderr = text(&run.stderr);
        let is_saved = folder.path().join("saved").exists();
        if is_saved || !stderr.contains("could not be saved") || !stderr.contains(message) {
            failures.push(format!("{kind}: {} {stderr}", if is_saved { "saved." } else { "" }));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_run_without_a_checkpoint_request_reports_that_nothing_was_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let ended = run(folder.path(), &["--checkpoint", "saved"], &["hello"]);
    let stderr = text(&ended.stderr);
    assert!(!folder.path().join("saved").exists(), "{stderr}");
    assert!(
        stderr.contains("no checkpoint was written to saved: the program neither began a region"),
        "{stderr}"
    );
}

#[test]
fn shared_memory_segment_zero_is_rejected_too() {
    let folder = tempfile::tempdir().expect("a folder");
    // The first segment of a new IPC namespace has the ID 0.
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--ipc", "timeout", "60"]).current_dir(folder.path());
    let is_possible = Command::new("unshare").args(["--map-root-user", "--ipc", "true"]).status();
    if !is_possible.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this host does not allow a new IPC namespace");
        return;
    }
    let program = guests().join("prebuilt/loongarch64/kept");
    command.arg(env!("CARGO_BIN_EXE_longma")).args([
        "run",
        "--quiet",
        "--level",
        "cache",
        "--checkpoint",
        "saved",
    ]);
    let output =
        command.arg(program).arg("segment").stdin(Stdio::null()).output().expect("the command starts");
    assert!(text(&output.stderr).contains("/SYSV00000000"), "{}", text(&output.stderr));
    assert!(!folder.path().join("saved").exists(), "{}", text(&output.stderr));
}

#[test]
fn an_inherited_pipe_is_that_of_the_restoring_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = guests().join("prebuilt/loongarch64/kept");
    let run = |before: &str, options: &str| {
        let longma = env!("CARGO_BIN_EXE_longma");
        let line = format!("{before} exec timeout 60 {longma} run --quiet --level cache {options}");
        Command::new("bash").args(["-c", &line]).current_dir(folder.path()).output().expect("bash runs")
    };
    let program = program.display();
    let saved = run("exec 9< <(echo -n first; sleep 3);", &format!("--checkpoint saved {program} outside"));
    assert_eq!(text(&saved.stdout), "first\n", "{}", text(&saved.stderr));
    let restored = run("exec 9< <(echo -n second; sleep 3);", "--restore saved");
    assert_eq!(text(&restored.stdout), "second\n", "{}", text(&restored.stderr));
    let without = run("exec 9<&-;", "--restore saved");
    assert_eq!(text(&without.stdout), "descriptor 9 is closed\n", "{}", text(&without.stderr));
}
