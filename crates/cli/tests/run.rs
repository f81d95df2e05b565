//! Tests `longma run`: input, output and exit statuses.

mod programs;

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use programs::*;
use serde_json::Value;
use tempfile::tempdir;

fn status(command: &mut Command) -> i32 {
    finish(command).status.code().expect("it exits")
}

#[test]
fn a_program_ends_the_command_with_its_own_exit_status_and_nothing_else_is_printed() {
    let folder = tempdir().unwrap();
    let spinner = place(folder.path(), "spinner", &executable(&SPINNER, &[]));
    for extra in [&[][..], &["--interpret"], &["--machine", "loongson-3a5000"], &["--level", "functional"]] {
        let output = finish(longma_run().args(extra).arg(&spinner));
        assert_eq!(output.status.code(), Some(7), "{extra:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

#[test]
fn a_program_killed_by_a_signal_kills_the_command_by_it() {
    let cases = [
        ("jump-to-zero", libc::SIGSEGV),
        ("read-null", libc::SIGSEGV),
        ("write-code", libc::SIGSEGV),
        ("run-garbage", libc::SIGILL),
        ("overflow-stack", libc::SIGSEGV),
        ("abort", libc::SIGABRT),
        ("trap", libc::SIGTRAP),
    ];
    for (case, signal) in cases {
        let output = finish(longma_run().arg(guest("misbehave")).arg(case));
        assert_eq!(
            output.status.signal(),
            Some(signal),
            "{case}: {:?} {}",
            output.status,
            text(&output.stderr)
        );
    }
}

/// The guest prints which call of which child hung.
#[test]
fn forked_children_do_not_wait_for_locks_of_other_threads() {
    for extra in [&[][..], &["--interpret"], &["--stats"]] {
        let output = finish(longma_run().args(extra).arg(guest("fork_storm")).args(["--", "20"]));
        assert_eq!(
            text(&output.stdout),
            "fork_storm 20 children, 0 hung, 0 wrong\n",
            "{extra:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn standard_input_and_output_are_the_programs() {
    let folder = tempdir().unwrap();
    let echo = place(folder.path(), "echo", &executable(&ECHO, &[]));
    let mut child = longma_run().arg(&echo).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"dragon horse").unwrap();
    let output = output(child);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("dragon horse", Some(12)));
}

/// Closes a descriptor in the child before the command starts.
fn with_closed(command: &mut Command, descriptor: i32) -> &mut Command {
    // SAFETY: close is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::close(descriptor);
            Ok(())
        })
    }
}

#[test]
fn a_standard_descriptor_that_is_closed_is_closed_for_the_program_too() {
    const EBADF: i32 = 256 - libc::EBADF;
    let folder = tempdir().unwrap();
    let reader = place(folder.path(), "reader", &executable(&READER, &[]));
    assert_eq!(status(longma_run().arg(&reader)), 0, "an empty file ends at once");
    let mut command = longma_run();
    assert_eq!(status(with_closed(command.arg(&reader), 0)), EBADF);
    let echo = place(folder.path(), "echo", &executable(&ECHO, &[]));
    let mut command = longma_run();
    let mut child = with_closed(command.arg(&echo), 1).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(output(child).status.code(), Some(EBADF));
}

#[test]
fn writing_to_a_closed_pipe_raises_sigpipe() {
    let folder = tempdir().unwrap();
    let echo = place(folder.path(), "echo", &executable(&ECHO, &[]));
    let mut child = longma_run().arg(&echo).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(output(child).status.signal(), Some(libc::SIGPIPE));
}

#[test]
fn ctrl_c_ends_a_program_and_the_command_by_sigint() {
    let folder = tempdir().unwrap();
    let endless = place(folder.path(), "endless", &executable(&[BRANCH_TO_SELF], &[]));
    let child = longma_run().arg(&endless).process_group(0).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    // SAFETY: the process group is the child's own.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGINT) };
    assert_eq!(output(child).status.signal(), Some(libc::SIGINT));
}

