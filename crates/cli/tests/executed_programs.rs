//! Tests that the results of a run cover the programs that the program executes, at every level and in every output.
//! Source: execve(2); perf-stat(1), which counts a process across execve.

mod programs;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use programs::*;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

const QUEENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/loongarch64/queens");
const HELLO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/loongarch64/hello");
const QUEENS_OF_ARM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/aarch64/queens");

/// Compiles a C program of these tests for the host, statically; `None` without a compiler.
fn compiled(name: &str, directory: &TempDir) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let program = directory.path().join(name).with_extension("");
    let mut command = Command::new("cc");
    command.args(["-O1", "-w", "-static", "-pthread", "-I"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/include"));
    let done = command.arg("-o").arg(&program).arg(source).output();
    let works = cfg!(target_arch = "x86_64") && done.is_ok_and(|done| done.status.success());
    if !works {
        eprintln!("skipped: there is no cc that links static programs");
    }
    works.then_some(program)
}

fn result(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn instructions(result: &Value) -> u64 {
    result["statistics"]["run"]["instructions"]["value"].as_u64().unwrap()
}

fn functions(result: &Value) -> Vec<&str> {
    let functions = result["functions"].as_array().unwrap();
    functions.iter().map(|function| function["function"].as_str().unwrap()).collect()
}

#[test]
fn results_cover_the_programs_that_a_shell_executes() {
    let directory = tempdir().unwrap();
    let shell = Path::new("/bin/sh");
    if !shell.exists() || !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: there is no shell for x86-64");
        return;
    }
    for level in ["cache", "timing"] {
        let run = |name: &str, program: &[&str]| {
            let file = directory.path().join(name);
            let mut command = longma_run();
            command.args(["--level", level, "--quiet", "--stats-out"]).arg(&file).args(program);
            let done = finish(&mut command);
            assert!(done.status.success(), "{}", text(&done.stderr));
            (text(&done.stdout), std::fs::read(&file).unwrap(), result(&file))
        };
        let (direct_text, _, direct) = run("direct", &[QUEENS, "6", "4"]);
        let script = format!("exec {QUEENS} 6 4");
        let (shell_text, bytes, whole) = run("whole", &["/bin/sh", "-c", &script]);
        assert_eq!(shell_text, direct_text, "{level}");
        assert!(
            instructions(&whole) > instructions(&direct) + 10_000,
            "{level}: the shell's are counted too"
        );
        let programs = whole["programs"].as_array().unwrap();
        assert_eq!(programs.len(), 2, "{programs:?}");
        assert!(programs[1].as_str().unwrap().ends_with("queens"), "{programs:?}");
        for name in functions(&direct).iter().take(3) {
            assert!(functions(&whole).contains(name), "{level}: {name}");
        }
        let (_, again, _) = run("again", &["/bin/sh", "-c", &script]);
        assert!(bytes == again, "{level}: equal runs have equal results");
    }
}

#[test]
fn every_output_of_a_simulated_run_covers_an_executed_program() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes.c", &directory) else { return };
    let script = directory.path().join("script");
    std::fs::write(&script, format!("#!{HELLO}\n")).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    for executed in [&[QUEENS, "5", "20"][..], &[QUEENS_OF_ARM, "5", "20"], &[script]] {
        let file = |name: &str| directory.path().join(name);
        let mut command = longma_run();
        command.args(["--level", "timing", "--format", "json", "--annotate", "--stats-every", "100000"]);
        for (option, name) in [
            ("--stats-out", "stats.json"),
            ("--report", "page.html"),
            ("--trace", "trace.json"),
            ("--champsim", "trace.champsim"),
        ] {
            command.arg(option).arg(file(name));
        }
        let done = finish(command.arg(&program).arg("whole").args(executed));
        assert!(done.status.success(), "{executed:?}: {}", text(&done.stderr));
        assert!(text(&done.stdout).starts_with("first program "), "{executed:?}");
        let whole = result(&file("stats.json"));
        let all = instructions(&whole);
        assert_eq!(whole["programs"].as_array().unwrap().len(), 2, "{executed:?}");
        assert!(functions(&whole).contains(&"first_program"), "{executed:?}: {:?}", functions(&whole));
        assert!(functions(&whole).len() > 5, "{executed:?}");
        let of_functions: u64 = whole["functions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|function| function["instructions"].as_u64().unwrap())
            .sum();
        assert_eq!(of_functions, all, "{executed:?}: each instruction is in a function");
        let page = std::fs::read_to_string(file("page.html")).unwrap();
        assert!(page.contains("first_program"), "{executed:?}");
        let records = std::fs::metadata(file("trace.champsim")).unwrap().len() / 64;
        assert_eq!(records, all, "{executed:?}: the ChampSim trace has every instruction");
        let snapshots = std::fs::read_to_string(file("stats.jsonl")).unwrap();
        assert_eq!(snapshots.lines().count() as u64, all / 100_000, "{executed:?}");
        let printed: Value =
            serde_json::from_str(text(&done.stderr).lines().find(|line| line.starts_with('{')).unwrap())
                .unwrap();
        let total = printed["annotation"]["total"]["runs"].as_u64().unwrap();
        assert!(total >= all / 3, "{executed:?}: {total} of {all}");
        assert!(result(&file("trace.json"))["traceEvents"].is_array(), "{executed:?}");
    }
}

/// The constant name of a directory means the same one after execve, whatever the directory of the next program.
#[test]
fn names_that_a_program_passes_on_refer_to_the_same_files() {
    let directory = tempdir().unwrap();
    let (outer, inner) = (directory.path().join("data"), directory.path().join("inner"));
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(&outer, "outer").unwrap();
    std::fs::write(inner.join("data"), "inner").unwrap();
    if !cfg!(target_arch = "x86_64") || !Path::new("/bin/cat").exists() || !Path::new("/bin/sh").exists() {
        eprintln!("skipped: there is no shell and no cat for x86-64");
        return;
    }
    for level in ["functional", "cache"] {
        let mut command = longma_run();
        command.env_clear().current_dir(directory.path()).args(["--level", level, "--quiet"]);
        command.args(["/bin/sh", "-c", "D=$(pwd -P); cd inner; exec /bin/cat $D/data"]);
        let done = finish(&mut command);
        assert_eq!(text(&done.stdout), "outer", "{level}: {}", text(&done.stderr));
    }
}

/// Forks, executes its first argument with the others in the child, and exits with the child's status.
const FORKER: [u32; 23] = [
    add(A0, ZERO, 17),
    add(A1, ZERO, 0),
    add(A2, ZERO, 0),
    add(A3, ZERO, 0),
    add(A7, ZERO, 220),
    SYSCALL,
    bnez(A0, 8),
    load(A0, SP, 16),
    add(A1, SP, 16),
    add(A2, ZERO, 0),
    add(A7, ZERO, 221),
    SYSCALL,
    EXIT[0],
    EXIT[1],
    add(A0, ZERO, -1),
    add(A1, SP, -16),
    add(A2, ZERO, 0),
    add(A3, ZERO, 0),
    add(A7, ZERO, 260),
    SYSCALL,
    // The second byte of the status is the exit code.
    load(A0, SP, -15),
    EXIT[0],
    EXIT[1],
];

#[test]
fn names_that_a_forked_child_passes_on_refer_to_the_same_files() {
    let directory = tempdir().unwrap();
    let folder = |name: &str| {
        let folder = directory.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let (outer, inner) = (folder("outer"), folder("inner"));
    let forker = place(&outer, "forker", &executable(&FORKER, &[]));
    let opener = place(&inner, "opener", &executable(&OPENER, &[]));
    std::fs::write(outer.join("data"), "").unwrap();
    for options in [&["--level", "cache"][..], &["--fixed-names"]] {
        let code = |file: &str| {
            let mut command = longma_run();
            command.args(options).arg("--quiet").args([&forker, &opener]).arg(file);
            finish(&mut command).status.code().unwrap()
        };
        let opened = code("/longma/program/data");
        assert!((3..100).contains(&opened), "{options:?}: {opened}");
        assert!(code("/longma/program/opener") > 100, "{options:?}");
    }
}

#[test]
fn a_region_of_interest_and_limits_continue_in_an_executed_program() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes.c", &directory) else { return };
    let run = |options: &[&str], what: &str| {
        let file = directory.path().join("result.json");
        let mut command = longma_run();
        command.args(["--level", "timing", "--quiet", "--stats-out"]).arg(&file).args(options);
        let done = finish(command.arg(&program).args([what, QUEENS, "6", "40"]));
        assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
        result(&file)
    };
    let whole = run(&[], "whole");
    let region = run(&["--roi"], "roi");
    assert!(functions(&region).contains(&"first_program"));
    let counted = instructions(&region);
    assert!(counted > 500_000 && counted < instructions(&whole), "{counted}");
    let limited = run(&["--max-instructions", "700000"], "whole");
    assert_eq!(limited["stopped"], "max-instructions");
    assert_eq!(limited["programs"].as_array().unwrap().len(), 2);
    let sampled = run(&["--sample=every=20k,unit=1k,detail=1k"], "whole");
    assert_eq!(instructions(&sampled), instructions(&whole));
    assert!(functions(&sampled).contains(&"first_program"));
}

#[test]
fn a_thread_that_executes_a_program_ends_the_others() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes_in_thread.c", &directory) else { return };
    for level in ["cache", "timing"] {
        let file = directory.path().join("result.json");
        let mut command = longma_run();
        command.args(["--level", level, "--quiet", "--stats-out"]).arg(&file).arg(&program);
        command.args([QUEENS, "5", "20"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().unwrap();
        // Open until the end, so that the read never returns by itself.
        let input = running.stdin.take();
        let done = running.wait_with_output().unwrap();
        drop(input);
        let said = text(&done.stderr);
        assert!(done.status.success(), "{level}: {said}");
        assert!(said.contains("execve: No such file or directory"), "{level}: {said}");
        assert!(!text(&done.stdout).contains("read") && !text(&done.stdout).contains("slept"), "{level}");
        assert_eq!(result(&file)["programs"].as_array().unwrap().len(), 2, "{level}");
    }
}

#[test]
fn a_program_that_cannot_be_simulated_is_refused_and_the_run_goes_on() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes.c", &directory) else { return };
    // The header of a program for RISC-V.
    let mut other = std::fs::read(QUEENS).unwrap();
    other[18..20].copy_from_slice(&243u16.to_le_bytes());
    let other_path = directory.path().join("other");
    std::fs::write(&other_path, other).unwrap();
    std::fs::set_permissions(&other_path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = directory.path().join("result.json");
    let mut command = longma_run();
    command.args(["--level", "timing", "--quiet", "--stats-out"]).arg(&file).arg(&program).arg("whole");
    let done = finish(command.arg(&other_path));
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("other is not executed (ENOEXEC)") && said.contains("Exec format error"), "{said}");
    assert!(functions(&result(&file)).contains(&"first_program"));
}

#[test]
fn functional_statistics_and_profiles_cover_executed_programs() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes.c", &directory) else { return };
    let file = directory.path().join("profile.json");
    let mut command = longma_run();
    command.args(["--stats", "--profile", "--format", "json", "--profile-out"]).arg(&file).arg(&program);
    let done = finish(command.args(["whole", QUEENS, "5", "20"]));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stderr);
    let printed: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(said.lines().count(), 1, "failed attempts print nothing: {said}");
    assert_eq!(printed["programs"].as_array().unwrap().len(), 2, "{printed}");
    for report in [&printed, &result(&file)] {
        let names = functions(report);
        assert!(names.contains(&"first_program") && names.len() > 10, "{names:?}");
    }
    let total = printed["instructions"].as_u64().unwrap();
    let sum: u64 = printed["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|function| function["instructions"].as_u64().unwrap())
        .sum();
    assert_eq!(total, sum);
}

