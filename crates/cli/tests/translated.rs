//! Programs for x86-64 that execute themselves anew: the command, started again, runs the next one.
//! Not what translated programs do otherwise: `longma-node` compares that.
//! Source: execve(2); `guests/c/exec.c`, `programs/pending.c`.

mod programs;

use std::path::Path;
use std::process::Command;

use programs::*;
use tempfile::tempdir;

/// Compiles a program whose path begins in this package. False without a compiler.
fn compile(source: &str, to: &Path) -> bool {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-w", "-static", "-o"]).arg(to);
    let done = compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source)).output();
    let compiled = done.is_ok_and(|done| done.status.success() && cfg!(target_arch = "x86_64"));
    if !compiled {
        eprintln!("left out: the host has no compiler that links programs for x86-64 statically");
    }
    compiled
}

#[test]
fn a_program_for_x86_executes_itself_by_every_name() {
    let directory = tempdir().unwrap();
    let program = directory.path().join("exec");
    if !compile("../../guests/c/exec.c", &program) {
        return;
    }
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/expected/exec.txt");
    let expected = std::fs::read_to_string(expected).unwrap();
    for extra in [&[][..], &["--interpret"]] {
        let done = finish(longma_run().args(extra).arg(&program));
        assert_eq!((text(&done.stdout), done.status.code()), (expected.clone(), Some(0)), "{extra:?}");
    }
}

#[test]
fn signals_that_are_blocked_stay_pending_over_execve_as_on_the_host() {
    let directory = tempdir().unwrap();
    let program = directory.path().join("pending");
    if !compile("tests/programs/pending.c", &program) {
        return;
    }
    let native = finish(&mut Command::new(&program));
    for extra in [&[][..], &["--interpret"]] {
        let done = finish(longma_run().args(extra).arg(&program));
        assert_eq!((text(&done.stdout), done.status.code()), (text(&native.stdout), Some(0)), "{extra:?}");
    }
}
