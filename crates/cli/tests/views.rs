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
        annotated["instructions"].as_array().unwrap().iter().map(|it| it[key].as_f64().unwrap()).sum()
    };
    assert_eq!(sum("runs"), function["instructions"].as_f64().unwrap());
    assert_eq!(sum("mispredicts"), function["mispredicts"].as_f64().unwrap());
    assert!((sum("cycles") / function["cycles"].as_f64().unwrap() - 1.0).abs() < 1e-9);
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
