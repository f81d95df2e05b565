//! Rehearses an experiment: sets up points without running them, such that each pair of parameter values is tried, to find
//! failures and ineffective parameters early. `experiment::check` checks the file itself.

use crate::experiment::{CheckedExperiment, Experiment, in_order};
use crate::explain::{Explanation, Selection};
use crate::failure::{Failure, FailureKind};
use crate::pairwise;
use crate::point::Point;
use crate::points::PointError;
use crate::read::{Problems, nearest};
use crate::workload::{Measure, Registry, Rehearsal, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Maximum number of setups to try. A sweep that needs more to try each pair of values is tried in part.
const MAX_SETUPS: usize = 256;

/// Results of all rehearsals.
#[derive(Clone, Debug, Default)]
pub struct Rehearsed {
    /// Metrics of the points by name.
    pub measures: BTreeMap<String, Measure>,
    /// Failures, each with an affected point.
    pub wrong: Vec<(String, Failure)>,
    /// Parameters without effect at any point, with the reason.
    pub idle: BTreeMap<String, String>,
    /// Whether the workload reports what it measures.
    pub knows_measures: bool,
    /// Number of points with an inconsistent machine, and the first of them with the reason.
    pub refused: Option<(usize, String, String)>,
    /// Number of setups not tried because the pairs of values need too many.
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
        Self::check_further(path, folder, text, registry, |experiment, problems| {
            check(experiment, registry, version, problems);
        })
    }

    /// Rehearses the points of the full or the quick form. `version` is the version of the models.
    ///
    /// # Errors
    /// If a point's input is missing.
    pub fn rehearse(&self, quick: bool, registry: &Registry, version: &str) -> Result<Rehearsed, PointError> {
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        Ok(all(workload, &self.points(quick, registry, version)?))
    }
}

fn all(workload: &dyn Workload, points: &[Point]) -> Rehearsed {
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
    let mut rehearsed = Rehearsed { untried, refused, ..Rehearsed::default() };
    let (mut busy, mut reported) = (BTreeSet::new(), BTreeSet::new());
    for point in selected.into_iter().map(|index| setups[index]) {
        match workload.rehearse(point) {
            Ok(Rehearsal { measures, idle, used }) => {
                rehearsed.knows_measures |= measures.is_some();
                let measures = measures.into_iter().flatten();
                rehearsed.measures.extend(measures.map(|measure| (measure.name.clone(), measure)));
                rehearsed.idle.extend(idle);
                busy.extend(used);
            }
            Err(failure) if reported.insert(failure.message.clone()) => {
                rehearsed.wrong.push((point.label(), failure));
            }
            Err(_) => {}
        }
    }
    rehearsed.idle.retain(|name, _| !busy.contains(name));
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
    rehearsed: &Rehearsed,
    problems: &mut Problems,
    reported: &mut BTreeSet<String>,
) {
    for (label, failure) in &rehearsed.wrong {
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
    for (name, why) in &rehearsed.idle {
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

/// Reports metrics that no point of any form measures. If no point could be set up, nothing is known about them.
fn check_metrics(experiment: &Experiment, forms: &[(&str, Rehearsed)], problems: &mut Problems) {
    let known: BTreeSet<_> =
        forms.iter().flat_map(|(_, form)| form.measures.keys().map(String::as_str)).collect();
    let is_whole =
        forms.iter().all(|(_, form)| form.knows_measures && form.wrong.is_empty() && form.untried == 0);
    if !is_whole || forms.is_empty() {
        return;
    }
    for (name, metric) in in_order(&experiment.parts().metrics, |metric| metric.marks.at()) {
        let sources = [Some(metric.source(name)), metric.per.as_deref()];
        for source in sources.into_iter().flatten().filter(|source| !known.contains(source)) {
            let message = format!("nothing measures `{source}`");
            let list = format!("`longma experiment metrics {}` lists all", experiment.parts().name);
            let near = nearest(source, known.iter().copied());
            let help = near.map_or(list.clone(), |near| format!("did you mean `{near}`?; {list}"));
            problems.error(metric.marks.at(), message, "this metric", help);
        }
    }
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
