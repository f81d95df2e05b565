//! The examples work as two processes, and are short.

use std::path::PathBuf;
use std::process::{Command, Stdio};

fn example(name: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let folder: PathBuf = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let mut command = Command::new("timeout");
    command.arg("30").arg(folder.join(name));
    command
}

#[test]
fn the_subscriber_prints_what_the_publisher_publishes() {
    let runtime = tempfile::tempdir().unwrap();
    let mut publisher = example("publisher").env("XDG_RUNTIME_DIR", runtime.path()).spawn().unwrap();
    let output = example("subscriber").env("XDG_RUNTIME_DIR", runtime.path()).stdout(Stdio::piped()).output();
    // `timeout` forwards the signal. SAFETY: a signal to a child of this test that has not been waited for.
    unsafe { libc::kill(publisher.id() as i32, libc::SIGTERM) };
    publisher.wait().unwrap();
    let output = output.unwrap();
    let lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    assert!(output.status.success() && lines.len() == 10, "{output:?}");
    assert!(
        lines.iter().all(|line| line.starts_with("Position([") && line.ends_with(", 0.5, 0.25])")),
        "{lines:?}"
    );
}

#[test]
fn each_example_has_fewer_than_twenty_lines_of_code() {
    for source in [include_str!("../examples/publisher.rs"), include_str!("../examples/subscriber.rs")] {
        let code = source.lines().filter(|line| !line.is_empty() && !line.starts_with("//")).count();
        assert!(code < 20, "{code} lines");
    }
}
