//! A campaign: runs the points of an experiment that have no result yet and stores their results. `workload` defines
//! the run of a point.

use crate::experiment::Experiment;
use crate::failure::Failure;
use crate::key::Key;
use crate::point::Point;
use crate::points::PointError;
use crate::store::{Record, Results, Store, StoreError, Tail};
use crate::workload::{Registry, Stop};
use std::collections::BTreeSet;
use std::str::FromStr;

mod work;

/// An experiment with its points enumerated.
pub struct Campaign<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Its points in the order of the file.
    pub points: Vec<Point>,
    /// Whether these are the points of the quick form.
    pub quick: bool,
    /// Points that only the quick form has. Their runs are shorter.
    pub shortened: BTreeSet<Key>,
}

/// Options of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of points to run in parallel.
    pub jobs: usize,
    /// The share of the points to run.
    pub shard: Shard,
    /// Whether to rerun points that failed.
    pub retry_failed: bool,
    /// If given, run only these points.
    pub only: Option<BTreeSet<Key>>,
}

/// The `index`-th of `count` shares, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

/// State of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has a result.
    Done,
    /// It failed.
    Failed,
    /// It has not been run.
    Missing,
}

/// Receives the progress of a campaign. Called from several threads.
pub trait Observer: Sync {
    /// The campaign starts: numbers of points to run and of points with results.
    fn begin(&self, _to_run: usize, _reused: usize) {}
    /// A point has been run here; `record` is its result.
    fn point(&self, _point: &Point, _record: &Record) {}
    /// A point failed because of the host.
    fn fault(&self, _point: &Point, _failure: &Failure) {}
    /// Another campaign on the same store has run a point.
    fn run_elsewhere(&self, _point: &Point) {}
    /// The only remaining points are being run by other campaigns on the same store.
    fn waiting(&self, _points: usize) {}
}

impl Observer for () {}

/// Result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Points that were run, including failed ones.
    pub ran: usize,
    /// Points with earlier results, or with results from another campaign.
    pub reused: usize,
    /// Points of this share that have failed, now or earlier.
    pub failed: usize,
    /// Points of this share that were not run because the campaign was stopped.
    pub left: usize,
    /// Points of this share that failed because of the host. They have no record and are run again next time.
    pub faults: Vec<Fault>,
    /// Why the campaign could not claim points, so that another campaign on the same store may have run the same
    /// points.
    pub unclaimed: Option<String>,
    /// All results of the store.
    pub results: Results,
}

impl Results {
    /// Returns whether two runs of a point of `campaign` gave different results.
    pub fn contradict(&self, campaign: &Campaign<'_>) -> bool {
        let mut keys = self.contradictions.iter().map(|contradiction| &contradiction.kept.key);
        keys.any(|key| campaign.points.iter().any(|point| point.key == *key))
    }
}

/// A failure caused by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Key of the point.
    pub key: Key,
    /// Description of the point.
    pub point: String,
    /// The failure.
    pub failure: Failure,
}

/// Why a campaign was aborted.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its points cannot be enumerated.
    #[error(transparent)]
    Point(#[from] PointError),
    /// Its results cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Default for Options {
    fn default() -> Self {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Self { jobs, shard: Shard { index: 1, count: 1 }, retry_failed: false, only: None }
    }
}

impl FromStr for Shard {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Shard { index, count }),
            _ => Err("write it as i/n with i from 1 to n, such as 2/8".into()),
        }
    }
}

impl Shard {
    fn has(self, index: usize) -> bool {
        index % self.count == self.index - 1
    }
}

impl<'a> Campaign<'a> {
    /// Enumerates the points of `experiment`, or of its quick form. `version` is the version of the models.
    ///
    /// # Errors
    /// If a point's input is missing.
    pub fn plan(
        experiment: &'a Experiment,
        quick: bool,
        registry: &Registry,
        version: &str,
    ) -> Result<Self, PointError> {
        let points = experiment.points(quick, registry, version)?;
        let mut shortened = BTreeSet::new();
        if quick {
            // The quick form may run even if an input of the whole form is missing.
            let whole = experiment.points(false, registry, version).unwrap_or_default();
            let whole: BTreeSet<_> = whole.into_iter().map(|point| point.key).collect();
            shortened.extend(points.iter().map(|point| point.key.clone()).filter(|key| !whole.contains(key)));
        }
        Ok(Self { experiment, points, quick, shortened })
    }

    /// The keys of its points.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.points.iter().map(|point| &point.key)
    }

    /// State of `point`.
    pub fn state(point: &Point, results: &Results) -> State {
        match results.get(&point.key) {
            None => State::Missing,
            Some(record) if record.failure.is_some() => State::Failed,
            Some(_) => State::Done,
        }
    }

    /// Runs the points of this share that have no result yet. A failed point does not stop the others. Waits for points
    /// that another campaign on the same store is running.
    ///
    /// # Errors
    /// If results cannot be read or stored. Results stored before are safe.
    pub fn run(
        &self,
        store: &Store,
        registry: &Registry,
        options: &Options,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Outcome, RunError> {
        let name = &*self.experiment.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        let (mut results, tail) = Tail::begin_of(store, &self.keys().collect())?;
        let part = self.part(options);
        let again = |state| state == State::Missing || options.retry_failed && state == State::Failed;
        let todo: Vec<_> = part.iter().copied().filter(|p| again(Self::state(p, &results))).collect();
        observer.begin(todo.len(), part.len() - todo.len());
        let work_result = if todo.is_empty() {
            work::WorkResult::default()
        } else {
            work::run_all(workload, &todo, (store, tail), options.jobs, observer, stop)?
        };
        // Ignore a host failure if another campaign has run the point since.
        let mut faults = work_result.faults;
        let added: BTreeSet<_> = work_result.new_records.iter().map(|record| &record.key).collect();
        faults.retain(|fault| !added.contains(&fault.key));
        for record in work_result.new_records {
            results.add(record);
        }
        let faulted = faults.iter().filter(|fault| results.get(&fault.key).is_none()).count();
        let count = |state| part.iter().filter(|p| Self::state(p, &results) == state).count();
        let (failed, left) = (count(State::Failed), count(State::Missing) - faulted);
        let reused = part.len() - todo.len() + work_result.run_elsewhere;
        Ok(Outcome {
            ran: work_result.ran,
            reused,
            failed,
            left,
            faults,
            unclaimed: work_result.unclaimed,
            results,
        })
    }

    /// The points of this share, each key once.
    fn part(&self, options: &Options) -> Vec<&Point> {
        let mut seen = BTreeSet::new();
        let different = self.points.iter().filter(|point| seen.insert(&point.key)).enumerate();
        let wanted = |key: &Key| options.only.as_ref().is_none_or(|only| only.contains(key));
        different.filter(|(index, p)| options.shard.has(*index) && wanted(&p.key)).map(|(_, p)| p).collect()
    }
}
