//! Tests programs of other architectures with the command: execve, and simulated time.
//! Source: execve(2); `guests/c`, `programs/pending.c`.

mod programs;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::*;
use tempfile::{TempDir, tempdir};

fn guests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests")
}

/// The path of a C source of these tests.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

const MIPS_COMPILER: &str = "mips64el-linux-gnuabi64-gcc";

/// Compiles a source for x86-64, statically. `None`, with a note on standard error, if there is no compiler.
fn for_x86(source: &Path, directory: &TempDir) -> Option<PathBuf> {
    compiled("cc", &["-static"], source, directory).filter(|_| cfg!(target_arch = "x86_64"))
}

/// Compiles a source for MIPS64, statically.
fn for_mips(source: &Path, directory: &TempDir) -> Option<PathBuf> {
    compiled(MIPS_COMPILER, &["-static"], source, directory)
}

/// Compiles a source for each architecture with a compiler.
fn for_each_architecture(source: &Path, directory: &TempDir) -> impl Iterator<Item = PathBuf> {
    let arm = compiled("aarch64-linux-gnu-gcc", &["-static"], source, directory);
    [for_x86(source, directory), arm, for_mips(source, directory)].into_iter().flatten()
}

fn compiled(compiler: &str, options: &[&str], source: &Path, directory: &TempDir) -> Option<PathBuf> {
    let program = directory.path().join(source.file_stem().unwrap()).with_extension(compiler);
    let mut command = Command::new(compiler);
    command
        .args(["-std=gnu11", "-O2", "-w", "-ffp-contract=off", "-I"])
        .arg(guests().join("include"))
        .args(options);
    let compiled = command.arg("-o").arg(&program).arg(source).args(["-lm", "-lpthread"]).output();
    let works = compiled.is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("skipped: there is no {compiler} that links programs {options:?}");
    }
    works.then_some(program)
}

#[test]
fn cpuinfo_describes_a_processor_of_the_programs_architecture() {
    let directory = tempdir().unwrap();
    let cpuinfo = source("cpuinfo.c");
    let mut runs: Vec<(PathBuf, Vec<&str>, &str)> = Vec::new();
    if let Some(program) = for_x86(&cpuinfo, &directory) {
        for features in ["sse2", "sse4", "avx2"] {
            runs.push((program.clone(), vec!["--x86-features", features], "vendor_id\t: GenuineIntel"));
        }
    }
    let others = for_each_architecture(&cpuinfo, &directory);
    for program in others.filter(|program| program.extension().is_none_or(|compiler| compiler != "cc")) {
        let is_arm = program.extension().is_some_and(|compiler| compiler == "aarch64-linux-gnu-gcc");
        runs.push((program, Vec::new(), if is_arm { "CPU part\t: 0xd0b" } else { "isa\t\t\t: mips1" }));
    }
    for (program, options, line) in runs {
        let output = finish(longma_run().args(&options).arg(&program));
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains(line), "{program:?} {options:?}: {printed}");
        let compared = printed.rsplit_once("\n \n").map_or("", |(_, compared)| compared);
        assert_eq!(compared, "compared\n", "{program:?} {options:?}: {printed}");
    }
}

#[test]
fn a_program_for_x86_executes_itself_by_every_name() {
    let directory = tempdir().unwrap();
    let Some(program) = for_x86(&guests().join("c/exec.c"), &directory) else { return };
    let expected = std::fs::read_to_string(guests().join("expected/exec.txt")).unwrap();
    for extra in [&[][..], &["--interpret"]] {
        let output = finish(longma_run().args(extra).arg(&program));
        assert_eq!((text(&output.stdout), output.status.code()), (expected.clone(), Some(0)), "{extra:?}");
    }
}

