//! Call stacks of `--stacks-out`, and the prediction of returns in translated code.

mod programs;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use programs::*;
use serde_json::Value;
use tempfile::tempdir;

const ARCHITECTURES: [&str; 4] = ["loongarch64", "x86_64", "aarch64", "mips64el"];

fn prebuilt(architecture: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt").join(architecture).join(name)
}

#[test]
fn call_stacks_are_sampled_for_every_architecture_and_are_the_same_every_time() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("stacks");
    for architecture in ARCHITECTURES {
        let sampled = || {
            let output =
                finish(longma_run().arg("--stacks-out").arg(&out).arg(prebuilt(architecture, "fft")));
            assert!(output.status.success(), "{architecture}: {}", text(&output.stderr));
            fs::read_to_string(&out).unwrap()
        };
        let stacks = sampled();
        let transform = stacks.lines().find(|line| line.contains(";main;transform ")).expect(&stacks);
        let instructions: u64 = transform.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(instructions > 50_000_000, "{architecture}: {stacks}");
        assert_eq!(sampled(), stacks, "{architecture}");
    }
    let image = folder.path().join("stacks.svg");
    let output = finish(longma_run().arg("--stacks-out").arg(&image).arg(prebuilt("aarch64", "fft")));
    assert!(output.status.success());
    let image = fs::read_to_string(image).unwrap();
    assert!(image.starts_with("<svg") && image.contains("<title>transform: "), "{image}");
}

#[test]
fn call_stacks_are_sampled_in_simulated_time() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("stacks");
    for level in ["cache", "timing"] {
        for architecture in ["loongarch64", "x86_64"] {
            let mut command = longma_run();
            command.args(["--level", level, "--quiet", "--stacks-every", "1000", "--stacks-out"]).arg(&out);
            let output = finish(command.arg(prebuilt(architecture, "fft")).args(["8", "3"]));
            assert!(output.status.success(), "{level} {architecture}: {}", text(&output.stderr));
            let stacks = fs::read_to_string(&out).unwrap();
            assert!(stacks.contains(";main"), "{level} {architecture}: {stacks}");
        }
    }
}

#[test]
fn stacks_that_cannot_be_written_are_an_error() {
    let output = finish(longma_run().args(["--stacks-out", "/dev/full"]).arg(guest("fft")));
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write the call stacks"), "{}", text(&output.stderr));
}

/// Calls functions of the C library from call sites whose continuations are translated separately.
const PRINTING: &str = r#"
#include <stdio.h>
int main(void) {
    char text[64];
    volatile double number = 3.14159;
    int length = 0;
    for (int i = 0; i < 400; i++) length += snprintf(text, sizeof text, "%.3f", number + i);
    return length != 2696;
}
"#;

/// Compiles a program with a static C library. Returns false if the compiler is missing.
fn compile(compiler: &str, to: &Path) -> bool {
    let mut command = Command::new(compiler);
    command.args(["-O2", "-static", "-x", "c", "-", "-o"]).arg(to);
    let child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = child else { return false };
    child.stdin.take().unwrap().write_all(PRINTING.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

#[test]
fn returns_of_translated_code_are_predicted() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out.json");
    // The share depends on the C library.
    for (compiler, most_percent) in [("cc", 3), ("aarch64-linux-gnu-gcc", 8)] {
        let program = folder.path().join(compiler);
        if !compile(compiler, &program) {
            eprintln!("skipped: {compiler} does not link static programs");
            continue;
        }
        let mut command = longma_run();
        command.args(["--level", "timing", "--quiet", "--stats-out"]).arg(&out).arg(&program);
        let output = finish(&mut command);
        assert!(output.status.success(), "{compiler}: {}", text(&output.stderr));
        let result: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        let count = |name: &str| {
            result["statistics"]["core0"]["branch"][name]["value"]
                .as_u64()
                .unwrap_or_else(|| panic!("{result}"))
        };
        let (returns, mispredicted) = (count("returns"), count("returns_mispredicted"));
        assert!(returns > 10_000, "{compiler}: {returns}");
        assert!(mispredicted * 100 < returns * most_percent, "{compiler}: {mispredicted} of {returns}");
    }
}
