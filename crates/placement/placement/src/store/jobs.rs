//! Group commit: one thread runs all pending changes in a single transaction and answers them after the commit.
//!
//! Source: DeWitt et al., "Implementation techniques for main memory database systems" (SIGMOD 1984).

use super::StoreError;
use super::pending::Pending;
use super::sql::{Database, OpenTransaction};
use longma_locks::IgnorePoison;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of changes in a commit. A larger batch would delay the answer to its first change.
const MAX_BATCH: usize = 256;
/// Maximum age of a transaction that further changes may join. It also blocks other processes.
const MAX_BATCH_AGE: Duration = Duration::from_millis(10);
/// How long to retry a transaction that conflicts with concurrent transactions.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before the first retry; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// A queued change together with the channel for its answer.
trait Job: Send {
    /// Makes the change inside the transaction, or records the error if the transaction could not begin. May be called
    /// again if the transaction is restarted. If it returns an error, the caller rolls the change back.
    fn run(&mut self, db: Result<&dyn Database, StoreError>) -> Result<(), StoreError>;
    /// Sends the result, or the reason why the commit failed.
    fn deliver(self: Box<Self>, failure: Option<&StoreError>);
}

struct QueuedChange<T, F> {
    change: F,
    answer: Sender<Result<T, StoreError>>,
    result: Option<Result<T, StoreError>>,
}

impl<T: Send, F: Send + FnMut(&dyn Database) -> Result<T, StoreError>> Job for QueuedChange<T, F> {
    fn run(&mut self, db: Result<&dyn Database, StoreError>) -> Result<(), StoreError> {
        let result = db.and_then(&mut self.change);
        let error = result.as_ref().err().cloned();
        self.result = Some(result);
        error.map_or(Ok(()), Err)
    }

    fn deliver(self: Box<Self>, failure: Option<&StoreError>) {
        let result = self.result.unwrap_or(Err(StoreError::Closed));
        // Fails if the receiver was dropped; the answer is then not needed.
        let _ = self.answer.send(failure.map_or(result, |f| Err(f.clone())));
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
}

impl Writer {
    pub fn start(connection: WriteConnection) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel::<Box<dyn Job>>();
        let connection = Arc::new(Mutex::new(connection));
        let queued = Arc::new(AtomicUsize::new(0));
        let (shared, waiting) = (connection.clone(), Queue { jobs: receiver, queued: queued.clone() });
        let thread = std::thread::Builder::new()
            .name("placement-store".into())
            .spawn(move || write(&shared, &waiting))
            .map_err(|error| StoreError::Database(format!("cannot start the database thread: {error}")))?;
        Ok(Self { connection, queued, jobs: Some(sender), thread: Some(thread) })
    }

    /// Makes a change and waits for it. If the connection is idle, runs the change on the calling thread: on a busy
    /// machine, waking the writer thread takes milliseconds.
    pub fn change<T: Send + 'static>(
        &self,
        change: impl FnMut(&dyn Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.queued.load(Ordering::Acquire) > 0 {
            return self.submit(change).wait();
        }
        let Ok(connection) = self.connection.try_lock() else { return self.submit(change).wait() };
        let (job, pending) = job(change);
        run_batch(&**connection, job, None);
        drop(connection);
        pending.wait()
    }

    /// Queues a change.
    pub fn submit<T: Send + 'static>(
        &self,
        change: impl FnMut(&dyn Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Pending<T> {
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
fn job<T: Send + 'static>(
    change: impl FnMut(&dyn Database) -> Result<T, StoreError> + Send + 'static,
) -> (Box<dyn Job>, Pending<T>) {
    let (answer, pending) = Pending::channel();
    (Box::new(QueuedChange { change, answer, result: None }), pending)
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

fn write(connection: &Mutex<WriteConnection>, jobs: &Queue) {
    while let Ok(first) = jobs.jobs.recv() {
        jobs.queued.fetch_sub(1, Ordering::AcqRel);
        // Safe after a panic: the transaction of the job that panicked was rolled back when it was dropped.
        let connection = connection.lock().ignore_poison();
        run_batch(&**connection, first, Some(jobs));
    }
}

/// Runs a job, and those queued behind it, in one transaction and sends their answers. A transaction that fails because
/// of concurrent ones is restarted until that takes too long.
fn run_batch(db: &dyn Database, first: Box<dyn Job>, jobs: Option<&Queue>) {
    let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
    let mut batch = vec![first];
    let failure = loop {
        match run(db, &mut batch, jobs) {
            Err(StoreError::Busy(_)) if begun.elapsed() + pause < RETRY_TIMEOUT => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            done => break done.err(),
        }
    };
    if let Some(StoreError::Busy(_)) = failure {
        // Jobs that arrived in the meantime would wait just as long and fail too, so they fail with this batch. It is
        // collected before the first answer, because a job that arrives after an answer may succeed.
        batch.extend(std::iter::from_fn(|| jobs.and_then(Queue::next)));
    }
    for job in batch {
        job.deliver(failure.as_ref());
    }
    db.maintain();
}

/// Makes one attempt. Adds queued jobs to the batch as they arrive.
fn run(db: &dyn Database, batch: &mut Vec<Box<dyn Job>>, jobs: Option<&Queue>) -> Result<(), StoreError> {
    if let Err(failure) = db.begin() {
        let failure = StoreError::from(failure);
        // Records the error as each job's answer without making a change.
        batch.iter_mut().for_each(|job| drop(job.run(Err(failure.clone()))));
        return Err(failure);
    }
    let transaction = OpenTransaction::begun(db);
    let (begun, mut at) = (Instant::now(), 0);
    while at < batch.len() {
        db.run("SAVEPOINT job", &[])?;
        if let Err(error) = batch[at].run(Ok(db)) {
            match error {
                // The whole transaction has failed, not only this job. Some databases have already rolled it back.
                StoreError::Busy(_) | StoreError::Full(_) => return Err(error),
                _ => drop(db.run("ROLLBACK TO SAVEPOINT job", &[])?),
            }
        }
        db.run("RELEASE SAVEPOINT job", &[])?;
        at += 1;
        let more = jobs.filter(|_| at == batch.len() && at < MAX_BATCH && begun.elapsed() < MAX_BATCH_AGE);
        batch.extend(more.and_then(Queue::next));
    }
    Ok(transaction.commit()?)
}
