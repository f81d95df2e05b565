//! Sensitivity of an experiment to the estimates of its machine: each estimate is set to a low and a high value while
//! all other parameters keep their values. The runs form a normal campaign.

mod estimates;

pub use estimates::{Estimate, estimates};

use crate::campaign::{Campaign, State};
use crate::experiment::{Experiment, Metric, check_factors};
use crate::formula::matches;
use crate::point::Point;
use crate::points::PointError;
use crate::setting::Setting;
use crate::store::Results;
use crate::workload::Registry;
use estimates::scaled;
use longma_topology::Machine;
use std::collections::{BTreeMap, BTreeSet};

/// Parameters with values, in order.
type Settings = Vec<(String, Setting)>;

/// Settings of an examination, in addition to those of the file.
#[derive(Clone, Debug, Default)]
pub struct Variations {
    /// Metrics; those of the file if empty.
    pub metrics: Vec<String>,
    /// Values of swept parameters.
    pub at: BTreeMap<String, String>,
    /// Patterns of the parameters to vary; those of the file if empty.
    pub estimates: Vec<String>,
    /// The factors for the low and the high value; those of the file if left out.
    pub factors: [Option<f64>; 2],
}

/// An experiment with two points for each estimate.
pub struct Sensitivity<'a> {
    /// The points of all settings.
    pub campaign: Campaign<'a>,
    /// The settings of the other parameters, which are examined independently.
    pub combinations: Vec<Combination>,
    metrics: Vec<String>,
}

/// A combination of values of the swept parameters.
#[derive(Clone, Debug)]
pub struct Combination {
    /// The values.
    pub settings: Settings,
    /// Index of its unchanged point.
    base: usize,
    varied: Vec<Varied>,
}

/// A parameter with the points at its low and its high value.
#[derive(Clone, Debug)]
struct Varied {
    parameter: String,
    value: Option<Setting>,
    source: Option<String>,
    ends: Vec<(Setting, usize)>,
}

/// The values of a metric for a combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Effects {
    /// The value of the unchanged point.
    pub base: f64,
    /// The varied parameters, those with the largest effect first.
    pub effects: Vec<Effect>,
}

/// The effect of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// The parameter.
    pub parameter: String,
    /// Its value in the machine file; `None` for a parameter of the workload that the file does not set.
    pub value: Option<Setting>,
    /// The name of the estimate's source.
    pub source: Option<String>,
    /// Its low and its high value, each with the metric's value there, or why there is none.
    pub ends: Vec<(Setting, Result<f64, String>)>,
}

impl Effect {
    /// The largest difference between two values of the metric, including `base`.
    pub fn span(&self, base: f64) -> f64 {
        let values = self.ends.iter().filter_map(|(_, value)| value.as_ref().ok()).copied().chain([base]);
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        high - low
    }
}

/// Why the sensitivity of an experiment cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum SensitivityError {
    /// Nothing can be varied.
    #[error("{0}")]
    Nothing(String),
    /// The points cannot be enumerated.
    #[error(transparent)]
    Point(#[from] PointError),
}

