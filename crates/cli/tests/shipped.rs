//! Tests the contents built into the command (experiments, machine files and guest programs) from a directory outside
//! the repository.

mod subcommand;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use subcommand::text;
use tempfile::{TempDir, tempdir};

/// A user with only the binary: an empty home directory, an empty working directory, and a minimal environment.
struct IsolatedUser {
    folder: TempDir,
}

impl IsolatedUser {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        for name in ["home", "work", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
        command.args(arguments).current_dir(self.path("work")).env_clear();
        command.env("HOME", self.path("home")).env("PATH", "/usr/bin").env("TMPDIR", self.path("tmp"));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn success(&self, arguments: &[&str]) -> Output {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stderr), text(&output.stdout));
        output
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.success(arguments).stdout).unwrap()
    }

    /// Runs a command that must fail with this status. Returns its standard error.
    fn failure(&self, arguments: &[&str], status: i32) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stderr)
    }

    /// Files below a directory, relative to it.
    fn files(&self, name: &str) -> BTreeSet<String> {
        fn walk(folder: &Path, top: &Path, found: &mut BTreeSet<String>) {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    walk(&entry, top, found);
                } else {
                    found.insert(entry.strip_prefix(top).unwrap().display().to_string());
                }
            }
        }
        let (mut found, top) = (BTreeSet::new(), self.path(name));
        walk(&top, &top, &mut found);
        found
    }
}

fn experiments() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn names(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().into()).collect()
}