#[test]
fn the_programs_name_arguments_and_environment_are_as_the_options_say() {
    let folder = tempdir().unwrap();
    let name = place(folder.path(), "name", &executable(&string_writer(8, 4), &[]));
    let argument = place(folder.path(), "argument", &executable(&string_writer(16, 2), &[]));
    let variable = place(folder.path(), "variable", &executable(&string_writer(24, 5), &[]));
    let stdout = |command: &mut Command| text(&finish(command).stdout);
    assert_eq!(stdout(longma_run().args(["--argv0", "long"]).arg(&name)), "long");
    assert_eq!(stdout(longma_run().arg(&argument).args(["--", "-x"])), "-x");
    assert_eq!(stdout(longma_run().arg(&argument).args(["-y", "--"])), "-y");
    assert_eq!(
        stdout(longma_run().arg("--").arg(&argument).args(["--", "-x"])),
        "--",
        "the second -- is the program's"
    );
    assert_eq!(stdout(longma_run().env_clear().env("A", "one").arg(&variable)), "A=one");
    let mut changed = longma_run();
    changed.env_clear().env("A", "one").args(["--unset-env", "A", "--env", "B=two"]);
    assert_eq!(stdout(changed.arg(&variable)), "B=two");
}

#[test]
fn statistics_are_exact_and_the_same_interpreted_and_translated() {
    let folder = tempdir().unwrap();
    let spinner = place(folder.path(), "spinner", &executable(&SPINNER, &[]));
    let count = |extra: &[&str], program: &std::path::Path| {
        let mut command = longma_run();
        command.env_clear().args(["--stats", "--format", "json"]).args(extra).arg(program);
        let output = finish(&mut command);
        let object: Value = serde_json::from_slice(&output.stderr).unwrap();
        object["instructions"].as_u64().unwrap()
    };
    assert_eq!(count(&[], &spinner), 206);
    assert_eq!(count(&["--interpret"], &spinner), 206);
    let hello = guest("hello");
    assert_eq!(count(&[], &hello), count(&["--interpret"], &hello));
}

