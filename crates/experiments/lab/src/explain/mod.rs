//! Explains an experiment: runs it with every subset of its mechanisms and computes the contribution of each mechanism.
//! The runs form a normal campaign.

mod shapley;

pub use shapley::{Contribution, Game, MAX_MECHANISMS};

use crate::campaign::Campaign;
use crate::experiment::{Axis, Experiment, Mechanism, Metric, in_file_order};
use crate::point::Point;
use crate::points::PointError;
use crate::setting::Setting;
use crate::store::Results;
use crate::workload::Registry;
use std::collections::{BTreeMap, BTreeSet};

/// Parameters with values, in order.
type Settings = Vec<(String, Setting)>;

/// A mechanism that can be off or on.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Name.
    pub name: String,
    /// Title for people.
    pub title: String,
    off: Settings,
    on: Settings,
}

/// Settings of an explanation, in addition to those of the file.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Mechanisms to explain, by name; all if empty. The remaining mechanisms of the file stay off. If the file has no
    /// mechanisms, the names are those of swept parameters with two values.
    pub mechanisms: Vec<String>,
    /// Values of swept parameters.
    pub at: BTreeMap<String, String>,
}

/// An experiment with a point for every subset of its mechanisms in each context.
pub struct Explanation<'a> {
    /// The points of all contexts.
    pub campaign: Campaign<'a>,
    /// The mechanisms. Bit `i` of a subset represents the `i`-th.
    pub switches: Vec<Switch>,
    /// The contexts, which are explained independently.
    pub contexts: Vec<Context>,
}

/// A combination of values of the parameters that are not mechanisms.
#[derive(Clone, Debug, PartialEq)]
pub struct Context {
    /// The values.
    pub settings: Settings,
    /// Its points in the campaign, by subset.
    points: std::ops::Range<usize>,
}

/// Why an experiment cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no mechanism.
    #[error(
        "{0} has no mechanisms: add [explain.mechanisms.NAME] with `off` and `on`, sweep over a flag, or \
            name a swept parameter that has two values with --mechanism"
    )]
    NoMechanisms(String),
    /// There are too many subsets.
    #[error(
        "{0} mechanisms need {many} runs per point; at most {MAX_MECHANISMS} mechanisms can be explained: \
            name fewer with --mechanism",
        many = 1u128 << (*.0).min(100)
    )]
    TooMany(usize),
    /// There is no such mechanism.
    #[error("{name} is not a mechanism of {experiment}; {help}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The experiment.
        experiment: String,
        /// A suggestion.
        help: String,
    },
    /// No context has the selected values.
    #[error("no point of {experiment} has {name} = {value}; {help}")]
    NoContext {
        /// The experiment.
        experiment: String,
        /// The requested parameter.
        name: String,
        /// The requested value.
        value: String,
        /// The available values.
        help: String,
    },
    /// The points cannot be enumerated.
    #[error(transparent)]
    Point(#[from] PointError),
}

/// Why a metric cannot be explained in a context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingValue {
    /// A point has not been run.
    #[error("{0} has not been run")]
    Missing(String),
    /// A point failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
    /// A point's workload does not measure the metric.
    #[error("{0} reported no such metric")]
    Unmeasured(String),
}

impl<'a> Explanation<'a> {
    /// Enumerates every subset of the mechanisms in every context. `version` is the version of the models.
    ///
    /// # Errors
    /// If there are no mechanisms or too many, or a point's input is missing.
    pub fn plan(
        experiment: &'a Experiment,
        quick: bool,
        selection: &Selection,
        registry: &Registry,
        version: &str,
    ) -> Result<Self, ExplainError> {
        let (switches, off) = switches(experiment, selection)?;
        if switches.len() > MAX_MECHANISMS {
            return Err(ExplainError::TooMany(switches.len()));
        }
        let at = selected_context(experiment, quick, selection)?;
        let switched = |name: &str| {
            switches.iter().flat_map(|switch| &switch.off).chain(&off).any(|(known, _)| known == name)
        };
        let contexts = experiment.combinations_except(quick, &|name| switched(name) || at.contains_key(name));
        let (mut points, mut explained) = (Vec::new(), Vec::new());
        for mut settings in contexts {
            settings.extend(at.clone());
            let from = points.len();
            for subset in 0..1usize << switches.len() {
                let of = |(index, switch): (usize, &Switch)| {
                    if subset >> index & 1 == 1 { switch.on.clone() } else { switch.off.clone() }
                };
                let chosen = switches.iter().enumerate().flat_map(of);
                let varied: Settings = settings.iter().cloned().chain(off.clone()).chain(chosen).collect();
                let mut point = experiment.point_at(quick, registry, version, &varied)?;
                point.varied = settings.iter().cloned().chain(marks(&switches, subset)).collect();
                points.push(point);
            }
            explained.push(Context { settings, points: from..points.len() });
        }
        let shortened = BTreeSet::new();
        let campaign = Campaign { experiment, points, quick, shortened };
        Ok(Self { campaign, switches, contexts: explained })
    }

    /// Metrics to explain, in the order of the file: those that it selects, or all except formulas over several points.
    pub fn metrics(&self) -> Vec<&str> {
        let explain = self.campaign.experiment.parts().explain.as_ref();
        let selected = explain.map(|explain| &explain.metrics).filter(|selected| !selected.is_empty());
        let of_file = self.campaign.experiment.metrics();
        let is_known = |name: &str| of_file.iter().any(|(known, _)| *known == name);
        let is_wanted = |name: &str, metric: &Metric| match selected {
            Some(selected) => selected.iter().any(|one| &**one == name),
            None => metric.is_of_one_record(&is_known),
        };
        of_file.iter().filter(|(name, metric)| is_wanted(name, metric)).map(|(name, _)| *name).collect()
    }

