//! The result table of an experiment: a row per point with a record, and a column per varying parameter and per metric.

use crate::campaign::{Campaign, State};
use crate::estimate::Estimate;
use crate::experiment::{Better, Metric};
use crate::formula::matches;
use crate::key::Key;
use crate::names::Names;
use crate::number::number;
use crate::setting::Setting;
use crate::store::{Record, Results};
use crate::values::Values;
use longma_confidence::Interval;
use serde_json::{Map, Value, json};

/// A metric as a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name in the experiment.
    pub name: String,
    /// Title.
    pub title: String,
    /// Unit.
    pub unit: String,
    /// Which direction is better.
    pub better: Option<Better>,
    /// Whether it depends on the host's speed and therefore differs on every run.
    pub depends_on_host: bool,
}

/// A point with a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Key of the point.
    pub key: Key,
    /// Name of the machine.
    pub machine: Option<String>,
    /// Values of the varying parameters, in the order of [`Table::parameters`].
    pub settings: Vec<Setting>,
    /// Values of the metrics, in the order of [`Table::metrics`]; `None` if the point failed or the workload does not
    /// measure it.
    pub values: Vec<Option<f64>>,
    /// The intervals of the values, if the row is the mean of several points (see [`Table::summarized`]) or of a sampled
    /// run. Otherwise empty.
    pub intervals: Vec<Option<Interval>>,
    /// Number of points that the row combines: 1, or the number of replicates. A value is the mean of fewer runs if
    /// some failed or have not run yet.
    pub replicates: usize,
    /// Why there are no values.
    pub failure: Option<String>,
    /// Whether only the quick form has this point. Its run is shorter than those that published values refer to.
    pub shortened: bool,
}

impl Row {
    /// The interval of the metric with this index, if it has one.
    pub fn interval(&self, metric: usize) -> Option<Interval> {
        self.intervals.get(metric).copied().flatten()
    }

    /// The value of the metric with this index as text, with half of its interval, and the number of its runs if some are
    /// missing: `3.10 ± 0.20 (3 of 10)`. A dash if there is none.
    pub fn text(&self, metric: usize) -> String {
        let interval = self.interval(metric);
        self.values[metric].map_or("-".into(), |value| with_runs(value, interval, self.replicates))
    }
}

/// A value as text, with half of its interval if that is known, and the number of its runs if it is the mean of fewer
/// than `replicates`: `3.10 ± 0.20 (3 of 10)`.
pub(crate) fn with_runs(value: f64, interval: Option<Interval>, replicates: usize) -> String {
    let text = with_interval(value, interval);
    match interval.filter(|interval| interval.count < replicates) {
        Some(interval) => format!("{text} ({} of {replicates})", interval.count),
        None => text,
    }
}

/// A value as text, with half of its interval if that is known: `3.10 ± 0.20`.
pub(crate) fn with_interval(value: f64, interval: Option<Interval>) -> String {
    // A difference in the last bits is a rounding error.
    const ROUNDING: f64 = 1e-12;
    match interval.and_then(|interval| interval.half) {
        Some(half) if half <= value.abs() * ROUNDING => format!("{} ± 0", number(value)),
        Some(half) => format!("{} ± {}", number(value), number(half)),
        None => number(value),
    }
}

/// The result table of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Names of the varying parameters.
    pub parameters: Vec<String>,
    /// The metrics.
    pub metrics: Vec<Column>,
    /// Points with a record, in the order of the experiment.
    pub rows: Vec<Row>,
    /// Number of points without a record.
    pub missing: usize,
    /// Number of points that failed. A row of several points has no failure unless all of them failed.
    pub failed: usize,
    /// Metrics that no run measured, each with a message about the available ones.
    pub unknown: Vec<(String, String)>,
    /// Indices of the published entries whose points the quick form leaves out.
    pub left_out: Vec<usize>,
    /// Display names.
    pub names: Names,
}

impl Table {
    /// Builds the table of `campaign` from `results`.
    pub fn of(campaign: &Campaign<'_>, results: &Results) -> Self {
        let metrics = campaign.experiment.metrics();
        let parameters =
            campaign.points.first().map(|p| p.varied.iter().map(|(name, _)| name.clone()).collect());
        let run = campaign.points.iter().filter_map(|point| Some((point, results.get(&point.key)?)));
        let values = Values::of(campaign.experiment, &campaign.points, results);
        let numbered = campaign.points.iter().enumerate();
        let recorded = numbered.filter_map(|(at, point)| Some((at, point, results.get(&point.key)?)));
        let rows: Vec<_> = recorded
            .map(|(at, point, record)| {
                let estimates: Vec<_> = metrics.iter().map(|(name, _)| values.estimate(at, name)).collect();
                let mut intervals: Vec<_> =
                    estimates.iter().map(|estimate| estimate.as_ref().and_then(Estimate::interval)).collect();
                if intervals.iter().all(Option::is_none) {
                    intervals = Vec::new();
                }
                Row {
                    key: point.key.clone(),
                    machine: record.machine.clone(),
                    settings: point.varied.iter().map(|(_, value)| value.clone()).collect(),
                    values: estimates.iter().map(|one| one.as_ref().map(|one| one.value)).collect(),
                    intervals,
                    replicates: 1,
                    failure: record.failure.as_ref().map(|failure| failure.message.clone()),
                    shortened: campaign.shortened.contains(&point.key),
                }
            })
            .collect();
        let count = |state| campaign.points.iter().filter(|p| Campaign::state(p, results) == state).count();
        let (missing, failed) = (count(State::Missing), count(State::Failed));
        let unknown = unknown(&metrics, run.map(|(_, record)| record));
        let metrics = metrics.iter().map(|(name, metric)| metric.column(name)).collect();
        let parameters = parameters.unwrap_or_default();
        let (left_out, names) = (left_out(campaign), Names::of(campaign.experiment));
        Self { parameters, metrics, rows, missing, failed, unknown, left_out, names }
    }

