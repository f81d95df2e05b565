//! Tests `longma machine`.

mod subcommand;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use subcommand::{Subcommand, text};

const MACHINE: Subcommand = Subcommand("machine");

#[test]
fn every_listed_machine_can_be_shown_and_checked_from_any_folder() {
    let list = MACHINE.json(&["list", "--format", "json"]);
    let names: Vec<_> =
        list.as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap().to_string()).collect();
    let expected = [
        "godson3",
        "godson3-conventional",
        "godson3-two-chips",
        "hygon-8node",
        "loongson-3a4000",
        "loongson-3a5000",
        "piii-lanai9",
        "piii-myrinet",
        "sandybridge-2x6",
        "zns-host",
    ];
    assert_eq!(names, expected);
    for name in &names {
        assert!(MACHINE.success(&["list"]).contains(name.as_str()));
        assert!(MACHINE.success(&["show", name, "--width", "100"]).contains("NUMA node"), "{name}");
        assert!(MACHINE.success(&["check", name]).contains("0 errors, 0 warnings"), "{name}");
    }
}

#[test]
fn json_of_a_machine_holds_every_part_and_every_instance() {
    let machine = MACHINE.json(&["show", "hygon-8node", "--format", "json"]);
    assert_eq!(machine["layout"]["hosts"][0]["cores"].as_array().unwrap().len(), 64);
    assert_eq!(machine["machine"]["caches"]["l3"]["size"], "8 MiB");
    assert_eq!(machine["machine"]["hosts"][0]["distances"]["latency"][0][7], "240 ns");
}

#[test]
fn a_drawing_is_written_as_svg() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.svg");
    assert_eq!(MACHINE.success(&["show", "godson3", "--svg", file.to_str().unwrap()]), "");
    assert!(std::fs::read_to_string(&file).unwrap().contains("IDMA 3r 1w"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn sources_are_listed_on_request() {
    assert!(MACHINE.success(&["show", "loongson-3a5000", "--sources"]).contains("JEDEC"));
}

#[test]
fn a_misspelt_name_gets_a_suggestion() {
    let output = MACHINE.output(&["show", "loongson-3a500"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("did you mean `loongson-3a5000`?"), "{}", text(&output.stderr));
}

#[test]
fn a_broken_file_is_reported_and_the_command_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.toml");
    std::fs::write(&file, "format = 1\nname = \"x\"\ntitle = \"x\"\n[caches.l1]\nlevle = 1\n").unwrap();
    let path = file.to_str().unwrap();
    let output = MACHINE.output(&["check", path]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(report.contains("broken.toml:5:1") && report.contains("did you mean `level`?"), "{report}");
    let output = MACHINE.output(&["check", path, "--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let problems: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        problems
            .as_array()
            .unwrap()
            .iter()
            .any(|p| p["line"] == 5 && p["column"] == 1 && p["level"] == "error")
    );
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let output = MACHINE.output(&["check", "/nowhere/at-all.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere/at-all.toml"));
}

#[test]
fn check_rejects_exactly_what_a_run_rejects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.toml");
    let path = path.to_str().unwrap();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../machine/topology/machines/loongson-3a5000.toml");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/loongarch64/hello");
    // The replaced text, its replacement, and the word that the error names; empty if the file is valid.
    for (from, to, named) in [
        ("mispredict = \"12 cycles\"", "mispredict = \"1048576 cycles\"", "mispredict"),
        ("clock = \"2.5 GHz\"            #", "clock = \"4294967296 GHz\" #", "clock"),
        ("btb_entries = 4096", "btb_entries = 1048576", "btb_entries"),
        ("rob_entries = 128", "rob_entries = 1048576", "rob_entries"),
        ("store = { latency = \"1 cycles\"", "store = { latency = \"65535 cycles\"", "latency"),
        ("page_size = \"16 KiB\"", "page_size = \"63 KiB\"", "page"),
        ("page_size = \"16 KiB\"", "page_size = \"1 TiB\"", "page"),
        ("line = \"64 B\"\nlatency = \"14 cycles\"", "line = \"128 B\"\nlatency = \"14 cycles\"", "line"),
        ("page_size = \"16 KiB\"", "page_size = \"64 KiB\"", ""),
        ("page_size = \"16 KiB\"", "page_size = \"1 GiB\"", ""),
        ("mispredict = \"12 cycles\"", "mispredict = \"100 cycles\"", ""),
    ] {
        assert!(shipped.contains(from), "{from}");
        std::fs::write(path, shipped.replacen(from, to, 1)).unwrap();
        let check = MACHINE.output(&["check", path]);
        let stdout = text(&check.stdout);
        assert_eq!(check.status.success(), named.is_empty(), "{to}: {stdout}");
        assert!(stdout.contains(named), "{to}: {stdout}");
        let mut run = Command::new(env!("CARGO_BIN_EXE_longma"));
        let run =
            run.args(["run", "--quiet", "--level", "timing", "--machine", path, program]).output().unwrap();
        assert_eq!(run.status.success(), named.is_empty(), "{to}: {}", text(&run.stderr));
    }
}

/// Runs `longma machine check -` on a text.
fn check_stdin(file: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.args(["machine", "check", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(file.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn check_accepts_the_output_of_discover() {
    let file = MACHINE.success(&["discover"]);
    let output = check_stdin(&file);
    assert!(output.status.success(), "{}\n{file}", text(&output.stdout));
    assert!(MACHINE.success(&["discover", "--format", "table"]).contains("NUMA node 0"));
    assert!(MACHINE.json(&["discover", "--format", "json"])["layout"]["hosts"][0]["cores"].is_array());
}

#[test]
fn discover_reads_a_recorded_tree_and_reports_a_missing_one() {
    let output = MACHINE.output(&["discover", "--root", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no CPU is described"), "{}", text(&output.stderr));
}

#[test]
fn a_quick_measurement_is_written_as_a_machine_file_that_check_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    let path = file.to_str().unwrap();
    let measured = MACHINE.json(&["measure", "--quick", "--output", path, "--format", "json"]);
    assert!(measured["memory_ps"][0][0].as_u64().unwrap() > 500, "{measured}");
    assert!(measured["bandwidths"][0]["read"].as_u64().unwrap() > 100_000_000, "{measured}");
    let written = std::fs::read_to_string(Path::new(path)).unwrap();
    assert!(written.contains("[sources.measured]") && written.contains("[[hosts.bandwidths]]"), "{written}");
    assert!(MACHINE.success(&["check", path]).contains("0 errors"));
}

#[test]
fn a_closed_output_is_not_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command
        .args(["machine", "show", "hygon-8node", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}
