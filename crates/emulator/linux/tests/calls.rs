//! Runs `programs/calls` with the interpreting example and compares its output with that of a native build on Linux.
//! Source: `programs/calls.c`; `expected/` is the output of its x86-64 build on Linux 6.18.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn here(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(relative)
}

/// The interpreting example, which cargo builds next to the tests.
fn interpreter() -> PathBuf {
    let test_program = std::env::current_exe().expect("a test has a program");
    let profile = test_program.parent().and_then(Path::parent).expect("tests are built two levels down");
    profile.join("examples/interpret")
}

/// Runs the interpreter, and kills it after the timeout.
fn interpret(arguments: &[&str]) -> Output {
    let mut child = Command::new(interpreter())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_remove("COLOUR")
        .spawn()
        .expect("cargo has built the example");
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if child.try_wait().expect("it is our child").is_some() {
            return child.wait_with_output().expect("it is our child");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("it is our child");
    let output = child.wait_with_output().expect("it is our child");
    panic!("{arguments:?} hangs after {}", String::from_utf8_lossy(&output.stdout));
}

fn behaves_as_on_linux(name: &str) {
    let program = here("programs/calls");
    let program = program.to_str().expect("the checkout has an ordinary path");
    let output = interpret(&["--", program, name]);
    let printed = String::from_utf8_lossy(&output.stdout).replace(program, "PROGRAM");
    let expected =
        std::fs::read_to_string(here("expected").join(format!("{name}.txt"))).expect("it is committed");
    assert_eq!(printed, expected, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}", output.status);
}

macro_rules! behaves_as_on_linux {
    ($($sentence:ident: $name:literal;)*) => {
        $(#[test]
        fn $sentence() {
            behaves_as_on_linux($name);
        })*
    };
}

behaves_as_on_linux! {
    children_end_as_their_parents_would_see_native_ones: "fork";
    children_stop_and_continue: "stop";
    a_parent_waits_for_a_vforked_child: "vfork";
    a_vforked_child_writes_to_its_parents_memory_and_deadly_signals_end_the_wait: "borrow";
    programs_are_spawned_and_shells_are_run: "spawn";
    programs_and_scripts_are_executed_and_bad_ones_refused: "exec";
    what_must_survive_execve_does: "exec-self";
    threads_lock_wait_die_and_are_cancelled: "threads";
    threads_and_processes_end_independently: "thread-exits";
    signals_interrupt_calls_or_restart_them: "interrupt";
    masks_hold_signals_back: "masks";
    real_time_signals_queue_up_and_none_is_lost: "storm";
    a_process_signal_goes_to_a_thread_that_takes_it: "direction";
    timers_and_descriptors_report_events: "timers";
    sockets_carry_data_and_descriptors: "sockets";
    a_descriptor_stands_for_a_process: "pidfd";
    no_call_with_nonsense_arguments_hurts_the_host_process: "nonsense";
}

#[test]
fn a_confined_guest_binds_its_sockets_inside_its_root() {
    let root = tempfile::tempdir().expect("there is a place for temporary files");
    std::fs::create_dir(root.path().join("tmp")).unwrap();
    std::fs::copy(here("programs/calls"), root.path().join("calls")).unwrap();
    let output = interpret(&["--root", root.path().to_str().unwrap(), "--", "/calls", "sockets"]);
    let expected = std::fs::read_to_string(here("expected/sockets.txt")).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(std::fs::read_dir(root.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_confined_guest_executes_programs_of_its_root_only() {
    let root = tempfile::tempdir().expect("there is a place for temporary files");
    std::fs::copy(here("programs/calls"), root.path().join("calls")).unwrap();
    std::fs::copy("/bin/true", root.path().join("host")).unwrap();
    let directory = root.path().to_str().unwrap();
    let output = interpret(&["--root", directory, "--", "/calls", "exec-self"]);
    let expected = std::fs::read_to_string(here("expected/exec-self.txt")).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = interpret(&["--root", directory, "--", "/host"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("x86-64"));
}
