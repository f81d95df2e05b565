//! Explaining an experiment: it is run with every subset of its mechanisms, and each one's contribution is worked out.
//! Not the runs themselves: they are a campaign like any other, and their results are kept like any other's.
//! Source: see `shapley`.

mod shapley;

pub use shapley::{Contribution, Game, MOST_MEMBERS};

use crate::campaign::Campaign;
use crate::experiment::{Axis, Experiment, Mechanism, in_order};
use crate::point::Point;
use crate::points::PointError;
use crate::setting::Setting;
use crate::store::Results;
use crate::workload::Registry;
use std::collections::BTreeMap;

/// Parameters with their values, in an order.
type Settings = Vec<(String, Setting)>;

/// A mechanism that is off or on.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// What people call it.
    pub title: String,
    off: Settings,
    on: Settings,
}

/// What of an experiment is explained, beside what its file says.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only these mechanisms; the file's others stay off. Any swept parameter of two values may be named.
    pub mechanisms: Vec<String>,
    /// Values of swept parameters.
    pub at: BTreeMap<String, String>,
}

/// An experiment with a point for every subset of its mechanisms, at each place that is explained.
pub struct Explanation<'a> {
    /// The points of all places.
    pub campaign: Campaign<'a>,
    /// The mechanisms; bit `i` of a subset stands for the `i`-th.
    pub switches: Vec<Switch>,
    /// What is explained, each by itself.
    pub places: Vec<Place>,
}

/// Values of the parameters that are no mechanisms.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The values.
    pub settings: Settings,
    /// Its points in the campaign, by subset.
    points: std::ops::Range<usize>,
}

/// Why an experiment cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// Nothing can be switched.
    #[error(
        "{0} has no mechanisms: add [explain.mechanisms.NAME] with `off` and `on`, sweep over a flag, or name a swept parameter of two values with --mechanism"
    )]
    NoMechanisms(String),
    /// Too many subsets.
    #[error(
        "{0} mechanisms are {many} runs a place; at most {MOST_MEMBERS} mechanisms can be explained: name fewer with --mechanism",
        many = 1u128 << (*.0).min(100)
    )]
    TooMany(usize),
    /// There is no such mechanism.
    #[error("{name} is no mechanism of {experiment}; {help}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The experiment.
        experiment: String,
        /// What was probably meant.
        help: String,
    },
    /// There is no such place.
    #[error("no point of {experiment} has {name} = {value}; {help}")]
    NoPlace {
        /// The experiment.
        experiment: String,
        /// What was asked for.
        name: String,
        /// Its value.
        value: String,
        /// What there is.
        help: String,
    },
    /// The points cannot be counted out.
    #[error(transparent)]
    Point(#[from] PointError),
}

/// Why there is no explanation of a metric at a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    /// A point has not been run.
    #[error("{0} has not been run")]
    Missing(String),
    /// A point failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
    /// A point's workload does not measure it.
    #[error("{0} gave no such metric")]
    Unmeasured(String),
}

impl<'a> Explanation<'a> {
    /// Counts out every subset of the mechanisms at every place. `version` is that of the models.
    ///
    /// # Errors
    /// If there is nothing to switch or too much, or something that a point needs is missing.
    pub fn plan(
        experiment: &'a Experiment,
        quick: bool,
        selection: &Selection,
        registry: &Registry,
        version: &str,
    ) -> Result<Self, ExplainError> {
        let (switches, off) = switches(experiment, selection)?;
        if switches.len() > MOST_MEMBERS {
            return Err(ExplainError::TooMany(switches.len()));
        }
        let at = asked_place(experiment, quick, selection)?;
        let switched = |name: &str| {
            switches.iter().flat_map(|switch| &switch.off).chain(&off).any(|(known, _)| known == name)
        };
        let places = experiment.combinations_except(quick, &|name| switched(name) || at.contains_key(name));
        let (mut points, mut explained) = (Vec::new(), Vec::new());
        for mut settings in places {
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
            explained.push(Place { settings, points: from..points.len() });
        }
        Ok(Self { campaign: Campaign { experiment, points, quick }, switches, places: explained })
    }

    /// The metrics that are explained, in the order of the file.
    pub fn metrics(&self) -> Vec<&str> {
        let wanted = self.campaign.experiment.parts().explain.as_ref().map(|explain| &explain.metrics);
        let is_wanted =
            |name: &str| wanted.is_none_or(|w| w.is_empty() || w.iter().any(|one| &**one == name));
        let metrics = self.campaign.experiment.metrics().into_iter().map(|(name, _)| name);
        metrics.filter(|name| is_wanted(name)).collect()
    }

    /// What `metric` is worth with every subset of the mechanisms at `place`.
    ///
    /// # Errors
    /// The first point without a value.
    pub fn game(&self, place: &Place, metric: &str, results: &Results) -> Result<Game, Gap> {
        let metrics = self.campaign.experiment.metrics();
        let of = metrics.iter().find(|(name, _)| *name == metric).map(|(_, metric)| *metric);
        let value = |point: &Point| {
            let record = results.get(&point.key).ok_or_else(|| Gap::Missing(point.label()))?;
            if let Some(failure) = &record.failure {
                return Err(Gap::Failed(point.label(), failure.message.clone()));
            }
            of.and_then(|of| of.value(metric, record)).ok_or_else(|| Gap::Unmeasured(point.label()))
        };
        let values: Result<Vec<_>, _> =
            self.campaign.points[place.points.clone()].iter().map(value).collect();
        Game::new(values?).ok_or_else(|| Gap::Unmeasured("a point".into()))
    }
}

/// Which mechanisms a subset has, for people.
fn marks(switches: &[Switch], subset: usize) -> impl Iterator<Item = (String, Setting)> {
    let on = move |index: usize| Setting::from(if subset >> index & 1 == 1 { "on" } else { "off" });
    switches.iter().enumerate().map(move |(index, switch)| (switch.name.clone(), on(index)))
}

/// The mechanisms asked for, and what keeps the file's others off.
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
    in_order(&explain.mechanisms, |mechanism| mechanism.marks().at()).into_iter().map(switch).collect()
}

/// The swept parameters that have two values: the first is off, the second on; of flags, `true` is on.
fn swept(experiment: &Experiment) -> Vec<Switch> {
    let switch = |(name, axis): (&str, &Axis)| {
        let [off, on] = axis.values.as_slice() else { return None };
        let turned = (off, on) == (&Setting::Flag(true), &Setting::Flag(false));
        let (off, on) = if turned { (on, off) } else { (off, on) };
        let of = |value: &Setting| vec![(name.to_string(), value.clone())];
        Some(Switch { name: name.into(), title: name.into(), off: of(off), on: of(on) })
    };
    in_order(&experiment.parts().sweep, Axis::at).into_iter().filter_map(switch).collect()
}

impl Switch {
    fn is_flag(&self) -> bool {
        self.off.iter().all(|(_, value)| matches!(value, Setting::Flag(_)))
    }
}

/// The values that the file and the selection give swept parameters; each must be one of the sweep's.
fn asked_place(
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
            return Err(ExplainError::NoPlace { experiment, name, value: value.clone(), help });
        };
        at.insert(name.clone(), found.clone());
    }
    Ok(at)
}
