//! Guests saved in the middle and brought back, by `examples/simulate.rs`: they go on as if nothing had happened.

mod simulator;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use simulator::{expected, guest, simulator};

fn run(arguments: &[&str], program: Option<(&Path, &[&str])>) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(simulator()).args(arguments).stdin(Stdio::null());
    if let Some((program, given)) = program {
        command.arg(program).args(given);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Saved {
    folder: tempfile::TempDir,
    /// What the program had printed by then.
    before: String,
}

impl Saved {
    fn path(&self) -> String {
        self.folder.path().join("checkpoint").display().to_string()
    }

    fn restore(&self, options: &[&str]) -> Output {
        run(&[options, &["--restore", &self.path()]].concat(), None)
    }
}

/// Saves a program at a time; what it says if it cannot be saved then.
fn save(program: &str, arguments: &[&str], at_ns: u64) -> Result<Saved, String> {
    let mut saved = Saved { folder: tempfile::tempdir().unwrap(), before: String::new() };
    let (at, path) = (at_ns.to_string(), saved.path());
    let output = run(&["--save-at", &at, "--save-to", &path], Some((&guest(program), arguments)));
    if output.status.code() != Some(0) {
        return Err(text(&output.stderr));
    }
    saved.before = text(&output.stdout);
    Ok(saved)
}

#[test]
fn threads_go_on_where_they_were_saved_on_as_many_cores_and_on_fewer() {
    for at_ns in [20_000, 100_000, 250_000] {
        let saved = save("threads", &["3", "1500"], at_ns).unwrap();
        assert_eq!(saved.before, "", "saved before the end");
        for cores in ["4", "1", "6"] {
            let restored = saved.restore(&["--cores", cores]);
            assert_eq!(
                (text(&restored.stdout), text(&restored.stderr)),
                (expected("threads"), String::new())
            );
        }
    }
}

#[test]
fn sleeping_threads_wake_when_they_would_have_and_files_are_as_they_were() {
    // In the sleeps, with bytes in a pipe, behind the events, in the signals.
    for at_ns in [50_000_000, 250_000_000, 402_400_000, 530_000_000, 600_000_000, 640_000_000] {
        let saved = save("waiting", &["3"], at_ns).unwrap_or_else(|error| panic!("at {at_ns}: {error}"));
        let restored = saved.restore(&[]);
        assert_eq!(saved.before.clone() + &text(&restored.stdout), expected("waiting"), "saved at {at_ns}");
        assert_eq!(text(&restored.stderr), "", "saved at {at_ns}");
    }
}

#[test]
fn what_cannot_be_kept_is_named() {
    // While the timerfd is open.
    let error = save("waiting", &["3"], 450_000_000).err().unwrap();
    assert!(error.contains("timerfd") && error.contains("save before"), "{error}");
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let saved = save("threads", &["2", "500"], 20_000).unwrap();
    let whole = std::fs::read(saved.path()).unwrap();
    std::fs::write(saved.path(), &whole[..whole.len() / 2]).unwrap();
    let cut = saved.restore(&[]);
    assert_eq!(cut.status.code(), Some(127));
    assert!(text(&cut.stderr).contains("damaged"), "{}", text(&cut.stderr));
    std::fs::write(saved.path(), b"something else").unwrap();
    assert!(text(&saved.restore(&[]).stderr).contains("no checkpoint"));
}

#[test]
fn a_program_that_has_changed_since_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::copy(guest("threads"), &program).unwrap();
    let saved = save(program.to_str().unwrap(), &["2", "500"], 20_000).unwrap();
    std::fs::copy(guest("hello"), &program).unwrap();
    let restored = saved.restore(&[]);
    assert!(text(&restored.stderr).contains("no longer the program"), "{}", text(&restored.stderr));
}
