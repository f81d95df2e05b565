//! Describes which runs a mean leaves out, and why.

use crate::campaign::Campaign;
use crate::compare::Comparison;
use crate::replicates::groups;
use crate::store::Results;
use crate::values::Values;
use std::fmt;

/// A run without a value of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The values of the parameters that repeat the measurement.
    pub run: String,
    /// Why it has no value.
    pub why: Why,
}

/// Why a run has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was not run.
    NotRun,
    /// It failed.
    Failed(String),
    /// The run ended without a value of the metric. A statistic of an event that did not occur is absent.
    Unmeasured,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = &self.run;
        match &self.why {
            Why::NotRun => write!(f, "{run} is not run yet"),
            Why::Failed(message) => write!(f, "{run} failed: {message}"),
            Why::Unmeasured => write!(f, "{run} has no value"),
        }
    }
}

/// The runs left out of the measured value of `comparison`. Empty for a value of all runs, and for a point that was not
/// run.
pub fn lacking(campaign: &Campaign<'_>, results: &Results, comparison: &Comparison) -> Vec<Lacking> {
    if !comparison.is_partial() {
        return Vec::new();
    }
    let points = &campaign.points;
    let is_of = |group: &&Vec<usize>| comparison.key.as_ref() == Some(&points[group[0]].key);
    let groups = groups(campaign);
    let values = Values::of(campaign.experiment, points, results);
    let one = |index: &usize| {
        let point = &points[*index];
        let repeated = point.varied.iter().filter(|(name, _)| campaign.experiment.is_replicate(name));
        let run = repeated.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
        let why = match results.get(&point.key) {
            None => Why::NotRun,
            Some(record) => match &record.failure {
                Some(failure) => Why::Failed(failure.message.clone()),
                None if values.value(*index, &comparison.metric).is_none() => Why::Unmeasured,
                None => return None,
            },
        };
        Some(Lacking { run, why })
    };
    groups.iter().find(is_of).into_iter().flatten().filter_map(one).collect()
}
