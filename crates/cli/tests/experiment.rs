//! Tests `longma experiment`: problems found by `check` before a run, exit statuses, and the state left after runs that
//! failed because of the host.

mod programs;
mod subcommand;

use programs::guest;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use subcommand::{Subcommand, text};
use tempfile::{TempDir, tempdir};

const EXPERIMENT: Subcommand = Subcommand("experiment");

/// A simulated run with a wire, an environment and a quick form.
const RECEIVE: &str = r#"
format = 1
name = "receive"
title = "Received"
workload = "program"
machines = ["MACHINE"]
time_limit = "60 s"
[parameters]
folder = "GUESTS"
program = "tcp_receive"
arguments = ["eth0"]
level = "cache"
roi = true
wire = { bytes = "100000", message = "1024", device = "eth0" }
environment = { check = "0", message = "1024" }
[parameters.prints]
bandwidth = '([\d.]+) Mb/s'
[sweep]
"environment.ways" = [1, 2]
"wire.message" = [64, 1024]
[metrics.bandwidth]
unit = "Mb/s"
[metrics.leaks]
of = "l3.dca_leaks"
unit = "lines"
[metrics.missed]
of = "devices.ports.rx_missed"
unit = "frames"
[explain]
at = { "environment.ways" = 1, "wire.message" = 64 }
[explain.mechanisms.dca]
off = { "environment.dca" = 0 }
on = { "environment.dca" = 1 }
[quick]
parameters = { "wire.bytes" = 50000 }
"#;

/// A short program.
const QUEENS: &str = r#"
format = 1
name = "queens"
title = "Queens"
workload = "program"
machines = ["loongson-3a5000"]
time_limit = "60 s"
[parameters]
folder = "GUESTS"
program = "queens"
[sweep]
argument = ["4", "5"]
[metrics.instructions]
unit = "instructions"
"#;

/// An experiment file in a temporary directory, with placeholders filled in and one text replaced.
struct ExperimentFile {
    folder: TempDir,
}

impl ExperimentFile {
    fn new(content: &str, from: &str, to: &str) -> Self {
        assert!(content.contains(from), "{from}");
        let guests = guest("queens").parent().unwrap().display().to_string();
        let machine = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../experiments/machines/3a5000-ethernet.toml")
            .display()
            .to_string();
        let folder = tempdir().unwrap();
        let content = content.replace(from, to).replace("GUESTS", &guests).replace("MACHINE", &machine);
        fs::write(folder.path().join("file.toml"), content).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("file.toml")
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// `longma experiment VERB` for the file.
    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = EXPERIMENT.command(&[verb]);
        command.arg(self.path()).args(arguments).arg("--store").arg(self.store());
        command
    }

    fn output(&self, verb: &str, arguments: &[&str]) -> Output {
        self.command(verb, arguments).output().unwrap()
    }
}

