//! Changes that wait together become durable together: one thread runs them in one transaction and answers all after its commit.
//! Not what the changes are (`tables`).
//! Source: the group commit of databases; DeWitt et al., "Implementation techniques for main memory database systems" (SIGMOD 1984).

use super::StoreError;
use super::sql::{Database, Failure, Open};
use std::cell::RefCell;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// Most changes of one commit: more would keep the first waiting for the last.
const MOST: usize = 256;

/// An answer that comes when it is durable.
#[derive(Debug)]
pub struct Pending<T> {
    answer: Receiver<Result<T, StoreError>>,
    came: RefCell<Option<Result<T, StoreError>>>,
}

impl<T> Pending<T> {
    /// An answer that is there already.
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        let (sender, receiver) = mpsc::channel();
        // The receiver is alive: it is returned below.
        let _ = sender.send(answer);
        Self { answer: receiver, came: RefCell::new(None) }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// What the store says, or [`StoreError::Closed`].
    pub fn wait(self) -> Result<T, StoreError> {
        match self.came.into_inner() {
            Some(answer) => answer,
            None => self.answer.recv().unwrap_or(Err(StoreError::Closed)),
        }
    }

    /// Whether the answer has come.
    pub fn is_answered(&self) -> bool {
        let mut came = self.came.borrow_mut();
        if came.is_none() {
            *came = match self.answer.try_recv() {
                Ok(answer) => Some(answer),
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => Some(Err(StoreError::Closed)),
            };
        }
        came.is_some()
    }
}

/// Sends a change's answer, unless the commit failed.
type Deliver = Box<dyn FnOnce(Option<&StoreError>) + Send>;
/// Runs a change inside the transaction, if there is one; whether it is to be kept.
type Job = Box<dyn FnOnce(Result<&dyn Database, StoreError>) -> (bool, Deliver) + Send>;
/// A connection of the writer.
pub(super) type Writing = Box<dyn Database + Send>;

/// The connection that changes the database, and the thread that does it for those who do not wait.
pub(super) struct Writer {
    connection: Arc<Mutex<Writing>>,
    jobs: Option<Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    pub fn start(connection: Writing) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let connection = Arc::new(Mutex::new(connection));
        let shared = connection.clone();
        let thread = std::thread::Builder::new()
            .name("placement-store".into())
            .spawn(move || write(&shared, &receiver))
            .map_err(|error| StoreError::Database(format!("no thread for it: {error}")))?;
        Ok(Self { connection, jobs: Some(sender), thread: Some(thread) })
    }

    /// Makes a change and waits for it. If nobody else changes anything the caller does it itself: on a busy machine a thread that
    /// has to be woken comes milliseconds later.
    pub fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&dyn Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Ok(connection) = self.connection.try_lock() else { return self.submit(change).wait() };
        let (job, pending) = job(change);
        carry_out(&**connection, job, None);
        drop(connection);
        pending.wait()
    }

    /// Queues a change.
    pub fn submit<T: Send + 'static>(
        &self,
        change: impl FnOnce(&dyn Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Pending<T> {
        let (job, pending) = job(change);
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, the job and with it the sender are dropped: the answer is `Closed`.
            let _ = jobs.send(job);
        }
        pending
    }
}

/// A change as a job, and its answer.
fn job<T: Send + 'static>(
    change: impl FnOnce(&dyn Database) -> Result<T, StoreError> + Send + 'static,
) -> (Job, Pending<T>) {
    let (sender, answer) = mpsc::channel();
    let job: Job = Box::new(move |connection| {
        let result = connection.and_then(change);
        let keep = result.is_ok();
        let deliver: Deliver = Box::new(move |failure| {
            // Nobody waits if the receiver is gone.
            let _ = sender.send(failure.map_or(result, |f| Err(f.clone())));
        });
        (keep, deliver)
    });
    (job, Pending { answer, came: RefCell::new(None) })
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

fn write(connection: &Mutex<Writing>, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        // A job that panicked has left nothing: its transaction was dropped.
        let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        carry_out(&**connection, first, Some(jobs));
    }
}

/// Runs a job, and those of `jobs` that wait, in one transaction, and delivers their answers.
fn carry_out(db: &dyn Database, first: Job, jobs: Option<&Receiver<Job>>) {
    let mut delivers: Vec<Deliver> = Vec::new();
    let outcome = run(db, first, jobs, &mut delivers);
    let failure = outcome.err().map(StoreError::from);
    for deliver in delivers {
        deliver(failure.as_ref());
    }
}

fn run(
    db: &dyn Database,
    first: Job,
    jobs: Option<&Receiver<Job>>,
    delivers: &mut Vec<Deliver>,
) -> Result<(), Failure> {
    if let Err(failure) = db.begin() {
        // It is not run, but it is answered.
        delivers.push(first(Err(failure.into())).1);
        return Ok(());
    }
    let transaction = Open::begun(db);
    let mut next = Some(first);
    while let Some(job) = next {
        db.run("SAVEPOINT job", &[])?;
        let (keep, deliver) = job(Ok(db));
        delivers.push(deliver);
        if !keep {
            db.run("ROLLBACK TO SAVEPOINT job", &[])?;
        }
        db.run("RELEASE SAVEPOINT job", &[])?;
        next = jobs.filter(|_| delivers.len() < MOST).and_then(|jobs| jobs.try_recv().ok());
    }
    transaction.commit()
}
