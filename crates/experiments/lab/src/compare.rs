//! Compares published values with the measured ones at the same points, without judging the deviation.

use crate::experiment::{Expected, Experiment, Published};
use crate::key::Key;
use crate::table::{Row, Table, with_runs};
use longma_confidence::Interval;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The largest deviation, as a fraction of the published value, that is considered near.
const NEAR: f64 = 0.1;

/// A published value with the measured one.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Index of the entry in the experiment file. An entry may belong to several points.
    pub entry: usize,
    /// Key of the point; `None` if it was not run.
    pub key: Option<Key>,
    /// Label of the point.
    pub point: String,
    /// Name of the metric.
    pub metric: String,
    /// Unit of the metric.
    pub unit: String,
    /// The published value.
    pub published: Expected,
    /// The measured value; `None` if the point was not run or failed.
    pub ours: Option<f64>,
    /// Its interval, if it is the mean of replicates or of a sampled run.
    pub interval: Option<Interval>,
    /// Number of runs that contribute to the measured value; 0 if there is no value.
    pub runs: usize,
    /// Number of runs that the experiment has at the point; `None` if none of them was run.
    pub of: Option<usize>,
    /// Whether only the quick form has the point, whose run is therefore shorter than those of the whole form.
    pub shortened: bool,
    /// Key of the source in the experiment file.
    pub source: String,
    /// How the value was obtained: "printed", "digitised" or "computed".
    pub read: &'static str,
    /// The note of the entry.
    pub note: Option<String>,
    /// Why the measured value differs, if the entry explains it.
    pub reason: Option<String>,
}

/// How a measured value relates to the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// Within 10 %, or within the bounds.
    Near,
    /// Farther away, with the same sign, or outside the bounds.
    Far,
    /// The opposite sign.
    Opposite,
    /// There is no measured value.
    Absent,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Near => "near",
            Relation::Far => "far",
            Relation::Opposite => "opposite",
            Relation::Absent => "absent",
        })
    }
}

/// Summary of an experiment's comparisons. A published value counts once, whatever the number of points with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Number of published values with a measured one.
    pub compared: usize,
    /// Number of published values without one.
    pub missing: usize,
    /// Number of published values that are compared with the mean of fewer runs than the experiment has.
    pub partial: usize,
    /// Number of points with these values.
    pub points: usize,
    /// Number of published values that the results at all of their points meet: within 10 %, or within the bounds.
    pub near: usize,
    /// Number of published values that have the opposite sign at a point.
    pub opposite: usize,
    /// Measured over published value; `None` unless there is one comparison.
    pub mean_ratio: Option<f64>,
    /// Mean of the absolute relative deviations; `None` if the comparisons are of several metrics, or of several points
    /// with one published value.
    pub mean_deviation: Option<f64>,
    /// Largest absolute relative deviation.
    pub largest_deviation: Option<f64>,
    /// Where the largest deviation is: the metric and its point.
    pub farthest: Option<String>,
}

impl Comparison {
    /// Measured over published value. `None` for bounds.
    pub fn ratio(&self) -> Option<f64> {
        let published = self.published.value().filter(|published| *published != 0.0)?;
        self.ours.map(|ours| ours / published)
    }

    /// Whether the measured value is within the published bounds. `None` for a value.
    pub fn holds(&self) -> Option<bool> {
        self.published.bounds()?;
        self.ours.map(|ours| self.published.exceeded(ours).is_none())
    }

    /// Absolute deviation relative to the published value, or to the exceeded bound. `None` if that is 0.
    pub fn deviation(&self) -> Option<f64> {
        if self.holds() == Some(true) {
            return Some(0.0);
        }
        let exceeded = self.ours.and_then(|ours| self.published.exceeded(ours));
        let nearest = self.published.value().or(exceeded).filter(|value| *value != 0.0)?;
        self.ours.map(|ours| (ours / nearest - 1.0).abs())
    }

