//! `longma affinity` and the files that a user names: journals, logs, results, names that are not to be seen.
//! Not what a sweep measures: that is `affinity.rs`.

mod typed;

use typed::Group;

const AFFINITY: Group = Group("affinity");

#[test]
fn a_journal_or_a_log_in_a_folder_that_is_not_there_is_refused_and_nothing_is_made() {
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
        let said = AFFINITY.failure(&words);
        let words_of = [": there is no folder ", "mistyped: make it, or name another file with --"];
        assert!(words_of.iter().all(|words| said.contains(words)), "{words:?}: {said}");
        assert!(!missing.exists(), "{words:?}");
    }
    let nothing = AFFINITY.success(&["restore", "--journal", &file]);
    assert!(
        nothing.contains("nothing to put back: there is no journal ") && nothing.contains(&file),
        "{nothing}"
    );
    assert!(!missing.exists());
}

/// In names of files, interfaces, machines, loads and hosts, wherever they are complained about.
#[test]
fn names_that_end_a_line_or_are_not_to_be_seen_are_shown_as_such() {
    let odd = "x\u{2028}y\u{2029}z\u{200b}\u{feff}\u{202e}\u{1b}[2J\u{85}\nw";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(odd).to_str().unwrap().to_string();
    let below = format!("{file}/below");
    let is_plain = |words: &[&str]| {
        let said = AFFINITY.failure(words);
        let order = said.chars().find(|c| {
            (c.is_control() && *c != '\n') || "\u{2028}\u{2029}\u{200b}\u{feff}\u{202e}\u{85}".contains(*c)
        });
        assert_eq!(order, None, "{words:?}: {said:?}");
        // What was typed stands in one line.
        assert!(
            said.lines().any(|line| line.contains("x\u{fffd}y") && line.contains("\u{fffd}w")),
            "{words:?}: {said}"
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
