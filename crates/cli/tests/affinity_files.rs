//! `longma affinity` and the files that a user names: journals, logs, results, names that are not to be seen.
//! Not what a sweep measures: that is `affinity.rs`.

mod typed;

use typed::{Group, text};

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