/// Exit status, standard output and standard error.
fn status_and_text(output: &Output) -> (i32, String, String) {
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn check_finds_errors_and_ineffective_settings() {
    let cases = [
        ("check = \"0\"", "check = \"0\"", ""),
        ("device = \"eth0\"", "device = \"eth1\"", "eth1"),
        ("environment.ways", "environment.wayz", "does not contain the string `wayz`"),
        (
            "message = \"1024\" }\n[",
            "message = \"1024\", chek = \"1\" }\n[",
            "does not contain the string `chek`",
        ),
        ("\"environment.dca\"", "\"environment.dcb\"", "does not contain the string `dcb`"),
        ("l3.dca_leaks", "l3.dca_leak", "did you mean `l3.dca_leaks`"),
        ("devices.ports.rx_missed", "devices.ports.rx_mist", "did you mean `devices.ports.rx_missed`"),
        ("\"tcp_receive\"", "\"tcp_recieve\"", "tcp_recieve"),
        ("\"wire.bytes\" = 50000", "program = \"nothing\"", "nothing"),
        ("\"wire.message\" = [64, 1024]", "\"wire.message\" = [64, 0]", "message is a number from 1"),
        ("\"wire.bytes\" = 50000", "\"wire.size\" = 50000", "no key `size`"),
        ("roi = true", "roi = true\ncpu = \"0-99\"", "--cpu names cores"),
        ("roi = true", "roi = true\nnuma = \"bind\"", "no memory policy"),
        ("roi = true", "roi = true\ncore = \"fast\"", "fast"),
        ("level = \"cache\"", "level = \"functional\"", "`roi` does nothing"),
        ("([\\d.]+) Mb/s", "[\\d.]+ Mb/s", "no group"),
        ("parameters = { \"wire.bytes\" = 50000 }", "machines = [\"loongson-3a5000\"]", "eth0"),
        ("\"wire.message\" = 64 }", "\"wire.message\" = 0 }", "help: explained, "),
    ];
    for (from, to, expected) in cases {
        let (status, stdout, errors) =
            status_and_text(&ExperimentFile::new(RECEIVE, from, to).output("check", &[]));
        let fits = if expected.is_empty() { 0 } else { 2 };
        assert_eq!(status, fits, "{to}: {stdout}{errors}");
        // Messages are wrapped.
        let words: Vec<_> = stdout.split_whitespace().filter(|word| *word != "│").collect();
        assert!(words.join(" ").contains(expected), "{to}: {stdout}{errors}");
    }
    // Without the programs, the file itself can still be checked.
    let absent = ExperimentFile::new(RECEIVE, "\"tcp_receive\"", "\"absent\"");
    assert_eq!(status_and_text(&absent.output("check", &["--file-only"])).0, 0);
}

#[test]
fn the_quick_form_rejects_unsuitable_machines_too() {
    let cases = [
        ("\"loongson-3a5000\"", "\"hygon-8node\""),
        ("unit = \"instructions\"", "unit = \"instructions\"\n[quick]\nmachines = [\"hygon-8node\"]"),
    ];
    for (from, to) in cases {
        let (status, stdout, _) =
            status_and_text(&ExperimentFile::new(QUEENS, from, to).output("check", &[]));
        assert_eq!(status, 2, "{stdout}");
        assert!(stdout.contains("x86-64 cores"), "{stdout}");
    }
}

#[test]
fn all_shipped_experiments_can_be_set_up() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let stdout = EXPERIMENT.success(&["check", "--all", "--folder", folder.to_str().unwrap()]);
    assert!(
        stdout.lines().count() > 20 && stdout.lines().all(|line| line.ends_with("0 errors, 0 warnings")),
        "{stdout}"
    );
}

/// Collects the names of all numbers below `value`, as experiments use them.
fn names(value: &serde_json::Value, path: &str, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Number(_) => into.push(path.into()),
        serde_json::Value::Object(object) if object.contains_key("unit") => {
            names(&object["value"], path, into)
        }
        serde_json::Value::Object(object) => object.iter().for_each(|(name, value)| {
            names(value, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, into);
        }),
        _ => {}
    }
}

