//! `longma boot` on small programs in place of a kernel. `tests/system_boot.py` boots Debian's kernel.

mod programs;

use programs::{A0, A1, A2, ZERO, add};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// `lu12i.w d, immediate`
const fn upper(d: u32, immediate: u32) -> u32 {
    0x1400_0000 | immediate << 5 | d
}

/// `ori d, j, immediate`
const fn or(d: u32, j: u32, immediate: u32) -> u32 {
    0x0380_0000 | immediate << 10 | j << 5 | d
}

/// `andi d, j, immediate`
const fn and(d: u32, j: u32, immediate: u32) -> u32 {
    0x0340_0000 | immediate << 10 | j << 5 | d
}

/// `st.b d, j, 0`
const fn store_byte(d: u32, j: u32) -> u32 {
    0x2900_0000 | j << 5 | d
}

/// `ld.bu d, j, offset`
const fn load_byte(d: u32, j: u32, offset: u32) -> u32 {
    0x2a00_0000 | offset << 10 | j << 5 | d
}

/// `beqz j`, with the offset as a number of instructions.
const fn if_zero(j: u32, by: i32) -> u32 {
    0x4000_0000 | (by as u32 & 0xffff) << 10 | j << 5 | (by as u32 >> 16 & 0x1f)
}

/// `bne j, d`, with the offset as a number of instructions.
const fn if_unequal(j: u32, d: u32, by: i32) -> u32 {
    0x5c00_0000 | (by as u32 & 0xffff) << 10 | j << 5 | d
}

/// Writes "k", echoes the input up to "q", and switches the machine off.
const ECHO: [u32; 15] = [
    upper(A1, 0x1_fe00),
    or(A1, A1, 0x1e0),
    add(A0, ZERO, b'k' as i32),
    store_byte(A0, A1),
    // Wait for the line status register to report a byte.
    load_byte(A2, A1, 5),
    and(A2, A2, 1),
    if_zero(A2, -2),
    load_byte(A0, A1, 0),
    store_byte(A0, A1),
    add(A2, ZERO, b'q' as i32),
    if_unequal(A0, A2, -6),
    upper(A1, 0x1_00e0),
    or(A1, A1, 0x1c),
    add(A0, ZERO, 0x34),
    store_byte(A0, A1),
];
/// `bnez j`, with the offset as a number of instructions.
const fn if_not_zero(j: u32, by: i32) -> u32 {
    if_zero(j, by) | 0x400_0000
}

/// Begins a region of interest, executes 202 instructions, ends the region and switches the machine off.
const REGION: [u32; 13] = [
    upper(A1, 0x1_00e0),
    or(A1, A1, 0x1f),
    add(A0, ZERO, 1),
    store_byte(A0, A1),
    add(A2, ZERO, 100),
    add(A2, A2, -1),
    if_not_zero(A2, -1),
    add(A0, ZERO, 2),
    store_byte(A0, A1),
    upper(A1, 0x1_00e0),
    or(A1, A1, 0x1c),
    add(A0, ZERO, 0x34),
    store_byte(A0, A1),
];
/// A branch to itself.
const FOREVER: [u32; 1] = [0x5000_0000];
/// IDLE without a timer.
const IDLE: [u32; 1] = [0x0648_8000];

/// A file in the format of vmlinux.efi with this code.
fn image(name: &str, code: &[u32]) -> (tempfile::TempDir, PathBuf) {
    let start = 0x20_0000u64;
    let mut file = b"MZ\0\0\0\0\0\0".to_vec();
    // The entry point, the bytes in memory, and the address.
    file.extend([start + 64, 0x1000, start].iter().flat_map(|field| field.to_le_bytes()));
    file.resize(56, 0);
    file.extend(0x8182_23cdu32.to_le_bytes());
    file.resize(64, 0);
    file.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, file).unwrap();
    (folder, path)
}

