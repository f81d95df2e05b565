//! Tests that the program's open files are independent of the command's own: numbers, limits, and both after execve.
//! Source: getrlimit(2), execve(2), close_range(2).

mod programs;

use std::os::unix::process::CommandExt;
use std::process::Command;

use programs::*;
use tempfile::tempdir;

const OPENAT_GIVES_EMFILE: i32 = 256 - libc::EMFILE;

/// `srli.d d, j, bits`
const fn shift_right(d: u32, j: u32, bits: u32) -> u32 {
    0x0045_0000 | bits << 10 | j << 5 | d
}

/// `beqz j`, with the offset as a number of instructions.
const fn if_zero(j: u32, by: i32) -> u32 {
    0x4000_0000 | (by as u32 & 0xffff) << 10 | j << 5 | (by as u32 >> 16 & 0x1f)
}

/// Executes its first argument with the remaining arguments and an empty environment; exits with the error if that
/// fails.
const EXECUTER: [u32; 7] =
    [load(A0, SP, 16), add(A1, SP, 24), add(A2, ZERO, 0), add(A7, ZERO, 221), SYSCALL, EXIT[0], EXIT[1]];

/// Duplicates descriptor 0 until that fails.
const FILLER: [u32; 5] =
    [add(A0, ZERO, 0), add(A7, ZERO, 23), SYSCALL, shift_right(A1, A0, 63), if_zero(A1, -4)];

/// close_range(3, 2^32 - 1, 0)
const CLOSER: [u32; 5] = [add(A0, ZERO, 3), add(A1, ZERO, -1), add(A2, ZERO, 0), add(A7, ZERO, 436), SYSCALL];

fn joined(parts: &[&[u32]]) -> Vec<u8> {
    executable(&parts.concat(), &[])
}

/// Sets the command's limit of open files.
fn limited(command: &mut Command, soft: u64, hard: u64) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

#[test]
fn programs_run_with_a_small_limit_on_open_files() {
    let folder = tempdir().unwrap();
    let opener = place(folder.path(), "opener", &executable(&OPENER, &[]));
    for (soft, hard) in [(900, 900), (256, 4096), (64, 64), (32, 32)] {
        for level in ["functional", "timing"] {
            let mut command = longma_run();
            command.args(["--quiet", "--level", level]).arg(&opener).arg("/dev/null");
            let output = finish(limited(&mut command, soft, hard));
            assert_eq!(output.status.code(), Some(3), "{soft} {hard} {level}: {}", text(&output.stderr));
        }
    }
    for few in [16, 20, 31] {
        let output = finish(limited(longma_run().arg(&opener).arg("/dev/null"), few, few));
        assert_eq!(output.status.code(), Some(124));
        let stderr: Vec<_> = text(&output.stderr).split_whitespace().map(str::to_string).collect();
        let stderr = stderr.join(" ");
        assert!(stderr.contains("ulimit -n") && stderr.contains("this host is at fault"), "{stderr}");
    }
}

/// Writes the soft and hard value of each limit, from prlimit64, to descriptor 1.
fn limits() -> Vec<u8> {
    let one = |resource| {
        let ask = [
            add(A0, ZERO, 0),
            add(A1, ZERO, resource),
            add(A2, ZERO, 0),
            add(A3, SP, -64),
            add(A7, ZERO, 261),
            SYSCALL,
        ];
        let say = [add(A0, ZERO, 1), add(A1, SP, -64), add(A2, ZERO, 16), add(A7, ZERO, 64), SYSCALL];
        [&ask[..], &say].concat()
    };
    let all: Vec<u32> = (0..16).flat_map(one).collect();
    joined(&[&all, &[add(A0, ZERO, 0)], &EXIT])
}

