//! Runs the points of a campaign on a thread pool and stores their records. The campaign selects the points.

use super::{Fault, Observer, RunError};
use crate::failure::{Failure, FailureKind};
use crate::key::Key;
use crate::point::Point;
use crate::store::{ClaimResult, Claims, Record, Store, StoreError, Tail, Writer};
use crate::workload::{Stop, Workload};
use longma_locks::IgnorePoison;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Polling interval for a point that another campaign is running.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Results of the threads of a campaign.
#[derive(Default)]
pub(super) struct WorkResult {
    /// Points that this campaign ran.
    pub ran: usize,
    /// Points that another campaign ran during this one.
    pub run_elsewhere: usize,
    /// Points that failed because of the host.
    pub faults: Vec<Fault>,
    /// All records added to the store during the campaign.
    pub new_records: Vec<Record>,
    /// Why points could not be claimed.
    pub unclaimed: Option<String>,
}

/// State shared by the threads of a campaign.
struct SharedWork<'a> {
    workload: &'a dyn Workload,
    observer: &'a dyn Observer,
    stop: &'a Stop,
    /// Set after a storage error: no further points are started, since their results could not be stored.
    storage_failed: Stop,
    writer: Writer,
    claims: Claims,
    queue: Mutex<Queue<'a>>,
    stored: Mutex<StoredSoFar>,
    storage_error: Mutex<Option<StoreError>>,
}

/// Points that this campaign has not started.
struct Queue<'a> {
    pending: VecDeque<&'a Point>,
    /// Points that other campaigns are running.
    claimed_elsewhere: VecDeque<&'a Point>,
    /// Whether the observer has been notified that only these points are left.
    is_reported: bool,
}

/// Records that others added to the store, and the result so far.
struct StoredSoFar {
    tail: Tail,
    keys: BTreeSet<Key>,
    result: WorkResult,
}

/// Runs `todo` on `jobs` threads and stores each record as soon as it is available.
pub(super) fn run_all(
    workload: &dyn Workload,
    todo: &[&Point],
    (store, tail): (&Store, Tail),
    jobs: usize,
    observer: &dyn Observer,
    stop: &Stop,
) -> Result<WorkResult, RunError> {
    let writer = store.writer()?;
    let claims = Claims::open(store);
    let unclaimed = claims.unavailable.as_ref().map(ToString::to_string);
    let result = WorkResult { unclaimed, ..WorkResult::default() };
    let work = SharedWork {
        workload,
        observer,
        stop,
        storage_failed: Stop::default(),
        writer,
        claims,
        queue: Mutex::new(Queue {
            pending: todo.iter().copied().collect(),
            claimed_elsewhere: VecDeque::new(),
            is_reported: false,
        }),
        stored: Mutex::new(StoredSoFar { tail, keys: BTreeSet::new(), result }),
        storage_error: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        (0..jobs.clamp(1, todo.len())).for_each(|_| drop(scope.spawn(|| work.run_all_points())));
    });
    let SharedWork { writer, stored, storage_error, .. } = work;
    let finished = writer.finish();
    if let Some(error) = storage_error.into_inner().ignore_poison() {
        return Err(error.into());
    }
    finished?;
    let mut stored = stored.into_inner().ignore_poison();
    stored.read_new()?;
    Ok(stored.result)
}

impl<'a> SharedWork<'a> {
    /// Runs points until none is left.
    fn run_all_points(&self) {
        while !self.stop.is_requested() && !self.storage_failed.is_requested() {
            let Some((point, was_claimed)) = self.next() else { return };
            let outcome = match self.claims.claim(&point.key) {
                ClaimResult::Taken => {
                    self.queue.lock().ignore_poison().claimed_elsewhere.push_back(point);
                    if was_claimed {
                        std::thread::sleep(CHECK_INTERVAL);
                    }
                    continue;
                }
                // The claim is held until the record is stored.
                ClaimResult::Claimed(_held) => self.run_claimed(point),
            };
            if let Err(error) = outcome {
                self.storage_failed.request();
                self.storage_error.lock().ignore_poison().get_or_insert(error);
            }
        }
    }

    /// The next point, and whether another campaign was running it.
    fn next(&self) -> Option<(&'a Point, bool)> {
        let mut queue = self.queue.lock().ignore_poison();
        if let Some(point) = queue.pending.pop_front() {
            return Some((point, false));
        }
        if !queue.claimed_elsewhere.is_empty() && !queue.is_reported {
            queue.is_reported = true;
            self.observer.waiting(queue.claimed_elsewhere.len());
        }
        queue.claimed_elsewhere.pop_front().map(|point| (point, true))
    }

    /// Runs a claimed point, unless another campaign has just stored its record.
    fn run_claimed(&self, point: &Point) -> Result<(), StoreError> {
        if self.stored.lock().ignore_poison().is_stored(&point.key)? {
            self.stored.lock().ignore_poison().result.run_elsewhere += 1;
            self.observer.run_elsewhere(point);
            return Ok(());
        }
        match run_one(self.workload, point, self.stop) {
            Ok(record) => {
                self.writer.append(&record)?;
                self.observer.point(point, &record);
                self.stored.lock().ignore_poison().result.ran += 1;
            }
            Err(Failure { kind: FailureKind::Stopped, .. }) => {}
            Err(failure) => {
                self.observer.fault(point, &failure);
                let fault = Fault { key: point.key.clone(), point: point.label(), failure };
                self.stored.lock().ignore_poison().result.faults.push(fault);
            }
        }
        Ok(())
    }
}

impl StoredSoFar {
    fn read_new(&mut self) -> Result<(), StoreError> {
        let new_records = self.tail.new_records()?;
        self.keys.extend(new_records.iter().map(|record| record.key.clone()));
        self.result.new_records.extend(new_records);
        Ok(())
    }

    /// Returns whether a record of this point was added since the campaign began.
    fn is_stored(&mut self, key: &Key) -> Result<bool, StoreError> {
        self.read_new()?;
        Ok(self.keys.contains(key))
    }
}

/// Runs a point. Returns an error instead of a record if the point was stopped or failed because of the host.
fn run_one(workload: &dyn Workload, point: &Point, stop: &Stop) -> Result<Record, Failure> {
    let start = Instant::now();
    // Catch panics, so that a bug in a workload does not abort the campaign.
    let run = match &point.refused {
        Some(refused) => Ok(Err(refused.clone())),
        None => catch_unwind(AssertUnwindSafe(|| workload.run(point, stop))),
    };
    let outcome = run.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or(panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
        Err(Failure::failed(format!("the workload panicked: {message}")))
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
