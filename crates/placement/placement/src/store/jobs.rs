//! Group commit: one thread runs all pending changes in a single transaction and answers them after the commit.
//!
//! Source: DeWitt et al., "Implementation techniques for main memory database systems" (SIGMOD 1984).

use super::StoreError;
use super::pending::Pending;
use super::sql::{Answer, Database, JOB_SAVEPOINT, OpenTransaction, Query};
use longma_locks::IgnorePoison;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of changes in a commit. A larger batch would delay the answer to its first change.
const MAX_BATCH: usize = 256;
/// Maximum number of changes whose statements are sent before the first answer is awaited.
const MAX_PIPELINED: usize = 16;
/// Maximum age of a transaction that further changes may join. It also blocks other processes.
pub(super) const MAX_BATCH_AGE: Duration = Duration::from_millis(10);
/// How long to retry a transaction that conflicts with concurrent transactions.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before the first retry; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// A change that one statement can make, on a database that combines statements.
pub(super) trait Change<T>: Send {
    /// The statement, or `None` if the change needs several. It may make only a part of the change.
    fn statement(&mut self, _db: &dyn Database) -> Option<Query<'static>> {
        None
    }

    /// The result, from the answer to [`Self::statement`]; `None` if the change is incomplete and must be rolled back.
    fn result(&mut self, _answer: &Answer) -> Option<T> {
        None
    }

    /// Makes the change by any number of statements.
    fn run(&mut self, db: &dyn Database) -> Result<T, StoreError>;
}

impl<T, F: Send + FnMut(&dyn Database) -> Result<T, StoreError>> Change<T> for F {
    fn run(&mut self, db: &dyn Database) -> Result<T, StoreError> {
        self(db)
    }
}

/// A queued change together with the channel for its answer.
trait Job: Send {
    /// See [`Change::statement`].
    fn statement(&mut self, db: &dyn Database) -> Option<Query<'static>>;
    /// Records the result of the statement. Returns whether the change is complete.
    fn complete(&mut self, answer: &Answer) -> bool;
    /// Makes the change inside the transaction, or records the error if the transaction could not begin. May be called
    /// again if the transaction is restarted. If it returns an error, the caller rolls the change back.
    fn run(&mut self, db: Result<&dyn Database, StoreError>) -> Result<(), StoreError>;
    /// Sends the result, or the reason why the commit failed.
    fn deliver(self: Box<Self>, failure: Option<&StoreError>);
    /// When the change was requested.
    fn requested(&self) -> Instant;
}

/// The phases of a change, from its request to its durable answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeTimes {
    /// Waiting for the database thread, which may have been committing earlier changes.
    pub queued: Duration,
    /// The change's own statements.
    pub statements: Duration,
    /// Waiting for the statements of later changes of the same commit.
    pub batch: Duration,
    /// The commit.
    pub commit: Duration,
}

/// Times of changes; `None` if they are not recorded.
type Recorder = Mutex<Option<Vec<ChangeTimes>>>;

struct QueuedChange<T, C> {
    requested: Instant,
    change: C,
    answer: Sender<Result<T, StoreError>>,
    result: Option<Result<T, StoreError>>,
}

impl<T: Send, C: Change<T>> Job for QueuedChange<T, C> {
    fn statement(&mut self, db: &dyn Database) -> Option<Query<'static>> {
        self.change.statement(db)
    }

    fn complete(&mut self, answer: &Answer) -> bool {
        self.result = self.change.result(answer).map(Ok);
        self.result.is_some()
    }

    fn run(&mut self, db: Result<&dyn Database, StoreError>) -> Result<(), StoreError> {
        let result = db.and_then(|db| self.change.run(db));
        let error = result.as_ref().err().cloned();
        self.result = Some(result);
        error.map_or(Ok(()), Err)
    }

    fn deliver(self: Box<Self>, failure: Option<&StoreError>) {
        let result = self.result.unwrap_or(Err(StoreError::Closed));
        // Fails if the receiver was dropped; the answer is then not needed.
        let _ = self.answer.send(failure.map_or(result, |f| Err(f.clone())));
    }

    fn requested(&self) -> Instant {
        self.requested
    }
}

/// The write connection.
pub(super) type WriteConnection = Box<dyn Database + Send>;

