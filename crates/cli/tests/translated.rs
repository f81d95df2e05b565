//! Programs for x86-64 that execute themselves anew: the command, started again, runs the next one.
//! Not what translated programs do otherwise: `longma-node` compares that.
//! Source: execve(2); `guests/c/exec.c`.

mod programs;

use std::path::Path;
use std::process::Command;

use programs::*;
use tempfile::tempdir;

#[test]
fn a_program_for_x86_executes_itself_by_every_name() {
    let directory = tempdir().unwrap();
    let program = directory.path().join("exec");
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-w", "-static", "-o"]).arg(&program);
    let done = compiler.arg(guests.join("c/exec.c")).output();
    if !done.is_ok_and(|done| done.status.success() && cfg!(target_arch = "x86_64")) {
        eprintln!("left out: the host has no compiler that links programs for x86-64 statically");
        return;
    }
    let expected = std::fs::read_to_string(guests.join("expected/exec.txt")).unwrap();
    for extra in [&[][..], &["--interpret"]] {
        let done = finish(longma_run().args(extra).arg(&program));
        assert_eq!((text(&done.stdout), done.status.code()), (expected.clone(), Some(0)), "{extra:?}");
    }
}