#[test]
fn metrics_lists_all_measures_with_units() {
    let file = ExperimentFile::new(RECEIVE, "[1, 2]", "[2]");
    let listed: serde_json::Value =
        serde_json::from_str(&text(&file.output("metrics", &["--format", "json"]).stdout)).unwrap();
    let listed: std::collections::BTreeMap<_, _> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["name"].as_str().unwrap().to_string(), m["unit"].as_str().unwrap().to_string()))
        .collect();
    assert_eq!(listed["l3.dca_leaks"], "lines");
    assert_eq!(listed["bandwidth"], "Mb/s");
    assert_eq!(listed["run.instructions"], "instructions");
    let statistics = file.folder.path().join("statistics.json");
    let machine =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/machines/3a5000-ethernet.toml");
    let mut run = programs::longma_run();
    run.args(["--level", "cache", "--roi", "--quiet", "--wire", "eth0,tcp,bytes=100000,message=1024"]);
    run.arg("--machine").arg(machine).arg("--stats-out").arg(&statistics).arg("--").arg(guest("tcp_receive"));
    let output = programs::finish(run.arg("eth0"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    let mut given = Vec::new();
    names(&result["statistics"], "", &mut given);
    assert!(given.len() > 100);
    let unlisted: Vec<_> = given.iter().filter(|name| !listed.contains_key(*name)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
}

#[test]
fn metrics_of_functional_runs_are_listed() {
    let output = programs::finish(
        programs::longma_run()
            .args(["--stats", "--format", "json", "--"])
            .arg(guest("queens"))
            .args(["4", "1"]),
    );
    let counted = text(&output.stderr);
    let counted: serde_json::Value = serde_json::from_str(counted.lines().last().unwrap()).unwrap();
    let mut given = Vec::new();
    names(&counted, "", &mut given);
    let output = programs::finish(programs::longma_run().args(["--measures", "--"]).arg(guest("queens")));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut listed: Vec<_> = listed["measures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["name"].as_str().unwrap().trim_start_matches("host.").to_string())
        .collect();
    given.sort();
    listed.sort();
    assert_eq!(given, listed);
}

#[test]
fn failed_points_wrong_input_and_host_faults_have_different_statuses() {
    let run = |from: &str, to: &str| {
        status_and_text(&ExperimentFile::new(QUEENS, from, to).output("run", &["--format", "json"]))
    };
    assert_eq!(run("5", "5").0, 0);
    let (status, stdout, _) = run("\"5\"", "\"no number\"");
    assert_eq!(status, 1, "{stdout}");
    for (from, to) in [
        ("\"queens\"\n[", "\"absent\"\n["),
        ("loongson-3a5000", "nowhere"),
        ("unit", "unti"),
        ("[metrics.instructions]", "[metrics.instructoins]"),
    ] {
        let (status, stdout, errors) = run(from, to);
        assert_eq!(status, 2, "{to}: {stdout}{errors}");
    }
    assert_eq!(EXPERIMENT.output(&["run", "--bogus"]).status.code(), Some(2));
    let (status, stdout, errors) = run("60 s", "1 us");
    assert_eq!(status, 3, "{stdout}{errors}");
    assert!(errors.contains("time_limit") && errors.contains("the same command runs them again"), "{errors}");
    let stdout: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(stdout[0]["summary"]["host_faults"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&stdout[0]["missing"], stdout[0]["rows"].as_array().unwrap().len()),
        (&serde_json::json!(2), 0)
    );
    let help = EXPERIMENT.success(&["run", "--help"]);
    assert!(help.contains("Exit statuses:") && help.contains("the host was at fault"), "{help}");
}

#[test]
fn compare_fails_while_runs_of_a_mean_are_missing() {
    let published = "[sources.book]\nkind = \"paper\"\ntitle = \"A book\"\n[[published]]\nvalues = { instructions = 1e5 }\nread = \"printed\"\nsource = \"book\"\n";
    let text = QUEENS.replace("[\"4\", \"5\"]", "[\"4\"]\nseed = [1, 2]") + published;
    let file = ExperimentFile::new(&text, "[parameters]", "replicates = [\"seed\"]\n[parameters]");
    let (status, _, errors) = status_and_text(&file.output("run", &["--shard", "1/2"]));
    assert_eq!(status, 0, "{errors}");
    let (status, printed, errors) = status_and_text(&file.output("compare", &[]));
    assert_eq!(status, 1, "{printed}{errors}");
    assert!(printed.contains(" (1 of 2)"), "{printed}");
    assert!(printed.contains("some means are of fewer runs than the experiment has: `"), "{printed}");
    let (_, json, _) = status_and_text(&file.output("compare", &["--format", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let value = &json[0]["values"][0];
    assert_eq!((&value["runs"], &value["of"]), (&1.into(), &2.into()));
    assert_eq!(status_and_text(&file.output("run", &[])).0, 0);
    let (status, printed, errors) = status_and_text(&file.output("compare", &[]));
    assert_eq!(status, 0, "{printed}{errors}");
    assert!(!printed.contains(" of 2)") && !printed.contains("fewer"), "{printed}");
}

/// Runs the command under a resource limit.
fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, bytes: u64) -> Output {
    // SAFETY: between fork and exec only setrlimit and signal are called, which are safe there.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            match libc::setrlimit(resource, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command.output().unwrap()
}

#[test]
fn a_low_limit_on_memory_is_the_hosts_fault_and_the_points_are_run_later() {
    let file = ExperimentFile::new(QUEENS, "5", "5");
    let (status, _, errors) =
        status_and_text(&limited(&mut file.command("run", &[]), libc::RLIMIT_AS, 4 << 30));
    assert_eq!(status, 3, "{errors}");
    assert!(
        errors.contains("ulimit -v") && errors.contains("2 points failed because of the host"),
        "{errors}"
    );
    let (status, printed, errors) = status_and_text(&file.output("run", &[]));
    assert_eq!(status, 0, "{errors}");
    assert!(printed.contains("2 points run, 0 reused"), "{printed}");
    let output =
        limited(programs::longma_run().arg("--").arg(guest("queens")).arg("4"), libc::RLIMIT_AS, 4 << 30);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(124), "{printed}");
    assert!(printed.contains("512 GiB of address space") && !printed.contains("give the path"), "{printed}");
}

#[test]
fn a_full_disk_is_the_hosts_fault() {
    let file = ExperimentFile::new(QUEENS, "5", "5");
    let (status, _, errors) =
        status_and_text(&limited(&mut file.command("run", &[]), libc::RLIMIT_FSIZE, 100));
    assert_eq!(status, 3, "{errors}");
    assert_eq!(status_and_text(&file.output("run", &[])).0, 0);
}

/// Waits until the condition holds.
fn wait_until(what: &dyn Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_campaign_leaves_no_temporary_files_and_no_claim() {
    let file = ExperimentFile::new(QUEENS, "\"4\", \"5\"", "\"13\"");
    let temporary = tempdir().unwrap();
    let mut command = file.command("run", &[]);
    command.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let children = format!("/proc/{0}/task", running.id());
    let has_child = || {
        let tasks = fs::read_dir(&children).into_iter().flatten().flatten();
        tasks
            .map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default())
            .any(|c| !c.is_empty())
    };
    wait_until(&has_child);
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    let quick = ExperimentFile::new(QUEENS, "\"4\", \"5\"", "\"6\"");
    fs::copy(quick.path(), file.path()).unwrap();
    assert_eq!(status_and_text(&file.output("run", &[])).0, 0);
}

#[test]
fn merging_contradictory_results_fails_and_shows_both() {
    let stores = ["[metrics.instructions]", "[metrics.instructions] "].map(|to| {
        let file = ExperimentFile::new(QUEENS, "[metrics.instructions]", to);
        assert_eq!(status_and_text(&file.output("run", &[])).0, 0);
        file
    });
    let merge = |from: &Path, into: &Path| {
        let from = from.to_str().unwrap();
        status_and_text(&EXPERIMENT.output(&["merge", from, "--store", into.to_str().unwrap()]))
    };
    assert_eq!(merge(&stores[0].store(), &stores[1].store()).0, 0);
    // Change one result in one of the stores.
    let segments = stores[0].store().join("segments");
    let segment = fs::read_dir(&segments).unwrap().next().unwrap().unwrap().path();
    let lines = fs::read_to_string(&segment).unwrap();
    let (_, json) = lines.lines().next().unwrap().split_once(' ').unwrap();
    let mut record: serde_json::Value = serde_json::from_str(json).unwrap();
    // The order of the two records is random.
    let contradiction = format!(
        "gave different results: instructions {} and 7",
        record["metrics"]["instructions"].as_f64().unwrap()
    );
    record["metrics"]["instructions"] = 7.0.into();
    fs::write(&segment, longma_lab_line(&record)).unwrap();
    let (status, _, errors) = merge(&stores[0].store(), &stores[1].store());
    assert_eq!(status, 1, "{errors}");
    assert!(errors.contains(&contradiction), "{errors}");
    let report = stores[1].store().join("report.html");
    for (command, options) in
        [("run", &[][..]), ("compare", &[]), ("report", &["-o", report.to_str().unwrap()])]
    {
        let (status, _, errors) = status_and_text(&stores[1].output(command, options));
        assert_eq!(status, 1, "{command}: {errors}");
        assert!(errors.contains(&contradiction), "{command}: {errors}");
    }
}

#[test]
fn points_with_invalid_machines_are_reported_before_they_run() {
    let sizes = "argument = [\"4\"]\nlevel = [\"functional\", \"cache\"]\n\"machine.caches.l2.size\" = [\"256 KiB\", \"384 KiB\"]\n\"machine.caches.l2.ways\" = [16, 24]";
    let file = ExperimentFile::new(QUEENS, "argument = [\"4\", \"5\"]", sizes);
    let (status, stdout, errors) = status_and_text(&file.output("check", &[]));
    assert_eq!(status, 0, "{stdout}{errors}");
    assert!(stdout.contains("4 of the points cannot run: "), "{stdout}{errors}");
}

#[test]
fn error_messages_do_not_depend_on_the_folder() {
    let printed = ["a", "a much longer name"].map(|name| {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join(name);
        fs::create_dir(&programs).unwrap();
        let whole = fs::read(guest("queens")).unwrap();
        fs::write(programs.join("queens"), &whole[..100]).unwrap();
        let file = ExperimentFile::new(QUEENS, "GUESTS", programs.to_str().unwrap());
        let (status, printed, errors) = status_and_text(&file.output("run", &["--format", "json"]));
        assert_eq!(status, 1, "{printed}{errors}");
        let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
        printed[0]["rows"][0]["failure"].as_str().unwrap().to_string()
    });
    assert_eq!(printed[0], printed[1]);
}

/// Formats a record as a line of a segment.
fn longma_lab_line(record: &serde_json::Value) -> String {
    let json = record.to_string();
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}