#[test]
fn the_statistics_for_people_name_every_figure() {
    let folder = tempdir().unwrap();
    let spinner = place(folder.path(), "spinner", &executable(&SPINNER, &[]));
    let output = finish(longma_run().arg("--stats").arg(&spinner));
    let printed = text(&output.stderr);
    for figure in ["exit status 7", "instructions        206", "blocks translated", "wall time", "user time"]
    {
        assert!(printed.contains(figure), "{figure} is missing in:\n{printed}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn the_profile_gives_every_function_its_instructions() {
    let folder = tempdir().unwrap();
    let functions = [("_start", CODE, 20), ("spin", SPIN, 12)];
    let spinner = place(folder.path(), "spinner", &executable(&SPINNER, &functions));
    let file = folder.path().join("profile.json");
    let output = finish(longma_run().arg("--profile").arg("--profile-out").arg(&file).arg(&spinner));
    insta::assert_snapshot!(text(&output.stderr));
    let profile: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(profile["instructions"], 206);
    assert_eq!(profile["functions"][0]["function"], "spin");
    assert_eq!(profile["functions"][0]["instructions"], 201);
    assert_eq!(profile["functions"][0]["start"], SPIN);
}

#[test]
fn an_unwritable_profile_changes_the_exit_status() {
    let output = finish(longma_run().args(["--profile-out", "/dev/full"]).arg(guest("hello")));
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write the profile to /dev/full"));
}

/// The instruction counts of a guest's functions, highest first.
fn executed(name: &str, given: &[&str]) -> Vec<(String, u64)> {
    let mut command = longma_run();
    let output = finish(command.args(["--profile", "--format", "json"]).arg(guest(name)).args(given));
    let profile: Value =
        serde_json::from_slice(text(&output.stderr).lines().last().unwrap().as_bytes()).unwrap();
    let functions = profile["functions"].as_array().unwrap().iter();
    let one = |f: &Value| (f["function"].as_str().unwrap().into(), f["instructions"].as_u64().unwrap());
    functions.map(one).collect()
}

#[test]
fn functions_of_a_program_linked_by_lld_are_named() {
    let functions = executed("memcpy", &["1"]);
    let names: Vec<&str> = functions.iter().map(|(name, _)| &**name).collect();
    for name in ["main", "memcpy", "memset"] {
        assert!(names[..6].contains(&name), "{name} is not among {names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with('[')), "{names:?}");
}

#[test]
fn the_guests_c_library_copies_words() {
    let (bytes, copies) = (65536, 100);
    let functions = executed("idma_memcpy", &["65536", "library", "0", "100"]);
    let (_, copying) = functions.iter().find(|(name, _)| name == "memcpy").unwrap();
    assert!(*copying < bytes * copies, "{copying} instructions for {copies} times {bytes} bytes");
}

#[test]
fn a_stripped_program_is_profiled_by_ranges_of_its_file() {
    let folder = tempdir().unwrap();
    let spinner = place(folder.path(), "stripped", &executable(&SPINNER, &[]));
    let output = finish(longma_run().args(["--profile", "--format", "json"]).arg(&spinner));
    let object: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(object["functions"][0]["function"], "[stripped+0x1000]");
    assert_eq!(object["functions"][0]["instructions"], 206);
}

#[test]
fn system_calls_are_printed_to_standard_error_or_to_a_file() {
    let folder = tempdir().unwrap();
    let spinner = place(folder.path(), "spinner", &executable(&SPINNER, &[]));
    let traced = finish(longma_run().arg("--strace").arg(&spinner));
    assert!(text(&traced.stderr).contains("exit_group(7)"), "{}", text(&traced.stderr));
    let file = folder.path().join("calls");
    std::fs::write(&file, "what was there before\n").unwrap();
    let output = finish(longma_run().arg("--strace-out").arg(&file).arg(&spinner));
    let calls = std::fs::read_to_string(&file).unwrap();
    assert!(
        output.stderr.is_empty() && calls.contains("exit_group(7)") && !calls.contains("before"),
        "{calls}"
    );
    let output = finish(longma_run().args(["--strace-out", "/dev/null"]).arg(&spinner));
    assert_eq!((text(&output.stderr), output.status.code()), (String::new(), Some(7)));
}

#[test]
fn a_program_that_executes_others_keeps_the_options_and_reports_once() {
    let expected = include_str!("../../../guests/expected/exec.txt");
    let folder = tempdir().unwrap();
    let calls = folder.path().join("calls");
    let mut command = longma_run();
    command.args(["--stats", "--machine", "loongson-3a5000", "--strace-out"]).arg(&calls);
    let output = finish(command.arg(guest("exec")));
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr).matches("instructions  ").count(), 1, "{}", text(&output.stderr));
    let calls = std::fs::read_to_string(&calls).unwrap();
    assert!(calls.matches("exit_group(").count() >= 3, "children are traced too");
}

#[test]
fn a_program_with_a_root_sees_only_its_root() {
    let outside = tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    let secret = secret.to_str().unwrap();
    let root = tempdir().unwrap();
    place(root.path(), "opener", &executable(&OPENER, &[]));
    std::fs::create_dir(root.path().join("etc")).unwrap();
    std::fs::write(root.path().join("etc/inside"), "").unwrap();
    std::os::unix::fs::symlink(secret, root.path().join("link")).unwrap();
    std::os::unix::fs::symlink("../../../../../../../..", root.path().join("up")).unwrap();
    std::os::unix::fs::symlink("/proc/self/root", root.path().join("etc/root")).unwrap();
    let open = |path: &str, directory: &std::path::Path| {
        let mut command = longma_run();
        status(command.current_dir(directory).arg("--root").arg(root.path()).args(["/opener", path]))
    };
    assert!((3..100).contains(&open("/etc/inside", outside.path())));
    assert!((3..100).contains(&open("/../../etc/inside", root.path())), "above / is /");
    let own = std::process::id();
    let paths = [
        secret.to_owned(),
        format!("../../../../../../..{secret}"),
        format!("/etc/../../../../..{secret}"),
        "secret".into(),
        "/link".into(),
        format!("/up{secret}"),
        format!("/etc/root{secret}"),
        format!("/proc/self/root{secret}"),
        format!("/proc/{own}/root{secret}"),
        format!("/proc/1/root{secret}"),
        format!("/proc/thread-self/root{secret}"),
        "/proc/self/cwd/secret".into(),
        format!("/proc/{own}/cwd/Cargo.toml"),
        format!("/proc/{own}/environ"),
        format!("/proc/{own}/maps"),
        "/proc/self/mem".into(),
        format!("/proc/self/fd/../root{secret}"),
        format!("/dev/fd/../../root{secret}"),
        format!("//proc//self//.//root{secret}"),
    ];
    for path in &paths {
        for directory in [root.path(), outside.path()] {
            let returned = open(path, directory);
            assert!(returned > 100, "{path} was opened from {}: {returned}", directory.display());
        }
    }
}

#[test]
fn a_thread_can_queue_a_fault_signal_to_itself() {
    const CODE_OF_INFO: i32 = 24;
    let system_call = |number: i32| [add(A7, ZERO, number), SYSCALL];
    let code = [
        // Block SIGSEGV.
        &[add(SP, SP, -256), add(A1, ZERO, 1 << 10), store(A1, SP, 0)],
        &[add(A0, ZERO, 0), add(A1, SP, 0), add(A2, ZERO, 0), add(A3, ZERO, 8)][..],
        &system_call(135),
        // Queue SIGSEGV with code SEGV_MAPERR to the process itself.
        &system_call(172),
        &[add(A1, ZERO, libc::SIGSEGV), store(A1, SP, 16), add(A2, ZERO, 1), store(A2, SP, CODE_OF_INFO)],
        &[add(A2, SP, 16)],
        &system_call(138),
        // rt_sigtimedwait returns the signal, and its code in the siginfo_t.
        &[store(ZERO, SP, CODE_OF_INFO), add(A0, SP, 0), add(A1, SP, 16), add(A2, ZERO, 0), add(A3, ZERO, 8)],
        &system_call(137),
        // add.d a0, a0, a1
        &[load(A1, SP, CODE_OF_INFO), 0x0010_8000 | A1 << 10 | A0 << 5 | A0],
        &EXIT,
    ]
    .concat();
    let folder = tempdir().unwrap();
    let sender = place(folder.path(), "sender", &executable(&code, &[]));
    let segv_maperr = libc::SIGSEGV + 1;
    for extra in [&[][..], &["--interpret"], &["--level", "cache", "--quiet"]] {
        let output = finish(longma_run().args(extra).arg(&sender));
        assert_eq!(output.status.code(), Some(segv_maperr), "{extra:?}: {:?}", output.status);
    }
}

/// Forks, marks the region, before or after waiting for the child, and exits; the child exits at once.
fn forker(waits: bool) -> Vec<u32> {
    const REGION: u32 = 0x0340_0000 | 0x4c1 << 10;
    let fork = [add(A0, ZERO, libc::SIGCHLD), add(A1, ZERO, 0), add(A7, ZERO, 220), SYSCALL];
    let child = [bnez(A0, 4), add(A0, ZERO, 0), EXIT[0], EXIT[1]];
    let wait = [
        add(A0, ZERO, -1),
        add(A1, ZERO, 0),
        add(A2, ZERO, 0),
        add(A3, ZERO, 0),
        add(A7, ZERO, 260),
        SYSCALL,
    ];
    let end = [REGION, add(A0, ZERO, 0), EXIT[0], EXIT[1]];
    [&fork[..], &child, if waits { &wait } else { &[] }, &end].concat()
}

#[test]
fn a_process_with_unwaited_children_cannot_be_saved() {
    let folder = tempdir().unwrap();
    let saved = folder.path().join("saved");
    for waits in [false, true] {
        let program = place(folder.path(), "forker", &executable(&forker(waits), &[]));
        let mut command = longma_run();
        let output =
            finish(command.args(["--level", "cache", "--roi", "--checkpoint"]).arg(&saved).arg(&program));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(stderr.contains("the process has children"), !waits, "{stderr}");
        assert_eq!(saved.exists(), waits, "{stderr}");
    }
}
