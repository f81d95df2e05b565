//! Guests that `examples/simulate.rs` saves and restores behave as if they had not been interrupted.

mod simulator;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use simulator::{expected, guest, simulator};

fn run(arguments: &[&str], program: Option<(&Path, &[&str])>) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(simulator()).args(arguments).stdin(Stdio::null());
    if let Some((program, program_arguments)) = program {
        command.arg(program).args(program_arguments);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Saved {
    folder: tempfile::TempDir,
    /// The program's output before the checkpoint.
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

/// Saves a program at a time. Returns the message if that is not possible.
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
fn threads_resume_on_the_same_and_on_fewer_cores() {
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
fn sleeping_threads_wake_on_time_and_files_are_restored() {
    // During the sleeps, with bytes in a pipe, after the events, during the signals.
    for at_ns in [50_000_000, 250_000_000, 402_400_000, 530_000_000, 600_000_000, 640_000_000] {
        let saved = save("waiting", &["3"], at_ns).unwrap_or_else(|error| panic!("at {at_ns}: {error}"));
        let restored = saved.restore(&[]);
        assert_eq!(saved.before.clone() + &text(&restored.stdout), expected("waiting"), "saved at {at_ns}");
        assert_eq!(text(&restored.stderr), "", "saved at {at_ns}");
    }
}

#[test]
fn state_that_cannot_be_saved_is_named() {
    // The process is saved while the timerfd is open.
    let error = save("waiting", &["3"], 450_000_000).err().unwrap();
    assert!(error.contains("timerfd") && error.contains("save before"), "{error}");
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let saved = save("threads", &["2", "500"], 20_000).unwrap();
    let intact = std::fs::read(saved.path()).unwrap();
    std::fs::write(saved.path(), &intact[..intact.len() / 2]).unwrap();
    let cut = saved.restore(&[]);
    assert_eq!(cut.status.code(), Some(127));
    assert!(text(&cut.stderr).contains("damaged"), "{}", text(&cut.stderr));
    std::fs::write(saved.path(), b"something else").unwrap();
    assert!(text(&saved.restore(&[]).stderr).contains("not a checkpoint file"));
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

/// Guests with threads, sleeps, signals, pipes, self-modifying code and arithmetic, with arguments that make them
/// short.
const ANY: [(&str, &[&str]); 9] = [
    ("threads", &["3", "1500"]),
    ("waiting", &["3"]),
    ("signals", &["200"]),
    ("unix_pipe", &["500"]),
    ("self_modify", &["200"]),
    ("litmus", &["200"]),
    ("fft", &["8", "3"]),
    ("sort", &["3000"]),
    ("unix_context", &["300"]),
];

/// At any time, a guest's output before the checkpoint and after the restore together equals its undisturbed output,
/// unless the checkpoint is refused with a reason. `LONGMA_CHECKPOINTS` sets the number of checkpoints,
/// `PROPTEST_RNG_SEED` the random seed.
#[test]
fn guests_saved_at_any_time_resume_transparently() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (moments, mut random) =
        (number("LONGMA_CHECKPOINTS").unwrap_or(36), number("PROPTEST_RNG_SEED").unwrap_or(1));
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    let (mut restored_count, mut refused_count) = (0, 0);
    for _ in 0..moments {
        let (guest, arguments) = ANY[below(ANY.len() as u64) as usize];
        // Logarithmically distributed between a microsecond and a second.
        let at_ns = (1000.0 * 10f64.powf(below(6_000_000) as f64 / 1e6)) as u64;
        let expected = expected_of(guest, arguments);
        let saved = match save(guest, arguments, at_ns) {
            Ok(saved) => saved,
            Err(error) => {
                assert!(error.contains("save"), "{guest} at {at_ns}: {error}");
                refused_count += 1;
                continue;
            }
        };
        if !Path::new(&saved.path()).exists() {
            assert_eq!(saved.before, expected, "{guest} ended before {at_ns}");
            continue;
        }
        let restored = saved.restore(&[]);
        let stderr = text(&restored.stderr);
        assert_eq!(saved.before + &text(&restored.stdout), expected, "{guest} at {at_ns}: {stderr}");
        assert_eq!(restored.status.code(), Some(0), "{guest} at {at_ns}: {stderr}");
        restored_count += 1;
    }
    println!("{restored_count} restored, {refused_count} refused, of {moments}");
    assert!(3 * restored_count >= moments, "{restored_count} restored of {moments}");
}

/// The undisturbed output of a guest with these arguments.
fn expected_of(program: &str, arguments: &[&str]) -> String {
    let output = run(&[], Some((&guest(program), arguments)));
    assert_eq!(output.status.code(), Some(0), "{program}: {}", text(&output.stderr));
    text(&output.stdout)
}
