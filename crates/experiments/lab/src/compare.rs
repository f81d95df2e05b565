//! Compares published values with the measured ones at the same points, without judging the deviation.

use crate::experiment::{Experiment, Published};
use crate::key::Key;
use crate::table::{Row, Table};

/// A published value with the measured one.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Key of the point; `None` if it was not run.
    pub key: Option<Key>,
    /// Label of the point.
    pub point: String,
    /// Name of the metric.
    pub metric: String,
    /// Unit of the metric.
    pub unit: String,
    /// The published value.
    pub published: f64,
    /// The measured value; `None` if the point was not run or failed.
    pub ours: Option<f64>,
    /// Key of the source in the experiment file.
    pub source: String,
    /// How the value was obtained: "printed", "digitised" or "computed".
    pub read: &'static str,
}

/// Summary of an experiment's comparisons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Number of published values with a measured one.
    pub compared: usize,
    /// Number of published values without one.
    pub missing: usize,
    /// Geometric mean of measured over published values; `None` without comparisons.
    pub mean_ratio: Option<f64>,
    /// Mean of the absolute relative deviations.
    pub mean_deviation: Option<f64>,
    /// Largest absolute relative deviation.
    pub largest_deviation: Option<f64>,
}

impl Comparison {
    /// Measured over published value.
    pub fn ratio(&self) -> Option<f64> {
        self.ours.filter(|_| self.published != 0.0).map(|ours| ours / self.published)
    }

    /// Absolute deviation relative to the published value.
    pub fn deviation(&self) -> Option<f64> {
        self.ratio().map(|ratio| (ratio - 1.0).abs())
    }
}

/// Compares all published values of `experiment` with the rows of `table`, in the order of the file. Omits points that
/// the quick form leaves out.
pub fn compare(experiment: &Experiment, table: &Table) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    let published = experiment.parts().published.iter().enumerate();
    for (_, published) in published.filter(|(index, _)| !table.left_out.contains(index)) {
        let rows: Vec<_> = table.rows.iter().filter(|row| is_at(published, table, row)).collect();
        let order = experiment.metrics();
        for (metric, _) in order.iter().filter(|(name, _)| published.values.contains_key(*name)) {
            if rows.is_empty() {
                comparisons.push(comparison(published, table, None, metric));
            }
            comparisons.extend(rows.iter().map(|row| comparison(published, table, Some(row), metric)));
        }
    }
    comparisons
}

/// Returns whether published values belong to this row's point.
pub(crate) fn is_at(published: &Published, table: &Table, row: &Row) -> bool {
    published.at.iter().all(|(name, value)| table.setting(row, name).as_ref() == Some(value))
}

fn comparison(published: &Published, table: &Table, row: Option<&Row>, metric: &str) -> Comparison {
    let index = table.metric(metric);
    let at =
        || published.at.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    Comparison {
        key: row.map(|row| row.key.clone()),
        point: row.map_or_else(at, |row| table.label(row)),
        metric: metric.into(),
        unit: index.map_or(String::new(), |index| table.metrics[index].unit.clone()),
        published: published.values[metric].0,
        ours: row.and_then(|row| row.values[index?]),
        source: published.source.to_string(),
        read: published.read.word(),
    }
}

impl Verdict {
    /// Summarizes `comparisons`.
    pub fn of(comparisons: &[Comparison]) -> Self {
        let ratios: Vec<_> = comparisons.iter().filter_map(Comparison::ratio).collect();
        let mean = |values: Vec<f64>| {
            let count = values.len() as f64;
            (count > 0.0).then(|| values.into_iter().sum::<f64>() / count)
        };
        let positive = ratios.iter().filter(|ratio| **ratio > 0.0);
        let deviations: Vec<_> = comparisons.iter().filter_map(Comparison::deviation).collect();
        Self {
            compared: ratios.len(),
            missing: comparisons.len() - ratios.len(),
            mean_ratio: mean(positive.map(|ratio| ratio.ln()).collect()).map(f64::exp),
            largest_deviation: deviations.iter().copied().reduce(f64::max),
            mean_deviation: mean(deviations),
        }
    }
}
