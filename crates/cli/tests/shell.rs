//! Tests `longma shell`: completions and manual pages.

mod subcommand;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use subcommand::{Subcommand, text};

const SHELL: Subcommand = Subcommand("shell");

/// The command names listed by `longma --help`.
fn commands() -> BTreeSet<String> {
    let help = text(&Command::new(env!("CARGO_BIN_EXE_longma")).arg("--help").output().unwrap().stdout);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Wrapped descriptions are indented further.
    let names = listed.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").map(Into::into).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let script = SHELL.success(&["completions", "bash"]);
    let complete = |arguments: &[&str]| {
        let last = arguments.len() - 1;
        let query = format!(
            "COMP_WORDS=({})\nCOMP_CWORD={last}\n_longma longma '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            arguments.join(" "),
            arguments[last],
            arguments[last - 1],
        );
        let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(format!("{script}\n{query}").as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        text(&output.stdout).split_whitespace().map(str::to_string).collect::<BTreeSet<_>>()
    };
    assert_eq!(complete(&["longma", "zon"]), ["zoned".into()].into());
    assert_eq!(complete(&["longma", "run", "--interp"]), ["--interpret".into()].into());
    assert_eq!(complete(&["longma", "run", "--level", "ti"]), ["timing".into()].into());
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new/man1");
    SHELL.success(&["manual", pages.to_str().unwrap()]);
    let commands = commands();
    assert!(commands.contains("run") && commands.contains("zoned"), "{commands:?}");
    for name in &commands {
        let page = std::fs::read_to_string(pages.join(format!("longma-{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(std::fs::read_to_string(pages.join("longma.1")).unwrap().contains("longma\\-run(1)"));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    assert!(
        SHELL.failure(&["manual", "/dev/null/man1"]).contains("cannot write manual pages to /dev/null/man1")
    );
    assert!(SHELL.failure(&["completions", "command.com"]).contains("command.com"));
}