#[test]
fn a_simulated_program_sees_the_same_limits_on_every_host() {
    let folder = tempdir().unwrap();
    let program = place(folder.path(), "limits", &limits());
    let reported = |soft, hard, level: &[&str]| {
        let mut command = longma_run();
        let output = finish(limited(command.arg("--quiet").args(level).arg(&program), soft, hard));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 256), "{}", text(&output.stderr));
        output.stdout
    };
    let simulated = reported(1024, 4096, &["--level", "cache"]);
    let files = 16 * libc::RLIMIT_NOFILE as usize;
    assert_eq!(simulated[files..files + 16], [1024_u64.to_le_bytes(), 4096_u64.to_le_bytes()].concat());
    assert_eq!(simulated, reported(64, 64, &["--level", "cache"]));
    assert_eq!(simulated, reported(900, 900, &["--level", "timing"]));
    assert_ne!(reported(64, 64, &[]), reported(900, 900, &[]), "without a model they are the host's");
}

#[test]
fn descriptor_numbers_do_not_depend_on_options() {
    let folder = tempdir().unwrap();
    place(folder.path(), "opener", &executable(&OPENER, &[]));
    let at = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (opener, trace, calls, checkpoint) = (at("opener"), at("trace"), at("calls"), at("checkpoint"));
    let options: [&[&str]; 7] = [
        &["--stats"],
        &["--strace-out", &calls],
        &["--profile-out", &trace],
        &["--root", &at("")],
        &["--machine", "godson3"],
        &["--level", "timing", "--trace", &trace, "--strace-out", &calls],
        &["--level", "cache", "--machine", "godson3", "--checkpoint", &checkpoint, "--root", &at("")],
    ];
    for options in options {
        let is_confined = options.contains(&"--root");
        let program = if is_confined { "/opener" } else { &opener };
        let output = finish(longma_run().args(options).args([program, "/dev/null"]));
        assert_eq!(output.status.code(), Some(3), "{options:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_program_that_closes_every_descriptor_closes_none_of_the_commands() {
    let folder = tempdir().unwrap();
    let closer = place(folder.path(), "closer", &joined(&[&CLOSER, &[add(A0, ZERO, 5)], &EXIT]));
    let (trace, calls) = (folder.path().join("trace"), folder.path().join("calls"));
    let mut command = longma_run();
    command.args(["--level", "timing", "--machine", "godson3", "--trace"]).arg(&trace);
    let output = finish(command.arg("--strace-out").arg(&calls).arg(&closer));
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("instructions  8 "), "the summary: {}", text(&output.stderr));
    assert!(std::fs::read_to_string(&calls).unwrap().contains("exit_group(5)"));
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    assert!(!events["traceEvents"].as_array().unwrap().is_empty());
}

#[test]
fn execve_works_at_the_limit_of_open_files() {
    let folder = tempdir().unwrap();
    let executer = place(folder.path(), "executer", &joined(&[&FILLER, &EXECUTER]));
    let opener = place(folder.path(), "opener", &executable(&OPENER, &[]));
    let spinner = place(folder.path(), "spinner", &executable(&SPINNER, &[]));
    let run = |program: &std::path::Path| {
        let mut command = longma_run();
        command.arg(&executer).arg(program).args(["name", "/dev/null"]);
        finish(limited(&mut command, 64, 128)).status.code()
    };
    assert_eq!(run(&spinner), Some(7));
    assert_eq!(run(&opener), Some(OPENAT_GIVES_EMFILE));
}

#[test]
fn a_program_may_be_called_like_an_option() {
    let folder = tempdir().unwrap();
    let executer = place(folder.path(), "executer", &executable(&EXECUTER, &[]));
    for name in ["--level", "-", "--", "--env=A=B", ""] {
        let bytes = name.len() as i32;
        let writer = place(folder.path(), "writer", &executable(&string_writer(8, bytes), &[]));
        let output = finish(longma_run().arg(&executer).arg(&writer).arg(name));
        assert_eq!(text(&output.stdout), name, "{}", text(&output.stderr));
        let output = finish(longma_run().arg(format!("--argv0={name}")).arg(&writer));
        assert_eq!(text(&output.stdout), name, "{}", text(&output.stderr));
    }
}
