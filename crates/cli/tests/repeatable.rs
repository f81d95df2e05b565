//! Tests that an experiment point has the same result for any location of the files, any user, and any spelling of the
//! program's path.

mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::*;
use serde_json::Value;
use tempfile::tempdir;

/// An experiment with two guests at `level` that measures `what`.
fn experiment(folder: &str, level: &str, what: &str) -> String {
    format!(
        r#"format = 1
name = "{level}"
title = "Two small guests"
workload = "program"
machines = ["loongson-3a5000"]
time_limit = "60 s"
[parameters]
folder = "{folder}"
arguments = ["8", "3"]
level = "{level}"
[sweep]
program = ["fft", "hello"]
[metrics.counted]
of = "{what}"
unit = "1"
"#
    )
}

/// The levels, and the measure that must be equal at each.
const LEVELS: [(&str, &str); 2] = [("functional", "instructions"), ("timing", "run.cycles")];

/// Creates a checkout with an experiment and its guests.
fn checkout(at: &Path, guests: &str) {
    fs::create_dir_all(at.join("experiments")).unwrap();
    fs::create_dir_all(at.join(guests)).unwrap();
    for (level, what) in LEVELS {
        let text = experiment(&format!("../{guests}"), level, what);
        fs::write(at.join(format!("experiments/{level}.toml")), text).unwrap();
    }
    for name in ["fft", "hello"] {
        fs::copy(guest(name), at.join(guests).join(name)).unwrap();
    }
}

/// Runs the experiments of a checkout from the folder `from` and returns the exports: every point with its key and
/// results.
fn run_and_export(checkout: &Path, from: &Path, variable: &str) -> String {
    LEVELS.map(|(level, _)| run_and_export_at(level, checkout, from, variable)).concat()
}

fn run_and_export_at(level: &str, checkout: &Path, from: &Path, variable: &str) -> String {
    let store = tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.args(["experiment", "run", "--jobs", "1", "--store"]).arg(store.path());
    command.arg(checkout.join(format!("experiments/{level}.toml"))).current_dir(from).env("EXTRA", variable);
    let output = finish(&mut command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::read_to_string(store.path().join(format!("{level}.jsonl"))).unwrap()
}

#[test]
fn an_experiment_gives_the_same_bytes_from_two_folders_and_a_copied_checkout() {
    let (short, long) = (tempdir().unwrap(), tempdir().unwrap());
    let copied = long.path().join("a/checkout/with/a/much/longer/name/than/the/other/one");
    checkout(short.path(), "guests");
    checkout(&copied, "guests");
    let moved = long.path().join("m");
    checkout(&moved, "elsewhere/prebuilt");
    let first = run_and_export(short.path(), short.path(), "1");
    assert_eq!(first.lines().count(), 4, "{first}");
    for line in first.lines() {
        let point: Value = serde_json::from_str(line).unwrap();
        assert!(point["counted"].as_f64().unwrap() > 1000.0, "{line}");
    }
    assert_eq!(run_and_export(&copied, Path::new("/"), "some longer text"), first);
    assert_eq!(
        run_and_export(&moved, long.path(), ""),
        first,
        "the location of the guests is not part of a result"
    );
}

/// The statistics of a program run in simulated time.
fn statistics(command: &mut Command, out: &Path) -> Value {
    let output = finish(command.env_clear());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&fs::read(out).unwrap()).unwrap();
    result["statistics"].clone()
}

#[test]
fn cycles_depend_on_the_stack_offset_but_not_on_folder_or_name() {
    let folder = tempdir().unwrap();
    let deep = folder.path().join("a/folder/that/is/rather/deep");
    fs::create_dir_all(&deep).unwrap();
    let out = folder.path().join("out.json");
    let run = |program: &Path, from: &Path, variable: &str, offset: &str| {
        let mut command = longma_run();
        command.args([
            "--level",
            "timing",
            "--quiet",
            "--stack-offset",
            offset,
            "--env",
            variable,
            "--stats-out",
        ]);
        statistics(command.arg(&out).arg(program).args(["8", "3"]).current_dir(from), &out)
    };
    let shallow = folder.path().join("fft");
    fs::copy(guest("fft"), &shallow).unwrap();
    fs::copy(guest("fft"), deep.join("fft")).unwrap();
    let by_path = run(&shallow, Path::new("/"), "A=b", "0");
    assert_eq!(run(Path::new("./fft"), folder.path(), "A=b", "0"), by_path);
    assert_eq!(run(Path::new("../../../../../../fft"), &deep, "A=b", "0"), by_path);
    assert_eq!(run(&deep.join("fft"), &deep, "A=a value that takes more room", "0"), by_path);
    let lower: Vec<Value> =
        ["1024", "4096", "8192"].iter().map(|offset| run(&shallow, Path::new("/"), "A=b", offset)).collect();
    assert!(lower.iter().any(|found| *found != by_path), "another stack, the same cycles");
}

/// Prints the target of the symbolic link that its argument names.
const PRINT_LINK: [u32; 15] = [
    load(A1, SP, 16),
    add(SP, SP, -512),
    add(A0, ZERO, -100),
    add(A2, SP, 0),
    add(A3, ZERO, 512),
    add(A7, ZERO, 78),
    SYSCALL,
    store(A0, SP, 504),
    load(A2, SP, 504),
    add(A1, SP, 0),
    add(A0, ZERO, 1),
    add(A7, ZERO, 64),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];