    /// The measured value as text, with half of its interval, and the number of its runs if some are missing:
    /// `3.10 ± 0.20 (3 of 10)`.
    pub fn text(&self) -> Option<String> {
        self.ours.map(|ours| with_runs(ours, self.interval, self.of.unwrap_or(self.runs)))
    }

    /// Whether the measured value is the mean of fewer runs than the experiment has.
    pub fn is_partial(&self) -> bool {
        self.ours.is_some() && self.of.is_some_and(|of| self.runs < of)
    }

    /// How the measured value relates to the published one.
    pub fn relation(&self) -> Relation {
        match () {
            () if self.ours.is_none() => Relation::Absent,
            () if self.is_near() => Relation::Near,
            () if self.is_opposite() => Relation::Opposite,
            () => Relation::Far,
        }
    }

    /// Why the measured value differs: the entry's reason, or `unknown`. `None` if the value is near or missing.
    pub fn why(&self) -> Option<&str> {
        let differs = matches!(self.relation(), Relation::Far | Relation::Opposite);
        differs.then(|| self.reason.as_deref().unwrap_or("unknown"))
    }

    /// Whether the published value is met within 10 %, or the bound holds.
    fn is_near(&self) -> bool {
        self.holds().unwrap_or_else(|| self.deviation().is_some_and(|deviation| deviation <= NEAR))
    }

    /// Whether the measured value has the opposite sign of the published one.
    fn is_opposite(&self) -> bool {
        self.published.value().zip(self.ours).is_some_and(|(published, ours)| published * ours < 0.0)
    }
}

/// Compares all published values of `experiment` with the rows of `table`, in the order of the file. Omits points that
/// the quick form leaves out.
pub fn compare(experiment: &Experiment, table: &Table) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    let published = experiment.parts().published.iter().enumerate();
    for (entry, published) in published.filter(|(index, _)| !table.left_out.contains(index)) {
        let rows: Vec<_> = table.rows.iter().filter(|row| is_at(published, table, row)).collect();
        for (metric, _) in experiment.metrics() {
            let Some(expected) = published.expected(metric) else { continue };
            let one = |row: Option<&Row>| comparison((entry, published), expected, table, row, metric);
            if rows.is_empty() {
                comparisons.push(one(None));
            }
            comparisons.extend(rows.iter().map(|row| one(Some(row))));
        }
    }
    comparisons
}

/// Returns whether published values belong to this row's point.
pub(crate) fn is_at(published: &Published, table: &Table, row: &Row) -> bool {
    published.at.iter().all(|(name, value)| table.setting(row, name).as_ref() == Some(value))
}

fn comparison(
    (entry, published): (usize, &Published),
    expected: Expected,
    table: &Table,
    row: Option<&Row>,
    metric: &str,
) -> Comparison {
    let index = table.metric(metric);
    let at =
        || published.at.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    let ours = row.and_then(|row| row.values[index?]);
    let interval = row.and_then(|row| row.interval(index?));
    Comparison {
        entry,
        key: row.map(|row| row.key.clone()),
        point: row.map_or_else(at, |row| table.label(row)),
        metric: metric.into(),
        unit: index.map_or(String::new(), |index| table.metrics[index].unit.clone()),
        published: expected,
        ours,
        interval,
        runs: interval.map_or(usize::from(ours.is_some()), |interval| interval.count),
        of: row.map(|row| row.replicates),
        shortened: row.is_some_and(|row| row.shortened),
        source: published.source.to_string(),
        read: published.read.word(),
        note: published.note.clone(),
        reason: published.reason.clone(),
    }
}

