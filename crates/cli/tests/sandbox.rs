//! Tests `longma run --sandbox`: programs behave as without it, and options that the sandbox cannot honour are
//! rejected. The confinement itself is tested in `src/run/sandbox.rs`.
//! Source: user_namespaces(7), landlock(7), seccomp(2).

mod programs;

use programs::*;
use tempfile::tempdir;

/// Whether this host lacks a needed feature; prints a note if so.
fn lacks_feature(output: &std::process::Output) -> bool {
    let stderr = text(&output.stderr);
    let lacks_feature = output.status.code() == Some(125) && stderr.contains("--sandbox needs");
    if lacks_feature {
        assert!(stderr.contains("leave --sandbox out"), "{stderr}");
        eprintln!("skipped: {stderr}");
    }
    lacks_feature
}

#[test]
fn programs_behave_the_same_in_a_sandbox() {
    let root = tempdir().unwrap();
    std::fs::create_dir(root.path().join("tmp")).unwrap();
    for name in ["hello", "exec", "signals"] {
        let bytes = std::fs::read(guest(name)).unwrap();
        place(root.path(), name, &bytes);
        for level in [&["--interpret"][..], &[]] {
            let run = |sandbox: &[&str]| {
                let mut command = longma_run();
                command.env("TMPDIR", "/tmp").args(sandbox).args(level).arg("--root").arg(root.path());
                finish(command.arg(format!("/{name}")))
            };
            let (without, within) = (run(&[]), run(&["--sandbox"]));
            if lacks_feature(&within) {
                return;
            }
            assert_eq!(
                text(&within.stdout),
                text(&without.stdout),
                "{name} {level:?}: {}",
                text(&within.stderr)
            );
            assert_eq!(within.status, without.status, "{name} {level:?}: {}", text(&within.stderr));
        }
    }
}

#[test]
fn a_sandboxed_program_sees_its_root_and_the_shared_files() {
    let root = tempdir().unwrap();
    place(root.path(), "opener", &executable(&OPENER, &[]));
    let trace = tempdir().unwrap();
    let open = |path: &str| {
        let mut command = longma_run();
        command
            .args(["--sandbox", "--level", "timing", "--quiet", "--trace"])
            .arg(trace.path().join("trace"));
        finish(command.arg("--root").arg(root.path()).args(["/opener", path]))
    };
    let own = open("/opener");
    if lacks_feature(&own) {
        return;
    }
    assert_eq!(own.status.code(), Some(3), "{}", text(&own.stderr));
    for shared in ["/dev/null", "/dev/urandom", "/proc/meminfo", "/proc/self/maps", "/proc/self/exe"] {
        assert_eq!(open(shared).status.code(), Some(3), "{shared}");
    }
    assert_eq!(open("/etc/passwd").status.code(), Some(256 - libc::ENOENT));
    assert!(std::fs::metadata(trace.path().join("trace")).unwrap().len() > 0);
}

#[test]
fn options_that_break_a_sandbox_are_rejected() {
    let root = tempdir().unwrap();
    place(root.path(), "spinner", &executable(&SPINNER, &[]));
    let without_root = finish(longma_run().args(["--sandbox", "spinner"]));
    assert_eq!(without_root.status.code(), Some(125));
    assert!(text(&without_root.stderr).contains("--root"), "{}", text(&without_root.stderr));
    let options = [
        &["--strace-out", "x"][..],
        &["--profile-out", "x"],
        &["--gdb", "0"],
        &["--level", "cache", "--stats-out", "x"],
        &["--level", "cache", "--checkpoint", "x"],
    ];
    for options in options {
        let mut command = longma_run();
        command.arg("--sandbox").arg("--root").arg(root.path()).args(options).arg("/spinner");
        let output = finish(command.current_dir(root.path()));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{options:?}: {stderr}");
        assert!(stderr.contains("cannot be used with --sandbox"), "{options:?}: {stderr}");
        assert!(!root.path().join("x").exists(), "{options:?}: the program is not started");
    }
}
