//! A campaign: the points of an experiment, those that have no result yet run on the host's cores and stored.
//! Not what runs at a point (`workload`), nor what is made of the results (`table`, `compare`, `report`).

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

/// An experiment with its points counted out.
pub struct Campaign<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Its points, in the order of the file.
    pub points: Vec<Point>,
    /// Whether these are the points of the quick form.
    pub quick: bool,
}

/// How a campaign is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Points that run at the same time.
    pub jobs: usize,
    /// The part of the points that is run here.
    pub shard: Shard,
    /// Whether points that failed before are run again.
    pub retry_failed: bool,
    /// Only these points, if given.
    pub only: Option<BTreeSet<Key>>,
}

/// The `index`-th of `count` parts, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

/// What has become of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has a result.
    Done,
    /// It failed.
    Failed,
    /// It has not been run.
    Missing,
}

/// Follows a campaign while it runs; called from several threads.
pub trait Observer: Sync {
    /// So many points will be run, and so many need not be.
    fn begin(&self, _to_run: usize, _reused: usize) {}
    /// A point has its record.
    fn point(&self, _point: &Point, _record: &Record) {}
    /// The host let a point down.
    fn fault(&self, _point: &Point, _failure: &Failure) {}
    /// Another campaign on the same store has run a point.
    fn elsewhere(&self, _point: &Point) {}
    /// Nothing is left but so many points that other campaigns on the same store are running.
    fn waiting(&self, _points: usize) {}
}

impl Observer for () {}

/// What a campaign came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Points that were run now, failed ones included.
    pub ran: usize,
    /// Points whose results were there before, or came from another campaign meanwhile.
    pub reused: usize,
    /// Points of this part that have failed, now or before.
    pub failed: usize,
    /// Points of this part that were not run because the campaign was stopped.
    pub left: usize,
    /// Points of this part that the host let down: they have no record and are run again next time.
    pub faults: Vec<Fault>,
    /// Why another campaign on the same store could not be kept from running the same points at the same time.
    pub unclaimed: Option<String>,
    /// All results of the store.
    pub results: Results,
}

impl Results {
    /// Whether two runs of a point of `campaign` gave different results.
    pub fn contradict(&self, campaign: &Campaign<'_>) -> bool {
        let mut keys = self.contradictions.iter().map(|contradiction| &contradiction.kept.key);
        keys.any(|key| campaign.points.iter().any(|point| point.key == *key))
    }
}

/// What the host did to a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The point's key.
    pub key: Key,
    /// The point, in words.
    pub point: String,
    /// What happened.
    pub failure: Failure,
}

/// Why a campaign could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its points cannot be counted out.
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
    /// Counts out the points of `experiment`, or of its quick form. `version` is that of the models.
    ///
    /// # Errors
    /// If something that a point needs is missing.
    pub fn plan(
        experiment: &'a Experiment,
        quick: bool,
        registry: &Registry,
        version: &str,
    ) -> Result<Self, PointError> {
        Ok(Self { experiment, points: experiment.points(quick, registry, version)?, quick })
    }

    /// What has become of `point`.
    pub fn state(point: &Point, results: &Results) -> State {
        match results.get(&point.key) {
            None => State::Missing,
            Some(record) if record.failure.is_some() => State::Failed,
            Some(_) => State::Done,
        }
    }

    /// Runs the points of this part that have no result yet. A point that fails does not stop the others. Points that another campaign
    /// is running on the same store are waited for.
    ///
    /// # Errors
    /// If results cannot be read or stored; those stored before are safe.
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
        let (mut results, tail) = Tail::begin(store)?;
        let part = self.part(options);
        let again = |state| state == State::Missing || options.retry_failed && state == State::Failed;
        let todo: Vec<_> = part.iter().copied().filter(|p| again(Self::state(p, &results))).collect();
        observer.begin(todo.len(), part.len() - todo.len());
        let done = if todo.is_empty() {
            work::Done::default()
        } else {
            work::run_all(workload, &todo, (store, tail), options.jobs, observer, stop)?
        };
        // What the host did here is of no account if another campaign has run the point since.
        let mut faults = done.faults;
        let came: BTreeSet<_> = done.news.iter().map(|record| &record.key).collect();
        faults.retain(|fault| !came.contains(&fault.key));
        for record in done.news {
            results.add(record);
        }
        let told = faults.iter().filter(|fault| results.get(&fault.key).is_none()).count();
        let count = |state| part.iter().filter(|p| Self::state(p, &results) == state).count();
        let (failed, left) = (count(State::Failed), count(State::Missing) - told);
        let reused = part.len() - todo.len() + done.elsewhere;
        Ok(Outcome { ran: done.ran, reused, failed, left, faults, unclaimed: done.unclaimed, results })
    }

    /// The points of this part, each key once.
    fn part(&self, options: &Options) -> Vec<&Point> {
        let mut seen = BTreeSet::new();
        let different = self.points.iter().filter(|point| seen.insert(&point.key)).enumerate();
        let wanted = |key: &Key| options.only.as_ref().is_none_or(|only| only.contains(key));
        different.filter(|(index, p)| options.shard.has(*index) && wanted(&p.key)).map(|(_, p)| p).collect()
    }
}
