//! A thread that owns the allocator. It decides on queued requests one after another and reserves them together.

use crate::Log;
use longma_placement::allocator::AllocateError;
use longma_placement::store::Reserved;
use longma_placement::{Allocator, Request};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Maximum number of queued requests. Further requests receive an error and may be retried.
const MAX_QUEUED: usize = 1024;
/// Maximum number of decisions that are committed together.
const MAX_BATCH: usize = 256;
/// Interval at which changes by other processes are applied.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);

type Task = Box<dyn FnOnce(&mut Allocator) + Send>;

enum Job {
    Place {
        request: Box<Request>,
        key: Option<String>,
        /// The token's name, for the events.
        actor: String,
        answer: oneshot::Sender<Result<Reserved, AllocateError>>,
    },
    Query(Task),
}

/// Why there is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerError {
    /// The queue is full.
    Busy,
    /// The thread has ended.
    Gone,
}

/// Handle to the thread.
#[derive(Debug)]
pub(crate) struct PlacementWorker {
    jobs: SyncSender<Job>,
}

impl PlacementWorker {
    pub fn start(allocator: Allocator, log: Log) -> std::io::Result<Self> {
        let (jobs, receiver) = sync_channel(MAX_QUEUED);
        std::thread::Builder::new()
            .name("placement-worker".into())
            .spawn(move || run_jobs(allocator, &receiver, &log))?;
        Ok(Self { jobs })
    }

    fn send(&self, job: Job) -> Result<(), WorkerError> {
        self.jobs.try_send(job).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(_) => WorkerError::Busy,
            std::sync::mpsc::TrySendError::Disconnected(_) => WorkerError::Gone,
        })
    }

    /// Places a request durably, on behalf of `actor`.
    pub async fn place(
        &self,
        request: Request,
        key: Option<String>,
        actor: String,
    ) -> Result<Result<Reserved, AllocateError>, WorkerError> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Place { request: Box::new(request), key, actor, answer })?;
        answered.await.map_err(|_| WorkerError::Gone)
    }

    /// Runs `task` with the up-to-date allocator.
    pub async fn query<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Allocator) -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Query(Box::new(move |allocator| {
            // Fails if the receiver was dropped; the answer is then not needed.
            let _ = answer.send(task(allocator));
        })))?;
        answered.await.map_err(|_| WorkerError::Gone)
    }

    /// Runs `task` with the allocator, or drops it if the queue is full.
    pub fn submit(&self, task: impl FnOnce(&mut Allocator) + Send + 'static) {
        let _ = self.send(Job::Query(Box::new(task)));
    }
}

fn run_jobs(mut allocator: Allocator, jobs: &Receiver<Job>, log: &Log) {
    let apply_changes = |allocator: &mut Allocator| {
        if let Err(error) = allocator.apply_changes() {
            log(&format!("cannot read the changes from the database: {error}"));
        }
    };
    let mut due = Instant::now() + REFRESH_INTERVAL;
    loop {
        let first = match jobs.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Apply changes even under constant load; otherwise every decision would be based on outdated reservations.
        if Instant::now() >= due {
            apply_changes(&mut allocator);
            due = Instant::now() + REFRESH_INTERVAL;
        }
        let (mut begun, mut refused) = (Vec::new(), Vec::new());
        let mut next = first;
        while let Some(job) = next {
            match job {
                Job::Place { request, key, actor, answer } => {
                    match allocator
                        .on_behalf_of(&actor, |allocator| allocator.begin(&request, key.as_deref()))
                    {
                        Ok(reservation) => begun.push((reservation, actor, answer)),
                        Err(error) => refused.push((error, request, key, answer)),
                    }
                }
                Job::Query(task) => {
                    apply_changes(&mut allocator);
                    task(&mut allocator);
                }
            }
            next = if begun.len() + refused.len() < MAX_BATCH { jobs.try_recv().ok() } else { None };
        }
        for (reservation, actor, answer) in begun {
            let finished = allocator.on_behalf_of(&actor, |allocator| allocator.finish(reservation));
            // Fails if the client has disconnected. The reservation stays, and a retry with the same key finds it.
            let _ = answer.send(finished);
        }
        for (error, request, key, answer) in refused {
            let _ = answer.send(allocator.earlier_answer(&request, key.as_deref(), error));
        }
    }
}
