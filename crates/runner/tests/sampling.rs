//! Sampled runs estimate the results of full runs. Source: Wunderlich et al., "SMARTS" (ISCA 2003): the result is a 95
//! % confidence interval, so about one run in twenty may lie outside of it. Results outside the interval must be within
//! 2 %.

mod simulator;

use std::process::{Command, Output};

use serde_json::Value;
use simulator::{guest, simulator};

fn simulate(options: &[&str], program: &str, arguments: &[&str]) -> (Output, Option<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("statistics.json");
    let output = Command::new("timeout")
        .arg("300")
        .arg(simulator())
        .args(["--machine", "loongson-3a5000", "--statistics", file.to_str().unwrap()])
        .args(options)
        .arg(guest(program))
        .args(arguments)
        .output()
        .unwrap();
    let written = std::fs::read(&file).ok().map(|text| serde_json::from_slice(&text).expect("it is JSON"));
    (output, written)
}

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or_else(|| panic!("{of} is no number"))
}

/// Programs with different bottlenecks, with arguments for 10 to 35 million instructions.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("queens", &["8", "20"]),
    ("matmul", &["100", "2"]),
    ("sort", &["20000"]),
    ("fft", &["13", "3"]),
    ("hashing", &["200"]),
];

const PLAN: &str = "every=100k,unit=10k,detail=4k,warm=all";

#[test]
fn the_cycles_of_a_full_run_are_in_the_interval_of_a_sampled_run() {
    for (program, arguments) in PROGRAMS {
        let (_, full) = simulate(&[], program, arguments);
        let full = full.unwrap_or_else(|| panic!("{program} runs"));
        let (output, sampled) = simulate(&["--sample", PLAN], program, arguments);
        let sampled = sampled.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        let cycles = number(&full["run"]["cycles"]["value"]);
        let sampling = &sampled["sampling"];
        let [value, low, high] = ["value", "low", "high"].map(|end| number(&sampling["cycles"][end]));
        let error = value / cycles - 1.0;
        let case = format!(
            "{program}: {cycles} cycles, estimated {value:.0} in {low:.0} to {high:.0} from {} units, off by {:.2} %",
            sampling["units"],
            100.0 * error
        );
        println!("{case}");
        assert!((low..=high).contains(&cycles) || error.abs() < 0.02, "{case}");
        assert_eq!(
            sampling["instructions"], full["run"]["instructions"]["value"],
            "{program}: they are exact"
        );
        assert_eq!(sampled["statistics"]["run"]["cycles"]["interval"], serde_json::json!([low, high]));
    }
}

#[test]
fn two_sampled_runs_give_the_same_bytes_and_another_seed_gives_other_units() {
    let run = |seed: &str| simulate(&["--sample", PLAN, "--seed", seed], "queens", &["8", "20"]).1.unwrap();
    let first = run("1");
    assert_eq!(first, run("1"));
    let other = run("2");
    assert_ne!(first["sampling"]["cpi"], other["sampling"]["cpi"]);
    assert_eq!(first["sampling"]["instructions"], other["sampling"]["instructions"]);
}

#[test]
fn a_program_too_short_for_the_plan_is_refused_with_a_plan_that_fits() {
    let (output, written) = simulate(&["--sample", "every=1M"], "queens", &["8", "20"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(written.is_none() && printed.contains("an interval needs at least 30"), "{printed}");
    let advised = printed.split('`').find_map(|word| word.strip_prefix("--sample=")).expect(&printed);
    let (output, written) = simulate(&["--sample", advised], "queens", &["8", "20"]);
    assert!(written.is_some(), "the advice works: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_with_threads_is_refused() {
    let (output, written) = simulate(&["--sample", "every=20k"], "threads", &["3", "1500"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(written.is_none() && printed.contains("a second thread"), "{printed}");
}
