//! Tests the handling of files named by the user in `longma affinity`: journals, logs, results, and names with control
//! characters.

mod subcommand;

use serde_json::json;
use subcommand::{Subcommand, text};

const AFFINITY: Subcommand = Subcommand("affinity");

#[test]
fn a_journal_or_log_in_a_missing_directory_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("mistyped");
    let file = missing.join("file").to_str().unwrap().to_string();
    let tune = ["tune", "--interface", "lo", "--for", "1"];
    let mut commands = vec![[&tune[..], &["--dry-run", "--state", &file]].concat()];
    if rustix::process::geteuid().is_root() {
        let results = folder.path().join("r.jsonl").to_str().unwrap().to_string().leak();
        commands.push([&tune[..], &["--journal", &file]].concat());
        commands.push(vec![
            "sweep",
            "--interface",
            "lo",
            "--journal",
            &file,
            "--output",
            results,
            "--",
            "echo",
            "1",
        ]);
    }
    for words in commands {
        let message = AFFINITY.failure(&words);
        let words_of = [": there is no directory ", "mistyped: create it, or name another file with --"];
        assert!(words_of.iter().all(|words| message.contains(words)), "{words:?}: {message}");
        assert!(!missing.exists(), "{words:?}");
    }
    let nothing = AFFINITY.success(&["restore", "--journal", &file]);
    assert!(
        nothing.contains("Nothing to restore: there is no journal ") && nothing.contains(&file),
        "{nothing}"
    );
    assert!(!missing.exists());
}

/// Covers names of files, interfaces, machines, loads and hosts in all error messages.
#[test]
fn control_characters_in_names_are_replaced_in_messages() {
    let odd = "x\u{2028}y\u{2029}z\u{200b}\u{feff}\u{202e}\u{1b}[2J\u{85}\nw";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(odd).to_str().unwrap().to_string();
    let below = format!("{file}/below");
    let is_plain = |words: &[&str]| {
        let message = AFFINITY.failure(words);
        let order = message.chars().find(|c| {
            (c.is_control() && *c != '\n') || "\u{2028}\u{2029}\u{200b}\u{feff}\u{202e}\u{85}".contains(*c)
        });
        assert_eq!(order, None, "{words:?}: {message:?}");
        // The argument is printed on one line.
        assert!(
            message.lines().any(|line| line.contains("x\u{fffd}y") && line.contains("\u{fffd}w")),
            "{words:?}: {message}"
        );
    };
    is_plain(&["report", &file]);
    is_plain(&["advise", "--results", &file]);
    is_plain(&["sweep", "--model", odd]);
    is_plain(&["sweep", "--model", "sandybridge-2x6", "--pair", "0,0", "--output", &below]);
    is_plain(&["sweep", "--model", "sandybridge-2x6", "--with", odd]);
    is_plain(&["sweep", "--vary", odd]);
    is_plain(&["sweep", "--cpus", odd]);
    is_plain(&["show", "--interface", odd]);
    is_plain(&["tune", "--dry-run", "--interface", "lo", "--for", "1", "--state", &below]);
    is_plain(&["why", odd, odd]);
    std::fs::write(&file, "no log\n").unwrap();
    is_plain(&["why", "--state", &file]);
    is_plain(&["report", &file]);
    if rustix::process::geteuid().is_root() {
        let results = folder.path().join("r.jsonl").to_str().unwrap().to_string();
        let journal = folder.path().join("journal").to_str().unwrap().to_string();
        let sweep = ["sweep", "--interface", "lo", "--pair", "0,0", "--seconds", "1", "--output", &results];
        is_plain(&[&sweep[..], &["--journal", &journal, "--", odd]].concat());
    }
}

