//! State shared by all requests: the store, the scheduler, the latest agent reports, and orders waiting for agents.
//! Anything that must survive a restart is in the store.

mod alarms;
mod audit_log;
mod events;
mod hosts;
mod lost;
mod migrations;
mod orders;
mod tokens;

use crate::Log;
use crate::metrics::Metrics;
use crate::oidc::Oidc;
use crate::placement_worker::PlacementWorker;
use crate::problem::HttpProblem;
use crate::wire::ProblemKind;
use alarms::{CPU_THRESHOLD, MEMORY_THRESHOLD};
use audit_log::RefusalLimit;
use hosts::HostState;
use longma_placement::Store;
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::monitor::Monitor;
use longma_placement::store::{AuditRecord, StoreError, VmId};
use migrations::OrderedMigration;
use orders::AwaitedOrder;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;
use tokens::Tokens;
use tokio::sync::watch;

pub(crate) use hosts::SILENCE_TIMEOUT;
pub(crate) use lost::SECOND_AGENT;
pub(crate) use orders::MAX_WAIT;
pub(crate) use tokens::USES_INTERVAL;

/// State shared by all requests.
pub(crate) struct ServiceState {
    pub store: Arc<dyn Store>,
    pub worker: PlacementWorker,
    pub log: Log,
    pub metrics: Metrics,
    /// Directory with one subdirectory of disk images per tenant.
    pub images: PathBuf,
    pub overcommit_percent: u32,
    /// Accepts the tokens of an identity provider, if one is configured.
    pub oidc: Option<Oidc>,
    /// Whether other services may use the same database.
    pub shared: bool,
    /// Becomes true when the service shuts down.
    pub stopping: watch::Sender<bool>,
    /// Shutdown deadline for the agents in this process.
    pub shutdown_deadline: ShutdownDeadline,
    /// Number of the store's last event.
    pub last_event: watch::Sender<i64>,
    started_at: Instant,
    hosts: Mutex<BTreeMap<String, HostState>>,
    awaited_orders: Mutex<BTreeMap<u64, AwaitedOrder>>,
    next_order: AtomicU64,
    migrations: Mutex<BTreeMap<VmId, OrderedMigration>>,
    tokens: RwLock<Tokens>,
    /// Counts changes of the tokens, so that streams detect revoked ones.
    pub token_changes: watch::Sender<u64>,
    /// The last use of each token, by digest, if it is not in the store yet.
    token_uses: Mutex<HashMap<String, i64>>,
    refusal_limit: Mutex<RefusalLimit>,
    /// Records of the audit log that are not written yet.
    audit_queue: Mutex<Vec<AuditRecord>>,
    /// Held by the thread that writes them.
    audit_writer: Mutex<()>,
    monitors: Mutex<[(&'static str, Monitor); 2]>,
    /// The time since which the database file has been missing from its path, in seconds since 1970.
    database_moved_at: Mutex<Option<i64>>,
    /// Serializes reading and writing a host's status, so that a concurrent drain is not lost.
    status_lock: Mutex<()>,
}

impl ServiceState {
    pub fn new(
        store: Arc<dyn Store>,
        worker: PlacementWorker,
        log: Log,
        images: PathBuf,
        overcommit_percent: u32,
        shared: bool,
    ) -> Result<Self, StoreError> {
        let mut monitors = [("cpu", Monitor::new(CPU_THRESHOLD)), ("memory", Monitor::new(MEMORY_THRESHOLD))];
        for alarm in store.alarms(true, 0)? {
            let monitor = monitors.iter_mut().find(|m| m.0 == alarm.kind);
            if let (Some((_, monitor)), Some(node)) = (monitor, alarm.node) {
                monitor.resume(&alarm.host, node);
            }
        }
        let (_, last) = store.changes_since(i64::MAX, 0)?;
        Ok(Self {
            store,
            worker,
            log,
            metrics: Metrics::new(),
            images,
            overcommit_percent,
            oidc: None,
            shared,
            stopping: watch::Sender::new(false),
            shutdown_deadline: ShutdownDeadline::default(),
            last_event: watch::Sender::new(last),
            started_at: Instant::now(),
            hosts: Mutex::default(),
            awaited_orders: Mutex::default(),
            next_order: AtomicU64::new(1),
            migrations: Mutex::default(),
            tokens: RwLock::default(),
            token_changes: watch::Sender::new(0),
            token_uses: Mutex::default(),
            refusal_limit: Mutex::default(),
            audit_queue: Mutex::default(),
            audit_writer: Mutex::default(),
            monitors: Mutex::new(monitors),
            database_moved_at: Mutex::default(),
            status_lock: Mutex::default(),
        })
    }

    /// Runs a store operation on a thread that may block.
    pub async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&ServiceState) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, HttpProblem> {
        let state = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&state)).await;
        match done {
            Ok(done) => done.map_err(|error| HttpProblem::of_store(error, &self.log)),
            Err(error) => {
                (self.log)(&format!("a request handler panicked: {error}"));
                Err(HttpProblem::new(ProblemKind::Internal, "see the service's log".into()))
            }
        }
    }
}

#[cfg(test)]
impl ServiceState {
    /// The state of a service without agents, for tests.
    fn of_store(store: &Arc<dyn Store>, shared: bool) -> Self {
        use longma_placement::{Allocator, Policy};
        let log: Log = Arc::new(|_: &str| {});
        let allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let worker = PlacementWorker::start(allocator, log.clone()).unwrap();
        Self::new(store.clone(), worker, log, "/images".into(), 200, shared).unwrap()
    }
}
