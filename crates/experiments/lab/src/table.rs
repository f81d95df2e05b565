//! The result table of an experiment: a row per point with a record, and a column per varying parameter and per metric.

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
    /// Name in the experiment.
    pub name: String,
    /// Title.
    pub title: String,
    /// Unit.
    pub unit: String,
    /// Which direction is better.
    pub better: Option<Better>,
    /// Whether it depends on the host's speed and therefore differs on every run.
    pub of_host: bool,
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
    /// Why there are no values.
    pub failure: Option<String>,
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

    /// All rows as JSON objects: key, machine, varying parameters, metrics, failure.
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
    /// The workload's metric for this metric, which is called `name`.
    pub fn source<'a>(&'a self, name: &'a str) -> &'a str {
        self.of.as_deref().unwrap_or(name)
    }

    /// The value of this metric, called `name`, in a record.
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

/// Metrics that no successful record contains.
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

/// A row as a JSON object: key, machine, varying parameters, metrics, failure.
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
