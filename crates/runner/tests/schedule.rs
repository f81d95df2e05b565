//! Guests in simulated time, run by `examples/simulate.rs`: runs are deterministic, and sleeping takes no host time.

mod simulator;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use simulator::{expected, guest, simulator};

/// Runs a command to its end; fails the test after a minute.
fn run(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if receiver.recv_timeout(Duration::from_secs(60)).is_err() {
            // SAFETY: the call takes no pointers, and the child has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    });
    let output = child.wait_with_output().unwrap();
    let _ = sender.send(());
    guard.join().unwrap();
    output
}

/// The output, and the log of all turns and system calls.
fn simulate(options: &[&str], program: &Path, arguments: &[&str]) -> (String, String) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let output = run(Command::new(simulator())
        .arg("--log")
        .arg(log.path())
        .args(options)
        .arg(program)
        .args(arguments));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new()),
        "{}",
        text(&output.stdout)
    );
    (text(&output.stdout), std::fs::read_to_string(log.path()).unwrap())
}

/// Processes that keep all cores of the host busy.
struct Load(Vec<Child>);

impl Load {
    fn new() -> Self {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self((0..4).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn thread_results_are_as_expected() {
    let (output, _) = simulate(&[], &guest("threads"), &["3", "1500"]);
    assert_eq!(output, expected("threads"));
}

#[test]
fn all_kinds_of_waiting_behave_as_expected() {
    let (output, _) = simulate(&[], &guest("waiting"), &["3"]);
    assert_eq!(output, expected("waiting"));
}

#[test]
fn signal_delivery_behaves_as_expected() {
    let (output, _) = simulate(&[], &guest("signals"), &["200"]);
    assert_eq!(output, expected("signals"));
}

#[test]
fn runs_are_deterministic_regardless_of_host_load() {
    for (program, arguments) in [("threads", &["4", "1000"][..]), ("waiting", &["5"])] {
        let quiet = simulate(&["--quantum", "500"], &guest(program), arguments);
        let load = Load::new();
        let busy = simulate(&["--quantum", "500"], &guest(program), arguments);
        drop(load);
        assert!(quiet.1.lines().count() > 1000, "the log has many lines");
        assert!(quiet == busy, "{program} ran otherwise");
    }
}

#[test]
fn another_number_of_cores_changes_turns_but_not_results() {
    let (one, log_of_one) = simulate(&["--cores", "1"], &guest("threads"), &["3", "1500"]);
    let (eight, log_of_eight) = simulate(&["--cores", "8"], &guest("threads"), &["3", "1500"]);
    assert_eq!(one, eight);
    assert!(log_of_one.contains(" core 0 ") && !log_of_one.contains(" core 1 "));
    assert!(log_of_eight.contains(" core 3 "));
}

#[test]
fn sleeping_takes_no_host_time() {
    // The guest sleeps for more than a second.
    let before = Instant::now();
    let (output, log) = simulate(&[], &guest("waiting"), &["1"]);
    assert!(output.contains("at least 400 ms: 1"));
    let last: u64 = log.lines().rev().find_map(|line| line.split_once(" core ")?.0.parse().ok()).unwrap();
    let simulated = Duration::from_nanos(last / 1000);
    assert!(simulated > Duration::from_millis(700), "{simulated:?}");
    let sleeps = log.lines().filter(|line| line.contains("nanosleep(")).count();
    assert!(sleeps > 5, "{sleeps}");
    // Allow for a slow host.
    assert!(before.elapsed() < Duration::from_secs(20));
}

#[test]
fn forked_children_run_on_the_host() {
    let (output, _) = simulate(&[], &guest("unix_process"), &["20"]);
    assert!(output.starts_with("unix_process "), "{output}");
}

#[test]
fn a_deadlock_is_reported_and_can_be_interrupted() {
    // The only thread reads from a pipe without a writer.
    let mut child = Command::new(simulator())
        .arg(deadlock())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut messages = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut messages, &mut line).unwrap();
    assert!(line.contains("every thread waits"), "{line}");
    // SAFETY: the call takes no pointers, and the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
}

/// A program that creates a pipe and reads from it.
fn deadlock() -> PathBuf {
    const SYSCALL: u32 = 0x002b_0000;
    let add = |d: u32, j: u32, immediate: i32| 0x02c0_0000 | (immediate as u32 & 0xfff) << 10 | j << 5 | d;
    let (zero, sp, a0, a1, a2, a7) = (0, 3, 4, 5, 6, 11);
    // ld.w a0, sp, -16
    let load = 0x2880_0000 | (-16i32 as u32 & 0xfff) << 10 | sp << 5 | a0;
    let code = [
        add(a0, sp, -16),
        add(a1, zero, 0),
        add(a7, zero, 59),
        SYSCALL,
        load,
        add(a1, sp, -32),
        add(a2, zero, 1),
        add(a7, zero, 63),
        SYSCALL,
    ];
    program(&code)
}

/// Writes an executable with these instructions to a directory that exists until the tests end.
fn program(code: &[u32]) -> PathBuf {
    const BASE: u64 = 0x1_2000_0000;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x02\x01\x01\0\0\0".to_vec();
    for word in [BASE + 0x1000, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0x43u32.to_le_bytes());
    for half in [64u16, 56, 1, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, BASE, BASE, 0x4000, 0x4000, 0x4000] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.resize(0x1000, 0);
    bytes.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    bytes.resize(0x4000, 0);
    let path = std::env::temp_dir().join(format!("longma-schedule-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}