    /// Values of `metric` for every subset of the mechanisms at `context`.
    ///
    /// # Errors
    /// The first point without a value.
    pub fn game(&self, context: &Context, metric: &str, results: &Results) -> Result<Game, MissingValue> {
        let metrics = self.campaign.experiment.metrics();
        let of = metrics.iter().find(|(name, _)| *name == metric).map(|(_, metric)| *metric);
        let value = |point: &Point| {
            let record = results.get(&point.key).ok_or_else(|| MissingValue::Missing(point.label()))?;
            if let Some(failure) = &record.failure {
                return Err(MissingValue::Failed(point.label(), failure.message.clone()));
            }
            of.and_then(|of| of.value(metric, record)).ok_or_else(|| MissingValue::Unmeasured(point.label()))
        };
        let values: Result<Vec<_>, _> =
            self.campaign.points[context.points.clone()].iter().map(value).collect();
        Game::new(values?).ok_or_else(|| MissingValue::Unmeasured("a point".into()))
    }
}

/// Which mechanisms of a subset are on, for labels.
fn marks(switches: &[Switch], subset: usize) -> impl Iterator<Item = (String, Setting)> {
    let on = move |index: usize| Setting::from(if subset >> index & 1 == 1 { "on" } else { "off" });
    switches.iter().enumerate().map(move |(index, switch)| (switch.name.clone(), on(index)))
}

/// The selected mechanisms, and the settings that keep the remaining mechanisms of the file off.
fn switches(experiment: &Experiment, selection: &Selection) -> Result<(Vec<Switch>, Settings), ExplainError> {
    let name = || experiment.parts().name.clone();
    let (declared, swept) = (declared(experiment), swept(experiment));
    let known = if declared.is_empty() { &swept } else { &declared };
    if selection.mechanisms.is_empty() {
        let all: Vec<_> = known.iter().filter(|s| !declared.is_empty() || s.is_flag()).cloned().collect();
        return if all.is_empty() { Err(ExplainError::NoMechanisms(name())) } else { Ok((all, Vec::new())) };
    }
    let mut chosen: Vec<Switch> = Vec::new();
    for wanted in &selection.mechanisms {
        match known.iter().find(|switch| switch.name == *wanted) {
            Some(switch) if !chosen.contains(switch) => chosen.push(switch.clone()),
            Some(_) => {}
            None => {
                let names = known.iter().map(|switch| switch.name.as_str());
                let help = crate::read::suggestion(wanted, names, "mechanism");
                return Err(ExplainError::Unknown { name: wanted.clone(), experiment: name(), help });
            }
        }
    }
    let off = declared.iter().filter(|switch| !chosen.contains(switch)).flat_map(|switch| switch.off.clone());
    let off = off.collect();
    Ok((chosen, off))
}

/// The mechanisms that the file declares.
fn declared(experiment: &Experiment) -> Vec<Switch> {
    let Some(explain) = &experiment.parts().explain else { return Vec::new() };
    let settings = |map: &BTreeMap<String, Setting>| map.clone().into_iter().collect();
    let switch = |(name, mechanism): (&str, &Mechanism)| Switch {
        name: name.into(),
        title: mechanism.title.clone().unwrap_or_else(|| name.into()),
        off: settings(&mechanism.off),
        on: settings(&mechanism.on),
    };
    in_file_order(&explain.mechanisms, |mechanism| mechanism.marks().at()).into_iter().map(switch).collect()
}

/// Swept parameters with two values. The first value is off and the second on; for flags, `true` is on.
fn swept(experiment: &Experiment) -> Vec<Switch> {
    let switch = |(name, axis): (&str, &Axis)| {
        let [off, on] = axis.values.as_slice() else { return None };
        let reversed = (off, on) == (&Setting::Flag(true), &Setting::Flag(false));
        let (off, on) = if reversed { (on, off) } else { (off, on) };
        let of = |value: &Setting| vec![(name.to_string(), value.clone())];
        Some(Switch { name: name.into(), title: name.into(), off: of(off), on: of(on) })
    };
    in_file_order(&experiment.parts().sweep, Axis::at).into_iter().filter_map(switch).collect()
}

impl Switch {
    fn is_flag(&self) -> bool {
        self.off.iter().all(|(_, value)| matches!(value, Setting::Flag(_)))
    }
}

/// Values that the file and the selection assign to swept parameters. Each must occur in the sweep.
fn selected_context(
    experiment: &Experiment,
    quick: bool,
    selection: &Selection,
) -> Result<BTreeMap<String, Setting>, ExplainError> {
    let mut at = experiment.parts().explain.as_ref().map(|e| e.at.clone()).unwrap_or_default();
    for (name, value) in &selection.at {
        let taken = experiment.values_of(quick, name);
        let found = taken.iter().find(|setting| setting.to_string() == *value);
        let Some(found) = found else {
            let values: Vec<_> = taken.iter().map(ToString::to_string).collect();
            let help = if values.is_empty() {
                format!("`{name}` does not vary")
            } else {
                format!("it takes {}", values.join(", "))
            };
            let (experiment, name) = (experiment.parts().name.clone(), name.clone());
            return Err(ExplainError::NoContext { experiment, name, value: value.clone(), help });
        };
        at.insert(name.clone(), found.clone());
    }
    Ok(at)
}
