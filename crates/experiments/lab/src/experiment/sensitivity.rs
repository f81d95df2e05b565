//! How `longma experiment sensitivity` varies the estimates of an experiment, as the file describes it.

use super::check::{MAX_EDITS, check_metric_names, check_place, machine_axes};
use super::sweep::combinations;
use super::{Axis, ExperimentFile, Figure};
use crate::machines::{edit_machine, is_of_machine, machine_edits};
use crate::read::{Map, Name, Problems, SourcePositions, part};
use crate::setting::Setting;
use longma_topology::Machine;

/// The factors for estimates without a range.
const FACTORS: [f64; 2] = [0.5, 2.0];

part! {
    /// How the sensitivity to estimates is measured: one parameter at a time is set to a low and a high value.
    pub struct Variation = "sensitivity" {
        /// Metrics; all if left out.
        metrics: Vec<Name>,
        /// Values of swept parameters. For parameters left out, every value is examined separately.
        at: Map<Setting>,
        /// Varies only estimates whose `machine.PATH` matches one of these patterns, in which `*` is any text; all if
        /// left out, none if empty.
        estimates: Option<Vec<String>>,
        /// The factor for the low value of an estimate without a range; 0.5 if left out.
        low: Option<Figure>,
        /// The factor for the high value of an estimate without a range; 2 if left out.
        high: Option<Figure>,
        /// The low and the high value of a parameter: an estimate of the machine file (`machine.PATH`) or any other
        /// parameter.
        ranges: Map<Axis>,
    }
}

impl Variation {
    pub(crate) fn marks(&self) -> &SourcePositions {
        &self.marks
    }
}

/// Checks the table against the rest of the file. `machines` are those of the file that can be opened.
pub(super) fn check(file: &ExperimentFile, machines: &[Machine], problems: &mut Problems) {
    let Some(variation) = &file.sensitivity else { return };
    let names: Vec<_> = variation.metrics.iter().map(|name| (&**name, name.span())).collect();
    check_metric_names(file, &names, problems);
    let at = variation.marks().key("at");
    variation.at.iter().for_each(|place| check_place(file, place, at.clone(), problems));
    for (name, range) in &variation.ranges {
        if let Err((message, help)) = check_range(name, &range.values) {
            problems.error(range.at(), message, "here", help);
        }
    }
    check_machine_ranges(file, variation, machines, problems);
    if variation.estimates.as_ref().is_some_and(Vec::is_empty) && variation.ranges.is_empty() {
        let help = "name patterns such as \"machine.caches.*\", or give `ranges`".into();
        problems.error(variation.marks().key("estimates"), "nothing is to be varied".into(), "here", help);
    }
    if let Err(message) = check_factors([variation.low, variation.high].map(|one| one.map(|one| one.0))) {
        problems.error(variation.marks().at(), message, "these factors", String::new());
    }
}

/// Checks the low and the high value of the parameter `name`. The error has a message and help.
fn check_range(name: &str, values: &[Setting]) -> Result<(), (String, String)> {
    let [low, high] = values else {
        let message = format!("the range of `{name}` has {} values", values.len());
        return Err((message, "give the low and the high value".into()));
    };
    if low == high {
        return Err((format!("the range of `{name}` has twice the same value"), "give two values".into()));
    }
    match low.amount().zip(high.amount()) {
        Some((low_number, high_number)) if low_number > high_number => {
            let message = format!("the low value of `{name}`, {low}, is above the high one, {high}");
            Err((message, "give the low value first".into()))
        }
        _ => Ok(()),
    }
}

/// Checks the factors for the low and the high value; those left out have their defaults.
///
/// # Errors
/// What is wrong, and what to write.
pub(crate) fn check_factors(factors: [Option<f64>; 2]) -> Result<[f64; 2], String> {
    let [low, high] = [factors[0].unwrap_or(FACTORS[0]), factors[1].unwrap_or(FACTORS[1])];
    if low > 0.0 && low <= 1.0 && high >= 1.0 && low < high {
        return Ok([low, high]);
    }
    Err(format!(
        "the factors {low} and {high} do not enclose 1: give a `low` between 0 and 1 and a `high` above 1"
    ))
}

/// Reports ranges of machine keys that no machine accepts: the key is unknown, or the value has another type or unit.
fn check_machine_ranges(
    file: &ExperimentFile,
    variation: &Variation,
    machines: &[Machine],
    problems: &mut Problems,
) {
    let fixed: Vec<_> = file.parameters.iter().chain(&variation.at).collect();
    let axes = machine_axes(file, None);
    for (name, range) in variation.ranges.iter().filter(|(name, _)| is_of_machine(name)) {
        if name == "machine" {
            let help = "add it to `machines`".into();
            problems.error(range.at(), "`machine` has no low and high value".into(), "here", help);
            continue;
        }
        for value in &range.values {
            let mut errors = combinations(&axes).into_iter().take(MAX_EDITS).flat_map(|varied| {
                let mut edits = machine_edits(&fixed, &varied);
                edits.extend(machine_edits(&fixed[file.parameters.len()..], &[]));
                edits.extend(machine_edits(&[(name, value)], &[]));
                machines.iter().map(move |machine| edit_machine(machine, &edits).err()).collect::<Vec<_>>()
            });
            let Some(Some(message)) = errors.next() else { continue };
            if errors.all(|error| error.is_some()) {
                problems.error(range.at(), message, "this range", String::new());
                break;
            }
        }
    }
}
