//! `longma doctor`: reports which features of this host longma can use, the purpose of each, and how to get missing
//! ones.

use clap::ValueEnum;
use longma_command_line::output::{columns, print, print_json};
use longma_doctor::checks::{self, Check};
use longma_doctor::{bundle, redact};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Columns of the text in a bundle.
const BUNDLE_COLUMNS: usize = 100;

/// `longma doctor ...`
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0, also if something is missing; 1 if the emulator cannot run programs here, or the bundle cannot be written."
)]
pub struct Args {
    /// Also write a bundle for a bug report to this file, which must not exist and ends in .tar.gz or .tar.zst: this output, the kernel,
    /// the processor's features and limits. It holds no names of users or hosts, no addresses, and no environment but a few settings of
    /// the terminal and the language.
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Runs `longma doctor`.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let bundle = args.bundle.as_deref().map(bundle::Bundle::create).transpose()?;
    let mut checks = checks::all();
    let can_run = checks.iter().all(|check| check.is_ok || !check.is_vital);
    match args.format {
        Format::Table => print(&text(&checks, columns()))?,
        Format::Json => print_json(&json(&checks, can_run))?,
    };
    if let Some(bundle) = bundle {
        let redactor = redact::Redactor::of_process();
        // Redact before the text is shortened: the redactor would not recognize half of a secret.
        checks.iter_mut().for_each(|check| check.found = redactor.redact(&check.found));
        let version =
            format!("longma {}\nmodels {}\n", env!("CARGO_PKG_VERSION"), crate::experiment::VERSION);
        let path =
            bundle.write(&version, &text(&checks, BUNDLE_COLUMNS), &json(&checks, can_run), &redactor)?;
        // Ignored: standard error may be closed.
        let _ = writeln!(
            std::io::stderr(),
            "Wrote {}. Read it before you send it: tar -xOf {0} | less",
            path.display()
        );
    }
    Ok(if can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json(checks: &[Check], can_run: bool) -> Value {
    let object = |check: &Check| {
        let status = if check.is_ok { "ok" } else { "missing" };
        json!({ "group": check.group, "name": check.name, "status": status, "found": check.shown(),
            "needed_for": check.needed_for, "without": check.without, "get": check.get })
    };
    let checks: Vec<_> = checks.iter().map(object).collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "emulator_runs": can_run, "checks": checks })
}

/// Formats the checks by group. A failed check also lists the commands that need the part, those that work without it,
/// and how to get it.
fn text(checks: &[Check], width: usize) -> String {
    let mut text = String::new();
    let longest = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut group = "";
    for check in checks {
        if check.group != group {
            let _ = writeln!(text, "{}{}", if group.is_empty() { "" } else { "\n" }, check.group);
            group = check.group;
        }
        let status = if check.is_ok { "ok" } else { "missing" };
        let head = format!("  {status:7}  {:longest$}  ", check.name);
        text.push_str(&paragraph(&check.shown(), &head, &" ".repeat(head.len()), width));
        if !check.is_ok {
            for (what, words) in [("for", check.needed_for), ("without", check.without), ("get", check.get)] {
                let head = format!("{:11}{what:7}  ", "");
                text.push_str(&paragraph(words, &head, &" ".repeat(head.len()), width));
            }
        }
    }
    let missing = checks.iter().filter(|check| !check.is_ok).count();
    let vital = checks.iter().find(|check| check.is_vital && !check.is_ok);
    let last = match (vital, missing) {
        (Some(check), _) => format!("The emulator cannot run programs here: {}.", check.name),
        (None, 0) => "Nothing is missing.".into(),
        (None, 1) => "1 part is missing; the emulator runs programs without it.".into(),
        (None, count) => format!("{count} parts are missing; the emulator runs programs without them."),
    };
    let _ = writeln!(text, "\n{last}");
    text
}

/// Wraps text after `head`; further lines begin with `indent`.
fn paragraph(words: &str, head: &str, indent: &str, width: usize) -> String {
    let options = textwrap::Options::new(width.clamp(40, 120)).initial_indent(head).subsequent_indent(indent);
    let mut text = textwrap::fill(words, options);
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(is_ok: bool, is_vital: bool) -> Check {
        Check {
            group: "Emulator",
            name: "a part",
            is_ok,
            is_vital,
            found: "found so and so".into(),
            needed_for: "speed",
            without: "everything runs, more slowly",
            get: "another processor",
        }
    }

    #[test]
    fn missing_parts_are_explained_and_available_ones_take_one_line() {
        let text = text(&[check(true, false), check(false, false)], 80);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "  ok       a part  found so and so");
        assert_eq!(lines[2], "  missing  a part  found so and so");
        assert_eq!(lines[5], "           get      another processor");
        assert!(lines.last().unwrap().starts_with("1 part is missing"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let mut long = check(false, true);
        long.found = "word ".repeat(60);
        let text = text(&[long], 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.ends_with("The emulator cannot run programs here: a part.\n"), "{text}");
    }
}
