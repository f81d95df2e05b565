//! The points of a campaign on the host's cores: who runs which, and what is kept of it.
//! Not which points are to be run: the campaign says so.

use super::{Fault, Observer, RunError};
use crate::failure::{Failure, FailureKind};
use crate::key::Key;
use crate::point::Point;
use crate::store::{Claims, Record, Store, StoreError, Tail, Turn, Writer};
use crate::workload::{Stop, Workload};
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a point that another campaign runs is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What has become of the points.
#[derive(Default)]
pub(super) struct Done {
    /// Points that were run here.
    pub ran: usize,
    /// Points that another campaign has run meanwhile.
    pub elsewhere: usize,
    /// Points that the host let down.
    pub faults: Vec<Fault>,
    /// All records that the store has got meanwhile.
    pub news: Vec<Record>,
    /// Why points could not be claimed.
    pub unclaimed: Option<String>,
}

/// What the threads of a campaign share.
struct Work<'a> {
    workload: &'a dyn Workload,
    observer: &'a dyn Observer,
    stop: &'a Stop,
    /// Nothing new begins, since nothing could be kept.
    halt: Stop,
    writer: Writer,
    claims: Claims,
    queue: Mutex<Queue<'a>>,
    seen: Mutex<Seen>,
    broken: Mutex<Option<StoreError>>,
}

/// Points that nobody here has begun.
struct Queue<'a> {
    fresh: VecDeque<&'a Point>,
    /// Others are at these.
    taken: VecDeque<&'a Point>,
    /// Whether somebody was told that only those are left.
    told: bool,
}

/// What others have added to the store, and what was done here.
struct Seen {
    tail: Tail,
    keys: BTreeSet<Key>,
    done: Done,
}

/// Runs `todo` on `jobs` threads and stores the records as they come.
pub(super) fn run_all(
    workload: &dyn Workload,
    todo: &[&Point],
    (store, tail): (&Store, Tail),
    jobs: usize,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<Done, RunError> {
    let writer = store.writer()?;
    let claims = Claims::open(store);
    let unclaimed = claims.why_none.as_ref().map(ToString::to_string);
    let done = Done { unclaimed, ..Done::default() };
    let work = Work {
        workload,
        observer,
        stop,
        halt: Stop::default(),
        writer,
        claims,
        queue: Mutex::new(Queue {
            fresh: todo.iter().copied().collect(),
            taken: VecDeque::new(),
            told: false,
        }),
        seen: Mutex::new(Seen { tail, keys: BTreeSet::new(), done }),
        broken: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        (0..jobs.clamp(1, todo.len())).for_each(|_| drop(scope.spawn(|| work.go_on())));
    });
    let Work { writer, seen, broken, .. } = work;
    let finished = writer.finish();
    if let Some(error) = broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    finished?;
    let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.look()?;
    Ok(seen.done)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Work<'a> {
    /// Runs points until none is left.
    fn go_on(&self) {
        while !self.stop.is_requested() && !self.halt.is_requested() {
            let Some((point, was_taken)) = self.next() else { return };
            let outcome = match self.claims.claim(&point.key) {
                Turn::Taken => {
                    lock(&self.queue).taken.push_back(point);
                    if was_taken {
                        std::thread::sleep(LOOK_EVERY);
                    }
                    continue;
                }
                // The claim is held until the record is stored.
                Turn::Mine(_held) => self.attend(point),
            };
            if let Err(error) = outcome {
                self.halt.request();
                lock(&self.broken).get_or_insert(error);
            }
        }
    }

    /// The next point, and whether somebody else was at it.
    fn next(&self) -> Option<(&'a Point, bool)> {
        let mut queue = lock(&self.queue);
        if let Some(point) = queue.fresh.pop_front() {
            return Some((point, false));
        }
        if !queue.taken.is_empty() && !queue.told {
            queue.told = true;
            self.observer.waiting(queue.taken.len());
        }
        queue.taken.pop_front().map(|point| (point, true))
    }

    /// Runs a point that is claimed, unless its record has come meanwhile.
    fn attend(&self, point: &Point) -> Result<(), StoreError> {
        if lock(&self.seen).has_come(&point.key)? {
            lock(&self.seen).done.elsewhere += 1;
            self.observer.elsewhere(point);
            return Ok(());
        }
        match run_one(self.workload, point, self.stop) {
            Ok(record) => {
                self.writer.append(&record)?;
                self.observer.point(point, &record);
                lock(&self.seen).done.ran += 1;
            }
            Err(Failure { kind: FailureKind::Stopped, .. }) => {}
            Err(failure) => {
                self.observer.fault(point, &failure);
                let fault = Fault { key: point.key.clone(), point: point.label(), failure };
                lock(&self.seen).done.faults.push(fault);
            }
        }
        Ok(())
    }
}

impl Seen {
    fn look(&mut self) -> Result<(), StoreError> {
        let news = self.tail.news()?;
        self.keys.extend(news.iter().map(|record| record.key.clone()));
        self.done.news.extend(news);
        Ok(())
    }

    /// Whether the store has got a record of this point since the campaign began.
    fn has_come(&mut self, key: &Key) -> Result<bool, StoreError> {
        self.look()?;
        Ok(self.keys.contains(key))
    }
}

/// The record of a point; the error is no record: the point was stopped, or its host let it down.
fn run_one(workload: &dyn Workload, point: &Point, stop: &Stop) -> Result<Record, Failure> {
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
        Err(failure) if !failure.kind.is_of_point() => Err(failure),
        outcome => Ok(Record::new(point, outcome, start.elapsed().as_secs_f64())),
    }
}