impl Verdict {
    /// Summarizes `comparisons`.
    pub fn of(comparisons: &[Comparison]) -> Self {
        let mut values: BTreeMap<(usize, &str), Vec<&Comparison>> = BTreeMap::new();
        for comparison in comparisons {
            values.entry((comparison.entry, &comparison.metric)).or_default().push(comparison);
        }
        let measured = |all: &&Vec<&Comparison>| all.iter().any(|one| one.ours.is_some());
        let count = |wanted: &dyn Fn(&[&Comparison]) -> bool| {
            values.values().filter(measured).filter(|all| wanted(all)).count()
        };
        let is_near =
            |all: &[&Comparison]| all.iter().filter(|one| one.ours.is_some()).all(|one| one.is_near());
        let is_opposite = |all: &[&Comparison]| all.iter().any(|one| one.is_opposite());
        let is_partial = |all: &[&Comparison]| all.iter().any(|one| one.is_partial());
        let of_one_metric = comparisons.iter().map(|one| &one.metric).collect::<BTreeSet<_>>().len() < 2;
        let is_plain = of_one_metric && values.values().all(|all| all.len() == 1);
        let deviations: Vec<_> = comparisons.iter().filter_map(|one| Some((one.deviation()?, one))).collect();
        let farthest = deviations.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let mean = deviations.iter().map(|(deviation, _)| deviation).sum::<f64>() / deviations.len() as f64;
        let compared = count(&|_| true);
        Self {
            compared,
            missing: values.len() - compared,
            partial: count(&is_partial),
            points: comparisons.iter().filter(|one| one.ours.is_some()).count(),
            near: count(&is_near),
            opposite: count(&is_opposite),
            mean_ratio: if let [one] = comparisons { one.ratio() } else { None },
            mean_deviation: (is_plain && !deviations.is_empty()).then_some(mean),
            largest_deviation: farthest.map(|(deviation, _)| *deviation),
            farthest: farthest.map(|(_, one)| match one.point.is_empty() {
                true => one.metric.clone(),
                false => format!("{}, {}", one.metric, one.point),
            }),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = if self.compared == 1 { "value" } else { "values" };
        write!(f, "{} published {values} compared", self.compared)?;
        if self.points > self.compared {
            write!(f, " with {} points", self.points)?;
        }
        if let (1, Some(ratio)) = (self.compared, self.mean_ratio) {
            write!(f, ": ours is {ratio:.3} of it")?;
        } else if self.compared > 0 {
            write!(f, ": {} within 10 % or their bounds", self.near)?;
            if self.opposite > 0 {
                write!(f, ", {} with the opposite sign", self.opposite)?;
            }
            if let (Some(largest), Some(place)) = (self.largest_deviation, &self.farthest) {
                write!(f, "; the farthest is {:.1} % away ({place})", largest * 100.0)?;
            }
        }
        match self.missing {
            0 => Ok(()),
            1 => f.write_str("; 1 has no result yet"),
            many => write!(f, "; {many} have no result yet"),
        }
    }
}

/// The number of published values with each relation. A value for several points has the worst of their results.
pub fn relations(comparisons: &[Comparison]) -> BTreeMap<Relation, usize> {
    let mut worst: BTreeMap<(usize, &str), Relation> = BTreeMap::new();
    for comparison in comparisons {
        let relation = comparison.relation();
        let entry = worst.entry((comparison.entry, &comparison.metric)).or_insert(relation);
        // One point with a value is enough for a result.
        *entry = match (*entry, relation) {
            (Relation::Absent, other) | (other, Relation::Absent) => other,
            (one, other) => one.max(other),
        };
    }
    let mut counts = BTreeMap::new();
    worst.into_values().for_each(|relation| *counts.entry(relation).or_default() += 1);
    counts
}

/// For each of `comparisons`, which are of the quick form, the value that the whole form (`whole`) measured at its
/// point, as text.
pub fn whole_values(comparisons: &[Comparison], whole: &[Comparison]) -> Vec<Option<String>> {
    let same = |one: &Comparison, other: &Comparison| {
        (one.entry, &one.metric, &one.point) == (other.entry, &other.metric, &other.point)
    };
    let value = |one: &Comparison| whole.iter().find(|other| same(one, other))?.text();
    comparisons.iter().map(value).collect()
}
