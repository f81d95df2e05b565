//! The table of an experiment: a row for each point that was run, a column for each thing that varies or is measured.
//! Not all that the store knows of a point: only what the experiment asks for.

use crate::campaign::{Campaign, State};
use crate::experiment::{Better, Metric};
use crate::key::Key;
use crate::names::Names;
use crate::setting::Setting;
use crate::store::{Record, Results};
use serde_json::{Map, Value, json};

/// A metric as a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name in the experiment.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Its unit.
    pub unit: String,
    /// Which direction is better.
    pub better: Option<Better>,
    /// Whether this host's speed decides it, so that it is different on every run.
    pub of_host: bool,
}

/// A point that was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The point's key.
    pub key: Key,
    /// The machine's name.
    pub machine: Option<String>,
    /// What varies, in the order of [`Table::parameters`].
    pub settings: Vec<Setting>,
    /// What was measured, in the order of [`Table::metrics`]; `None` where the point failed or the workload does not measure it.
    pub values: Vec<Option<f64>>,
    /// Why there are no values.
    pub failure: Option<String>,
}

/// The table of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The names of what varies.
    pub parameters: Vec<String>,
    /// What was measured.
    pub metrics: Vec<Column>,
    /// The points that were run, in the order of the experiment.
    pub rows: Vec<Row>,
    /// How many points were not run.
    pub missing: usize,
    /// The workload's metrics that no run gave, each with a message that says what there is instead.
    pub unknown: Vec<(String, String)>,
    /// Which of the experiment's published entries are of points that the quick form leaves out.
    pub left_out: Vec<usize>,
    /// What parameters and their values are called.
    pub names: Names,
}

impl Table {
    /// The table of `campaign`, filled from `results`.
    pub fn of(campaign: &Campaign<'_>, results: &Results) -> Self {
        let metrics = campaign.experiment.metrics();
        let parameters =
            campaign.points.first().map(|p| p.varied.iter().map(|(name, _)| name.clone()).collect());
        let run = campaign.points.iter().filter_map(|point| Some((point, results.get(&point.key)?)));
        let rows: Vec<_> = run
            .clone()
            .map(|(point, record)| Row {
                key: point.key.clone(),
                machine: record.machine.clone(),
                settings: point.varied.iter().map(|(_, value)| value.clone()).collect(),
                values: metrics.iter().map(|(name, metric)| metric.value(name, record)).collect(),
                failure: record.failure.as_ref().map(|failure| failure.message.clone()),
            })
            .collect();
        let missing =
            campaign.points.iter().filter(|p| Campaign::state(p, results) == State::Missing).count();
        let unknown = unknown(&metrics, run.map(|(_, record)| record));
        let metrics = metrics.iter().map(|(name, metric)| metric.column(name)).collect();
        let parameters = parameters.unwrap_or_default();
        let (left_out, names) = (left_out(campaign), Names::of(campaign.experiment));
        Self { parameters, metrics, rows, missing, unknown, left_out, names }
    }

    /// The value that `row` has of what varies, or its machine.
    pub fn setting(&self, row: &Row, name: &str) -> Option<Setting> {
        let index = self.parameters.iter().position(|p| p == name);
        let machine = || row.machine.as_deref().filter(|_| name == "machine").map(Setting::from);
        index.map(|index| row.settings[index].clone()).or_else(machine)
    }

    /// The place of the metric called `name`.
    pub fn metric(&self, name: &str) -> Option<usize> {
        self.metrics.iter().position(|metric| metric.name == name)
    }

    /// Every row as an object: key, machine, what varies, what was measured, why it failed.
    pub fn objects(&self) -> Vec<Value> {
        self.rows.iter().map(|row| object(self, row)).collect()
    }

    /// What tells a row from others, in words.
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
    /// Which of the workload's metrics it is, if it is called `name`.
    pub fn source<'a>(&'a self, name: &'a str) -> &'a str {
        self.of.as_deref().unwrap_or(name)
    }

    /// The value in a record of this metric, called `name`.
    pub fn value(&self, name: &str, record: &Record) -> Option<f64> {
        let found = |source: &str| match source.strip_prefix("host.") {
            Some(of_host) => record.host.get(of_host),
            None => record.metrics.get(source),
        };
        let value = found(self.source(name))?;
        let per = self.per.as_deref().map_or(Some(&1.0), found).filter(|per| **per != 0.0)?;
        Some(value / per * self.scale.map_or(1.0, |scale| scale.0))
    }

    fn column(&self, name: &str) -> Column {
        Column {
            name: name.into(),
            title: self.title(name).into(),
            unit: self.unit.clone(),
            better: self.better,
            of_host: [Some(self.source(name)), self.per.as_deref()]
                .into_iter()
                .flatten()
                .any(|source| source.starts_with("host.")),
        }
    }
}

/// Metrics that no successful record has.
fn unknown<'a>(
    metrics: &[(&str, &Metric)],
    records: impl Iterator<Item = &'a Record>,
) -> Vec<(String, String)> {
    let records: Vec<_> = records.filter(|record| record.failure.is_none()).collect();
    let Some(example) = records.first() else { return Vec::new() };
    let absent =
        metrics.iter().filter(|(name, metric)| records.iter().all(|r| metric.value(name, r).is_none()));
    let host = example.host.keys().map(|name| format!("host.{name}"));
    let names: Vec<_> = example.metrics.keys().cloned().chain(host).collect();
    absent
        .map(|(name, metric)| {
            let sources = [Some(metric.source(name)), metric.per.as_deref()];
            let missing = sources.into_iter().flatten().find(|of| !names.iter().any(|name| name == of));
            let source = missing.unwrap_or(metric.source(name));
            let help = crate::read::suggestion(source, names.iter().map(String::as_str), "metric");
            (source.into(), format!("the workload does not measure `{source}`; {help}"))
        })
        .collect()
}

/// A row as an object: key, machine, what varies, what was measured, why it failed.
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
    object.insert("failure".into(), json!(row.failure));
    Value::Object(object)
}