impl<'a> Sensitivity<'a> {
    /// Enumerates the points: for every combination of the swept parameters, the unchanged one, and two for each
    /// parameter to vary. Parameters that repeat a measurement keep their first value. `version` is the version of the
    /// models.
    ///
    /// # Errors
    /// If a name or a value is unknown, there is nothing to vary, or a point's input is missing.
    pub fn plan(
        experiment: &'a Experiment,
        quick: bool,
        variations: &Variations,
        registry: &Registry,
        version: &str,
    ) -> Result<Self, SensitivityError> {
        let metrics = metrics(experiment, variations)?;
        let factors = factors(experiment, variations)?;
        let patterns = patterns(experiment, variations);
        let mut unmatched: BTreeSet<&str> =
            patterns.iter().flat_map(|all| all.iter().map(String::as_str)).collect();
        let at = fixed_values(experiment, quick, variations)?;
        let ranges = ranges(experiment);
        let is_fixed = |name: &str| at.contains_key(name) || ranges.contains_key(name);
        let (mut points, mut combinations) = (Vec::new(), Vec::new());
        for mut settings in experiment.combinations_except(quick, &is_fixed) {
            settings.extend(at.clone());
            let point = |varied: &Settings, shown: &[(&str, Setting)]| {
                let mut point = experiment.point_at(quick, registry, version, varied)?;
                let shown = shown.iter().map(|(name, value)| (name.to_string(), value.clone()));
                point.varied = settings.iter().cloned().chain(shown).collect();
                Ok::<_, PointError>(point)
            };
            let base = point(&settings, &[])?;
            let text = base.machine.as_ref().map(|machine| machine.text.clone());
            let machine = text.and_then(|text| Machine::parse("machine", &text).ok());
            let base_index = points.len();
            let estimates = machine.as_ref().map(estimates).unwrap_or_default();
            unmatched.retain(|pattern| !estimates.iter().any(|one| matches(pattern, &one.parameter)));
            let parameters = parameters(ranges.clone(), patterns, factors, estimates, &base);
            points.push(base);
            let mut varied = Vec::new();
            for (parameter, value, source, ends) in parameters {
                let mut indices = Vec::new();
                for end in ends {
                    let with: Settings =
                        settings.iter().cloned().chain([(parameter.clone(), end.clone())]).collect();
                    indices.push((end.clone(), points.len()));
                    points.push(point(&with, &[(&parameter, end)])?);
                }
                varied.push(Varied { parameter, value, source, ends: indices });
            }
            combinations.push(Combination { settings, base: base_index, varied });
        }
        if let Some(pattern) = unmatched.first() {
            return Err(SensitivityError::Nothing(format!(
                "there is nothing to vary as `{pattern}`: no such parameter of the machines has a source of the kind `estimate`"
            )));
        }
        if combinations.iter().all(|combination| combination.varied.is_empty()) {
            let name = &experiment.parts().name;
            return Err(SensitivityError::Nothing(format!(
                "{name} has nothing to vary: no machine with a matching source of the kind `estimate`, and no [sensitivity.ranges]"
            )));
        }
        let campaign = Campaign { experiment, points, quick, shortened: BTreeSet::new() };
        Ok(Self { campaign, combinations, metrics })
    }

    /// Number of points that failed, or whose results are missing. Factors that do not give a valid machine are not
    /// counted: nothing can be run with them.
    pub fn failed(&self, results: &Results) -> usize {
        let ranges = ranges(self.campaign.experiment);
        let varied = self.combinations.iter().flat_map(|combination| &combination.varied);
        let by_factor = varied.filter(|one| !ranges.contains_key(&one.parameter)).flat_map(|one| &one.ends);
        let by_factor: BTreeSet<usize> = by_factor.map(|(_, index)| *index).collect();
        let has_failed = |(index, point): &(usize, &Point)| {
            let is_invalid = point.refused.is_some() && by_factor.contains(index);
            !is_invalid && Campaign::state(point, results) != State::Done
        };
        self.campaign.points.iter().enumerate().filter(has_failed).count()
    }

    /// The metrics, in the order of the file.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.metrics.iter().map(String::as_str)
    }

    /// The effects on `metric` for `combination`.
    ///
    /// # Errors
    /// Why the unchanged point has no value.
    pub fn effects(
        &self,
        combination: &Combination,
        metric: &str,
        results: &Results,
    ) -> Result<Effects, String> {
        let metrics = self.campaign.experiment.metrics();
        let of = metrics.iter().find(|(name, _)| *name == metric).map(|(_, metric)| *metric);
        let value = |point: &Point| -> Result<f64, String> {
            let record = results.get(&point.key).ok_or("it has not been run")?;
            if let Some(failure) = &record.failure {
                return Err(failure.message.clone());
            }
            of.and_then(|of| of.value(metric, record)).ok_or_else(|| "there is no such metric".into())
        };
        let base = value(&self.campaign.points[combination.base])?;
        let effect = |varied: &Varied| Effect {
            parameter: varied.parameter.clone(),
            value: varied.value.clone(),
            source: varied.source.clone(),
            ends: varied
                .ends
                .iter()
                .map(|(end, index)| (end.clone(), value(&self.campaign.points[*index])))
                .collect(),
        };
        let mut effects: Vec<Effect> = combination.varied.iter().map(effect).collect();
        effects.sort_by(|a, b| {
            b.span(base).total_cmp(&a.span(base)).then_with(|| a.parameter.cmp(&b.parameter))
        });
        Ok(Effects { base, effects })
    }
}