/// Writes a results file for one CPU with the given lines after the header.
fn results(folder: &tempfile::TempDir, lines: &[serde_json::Value]) -> (String, String) {
    let file = folder.path().join("r.jsonl").to_str().unwrap().to_string();
    let place = json!({ "cpu": 0, "core": [0], "last_cache": [0], "socket": 0, "node": 0 });
    let nic = json!({ "name": "e0", "driver": null, "node": null, "speed_mbps": null, "mtu": 1500, "state": "up",
        "rx_queues": [0], "tx_queues": [0], "irqs": [] });
    let header = json!({ "affinity_sweep": 1, "kernel": "6.1", "processor": "x", "places": [place], "nic": nic,
        "steering": { "rps": { "interface": "e0", "queues": [0] } }, "load": { "command": ["x"] }, "seconds": 1, "sender": null });
    let all: Vec<String> = std::iter::once(&header).chain(lines).map(|line| line.to_string()).collect();
    let text = all.join("\n") + "\n";
    std::fs::write(&file, &text).unwrap();
    (file, text)
}

fn run() -> serde_json::Value {
    json!({ "pair": { "flow": 0, "application": 0 }, "class": "same-cpu", "repeat": 0, "at": 0,
        "rate": { "gbps": 5.0, "retransmits": null, "lost": null, "remote_cpu": null }, "failure": null,
        "kernel": { "seconds": 0.75, "cpus": {}, "interrupts": {}, "receptions": {}, "context_switches": 0, "running_before": 0 },
        "hardware": {}, "migrations": null })
}

#[test]
fn impossible_results_are_rejected_with_line_field_and_range() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = run();
        changed["repeat"] = 1.into();
        change(&mut changed);
        let (file, _) = results(&folder, &[run(), changed]);
        let output = AFFINITY.output(&["report", &file]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(refused(&|_| ()).0);
    type Case<'a> = (&'a dyn Fn(&mut serde_json::Value), &'a str);
    let cases: [Case; 6] = [
        (
            &|run| run["kernel"]["seconds"] = 3600.0.into(),
            "kernel.seconds is 3600: it must be from 1e-6 to 11",
        ),
        (&|run| run["rate"]["gbps"] = 5e-324.into(), "rate.gbps is 5e-324: it must be from 1e-9 to 1000000"),
        (&|run| run["rate"]["gbps"] = 0.into(), "rate.gbps is 0: it must be from 1e-9"),
        (
            &|run| run["variant"] = json!({ "mtu": u64::MAX }),
            "variant.mtu is 1.8446744073709552e19: it must be from 1 to",
        ),
        (&|run| run["kernel"]["context_switches"] = u64::MAX.into(), "kernel.context_switches is 1.8"),
        (&|run| run["repeat"] = 0.into(), "repeat 0 of the pair 0,0 occurs twice"),
    ];
    for (change, why) in cases {
        let (is_taken, message) = refused(change);
        assert!(
            !is_taken && message.contains("r.jsonl, line 3: ") && message.contains(why),
            "{why}: {message}"
        );
    }
}

#[test]
fn an_unterminated_last_line_counts_if_complete_and_is_reported_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let other = |repeat: u32| {
        let mut run = run();
        run["repeat"] = repeat.into();
        run
    };
    let (file, text) = results(&folder, &[run(), other(1)]);
    for (cut, runs, is_told) in [(0, 2, false), (1, 2, false), (2, 1, true), (40, 1, true)] {
        std::fs::write(&file, &text[..text.len() - cut]).unwrap();
        for words in
            [&["report", &file, "--format", "json"][..], &["advise", "--results", &file, "--format", "json"]]
        {
            let output = AFFINITY.output(words);
            let stderr = String::from_utf8_lossy(&output.stderr);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let rates = match words[0] {
                "report" => &report["analysis"]["pairs"][0]["gbps"],
                _ => &report["measured"]["choice"]["gbps"],
            };
            assert_eq!(rates.as_array().unwrap().len(), runs, "{cut}: {report}");
            assert_eq!(stderr.contains("ignoring the incomplete last line"), is_told, "{cut}: {stderr}");
        }
    }
    // The results file of a modelled sweep, which simulates one pair.
    let file = folder.path().join("m.jsonl").to_str().unwrap().to_string();
    let words = ["--model", "sandybridge-2x6", "--megabytes", "1", "--pair", "1,2", "--output", &file];
    AFFINITY.success(&[&["sweep"], &words[..]].concat());
    let text = std::fs::read_to_string(&file).unwrap();
    for (cut, is_told) in [(1, false), (2, true)] {
        std::fs::write(&file, &text[..text.len() - cut]).unwrap();
        let output = AFFINITY.output(&["report", &file]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), !is_told, "{stderr}");
        assert_eq!(stderr.contains("ignoring the incomplete last line"), is_told, "{stderr}");
    }
    AFFINITY.success(&[&["sweep"], &words[..]].concat());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_page_does_not_overwrite_its_results_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, before) = results(&folder, &[run()]);
    let link = folder.path().join("page.html").to_str().unwrap().to_string();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for page in [&file, &link] {
        let message = AFFINITY.failure(&["report", &file, "--html", page]);
        assert!(message.contains("is the results file, which the page would overwrite"), "{message}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    }
    std::fs::remove_file(&link).unwrap();
    AFFINITY.success(&["report", &file, "--html", &link]);
    assert!(std::fs::read_to_string(&link).unwrap().contains("<html"));
}

#[test]
fn a_failed_run_is_reported_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut failed = run();
    (failed["rate"], failed["failure"]) = (serde_json::Value::Null, "it\nbroke".into());
    let (file, _) = results(&folder, &[failed]);
    for words in [&["report", &file][..], &["advise", "--results", &file]] {
        let output = AFFINITY.output(words);
        assert!(text(&output.stderr).contains("it\u{fffd}broke"), "{words:?}: {}", text(&output.stderr));
    }
}

