//! Whole programs for MIPS64, x86-64 and AArch64: their output and exit status must be as expected, and the same under
//! QEMU or, for x86-64, on the host. The programs are `both/*.c`, `mips/*.c`, `x86/*.c` and `arm/*.c`.
//!
//! MIPS64 requires a compiler (Debian: `gcc-mips64el-linux-gnuabi64` and `libc6-dev-mips64el-cross`, or the Python
//! package ziglang) and `qemu-mips64el` (Debian: `qemu-user`). x86-64 requires an x86-64 host with a C compiler.
//! AArch64 programs are skipped without a compiler (Debian: `gcc-aarch64-linux-gnu` and `libc6-dev-arm64-cross`, or
//! ziglang).

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

const GCC: &[&str] = &["mips64el-linux-gnuabi64-gcc"];
const ZIG: &[&str] = &["python3", "-m", "ziglang", "cc", "-target", "mips64el-linux-muslabi64"];

/// Whether `./test` found no compiler for MIPS64, which it reports itself.
fn has_no_compiler() -> bool {
    std::env::var_os("LONGMA_WITHOUT_MIPS").is_some()
}

/// The installed compiler for MIPS64.
fn compiler() -> &'static [&'static str] {
    let works = |command: &&&[&str]| {
        let mut query = Command::new(command[0]);
        query.args(&command[1..]).arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        query.status().is_ok_and(|status| status.success())
    };
    let compiler = [GCC, ZIG].iter().find(works).copied();
    compiler.expect("a compiler for MIPS64 is installed (Debian: gcc-mips64el-linux-gnuabi64 and libc6-dev-mips64el-cross; or pip's ziglang)")
}

/// The path of a program's source without extension: in `both` if it is shared between architectures.
fn source(architecture: &str, name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let shared = tests.join("both").join(name);
    if shared.with_extension("c").exists() { shared } else { tests.join(architecture).join(name) }
}

/// The example `functional`, which cargo builds along with the tests.
fn runner() -> PathBuf {
    let test_program = std::env::current_exe().unwrap();
    test_program.parent().and_then(Path::parent).unwrap().join("examples/functional")
}