/// Owns the write connection and the thread that runs queued changes.
pub(super) struct Writer {
    connection: Arc<Mutex<WriteConnection>>,
    /// Number of queued changes.
    queued: Arc<AtomicUsize>,
    jobs: Option<Sender<Box<dyn Job>>>,
    thread: Option<std::thread::JoinHandle<()>>,
    times: Arc<Recorder>,
}

impl Writer {
    pub fn start(connection: WriteConnection) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel::<Box<dyn Job>>();
        let connection = Arc::new(Mutex::new(connection));
        let queued = Arc::new(AtomicUsize::new(0));
        let (shared, waiting) = (connection.clone(), Queue { jobs: receiver, queued: queued.clone() });
        let times = Arc::new(Recorder::default());
        let recorder = times.clone();
        let thread = std::thread::Builder::new()
            .name("placement-store".into())
            .spawn(move || write(&shared, &waiting, &recorder))
            .map_err(|error| StoreError::Database(format!("cannot start the database thread: {error}")))?;
        Ok(Self { connection, queued, jobs: Some(sender), thread: Some(thread), times })
    }

    /// Records the times of changes from now on. Returns those recorded so far.
    pub fn record_times(&self) -> Vec<ChangeTimes> {
        self.times.lock().ignore_poison().replace(Vec::new()).unwrap_or_default()
    }

    /// Makes a change and waits for it. If the connection is idle, runs the change on the calling thread: on a busy
    /// machine, waking the writer thread takes milliseconds.
    pub fn change<T: Send + 'static>(&self, change: impl Change<T> + 'static) -> Result<T, StoreError> {
        if self.queued.load(Ordering::Acquire) > 0 {
            return self.submit(change).wait();
        }
        let Ok(connection) = self.connection.try_lock() else { return self.submit(change).wait() };
        let (job, pending) = job(change);
        run_batch(&**connection, job, None, &self.times, Duration::ZERO);
        drop(connection);
        pending.wait()
    }

    /// Queues a change.
    pub fn submit<T: Send + 'static>(&self, change: impl Change<T> + 'static) -> Pending<T> {
        let (job, pending) = job(change);
        if let Some(jobs) = &self.jobs {
            self.queued.fetch_add(1, Ordering::AcqRel);
            // If the thread has ended, the job and its sender are dropped, so the answer is `Closed`.
            let _ = jobs.send(job);
        }
        pending
    }
}

