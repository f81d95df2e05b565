//! Programs in simulated time, through the command as a user types it.

mod data_path;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

fn longma(arguments: &[&str], program: &str, given: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longma"))
        .arg("run")
        .args(arguments)
        .arg(guest(program))
        .args(given)
        .output()
        .expect("the command starts")
}

fn result(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("the result is there")).expect("it is JSON")
}

#[test]
fn two_runs_of_a_program_with_threads_give_the_same_bytes_and_the_functional_output() {
    let folder = tempfile::tempdir().unwrap();
    let functional = longma(&[], "threads", &["3", "1500"]);
    let results: Vec<Vec<u8>> = ["a.json", "b.json"]
        .map(|name| {
            let path = folder.path().join(name);
            let run = longma(
                &["--level", "timing", "--stats-out", path.to_str().unwrap()],
                "threads",
                &["3", "1500"],
            );
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
            assert!(String::from_utf8_lossy(&run.stderr).contains("cycles went to"));
            // Which thread is the first to reach a turn is a matter of time; all else is not.
            let lines = |text: &[u8]| String::from_utf8_lossy(text).lines().count();
            assert_eq!(lines(&run.stdout), lines(&functional.stdout));
            std::fs::read(&path).unwrap()
        })
        .into();
    assert_eq!(results[0], results[1]);
    let machine = std::fs::read_to_string(folder.path().join("a.machine.toml")).unwrap();
    assert!(machine.contains("loongson-3a5000"));
}

#[test]
fn a_wider_look_at_the_same_program_counts_the_same_instructions() {
    let folder = tempfile::tempdir().unwrap();
    let instructions: Vec<serde_json::Value> = [
        vec!["--level", "cache"],
        vec!["--level", "timing", "--core", "in-order"],
        vec!["--level", "timing", "--core", "out-of-order", "--machine", "hygon-8node", "--numa", "bind:4"],
    ]
    .into_iter()
    .enumerate()
    .map(|(number, mut options)| {
        let path = folder.path().join(format!("{number}.json"));
        options.extend(["--quiet", "--stats-out", path.to_str().unwrap()]);
        let run = longma(&options, "queens", &["6", "4"]);
        assert!(run.status.success() && run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
        result(&path)["statistics"]["run"]["instructions"]["value"].clone()
    })
    .collect();
    assert_eq!(instructions[0], instructions[1]);
    assert_eq!(instructions[1], instructions[2]);
}

#[test]
fn a_trace_is_json_that_names_the_cores() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let run =
        longma(&["--level", "timing", "--quiet", "--trace", path.to_str().unwrap()], "queens", &["6", "4"]);
    assert!(run.status.success());
    let trace = result(&path);
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["args"]["name"] == "core 0"));
    assert!(events.iter().any(|event| event["ph"] == "C"));
}

#[test]
fn a_run_without_marks_says_that_nothing_was_counted() {
    let run = longma(&["--level", "timing", "--roi"], "hello", &[]);
    assert!(String::from_utf8_lossy(&run.stderr).contains("marked no region of interest"));
}
