//! Tests that the system information seen by a simulated program does not depend on the user or the environment of the
//! run.
//! Source: umask(2), getpriority(2), getpgrp(2), getsid(2), proc(5).

mod programs;

use std::os::unix::process::CommandExt;
use std::process::Command;

use programs::*;
use tempfile::tempdir;

const FILES: [&str; 7] = [
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/cpuinfo",
    "/proc/self/stat",
    "/proc/self/status",
];

/// A program that writes the results of calls and the contents of the files named by its arguments.
fn report_program() -> Vec<u8> {
    // umask, getpriority, getpgid, getsid, sched_getscheduler, ioprio_get: number and first argument
    let calls = [(166, 0o22), (141, 0), (155, 0), (156, 0), (120, 0), (31, 1)].map(|(number, argument)| {
        let call = [add(A0, ZERO, argument), add(A1, ZERO, 0), add(A7, ZERO, number), SYSCALL];
        let say = [store(A0, SP, -64), add(A0, ZERO, 1), add(A1, SP, -64), add(A2, ZERO, 8)];
        [&call[..], &say, &[add(A7, ZERO, 64), SYSCALL]].concat()
    });
    let files = (0..FILES.len() as i32).map(|index| {
        let open = [add(A0, ZERO, -100), load(A1, SP, 16 + 8 * index), add(A2, ZERO, 0), add(A7, ZERO, 56)];
        let read = [add(A1, SP, -2048), add(A2, ZERO, 1900), add(A7, ZERO, 63), SYSCALL];
        let write = [add(A2, A0, 0), add(A0, ZERO, 1), add(A1, SP, -2048), add(A7, ZERO, 64), SYSCALL];
        [&open[..], &[SYSCALL], &read, &write].concat()
    });
    let code: Vec<u32> =
        calls.into_iter().chain(files).flatten().chain([add(A0, ZERO, 0), EXIT[0], EXIT[1]]).collect();
    executable(&code, &[])
}

/// Runs the command with another umask and priority, in a new session.
fn otherwise(command: &mut Command) -> &mut Command {
    // SAFETY: all three are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0o077);
            libc::setpriority(libc::PRIO_PROCESS, 0, 7);
            libc::setsid();
            Ok(())
        })
    }
}

#[test]
fn system_information_does_not_depend_on_the_user() {
    let folder = tempdir().unwrap();
    let program = place(folder.path(), "told", &report_program());
    for level in ["cache", "timing"] {
        let run = |change: fn(&mut Command) -> &mut Command| {
            let mut command = longma_run();
            command.args(["--quiet", "--level", level]).arg(&program).args(FILES);
            let output = finish(change(&mut command));
            assert_eq!(output.status.code(), Some(0), "{level}: {}", text(&output.stderr));
            output.stdout
        };
        let (first, second) = (run(|command| command), run(otherwise));
        let (first_text, second_text) = (String::from_utf8_lossy(&first), String::from_utf8_lossy(&second));
        assert_eq!(first_text, second_text, "{level}");
        assert_eq!(first[..8], 0o22_u64.to_le_bytes());
        assert!(first_text.contains("MemTotal:       16777216 kB"), "the machine's: {first_text}");
    }
}

#[test]
fn the_umask_is_inherited_across_execve() {
    let folder = tempdir().unwrap();
    let printer = place(folder.path(), "told", &report_program());
    // umask(077), then execve of the first argument with the remaining ones.
    let code = [
        add(A0, ZERO, 0o77),
        add(A7, ZERO, 166),
        SYSCALL,
        load(A0, SP, 16),
        add(A1, SP, 16),
        add(A2, ZERO, 0),
        add(A7, ZERO, 221),
        SYSCALL,
        EXIT[0],
        EXIT[1],
    ];
    let masker = place(folder.path(), "masker", &executable(&code, &[]));
    let mut command = longma_run();
    let output = finish(command.args(["--quiet", "--level", "cache"]).arg(masker).arg(printer).args(FILES));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(output.stdout[..8], 0o77_u64.to_le_bytes());
}