#[test]
fn statistics_up_to_a_program_of_the_host_are_printed_with_a_warning() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes.c", &directory) else { return };
    let mut command = longma_run();
    let done = finish(command.arg("--stats").arg(&program).args(["whole", "/bin/sh", "-c", "echo here"]));
    let said = text(&done.stderr);
    assert!(text(&done.stdout).ends_with("here\n"), "{said}");
    assert!(said.contains("/bin/sh itself, so it is not counted"), "{said}");
    assert!(said.contains("executed /bin/sh") || said.contains("executed /usr/bin/"), "{said}");
    assert!(said.contains("instructions"), "{said}");
}

#[test]
fn an_annotated_range_without_symbols_costs_what_the_profile_says() {
    let directory = tempdir().unwrap();
    let Some(program) = compiled("executes.c", &directory) else { return };
    let stripped = directory.path().join("stripped");
    let done = Command::new("strip").arg("-o").arg(&stripped).arg(&program).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no strip");
        return;
    }
    // A program for x86-64 and one for LoongArch, of which the host's tools cannot remove the symbols.
    for level in ["cache", "timing"] {
        let all = run_annotated(level, "", &stripped);
        let rows = all["functions"].as_array().unwrap();
        assert!(rows.len() > 10 && rows[0]["function"].as_str().unwrap().starts_with("[stripped+0x"));
        for row in rows.iter().take(5) {
            let name = row["function"].as_str().unwrap();
            let annotated = run_annotated(level, name, &stripped);
            let function = &annotated["annotation"]["functions"][0];
            assert_eq!(function["function"], name);
            for key in ["mispredicts", "fetch_misses"] {
                assert_eq!(function[key], row[key], "{level}, {name}: {key}");
            }
            let [cycles, of_row] =
                [&function["cycles"], &row["cycles"]].map(|cycles| cycles.as_f64().unwrap());
            assert!(
                (cycles - of_row).abs() < 1e-6 * of_row.max(1.0),
                "{level}, {name}: {cycles} and {of_row}"
            );
        }
    }
}

fn run_annotated(level: &str, function: &str, program: &Path) -> Value {
    let mut command = longma_run();
    let annotate = if function.is_empty() { "--annotate".into() } else { format!("--annotate={function}") };
    command.args(["--level", level, "--format", "json", &annotate]).arg(program).args(["whole", "/"]);
    let done = finish(&mut command);
    serde_json::from_str(text(&done.stderr).lines().find(|line| line.starts_with('{')).unwrap()).unwrap()
}
