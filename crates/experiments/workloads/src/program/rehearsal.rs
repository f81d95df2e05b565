//! Rehearses a run: the command sets it up and lists its metrics, without running the program. It does not check the
//! program's arguments.
//!
//! Source: `longma run --measures`; ELF-64 Object File Format 1.5 for the program's interpreter.

use super::root::root;
use super::{
    Files, Program, Start, checkpoint, describe_failure, is_host_failure, patterns, program, run_child,
    unused_keys,
};
use longma_lab::{Failure, FailureKind, Measure, Point, Rehearsal, Setting, Stop};
use longma_topology::Machine;
use serde_json::{Value, json};
use std::time::Duration;

/// Time limit. Setting up takes moments, but longer on a busy host.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Parameters that only affect a simulated run.
const SIMULATION_PARAMETERS: [&str; 11] = [
    "roi",
    "warm",
    "checkpoint",
    "sample",
    "max_instructions",
    "max_time",
    "core",
    "numa",
    "cpu",
    "seed",
    "wire",
];
/// Parameters that do not affect the setup: those of the program itself, and those used only after the run.
const PROGRAM_PARAMETERS: [&str; 5] = ["argument", "arguments", "files", "prints", "status"];
const PT_INTERP: u32 = 3;

impl Program {
    /// Identifies a setup. Of environment variables, only the names count.
    pub(super) fn setup_of(point: &Point) -> String {
        let mut parameters = point.result_parameters();
        PROGRAM_PARAMETERS.iter().for_each(|name| drop(parameters.remove(*name)));
        if let Some(Setting::Named(variables)) = parameters.get_mut("environment") {
            variables.values_mut().for_each(String::clear);
        }
        let machine = point.machine.as_ref().map(|machine| &*machine.digest);
        json!([machine, parameters, program(point), root(point)]).to_string()
    }

    pub(super) fn rehearsal_of(&self, point: &Point) -> Result<Rehearsal, Failure> {
        let printed = patterns(point)?;
        let mut rehearsal = Rehearsal::default();
        let mut measures = self.measures(point)?;
        measures
            .extend(printed.into_iter().map(|(name, _)| Measure::new(name, "", "printed by the program")));
        rehearsal.measures = Some(measures);
        self.simulation_options(point, &mut rehearsal);
        machine_keys(point, &mut rehearsal);
        environment(point, &mut rehearsal)?;
        Ok(rehearsal)
    }

    /// Lists the metrics of the run.
    fn measures(&self, point: &Point) -> Result<Vec<Measure>, Failure> {
        checkpoint::check(point)?;
        let files = Files::new(point)?;
        let root = root(point);
        let mut command = self.command(point, &files, root.as_deref(), Start::SetupOnly);
        let ended = run_child(&mut command, Some(TIME_LIMIT), &Stop::default())?;
        if !ended.status.success() {
            let kind = if is_host_failure(&ended) { FailureKind::Host } else { FailureKind::Refused };
            return Err(Failure { kind, message: describe_failure(&ended, &program(point)) });
        }
        let listed = serde_json::from_str::<Value>(&ended.output).ok();
        let listed = listed.and_then(|listed| serde_json::from_value(listed["measures"].clone()).ok());
        listed.ok_or_else(|| Failure::failed("`longma run --measures` printed no list of measures"))
    }

    fn simulation_options(&self, point: &Point, rehearsal: &mut Rehearsal) {
        let is_given = |name: &&&str| {
            let default = self.parameters.iter().find(|known| known.name == **name);
            default.and_then(|known| known.default.as_ref()) != point.parameter(name)
        };
        let given = SIMULATION_PARAMETERS.iter().filter(is_given).map(ToString::to_string);
        if point.text("level") == "functional" {
            let why = "at level `functional` there is no timing model";
            rehearsal.ineffective.extend(given.map(|name| (name, why.into())));
        } else {
            rehearsal.used.extend(given);
        }
    }
}

/// Reports changed keys of the machine that have no effect.
fn machine_keys(point: &Point, rehearsal: &mut Rehearsal) {
    let Some(changed) = &point.machine else { return };
    let Ok(machine) = Machine::parse("machine", &changed.text) else { return };
    for key in changed.changes.iter() {
        let name = format!("machine.{key}");
        match unused_keys::why(key, point.text("level"), &machine) {
            Some(why) => rehearsal.ineffective.push((name, why.into())),
            None => rehearsal.used.push(name),
        }
    }
}

/// Reports environment variables whose names do not occur in the program's file. A program with a dynamic linker is
/// skipped, because its libraries may use them.
fn environment(point: &Point, rehearsal: &mut Rehearsal) -> Result<(), Failure> {
    let Some(Setting::Named(variables)) = point.parameter("environment") else { return Ok(()) };
    if variables.is_empty() {
        return Ok(());
    }
    if root(point).is_some() {
        // Other programs in the folder may use them.
        rehearsal.used.extend(variables.keys().map(|name| format!("environment.{name}")));
        return Ok(());
    }
    let path = program(point);
    let file = std::fs::read(&path)
        .map_err(|error| Failure::refused(format!("cannot read the program {}: {error}", path.display())))?;
    for name in variables.keys() {
        let entry = format!("environment.{name}");
        if is_dynamic(&file) || has_word(&file, name) {
            rehearsal.used.push(entry);
        } else {
            let why = format!("the program {} does not contain the string `{name}`", point.text("program"));
            rehearsal.ineffective.push((entry, why));
        }
    }
    Ok(())
}

/// Returns whether the bytes contain the word as programs compare it: followed by a zero byte or by `=`.
fn has_word(bytes: &[u8], word: &str) -> bool {
    let word = word.as_bytes();
    bytes
        .windows(word.len() + 1)
        .any(|window| window.starts_with(word) && matches!(window[word.len()], 0 | b'='))
}

/// Returns whether an ELF file requests a dynamic linker. Invalid files are reported elsewhere.
fn is_dynamic(file: &[u8]) -> bool {
    let bytes = |at: usize, count: usize| file.get(at..at.checked_add(count)?);
    let number = |at: usize, count: usize| {
        Some(bytes(at, count)?.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || Some((number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize));
    let Some((start, size, count)) = headers() else { return false };
    let at = |index: usize| start.checked_add(index.checked_mul(size)?);
    (0..count).any(|index| at(index).and_then(|at| number(at, 4)) == Some(u64::from(PT_INTERP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_only_before_a_nul_or_an_equals_sign() {
        let bytes = b"\x7fELF....always\0ring=7 lock.";
        for (word, wanted) in
            [("ways", true), ("ring", true), ("lock", false), ("wayz", false), ("way", false)]
        {
            assert_eq!(has_word(bytes, word), wanted, "{word}");
        }
    }

    #[test]
    fn an_interpreter_is_found_and_no_bytes_make_the_search_panic() {
        let mut file = vec![0u8; 64 + 2 * 56];
        (file[32], file[54], file[56]) = (64, 56, 2);
        assert!(!is_dynamic(&file));
        file[64 + 56] = 3;
        assert!(is_dynamic(&file));
        file[32..40].fill(0xff);
        assert!(!is_dynamic(&file));
        assert!(!is_dynamic(b"\x7fELF"));
    }
}