/// A recorded tree is foreign. A link to /dev/zero in place of a file must not be read until memory is full.
#[test]
fn devices_and_pipes_in_a_recorded_tree_are_named_and_not_read() {
    let missing = AFFINITY.failure(&["check", "--root", "/nowhere/tree"]);
    assert!(missing.contains("--root /nowhere/tree: there is no such folder"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let facts = folder.path().join("recording.json");
    std::fs::write(&facts, "{}").unwrap();
    let unpacked = AFFINITY.failure(&["check", "--root", folder.path().to_str().unwrap()]);
    assert!(unpacked.contains("give its tar file to --tree"), "{unpacked}");
    std::fs::remove_file(facts).unwrap();
    let cpus = folder.path().join("sys/devices/system/cpu");
    std::fs::create_dir_all(&cpus).unwrap();
    let online = cpus.join("online");
    let root = folder.path().to_str().unwrap();
    let make: [fn(&std::path::Path); 2] = [
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        |path| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        },
    ];
    for make in make {
        make(&online);
        let message = AFFINITY.failure(&["check", "--root", root]);
        assert!(message.contains("cpu/online: not a file, but a device, a pipe or a socket"), "{message}");
        std::fs::remove_file(&online).unwrap();
    }
}

#[test]
fn a_word_without_a_match_in_the_history_is_not_an_empty_history() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("decisions");
    let moved = r#"{"at":1.0,"act":"moved","subject":"interrupt 40","from":"0","to":"3","why":"nearer"}"#;
    std::fs::write(&log, format!("{moved}\n")).unwrap();
    let shown = |word: &str| AFFINITY.success(&["history", word, "--state", log.to_str().unwrap()]);
    assert!(shown("40").contains("CPUs 0 → 3"), "{}", shown("40"));
    let mut by_environment = std::process::Command::new(env!("CARGO_BIN_EXE_longma"));
    by_environment.args(["affinity", "history", "40"]).env("LONGMA_AFFINITY_STATE", &log);
    assert_eq!(text(&by_environment.output().unwrap().stdout), shown("40"));
    // An empty variable names no file.
    let empty = by_environment.env("LONGMA_AFFINITY_STATE", "").output().unwrap();
    assert!(empty.status.success(), "{}", text(&empty.stderr));
    assert!(shown("41").contains("No changes of settings with `41` in their names"), "{}", shown("41"));
}

#[test]
fn advice_from_a_modelled_sweep_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.jsonl");
    std::fs::write(&file, "{\"affinity_model\":1}\n").unwrap();
    let message = AFFINITY.failure(&["advise", "--results", file.to_str().unwrap()]);
    assert!(message.contains("of a modelled sweep: `longma affinity report` reads it"), "{message}");
}
