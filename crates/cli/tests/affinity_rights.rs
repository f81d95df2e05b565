//! Tests `longma affinity` with restricted permissions: in a container, under a seccomp filter, or without helper
//! programs. It must report missing rights, do everything else, not hang, and print valid JSON. Source: seccomp(2);
//! Linux Documentation/userspace-api/seccomp_filter.rst.

#![cfg(target_os = "linux")]

mod subcommand;

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use subcommand::text;

/// The command with a time limit of one minute.
fn command(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_longma"), "affinity"]).args(words).current_dir("/");
    command
}

/// The command, in a shell with a private mount namespace that has run `before`.
fn mounted(before: &str, words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    let script = format!("{before} && exec \"$@\"");
    command.args(["60", "unshare", "--mount", "sh", "-ec", &script, "sh"]);
    command.args([env!("CARGO_BIN_EXE_longma"), "affinity"]).args(words).current_dir("/");
    command
}

/// Installs a seccomp filter that makes these calls fail with `error`, effective after exec.
fn refusing(command: &mut Command, calls: &[libc::c_long], error: i32) {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let (equal, back) =
        ((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, (libc::BPF_RET | libc::BPF_K) as u16);
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut filter = vec![step(load, 0, 0)];
    for (index, call) in calls.iter().enumerate() {
        // Jump over the remaining calls and the final ALLOW.
        filter.push(step(equal, (calls.len() - index) as u8, *call as u32));
    }
    filter.push(step(back, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(back, 0, libc::SECCOMP_RET_ERRNO | error as u32));
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: system calls with constants and a filter that lives as long as the closure.
        let is_permitted = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        if is_permitted { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(install) };
}

/// Commands that change nothing.
const QUESTIONS: [&[&str]; 6] = [
    &["check", "--format", "json"],
    &["show", "--once", "--interface", "lo", "--format", "json"],
    &["advise", "--interface", "lo", "--format", "json"],
    &["restore", "--journal", "/nowhere/journal", "--format", "json"],
    &["report", "/nowhere/r.jsonl", "--format", "json"],
    &["advise", "--results", "/nowhere/r.jsonl", "--format", "json"],
];

/// Checks that standard output is JSON or empty, errors are on standard error, and neither a panic nor the time limit
/// occurred.
fn is_answer(words: &[&str], output: &Output) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        !err.contains("panicked") && ![Some(101), Some(124), None].contains(&output.status.code()),
        "{words:?}: {err}"
    );
    if words.contains(&"tune") {
        out.lines().for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).expect(line)));
    } else if !out.is_empty() {
        serde_json::from_str::<serde_json::Value>(&out)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {out}"));
    }
    assert!(output.status.success() || !err.is_empty() || words[0] == "check", "{words:?}: no message");
}

fn all_answer(make: impl Fn(&[&str]) -> Command) {
    let log = tempfile::tempdir().unwrap();
    let log = log.path().join("log").to_str().unwrap().to_string();
    let tune = ["tune", "--dry-run", "--interface", "lo", "--for", "1", "--format", "json", "--state", &log];
    for words in QUESTIONS.iter().copied().chain([&tune[..], &["why", "--format", "json", "--state", &log]]) {
        is_answer(words, &make(words).output().unwrap());
    }
}

/// The finding about a subject.
fn finding(output: &Output, subject: &str) -> serde_json::Value {
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = all.as_array().unwrap().iter().find(|finding| finding["subject"] == subject);
    found.unwrap_or_else(|| panic!("{subject}: {all}")).clone()
}

#[test]
fn missing_programs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["sh", "cat"] {
        std::os::unix::fs::symlink(format!("/bin/{name}"), folder.path().join(name)).unwrap();
    }
    let checked = |path: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
        command.args(["affinity", "check", "--format", "json"]).env("PATH", path).output().unwrap()
    };
    let output = checked(folder.path());
    for (name, package) in [("iperf3", "package iperf3"), ("ip", "package iproute2")] {
        let finding = finding(&output, name);
        let advice = finding["advice"].as_str().unwrap();
        assert_eq!((&finding["weight"], &finding["found"]), (&"note".into(), &"not found in PATH".into()));
        assert!(advice.contains(package) && advice.contains("work without it"), "{finding}");
    }
    assert!(finding(&output, "iperf3")["advice"].as_str().unwrap().contains("-- COMMAND"));
    let nothing = checked(std::path::Path::new("/nowhere"));
    assert_eq!(finding(&nothing, "sh")["weight"], "prevents");
}

