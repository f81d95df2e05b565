//! State shared by all requests: the store, the scheduler, the latest agent reports, and orders waiting for agents.
//! Anything that must survive a restart is in the store.

use crate::Log;
use crate::access::Caller;
use crate::decider::Decider;
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::wire::{AgentOrders, AgentReport, Order, OrderDone};
use longma_placement::audit::Finding;
use longma_placement::host::NodeLoad;
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::inventory::HostStatus;
use longma_placement::monitor::{Change, Monitor, Threshold};
use longma_placement::store::{Alarm, Intent, StoreError, Vm, VmId, VmQuery};
use longma_placement::switcher::{SwitchPolicy, Switcher};
use longma_placement::{CpuSet, Host, Placement, Store};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{oneshot, watch};

/// A host whose agent is silent for this long accepts no more virtual machines.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// Interval at which an agent's last contact is written to the store.
pub(crate) const NOTING: Duration = Duration::from_secs(10);
/// Maximum time that an agent's report is held open to wait for work.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Minimum interval between reloads of the tokens, to find those added by other processes. It limits the load from
/// unknown tokens.
const TOKEN_REFRESH: Duration = Duration::from_secs(1);
/// Samples arrive about every two seconds, so an alarm takes ten seconds.
const CPU: Threshold = Threshold { raise: 0.95, clear: 0.85, samples: 5 };
const MEMORY: Threshold = Threshold { raise: 0.95, clear: 0.90, samples: 5 };

/// Lost resources of a host, as its agent last reported.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub found: Arc<Host>,
    /// Lost CPUs that are dedicated to a virtual machine.
    pub own_cpus: CpuSet,
    /// One sentence per lost resource.
    pub said: Vec<String>,
    /// When a virtual machine was last moved off a lost CPU.
    pub moved: Option<Instant>,
}

/// The machine whose agent manages a host.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub machine: String,
    /// When the agent last reported here.
    pub heard: Instant,
    /// When the store last confirmed that this machine manages the host.
    pub asked: Instant,
}

/// In-memory state of a host.
#[derive(Debug)]
pub(crate) struct HostDesk {
    generation: watch::Sender<u64>,
    orders: Vec<Order>,
    pub heard: Option<Instant>,
    noted: Option<Instant>,
    /// Last contact time in the store, and when that value was first seen here: the agent may report to another
    /// service. Time stamps of other machines are compared only with each other.
    pub elsewhere: Option<(i64, Instant)>,
    pub findings: Vec<Finding>,
    pub audited: Option<Instant>,
    pub problems: Vec<String>,
    pub foreign: Vec<String>,
    /// The agent that manages the host.
    pub holder: Option<Holder>,
    /// When an agent of another machine was last rejected.
    pub refused: Option<Instant>,
    /// Resources that are reserved but lost.
    pub lost: Option<Lost>,
    /// The host as its agent found it, if existing reservations do not fit it; the reason; and when it was last tried.
    pub undescribed: Option<(Arc<Host>, String, Instant)>,
    switcher: Switcher,
}

impl HostDesk {
    /// When the store's last contact time `seen_at` was first seen here.
    pub fn seen(&mut self, seen_at: i64) -> Instant {
        match self.elsewhere {
            Some((known, at)) if known == seen_at => at,
            _ => self.elsewhere.insert((seen_at, Instant::now())).1,
        }
    }

    /// Makes the next report update the host's status.
    pub fn note_soon(&mut self) {
        self.noted = None;
    }

    /// Everything an operator should know: problems of the agent, lost resources, and a silent agent.
    pub fn all_problems(&self) -> Vec<String> {
        let silent = self.heard.map(|at| at.elapsed()).filter(|silent| *silent > SILENCE);
        let silent = silent.map(|silent| {
            format!(
                "its agent has not reported here for {} s: the virtual machines there are not supervised",
                silent.as_secs()
            )
        });
        let lost = self.lost.iter().flat_map(|lost| &lost.said);
        let undescribed = self.undescribed.iter().map(|(_, why, _)| why);
        self.problems.iter().chain(lost).chain(undescribed).cloned().chain(silent).collect()
    }

    fn new() -> Self {
        Self {
            generation: watch::Sender::new(1),
            orders: Vec::new(),
            heard: None,
            noted: None,
            elsewhere: None,
            findings: Vec::new(),
            audited: None,
            problems: Vec::new(),
            foreign: Vec::new(),
            holder: None,
            refused: None,
            lost: None,
            undescribed: None,
            switcher: Switcher::new(SwitchPolicy::default()),
        }
    }
}

struct Tokens {
    by_digest: HashMap<String, Caller>,
    read: Option<Instant>,
}