/// Compiles a program for MIPS64.
fn compile(name: &str, options: &[&str], to: &Path) {
    let compiler = compiler();
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-std=c11", "-O2", "-w", "-ffp-contract=off"]).args(options);
    let source = source("mips", name).with_extension("c");
    let output = command.arg(source).arg("-o").arg(to).args(["-lm", "-lpthread"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a command with a timeout.
fn run(command: &[&str], program: &Path) -> (String, ExitStatus) {
    let output =
        Command::new("timeout").args(["-k", "5", "120"]).args(command).arg(program).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status)
}

/// The exit status as a shell reports it; timeout(1) passes on its child's.
fn ending(status: ExitStatus) -> i32 {
    status.signal().map_or(status.code().unwrap_or(-1), |signal| 128 + signal)
}

/// Checks the output and exit status of a program, translated and interpreted, and under QEMU if that agrees with
/// Linux.
fn check(name: &str, status: i32, agrees_with_qemu: bool) {
    if has_no_compiler() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    compile(name, &["-static"], &program);
    let expected = std::fs::read_to_string(source("mips", name).with_extension("txt")).unwrap();
    let runner = runner();
    let runner = runner.to_str().unwrap();
    for command in [&[runner][..], &[runner, "--interpret"]] {
        let (printed, exit_status) = run(command, &program);
        assert_eq!((printed, ending(exit_status)), (expected.clone(), status), "{command:?}");
    }
    if agrees_with_qemu {
        let (printed, exit_status) = run(&["qemu-mips64el"], &program);
        assert_eq!((printed, ending(exit_status)), (expected, status), "qemu-mips64el (Debian: qemu-user)");
    }
}

/// Compilers for AArch64.
const ARM_COMPILERS: [&[&str]; 3] = [
    &["aarch64-linux-gnu-gcc"],
    &["python3", "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"],
    // Installed by `guests/build`.
    &["../../target/guests-venv/bin/python3", "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"],
];

/// Compiles a program for AArch64. Returns false if no compiler can.
fn compile_arm(name: &str, options: &[&str], to: &Path) -> bool {
    let is_compiled = ARM_COMPILERS.iter().any(|compiler| {
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-w", "-fsigned-char", "-static"]).args(options);
        let source = source("arm", name).with_extension("c");
        let output = command.arg(source).arg("-o").arg(to).args(["-lm", "-lpthread"]).output();
        output.is_ok_and(|output| output.status.success())
    });
    if !is_compiled {
        eprintln!("skipped: there is no compiler that links programs for AArch64 statically");
    }
    is_compiled
}

/// Checks the output and exit status of a program for AArch64, translated, interpreted and under QEMU.
fn check_arm(name: &str, status: i32) {
    // A processor without SVE, whose signal frame would contain the vectors twice.
    check_arm_with(name, status, Some(&["qemu-aarch64", "-cpu", "neoverse-n1"]));
}

fn check_arm_with(name: &str, status: i32, qemu: Option<&[&str]>) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    let source = source("arm", name);
    if !compile_arm(name, &["-std=c11", "-O2", "-ffp-contract=off"], &program) {
        return;
    }
    let expected = std::fs::read_to_string(source.with_extension("txt")).unwrap();
    let runner = runner();
    let runner = runner.to_str().unwrap();
    for command in [&[runner][..], &[runner, "--interpret"]].into_iter().chain(qemu) {
        let (printed, exit_status) = run(command, &program);
        assert_eq!(
            (printed, ending(exit_status)),
            (expected.clone(), status),
            "{command:?} (Debian: qemu-user)"
        );
    }
}

#[test]
fn arm_faults_and_traps_are_the_signals_that_linux_sends() {
    check_arm("faults", 128 + 11);
}

#[test]
fn arm_signals_arrive_between_instructions_and_interrupted_calls_fail_or_restart() {
    check_arm("signals", 7);
}

#[test]
fn arm_threads_signals_forks_and_changing_code_go_together() {
    check_arm("threads", 0);
}

#[test]
fn arm_programs_make_threads_and_processes_by_clone3() {
    // QEMU has no clone3.
    check_arm_with("clone3", 0, None);
}

#[test]
fn arm_numeric_results_match_qemu() {
    check_arm("numbers", 0);
}

#[test]
fn arm_functions_can_return_flags() {
    check_arm("returned_flags", 0);
    check_arm("returned_flags_once", 0);
}

#[test]
fn arm_loops_of_any_compiler_options_match_qemu() {
    const PLAIN: &[&str] = &["-O2"];
    const ALL: &[&str] = &["-O3", "-march=armv8.2-a+fp16+dotprod+crypto"];
    const FAST: &[&str] = &["-O3", "-ffast-math", "-march=armv8.2-a+fp16+dotprod+crypto"];
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("loops");
    let runner = runner();
    for options in [PLAIN, ALL, FAST] {
        if !compile_arm("loops", options, &program) {
            return;
        }
        let expected = run(&["qemu-aarch64", "-cpu", "neoverse-n1"], &program);
        assert_eq!(ending(expected.1), 0, "{options:?} (Debian: qemu-user)");
        assert_eq!(run(&[runner.to_str().unwrap()], &program), expected, "{options:?}");
    }
}

/// Compiler options for the cryptographic instructions.
const ARM_CRYPTO: &[&str] = &["-O2", "-march=armv8-a+crypto"];
const X86_CRYPTO: &[&str] = &["-static", "-std=gnu11", "-maes", "-mpclmul", "-msha", "-msse4.1"];

#[test]
fn arm_cryptography_matches_qemu_and_executes_the_same_at_every_level() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("crypto");
    if compile_arm("crypto", ARM_CRYPTO, &program) {
        let expected = run(&["qemu-aarch64", "-cpu", "neoverse-n1"], &program);
        assert_eq!(ending(expected.1), 0, "(Debian: qemu-user)");
        check_levels(&program, &expected.0);
    }
}

#[test]
fn x86_cryptography_matches_the_host_and_executes_the_same_at_every_level() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("crypto");
    if !compile_x86("crypto", X86_CRYPTO, &program) {
        return;
    }
    let has_all = ["aes", "pclmulqdq", "sha_ni"].iter().all(|name| {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        text.split_whitespace().any(|word| word == *name)
    });
    let expected = std::fs::read_to_string(source("x86", "crypto").with_extension("txt")).unwrap();
    if has_all {
        assert_eq!(run(&["env"], &program).0, expected);
    }
    check_levels(&program, &expected);
}

