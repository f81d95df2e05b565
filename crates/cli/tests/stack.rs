//! Tests the size of the main thread's stack: the user's limit, however small, at level functional, and 8 MiB in
//! simulated time.
//! Source: getrlimit(2), execve(2).

mod programs;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use programs::*;
use tempfile::tempdir;

const KIB: u64 = 1 << 10;
/// The size of a guest page.
const GUEST_PAGE_BYTES: u64 = 16 * KIB;

/// `lu12i.w d, immediate`
const fn lu12i_w(d: u32, immediate: i32) -> u32 {
    0x1400_0000 | (immediate as u32 & 0xf_ffff) << 5 | d
}

/// `add.d d, j, k`
const fn add_d(d: u32, j: u32, k: u32) -> u32 {
    0x0010_8000 | k << 10 | j << 5 | d
}

/// `ori d, j, immediate`
const fn ori(d: u32, j: u32, immediate: u32) -> u32 {
    0x0380_0000 | immediate << 10 | j << 5 | d
}

/// Writes to every stack page from the top to `bytes` bytes below, and exits with 7.
fn stack_writer(bytes: u64) -> Vec<u32> {
    let steps = (bytes / GUEST_PAGE_BYTES) as i32;
    let mut code = vec![lu12i_w(A0, -4), lu12i_w(A2, steps >> 12), ori(A2, A2, steps as u32 & 0xfff)];
    code.extend([add_d(SP, SP, A0), store(ZERO, SP, 0), add(A2, A2, -1), bnez(A2, -3)]);
    code.extend([add(A0, ZERO, 7), EXIT[0], EXIT[1]]);
    code
}

/// Sets both limits to 32 MiB, then writes to the stack.
fn limit_raising_stack_writer(bytes: u64) -> Vec<u32> {
    let mut code = vec![lu12i_w(A1, 0x2000), add(SP, SP, -16), store(A1, SP, 0), store(A1, SP, 8)];
    code.extend([
        add(A0, ZERO, 0),
        add(A1, ZERO, 3),
        add(A2, SP, 0),
        add(A3, ZERO, 0),
        add(A7, ZERO, 261),
        SYSCALL,
    ]);
    code.extend(stack_writer(bytes));
    code
}

/// Sets the command's stack limit.
fn with_stack_limit(command: &mut Command, soft: u64, hard: u64) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.env_clear().pre_exec(move || match libc::setrlimit(libc::RLIMIT_STACK, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

/// Runs `code` with a stack limit. Returns its exit status, or the signal that ended it as an error.
fn run_with_stack_limit(code: &[u32], options: &[&str], soft: u64, hard: u64) -> Result<i32, i32> {
    let folder = tempdir().unwrap();
    let program = place(folder.path(), "program", &executable(code, &[]));
    let output = finish(with_stack_limit(longma_run().args(options).arg(&program), soft, hard));
    output.status.code().ok_or_else(|| output.status.signal().unwrap())
}

#[test]
fn programs_run_with_a_small_stack_limit() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (trace, counts) = (at("trace"), at("counts"));
    let all: [&[&str]; 8] = [
        &[],
        &["--interpret"],
        &["--stats", "--profile", "--format", "json"],
        &["--strace"],
        &["--machine", "godson3"],
        &["--level", "cache", "--machine", "godson3", "--stats-out", &counts],
        &["--level", "timing", "--core", "in-order", "--trace", &trace],
        &["--level", "timing", "--core", "out-of-order"],
    ];
    for limit in [64 * KIB, 128 * KIB] {
        for options in all {
            assert_eq!(run_with_stack_limit(&SPINNER, options, limit, limit), Ok(7), "{limit} {options:?}");
        }
        let output = finish(with_stack_limit(longma_run().arg("/nonexistent"), limit, limit));
        assert_eq!(output.status.code(), Some(127), "{limit}: {}", text(&output.stderr));
    }
}

#[test]
fn the_stack_size_follows_the_limit() {
    for (limit, within, beyond) in [
        (128 * KIB, 112 * KIB, 144 * KIB),
        (1024 * KIB, 992 * KIB, 1040 * KIB),
        (32 << 20, (32 << 20) - 32 * KIB, (32 << 20) + GUEST_PAGE_BYTES),
    ] {
        for options in [&[][..], &["--interpret"]] {
            assert_eq!(
                run_with_stack_limit(&stack_writer(within), options, limit, limit),
                Ok(7),
                "{limit} {options:?}"
            );
            assert_eq!(
                run_with_stack_limit(&stack_writer(beyond), options, limit, limit),
                Err(libc::SIGSEGV),
                "{limit} {options:?}"
            );
        }
    }
}

#[test]
fn raising_the_stack_limit_takes_effect_immediately() {
    let hard = libc::RLIM_INFINITY;
    assert_eq!(
        run_with_stack_limit(&limit_raising_stack_writer((32 << 20) - 32 * KIB), &[], 128 * KIB, hard),
        Ok(7)
    );
    assert_eq!(
        run_with_stack_limit(
            &limit_raising_stack_writer((32 << 20) + GUEST_PAGE_BYTES),
            &[],
            128 * KIB,
            hard
        ),
        Err(libc::SIGSEGV)
    );
}

/// Results must not depend on the user's limits.
#[test]
fn in_simulated_time_every_program_has_8_mib_of_stack() {
    for limit in [128 * KIB, 8 << 20, libc::RLIM_INFINITY] {
        for level in ["cache", "timing"] {
            let options = ["--quiet", "--level", level];
            assert_eq!(
                run_with_stack_limit(&stack_writer((8 << 20) - 80 * KIB), &options, limit, limit),
                Ok(7),
                "{limit}"
            );
            assert_eq!(
                run_with_stack_limit(&stack_writer(8 << 20), &options, limit, limit),
                Err(libc::SIGSEGV),
                "{limit}"
            );
        }
    }
}

#[test]
fn execve_works_with_a_small_stack_limit() {
    let folder = tempdir().unwrap();
    let copy = place(folder.path(), "exec", &std::fs::read(guest("exec")).unwrap());
    let output = finish(with_stack_limit(longma_run().arg(&copy), 128 * KIB, 128 * KIB));
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/expected/exec.txt");
    assert_eq!(text(&output.stdout), std::fs::read_to_string(expected).unwrap(), "{}", text(&output.stderr));
}
