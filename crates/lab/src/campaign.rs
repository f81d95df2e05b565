//! A campaign: the points of an experiment, those that have no result yet run on the host's cores and stored.
//! Not what runs at a point (`workload`), nor what is made of the results (`table`, `compare`, `report`).
//! Source: none.

use crate::experiment::Experiment;
use crate::point::{Key, Point, PointError};
use crate::store::{Record, Results, Store, StoreError, Writer};
use crate::workload::{Failure, FailureKind, Registry, Stop, Workload};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

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
}

impl Observer for () {}

/// What a campaign came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Points that were run now, failed ones included.
    pub ran: usize,
    /// Points whose results were there before.
    pub reused: usize,
    /// Points of this part that have failed, now or before.
    pub failed: usize,
    /// Points of this part that were not run because the campaign was stopped.
    pub left: usize,
    /// All results of the store.
    pub results: Results,
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

    /// Runs the points of this part that have no result yet. A point that fails does not stop the others.
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
        let mut results = store.results()?;
        let part = self.part(options);
        let again = |state| state == State::Missing || options.retry_failed && state == State::Failed;
        let todo: Vec<_> = part.iter().copied().filter(|p| again(Self::state(p, &results))).collect();
        observer.begin(todo.len(), part.len() - todo.len());
        let ran = if todo.is_empty() {
            Vec::new()
        } else {
            run_all(workload, &todo, store, options.jobs, observer, stop)?
        };
        let (all, reused) = (ran.len(), part.len() - todo.len());
        ran.into_iter().for_each(|record| results.add(record));
        let count = |state| part.iter().filter(|p| Self::state(p, &results) == state).count();
        let (failed, left) = (count(State::Failed), count(State::Missing));
        Ok(Outcome { ran: all, reused, failed, left, results })
    }

    /// The points of this part, each key once.
    fn part(&self, options: &Options) -> Vec<&Point> {
        let mut seen = BTreeSet::new();
        let different = self.points.iter().filter(|point| seen.insert(&point.key)).enumerate();
        let wanted = |key: &Key| options.only.as_ref().is_none_or(|only| only.contains(key));
        different.filter(|(index, p)| options.shard.has(*index) && wanted(&p.key)).map(|(_, p)| p).collect()
    }
}

/// Runs `todo` on `jobs` threads and stores the records as they come.
fn run_all(
    workload: &dyn Workload,
    todo: &[&Point],
    store: &Store,
    jobs: usize,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<Vec<Record>, RunError> {
    let writer = store.writer()?;
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(None));
    let records = Mutex::new(Vec::with_capacity(todo.len()));
    let halt = Stop::default();
    let work = || {
        while !stop.is_requested() && !halt.is_requested() {
            let Some(point) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let record = match run_one(workload, point, stop) {
                Some(record) => record,
                None => break,
            };
            if let Err(error) = store_one(&writer, &record) {
                // What runs still may end; nothing new begins, since nothing could be kept.
                halt.request();
                lock(&broken).get_or_insert(error);
                break;
            }
            observer.point(point, &record);
            lock(&records).push(record);
        }
    };
    std::thread::scope(|scope| (0..jobs.clamp(1, todo.len())).for_each(|_| drop(scope.spawn(work))));
    let finished = writer.finish();
    if let Some(error) = broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    finished?;
    Ok(records.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn store_one(writer: &Writer, record: &Record) -> Result<(), StoreError> {
    writer.append(record)
}

/// The record of a point; `None` if it was stopped.
fn run_one(workload: &dyn Workload, point: &Point, stop: &Stop) -> Option<Record> {
    let start = Instant::now();
    // A defect of one workload must not cost the campaign.
    let run = match &point.refused {
        Some(refused) => Ok(Err(refused.clone())),
        None => catch_unwind(AssertUnwindSafe(|| workload.run(point, stop))),
    };
    let outcome = run.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
        Err(Failure::failed(format!("the workload panicked; it said: {said}")))
    });
    let outcome = outcome.and_then(|metrics| {
        match metrics.results.iter().chain(&metrics.host).find(|(_, value)| !value.is_finite()) {
            Some((name, value)) => Err(Failure::failed(format!("the metric `{name}` is {value}"))),
            None => Ok(metrics),
        }
    });
    match outcome {
        Err(Failure { kind: FailureKind::Stopped, .. }) => None,
        outcome => Some(Record::new(point, outcome, start.elapsed().as_secs_f64())),
    }
}