/// Checks that a program prints `expected` translated, interpreted and in simulated time, and that the number of its
/// instructions depends neither on interpretation nor on the level of simulation. The functional level counts more than
/// simulated time, because it translates cold code block by block.
fn check_levels(program: &Path, expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (functional, simulate) = (runner(), runner().with_file_name("simulate"));
    let file = directory.path().join("counts");
    let counts = |command: &[&str], count: &dyn Fn(&str) -> Option<String>| {
        assert_eq!(run(command, program).0, expected, "{command:?}");
        count(&std::fs::read_to_string(&file).unwrap()).expect("a count")
    };
    let first_line = |text: &str| text.lines().next().map(str::to_owned);
    let (functional, to) = (functional.to_str().unwrap(), file.to_str().unwrap());
    let translated = counts(&[functional, "--counts", to], &first_line);
    assert_eq!(counts(&[functional, "--interpret", "--counts", to], &first_line), translated);

    let executed = |text: &str| {
        let statistics: serde_json::Value = serde_json::from_str(text).ok()?;
        Some(statistics["run"]["instructions"]["value"].as_u64()?.to_string())
    };
    let machine = [simulate.to_str().unwrap(), "--machine", "loongson-3a5000", "--statistics", to, "--level"];
    let [cache, timing] =
        ["cache", "timing"].map(|level| counts(&[&machine[..], &[level]].concat(), &executed));
    assert_eq!(cache, timing);
}

#[test]
fn an_illegal_instruction_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("illegal");
    if !compile_arm("illegal", &["-O2"], &program) {
        return;
    }
    let output =
        Command::new("timeout").args(["-k", "5", "120"]).arg(runner()).arg(&program).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(ending(output.status), 128 + libc::SIGILL, "{stderr}");
    assert!(stderr.contains("fjcvtzs (FEAT_JSCVT)"), "{stderr}");
}

#[test]
fn a_misaligned_access_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("misaligned");
    if !compile_arm("misaligned", &["-O2"], &program) {
        return;
    }
    let output =
        Command::new("timeout").args(["-k", "5", "120"]).arg(runner()).arg(&program).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(ending(output.status), 128 + libc::SIGBUS, "{stderr}");
    assert!(stderr.contains("misaligned access to 0x"), "{stderr}");
    assert!(stderr.contains(": ldxr x0, [x"), "{stderr}");
}

/// Checks the output and exit status of a program for x86-64, translated, interpreted and on the host.
fn check_x86(name: &str, status: i32) {
    check_x86_with(name, status, &["-static"]);
}

fn check_x86_with(name: &str, status: i32, options: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    if !compile_x86(name, options, &program) {
        return;
    }
    let source = source("x86", name);
    let expected = std::fs::read_to_string(source.with_extension("txt")).unwrap();
    let runner = runner();
    let runner = runner.to_str().unwrap();
    for command in [&[runner][..], &[runner, "--interpret"], &["env"]] {
        let (printed, exit_status) = run(command, &program);
        assert_eq!((printed, ending(exit_status)), (expected.clone(), status), "{command:?}");
    }
}

/// Compiles a program with the host's compiler. Returns false if there is none for x86-64.
fn compile_x86(name: &str, options: &[&str], to: &Path) -> bool {
    let source = source("x86", name).with_extension("c");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O2", "-w", "-ffp-contract=off"]).args(options);
    let output = command.arg(source).arg("-o").arg(to).args(["-lm", "-lpthread"]).output();
    match output {
        Ok(output) if output.status.success() && cfg!(target_arch = "x86_64") => true,
        _ => {
            eprintln!("skipped: the host has no compiler that links programs for x86-64 statically");
            false
        }
    }
}

#[test]
fn x86_faults_and_traps_are_the_signals_that_linux_sends() {
    check_x86("faults", 128 + 11);
}

#[test]
fn x86_jumps_that_fault_returns_that_jump_and_traps_behind_nops_are_as_on_the_host() {
    check_x86("jumps", 0);
}

#[test]
fn x86_single_steps_trap_after_each_instruction() {
    check_x86("traps", 0);
}

#[test]
fn x86_programs_enter_the_kernel_as_older_ones_do() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("legacy");
    if !compile_x86("legacy", &["-static", "-no-pie"], &program) {
        return;
    }
    let expected = std::fs::read_to_string(source("x86", "legacy").with_extension("txt")).unwrap();
    let runner = runner();
    let runner = runner.to_str().unwrap();
    // The program does not run natively, because the host's kernel may lack both features.
    for command in [&[runner][..], &[runner, "--interpret"]] {
        let (printed, exit_status) = run(command, &program);
        assert_eq!((printed, ending(exit_status)), (expected.clone(), 7), "{command:?}");
    }
}

#[test]
fn x86_signals_arrive_between_instructions_and_interrupted_calls_fail_or_restart() {
    check_x86("signals", 7);
}