/// Exits with the result of faccessat for its argument.
const EXIT_WITH_ACCESS: [u32; 8] = [
    load(A1, SP, 16),
    add(A0, ZERO, -100),
    add(A2, ZERO, 0),
    add(A3, ZERO, 0),
    add(A7, ZERO, 48),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];
/// Exits with the lowest byte of the stack pointer.
const EXIT_WITH_STACK_POINTER: [u32; 3] = [add(A0, SP, 0), EXIT[0], EXIT[1]];
/// Exits with the lowest byte of getuid's result.
const EXIT_WITH_USER: [u32; 4] = [add(A7, ZERO, 174), SYSCALL, EXIT[0], EXIT[1]];
/// Prints the result of getcwd.
const PRINT_WORKING_DIRECTORY: [u32; 12] = [
    add(SP, SP, -512),
    add(A0, SP, 0),
    add(A1, ZERO, 512),
    add(A7, ZERO, 17),
    SYSCALL,
    add(A2, A0, -1),
    add(A1, SP, 0),
    add(A0, ZERO, 1),
    add(A7, ZERO, 64),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];

#[test]
fn a_simulated_program_sees_constant_names_that_work() {
    let folder = tempdir().unwrap();
    let put = |name: &str, code: &[u32]| -> PathBuf { place(folder.path(), name, &executable(code, &[])) };
    let run_simulated = |program: &Path, arguments: &[&str]| {
        let mut command = longma_run();
        finish(
            command
                .args(["--level", "cache", "--quiet"])
                .arg(program)
                .args(arguments)
                .current_dir(folder.path()),
        )
    };
    put("namer", &string_writer(8, 21));
    let named = run_simulated(Path::new("./namer"), &[]);
    assert_eq!(text(&named.stdout), "/longma/program/namer");
    let where_it_is = run_simulated(&put("where", &PRINT_WORKING_DIRECTORY), &[]);
    assert_eq!(text(&where_it_is.stdout), "/longma/here");
    assert_eq!(run_simulated(&put("user", &EXIT_WITH_USER), &[]).status.code(), Some(1000 % 256));
    let opener = put("opener", &OPENER);
    for path in ["/longma/program/opener", "/longma/here/namer", "/proc/self/exe", "namer"] {
        let opened = run_simulated(&opener, &[path]).status.code().unwrap();
        assert!((3..100).contains(&opened), "{path}: {opened}");
    }
    assert!(run_simulated(&opener, &["/longma/program/nothing"]).status.code().unwrap() > 100);
}

#[test]
fn the_directory_of_constant_names_exists_and_links_show_no_path_of_the_host() {
    let folder = tempdir().unwrap();
    let host = folder.path().canonicalize().unwrap();
    let put = |name: &str, code: &[u32]| place(&host, name, &executable(code, &[]));
    let (access, link) = (put("access", &EXIT_WITH_ACCESS), put("link", &PRINT_LINK));
    std::os::unix::fs::symlink(host.join("access"), host.join("pointer")).unwrap();
    let run = |program: &Path, argument: &str| {
        let mut command = longma_run();
        finish(command.arg("--fixed-names").arg(program).arg(argument).current_dir(&host))
    };
    for path in ["/longma", "/longma/", "/longma/.", "/longma/program", "/longma/here", "/longma/../proc"] {
        assert_eq!(run(&access, path).status.code(), Some(0), "{path}");
    }
    for path in ["/longma/proc", "/longma/nothing"] {
        assert_eq!(run(&access, path).status.code(), Some(256 - 2), "{path}");
    }
    for (path, target) in [
        ("pointer", "/longma/program/access"),
        ("/longma/here/pointer", "/longma/program/access"),
        ("/proc/self/cwd", "/longma/here"),
        ("/proc/thread-self/cwd", "/longma/here"),
    ] {
        assert_eq!(text(&run(&link, path).stdout), target, "{path}");
    }
    let mut command = longma_run();
    let opened = std::fs::File::open(host.join("access")).unwrap();
    let output = finish(
        command.arg("--fixed-names").arg(&link).arg("/proc/self/fd/0").current_dir(&host).stdin(opened),
    );
    assert_eq!(text(&output.stdout), "/longma/program/access");
}

#[test]
fn the_stack_start_depends_only_on_the_offset() {
    let folder = tempdir().unwrap();
    let program = place(folder.path(), "p", &executable(&EXIT_WITH_STACK_POINTER, &[]));
    for (offset, expected) in [("0", 0), ("16", 256 - 16), ("48", 256 - 48)] {
        for text in ["A=", "A=x", "A=a text that is longer than sixteen bytes"] {
            for level in [&["--stats"][..], &["--level", "cache"]] {
                let mut command = longma_run();
                command.env_clear().args(level).args(["--stack-offset", offset, "--env", text]).arg(&program);
                assert_eq!(finish(command.arg(text)).status.code(), Some(expected), "{offset} {text}");
            }
        }
    }
    let refused = finish(longma_run().args(["--stack-offset", "8"]).arg(&program));
    assert!(text(&refused.stderr).contains("multiple of 16"), "{}", text(&refused.stderr));
}