/// The output of a program in simulated time, its result, and the number of LoongArch instructions.
fn measured(
    directory: &TempDir,
    options: &[&str],
    program: &Path,
    arguments: &[&str],
) -> (String, serde_json::Value, u64) {
    let file = directory.path().join("result.json");
    let mut command = longma_run();
    command.args(options).args(["--quiet", "--stats-out"]).arg(&file).arg(program).args(arguments);
    let output = finish(&mut command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let instructions = result["statistics"]["run"]["instructions"]["value"].as_u64().unwrap();
    (text(&output.stdout), result, instructions)
}

#[test]
fn a_result_names_non_default_optimizations() {
    let directory = tempdir().unwrap();
    let program = guests().join("prebuilt/x86_64/queens");
    let with = |options: &[&str]| {
        let options = [&["--level", "timing"], options].concat();
        let (_, result, instructions) = measured(&directory, &options, &program, &["5", "2"]);
        (result["manifest"]["translation"].clone(), instructions)
    };
    let (named, usual) = with(&[]);
    assert!(named.is_null(), "{named}");
    let (named, without) = with(&["--translation", "lbt,no-fusion"]);
    assert_eq!(named, "no-fusion,lbt");
    assert!(without > usual, "{without} instructions, {usual} with fusion");
}

#[test]
fn an_unknown_optimization_is_rejected() {
    let output =
        finish(longma_run().args(["--translation", "no-cam"]).arg(guests().join("prebuilt/x86_64/queens")));
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    for part in ["no-cam", "units", "flags-across", "lbt"] {
        assert!(stderr.contains(part), "{stderr}");
    }
}

/// Guests of each kind (arithmetic, threads, self-modifying code, processes), with arguments for short runs.
const SHORT: [(&str, &[&str]); 5] = [
    ("queens", &["6"]),
    ("threads", &["2", "2000"]),
    ("self_modify", &["40"]),
    ("unix_pipe", &["200"]),
    ("litmus", &["50"]),
];

#[test]
fn translated_programs_are_deterministic_at_every_level() {
    let directory = tempdir().unwrap();
    for (guest, arguments) in SHORT {
        let source = guests().join("c").join(guest).with_extension("c");
        let mips = for_mips(&source, &directory).filter(|_| guest != "self_modify");
        for program in [for_x86(&source, &directory), mips].into_iter().flatten() {
            let run = |options: &[&str]| {
                let output = finish(longma_run().args(options).arg(&program).arg("--").args(arguments));
                (text(&output.stdout), output.status.code(), text(&output.stderr))
            };
            let functional = run(&[]);
            assert_eq!(functional.1, Some(0), "{program:?}: {}", functional.2);
            for level in ["cache", "timing"] {
                let options = ["--level", level, "--format", "json"];
                let (first, again) = (run(&options), run(&options));
                assert_eq!((&first.0, first.1), (&functional.0, functional.1), "{program:?} at {level}");
                assert!(first.2.contains("\"instructions\""), "{}", first.2);
                assert_eq!(first.2, again.2, "{program:?} at {level}: another time");
            }
        }
    }
}

/// Prebuilt programs for AArch64, with arguments for short runs.
const ARM: [(&str, &[&str]); 4] =
    [("hello", &[]), ("queens", &["6", "4"]), ("integer_mix", &["20"]), ("mandelbrot", &["32", "50"])];

#[test]
fn programs_for_aarch64_do_the_same_at_every_level() {
    for (guest, arguments) in ARM {
        let program = guests().join("prebuilt/aarch64").join(guest);
        let run = |folder: &str, options: &[&str]| {
            let program = guests().join("prebuilt").join(folder).join(guest);
            let output = finish(longma_run().args(options).arg(&program).arg("--").args(arguments));
            (text(&output.stdout), output.status.code())
        };
        let native = run("loongarch64", &[]);
        for options in
            [&[][..], &["--interpret"], &["--level", "cache", "--quiet"], &["--level", "timing", "--quiet"]]
        {
            assert_eq!(run("aarch64", options), (native.0.clone(), Some(0)), "{program:?} {options:?}");
        }
    }
}

/// Works outside and inside the region of interest, and requests a checkpoint in it.
const MARKED: &str = r#"
#include <longma.h>
#include <stdio.h>
__attribute__((noinline)) static unsigned long spin(unsigned long n)
{
    unsigned long sum = 0;
    for (unsigned long i = 0; i < n; i++) {
        sum = sum * 3 + i;
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}
int main(void)
{
    unsigned long sum = spin(200000);
    longma_roi_begin();
    sum += spin(1000);
    longma_event(7000000007);
    sum += spin(1000);
    longma_roi_end();
    longma_checkpoint();
    printf("%lu\n", sum);
}
"#;

#[test]
fn regions_work_in_translated_programs() {
    let directory = tempdir().unwrap();
    let source = place(directory.path(), "marked.c", MARKED.as_bytes());
    for program in [for_x86(&source, &directory), for_mips(&source, &directory)].into_iter().flatten() {
        let trace = directory.path().join("trace.json");
        let mut command = longma_run();
        command.args(["--level", "timing", "--roi", "--format", "json", "--trace"]).arg(&trace);
        let output = finish(command.arg(&program));
        let stderr = text(&output.stderr);
        let result: serde_json::Value = serde_json::from_str(&stderr).unwrap();
        // Four instructions per round.
        let functions = result["functions"].as_array().unwrap();
        let instructions: u64 =
            functions.iter().map(|function| function["instructions"].as_u64().unwrap()).sum();
        assert!((6_000..12_000).contains(&instructions), "{instructions}");
        assert_eq!(functions[0]["function"], "spin", "{stderr}");
        assert!(std::fs::read_to_string(&trace).unwrap().contains("7000000007"));

        // A checkpoint does not contain the translation.
        let checkpoint = directory.path().join("checkpoint");
        let mut command = longma_run();
        command.args(["--level", "cache", "--roi", "--quiet", "--checkpoint"]).arg(&checkpoint);
        let output = finish(command.arg(&program));
        assert!(text(&output.stderr).contains("only a program for LoongArch can be saved: "), "{output:?}");
        assert!(!checkpoint.exists());
    }
}

#[test]
fn blocked_signals_stay_pending_across_execve() {
    let directory = tempdir().unwrap();
    let source = source("pending.c");
    let Some(program) = for_x86(&source, &directory) else { return };
    let native = finish(&mut Command::new(&program));
    for extra in [&[][..], &["--interpret"]] {
        let output = finish(longma_run().args(extra).arg(&program));
        assert_eq!(
            (text(&output.stdout), output.status.code()),
            (text(&native.stdout), Some(0)),
            "{extra:?}"
        );
    }
}

/// A loop resumed at an inner instruction is translated as well as one entered at its start.
#[test]
fn a_signal_within_a_loop_costs_only_its_handler() {
    let directory = tempdir().unwrap();
    let source = source("interrupted.c");
    for program in for_each_architecture(&source, &directory) {
        let run = |arguments: &[&str]| measured(&directory, &["--level", "cache"], &program, arguments);
        let (quiet, interrupted) = (run(&[]), run(&["1"]));
        assert_eq!(quiet.0.replace("signals 0", "signals 1"), interrupted.0, "{program:?}");
        let (quiet, interrupted) = (quiet.2, interrupted.2);
        assert!(interrupted * 50 < quiet * 51, "{program:?}: {interrupted} instructions, {quiet} without");
    }
}

#[test]
fn string_instructions_are_interrupted_and_resume() {
    let directory = tempdir().unwrap();
    let source = source("long_string.c");
    let Some(program) = for_x86(&source, &directory) else { return };
    let native = finish(&mut Command::new(&program));
    let output = finish(longma_run().arg(&program));
    assert_eq!((text(&output.stdout), output.status.code()), (text(&native.stdout), Some(0)));
    assert!(text(&output.stdout).starts_with("left 0, in its middle 1, moved -1 -1\n"), "{output:?}");
}

#[test]
fn a_store_to_the_next_instruction_takes_effect() {
    let directory = tempdir().unwrap();
    let Some(program) = for_x86(&source("next_instruction.c"), &directory) else { return };
    let native = finish(&mut Command::new(&program));
    assert_eq!(text(&native.stdout).lines().count(), 212);
    let options =
        [&[][..], &["--interpret"], &["--translation", "none"], &["--stats"], &["--translation", "no-units"]];
    for extra in options {
        let output = finish(longma_run().args(extra).arg(&program));
        assert_eq!(
            (text(&output.stdout), output.status.code()),
            (text(&native.stdout), Some(0)),
            "{extra:?}"
        );
    }
}

/// Several times as much code as the code area holds, in a process with many threads and its child.
#[test]
fn the_code_area_is_reused() {
    let directory = tempdir().unwrap();
    let source = source("rewritten_code.c");
    let mut expected = None;
    for program in for_each_architecture(&source, &directory) {
        // The program reports its own errors.
        let output = finish(longma_run().args(["--translation-room", "2"]).arg(&program).arg("200"));
        assert_eq!((text(&output.stderr), output.status.code()), (String::new(), Some(0)), "{program:?}");
        let found = text(&output.stdout);
        assert_eq!(*expected.get_or_insert(found.clone()), found, "{program:?}");
        assert!(found.ends_with("child 0\n!, looped 1, signals 1\n"), "{found}");
    }
}

#[test]
fn the_code_area_is_not_reused_while_counting() {
    let directory = tempdir().unwrap();
    let source = source("rewritten_code.c");
    let Some(program) = for_x86(&source, &directory) else { return };
    let run = |rounds| {
        let output =
            finish(longma_run().args(["--stats", "--translation-room", "2"]).arg(&program).arg(rounds));
        (output.status.signal(), text(&output.stderr))
    };
    assert_eq!(run("20").0, None);
    let (signal, stderr) = run("200");
    assert!(
        signal == Some(9) && stderr.contains("the area for translated code (--translation-room) is full"),
        "{stderr}"
    );
}

/// With the host's libraries, or those of Debian's cross compilers.
#[test]
fn dynamic_programs_of_other_architectures_use_their_own_libraries() {
    let directory = tempdir().unwrap();
    for (guest, arguments) in SHORT {
        let source = guests().join("c").join(guest).with_extension("c");
        let x86 = compiled("cc", &[], &source, &directory).filter(|_| cfg!(target_arch = "x86_64"));
        let Some(x86) = x86 else { return };
        let native = finish(Command::new(&x86).args(arguments));
        let mips = compiled(MIPS_COMPILER, &[], &source, &directory).filter(|_| guest != "self_modify");
        let programs = [(Some(x86), "/"), (mips, "/usr/mips64el-linux-gnuabi64")];
        for (program, libraries) in programs {
            let Some(program) = program else { continue };
            for options in [&[][..], &["--level", "cache", "--quiet"]] {
                let mut command = longma_run();
                command.args(["-L", libraries]).args(options).arg(&program).arg("--").args(arguments);
                let output = finish(&mut command);
                let ours = (text(&output.stdout), output.status.code());
                let stderr = text(&output.stderr);
                assert_eq!(ours, (text(&native.stdout), Some(0)), "{program:?} {options:?}: {stderr}");
            }
        }
    }
}

/// A LoongArch shell or compiler may execute the host's programs natively; an x86-64 program that executes another
/// keeps it in the emulator.
#[test]
fn a_native_program_executed_by_a_loongarch_program_runs_natively() {
    let directory = tempdir().unwrap();
    let source = place(directory.path(), "processor.c", PROCESSOR.as_bytes());
    let Some(processor) = for_x86(&source, &directory) else { return };
    let native = text(&finish(&mut Command::new(&processor)).stdout);
    let executer = place(directory.path(), "executer", &executable(&EXECUTER, &[]));
    let by_another = finish(longma_run().arg(&executer).arg("--").arg(&processor));
    assert_eq!((text(&by_another.stdout), by_another.status.code()), (native.clone(), Some(0)));
    let by_itself = finish(longma_run().arg(&processor).arg("--").arg(&processor));
    assert_eq!(by_itself.status.code(), Some(0), "{by_itself:?}");
    assert_ne!(text(&by_itself.stdout), native, "the host executed it");
}

/// Executes its first argument without further arguments.
const EXECUTER: [u32; 7] =
    [load(A0, SP, 16), add(A1, SP, 16), add(A2, ZERO, 0), add(A7, ZERO, 221), SYSCALL, EXIT[0], EXIT[1]];

/// Prints which processor it runs on, after executing its argument if it has one.
const PROCESSOR: &str = r#"
#include <cpuid.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    if (count > 1)
        execv(words[1], (char *[]){words[1], NULL});
    unsigned brand[12];
    for (unsigned n = 0; n < 3; n++)
        __get_cpuid(0x80000002 + n, brand + 4 * n, brand + 4 * n + 1, brand + 4 * n + 2, brand + 4 * n + 3);
    printf("%.48s\n", (char *)brand);
}
"#;
