//! Rehearses an experiment: sets up points without running them, to find failures and ineffective parameters early. The
//! points cover each pair of parameter values. `experiment::check` checks the file itself.

use crate::experiment::{CheckedExperiment, Experiment, in_file_order};
use crate::explain::{Explanation, Selection};
use crate::failure::{Failure, FailureKind};
use crate::formula::matches;
use crate::pairwise;
use crate::point::Point;
use crate::points::PointError;
use crate::read::{Problems, nearest};
use crate::sensitivity::{Sensitivity, Variations};
use crate::units::{Conversion, Unit};
use crate::workload::{Measure, Registry, Rehearsal, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Maximum number of setups to try. If covering all pairs of values needs more, some pairs remain untried.
const MAX_SETUPS: usize = 256;

/// Results of all rehearsals.
#[derive(Clone, Debug, Default)]
pub struct RehearsalReport {
    /// Metrics of the points by name.
    pub measures: BTreeMap<String, Measure>,
    /// Failures, each with an affected point.
    pub failures: Vec<(String, Failure)>,
    /// Parameters without effect at any point, with the reason.
    pub ineffective: BTreeMap<String, String>,
    /// Whether the workload reports its measures.
    pub knows_measures: bool,
    /// Number of points with an inconsistent machine, and the first of them with the reason.
    pub refused: Option<(usize, String, String)>,
    /// Number of setups not tried because covering all pairs of values needs more than the maximum.
    pub untried: usize,
}

impl Experiment {
    /// Checks like [`Experiment::check`] and then sets up every point without running it: its machine, devices and
    /// program, and whether its metrics are measured. `version` is the version of the models.
    pub fn check_thoroughly(
        path: &Path,
        folder: &Path,
        text: &str,
        registry: &Registry,
        version: &str,
    ) -> CheckedExperiment {
        Self::check_with(path, folder, text, registry, |experiment, problems| {
            check(experiment, registry, version, problems);
        })
    }

    /// Rehearses the points of the full or the quick form. `version` is the version of the models.
    ///
    /// # Errors
    /// If a point's input is missing.
    pub fn rehearse(
        &self,
        quick: bool,
        registry: &Registry,
        version: &str,
    ) -> Result<RehearsalReport, PointError> {
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        Ok(all(workload, &self.points(quick, registry, version)?))
    }
}

fn all(workload: &dyn Workload, points: &[Point]) -> RehearsalReport {
    let mut setups: BTreeMap<String, &Point> = BTreeMap::new();
    let mut refused =
        points.iter().filter_map(|point| Some((point.label(), point.refused.as_ref()?.message.clone())));
    let refused = refused.next().map(|(label, why)| (1 + refused.count(), label, why));
    for point in points.iter().filter(|point| point.refused.is_none()) {
        setups.entry(workload.setup(point)).or_insert(point);
    }
    let setups: Vec<&Point> = setups.into_values().collect();
    let values = |point: &&Point| point.varied.iter().map(|(_, value)| value.to_string()).collect::<Vec<_>>();
    let (selected, complete) = pairwise::select(&setups.iter().map(values).collect::<Vec<_>>(), MAX_SETUPS);
    let untried = if complete { 0 } else { setups.len() - selected.len() };
    let mut rehearsed = RehearsalReport { untried, refused, ..RehearsalReport::default() };
    let (mut effective, mut reported) = (BTreeSet::new(), BTreeSet::new());
    for point in selected.into_iter().map(|index| setups[index]) {
        match workload.rehearse(point) {
            Ok(Rehearsal { measures, ineffective, used }) => {
                rehearsed.knows_measures |= measures.is_some();
                let measures = measures.into_iter().flatten();
                rehearsed.measures.extend(measures.map(|measure| (measure.name.clone(), measure)));
                rehearsed.ineffective.extend(ineffective);
                effective.extend(used);
            }
            Err(failure) if reported.insert(failure.message.clone()) => {
                rehearsed.failures.push((point.label(), failure));
            }
            Err(_) => {}
        }
    }
    rehearsed.ineffective.retain(|name, _| !effective.contains(name));
    rehearsed
}

/// Reports the findings of all rehearsals: of both forms and of the mechanisms.
fn check(experiment: &Experiment, registry: &Registry, version: &str, problems: &mut Problems) {
    let quick = experiment.parts().quick.is_some();
    let mut reported = BTreeSet::new();
    let mut forms = Vec::new();
    for (quick, form) in [(false, ""), (true, "quick form, ")].into_iter().take(1 + usize::from(quick)) {
        match experiment.rehearse(quick, registry, version) {
            Ok(rehearsed) => forms.push((form, rehearsed)),
            Err(error) => missing(experiment, &error, problems, &mut reported),
        }
    }
    if experiment.parts().explain.is_some() {
        match Explanation::plan(experiment, false, &Selection::default(), registry, version) {
            Ok(explanation) => {
                let workload = registry.get(&experiment.parts().workload);
                let points = &explanation.campaign.points;
                forms.extend(workload.map(|workload| ("explained, ", all(workload, points))));
            }
            Err(error) => {
                let at = experiment.parts().marks.key("explain");
                problems.error(at, format!("`longma explain` cannot be run: {error}"), "here", String::new());
            }
        }
    }
    if experiment.parts().sensitivity.is_some()
        && let Err(error) = Sensitivity::plan(experiment, false, &Variations::default(), registry, version)
    {
        let message = format!("`longma experiment sensitivity` cannot be run: {error}");
        problems.error(experiment.parts().marks.key("sensitivity"), message, "here", String::new());
    }
    for (form, rehearsed) in &forms {
        report(experiment, form, rehearsed, problems, &mut reported);
    }
    check_metrics(experiment, &forms, problems);
}

fn missing(
    experiment: &Experiment,
    error: &PointError,
    problems: &mut Problems,
    reported: &mut BTreeSet<String>,
) {
    let message = error.to_string();
    if reported.insert(message.clone()) {
        let name = if matches!(error, PointError::Input(_)) { "program" } else { "machine" };
        problems.error(place(experiment, name), message, "here", String::new());
    }
}

fn report(
    experiment: &Experiment,
    form: &str,
    rehearsed: &RehearsalReport,
    problems: &mut Problems,
    reported: &mut BTreeSet<String>,
) {
    for (label, failure) in &rehearsed.failures {
        if reported.insert(failure.message.clone()) {
            let point = if label.is_empty() { "the point" } else { label };
            let help = format!("{form}{point}: found without running the experiment");
            let at = place(experiment, "parameters");
            match failure.kind {
                FailureKind::Host => problems.warn(at, failure.message.clone(), "not tried", help),
                _ => problems.error(at, failure.message.clone(), "at these", help),
            }
        }
    }
    for (name, why) in &rehearsed.ineffective {
        let message = format!("`{name}` does nothing: {why}");
        if reported.insert(message.clone()) {
            problems.error(place(experiment, name), message, "here", String::new());
        }
    }
    if let Some((points, label, why)) = &rehearsed.refused {
        let message = format!("{form}{points} of the points cannot run: {why}");
        if reported.insert(message.clone()) {
            let help = format!("the first is {label}; they count as failed, and the others run");
            problems.warn(place(experiment, "machine"), message, "with these", help);
        }
    }
    let untried = rehearsed.untried;
    if untried > 0 {
        let message = format!("{form}{untried} configurations were not tried");
        let help = format!("{MAX_SETUPS} are tried, which do not contain each pair of values");
        problems.warn(place(experiment, "sweep"), message, "here", help);
    }
}

/// Reports metrics that no point of any form measures. If no point could be set up, the measures are unknown.
fn check_metrics(experiment: &Experiment, forms: &[(&str, RehearsalReport)], problems: &mut Problems) {
    let known: BTreeSet<_> =
        forms.iter().flat_map(|(_, form)| form.measures.keys().map(String::as_str)).collect();
    let is_whole =
        forms.iter().all(|(_, form)| form.knows_measures && form.failures.is_empty() && form.untried == 0);
    if !is_whole || forms.is_empty() {
        return;
    }
    let metrics = &experiment.parts().metrics;
    for (name, metric) in in_file_order(metrics, |metric| metric.marks.at()) {
        let in_file = |source: &str| metric.formula.is_some() && metrics.contains_key(source);
        let is_known = |source: &str| in_file(source) || known.iter().any(|name| matches(source, name));
        for source in metric.sources(name).iter().filter(|source| !is_known(source)) {
            let message = format!("nothing measures `{source}`");
            let list = format!("`longma experiment metrics {}` lists all", experiment.parts().name);
            let near = nearest(source, known.iter().copied());
            let help = near.map_or(list.clone(), |near| format!("did you mean `{near}`?; {list}"));
            problems.error(metric.marks.at(), message, "this metric", help);
        }
    }
    check_units(experiment, forms, problems);
}

/// Checks the units of the metrics where the units of the workload's measures are known.
fn check_units(experiment: &Experiment, forms: &[(&str, RehearsalReport)], problems: &mut Problems) {
    let metrics = &experiment.parts().metrics;
    let measured = |source: &str| {
        let of_form = |form: &RehearsalReport| {
            let found = form.measures.values().find(|measure| matches(source, &measure.name));
            Unit::parse(&found?.unit)
        };
        forms.iter().find_map(|(_, form)| of_form(form))
    };
    for (name, metric) in in_file_order(metrics, |metric| metric.marks.at()) {
        let Some(to) = Unit::parse(&metric.unit) else { continue };
        let refuse = |message: String, help: String, problems: &mut Problems| {
            problems.error(metric.marks.at(), message, "this metric", help);
        };
        if let Some(formula) = metric.parsed() {
            let unit_of = |source: &str| match metrics.get(source) {
                Some(of_file) => Unit::parse(&of_file.unit),
                None => measured(source),
            };
            match formula.unit(&unit_of) {
                Err(message) => refuse(message, String::new(), problems),
                Ok(Some(unit)) if !unit.is_like(&to) => {
                    let message = format!("the formula of `{name}` does not give {}", metric.unit);
                    refuse(message, "change the unit or the formula".into(), problems);
                }
                Ok(Some(unit)) if !formula.has_number() => {
                    if let Conversion::By(factor) = unit.conversion(&to)
                        && !is_close(factor, 1.0)
                    {
                        let message =
                            format!("the formula of `{name}` gives another unit than {}", metric.unit);
                        refuse(message, format!("multiply it by {factor:e}"), problems);
                    }
                }
                Ok(_) => {}
            }
            continue;
        }
        let per = metric.per.as_deref().map_or(Some(Unit::one()), measured);
        let Some((of, per)) = measured(metric.source(name)).zip(per) else { continue };
        let scale = metric.scale.map_or(1.0, |scale| scale.0);
        match of.times(&per, -1).conversion(&to) {
            Conversion::Impossible => {
                let message = format!("`{}` is not measured in {}", metric.source(name), metric.unit);
                let list = format!("`longma experiment metrics {}` lists all", experiment.parts().name);
                refuse(message, list, problems);
            }
            Conversion::By(factor) if !is_close(factor, scale) => {
                let message = format!("the scale of `{name}` does not give {}", metric.unit);
                refuse(message, format!("write `scale = {factor:e}`"), problems);
            }
            Conversion::By(_) | Conversion::Unknown => {}
        }
    }
}

/// Whether two factors are the same except for rounding.
fn is_close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

/// Position in the file of the parameter called `name`, or of its table.
fn place(experiment: &Experiment, name: &str) -> Range<usize> {
    let parts = experiment.parts();
    let quick = parts.quick.iter();
    let axes = parts.sweep.iter().chain(parts.zip.iter().flatten());
    let axes = axes.chain(quick.flat_map(|quick| quick.sweep.iter().chain(quick.zip.iter().flatten())));
    let axis = axes.into_iter().find(|(known, _)| *known == name).map(|(_, axis)| axis.at());
    let key = if name == "machine" { "machines" } else { "parameters" };
    axis.unwrap_or_else(|| parts.marks.key(key))
}
