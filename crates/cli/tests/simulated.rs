//! Tests `longma run` with simulated time.

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
    serde_json::from_slice(&std::fs::read(path).expect("the result exists")).expect("it is JSON")
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
            // The order in which threads reach a barrier depends on timing; the rest of the output does not.
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
fn all_levels_count_the_same_instructions() {
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
fn a_run_without_markers_reports_that_nothing_was_counted() {
    let run = longma(&["--level", "timing", "--roi"], "hello", &[]);
    assert!(String::from_utf8_lossy(&run.stderr).contains("marked no region of interest"));
}

const GODSON3: [&str; 6] = ["--machine", "godson3", "--level", "timing", "--quiet", "--stats-out"];

#[test]
fn the_copy_engine_copies_what_memcpy_copies_and_no_tag_is_early() {
    let folder = tempfile::tempdir().unwrap();
    let cases = std::env::var("LONGMA_IDMA_CASES").unwrap_or_else(|_| "24".into());
    let results: Vec<(Vec<u8>, Vec<u8>)> = ["a.json", "b.json"]
        .map(|name| {
            let path = folder.path().join(name);
            let options: Vec<&str> = GODSON3.into_iter().chain([path.to_str().unwrap()]).collect();
            let run = longma(&options, "idma_check", &[&cases, "7"]);
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
            (run.stdout, std::fs::read(&path).unwrap())
        })
        .into();
    assert_eq!(results[0], results[1], "two runs give the same bytes");
    let counted = result(&folder.path().join("a.json"))["statistics"].clone();
    let core = &counted["core0"];
    let classes: u64 =
        core["class"].as_object().unwrap().values().map(|class| class["value"].as_u64().unwrap()).sum();
    assert_eq!(core["instructions"]["value"], classes, "each instruction has a class: {}", core["class"]);
    let counted = &counted["devices"];
    assert!(counted["idma0"]["bytes_written"]["value"].as_u64().unwrap() > 0, "{counted}");
    assert!(counted["register_accesses"]["value"].as_u64().unwrap() > 100);
    assert!(counted["idma1"].is_null(), "unused devices are not reported: {counted}");
}

#[test]
fn the_copy_engine_works_with_every_core_model() {
    let outputs: Vec<Vec<u8>> = [
        &["--machine", "godson3", "--level", "cache", "--quiet"][..],
        &["--machine", "godson3", "--level", "timing", "--core", "in-order", "--quiet"],
        &["--machine", "godson3", "--level", "timing", "--interpret", "--quiet"],
    ]
    .into_iter()
    .map(|options| {
        let run = longma(options, "idma_check", &["8", "3", "2"]);
        assert!(run.status.success() && run.stderr.is_empty(), "{run:?}");
        run.stdout
    })
    .collect();
    assert!(outputs[0] == outputs[1] && outputs[1] == outputs[2]);
}

#[test]
fn a_machine_without_copy_engine_has_no_device_file() {
    let run = longma(&["--machine", "godson3-conventional", "--level", "timing"], "idma_check", &["1"]);
    assert_eq!(run.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(errors.contains("cannot open /dev/longma/idma0"), "{errors}");
}

#[test]
fn a_wire_for_a_missing_device_is_rejected() {
    for (options, reason) in [
        (&["--level", "timing", "--machine", "godson3", "--wire", "eth7,loop"][..], "eth0, eth1"),
        (&["--level", "timing", "--machine", "loongson-3a5000", "--wire", "eth0,loop"], "has none"),
        (&["--wire", "eth0,loop"], "--level cache or --level timing"),
        (&["--level", "timing", "--machine", "godson3", "--wire", "eth0,udp"], "neither"),
    ] {
        let run = longma(options, "hello", &[]);
        assert_eq!(run.status.code(), Some(125), "{options:?}");
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(text.contains(reason), "{options:?}: {text}");
    }
}

#[test]
fn a_failed_run_leaves_no_empty_result() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("no-program");
    std::fs::write(&program, b"not an ELF file, and no script").unwrap();
    let (new, old) = (folder.path().join("new.json"), folder.path().join("old.json"));
    std::fs::write(&old, b"{}").unwrap();
    for path in [&new, &old] {
        let run = Command::new("timeout")
            .arg("60")
            .arg(env!("CARGO_BIN_EXE_longma"))
            .args(["run", "--level", "cache", "--quiet", "--stats-out"])
            .args([path, &program])
            .output()
            .expect("the command starts");
        assert!(!run.status.success());
    }
    assert!(!new.exists(), "an empty result is left");
    assert_eq!(std::fs::read(&old).unwrap(), b"{}");
}

#[test]
fn an_unwritable_result_changes_the_exit_status() {
    let run = longma(&["--level", "cache", "--quiet", "--stats-out", "/dev/full"], "hello", &[]);
    assert_eq!(run.status.code(), Some(124), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(String::from_utf8_lossy(&run.stderr).contains("cannot write the result to /dev/full"));
}