#[test]
fn the_binary_alone_lists_every_experiment_as_built_in() {
    let user = IsolatedUser::new();
    let output = user.success(&["experiment", "list", "--format", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = fs::read_dir(experiments()).unwrap().map(|file| file.unwrap().file_name());
    let files = files.filter_map(|name| name.to_str()?.strip_suffix(".toml").map(String::from));
    assert_eq!(names(&list), files.collect());
    for one in list.as_array().unwrap() {
        assert_eq!(one["built_in"], true, "{one}");
        assert!(one["error"].is_null(), "{one}");
    }
    assert!(text(&output.stderr).contains("built into longma"), "{}", text(&output.stderr));
    assert!(user.files("work").is_empty());
    let cached = user.files("home");
    assert!(cached.iter().all(|file| file.starts_with(".cache/longma/shipped/")), "{cached:?}");
}

#[test]
fn a_built_in_experiment_has_the_keys_of_the_same_one_in_a_folder() {
    let user = IsolatedUser::new();
    let folder = experiments().canonicalize().unwrap();
    let points = |arguments: &[&str]| {
        let all = ["experiment", "points", "--all", "--format", "json", "--quick"];
        user.json(&[&all[..], arguments].concat())
    };
    let built_in = points(&["--built-in"]);
    assert!(built_in.as_array().unwrap().len() > 100, "points of every experiment");
    assert_eq!(built_in, points(&["--folder", folder.to_str().unwrap()]));
}

#[test]
fn a_built_in_experiment_runs_with_its_machine_file_and_its_programs() {
    let user = IsolatedUser::new();
    // Its machine file is next to it, and its program is found relative to its directory.
    user.success(&["experiment", "check", "tcp-receive-alone"]);
    user.success(&["experiment", "run", "queens-growth", "--quick"]);
    let compared = user.json(&["experiment", "compare", "queens-growth", "--quick", "--format", "json"]);
    assert!(compared[0]["compared"].as_u64().unwrap() > 0, "{compared}");
    assert_eq!(compared[0]["missing"], 0, "{compared}");
    user.success(&["experiment", "report", "queens-growth", "--quick"]);
    let written = user.files("work");
    assert!(written.contains("report.html"), "{written:?}");
    assert!(written.iter().all(|file| file == "report.html" || file.starts_with("results/")), "{written:?}");
}

#[test]
fn experiments_in_this_or_a_parent_folder_precede_built_in_ones() {
    let user = IsolatedUser::new();
    let own = user.path("work/experiments");
    fs::create_dir_all(&own).unwrap();
    let mine = fs::read_to_string(experiments().join("myvia-latency.toml")).unwrap();
    fs::write(own.join("mine.toml"), mine.replace("myvia-latency", "mine")).unwrap();
    let output = user.success(&["experiment", "list", "--format", "json"]);
    assert_eq!(names(&serde_json::from_slice(&output.stdout).unwrap()), ["mine".into()].into());
    assert!(text(&output.stderr).contains("work/experiments"), "{}", text(&output.stderr));
    let all = user.json(&["experiment", "list", "--built-in", "--format", "json"]);
    assert!(names(&all).contains("queens-growth"));

    fs::create_dir(user.path("work/below")).unwrap();
    let mut below = user.command(&["experiment", "list", "--format", "json"]);
    let below = below.current_dir(user.path("work/below")).output().unwrap();
    assert_eq!(below.stdout, output.stdout.as_slice());

    let points = user.success(&["experiment", "points", "queens-growth", "--quick"]);
    assert!(text(&points.stderr).contains("no queens-growth.toml"), "{}", text(&points.stderr));
    let unknown = user.failure(&["experiment", "points", "myne"], 2);
    assert!(unknown.contains("did you mean `mine`"), "{unknown}");
    let given = user.failure(&["experiment", "points", "queens-growth", "--folder", "experiments"], 2);
    assert!(given.contains("there is no experiment `queens-growth`"), "{given}");
}

#[test]
fn a_guest_runs_by_its_name() {
    let user = IsolatedUser::new();
    let output = user.success(&["run", "guests:hello", "one", "two three"]);
    assert!(text(&output.stdout).contains("two three"), "{}", text(&output.stdout));
    for architecture in ["aarch64", "mips64el", "x86_64"] {
        user.success(&["run", &format!("guests:{architecture}/hello")]);
    }
    user.success(&["run", "--machine", "loongson-3a5000", "--level", "cache", "--quiet", "guests:hello"]);
    user.success(&["translate", "guests:aarch64/hello"]);
    assert!(user.files("work").is_empty());
}

#[test]
fn a_guest_that_starts_itself_again_finds_itself() {
    let user = IsolatedUser::new();
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/expected/exec.txt");
    let output = user.success(&["run", "guests:exec", "3"]);
    assert_eq!(text(&output.stdout), fs::read_to_string(expected).unwrap());
}

#[test]
fn a_guest_that_does_not_exist_is_refused_with_the_nearest_name() {
    let user = IsolatedUser::new();
    let refused = user.failure(&["run", "guests:helo"], 127);
    assert!(refused.contains("no guest `helo`") && refused.contains("guests:hello"), "{refused}");
    let refused = user.failure(&["run", "--root", "/", "guests:hello"], 127);
    assert!(refused.contains("longma guest copy hello"), "{refused}");
    // With a directory in front, the name is an ordinary path.
    let path = user.failure(&["run", "./guests:hello"], 127);
    assert!(path.contains("cannot open"), "{path}");
}

#[test]
fn without_a_home_folder_programs_and_experiments_run_from_a_temporary_one() {
    let user = IsolatedUser::new();
    for home in [None, Some("/nonexistent"), Some("/proc"), Some("")] {
        for arguments in [&["run", "guests:hello"][..], &["experiment", "run", "queens-growth", "--quick"]] {
            let mut command = user.command(arguments);
            match home {
                Some(home) => command.env("HOME", home),
                None => command.env_remove("HOME"),
            };
            let output = command.output().unwrap();
            assert!(output.status.success(), "{home:?} {arguments:?}: {}", text(&output.stderr));
        }
    }
    assert!(!Path::new("/nonexistent").exists());
    assert!(user.files("home").is_empty());
    assert!(user.files("tmp").iter().all(|file| file.starts_with("longma-")));
}

#[test]
fn a_changed_file_in_the_cache_is_replaced_before_it_is_used() {
    let user = IsolatedUser::new();
    let right = user.success(&["run", "guests:hello"]);
    let cached = user.files("home");
    let program = user.path("home").join(cached.iter().find(|file| file.ends_with("/hello")).unwrap());
    fs::copy(program.with_file_name("hello"), user.path("tmp/kept")).unwrap();
    fs::write(&program, "#!/bin/sh\necho other\n").unwrap();
    assert_eq!(user.success(&["run", "guests:hello"]).stdout, right.stdout);
    assert_eq!(fs::read(&program).unwrap(), fs::read(user.path("tmp/kept")).unwrap());
}

#[test]
fn guests_are_listed_and_copied() {
    let user = IsolatedUser::new();
    let table = text(&user.success(&["guest", "list"]).stdout);
    assert!(table.contains("\nhello ") && table.contains("longma run guests:NAME"), "{table}");
    let list = user.json(&["guest", "list", "--format", "json"]);
    for guest in list.as_array().unwrap() {
        assert!(!guest["builds"].as_array().unwrap().is_empty(), "{guest}");
    }
    user.success(&["guest", "copy", "x86_64/hello"]);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/x86_64/hello");
    assert_eq!(fs::read(user.path("work/hello")).unwrap(), fs::read(built).unwrap());
    let refused = user.failure(&["guest", "copy", "hello"], 1);
    assert!(refused.contains("hello exists"), "{refused}");
    user.success(&["run", "./hello"]);
}

#[test]
fn a_new_experiment_runs_unchanged_and_is_never_overwritten() {
    let user = IsolatedUser::new();
    let printed = text(&user.success(&["experiment", "new", "my-first"]).stdout);
    assert!(printed.contains("experiments/my-first.toml"), "{printed}");
    let checked = text(&user.success(&["experiment", "check", "my-first"]).stdout);
    assert!(checked.contains("0 errors, 0 warnings"), "{checked}");
    user.success(&["experiment", "run", "my-first", "--quick"]);
    user.success(&["experiment", "report", "my-first", "--quick"]);
    let file = user.path("work/experiments/my-first.toml");
    let before = fs::read_to_string(&file).unwrap();
    assert!(!before.contains("NAME"), "{before}");
    let refused = user.failure(&["experiment", "new", "my-first"], 2);
    assert!(refused.contains("my-first.toml exists"), "{refused}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    for wrong in ["", "../up", "a/b", "Upper", "-x", "a.toml", "with blank", "queens-growth"] {
        let refused = user.failure(&["experiment", "new", "--", wrong], 2);
        assert!(refused.contains("name"), "{refused}");
    }
    user.success(&["experiment", "new", "other", "--folder", "elsewhere"]);
    user.success(&["experiment", "check", "elsewhere/other.toml", "--file-only"]);
}

#[test]
fn a_machine_file_that_was_printed_gives_the_same_run() {
    let user = IsolatedUser::new();
    let printed = user.success(&["machine", "show", "loongson-3a5000", "--toml"]).stdout;
    assert!(text(&printed).lines().any(|line| line.contains('#')), "comments are kept");
    fs::write(user.path("work/mine.toml"), &printed).unwrap();
    let run = |machine: &str, file: &str| {
        let arguments = ["run", "--machine", machine, "--level", "timing", "--quiet", "--stats-out", file];
        user.success(&[&arguments[..], &["guests:queens", "6", "4"]].concat());
        let stats = fs::read_to_string(user.path("work").join(file)).unwrap();
        serde_json::from_str::<Value>(&stats).unwrap()["statistics"].clone()
    };
    let built_in = run("loongson-3a5000", "built-in.json");
    assert!(built_in.is_object());
    assert_eq!(run("mine.toml", "mine.json"), built_in);
    let refused = user.failure(&["machine", "show", "loongson-3a5000", "--toml", "--every"], 2);
    assert!(refused.contains("--toml"), "{refused}");
}