#[test]
fn filtered_system_calls_are_reported() {
    let calls = [libc::SYS_perf_event_open, libc::SYS_bpf, libc::SYS_unshare, libc::SYS_sched_setaffinity];
    for error in [libc::EPERM, libc::ENOSYS] {
        let make = |words: &[&str]| {
            let mut command = command(words);
            refusing(&mut command, &calls, error);
            command
        };
        all_answer(make);
        let output = make(&["check", "--format", "json"]).output().unwrap();
        let binding = finding(&output, "binding");
        assert_eq!(binding["weight"], "prevents", "{binding}");
        assert!(finding(&output, "namespaces")["advice"].as_str().unwrap().contains("--lab needs"));
        let counters = finding(&output, "counters");
        assert!(counters["advice"].as_str().unwrap().contains("seccomp"), "{counters}");
        if rustix::process::geteuid().is_root() {
            let swept = make(&["sweep", "--lab", "--output", "/nowhere/r.jsonl"]).output().unwrap();
            let stderr = text(&swept.stderr);
            assert!(stderr.contains("binding: no program can be bound to CPUs"), "{stderr}");
        }
    }
}

#[test]
fn restricted_proc_and_sys_are_reported() {
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    if !rustix::process::geteuid().is_root() || !tried.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: it needs root and unshare");
    }
    for before in [
        "mount --bind /proc/irq /proc/irq && mount -o remount,bind,ro /proc/irq",
        "mount -o remount,bind,ro /proc",
        "mount -o remount,bind,ro /sys",
        "mount -t tmpfs none /proc/irq",
        "mount -t tmpfs none /sys/fs/cgroup",
        "mount -t tmpfs none /sys/devices/system/cpu",
        "mount -t proc -o hidepid=2 proc /proc",
        "mount -t tmpfs none /sys",
        "mount -t tmpfs none /proc",
    ] {
        let works = mounted(before, &["--help"]).output().unwrap().status.success();
        if !works {
            eprintln!("skipped: {before}");
            continue;
        }
        all_answer(|words| mounted(before, words));
        println!("answered: {before}");
    }
    let without = |words: &[&str]| mounted("mount -t tmpfs none /proc", words).output().unwrap();
    let output = without(&["check", "--format", "json"]);
    assert_eq!((&finding(&output, "proc")["weight"], output.status.code()), (&"prevents".into(), Some(1)));
    assert_eq!(finding(&output, "other load")["weight"], "disturbs");
    let shown = text(&without(&["show", "--once", "--interface", "lo"]).stdout);
    assert!(shown.contains("? %") && !shown.contains(" 0 %"), "{shown}");
    // A network namespace whose interface has queues that cannot be written.
    let script = "unshare --net sh -ec 'mount -t sysfs -o ro sysfs /sys && ip link add in0 type veth && ip link set in0 up && exec \"$@\"' sh";
    let mut check = Command::new("timeout");
    check.args(["60", "unshare", "--mount", "sh", "-ec", &format!("exec {script} \"$@\""), "sh"]);
    check.args([env!("CARGO_BIN_EXE_longma"), "affinity", "check", "--interface", "in0", "--format", "json"]);
    let output = check.output().unwrap();
    if output.stdout.is_empty() {
        return eprintln!("skipped: {}", text(&output.stderr));
    }
    let writing = finding(&output, "writing");
    assert_eq!(writing["weight"], "prevents", "{writing}");
    assert!(writing["found"].as_str().unwrap().contains("Read-only"), "{writing}");
}

#[test]
fn all_queries_work_without_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: it needs root to give it up");
    }
    for give_up in [
        &["--bounding-set=-all", "--inh-caps=-all"][..],
        &["--reuid=65534", "--regid=65534", "--clear-groups"],
    ] {
        let make = |words: &[&str]| {
            let mut command = Command::new("timeout");
            command
                .args(["60", "setpriv"])
                .args(give_up)
                .arg(env!("CARGO_BIN_EXE_longma"))
                .arg("affinity")
                .args(words);
            command.current_dir("/").env("HOME", "/nowhere");
            command
        };
        let output = make(&["check", "--format", "json"]).output();
        let Some(output) = output.ok().filter(|output| !output.stdout.is_empty()) else {
            return eprintln!("skipped: it needs setpriv");
        };
        all_answer(make);
        let subject = if give_up[0].starts_with("--bounding") { "capabilities" } else { "rights" };
        println!("{}", finding(&output, subject));
    }
}
