//! Tests that every option of `longma affinity` is either used or rejected for each kind of measurement, with a message
//! that names the kinds it applies to.

mod subcommand;

use std::process::Command;
use subcommand::{Subcommand, text};

const AFFINITY: Subcommand = Subcommand("affinity");

/// Runs a command that must fail, with a time limit in case it starts to measure.
fn output_of(words: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_longma"), AFFINITY.0]).args(words).current_dir("/");
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{words:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// The kinds of sweeps, each with arguments that fail after the options have been checked.
const SWEEPS: [(char, &[&str], &[&str]); 4] = [
    ('l', &["sweep", "--lab", "--vary", "rfs=1"], &[]),
    ('c', &["sweep", "--interface", "none0", "--connect", "x"], &[]),
    ('o', &["sweep", "--interface", "none0"], &["--", "true"]),
    ('m', &["sweep", "--model", "no-such-machine"], &[]),
];

/// Every option of `sweep`, its value, and the kinds that accept it.
const OF_SWEEP: [(&str, &str, &str); 26] = [
    ("--lab", "", "l"),
    ("--interface", "none0", "co"),
    ("--connect", "x", "c"),
    ("--model", "no-such-machine", "m"),
    ("--udp", "", "lc"),
    ("--flows", "1", "lc"),
    ("--copy", "", "lc"),
    ("--forward", "", "lc"),
    ("--software", "", "lco"),
    ("--sender", "0", "l"),
    ("--mtu", "1500", "lm"),
    ("--pair", "0,0", "lcom"),
    ("--cpus", "0", "lcom"),
    ("--vary", "gro=1", "lco"),
    ("--repeats", "3", "lco"),
    ("--seconds", "2", "lco"),
    ("--seed", "1", "lcom"),
    ("--frame-cycles", "0", "m"),
    ("--softirq-share", "0", "m"),
    ("--seeds", "1", "m"),
    ("--with", "gro=1", "m"),
    ("--megabytes", "8", "m"),
    ("--output", "/nowhere/r.jsonl", "lcom"),
    ("--html", "/nowhere/r.html", "lcom"),
    ("--journal", "/nowhere/j", "lco"),
    ("--format", "json", "lcom"),
];

const ADVICE: [(char, &[&str], &[&str]); 5] = [
    ('l', &["advise", "--lab", "--sender", "8000"], &[]),
    ('c', &["advise", "--interface", "none0", "--connect", "x"], &[]),
    ('o', &["advise", "--interface", "none0"], &["--", "true"]),
    ('r', &["advise", "--results", "/nowhere/r.jsonl"], &[]),
    ('t', &["advise", "--interface", "none0"], &[]),
];

/// Every option of `advise`, likewise. Each option that selects a kind does so if no other option selects one.
const OF_ADVICE: [(&str, &str, &str); 20] = [
    ("--lab", "", "l"),
    ("--interface", "none0", "cot"),
    ("--connect", "x", "ct"),
    ("--results", "/nowhere/r.jsonl", "r"),
    ("--udp", "", "lc"),
    ("--flows", "1", "lc"),
    ("--copy", "", "lc"),
    ("--forward", "", "lc"),
    ("--software", "", "lcot"),
    ("--sender", "8000", "l"),
    ("--mtu", "1500", "l"),
    ("--candidates", "12", "lco"),
    ("--repeats", "5", "lco"),
    ("--seconds", "1", "lco"),
    ("--journal", "/nowhere/j", "lco"),
    ("--tree", "/nowhere/r.tar", "t"),
    ("--format", "json", "lcort"),
    ("--format", "systemd", "lcort"),
    ("--candidates=3", "--format=json", "lcort"),
    ("--to", "/nowhere", "lcort"),
];

fn holds(ways: &[(char, &[&str], &[&str])], options: &[(&str, &str, &str)]) {
    for (way, before, behind) in ways {
        for (option, value, takers) in options {
            // The option is part of the base command already.
            if before.contains(option) {
                continue;
            }
            let mut words = before.to_vec();
            words.push(option);
            words.extend((!value.is_empty()).then_some(*value));
            words.extend(*behind);
            let output = output_of(&words);
            let name = option.split('=').next().unwrap();
            let is_refused = output.contains(&format!("{name} applies to "))
                || (output.contains("cannot be used with") && output.contains(name));
            assert_eq!(is_refused, !takers.contains(*way), "{words:?}: {output}");
        }
    }
}

#[test]
fn every_option_of_sweep_is_used_or_rejected() {
    holds(&SWEEPS, &OF_SWEEP);
}

#[test]
fn every_option_of_advise_is_used_or_rejected() {
    holds(&ADVICE, &OF_ADVICE);
}

/// New options must be added to the tables.
#[test]
fn the_tables_have_every_option() {
    for (name, table) in [("sweep", &OF_SWEEP[..]), ("advise", &OF_ADVICE)] {
        let help = AFFINITY.success(&[name, "--help"]);
        for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
            let Some(at) = line.find("--") else { continue };
            let option = line[at..].split(|c: char| c.is_whitespace() || ",=[".contains(c)).next().unwrap();
            let is_known = table.iter().any(|(known, ..)| *known == option);
            assert!(is_known || option == "--help", "{name}: {option}");
        }
    }
}

#[test]
fn rejected_options_name_a_remedy() {
    let refused = |words: &str| output_of(&words.split(' ').collect::<Vec<_>>());
    let message = refused("sweep --interface none0 --connect x --mtu 1500");
    assert!(
        message
            .contains("--mtu applies to --lab and --model, not to --connect: vary the MTU of an interface"),
        "{message}"
    );
    let message = refused("sweep --model sandybridge-2x6 --sender 1");
    assert!(message.contains("--sender applies to --lab, not to --model: leave it out"), "{message}");
    let message = refused("advise --interface none0 --repeats 3");
    assert!(message.contains("to measure, add --connect HOST or --lab"), "{message}");
    let message = refused("sweep --model sandybridge-2x6 --pair 1,2 --softirq-share 50");
    assert!(message.contains("--softirq-share divides the cycles of --frame-cycles"), "{message}");
    let message = refused("sweep --lab --vary gro=0,2");
    assert!(message.contains("`gro=0,2`: gro takes 0 and 1\n"), "{message}");
    let message = refused("sweep --lab --vary grow=1");
    assert!(message.contains("`grow=1`: there is no setting `grow`; there are: gro, lro"), "{message}");
    let message = refused("tune --metrics-listen=9871");
    assert!(message.contains("such as 127.0.0.1:9871"), "{message}");
    let message = refused("report /nowhere --lab");
    assert!(message.contains("unexpected argument"), "{message}");
}