    /// The value of a varying parameter, or the machine, in `row`.
    pub fn setting(&self, row: &Row, name: &str) -> Option<Setting> {
        let index = self.parameters.iter().position(|p| p == name);
        let machine = || row.machine.as_deref().filter(|_| name == "machine").map(Setting::from);
        index.map(|index| row.settings[index].clone()).or_else(machine)
    }

    /// Index of the metric called `name`.
    pub fn metric(&self, name: &str) -> Option<usize> {
        self.metrics.iter().position(|metric| metric.name == name)
    }

    /// All rows as JSON objects: key, machine, varying parameters, metrics, the halves of their intervals, failure.
    pub fn objects(&self) -> Vec<Value> {
        self.rows.iter().map(|row| object(self, row)).collect()
    }

    /// Label of a row.
    pub fn label(&self, row: &Row) -> String {
        self.names.label(self.parameters.iter().zip(&row.settings))
    }
}

fn left_out(campaign: &Campaign<'_>) -> Vec<usize> {
    if !campaign.quick {
        return Vec::new();
    }
    let published = campaign.experiment.parts().published.iter().enumerate();
    let absent = published.filter(|(_, p)| !campaign.points.iter().any(|point| p.is_of(point)));
    absent.map(|(index, _)| index).collect()
}

impl Metric {
    fn column(&self, name: &str) -> Column {
        Column {
            name: name.into(),
            title: self.title(name).into(),
            unit: self.unit.clone(),
            better: self.better,
            depends_on_host: self.sources(name).iter().any(|source| source.starts_with("host.")),
        }
    }
}

/// Sources of metrics that no successful record contains, each with a message about the available ones.
fn unknown<'a>(
    metrics: &[(&str, &Metric)],
    records: impl Iterator<Item = &'a Record>,
) -> Vec<(String, String)> {
    let records: Vec<_> = records.filter(|record| record.failure.is_none()).collect();
    let Some(example) = records.first() else { return Vec::new() };
    let host = example.host.keys().map(|name| format!("host.{name}"));
    let names: Vec<_> = example.metrics.keys().cloned().chain(host).collect();
    let in_file = |source: &str| metrics.iter().any(|(name, _)| *name == source);
    let mut absent = Vec::new();
    for (name, metric) in metrics {
        let is_formula = metric.formula.is_some();
        if !is_formula && records.iter().any(|record| metric.value(name, record).is_some()) {
            continue;
        }
        let sources = metric.sources(name);
        let missing =
            |of: &&String| !(names.iter().any(|name| matches(of, name)) || is_formula && in_file(of));
        let source = match (sources.iter().find(missing), is_formula) {
            (Some(source), _) => source.clone(),
            (None, true) => continue,
            (None, false) => metric.source(name).into(),
        };
        let help = crate::read::suggestion(&source, names.iter().map(String::as_str), "metric");
        let message = format!("the workload does not measure `{source}`; {help}");
        absent.push((source, message));
    }
    absent
}

/// A row as a JSON object: key, machine, varying parameters, metrics (with half of the interval, if they have one, as
/// `NAME.half`), failure.
pub(crate) fn object(table: &Table, row: &Row) -> Value {
    let mut object = Map::new();
    object.insert("key".into(), json!(row.key));
    object.insert("machine".into(), json!(row.machine));
    let settings = table.parameters.iter().zip(&row.settings).filter(|(name, _)| *name != "machine");
    settings.for_each(|(name, value)| drop(object.insert(name.clone(), json!(value))));
    table
        .metrics
        .iter()
        .zip(&row.values)
        .for_each(|(m, value)| drop(object.insert(m.name.clone(), json!(value))));
    let halves = (0..table.metrics.len()).filter_map(|index| Some((index, row.interval(index)?.half?)));
    halves.for_each(|(index, half)| {
        object.insert(format!("{}.half", table.metrics[index].name), json!(half));
    });
    object.insert("failure".into(), json!(row.failure));
    Value::Object(object)
}