/// The metrics to examine: those selected, those of the file, or all except formulas over several points.
fn metrics(experiment: &Experiment, variations: &Variations) -> Result<Vec<String>, SensitivityError> {
    let of_file = experiment.metrics();
    let is_known = |name: &str| of_file.iter().any(|(known, _)| *known == name);
    if let Some(unknown) = variations.metrics.iter().find(|name| !is_known(name)) {
        let help = crate::read::suggestion(unknown, of_file.iter().map(|(name, _)| *name), "metric");
        return Err(SensitivityError::Nothing(format!("there is no metric `{unknown}`; {help}")));
    }
    let selected = experiment.parts().sensitivity.iter().flat_map(|table| &table.metrics);
    let mut selected: Vec<String> = selected.map(|name| name.to_string()).collect();
    if !variations.metrics.is_empty() {
        selected = variations.metrics.clone();
    }
    let is_wanted = |(name, metric): &&(&str, &Metric)| match selected.is_empty() {
        true => metric.is_of_one_record(&is_known),
        false => selected.iter().any(|one| one == name),
    };
    Ok(of_file.iter().filter(is_wanted).map(|(name, _)| name.to_string()).collect())
}

/// The values of the swept parameters that do not vary: selected ones, those of the file, and the first one of each
/// parameter that repeats a measurement.
fn fixed_values(
    experiment: &Experiment,
    quick: bool,
    variations: &Variations,
) -> Result<BTreeMap<String, Setting>, SensitivityError> {
    let parts = experiment.parts();
    let mut at = BTreeMap::new();
    for replicate in &parts.replicates {
        let first = experiment.values_of(quick, replicate).into_iter().next();
        at.extend(first.map(|value| (replicate.to_string(), value)));
    }
    at.extend(parts.sensitivity.iter().flat_map(|table| table.at.clone()));
    for (name, value) in &variations.at {
        let taken = experiment.values_of(quick, name);
        let Some(found) = taken.iter().find(|setting| setting.to_string() == *value) else {
            let values: Vec<_> = taken.iter().map(ToString::to_string).collect();
            let help = match values.is_empty() {
                true => format!("`{name}` does not vary"),
                false => format!("it takes {}", values.join(", ")),
            };
            let name_of = &parts.name;
            return Err(SensitivityError::Nothing(format!(
                "no point of {name_of} has {name} = {value}; {help}"
            )));
        };
        at.insert(name.clone(), found.clone());
    }
    Ok(at)
}

/// The ranges of the file.
fn ranges(experiment: &Experiment) -> BTreeMap<String, Vec<Setting>> {
    let ranges = experiment.parts().sensitivity.iter().flat_map(|table| &table.ranges);
    ranges.map(|(name, range)| (name.clone(), range.values.clone())).collect()
}

/// A parameter to vary: its value, its source, and its low and high values.
type Parameter = (String, Option<Setting>, Option<String>, Vec<Setting>);

/// The patterns of the estimates to vary; `None` means all.
fn patterns<'a>(experiment: &'a Experiment, variations: &'a Variations) -> Option<&'a Vec<String>> {
    let of_file = || experiment.parts().sensitivity.as_ref()?.estimates.as_ref();
    Some(&variations.estimates).filter(|given| !given.is_empty()).or_else(of_file)
}

/// The factors for estimates without a range.
fn factors(experiment: &Experiment, variations: &Variations) -> Result<[f64; 2], SensitivityError> {
    let table = experiment.parts().sensitivity.as_ref();
    let of_file = [table.and_then(|t| t.low), table.and_then(|t| t.high)].map(|factor| factor.map(|f| f.0));
    let given = [0, 1].map(|end| variations.factors[end].or(of_file[end]));
    check_factors(given).map_err(SensitivityError::Nothing)
}

/// The parameters to vary at the point `base`, whose machine has these estimates.
fn parameters(
    mut ranges: BTreeMap<String, Vec<Setting>>,
    patterns: Option<&Vec<String>>,
    factors: [f64; 2],
    estimates: Vec<Estimate>,
    base: &Point,
) -> Vec<Parameter> {
    let is_wanted = |name: &str| patterns.is_none_or(|all| all.iter().any(|one| matches(one, name)));
    let mut parameters = Vec::new();
    for Estimate { parameter, value, source } in estimates {
        let range = ranges.remove(&parameter);
        let is_given = range.is_some();
        let ends = range.unwrap_or_else(|| factors.iter().filter_map(|f| scaled(&value, *f)).collect());
        if (is_given || is_wanted(&parameter)) && !ends.is_empty() {
            parameters.push((parameter, Some(value), Some(source), ends));
        }
    }
    // The other parameters are not estimates of the machine file.
    for (parameter, ends) in ranges {
        let value = base.parameter(&parameter).cloned();
        parameters.push((parameter, value, None, ends));
    }
    parameters
}
