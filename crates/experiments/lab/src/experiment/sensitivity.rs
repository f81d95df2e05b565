//! How `longma experiment sensitivity` varies the estimates of an experiment, as the file describes it.

use super::check::{check_metric_names, check_swept};
use super::{Axis, ExperimentFile, Figure};
use crate::read::{Map, Name, Problems, SourcePositions, part};
use crate::setting::Setting;

part! {
    /// How the sensitivity to estimates is measured: one parameter at a time is set to a low and a high value.
    pub struct Variation = "sensitivity" {
        /// Metrics; all if left out.
        metrics: Vec<Name>,
        /// Values of swept parameters. For parameters left out, every value is examined separately.
        at: Map<Setting>,
        /// Varies only estimates whose `machine.PATH` matches one of these patterns, in which `*` is any text; all if left
        /// out.
        estimates: Vec<String>,
        /// The factor for the low value of an estimate without a range; 0.5 if left out.
        low: Option<Figure>,
        /// The factor for the high value of an estimate without a range; 2 if left out.
        high: Option<Figure>,
        /// The low and the high value of a parameter: an estimate of the machine file (`machine.PATH`) or any other parameter.
        ranges: Map<Axis>,
    }
}

impl Variation {
    pub(crate) fn marks(&self) -> &SourcePositions {
        &self.marks
    }
}

/// Checks the table against the rest of the file.
pub(super) fn check(file: &ExperimentFile, problems: &mut Problems) {
    let Some(variation) = &file.sensitivity else { return };
    let names: Vec<_> = variation.metrics.iter().map(|name| (&**name, name.span())).collect();
    check_metric_names(file, &names, problems);
    let at = variation.marks().key("at");
    variation.at.keys().for_each(|name| check_swept(file, name, at.clone(), problems));
    for (name, range) in variation.ranges.iter().filter(|(_, range)| range.values.len() != 2) {
        let message = format!("the range of `{name}` has {} values", range.values.len());
        problems.error(range.at(), message, "here", "give the low and the high value".into());
    }
    let factor = |factor: Option<Figure>, default: f64| factor.map_or(default, |factor| factor.0);
    let (low, high) = (factor(variation.low, 1.0), factor(variation.high, 1.0));
    if low <= 0.0 || low > 1.0 || high < 1.0 {
        let help = "give a `low` between 0 and 1 and a `high` above 1".into();
        problems.error(variation.marks().at(), "a factor has no effect".into(), "these factors", help);
    }
}
