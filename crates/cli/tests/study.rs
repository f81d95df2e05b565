//! Tests features for studies: input files as part of a result, sensitivity to estimates, titles with control
//! sequences, and the reasons why a mean leaves runs out.

mod programs;
mod subcommand;

use programs::guest;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use subcommand::{Subcommand, text};
use tempfile::{TempDir, tempdir};

const EXPERIMENT: Subcommand = Subcommand("experiment");

/// An experiment file beside the guest `queens`, with a store.
struct Study(TempDir);

impl Study {
    fn new(experiment: &str) -> Self {
        let study = Self(tempdir().unwrap());
        fs::copy(guest("queens"), study.path("queens")).unwrap();
        fs::write(study.path("file.toml"), experiment).unwrap();
        study
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn output(&self, verb: &str, arguments: &[&str]) -> Output {
        let mut command = EXPERIMENT.command(&[verb]);
        command.arg(self.path("file.toml")).args(arguments);
        command.arg("--store").arg(self.path("store")).output().unwrap()
    }

    fn success(&self, verb: &str, arguments: &[&str]) -> String {
        let output = self.output(verb, arguments);
        assert!(output.status.success(), "{verb}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }
}

const QUEENS: &str = r#"
format = 1
name = "file"
title = "TITLE"
workload = "program"
machines = ["loongson-3a5000"]
time_limit = "60 s"
[parameters]
program = "queens"
argument = "4"
[metrics.instructions]
unit = "instructions"
title = "METRIC"
"#;

#[test]
fn titles_that_a_terminal_would_act_on_are_shown_as_text() {
    let hostile = QUEENS.replace("TITLE", r"a\u001b[31mb\u009b2Jc").replace("METRIC", r"d\u001b]0;e\u0007");
    let published = "[sources.s]\nkind = \"paper\"\ntitle = \"f\\u001b[5mg\"\n[[published]]\nvalues = { instructions = 1 }\n\
        read = \"printed\"\nsource = \"s\"\nnote = \"h\\u001b[1mi\"\n";
    let study = Study::new(&(hostile + published));
    for (verb, arguments) in [
        ("check", &[][..]),
        ("run", &[]),
        ("run", &["--format", "json"]),
        ("compare", &[]),
        ("compare", &["--format", "json"]),
        ("points", &[]),
        ("metrics", &[]),
    ] {
        let output = study.output(verb, arguments);
        let shown = text(&output.stdout) + &text(&output.stderr);
        let control = |c: char| c.is_control() && c != '\n';
        assert!(!shown.contains(control), "{verb} {arguments:?}: {shown:?}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&study.success("compare", &["--format", "json"])).unwrap();
    assert_eq!(json[0]["values"][0]["note"], "h\u{1b}[1mi", "JSON keeps the text");
    let list = EXPERIMENT.command(&["list", "--folder"]).arg(study.0.path()).output().unwrap();
    assert!(!text(&list.stdout).contains('\x1b'), "{:?}", text(&list.stdout));
}

#[test]
fn a_mean_names_the_runs_that_it_leaves_out() {
    let experiment = QUEENS.replace("argument = \"4\"", "")
        + "[parameters.prints]\nways = '(\\d+) ways'\n[metrics.ways]\nunit = \"ways\"\n[sources.s]\nkind = \"paper\"\ntitle = \"t\"\n\
        [[published]]\nvalues = { ways = 2 }\nread = \"printed\"\nsource = \"s\"\n";
    let experiment = experiment
        .replace("[metrics.instructions]", "[sweep]\nargument = [\"4\", \"6\"]\n[metrics.instructions]")
        .replace("workload =", "replicates = [\"argument\"]\nworkload =");
    let study = Study::new(&experiment);
    study.success("run", &["--shard", "1/2"]);
    let output = study.output("compare", &[]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("ways: the mean leaves out: argument 6 is not run yet"), "{shown}");
    assert!(shown.contains("(1 of 2)"), "{shown}");
}

#[test]
fn input_files_are_part_of_a_result_and_all_that_the_program_finds() {
    // `queens` reads nothing, but its results may depend on the file.
    let experiment = QUEENS.replace("argument = \"4\"", "argument = \"4\"\nfiles = [\"data/input.txt\"]");
    let study = Study::new(&experiment);
    let output = study.output("run", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("data/input.txt"), "{}", text(&output.stderr));
    fs::create_dir(study.path("data")).unwrap();
    let input = study.path("data/input.txt");
    fs::write(&input, "one").unwrap();
    let keys = |study: &Study| {
        let points: serde_json::Value =
            serde_json::from_str(&study.success("points", &["--format", "json"])).unwrap();
        points[0]["key"].as_str().unwrap().to_string()
    };
    let before = keys(&study);
    assert!(study.success("run", &[]).contains("1 points run"));
    fs::write(&input, "another").unwrap();
    assert_ne!(keys(&study), before);
    let outside = experiment.replace("data/input.txt", "../input.txt");
    fs::write(study.path("file.toml"), outside).unwrap();
    assert!(text(&study.output("run", &[]).stderr).contains("not below `folder`"));
}

#[test]
fn estimates_are_ranked_by_their_effect() {
    let experiment = QUEENS.replace("argument = \"4\"", "argument = \"5\"\nlevel = \"timing\"")
        + "[metrics.cycles]\nof = \"run.cycles\"\nunit = \"cycles\"\n[sensitivity]\nmetrics = [\"cycles\"]\n\
        estimates = [\"machine.cores.la464.rob_entries\", \"machine.caches.l3.latency\"]\nhigh = 4\n";
    let study = Study::new(&experiment);
    let figures = study.path("figures");
    let shown = study.success("sensitivity", &["--figures", figures.to_str().unwrap()]);
    assert!(shown.contains("cycles unchanged"), "{shown}");
    for name in ["file-sensitivity-cycles.svg", "file-sensitivity-cycles.pdf", "file-sensitivity.csv"] {
        assert!(figures.join(name).is_file(), "{name}");
    }
    let table = fs::read_to_string(figures.join("file-sensitivity.csv")).unwrap();
    assert!(table.starts_with("at,metric,unit,unchanged,parameter,"), "{table}");
    assert!(table.contains("machine.cores.la464.rob_entries,128,depth,64,"), "{table}");
    let json = study.success("sensitivity", &["--format", "json", "--estimate", "machine.cores.la464.rob*"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["effects"].as_array().unwrap().len(), 1, "{json}");
    let none = study.output("sensitivity", &["--estimate", "machine.nothing", "--metric", "instructions"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("nothing to vary"), "{}", text(&none.stderr));
}

#[test]
fn failed_runs_of_a_sensitivity_are_a_failure_and_say_why() {
    let experiment = QUEENS.to_string() + "[sensitivity]\nestimates = []\nranges = { status = [0, 7] }\n";
    let study = Study::new(&experiment);
    let output = study.output("sensitivity", &[]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("failed at 7: "), "{shown}");
    let order = study.output("sensitivity", &["--low", "2", "--high", "0.5"]);
    assert_eq!(order.status.code(), Some(2), "{}", text(&order.stdout));
    assert!(text(&order.stderr).contains("do not enclose 1"), "{}", text(&order.stderr));
}

#[test]
fn a_root_folder_is_all_that_the_program_sees_and_part_of_the_result() {
    let experiment = QUEENS.replace("program = \"queens\"", "root = \"tree\"\nprogram = \"bin/queens\"");
    let study = Study::new(&experiment);
    assert_eq!(study.output("run", &[]).status.code(), Some(2), "there is no such folder");
    fs::create_dir_all(study.path("tree/bin")).unwrap();
    fs::copy(guest("queens"), study.path("tree/bin/queens")).unwrap();
    let points = || {
        let json: serde_json::Value =
            serde_json::from_str(&study.success("points", &["--format", "json"])).unwrap();
        json[0]["key"].as_str().unwrap().to_string()
    };
    let before = points();
    study.success("check", &[]);
    assert!(study.success("run", &[]).contains("1 points run"));
    // Only the path changes, not the contents.
    fs::rename(study.path("tree"), study.path("moved")).unwrap();
    fs::write(study.path("file.toml"), experiment.replace("\"tree\"", "\"moved\"")).unwrap();
    assert_eq!(points(), before);
    fs::write(study.path("moved/data"), "more").unwrap();
    let after = points();
    assert_ne!(after, before);
    study.success("run", &[]);
    // A bundle has the folder, and runs again elsewhere.
    let bundle = study.path("x.tar");
    study.success("bundle", &["--out", bundle.to_str().unwrap()]);
    fs::remove_dir_all(study.path("moved")).unwrap();
    let verified = EXPERIMENT.command(&["verify"]).arg(&bundle).output().unwrap();
    assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
    fs::create_dir(study.path("moved")).unwrap();
    std::os::unix::fs::symlink("queens", study.path("moved/link")).unwrap();
    fs::write(
        study.path("file.toml"),
        experiment.replace("\"tree\"", "\"moved\"").replace("bin/queens", "absent"),
    )
    .unwrap();
    let failed = study.output("run", &[]);
    assert_eq!(failed.status.code(), Some(1), "{}{}", text(&failed.stdout), text(&failed.stderr));
    let both = experiment.replace("argument = \"4\"", "argument = \"4\"\nfiles = [\"queens\"]");
    fs::write(study.path("file.toml"), both).unwrap();
    let refused = study.output("run", &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("put them into that folder"), "{}", text(&refused.stderr));
}

#[test]
fn values_and_failures_cannot_add_lines_to_the_output() {
    let study = Study::new(
        &QUEENS
            .replace("TITLE", "t\\nforged: 0")
            .replace("argument = \"4\"", "status = 7\n[sweep]\nargument = [\"4\", \"5\\nforged: 1\"]"),
    );
    for verb in ["points", "run"] {
        let output = study.output(verb, &[]);
        let (shown, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(
            shown.contains("forged: 1") && !format!("\n{shown}{errors}").contains("\nforged"),
            "{verb}: {shown}{errors}"
        );
    }
}

/// The experiment with `parameters` at level `timing`, one metric, and a published value.
fn timed(parameters: &str) -> String {
    let queens =
        QUEENS.replace("unit = \"instructions\"", "of = \"run.instructions\"\nunit = \"instructions\"");
    queens.replace(
        "argument = \"4\"",
        &format!("arguments = [\"6\", \"20\"]\nlevel = \"timing\"\n{parameters}"),
    ) + "[metrics.cycles]\nof = \"run.cycles\"\nunit = \"10^3 cycles\"\nscale = 1e-3\n\
        [metrics.cpi]\nunit = \"cycles/instruction\"\nformula = \"run.cycles / run.instructions\"\n\
        [metrics.nothing]\nunit = \"times\"\nformula = \"cycles / cycles\"\n\
        [sources.s]\nkind = \"paper\"\ntitle = \"t\"\n[[published]]\nvalues = { cycles = 215 }\nread = \"printed\"\n\
        source = \"s\"\n[[plots]]\ntitle = \"Cycles\"\nkind = \"bar\"\nx = \"machine\"\nmetrics = [\"cycles\"]\n"
}

#[test]
fn a_sampled_point_has_its_interval_wherever_it_is_shown() {
    let study = Study::new(&timed("sample = \"every=20k,unit=2k,detail=1k\""));
    let shown = study.success("run", &[]);
    assert_eq!(shown.matches('±').count(), 3, "{shown}");
    let rows: serde_json::Value = serde_json::from_str(&study.success("run", &["--format", "json"])).unwrap();
    let row = rows.to_string();
    for half in ["cycles.half", "cpi.half", "\"nothing.half\":0.0"] {
        assert!(row.contains(half), "{half}: {row}");
    }
    assert!(!row.contains("instructions.half"), "counts are exact: {row}");
    let compared = study.success("compare", &[]);
    assert!(compared.contains('±'), "{compared}");
    let json: serde_json::Value =
        serde_json::from_str(&study.success("compare", &["--format", "json"])).unwrap();
    assert!(json[0]["values"][0]["interval"]["half"].as_f64().unwrap() > 0.0, "{json}");
    let (page, figures) = (study.path("page.html"), study.path("figures"));
    let output = ["-o", page.to_str().unwrap(), "--figures", figures.to_str().unwrap()];
    study.success("report", &output);
    assert!(fs::read_to_string(page).unwrap().contains("(ours, sampled)"));
    let table = fs::read_to_string(figures.join("file.csv")).unwrap();
    assert!(table.starts_with("instructions,instructions.half"), "{table}");
    // Another plan is another point.
    fs::write(study.path("file.toml"), timed("sample = \"every=10k,unit=2k,detail=1k\"")).unwrap();
    assert!(study.success("run", &[]).contains("1 points run"));
}

const REGION: &str = r#"
format = 1
name = "file"
title = "Region"
workload = "program"
machines = ["loongson-3a5000"]
time_limit = "60 s"
[parameters]
program = "guests:matmul"
arguments = ["24", "1"]
level = "timing"
roi = true
warm = "0"
[parameters.prints]
checksum = 'matmul.* ([0-9]+)[0-9a-f]*'
[sweep]
"machine.caches.l2.size" = ["128 KiB", "256 KiB"]
[metrics.cycles]
of = "run.cycles"
unit = "cycles"
"#;

#[test]
fn points_continue_from_a_checkpoint_that_they_share() {
    let study = Study::new(REGION);
    let cycles = |study: &Study| {
        let rows: serde_json::Value =
            serde_json::from_str(&study.success("run", &["--format", "json"])).unwrap();
        let rows = rows[0]["rows"].as_array().unwrap_or_else(|| panic!("{rows}")).clone();
        rows.iter().map(|row| row["cycles"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let whole = cycles(&study);
    let restored = REGION.replace("warm = \"0\"", "checkpoint = true");
    fs::write(study.path("file.toml"), &restored).unwrap();
    assert!(study.success("run", &[]).contains("2 points run"), "a checkpoint is part of a result");
    assert_eq!(cycles(&study)[1], whole[1], "on the machine that made the checkpoint");
    for (given, why) in [
        ("checkpoint = true\nwarm = \"5\"", "`warm` has no effect after a `checkpoint`"),
        ("checkpoint = true\nfiles = [\"queens\"]", "cannot contain the copies of `files`"),
        ("sample = \"\"\nwarm = \"-3\"", "-3"),
        ("checkpoint = true\nmax_time = \"0s\"", "0s"),
        ("sample = \"every=50k\"", "cannot be used with"),
        ("sample = \"every=0\"", "every"),
        ("sample = \"every=50k,every=20k\"", "`every` is given twice"),
        ("max_instructions = -1", "-1"),
        ("max_time = \"soon\"", "soon"),
    ] {
        fs::write(study.path("file.toml"), REGION.replace("warm = \"0\"", given)).unwrap();
        for verb in ["check", "run"] {
            let output = study.output(verb, &[]);
            let shown = text(&output.stdout) + &text(&output.stderr);
            assert!(!output.status.success() && shown.contains(why), "{verb} {given}: {shown}");
        }
    }
    // A checkpoint has no translated code.
    fs::copy("/proc/self/exe", study.path("native")).unwrap();
    let native = restored.replace("guests:matmul", "native");
    fs::write(study.path("file.toml"), native).unwrap();
    let shown = text(&study.output("check", &[]).stdout);
    assert!(shown.contains("translation of a program"), "{shown}");
    let limited = REGION.replace("warm = \"0\"", "max_instructions = 1000");
    // It ends before the program prints.
    let limited = limited.replace("[parameters.prints]\nchecksum = 'matmul.* ([0-9]+)[0-9a-f]*'\n", "");
    fs::write(study.path("file.toml"), limited).unwrap();
    assert!(cycles(&study)[0] < whole[0] / 10.0);
}

#[test]
fn a_region_that_the_program_does_not_mark_is_a_failure() {
    let study = Study::new(&REGION.replace("guests:matmul", "guests:hello"));
    let output = study.output("run", &[]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert!(shown.contains("the program executed no region of interest"), "{shown}");
}

#[test]
fn keys_of_the_machine_that_cannot_act_are_reported() {
    let at = |machine: &str, level: &str, key: &str, values: &str| {
        let swept = format!("argument = \"4\"\nlevel = \"{level}\"\n[sweep]\n\"machine.{key}\" = [{values}]");
        Study::new(&QUEENS.replace("argument = \"4\"", &swept).replace("loongson-3a5000", machine))
    };
    let (loongson, pages) = ("loongson-3a5000", "\"4 KiB\", \"16 KiB\"");
    for (machine, level, key, values, why) in [
        (
            "sandybridge-2x6",
            "timing",
            "hosts.0.os.page_size",
            pages,
            "the cores' own `page_size` takes precedence",
        ),
        (loongson, "timing", "hosts.0.count", "1, 2", "a program runs on the machine's first host"),
        (
            loongson,
            "timing",
            "chips.3a5000.crossbars.0.master_ports",
            "5, 6",
            "only `longma machine check` uses it",
        ),
        (loongson, "timing", "description", "\"a\", \"b\"", "it only describes the machine"),
        (
            loongson,
            "cache",
            "cores.la464.rob_entries",
            "64, 128",
            "at level `cache` an instruction takes one cycle",
        ),
        (
            loongson,
            "cache",
            "caches.l2.latency",
            "\"9 cycles\", \"14 cycles\"",
            "at level `cache` an instruction",
        ),
        (loongson, "functional", "caches.l2.size", "\"128 KiB\", \"256 KiB\"", "there is no timing model"),
    ] {
        let output = at(machine, level, key, values).output("check", &["--format", "json"]);
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{key}: {shown}{}", text(&output.stderr));
        assert!(shown.contains(&format!("`machine.{key}` does nothing: ")), "{key}: {shown}");
        assert!(shown.contains(why), "{key}: {shown}");
    }
    // Whether a cache that is large enough matters is known only after a run.
    let large = at(loongson, "timing", "caches.l3.size", "\"8 MiB\", \"16 MiB\"");
    let checked = large.output("check", &[]);
    assert!(!text(&checked.stdout).contains("does nothing"), "{}", text(&checked.stdout));
    let shown = text(&large.output("run", &[]).stdout);
    assert!(shown.contains("`machine.caches.l3.size` changes nothing"), "{shown}");
}
