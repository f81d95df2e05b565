//! Random programs at every level: all print what was foreseen.
//! Not single ways to change code: those are in `directed.rs`.
//! Source: as `plan.rs`.
//!
//! `LONGMA_CODE_SECONDS=3600 cargo test -p longma-cli --test code_changes campaign` draws programs for an hour, from
//! `LONGMA_CODE_SEED` on (1 if it is not given). `LONGMA_QEMU` names a qemu-loongarch64 that runs them as well, but for those with a
//! second mapping of code, which it does not notice.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::programs::{executable, finish, longma_run, place, text};

const EXECUTIONS: [&[&str]; 5] =
    [&[], &["--stats"], &["--interpret"], &["--level", "cache"], &["--level", "timing"]];
/// Programs of the short form.
const PROGRAMS: u64 = 3;

fn number_from(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn check(folder: &Path, seed: u64) {
    let plan = Plan::random(seed);
    let program = place(folder, &format!("program-{seed}"), &executable(&plan.code(), &[]));
    let mut runs: Vec<(String, Command)> = EXECUTIONS
        .iter()
        .map(|extra| {
            let mut command = longma_run();
            command.args(*extra).arg(&program).env("LONGMA_SHAKE", seed.to_string());
            (format!("{extra:?}"), command)
        })
        .collect();
    if let Some(qemu) = std::env::var_os("LONGMA_QEMU").filter(|_| plan.is_plain()) {
        let mut command = Command::new(&qemu);
        command.arg(&program);
        runs.push((format!("{qemu:?}"), command));
    }
    for (name, mut command) in runs {
        // For who looks into a program that does not end.
        println!("seed {seed}, {name}");
        let done = finish(&mut command);
        let printed = done.stdout.try_into().map(u64::from_le_bytes);
        let wanted = Ok(plan.prints());
        let said = text(&done.stderr);
        assert_eq!(
            (printed, done.status.code()),
            (wanted, Some(0)),
            "seed {seed}, {name}: {said}\n{plan:#?}"
        );
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
