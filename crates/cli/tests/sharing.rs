//! Tests programs with shared memory in simulated time: outcomes forbidden by the memory model never occur, no update
//! is lost, and two runs give the same bytes under any host load.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
};

use proptest::{prelude::*, test_runner::Config};

/// Machines with a shared cache, with rings and crossbars, and with several nodes.
const MACHINES: [&str; 4] = ["loongson-3a5000", "godson3", "sandybridge-2x6", "hygon-8node"];

/// All timing models.
const LEVELS: [&[&str]; 3] =
    [&["cache"], &["timing", "--core", "in-order"], &["timing", "--core", "out-of-order"]];

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

fn expected(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/expected");
    std::fs::read_to_string(folder.join(name).with_extension("txt")).expect("the expected output exists")
}

/// Runs a guest with a time limit of two minutes.
fn longma(options: &[&str], program: &str, given: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("120").arg(env!("CARGO_BIN_EXE_longma")).arg("run").args(options);
    command.arg(guest(program)).args(given).output().expect("the command starts")
}

/// Runs a guest at a level with --quiet; returns its output and standard error if it succeeds.
fn at_level(level: &[&str], options: &[&str], program: &str, given: &[&str]) -> (String, String) {
    let run = longma(&[&["--level"], level, &["--quiet"], options].concat(), program, given);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&run.stdout), text(&run.stderr));
    assert!(
        run.status.success(),
        "{program} {given:?} at {level:?} {options:?}: {}\n{printed}{errors}",
        run.status
    );
    (printed, errors)
}

#[test]
fn litmus_tests_show_several_outcomes_and_no_forbidden_one() {
    for machine in MACHINES {
        let (printed, errors) = at_level(&["timing"], &["--machine", machine], "litmus", &["300"]);
        assert_eq!(printed, expected("litmus"), "{machine}");
        // Threads run one quantum after the other, and each sees all earlier stores: memory is sequentially consistent.
        assert!(
            errors.lines().count() == 12 && errors.lines().all(|line| line.ends_with(" 0 weak")),
            "{machine}: {errors}"
        );
        for test in ["SB", "MP", "LB", "IRIW", "2+2W"] {
            let line = errors.lines().find(|line| line.starts_with(test)).expect("each test has a line");
            let outcomes: u32 = line.split_once(": ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
            assert!(outcomes >= 3, "{machine}: threads hardly met: {line}");
        }
    }
}

#[test]
fn no_update_of_a_counter_is_lost_at_any_level() {
    // With load-linked and store-conditional, with atomic additions, and under two kinds of locks.
    let functional = longma(&[], "threads", &["3", "1500"]);
    assert_eq!(String::from_utf8_lossy(&functional.stdout), expected("threads"));
    for level in LEVELS {
        for cores in ["0-1", "0-3"] {
            assert_eq!(at_level(level, &["--cpu", cores], "threads", &["3", "1500"]).0, expected("threads"));
        }
    }
}

/// A run of a program that performs pseudorandom operations.
#[derive(Clone, Debug)]
struct Random {
    seed: u64,
    threads: u32,
    machine: usize,
    level: usize,
}

fn random() -> impl Strategy<Value = Random> {
    let parts = (any::<u64>(), 2u32..=4, 0..MACHINES.len(), 0..LEVELS.len());
    parts.prop_map(|(seed, threads, machine, level)| Random { seed, threads, machine, level })
}

impl Random {
    /// The program's output, and all statistics.
    fn run(&self, operations: u32) -> (String, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("counted.json");
        let options =
            ["--machine", MACHINES[self.machine], "--cpu", "0-3", "--stats-out", path.to_str().unwrap()];
        let given = [self.seed.to_string(), self.threads.to_string(), operations.to_string()];
        let given = [&*given[0], &*given[1], &*given[2]];
        let (printed, _) = at_level(LEVELS[self.level], &options, "sharing", &given);
        (printed, std::fs::read_to_string(path).expect("the result exists"))
    }
}

/// Spinning threads of this process, until dropped.
struct Load<'a>(&'a AtomicBool);

impl<'a> Load<'a> {
    fn begin<'s>(scope: &'s std::thread::Scope<'s, '_>, stop: &'a AtomicBool) -> Self
    where
        'a: 's,
    {
        for _ in 0..2 * std::thread::available_parallelism().map_or(2, |n| n.get()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Number of cases per property; more with LONGMA_CASES.
fn cases(usual: u32) -> Config {
    let requested = std::env::var("LONGMA_CASES").ok().and_then(|text| text.parse().ok());
    Config { cases: requested.unwrap_or(usual), failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(cases(10))]

    /// The program compares every word with a flat memory after the same operations, and fails on a difference.
    #[test]
    fn random_programs_leave_memory_as_a_flat_memory_would_be(random in random()) {
        let (printed, _) = random.run(3000);
        prop_assert!(printed.contains("unlike flat memory's: 0"), "{printed}");
        let functional = [random.seed.to_string(), random.threads.to_string(), "3000".into()];
        let functional = longma(&[], "sharing", &[&functional[0], &functional[1], &functional[2]]);
        prop_assert_eq!(String::from_utf8_lossy(&functional.stdout), printed);
    }
}

proptest! {
    #![proptest_config(cases(5))]

    #[test]
    fn statistics_of_random_programs_do_not_depend_on_host_load(random in random()) {
        let first = random.run(2000);
        let stop = AtomicBool::new(false);
        let (second, third) = std::thread::scope(|scope| {
            let second = random.run(2000);
            let load = Load::begin(scope, &stop);
            let third = random.run(2000);
            drop(load);
            (second, third)
        });
        prop_assert!(first == second, "two runs differ: {random:?}");
        prop_assert!(first == third, "a run beside others differs: {random:?}");
    }
}
