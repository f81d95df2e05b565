//! Tests `longma doctor`: its report, its exit status, and that its bundle identifies no user or host.

mod subcommand;

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use subcommand::text;
use tempfile::tempdir;

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.arg("doctor").args(arguments).current_dir("/");
    command
}

fn checks(output: &Output) -> BTreeMap<String, Value> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter();
    checks.map(|check| (check["name"].as_str().unwrap().into(), check.clone())).collect()
}

#[test]
fn every_part_states_its_purpose_and_how_to_install_it() {
    let output = doctor(&["--format", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let checks = checks(&output);
    for name in
        ["run of a program", "processor features", "perf counters", "AF_XDP", "KVM", "iperf3", "zig", "gdb"]
    {
        assert!(checks.contains_key(name), "{name}");
    }
    for check in checks.values() {
        assert!(matches!(check["status"].as_str(), Some("ok" | "missing")), "{check}");
        for key in ["group", "found", "needed_for", "without", "get"] {
            assert!(!check[key].as_str().unwrap().is_empty(), "{key}: {check}");
        }
    }
    assert_eq!(checks["run of a program"]["status"], "ok");
}

#[test]
fn missing_programs_are_named_with_their_packages_and_are_not_a_failure() {
    let folder = tempdir().unwrap();
    let output = doctor(&[]).env_clear().env("PATH", folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in ["there is no program iperf3", "Debian: iperf3", "Debian: golang-go", "parts are missing"]
    {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
}

#[test]
fn a_host_on_which_no_program_runs_is_a_failure() {
    let mut command = Command::new("sh");
    // The emulator reserves far more address space than this limit allows.
    command.args(["-c", "ulimit -v 60000000; exec \"$0\" doctor", env!("CARGO_BIN_EXE_longma")]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let shown = text(&output.stdout);
    assert!(shown.contains("The emulator cannot run programs here"), "{shown}");
    assert!(shown.contains("ulimit -v"), "{shown}");
}

#[test]
fn a_program_that_hangs_or_prints_too_much_does_not_delay_the_doctor() {
    let folder = tempdir().unwrap();
    let program = |name: &str, script: &str| {
        let path = folder.path().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("iperf3", "#!/bin/sh\n/bin/sleep 600 & wait\n");
    program("go", "#!/bin/sh\nprintf 'go \\033[31mred\\n'\n");
    program("ip", "#!/bin/sh\nexec /usr/bin/yes ip\n");
    let started = std::time::Instant::now();
    let output = doctor(&["--format", "json"]).env_clear().env("PATH", folder.path()).output().unwrap();
    assert!(started.elapsed().as_secs() < 60);
    let checks = checks(&output);
    assert!(checks["iperf3"]["found"].as_str().unwrap().contains("did not end"), "{}", checks["iperf3"]);
    assert!(!checks["Go"]["found"].as_str().unwrap().contains('\u{1b}'), "{}", checks["Go"]);
}

/// The files of a bundle, by name.
fn unpack(path: &Path) -> BTreeMap<String, String> {
    let file = fs::File::open(path).unwrap();
    let reader: Box<dyn Read> = match path.extension().unwrap().to_str().unwrap() {
        "gz" => Box::new(flate2::read::GzDecoder::new(file)),
        _ => Box::new(zstd::Decoder::new(file).unwrap()),
    };
    let mut archive = tar::Archive::new(reader);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().username().unwrap(), Some(""), "no user's name");
        assert_eq!(entry.header().uid().unwrap(), 0);
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    });
    entries.collect()
}

#[test]
fn a_bundle_has_no_secrets_in_it() {
    let folder = tempdir().unwrap();
    let home = folder.path().join("home/planted-user");
    fs::create_dir_all(&home).unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // A program whose version output contains private data.
    let go = "#!/bin/sh\necho \"go of $HOME, $USER on $(uname -n) at 00:1b:44:11:3a:b7 10.1.2.3 fe80::dead:beef $API_KEY $LONG_TOKEN\"\n";
    fs::write(bin.join("go"), go).unwrap();
    fs::set_permissions(bin.join("go"), fs::Permissions::from_mode(0o755)).unwrap();
    let long = "planted".repeat(200);
    let secrets = [
        ("LONG_TOKEN", &*long),
        ("HOME", home.to_str().unwrap()),
        ("USER", "planted-user"),
        ("LOGNAME", "planted-user"),
        ("API_KEY", "planted-token-0123456789"),
        ("AWS_SECRET_ACCESS_KEY", "planted+secret/key"),
        ("LONGMA_PLACEMENT_TOKEN", "planted-placement-token"),
        ("SSH_CONNECTION", "192.0.2.7 51234 192.0.2.8 22"),
        ("LANG", "planted secret in a setting that is shown"),
    ];
    for name in ["report.tar.gz", "report.tar.zst"] {
        let bundle = folder.path().join(name);
        let mut command = doctor(&["--bundle", bundle.to_str().unwrap()]);
        command.env_clear().envs(secrets).env("TERM", "xterm-256color");
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o600);

        let files = unpack(&bundle);
        let all: String = files.iter().map(|(name, content)| format!("{name}\n{content}\n")).collect();
        let host = text(&Command::new("uname").arg("-n").output().unwrap().stdout);
        let is_named = |word: &str| {
            all.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').any(|found| found == word)
        };
        assert!(!is_named(host.trim()), "the host's name: {all}");
        for secret in ["planted", "00:1b:44:11:3a:b7", "10.1.2.3", "fe80::dead:beef", "192.0.2.7"] {
            assert!(!all.contains(secret), "{secret}: {all}");
        }
        assert!(!all.contains(folder.path().to_str().unwrap()), "{all}");
        for expected in
            ["longma 0.", "models ", "kernel: ", "flags: ", "open files", "TERM=xterm-256color", "\"checks\""]
        {
            assert!(all.contains(expected), "{expected}: {all}");
        }
        assert!(all.contains("LONGMA_PLACEMENT_TOKEN is set"), "{all}");
        serde_json::from_str::<Value>(&files["longma-doctor/doctor.json"]).unwrap();
    }
}

#[test]
fn an_existing_file_is_never_overwritten_and_other_endings_are_refused() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("there.tar.gz");
    fs::write(&file, "mine").unwrap();
    let output = doctor(&["--bundle", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("there.tar.gz exists"), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty(), "it is refused before any check runs");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let link = folder.path().join("link.tar.gz");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).unwrap();
    assert!(!doctor(&["--bundle", link.to_str().unwrap()]).output().unwrap().status.success());
    assert!(!folder.path().join("elsewhere").exists());
    let zip = doctor(&["--bundle", folder.path().join("x.zip").to_str().unwrap()]).output().unwrap();
    assert!(text(&zip.stderr).contains(".tar.gz or .tar.zst"), "{}", text(&zip.stderr));
}
