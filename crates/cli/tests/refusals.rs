//! Tests errors of `longma run`: the exit status, and a message with the problem, its location and a remedy.

mod programs;

use std::fmt::Write;
use std::path::Path;

use longma_random::SplitMix64;
use programs::*;
use tempfile::tempdir;

/// The exit status and the output, with the folder's path removed.
fn refusal(folder: &Path, arguments: &[&str]) -> String {
    let output = finish(longma_run().current_dir(folder).args(arguments));
    assert!(output.stdout.is_empty());
    let message = text(&output.stderr).replace(&format!("{}/", folder.display()), "");
    let message = message.trim().replace("\n", "\n  ");
    let code = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    format!("{} -> {code}\n  {message}\n", arguments.join(" "))
}

fn altered(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = executable(&SPINNER, &[]);
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// A program whose dynamic linker is /lib/ld-missing.so.1.
fn dynamic() -> Vec<u8> {
    let mut file = executable(&SPINNER, &[]);
    // A second program header, PT_INTERP, follows the first; the path follows both.
    file[56] = 2;
    let name = b"/lib/ld-missing.so.1\0";
    let mut header = vec![3, 0, 0, 0, 4, 0, 0, 0];
    let at = 64 + 2 * 56;
    for field in [at as u64, 0, 0, name.len() as u64, name.len() as u64, 1] {
        header.extend(field.to_le_bytes());
    }
    file[120..176].copy_from_slice(&header);
    file[at..at + name.len()].copy_from_slice(name);
    file
}

#[test]
fn programs_that_cannot_run_are_named_with_the_reason_and_a_remedy() {
    // The temporary directory's canonical path, as in messages.
    let folder = tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    place(&folder, "text", b"not a program");
    place(&folder, "empty", b"");
    place(&folder, "tiny", b"\x7fE");
    place(&folder, "riscv", &altered(18, &[243, 0]));
    place(&folder, "arm", &altered(18, &[40, 0]));
    place(&folder, "narrow", &altered(4, &[1]));
    place(&folder, "big-endian", &altered(5, &[2]));
    place(&folder, "library", &altered(16, &[1]));
    place(&folder, "short", &executable(&SPINNER, &[])[..100]);
    place(&folder, "cut", &executable(&SPINNER, &[])[..0x1004]);
    place(&folder, "dynamic", &dynamic());
    place(&folder, "script", b"#!\n");
    place(&folder, "loop", b"#!loop\n");
    std::fs::create_dir(folder.join("folder")).unwrap();
    let mut all = String::new();
    for name in [
        "missing",
        "text/below",
        "folder",
        "text",
        "empty",
        "tiny",
        "riscv",
        "arm",
        "narrow",
        "big-endian",
        "library",
        "short",
        "cut",
        "dynamic",
        "script",
        "loop",
    ] {
        all.write_str(&refusal(&folder, &[name])).unwrap();
    }
    insta::assert_snapshot!(all);
}

#[test]
fn options_that_make_no_sense_are_named_and_the_status_is_not_one_of_the_programs() {
    let folder = tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    place(&folder, "program", &executable(&SPINNER, &[]));
    let mut all = String::new();
    for arguments in [
        &["--bogus", "program"][..],
        &["--roi", "program"],
        &["--level", "timing", "--stats", "program"],
        &["--level", "cache", "--core", "in-order", "program"],
        &["--machine", "hygon-8node", "program"],
        &["--machine", "nowhere", "program"],
        &["--root", "nowhere", "/program"],
        &["-L", "nowhere", "program"],
        &["--strace-out", "nowhere/file", "program"],
    ] {
        all.write_str(&refusal(&folder, arguments)).unwrap();
    }
    insta::assert_snapshot!(all);
    for arguments in [&["--env", "novalue", "program"][..], &["--gdb", "70000", "program"], &[]] {
        assert!(refusal(&folder, arguments).contains("-> 125\n"), "{arguments:?}");
    }
}

#[test]
fn a_damaged_program_never_makes_the_command_panic_or_hang() {
    let folder = tempdir().unwrap();
    let program = std::fs::read(guest("hello")).unwrap();
    let mut random = SplitMix64::new(1);
    let mut damaged: Vec<Vec<u8>> =
        (0..20).map(|_| program[..random.index(program.len())].to_vec()).collect();
    damaged.extend((0..60).map(|_| {
        let mut bytes = program.clone();
        for _ in 0..1 + random.index(6) {
            // Damage only the headers, which the loader reads.
            let at = random.index(64 + 8 * 56);
            bytes[at] = random.below(256) as u8;
        }
        bytes
    }));
    for (number, bytes) in damaged.iter().enumerate() {
        place(folder.path(), "damaged", bytes);
        // Use --root: a damaged program may do anything.
        let output = finish(longma_run().arg("--root").arg(folder.path()).arg("/damaged"));
        let printed = text(&output.stderr);
        assert!(output.status.code() != Some(101) && !printed.contains("panicked"), "{number}: {printed}");
    }
}