#[test]
fn x86_calls_with_other_numbers_and_structures_do_the_same() {
    check_x86("files", 0);
}

#[test]
fn x86_threads_signals_forks_and_changing_code_go_together() {
    check_x86("threads", 0);
}

#[test]
fn x86_programs_make_threads_and_processes_by_clone3() {
    check_x86("clone3", 0);
}

#[test]
fn x86_code_changes_without_notice_are_translated_again() {
    check_x86("code", 0);
}

#[test]
fn x86_atomic_operations_need_no_alignment_and_fault_on_pages_that_are_not_writable() {
    check_x86("unaligned", 0);
}

#[test]
fn x86_nans_exceptions_and_long_doubles_match_the_host() {
    check_x86("floats", 0);
}

#[test]
fn x86_modes_flags_and_alignment_match_the_host() {
    check_x86_with("modes", 0, &["-static", "-std=gnu11", "-msse4.1"]);
}

#[test]
fn x86_numeric_results_match_the_host() {
    check_x86("numbers", 0);
}

#[test]
fn x86_functions_can_return_flags() {
    check_x86("returned_flags", 0);
    check_x86("returned_flags_once", 0);
    check_x86("changed_callee", 0);
}

#[test]
fn x86_programs_that_are_linked_dynamically_run_with_the_hosts_libraries() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["numbers", "files", "threads"] {
        let program = directory.path().join(name);
        if !compile_x86(name, &[], &program) {
            return;
        }
        let expected = std::fs::read_to_string(source("x86", name).with_extension("txt")).unwrap();
        let runner = runner();
        for command in [&[runner.to_str().unwrap()][..], &[runner.to_str().unwrap(), "--interpret"]] {
            let (printed, exit_status) = run(command, &program);
            assert_eq!((printed, ending(exit_status)), (expected.clone(), 0), "{command:?} {name}");
        }
    }
}

/// Options that make AVX2 visible to a program.
const AVX2: [&str; 2] = ["--x86-features", "avx2"];
/// Compiler options for AVX2 and the extensions that come with it.
const WITH_AVX2: [&str; 8] = ["-std=gnu11", "-O3", "-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mf16c", "-mlzcnt"];

#[test]
fn x86_programs_with_avx2_match_the_processor() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("avx");
    let expected = std::fs::read_to_string(source("x86", "avx").with_extension("txt")).unwrap();
    let runner = runner();
    let runner = runner.to_str().unwrap();
    for linked in [&["-static"][..], &[]] {
        if !compile_x86("avx", &[&WITH_AVX2[..], linked].concat(), &program) {
            return;
        }
        let translated = [&[runner][..], &AVX2].concat();
        let mut commands = vec![translated.clone(), [&translated[..], &["--interpret"]].concat()];
        if has_avx2() {
            commands.push(vec!["env"]);
        }
        for command in commands {
            let (printed, exit_status) = run(&command, &program);
            assert_eq!((printed, ending(exit_status)), (expected.clone(), 0), "{command:?} {linked:?}");
        }
    }
}

fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The C library selects its functions by the announced features. The results must not change.
#[test]
fn x86_programs_that_detect_avx2_give_the_same_results() {
    let directory = tempfile::tempdir().unwrap();
    let runner = runner();
    for (name, status) in [("signals", 7), ("threads", 0), ("files", 0), ("numbers", 0), ("faults", 128 + 11)]
    {
        let program = directory.path().join(name);
        let expected = std::fs::read_to_string(source("x86", name).with_extension("txt")).unwrap();
        for linked in [&["-static", "-march=x86-64-v3"][..], &[]] {
            if !compile_x86(name, linked, &program) {
                return;
            }
            let command = [&[runner.to_str().unwrap()][..], &AVX2].concat();
            let (printed, exit_status) = run(&command, &program);
            assert_eq!((printed, ending(exit_status)), (expected.clone(), status), "{name} {linked:?}");
        }
    }
}

/// Sets of optimizations: none, with LBT, and each one switched off.
const CHOICES: [&str; 12] = [
    "none",
    "none,lbt",
    "lbt",
    "lbt,no-fusion",
    "no-units",
    "no-flags",
    "no-flags-across",
    "no-fusion",
    "no-forms",
    "no-loops",
    "no-table",
    "no-returns",
];

/// The sets that differ on MIPS64, which has no flags and no spare registers.
const OF_MIPS: [&str; 6] = ["none", "no-units", "no-fusion", "no-forms", "no-loops", "no-returns"];