fn boot(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.arg("boot").args(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// The errors without line breaks.
fn unwrapped(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

#[test]
fn the_console_is_on_standard_input_and_output_and_power_off_ends_it() {
    let (_folder, kernel) = image("echo.efi", &ECHO);
    let output = boot(&["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB"], "hello q");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "khello q");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_machine_stops_after_its_cycles() {
    let (_folder, kernel) = image("forever.efi", &FOREVER);
    let output = boot(&["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB", "--cycles", "1000"], "");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("stopped after 1000 cycles"), "{output:?}");
}

#[test]
fn a_machine_that_waits_for_input_ends_with_the_input() {
    let (_folder, kernel) = image("idle.efi", &IDLE);
    let output = boot(&["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB"], "");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard input has ended"), "{output:?}");
}

#[test]
fn a_halted_machine_ends_when_it_has_no_room_for_its_input() {
    let (folder, kernel) = image("idle.efi", &IDLE);
    let options = ["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB"];
    let message = "has halted and does not read its console";
    let output = boot(&options, &"more than the serial port's buffer ".repeat(1000));
    assert!(!output.status.success());
    assert!(unwrapped(&output).contains(message), "{output:?}");

    let script = folder.path().join("script");
    std::fs::write(&script, "send more than the serial port's buffer\nexpect an answer\n").unwrap();
    let output = boot(&[&options[..], &["--script", script.to_str().unwrap()]].concat(), "");
    assert!(!output.status.success());
    assert!(unwrapped(&output).contains("stopped before the end of the script"), "{output:?}");
}

#[test]
fn sigterm_ends_a_machine() {
    let (_folder, kernel) = image("forever.efi", &FOREVER);
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    let command = command.args(["boot", "--kernel"]).arg(&kernel).args(["--memory", "64MiB"]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The handler may not be installed yet: then the signal itself ends the process.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_region_of_interest_runs_through_the_models() {
    let (folder, kernel) = image("region.efi", &REGION);
    let result = |level: &str, region: &[&str]| {
        let out = folder.path().join("result.json");
        let (kernel, out) = (kernel.to_str().unwrap(), out.to_str().unwrap());
        let words = ["--kernel", kernel, "--memory", "64MiB", "--level", level, "--stats-out", out];
        let output = boot(&[&words[..], region].concat(), "");
        assert!(output.status.success(), "{output:?}");
        let summary = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(summary.contains("kernel") && summary.contains("hottest functions"), "{summary}");
        std::fs::read_to_string(out).unwrap()
    };
    let instructions = |text: &str, group: &str| {
        let result: serde_json::Value = serde_json::from_str(text).unwrap();
        result["statistics"][group]["instructions"]["value"].as_u64().unwrap()
    };
    for level in ["cache", "timing"] {
        let text = result(level, &["--roi"]);
        // The store that ends the region belongs to it, as an access to a device.
        assert_eq!([instructions(&text, "run"), instructions(&text, "kernel")], [203, 202], "{level}");
        assert_eq!(text, result(level, &["--roi"]), "{level}: a run repeats");
        assert_eq!(instructions(&result(level, &[]), "run"), 4 + 203 + 4, "{level}: the whole run");
    }
}

/// Saves the machine with this code at its mark.
fn saved(folder: &Path, kernel: &Path) -> String {
    let file = folder.join("machine.saved").to_str().unwrap().to_owned();
    let output =
        boot(&["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB", "--checkpoint", &file], "");
    assert!(output.status.success(), "{output:?}");
    assert!(unwrapped(&output).contains("machine.saved` continues"), "{output:?}");
    file
}

#[test]
fn a_restored_region_of_interest_has_the_statistics_of_one_that_goes_on() {
    let (folder, kernel) = image("region.efi", &REGION);
    let file = saved(folder.path(), &kernel);
    let out = folder.path().join("result.json");
    let models = ["--level", "timing", "--roi", "--stats-out", out.to_str().unwrap()];
    let result = |start: &[&str]| {
        let output = boot(&[start, &models].concat(), "");
        assert!(output.status.success(), "{output:?}");
        std::fs::read_to_string(&out).unwrap()
    };
    let expected = result(&["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB"]);
    for _ in 0..2 {
        assert_eq!(result(&["--restore", &file]), expected);
    }
    assert!(
        boot(&["--restore", &file], "").status.success(),
        "the restored machine also runs without models"
    );
}

#[test]
fn a_script_saves_at_its_checkpoint_and_the_console_goes_on() {
    let (folder, kernel) = image("echo.efi", &ECHO);
    let (script, file) = (folder.path().join("script"), folder.path().join("machine.saved"));
    std::fs::write(&script, "expect k\nsend ab\nexpect b\ncheckpoint\n").unwrap();
    let (script, file) = (script.to_str().unwrap(), file.to_str().unwrap());
    let words = ["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB", "--script", script];
    let refused = boot(&words, "");
    assert!(unwrapped(&refused).contains("the script has a checkpoint: add --checkpoint"), "{refused:?}");
    let output = boot(&[&words[..], &["--checkpoint", file]].concat(), "");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kab");
    for text in ["hello q", "q"] {
        let output = boot(&["--restore", file], text);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    }
    std::fs::write(script, "limit 1\nsend xq\nexpect xq\n").unwrap();
    let output = boot(&["--restore", file, "--script", script], "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_cannot_be_saved_or_restored_is_refused_with_the_reason() {
    let (folder, kernel) = image("region.efi", &REGION);
    let file = saved(folder.path(), &kernel);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, truncated, absent) = (path("disk.img"), path("truncated"), path("absent/machine.saved"));
    std::fs::write(&disk, [0; 512]).unwrap();
    let content = std::fs::read(&file).unwrap();
    std::fs::write(&truncated, &content[..content.len() - 9]).unwrap();
    let kernel = kernel.to_str().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (
            &["--kernel", kernel, "--checkpoint", &file, "--level", "timing"],
            "--checkpoint works at level functional only",
        ),
        (&["--kernel", kernel, "--checkpoint", &file, "--gdb", "0"], "cannot be used with"),
        (&["--kernel", kernel, "--checkpoint", &absent], "absent/machine.saved: No such file"),
        (
            &["--kernel", kernel, "--checkpoint", &file, "--disk", &format!("{disk},write")],
            "leave ,write out",
        ),
        (&["--restore", kernel], "it is not a checkpoint of a machine"),
        (&["--restore", &truncated], "the checkpoint is damaged: it is truncated or changed"),
        (&["--restore", &absent], "No such file"),
        (
            &["--restore", &file, "--disk", &disk],
            "the devices: random numbers; this one has: disk, random numbers",
        ),
        (&["--restore", &file, "--cores", "2"], "cannot be used with"),
    ];
    for (arguments, expected) in cases {
        let output = boot(arguments, "");
        assert!(!output.status.success(), "{arguments:?}");
        let text = unwrapped(&output);
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), content, "a refused command leaves the file alone");
}

#[test]
fn a_guest_that_sets_no_mark_is_not_saved() {
    let (folder, kernel) = image("echo.efi", &ECHO);
    let file = folder.path().join("machine.saved");
    let words = ["--kernel", kernel.to_str().unwrap(), "--memory", "64MiB", "--checkpoint"];
    let output = boot(&[&words[..], &[file.to_str().unwrap()]].concat(), "q");
    assert_eq!(output.status.code(), Some(1));
    assert!(unwrapped(&output).contains("no checkpoint was written") && !file.exists(), "{output:?}");
}

#[test]
fn options_that_do_not_fit_a_level_are_refused() {
    let (folder, kernel) = image("echo.efi", &ECHO);
    let text = folder.path().join("symbols.txt");
    std::fs::write(&text, "not a symbol").unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["--roi"], "--roi is for levels cache and timing"),
        (&["--level", "cache", "--core", "in-order"], "--core is for level timing"),
        (&["--level", "cache", "--net", "user"], "--net works at level functional only"),
        (&["--level", "timing", "--gdb", "0"], "--gdb works at level functional only"),
        (&["--level", "timing", "--cores", "16"], "has 4 cores, and 16 are booted"),
        (&["--level", "timing", "--symbols", text.to_str().unwrap()], "symbols.txt: line 1 is not a symbol"),
    ];
    for (arguments, expected) in cases {
        let words = [&["--kernel", kernel.to_str().unwrap()][..], arguments].concat();
        let output = boot(&words, "");
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn usage_errors_have_status_2_and_others_1() {
    let (folder, kernel) = image("echo.efi", &ECHO);
    let script = folder.path().join("script");
    std::fs::write(&script, "checkpoint\n").unwrap();
    let (script, shared) = (script.to_str().unwrap(), folder.path().to_str().unwrap());
    let usage: [&[&str]; 12] = [
        &["--roi"],
        &["--level", "cache", "--core", "in-order"],
        &["--level", "cache", "--net", "user"],
        &["--level", "timing", "--cores", "16"],
        &["--offline"],
        &["--cores", "17"],
        &["--memory", "1MiB"],
        &["--net", "bridge"],
        &["--share", shared, "--share", shared],
        &["--share", &format!("{shared},tag=a b")],
        &["--script", script],
        &["--disk", &format!("{shared}/disk,write"), "--checkpoint", &format!("{shared}/saved")],
    ];
    std::fs::write(folder.path().join("disk"), [0; 512]).unwrap();
    let others: [&[&str]; 3] =
        [&["--initrd", "/nonexistent"], &["--disk", "/nonexistent"], &["--cycles", "1000"]];
    let statuses = [(2, &usage[..]), (1, &others)];
    for (status, arguments) in
        statuses.iter().flat_map(|(status, all)| all.iter().map(move |one| (status, one)))
    {
        let output = boot(&[&["--kernel", kernel.to_str().unwrap()], *arguments].concat(), "");
        assert_eq!(output.status.code(), Some(*status), "{arguments:?}: {output:?}");
    }
}

#[test]
fn files_that_are_not_kernels_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("kernel.txt");
    std::fs::write(&text, "not a kernel").unwrap();
    let (_folder, kernel) = image("echo.efi", &ECHO);
    let kernel = kernel.to_str().unwrap();
    let long = "x".repeat(5000);
    let shared = folder.path().to_str().unwrap();
    let qcow2 = folder.path().join("disk.qcow2");
    std::fs::write(&qcow2, [0; 512]).unwrap();
    let cases: [(&[&str], &str); 14] = [
        (&[], "required"),
        (&["--kernel", kernel, "--offline"], "omit it with --kernel"),
        (
            &["--kernel", kernel, "--share", "/nonexistent"],
            "--share /nonexistent: cannot share the folder: No such file",
        ),
        (&["--kernel", kernel, "--share", shared, "--share", shared], "add ,tag=NAME"),
        (&["--kernel", kernel, "--share", &format!("{shared},tag=a b")], "must have from 1 to 64 characters"),
        (&["--kernel", kernel, "--disk", qcow2.to_str().unwrap()], "add ,format=qcow2 or ,format=raw"),
        (
            &["--kernel", kernel, "--disk", &format!("{},backing=x", qcow2.display())],
            "disk.qcow2,backing=x: ",
        ),
        (&["--kernel", text.to_str().unwrap()], "kernel.txt: the kernel is neither"),
        (&["--kernel", "/nonexistent/vmlinuz"], "/nonexistent/vmlinuz: No such file"),
        (&["--kernel", kernel, "--initrd", "/nonexistent/initrd"], "/nonexistent/initrd: No such file"),
        (&["--kernel", kernel, "--memory", "1MiB"], "from 64 MiB to 64 GiB"),
        (&["--kernel", kernel, "--memory", "lots"], "lots"),
        (&["--kernel", "/dev/zero", "--memory", "64MiB"], "/dev/zero: is larger than 64 MiB"),
        (&["--kernel", kernel, "--append", &long], "5000 bytes"),
    ];
    for (arguments, expected) in cases {
        let output = boot(arguments, "");
        assert!(!output.status.success());
        let text = unwrapped(&output);
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_system_that_was_not_prepared_is_not_fetched_offline() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.args(["boot", "debian", "--offline"]).env("XDG_CACHE_HOME", folder.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = unwrapped(&output);
    assert!(text.contains("run `longma boot debian` once without --offline"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
