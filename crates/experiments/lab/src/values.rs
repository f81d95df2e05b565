//! The values of metrics at the points of a campaign. A metric is a measured value, possibly scaled, or a formula over
//! other metrics.

use crate::estimate::Estimate;
use crate::experiment::{Experiment, Metric};
use crate::formula::{Formula, Points};
use crate::point::Point;
use crate::store::{Record, Results};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

/// Points by the values of the parameters that a formula does not vary.
type Groups = HashMap<Vec<String>, Vec<usize>>;

/// The metrics of an experiment with the records of its points.
pub(crate) struct Values<'a> {
    metrics: BTreeMap<&'a str, &'a Metric>,
    formulas: BTreeMap<&'a str, Formula>,
    points: &'a [Point],
    records: Vec<Option<&'a Record>>,
    /// Parameters that vary together.
    together: Vec<Vec<&'a str>>,
    /// Caches the groups for each set of parameters.
    groups: RefCell<BTreeMap<Vec<String>, Groups>>,
}

impl<'a> Values<'a> {
    /// The values at `points` that `results` has.
    pub(crate) fn of(experiment: &'a Experiment, points: &'a [Point], results: &'a Results) -> Self {
        let metrics: BTreeMap<_, _> = experiment.metrics().into_iter().collect();
        let formulas = metrics.iter().filter_map(|(name, metric)| Some((*name, metric.parsed()?)));
        let zips = experiment.parts().zip.iter();
        let quick = experiment.parts().quick.iter().flat_map(|quick| &quick.zip);
        Self {
            formulas: formulas.collect(),
            metrics,
            points,
            records: points.iter().map(|point| results.get(&point.key)).collect(),
            together: zips.chain(quick).map(|zip| zip.keys().map(String::as_str).collect()).collect(),
            groups: RefCell::default(),
        }
    }

    /// The metric of the file called `name` at point number `point`.
    pub(crate) fn value(&self, point: usize, name: &str) -> Option<f64> {
        self.estimate(point, name).map(|estimate| estimate.value)
    }

    /// Like [`value`](Self::value), with the uncertainty of a value that comes from sampled runs.
    pub(crate) fn estimate(&self, point: usize, name: &str) -> Option<Estimate> {
        match self.formulas.get(name) {
            Some(formula) => formula.value(self, point),
            None => self.metrics.get(name)?.measured(name, self.records[point]?, point),
        }
    }

    /// `parameters` and the parameters that vary together with them.
    fn with_zipped(&self, parameters: &[String]) -> Vec<String> {
        let is_partner = |zip: &&Vec<&str>| parameters.iter().any(|name| zip.contains(&name.as_str()));
        let partners = self.together.iter().filter(is_partner).flatten().map(|name| (*name).to_string());
        let mut all: Vec<_> = parameters.iter().cloned().chain(partners).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The points that differ from `point` at most in `parameters` and in parameters that vary together with them.
    fn group(&self, point: usize, parameters: &[String]) -> Vec<usize> {
        let with_zipped = self.with_zipped(parameters);
        let kept = |point: &Point| -> Vec<String> {
            let kept = point.varied.iter().filter(|(name, _)| !with_zipped.contains(name));
            kept.map(|(_, value)| value.to_string()).collect()
        };
        let mut groups = self.groups.borrow_mut();
        let known = groups.entry(with_zipped.clone()).or_insert_with(|| {
            let mut found = Groups::new();
            for (index, point) in self.points.iter().enumerate() {
                found.entry(kept(point)).or_default().push(index);
            }
            found
        });
        known.get(&kept(&self.points[point])).cloned().unwrap_or_default()
    }
}

impl Points for Values<'_> {
    fn metric(&self, point: usize, name: &str) -> Option<Estimate> {
        match self.metrics.contains_key(name) {
            true => self.estimate(point, name),
            false => self.records[point]?.estimate(name, point),
        }
    }

    fn names(&self, point: usize) -> Vec<&str> {
        self.records[point].iter().flat_map(|record| record.metrics.keys().map(String::as_str)).collect()
    }

