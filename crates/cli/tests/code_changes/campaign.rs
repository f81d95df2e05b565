//! Runs random self-modifying programs at every level and compares their output with the prediction of `plan.rs`.
//!
//! `LONGMA_CODE_SECONDS=3600 cargo test -p longma-cli --test code_changes campaign` generates programs for an hour,
//! starting at seed `LONGMA_CODE_SEED` (default 1). `LONGMA_QEMU` names a qemu-loongarch64 that also runs the programs,
//! except those with a second mapping of code, whose changes it does not detect. `LONGMA_LIMIT_SECONDS` is the time
//! limit of a program (default 30), for machines with other load.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::programs::{executable, finish, longma_run, place, text};

const MODES: [&[&str]; 5] =
    [&[], &["--stats"], &["--interpret"], &["--level", "cache"], &["--level", "timing"]];
/// Maximum number of runs under QEMU.
const QEMU_TRIES: u32 = 5;
/// Number of programs in the short form.
const PROGRAMS: u64 = 3;

fn number_from(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The program's output, its exit status, and its standard error.
fn run(name: &str, command: &mut Command) -> (Option<u64>, Option<i32>, String) {
    // Names the program in the test's output if it does not end.
    println!("{name}");
    let output = finish(command);
    (output.stdout.try_into().map(u64::from_le_bytes).ok(), output.status.code(), text(&output.stderr))
}

fn check(folder: &Path, seed: u64) {
    let plan = Plan::random(seed);
    let program = place(folder, &format!("program-{seed}"), &executable(&plan.code(), &[]));
    let expected = (Some(plan.predicted_output()), Some(0));
    for extra in MODES {
        let mut command = longma_run();
        command.args(extra).arg(&program).env("LONGMA_SHAKE", seed.to_string());
        let (printed, status, errors) = run(&format!("seed {seed}, {extra:?}"), &mut command);
        assert_eq!((printed, status), expected, "seed {seed}, {extra:?}: {errors}\n{plan:#?}");
    }
    if let Some(qemu) = std::env::var_os("LONGMA_QEMU").filter(|_| plan.is_plain()) {
        // QEMU's threads race at times (7.2: in about one of 400 programs on a busy machine), so retry. If no run
        // prints the prediction, it is wrong.
        let agrees = (1..=QEMU_TRIES).any(|attempt| {
            let name = format!("seed {seed}, {qemu:?}, try {attempt}");
            let (printed, status, errors) = run(&name, Command::new(&qemu).arg(&program));
            let agrees = (printed, status) == expected;
            if !agrees {
                println!("{name}: {printed:x?}, {status:?} for {expected:x?}: {errors}");
            }
            agrees
        });
        assert!(agrees, "seed {seed}: {qemu:?} never prints what was foreseen\n{plan:#?}");
    }
    std::fs::remove_file(program).unwrap();
}

#[test]
fn campaign_of_random_programs_that_change_their_code() {
    let folder = tempfile::tempdir().unwrap();
    let first = number_from("LONGMA_CODE_SEED").unwrap_or(1);
    match number_from("LONGMA_CODE_SECONDS") {
        None => (first..first + PROGRAMS).for_each(|seed| check(folder.path(), seed)),
        Some(seconds) => {
            let (begun, mut seed) = (Instant::now(), first);
            while begun.elapsed() < Duration::from_secs(seconds) {
                check(folder.path(), seed);
                seed += 1;
            }
            println!("{} programs, seeds {first} to {}", seed - first, seed - 1);
        }
    }
}
