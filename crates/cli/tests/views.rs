//! Tests the page of `longma run --report` and the assembly of `--annotate`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn guest(architecture: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt").join(architecture).join(name)
}

fn longma(options: &[&str], program: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longma"))
        .arg("run")
        .args(options)
        .arg(program)
        .args(arguments)
        .output()
        .expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_page_shows_the_run_and_changes_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let program = guest("loongarch64", "queens");
    for (number, level) in
        [&["timing", "in-order"][..], &["timing", "out-of-order"], &["cache"]].into_iter().enumerate()
    {
        let [plain, shown, page] =
            ["plain.json", "shown.json", "page.html"].map(|name| at(&format!("{number}{name}")));
        let mut options = vec!["--quiet", "--level", level[0]];
        options.extend(level.get(1).into_iter().flat_map(|core| ["--core", core]));
        let run = longma(&[&options[..], &["--stats-out", &plain]].concat(), &program, &["6", "20"]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let views = ["--stats-out", &shown, "--report", &page, "--report-against", &plain];
        let run = longma(&[&options[..], &views].concat(), &program, &["6", "20"]);
        assert!(run.status.success() && run.stderr.is_empty(), "{}", text(&run.stderr));
        assert_eq!(std::fs::read(&plain).unwrap(), std::fs::read(&shown).unwrap(), "{level:?}");
        let page = std::fs::read_to_string(&page).unwrap();
        let mut parts =
            vec!["core 0", "L1d 64 KiB", "<code>by_arrays", "instruction by instruction", "are the same"];
        if level[0] == "timing" {
            parts.extend(["The stack over time", "% busy", "<dt>CPI</dt>"]);
        }
        for part in parts {
            assert!(page.contains(part), "{level:?}: {part}");
        }
    }
}

#[test]
fn assembly_of_every_architecture_is_annotated_in_80_columns() {
    let instructions =
        [("loongarch64", "st.d"), ("x86_64", "mov"), ("aarch64", "ldr"), ("mips64el", "daddu")];
    for (architecture, instruction) in instructions {
        let options = ["--quiet", "--level", "timing", "--annotate"];
        let run = longma(&options, &guest(architecture, "queens"), &["6", "2"]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let printed = text(&run.stderr);
        assert!(printed.contains(" % of the cycles"), "{architecture}: {printed}");
        assert!(printed.contains(instruction), "{architecture}: {printed}");
        assert!(printed.lines().all(|line| line.chars().count() <= 80), "{architecture}: {printed}");
    }
}

#[test]
fn the_costs_of_instructions_add_up_to_those_of_the_function() {
    let options = ["--level", "timing", "--format", "json", "--annotate=main"];
    let run = longma(&options, &guest("loongarch64", "queens"), &["6", "4"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let result: serde_json::Value = serde_json::from_slice(&run.stderr).unwrap();
    let annotated = &result["annotation"]["functions"][0];
    let all = result["functions"].as_array().unwrap();
    let function = all.iter().find(|function| function["function"] == "main").unwrap();
    let sum = |key: &str| -> f64 {
        annotated["instructions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|instruction| instruction[key].as_f64().unwrap())
            .sum()
    };
    assert_eq!(sum("runs"), function["instructions"].as_f64().unwrap());
    assert_eq!(sum("mispredicts"), function["mispredicts"].as_f64().unwrap());
    assert!((sum("cycles") / function["cycles"].as_f64().unwrap() - 1.0).abs() < 1e-9);
}

fn replay(options: &[&str], trace: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longma")).arg("replay").args(options).arg(trace).output().unwrap()
}

#[test]
fn a_champsim_trace_of_a_program_replays_with_its_instructions_and_nearly_its_cycles() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (trace, plain) = (at("queens.champsim.zst"), at("queens.champsim"));
    let run = |trace: &Path| {
        let options = ["--level", "timing", "--format", "json", "--champsim", trace.to_str().unwrap()];
        let run = longma(&options, &guest("loongarch64", "queens"), &["6", "4"]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        serde_json::from_slice::<serde_json::Value>(&run.stderr).unwrap()
    };
    let figure =
        |result: &serde_json::Value, name: &str| result["statistics"]["run"][name]["value"].as_f64().unwrap();
    let program = run(&trace);
    run(&plain);
    let instructions = figure(&program, "instructions");
    assert_eq!(std::fs::metadata(&plain).unwrap().len(), 64 * instructions as u64);
    let outputs: Vec<_> = [&trace, &plain].map(|trace| replay(&["--format", "json"], trace)).into();
    assert!(outputs[0].status.success(), "{}", text(&outputs[0].stderr));
    let replayed: Vec<serde_json::Value> =
        outputs.iter().map(|output| serde_json::from_slice(&output.stdout).unwrap()).collect();
    assert_eq!(replayed[0]["statistics"], replayed[1]["statistics"], "compression changes nothing");
    // Atomic operations are two accesses.
    assert!((figure(&replayed[0], "instructions") / instructions - 1.0).abs() < 0.01);
    let ratio = figure(&replayed[0], "cycles") / figure(&program, "cycles");
    assert!((0.6..1.4).contains(&ratio), "{ratio}");
}

#[test]
fn a_damaged_trace_and_a_program_with_threads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        folder.path().join(name)
    };
    let cases = [
        (at("empty", &[]), "has no instruction"),
        (at("cut", &[0; 100]), "is cut off: record 1 has 36 bytes of 64"),
        (at("other", &[7; 64]), "record 0 is not one of a ChampSim trace"),
        (at("xz", b"\xfd7zXZ\0..."), "compressed with xz"),
        (at("bad.zst", &[0x28, 0xb5, 0x2f, 0xfd, 9, 9, 9, 9, 9, 9]), "record 0 cannot be read"),
    ];
    for (path, message) in cases {
        let run = replay(&[], &path);
        assert!(!run.status.success());
        assert!(text(&run.stderr).contains(message), "{path:?}: {}", text(&run.stderr));
    }
    let trace = folder.path().join("threads").display().to_string();
    let options = ["--quiet", "--level", "timing", "--champsim", &trace];
    let run = longma(&options, &guest("loongarch64", "threads"), &["2", "10"]);
    assert_eq!(run.status.code(), Some(125));
    assert!(text(&run.stderr).contains("it can have one thread"), "{}", text(&run.stderr));
    assert!(!Path::new(&trace).exists(), "an incomplete trace could be taken for a complete one");
}

#[test]
fn a_refused_run_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let [trace, champsim, stats] = ["trace.json", "champsim", "stats.json"].map(at);
    let options = ["--level", "timing", "--stats-every", "1000", "--stats-out", &stats];
    let files = ["--trace", &trace, "--champsim", &champsim];
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for (more, program, succeeds) in
        [(&[][..], readme, false), (&["--measures"], guest("loongarch64", "hello"), true)]
    {
        let run = longma(&[&options[..], &files, more].concat(), &program, &[]);
        assert_eq!(run.status.success(), succeeds, "{}", text(&run.stderr));
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn two_outputs_in_one_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.json");
    let name = file.to_str().unwrap();
    let beside = folder.path().join("x.machine.toml");
    for options in [
        ["--report", name, "--stats-out", name],
        ["--trace", name, "--champsim", name],
        ["--stats-out", name, "--report", beside.to_str().unwrap()],
    ] {
        let options = [&["--level", "timing"], &options[..]].concat();
        let run = longma(&options, &guest("loongarch64", "hello"), &[]);
        assert_eq!(run.status.code(), Some(125));
        assert!(text(&run.stderr).contains("name the same file"), "{}", text(&run.stderr));
        assert!(!file.exists());
    }
    let both = ["--level", "timing", "--report", "/dev/null", "--stats-out", "/dev/null"];
    assert!(longma(&both, &guest("loongarch64", "hello"), &[]).status.success());
}

#[test]
fn a_hostile_result_does_not_control_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let compare = |first: &str, format: &str| {
        let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
        std::fs::write(&before, first).unwrap();
        std::fs::write(&after, r#"{"format": 1, "statistics": {}}"#).unwrap();
        Command::new(env!("CARGO_BIN_EXE_longma"))
            .args(["compare", "--format", format])
            .args([before, after])
            .output()
            .unwrap()
    };
    let hostile = r#"{"format": 1, "manifest": {"program\u001b]0;x": "\u001b[2J\u009b31m"},
        "statistics": {"core0\u001b[2J": {"cycles": {"value": 1, "unit": "\u001b[31m\nrun.fake"}}}}"#;
    for format in ["table", "json"] {
        let run = compare(hostile, format);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let printed = text(&run.stdout);
        assert!(!printed.contains(|c: char| c.is_control() && c != '\n'), "{printed:?}");
        assert!(!printed.contains("\nrun.fake"), "{printed}");
    }
    for format in ["2", "\"1\"", "1.5", "null", "[]"] {
        let run = compare(&format!(r#"{{"format": {format}, "statistics": {{}}}}"#), "table");
        assert!(!run.status.success() && text(&run.stderr).contains("has format"), "{}", text(&run.stderr));
    }
}

#[test]
fn a_file_that_is_no_result_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (page, other) = (folder.path().join("page.html"), folder.path().join("other.json"));
    std::fs::write(&other, "{}").unwrap();
    let options = [
        "--level",
        "timing",
        "--report",
        page.to_str().unwrap(),
        "--report-against",
        other.to_str().unwrap(),
    ];
    let run = longma(&options, &guest("loongarch64", "hello"), &[]);
    assert_eq!(run.status.code(), Some(125));
    assert!(
        run.stdout.is_empty() && text(&run.stderr).contains("has no statistics"),
        "{}",
        text(&run.stderr)
    );
    assert!(!page.exists());
    let run = longma(&["--report", page.to_str().unwrap()], &guest("loongarch64", "hello"), &[]);
    assert!(text(&run.stderr).contains("--report is for simulated runs"), "{}", text(&run.stderr));
}