    fn at(&self, point: usize, settings: &[(String, String)]) -> Option<usize> {
        let names: Vec<_> = settings.iter().map(|(name, _)| name.clone()).collect();
        let is_at = |index: &usize| {
            settings.iter().all(|(name, wanted)| {
                let mut varied = self.points[*index].varied.iter();
                varied.any(|(known, value)| known == name && value.to_string() == *wanted)
            })
        };
        self.group(point, &names).into_iter().find(is_at)
    }

    fn over(&self, point: usize, parameters: &[String]) -> Vec<usize> {
        self.group(point, parameters)
    }
}

/// A single record, without other points.
struct SingleRecord<'a>(&'a Record);

impl Points for SingleRecord<'_> {
    fn metric(&self, point: usize, name: &str) -> Option<Estimate> {
        self.0.estimate(name, point)
    }

    fn names(&self, _: usize) -> Vec<&str> {
        self.0.metrics.keys().map(String::as_str).collect()
    }

    fn at(&self, _: usize, _: &[(String, String)]) -> Option<usize> {
        None
    }

    fn over(&self, _: usize, _: &[String]) -> Vec<usize> {
        Vec::new()
    }
}

impl Record {
    /// A metric of the workload; `host.NAME` is a metric of the host.
    fn metric(&self, name: &str) -> Option<f64> {
        match name.strip_prefix("host.") {
            Some(of_host) => self.host.get(of_host).copied(),
            None => self.metrics.get(name).copied(),
        }
    }

    /// The value of a metric with its uncertainty, in this record, which is that of point number `point`.
    fn estimate(&self, name: &str, point: usize) -> Option<Estimate> {
        let interval = self.intervals.get(name).copied();
        Some(Estimate::measured(self.metric(name)?, interval, (point, name.into())))
    }
}

impl Metric {
    /// The workload's metric for this metric, which is called `name`.
    pub fn source<'a>(&'a self, name: &'a str) -> &'a str {
        self.of.as_deref().unwrap_or(name)
    }

    /// Its formula, if it has a valid one.
    pub(crate) fn parsed(&self) -> Option<Formula> {
        Formula::parse(self.formula.as_deref()?).ok()
    }

    /// Names and patterns of the metrics that this metric, called `name`, is computed from.
    pub(crate) fn sources(&self, name: &str) -> Vec<String> {
        match self.parsed() {
            Some(formula) => formula.metrics().into_iter().collect(),
            None => {
                [Some(self.source(name)), self.per.as_deref()].into_iter().flatten().map(Into::into).collect()
            }
        }
    }

    /// Whether its value follows from one record. `is_of_file` states which metrics the file computes itself.
    pub(crate) fn is_of_one_record(&self, is_of_file: &dyn Fn(&str) -> bool) -> bool {
        let Some(formula) = self.parsed() else { return true };
        let mut single = true;
        formula.visit(&mut |part| {
            single &= !matches!(part, Formula::At(..) | Formula::Over(..));
            single &= !matches!(part, Formula::Metric(name) if is_of_file(name));
        });
        single
    }

    /// The value of this metric, called `name`, in a record. A formula that reads other points or metrics of the file
    /// has none.
    pub fn value(&self, name: &str, record: &Record) -> Option<f64> {
        let estimate = match self.parsed() {
            Some(formula) => formula.value(&SingleRecord(record), 0),
            None => self.measured(name, record, 0),
        };
        estimate.map(|estimate| estimate.value)
    }

    fn measured(&self, name: &str, record: &Record, point: usize) -> Option<Estimate> {
        let value = record.estimate(self.source(name), point)?;
        let found = self.per.as_deref().map_or(Some(1.0.into()), |per| record.estimate(per, point));
        let per = found.filter(|per| per.value != 0.0)?;
        let scale = self.scale.map_or(1.0, |scale| scale.0);
        Some(value.binary('/', per).binary('*', scale.into()))
    }
}