/// Small guests with calls and returns, jump tables, flags, floating point, vectors and pointers.
const GUESTS: [(&str, &[&str]); 6] = [
    ("queens", &["5", "3"]),
    ("bytecode", &["1"]),
    ("integer_mix", &["2"]),
    ("fft", &["6", "1"]),
    ("sort", &["300"]),
    ("stream", &["100", "2"]),
];

#[test]
fn guests_print_the_same_with_any_optimizations() {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt");
    let print = |architecture: &str, name: &str, arguments: &[&str], choice: &str| {
        let mut command = Command::new(runner());
        command.args(["--translation", choice]).arg(guests.join(architecture).join(name)).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{architecture} {name} with '{choice}': {}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for architecture in ["x86_64", "aarch64", "mips64el"] {
        for (name, arguments) in GUESTS {
            let baseline = print(architecture, name, arguments, "");
            assert!(!baseline.is_empty());
            let has = |choice: &&&str| architecture != "mips64el" || OF_MIPS.contains(*choice);
            for choice in CHOICES.iter().filter(has) {
                let other = print(architecture, name, arguments, choice);
                // Ignore timings in the output.
                assert_eq!(
                    without_timings(&other),
                    without_timings(&baseline),
                    "{architecture} {name} with '{choice}'"
                );
            }
        }
    }
}

/// The lines without timings.
fn without_timings(printed: &str) -> Vec<&str> {
    printed.lines().filter(|line| !line.contains("/s") && !line.contains(" ns")).collect()
}

/// Signals, faults and threads, whose handlers see registers and flags, and self-modifying code.
#[test]
fn x86_programs_end_the_same_with_any_optimizations() {
    let directory = tempfile::tempdir().unwrap();
    let runner = runner();
    for (name, status) in [("signals", 7), ("threads", 0), ("faults", 128 + 11), ("code", 0), ("numbers", 0)]
    {
        let program = directory.path().join(name);
        if !compile_x86(name, &["-static"], &program) {
            return;
        }
        let expected = std::fs::read_to_string(source("x86", name).with_extension("txt")).unwrap();
        for choice in ["none", "none,lbt", "lbt", "lbt,no-fusion", "no-table"] {
            let command = [runner.to_str().unwrap(), "--translation", choice];
            let (printed, exit_status) = run(&command, &program);
            assert_eq!((printed, ending(exit_status)), (expected.clone(), status), "{command:?} {name}");
        }
    }
}

#[test]
fn faults_and_traps_are_the_signals_that_linux_sends() {
    // QEMU 7.2 ends programs that divide by zero.
    check("faults", 128 + 11, false);
}

#[test]
fn faults_in_delay_slots_and_after_products_are_reported_once_and_precisely() {
    check("slots", 0, true);
}

#[test]
fn signals_arrive_between_instructions_and_interrupted_calls_fail_or_restart() {
    check("signals", 7, true);
}

#[test]
fn calls_with_other_numbers_flags_and_structures_do_the_same() {
    check("files", 0, true);
}

#[test]
fn threads_signals_forks_and_changing_code_go_together() {
    check("threads", 0, true);
}

#[test]
fn changed_code_is_translated_again_and_translations_are_write_protected() {
    check("code", 0, true);
}

#[test]
fn code_unmapped_during_translation_is_harmless() {
    check("gone", 0, true);
}

#[test]
fn numeric_results_match_qemu() {
    check("numbers", 0, true);
}

#[test]
fn random_code_ends_only_the_program() {
    check("random", 0, false);
}

#[test]
fn unsupported_programs_are_rejected_with_a_hint() {
    if has_no_compiler() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (program, other) = (directory.path().join("program"), directory.path().join("other"));
    compile("numbers", &["-static"], &program);
    let bytes = std::fs::read(&program).unwrap();
    let refusal = |program: &Path| {
        let output = Command::new(runner()).arg(program).output().unwrap();
        assert_eq!(output.status.code(), Some(126));
        String::from_utf8(output.stderr).unwrap()
    };
    for (at, byte, words) in [
        (5, 2, "big-endian"),
        (4, 1, "n64"),
        (48, 0x20, "n64"),
        (51, 0xa0, "release 6"),
        (51, 0, "32-bit processor"),
    ] {
        let mut changed = bytes.clone();
        changed[at] = byte;
        std::fs::write(&other, changed).unwrap();
        let message = refusal(&other);
        assert!(
            message.contains("for MIPS") && message.contains(words) && message.contains("; "),
            "{message}"
        );
    }
}
