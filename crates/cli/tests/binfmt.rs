//! Tests `longma binfmt` in a user and mount namespace with its own binfmt_misc (Linux 6.7). The host's rules stay
//! unchanged.

mod subcommand;

use std::path::Path;
use std::process::{Command, Output};

use subcommand::{Subcommand, text};

const BINFMT: Subcommand = Subcommand("binfmt");
const MOUNT: &str = "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc";

/// Runs a shell script as root of new namespaces, with `$longma` and `$guests` set. `None` if the host does not allow
/// them.
fn run_in_namespace(script: &str) -> Option<Output> {
    let unshare = |script: &str| {
        let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt");
        let mut command = Command::new("unshare");
        command.args(["-Urm", "timeout", "120", "sh", "-c", script]);
        command.env("longma", env!("CARGO_BIN_EXE_longma")).env("guests", guests).output()
    };
    if !unshare(&format!("{MOUNT} && test -e /proc/sys/fs/binfmt_misc/register"))
        .is_ok_and(|output| output.status.success())
    {
        println!("skipped: this host does not support binfmt_misc in a user namespace");
        return None;
    }
    Some(unshare(&format!("{MOUNT}\n{script}")).unwrap())
}

#[test]
fn registered_architectures_run_until_unregistered() {
    let script = r#"
        run() { for it in loongarch64 aarch64 mips64el; do "$guests/$it/hello" -- --level "$it"; echo "= $?"; done; }
        run 2>/dev/null
        $longma binfmt register
        $longma binfmt list
        run
        $longma binfmt unregister
        $longma binfmt unregister
        run 2>/dev/null"#;
    let Some(output) = run_in_namespace(script) else { return };
    let stdout = text(&output.stdout).replace(env!("CARGO_BIN_EXE_longma"), "LONGMA");
    let refused = "= 126\n".repeat(3);
    let ran = ["loongarch64", "aarch64", "mips64el"]
        .map(|name| format!("hello, world\n1 --\n2 --level\n3 {name}\n= 0\n"))
        .concat();
    let names = ["loongarch64", "aarch64", "mips64el"];
    let registered = names.map(|name| format!("{name}: programs are run by LONGMA\n")).concat();
    let listed = names.map(|name| format!("{name:<12} LONGMA (longma-{name})\n")).concat();
    let unregistered = names.map(|name| format!("{name}: unregistered\n")).concat();
    let expected = format!("{refused}{registered}{listed}x86_64       native\n{ran}{unregistered}{refused}");
    assert_eq!(stdout, expected, "{}", text(&output.stderr));
}

#[test]
fn signals_and_links_behave_as_on_linux() {
    let script = r#"
        $longma binfmt register loongarch64
        cd /tmp && ln -s "$guests/loongarch64/hello" "longma-binfmt-$$" && "./longma-binfmt-$$" x; rm "/tmp/longma-binfmt-$$"
        "$guests/loongarch64/misbehave" read-null; echo $?"#;
    let Some(output) = run_in_namespace(script) else { return };
    assert_eq!(
        text(&output.stdout),
        format!(
            "loongarch64: programs are run by {}\nhello, world\n1 x\n139\n",
            env!("CARGO_BIN_EXE_longma")
        )
    );
}

#[test]
fn list_shows_all_interpreters_and_reports_that_binfmt_misc_is_disabled() {
    let script = r#"
        $longma binfmt register aarch64 >/dev/null
        $longma binfmt print aarch64 | sed 's/longma-aarch64/other/' >/proc/sys/fs/binfmt_misc/register
        $longma binfmt list | grep aarch64
        echo 0 >/proc/sys/fs/binfmt_misc/status
        $longma binfmt list | grep -c 'binfmt_misc is disabled'
        $longma binfmt register aarch64 | grep -c 'binfmt_misc is disabled'"#;
    let Some(output) = run_in_namespace(script) else { return };
    let stdout = text(&output.stdout).replace(env!("CARGO_BIN_EXE_longma"), "LONGMA");
    let both = "aarch64      LONGMA (longma-aarch64); LONGMA (other); the last registered rule takes effect";
    assert_eq!(stdout, format!("{both}\n1\n1\n"), "{}", text(&output.stderr));
}

#[test]
fn rules_are_printed_for_binfmt_d() {
    let static_program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/prebuilt/x86_64/hello");
    let rules = BINFMT.success(&["print", "aarch64", "--fixed", "--interpreter", static_program]);
    let lines: Vec<&str> = rules.lines().collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with(r":longma-aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00"), "{rules}");
    assert!(lines[0].ends_with(&format!(":{static_program}:PF")), "{rules}");
}

#[test]
fn harmful_and_invalid_rules_are_rejected() {
    for (arguments, expected) in [
        (&["print", "x86_64"][..], "this host's own architecture"),
        (&["register", "x86_64"], "this host's own architecture"),
        (&["print", "--interpreter", "/nowhere/longma"], "there is no file /nowhere/longma"),
        (&["print", "--interpreter", "/dev/null"], "/dev/null is not a regular file"),
        (&["print", "--interpreter", "/etc/passwd"], "/etc/passwd cannot be executed"),
        // The test's own command is dynamic.
        (&["print", "--fixed"], "--fixed needs a static longma"),
        (&["register", "--fixed"], "--fixed needs a static longma"),
        (
            &["print", "--interpreter", concat!(env!("CARGO_MANIFEST_DIR"), "/../../test")],
            "is not an ELF executable",
        ),
    ] {
        let message = BINFMT.failure(arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}
