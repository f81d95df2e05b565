//! Runs `programs/files` with the interpreting example and compares its output with that of a native build on Linux.
//! Source: `programs/files.c`; `expected/` is the output of its x86-64 build on Linux 6.18.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const TIMEOUT_S: &str = "120";

fn run(options: &[&str], program: &str, test: &str, directory: &str) -> Output {
    let test_program = std::env::current_exe().unwrap();
    let profile = test_program.parent().and_then(Path::parent).unwrap();
    Command::new("timeout")
        .arg(TIMEOUT_S)
        .arg(profile.join("examples/interpret"))
        .args(options)
        .args(["--", program, test, directory])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn here(relative: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(relative)
}

fn agrees(output: &Output, test: &str) {
    let expected = std::fs::read_to_string(here("expected").join(format!("{test}.txt"))).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, expected, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}", output.status);
}

fn behaves_as_on_linux(test: &str) {
    let directory = tempfile::tempdir().unwrap();
    let output = run(&[], here("programs/files").to_str().unwrap(), test, directory.path().to_str().unwrap());
    agrees(&output, test);
}

#[test]
fn files_are_named_linked_moved_and_described_as_on_linux() {
    behaves_as_on_linux("names");
}

#[test]
fn descriptors_are_read_written_locked_and_controlled_as_on_linux() {
    behaves_as_on_linux("descriptors");
}

#[test]
fn memory_is_mapped_moved_protected_and_unmapped_as_on_linux() {
    behaves_as_on_linux("memory");
}

#[test]
fn system_limit_and_ipc_calls_behave_as_on_linux() {
    behaves_as_on_linux("system");
}

#[test]
fn files_behave_the_same_inside_a_root() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("place")).unwrap();
    std::fs::copy(here("programs/files"), root.path().join("files")).unwrap();
    let confined = ["--root", root.path().to_str().unwrap()];
    agrees(&run(&confined, "/files", "names", "/place"), "names");
    agrees(&run(&confined, "/files", "descriptors", "/place"), "descriptors");
}