/// Creates a job for a change, and the handle for its answer.
fn job<T: Send + 'static>(change: impl Change<T> + 'static) -> (Box<dyn Job>, Pending<T>) {
    let (answer, pending) = Pending::channel();
    let requested = Instant::now();
    (Box::new(QueuedChange { requested, change, answer, result: None }), pending)
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The thread still runs the queued changes. A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// Changes queued for the writer thread.
struct Queue {
    jobs: Receiver<Box<dyn Job>>,
    queued: Arc<AtomicUsize>,
}

impl Queue {
    fn next(&self) -> Option<Box<dyn Job>> {
        let job = self.jobs.try_recv().ok()?;
        self.queued.fetch_sub(1, Ordering::AcqRel);
        Some(job)
    }
}

fn write(connection: &Mutex<WriteConnection>, jobs: &Queue, times: &Recorder) {
    let mut last_commit = Duration::ZERO;
    while let Ok(first) = jobs.jobs.recv() {
        jobs.queued.fetch_sub(1, Ordering::AcqRel);
        // Safe after a panic: the transaction of the job that panicked was rolled back when it was dropped.
        let connection = connection.lock().ignore_poison();
        let batch_age = connection.batch_age(last_commit);
        last_commit = run_batch(&**connection, first, Some(jobs), times, batch_age);
    }
}

/// Runs a job, and those queued behind it, in one transaction and sends their answers. A transaction that fails because
/// of concurrent ones is restarted until that takes too long.
///
/// Returns how long the commit took.
fn run_batch(
    db: &dyn Database,
    first: Box<dyn Job>,
    jobs: Option<&Queue>,
    recorder: &Recorder,
    batch_age: Duration,
) -> Duration {
    let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
    let (mut batch, mut ran) = (vec![first], Vec::new());
    let failure = loop {
        ran.clear();
        match run(db, &mut batch, jobs, &mut ran, batch_age) {
            Err(StoreError::Busy(_)) if begun.elapsed() + pause < RETRY_TIMEOUT => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            done => break done.err(),
        }
    };
    if let Some(StoreError::Busy(_)) = failure {
        // Jobs that arrived in the meantime would wait just as long and fail too, so they fail with this batch. They
        // are collected before the first answer, because a job that arrives after an answer may succeed.
        batch.extend(std::iter::from_fn(|| jobs.and_then(Queue::next)));
    }
    let (committed, committing) = (Instant::now(), ran.last().map_or(begun, |last| last.1));
    if let (None, Some(times)) = (&failure, recorder.lock().ignore_poison().as_mut()) {
        times.extend(batch.iter().zip(&ran).map(|(job, (began, ended))| ChangeTimes {
            queued: *began - job.requested(),
            statements: *ended - *began,
            batch: committing - *ended,
            commit: committed - committing,
        }));
    }
    for job in batch {
        job.deliver(failure.as_ref());
    }
    db.maintain();
    committed - committing
}

/// Makes one attempt to run the batch. Adds queued jobs to the batch as they arrive. Records in `ran` when the
/// statements of each job began and ended.
fn run(
    db: &dyn Database,
    batch: &mut Vec<Box<dyn Job>>,
    jobs: Option<&Queue>,
    ran: &mut Vec<(Instant, Instant)>,
    batch_age: Duration,
) -> Result<(), StoreError> {
    if let Err(failure) = db.begin() {
        let failure = StoreError::from(failure);
        // Records the error as each job's answer without making a change.
        batch.iter_mut().for_each(|job| drop(job.run(Err(failure.clone()))));
        return Err(failure);
    }
    let transaction = OpenTransaction::begun(db);
    let begun = Instant::now();
    while ran.len() < batch.len() {
        let (began, first) = (Instant::now(), ran.len());
        let end = batch.len().min(first + MAX_PIPELINED);
        let pipelined = run_pipelined(db, &mut batch[first..end])?;
        ran.resize(first + pipelined, (began, Instant::now()));
        if pipelined == 0 {
            for job in &mut batch[first..end] {
                let began = Instant::now();
                run_alone(db, &mut **job)?;
                ran.push((began, Instant::now()));
            }
        }
        let may_grow = |batch: &[_]| batch.len() < MAX_BATCH.min(ran.len() + MAX_PIPELINED);
        while may_grow(batch) && begun.elapsed() < batch_age {
            let Some(next) = jobs.and_then(Queue::next) else { break };
            batch.push(next);
        }
    }
    Ok(transaction.commit()?)
}

/// Runs the jobs up to the first one that needs several statements: sends all their statements before awaiting the answers, which
/// saves a savepoint and a round trip for each. Returns the number of jobs, or 0 if one failed; all are then rolled back, and
/// each must run alone.
fn run_pipelined(db: &dyn Database, jobs: &mut [Box<dyn Job>]) -> Result<usize, StoreError> {
    if !db.combines_statements() {
        return Ok(0);
    }
    let statements: Vec<_> = jobs.iter_mut().map_while(|job| job.statement(db)).collect();
    if statements.is_empty() {
        return Ok(0);
    }
    db.run(&format!("SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    let is_complete = match db.run_all(&statements) {
        Ok(answers) => jobs.iter_mut().zip(&answers).all(|(job, answer)| job.complete(answer)),
        Err(failure) => match StoreError::from(failure) {
            error if fails_transaction(&error) => return Err(error),
            _ => false,
        },
    };
    if !is_complete {
        db.run(&format!("ROLLBACK TO SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    }
    db.run(&format!("RELEASE SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    Ok(if is_complete { statements.len() } else { 0 })
}

/// Runs a job, and rolls it back if it fails.
///
/// # Errors
/// If the whole transaction has failed.
fn run_alone(db: &dyn Database, job: &mut dyn Job) -> Result<(), StoreError> {
    db.run(&format!("SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    if let Err(error) = job.run(Ok(db)) {
        if fails_transaction(&error) {
            return Err(error);
        }
        db.run(&format!("ROLLBACK TO SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    }
    db.run(&format!("RELEASE SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    Ok(())
}

/// Whether the whole transaction has failed, not only one job. Some databases have already rolled it back.
fn fails_transaction(error: &StoreError) -> bool {
    matches!(error, StoreError::Busy(_) | StoreError::Full(_) | StoreError::Unreachable(_))
}