/// State shared by all requests.
pub(crate) struct Desk {
    pub store: Arc<dyn Store>,
    pub decider: Decider,
    pub log: Log,
    pub metrics: Metrics,
    /// Directory with one subdirectory of disk images per tenant.
    pub images: PathBuf,
    pub overcommit_percent: u32,
    /// Whether other services may use the same database.
    pub shared: bool,
    /// Becomes true when the service shuts down.
    pub stopping: watch::Sender<bool>,
    /// Shutdown deadline for the agents in this process.
    pub ending: ShutdownDeadline,
    /// Number of the store's last event.
    pub last_event: watch::Sender<i64>,
    began: Instant,
    hosts: Mutex<BTreeMap<String, HostDesk>>,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<OrderDone>>>,
    numbers: AtomicU64,
    tokens: RwLock<Tokens>,
    monitors: Mutex<[(&'static str, Monitor); 2]>,
    /// Since when the database file has been missing from its path, in seconds since 1970.
    displaced: Mutex<Option<i64>>,
    /// Serializes reading and writing a host's status, so that a concurrent drain is not lost.
    statuses: Mutex<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is consistent after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    pub fn new(
        store: Arc<dyn Store>,
        decider: Decider,
        log: Log,
        images: PathBuf,
        overcommit_percent: u32,
        shared: bool,
    ) -> Result<Self, StoreError> {
        let mut monitors = [("cpu", Monitor::new(CPU)), ("memory", Monitor::new(MEMORY))];
        for alarm in store.alarms(true, 0)? {
            let monitor = monitors.iter_mut().find(|m| m.0 == alarm.kind);
            if let (Some((_, monitor)), Some(node)) = (monitor, alarm.node) {
                monitor.resume(&alarm.host, node);
            }
        }
        let (_, last) = store.changes_since(i64::MAX, 0)?;
        Ok(Self {
            store,
            decider,
            log,
            metrics: Metrics::new(),
            images,
            overcommit_percent,
            shared,
            stopping: watch::Sender::new(false),
            ending: ShutdownDeadline::default(),
            last_event: watch::Sender::new(last),
            began: Instant::now(),
            hosts: Mutex::default(),
            waiting: Mutex::default(),
            numbers: AtomicU64::new(1),
            tokens: RwLock::new(Tokens { by_digest: HashMap::new(), read: None }),
            monitors: Mutex::new(monitors),
            displaced: Mutex::default(),
            statuses: Mutex::default(),
        })
    }

    /// Runs a store operation on a thread that may block.
    pub async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Desk) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let desk = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&desk)).await;
        match done {
            Ok(done) => done.map_err(|error| Refusal::of_store(error, &self.log)),
            Err(error) => {
                (self.log)(&format!("a request handler panicked: {error}"));
                Err(Refusal::new(500, "internal error", "see the service's log".into()))
            }
        }
    }

    /// Reloads all tokens.
    pub fn refresh_tokens(&self) -> Result<(), StoreError> {
        let all = self.store.tokens()?;
        let by_digest = all.iter().filter_map(|t| Some((t.digest.clone(), Caller::of(t)?))).collect();
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) =
            Tokens { by_digest, read: Some(Instant::now()) };
        Ok(())
    }

    /// Returns the caller whose token has this digest.
    pub async fn caller(self: &Arc<Self>, digest: &str) -> Result<Option<Caller>, Refusal> {
        let look = |desk: &Desk, digest: &str| {
            let tokens = desk.tokens.read().unwrap_or_else(PoisonError::into_inner);
            let fresh = tokens.read.is_some_and(|at| at.elapsed() < TOKEN_REFRESH);
            (tokens.by_digest.get(digest).cloned(), fresh)
        };
        let (found, fresh) = look(self, digest);
        if fresh {
            return Ok(found);
        }
        self.with(Desk::refresh_tokens).await?;
        Ok(look(self, digest).0)
    }

    /// Returns whether a caller's token is still valid.
    pub async fn knows(self: &Arc<Self>, caller: &Caller) -> bool {
        let known = |desk: &Desk| {
            let tokens = desk.tokens.read().unwrap_or_else(PoisonError::into_inner);
            let known = tokens.by_digest.contains_key(&caller.digest);
            (known, tokens.read.is_some_and(|at| at.elapsed() < TOKEN_REFRESH))
        };
        match known(self) {
            (known, true) => known,
            (_, false) => self.with(Desk::refresh_tokens).await.is_ok() && known(self).0,
        }
    }

    /// Calls `look` with the in-memory state of a host, creating it if necessary.
    pub fn host<T>(&self, name: &str, look: impl FnOnce(&mut HostDesk) -> T) -> T {
        let mut hosts = locked(&self.hosts);
        if !hosts.contains_key(name) {
            hosts.insert(name.into(), HostDesk::new());
        }
        look(hosts.get_mut(name).expect("it was inserted above"))
    }

    /// Signals that there is work for a host's agent.
    pub fn wake(&self, host: &str) {
        self.host(host, |h| h.generation.send_modify(|g| *g += 1));
    }

    /// Waits for work on a host that is newer than `generation`, at most for `wait`. Returns the pending orders.
    pub async fn work(&self, host: &str, generation: u64, wait: Duration) -> AgentOrders {
        let mut changed = self.host(host, |h| h.generation.subscribe());
        let mut stopping = self.stopping.subscribe();
        let later = changed.wait_for(|now| *now > generation);
        tokio::select! {
            _ = tokio::time::timeout(wait.min(LONGEST_WAIT), later) => {}
            _ = stopping.wait_for(|s| *s) => {}
        }
        self.host(host, |h| AgentOrders {
            generation: *h.generation.borrow(),
            orders: std::mem::take(&mut h.orders),
        })
    }

    /// Returns whether a host's agent reports to this service. Only then can it receive orders.
    pub fn is_reached(&self, host: &str) -> bool {
        self.host(host, |h| h.heard.is_some_and(|at| at.elapsed() < SILENCE))
    }

    /// Orders a move. The receiver gets the agent's result.
    pub fn order(&self, host: &str, vm: VmId, target: Placement) -> (u64, oneshot::Receiver<OrderDone>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        locked(&self.waiting).insert(number, answer);
        self.host(host, |h| h.orders.push(Order { number, vm, target }));
        self.wake(host);
        (number, answered)
    }

    /// Cancels an order. Returns whether the agent had not fetched it yet.
    pub fn cancel(&self, host: &str, number: u64) -> bool {
        locked(&self.waiting).remove(&number);
        self.host(host, |h| {
            let before = h.orders.len();
            h.orders.retain(|o| o.number != number);
            h.orders.len() < before
        })
    }

    /// Records contact with an agent, and writes it to the store at intervals.
    pub fn note_heard(&self, host: &str) -> Result<(), StoreError> {
        let due = self.host(host, |h| {
            let now = Instant::now();
            h.heard = Some(now);
            let due = h.noted.is_none_or(|at| at.elapsed() > NOTING);
            if due {
                h.noted = Some(now);
            }
            due
        });
        if !due {
            return Ok(());
        }
        let _held = locked(&self.statuses);
        let is_described = self.host(host, |h| h.undescribed.is_none());
        let status = match self.store.host(host)?.status {
            HostStatus::Down if is_described => HostStatus::Up,
            status => status,
        };
        self.store.set_host_status(host, status, true)?;
        self.store.clear_alarm(host, None, "agent-silent").map(drop)
    }

    /// Processes an agent's report.
    pub fn report(&self, host: &str, mut report: AgentReport) -> Result<(), StoreError> {
        report.make_plain();
        let problems = report.problems.len();
        let had = self.host(host, |h| {
            let had = h.problems.len();
            if let Some(findings) = report.findings {
                (h.findings, h.audited) = (findings, Some(Instant::now()));
            }
            (h.problems, h.foreign) = (report.problems, report.foreign);
            had
        });
        match (had, problems) {
            (0, 1..) => drop(self.store.raise_alarm(host, None, "agent-problem", problems as f64)?),
            (1.., 0) => drop(self.store.clear_alarm(host, None, "agent-problem")?),
            _ => {}
        }
        for done in report.done {
            if let Some(waiting) = locked(&self.waiting).remove(&done.number) {
                // Fails if the waiting request was dropped.
                let _ = waiting.send(done);
            }
        }
        self.note_heard(host)?;
        if !report.load.is_empty() {
            self.take_load(host, report.load)?;
        }
        self.mend(host)?;
        if !report.vm_cpus.is_empty() {
            self.even_out(host, report.vm_cpus)?;
        }
        Ok(())
    }

    fn take_load(&self, host: &str, load: Vec<NodeLoad>) -> Result<(), StoreError> {
        let nodes = self.store.host(host)?.host.nodes;
        let mut changes = Vec::new();
        for (kind, monitor) in locked(&self.monitors).iter_mut() {
            for (node, load) in nodes.iter().zip(&load) {
                let value = if *kind == "cpu" { load.cpu } else { load.memory };
                let change = monitor.sample(host, node.id, value.into());
                changes.extend(change.map(|change| (*kind, node.id, change)));
            }
        }
        for (kind, node, change) in changes {
            match change {
                Change::Raised(value) => self.store.raise_alarm(host, Some(node), kind, value)?,
                Change::Cleared => self.store.clear_alarm(host, Some(node), kind)?,
            };
        }
        let host = host.to_string();
        self.decider.tell(move |allocator| {
            allocator.scheduler().set_load(&host, &load);
        });
        Ok(())
    }

    /// Orders a move that evens out the host's load, if one is due.
    fn even_out(&self, name: &str, vm_cpus: BTreeMap<VmId, f64>) -> Result<(), StoreError> {
        let host = self.store.host(name)?.host;
        let vms = self.store.vms(&VmQuery { host: Some(name.into()), ..VmQuery::default() })?;
        let now = self.began.elapsed().as_secs();
        let switcher = self.host(name, |h| h.switcher.clone());
        let (send, planned) = std::sync::mpsc::channel();
        self.decider.tell(move |allocator| {
            let _ = send.send(switcher.plan(now, &host, &vms, &vm_cpus, allocator.scheduler()));
        });
        // If the scheduler is too busy to plan, the next report tries again.
        if let Ok(Some(plan)) = planned.recv_timeout(Duration::from_secs(1)) {
            (self.log)(&format!(
                "{name}: virtual machine {} is to move: the load of the nodes differs by {:.2}",
                plan.vm, plan.imbalance.0
            ));
            self.host(name, |h| h.switcher.moved(now, plan.vm));
            // The result is not awaited: it appears in the agent's report and the store's events.
            drop(self.order(name, plan.vm, plan.target));
        }
        Ok(())
    }

    /// Sets a host's status. While its agent is silent or the host does not match its description, `Up` becomes `Down`.
    pub fn set_status(&self, host: &str, status: HostStatus) -> Result<(), StoreError> {
        let _held = locked(&self.statuses);
        let seen_at = self.store.host(host)?.seen_at;
        let is_fit = self.host(host, |h| {
            let elsewhere = h.seen(seen_at);
            let heard = h.heard.map_or(elsewhere, |heard| heard.max(elsewhere));
            h.undescribed.is_none() && heard.elapsed() < SILENCE
        });
        let status = if status == HostStatus::Up && !is_fit { HostStatus::Down } else { status };
        self.store.set_host_status(host, status, false)
    }

    /// Marks a host that is up as down, until its agent reports again.
    pub(crate) fn set_down(&self, host: &str) -> Result<(), StoreError> {
        let _held = locked(&self.statuses);
        if self.store.host(host)?.status == HostStatus::Up {
            self.store.set_host_status(host, HostStatus::Down, false)?;
        }
        Ok(())
    }

    /// Marks hosts with silent agents as down and raises an alarm.
    pub fn look_for_silence(&self) -> Result<(), StoreError> {
        for (name, seen_at) in &self.store.seen()? {
            self.forget_second_agent(name)?;
            let (heard, elsewhere) = self.host(name, |h| (h.heard, h.seen(*seen_at)));
            let heard = heard.map_or(elsewhere, |heard| heard.max(elsewhere));
            if heard.elapsed() < SILENCE {
                continue;
            }
            self.set_down(name)?;
            self.store.raise_alarm(name, None, "agent-silent", heard.elapsed().as_secs_f64())?;
            self.host(name, |h| h.noted = None);
        }
        Ok(())
    }

    /// Checks that the database file is in place, and logs a change.
    pub fn look_for_the_database(&self) {
        let mut since = locked(&self.displaced);
        match (self.store.is_in_place(), *since) {
            (Err(error), None) => {
                (self.log)(&error.to_string());
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                *since = Some(now.map_or(0, |now| now.as_secs() as i64));
            }
            (Ok(()), Some(_)) => {
                (self.log)("the database file is back in its place: writing resumes");
                *since = None;
            }
            _ => {}
        }
    }

    /// An alarm if the database file was moved.
    pub fn displaced(&self) -> Option<Alarm> {
        let raised_at = (*locked(&self.displaced))?;
        let (host, kind) = ("-".into(), "database-moved".into());
        Some(Alarm { host, node: None, kind, value: 1.0, raised_at, cleared_at: None })
    }

    /// Records what the owner wants and notifies the host's agent.
    pub fn set_intent(&self, vm: &Vm, intent: Intent) -> Result<Vm, StoreError> {
        let changed = self.store.set_intent(vm.id, intent)?;
        self.wake_host_of(&changed);
        Ok(changed)
    }

    /// Notifies the agent of a virtual machine's host.
    pub fn wake_host_of(&self, vm: &Vm) {
        if let Some(placement) = &vm.placement {
            self.wake(&placement.host);
        }
    }

    /// Reads new events. Notifies watchers, and the agents of hosts that another process changed.
    pub fn look_for_events(&self) -> Result<(), StoreError> {
        let known = *self.last_event.borrow();
        let events = self.store.events(known, 1000)?;
        let Some(last) = events.last().map(|e| e.number) else { return Ok(()) };
        for event in events.iter().filter(|e| matches!(&*e.kind, "reserved" | "intent" | "draining" | "up")) {
            match (&event.host, event.vm) {
                (Some(host), _) => self.wake(host),
                (None, Some(vm)) => self.wake_host_of(&self.store.vm(vm)?),
                (None, None) => {}
            }
        }
        self.last_event.send_replace(last);
        Ok(())
    }
}
