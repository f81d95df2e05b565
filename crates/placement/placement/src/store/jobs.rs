//! Changes that wait together become durable together: one thread runs them in one transaction and answers all after its commit.
//! Not what the changes are (`tables`).
//! Source: the group commit of databases; DeWitt et al., "Implementation techniques for main memory database systems" (SIGMOD 1984).

use super::StoreError;
use super::pending::Pending;
use super::sql::{Database, Open};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most changes of one commit: more would keep the first waiting for the last.
const MOST: usize = 256;
/// No change joins a transaction that has been open for so long: other processes wait for it, too.
const LONGEST: Duration = Duration::from_millis(10);
/// A transaction that others make fail is begun anew for so long, ...
const TRYING: Duration = Duration::from_secs(3);
/// ... the first time after this, then after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// A change that waits for its transaction, and who waits for its answer.
trait Job: Send {
    /// Makes the change inside the transaction, if there is one; again if that had to be begun anew. What is an error is to be undone.
    fn run(&mut self, db: Result<&dyn Database, StoreError>) -> Result<(), StoreError>;
    /// Sends the answer, or why the commit failed.
    fn deliver(self: Box<Self>, failure: Option<&StoreError>);
}

struct Asked<T, F> {
    change: F,
    answer: Sender<Result<T, StoreError>>,
    result: Option<Result<T, StoreError>>,
}

impl<T: Send, F: Send + FnMut(&dyn Database) -> Result<T, StoreError>> Job for Asked<T, F> {
    fn run(&mut self, db: Result<&dyn Database, StoreError>) -> Result<(), StoreError> {
        let result = db.and_then(&mut self.change);
        let error = result.as_ref().err().cloned();
        self.result = Some(result);
        error.map_or(Ok(()), Err)
    }

    fn deliver(self: Box<Self>, failure: Option<&StoreError>) {
        let result = self.result.unwrap_or(Err(StoreError::Closed));
        // Nobody waits if the receiver is gone.
        let _ = self.answer.send(failure.map_or(result, |f| Err(f.clone())));
    }
}

/// A connection of the writer.
pub(super) type Writing = Box<dyn Database + Send>;

/// The connection that changes the database, and the thread that does it for those who do not wait.
pub(super) struct Writer {
    connection: Arc<Mutex<Writing>>,
    /// Changes in the queue.
    queued: Arc<AtomicUsize>,
    jobs: Option<Sender<Box<dyn Job>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    pub fn start(connection: Writing) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel::<Box<dyn Job>>();
        let connection = Arc::new(Mutex::new(connection));
        let queued = Arc::new(AtomicUsize::new(0));
        let (shared, waiting) = (connection.clone(), Queue { jobs: receiver, queued: queued.clone() });
        let thread = std::thread::Builder::new()
            .name("placement-store".into())
            .spawn(move || write(&shared, &waiting))
            .map_err(|error| StoreError::Database(format!("no thread for it: {error}")))?;
        Ok(Self { connection, queued, jobs: Some(sender), thread: Some(thread) })
    }

    /// Makes a change and waits for it. If nobody else changes anything, or waits to, the caller does it itself: on a busy machine a thread that
    /// has to be woken comes milliseconds later.
    pub fn change<T: Send + 'static>(
        &self,
        change: impl FnMut(&dyn Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.queued.load(Ordering::Acquire) > 0 {
            return self.submit(change).wait();
        }
        let Ok(connection) = self.connection.try_lock() else { return self.submit(change).wait() };
        let (job, pending) = job(change);
        carry_out(&**connection, job, None);
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
            // If the thread is gone, the job and with it the sender are dropped: the answer is `Closed`.
            let _ = jobs.send(job);
        }
        pending
    }
}

/// A change as a job, and its answer.
fn job<T: Send + 'static>(
    change: impl FnMut(&dyn Database) -> Result<T, StoreError> + Send + 'static,
) -> (Box<dyn Job>, Pending<T>) {
    let (answer, pending) = Pending::awaited();
    (Box::new(Asked { change, answer, result: None }), pending)
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // What is queued is still written; a panic was reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Changes that wait for the thread.
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

fn write(connection: &Mutex<Writing>, jobs: &Queue) {
    while let Ok(first) = jobs.jobs.recv() {
        jobs.queued.fetch_sub(1, Ordering::AcqRel);
        // A job that panicked has left nothing: its transaction was dropped.
        let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        carry_out(&**connection, first, Some(jobs));
    }
}

/// Runs a job, and those of `jobs` that wait, in one transaction, and delivers their answers. A transaction that fails because of others is
/// begun anew, all of it, until that has taken too long.
fn carry_out(db: &dyn Database, first: Box<dyn Job>, jobs: Option<&Queue>) {
    let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
    let mut batch = vec![first];
    let failure = loop {
        match run(db, &mut batch, jobs) {
            Err(StoreError::Busy(_)) if begun.elapsed() + pause < TRYING => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            done => break done.err(),
        }
    };
    for job in batch {
        job.deliver(failure.as_ref());
    }
    if let Some(busy @ StoreError::Busy(_)) = failure {
        // Those who came meanwhile would wait as long for the same.
        while let Some(job) = jobs.and_then(Queue::next) {
            job.deliver(Some(&busy));
        }
    }
    db.settle();
}

/// One attempt. More jobs join the batch as long as there are some.
fn run(db: &dyn Database, batch: &mut Vec<Box<dyn Job>>, jobs: Option<&Queue>) -> Result<(), StoreError> {
    if let Err(failure) = db.begin() {
        let failure = StoreError::from(failure);
        // They are not made, but answered.
        batch.iter_mut().for_each(|job| drop(job.run(Err(failure.clone()))));
        return Err(failure);
    }
    let transaction = Open::begun(db);
    let (begun, mut at) = (Instant::now(), 0);
    while at < batch.len() {
        db.run("SAVEPOINT job", &[])?;
        if let Err(error) = batch[at].run(Ok(db)) {
            match error {
                // Not this job's matter but the transaction's: some databases have undone it already.
                StoreError::Busy(_) | StoreError::Full(_) => return Err(error),
                _ => drop(db.run("ROLLBACK TO SAVEPOINT job", &[])?),
            }
        }
        db.run("RELEASE SAVEPOINT job", &[])?;
        at += 1;
        let more = jobs.filter(|_| at == batch.len() && at < MOST && begun.elapsed() < LONGEST);
        batch.extend(more.and_then(Queue::next));
    }
    Ok(transaction.commit()?)
}
