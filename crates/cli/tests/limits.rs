//! Runs that end before their program, statistics while it runs, sampled runs, and machines with other values.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

fn command(options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.arg("run").args(options).arg(guest(program)).args(arguments);
    command
}

fn timed(options: &[&str], program: &str, arguments: &[&str]) -> (Output, Option<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let mut all = vec!["--level", "timing", "--stats-out", file.to_str().unwrap()];
    all.extend(options);
    let output = command(&all, program, arguments).output().unwrap();
    (output, std::fs::read(&file).ok().map(|text| serde_json::from_slice(&text).unwrap()))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_ends_after_its_maximum_of_instructions_and_reports_them() {
    let (output, result) = timed(&["--max-instructions", "50000"], "queens", &["6", "20"]);
    let result = result.unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let executed = result["statistics"]["run"]["instructions"]["value"].as_u64().unwrap();
    assert!((50_000..50_064).contains(&executed), "{executed}");
    assert_eq!((&result["stopped"], &result["ending"]["exit"]), (&"max-instructions".into(), &0.into()));
    assert!(errors(&output).contains("--max-instructions are executed"), "{}", errors(&output));
    let (_, whole) = timed(&["--max-instructions", "50000000"], "queens", &["6", "20"]);
    assert!(whole.unwrap().get("stopped").is_none());
}

#[test]
fn a_run_ends_after_its_maximum_of_simulated_time() {
    let (output, result) = timed(&["--max-time", "20us"], "queens", &["6", "20"]);
    let result = result.unwrap_or_else(|| panic!("{}", errors(&output)));
    let time_ps = result["statistics"]["run"]["time"]["value"].as_u64().unwrap();
    assert!((20_000_000..30_000_000).contains(&time_ps), "{time_ps}");
    assert_eq!(result["stopped"], "max-time");
}

#[test]
fn statistics_are_written_while_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let options =
        ["--level", "timing", "--quiet", "--stats-out", file.to_str().unwrap(), "--stats-every", "100000"];
    assert!(command(&options, "queens", &["6", "20"]).status().unwrap().success());
    let lines = std::fs::read_to_string(folder.path().join("result.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counts: Vec<u64> = lines.iter().map(|line| line["instructions"].as_u64().unwrap()).collect();
    let whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let all = whole["statistics"]["run"]["instructions"]["value"].as_u64().unwrap();
    assert_eq!(counts.len() as u64, all / 100_000, "{counts:?} of {all}");
    assert!(counts.iter().zip(1..).all(|(count, nth)| count / 100_000 == nth), "{counts:?}");
    assert_eq!(lines[0]["statistics"]["run"]["instructions"]["value"], counts[0]);
}

/// Waits until the child ends, or kills it.
fn wait_for_end(mut child: Child) -> Output {
    let end = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn an_interrupted_run_reports_its_statistics_and_ends_by_the_signal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    // Its statistics so far show that it runs.
    let options = ["--level", "timing", "--stats-out", file.to_str().unwrap(), "--stats-every", "1"];
    let mut child = command(&options, "queens", &["10", "1000000"]).stderr(Stdio::piped()).spawn().unwrap();
    let so_far = folder.path().join("result.jsonl");
    while std::fs::metadata(&so_far).map_or(0, |about| about.len()) == 0
        && child.try_wait().unwrap().is_none()
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = wait_for_end(child);
    assert_eq!(output.status.signal(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("by signal 2") && errors(&output).contains("cycles went to"));
    let result: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(result["ending"]["signal"], 2);
    assert!(result["statistics"]["run"]["instructions"]["value"].as_u64() > Some(0));
}

#[test]
fn a_sampled_run_states_its_interval_in_the_summary_and_in_json() {
    let plan = "--sample=every=50k,unit=5k";
    let (output, result) = timed(&[plan], "queens", &["6", "200"]);
    let result = result.unwrap_or_else(|| panic!("{}", errors(&output)));
    let summary = errors(&output);
    assert!(
        summary.contains("95 % interval of the choice of units") && summary.contains("hottest functions"),
        "{summary}"
    );
    let cycles = &result["statistics"]["run"]["cycles"];
    let [low, value, high] =
        [&cycles["interval"][0], &cycles["value"], &cycles["interval"][1]].map(|end| end.as_f64().unwrap());
    assert!(low < value && value < high, "{cycles}");
    assert_eq!(result["sampling"]["interval"], "95 % interval of the choice of units");
    assert_eq!(result["manifest"]["sampling"], "every=50000,unit=5000,detail=4000,warm=all");
    let all: u64 =
        result["functions"].as_array().unwrap().iter().map(|f| f["instructions"].as_u64().unwrap()).sum();
    let executed = result["sampling"]["instructions"].as_u64().unwrap();
    assert!(all.abs_diff(executed) < executed / 1000, "functions have {all} of {executed} instructions");
}

#[test]
fn programs_of_other_instruction_sets_are_sampled_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let options =
        ["--level", "timing", "--quiet", "--stats-out", file.to_str().unwrap(), "--sample=every=50k"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    let output =
        command.arg("run").args(options).args(["guests:aarch64/queens", "6", "200"]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let result: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let source = result["statistics"]["run"]["source_instructions"]["value"].as_f64().unwrap();
    let executed = result["sampling"]["instructions"].as_f64().unwrap();
    assert!((0.3..1.2).contains(&(source / executed)), "{source} of {executed}");
}

#[test]
fn what_cannot_be_sampled_is_refused_with_advice() {
    let (output, result) = timed(&["--sample"], "hello", &[]);
    assert_eq!((output.status.code(), result), (Some(125), None), "{}", errors(&output));
    assert!(errors(&output).contains("at least 30") && errors(&output).contains("leave --sample out"));
    let (output, result) = timed(&["--sample=every=20k"], "threads", &["3", "1500"]);
    assert_eq!((output.status.code(), result), (Some(125), None), "{}", errors(&output));
    assert!(errors(&output).contains("second thread"), "{}", errors(&output));
    for (options, expected) in [
        (&["--level", "cache", "--sample"][..], "--sample is for level `timing` only"),
        (&["--sample"], "--sample is for simulated runs"),
        (&["--max-instructions", "5"], "--max-instructions is for simulated runs"),
        (&["--level", "timing", "--sample=every=1X"], "such as 20000, 20k or 1M"),
        (&["--level", "timing", "--roi", "--sample"], "cannot be used with"),
        (&["--level", "timing", "--max-time", "5"], "5"),
    ] {
        let output = command(options, "hello", &[]).output().unwrap();
        assert!(
            !output.status.success() && errors(&output).contains(expected),
            "{options:?}: {}",
            errors(&output)
        );
    }
}

#[test]
fn keys_of_a_machine_are_set_on_the_command_line() {
    let options = ["--max-instructions", "3000000"];
    let small = [&options[..], &["--set", "caches.l2.size=64KiB"]].concat();
    let (output, small) = timed(&small, "sort", &["30000"]);
    let small = small.unwrap_or_else(|| panic!("{}", errors(&output)));
    let (_, unchanged) = timed(&options, "sort", &["30000"]);
    let unchanged = unchanged.unwrap();
    let misses = |result: &Value| result["statistics"]["core0"]["l2"]["misses"]["value"].as_u64().unwrap();
    assert!(misses(&small) > misses(&unchanged), "{} and {}", misses(&small), misses(&unchanged));
    assert_ne!(small["manifest"]["machine"]["name"], unchanged["manifest"]["machine"]["name"]);
    let (output, _) = timed(&["--set", "caches.l2.sise=64KiB"], "hello", &[]);
    assert!(errors(&output).contains("`size`"), "{}", errors(&output));
    let output = command(&["--set", "caches.l2.size=64KiB"], "hello", &[]).output().unwrap();
    assert!(errors(&output).contains("--set needs a machine"), "{}", errors(&output));
}

#[test]
fn two_machines_are_compared_key_by_key() {
    let longma = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_longma")).arg("machine").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.toml");
    let text = "extends = \"loongson-3a5000\"\nname = \"small\"\n[caches.l2]\nsize = \"128 KiB\"\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    longma(&["check", file]);
    let table = longma(&["diff", "loongson-3a5000", file]);
    let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(
        (table.lines().count(), last),
        (2, vec!["caches.l2.size", "256", "KiB", "128", "KiB"]),
        "{table}"
    );
    let json: Value =
        serde_json::from_str(&longma(&["diff", "loongson-3a5000", file, "--format", "json"])).unwrap();
    assert_eq!(json[0]["second"], "128 KiB");
    assert!(longma(&["diff", file, file]).contains("do not differ"));
    assert!(longma(&["show", "loongson-3a5000", "--set", "caches.l2.size=64KiB"]).contains("L2 64 KiB"));
}
