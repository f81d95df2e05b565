//! The agent of one host. It describes the host to the service, reconciles its virtual machines with the store, carries
//! out moves, and reports.

mod local;
mod remote;
mod reserve;

pub use reserve::MemoryReserve;

use crate::Log;
use crate::client::Client;
use crate::state::ServiceState;
use crate::wire::{AgentOrders, AgentReport, Order, OrderDone, OrderKind, Preparation};
use local::Local;
use longma_placement::audit::audit;
use longma_placement::collect::{Counters, counters};
use longma_placement::foreign::{self, ForeignDomain, intrusions};
use longma_placement::hypervisor::{ShutdownDeadline, domain_name};
use longma_placement::reconcile::{Ready, migrate_vm, move_vm, receive, reconcile};
use longma_placement::store::{StoreError, Vm, VmId, VmState};
use longma_placement::{AgentStore, CpuSet, Host, Hypervisor, collect};
use remote::Remote;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a report is held open to wait for work.
const REPORT_WAIT: Duration = Duration::from_secs(2);
/// Interval between full checks. They also run without work, because domains may be changed from outside.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Interval at which the host's description is refreshed, because CPUs and memory may be added and removed.
const DESCRIBE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of heartbeats during long operations. Starting a large virtual machine takes minutes, and the host of a
/// silent agent accepts no virtual machines.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for operations in progress at shutdown. A service manager kills a process that takes much longer.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit for the target of a migration to prepare its host.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// Additional time to report the result of the last call.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The source of a host's description.
#[derive(Clone, Debug)]
pub enum Description {
    /// Read from `/sys` and `/proc` below a directory, repeatedly.
    Read {
        /// The directory: "/" for this machine.
        root: PathBuf,
        /// Name of the host.
        name: String,
        /// CPUs reserved for the host.
        reserved: CpuSet,
        /// Memory reserved for the host.
        reserved_memory: MemoryReserve,
    },
    /// A constant description of a simulated host.
    Fixed(Box<Host>),
}

impl Description {
    /// Returns the current description.
    ///
    /// # Errors
    /// If a file is missing or malformed; the message names it.
    pub fn host(&self) -> Result<Host, String> {
        match self {
            Self::Fixed(host) => Ok((**host).clone()),
            Self::Read { root, name, reserved, reserved_memory } => {
                let mut host = collect(root, name).map_err(|e| e.to_string())?;
                reserved_memory.apply(&mut host)?;
                host.reserved = reserved.clone();
                host.check().map_err(|e| e.to_string())?;
                Ok(host)
            }
        }
    }

    fn counters(&self) -> Option<Counters> {
        match self {
            Self::Fixed(_) => None,
            // Unreadable counters are not reported here. The description reports missing files.
            Self::Read { root, .. } => counters(root).ok(),
        }
    }
}

/// A host served by an agent in the service's process, with its hypervisor.
pub struct AllInOne {
    /// The source of the host's description.
    pub description: Description,
    /// Its hypervisor.
    pub hypervisor: Box<dyn Hypervisor>,
}

/// An agent's connection to the service.
trait ControlPlane: Send + Sync {
    /// The store, or the part of it that the API offers to agents.
    fn store(&self) -> &dyn AgentStore;
    /// Registers the host or updates its description.
    fn describe(&self, host: &Host) -> Result<(), StoreError>;
    /// Sends a report and waits for work.
    fn report(&self, host: &str, report: AgentReport) -> Result<AgentOrders, StoreError>;
    /// Requests the answer of a migration's target, and waits a few seconds for it.
    fn prepare(&self, vm: VmId) -> Result<Preparation, StoreError>;
    /// The shutdown deadline.
    fn shutdown_deadline(&self) -> &ShutdownDeadline;
}

/// An agent.
pub struct Agent {
    control_plane: Arc<dyn ControlPlane>,
    description: Description,
    hypervisor: Box<dyn Hypervisor>,
    log: Log,
    cpu_seconds: BTreeMap<VmId, (Instant, f64)>,
    /// Domains that the service does not manage; `None` until libvirt has answered once.
    foreign: Option<Vec<ForeignDomain>>,
}

/// State that persists between rounds.
struct Round {
    host: Host,
    described_at: Instant,
    checked_at: Option<Instant>,
    generation: u64,
    counters: Option<Counters>,
    report: AgentReport,
}

impl Agent {
    /// Creates an agent in the service's process.
    pub(crate) fn in_process(
        state: Arc<ServiceState>,
        runtime: tokio::runtime::Handle,
        host: AllInOne,
    ) -> Self {
        let log = state.log.clone();
        let control_plane = Arc::new(Local::new(state, runtime, machine()));
        let AllInOne { description, mut hypervisor } = host;
        hypervisor.set_shutdown_deadline(control_plane.shutdown_deadline());
        Self { control_plane, description, hypervisor, log, cpu_seconds: BTreeMap::new(), foreign: None }
    }

    /// Creates an agent that reaches its service over the network. It ends on SIGTERM and SIGINT.
    pub fn remote(
        client: Client,
        host: &str,
        description: Description,
        mut hypervisor: Box<dyn Hypervisor>,
        log: Log,
    ) -> Self {
        let client = if client.is_agent() { client } else { client.for_machine(&machine()) };
        let control_plane = Arc::new(Remote::new(client, host, deadline_on_signal(&log)));
        hypervisor.set_shutdown_deadline(control_plane.shutdown_deadline());
        Self { control_plane, description, hypervisor, log, cpu_seconds: BTreeMap::new(), foreign: None }
    }

    /// Runs until shutdown. Then finishes the operation in progress, or abandons it if a call of the service or the
    /// kernel hangs. Failures are logged and retried.
    pub fn run(self) {
        let (control_plane, log) = (self.control_plane.clone(), self.log.clone());
        let (at_work, ended) = channel::<()>();
        let working = std::thread::Builder::new().name("placement-agent".into()).spawn(move || {
            let _at_work = at_work;
            self.run_loop();
        });
        if let Err(error) = working {
            return log(&format!("an agent cannot work: {error}"));
        }
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_millis(200)) {
            if control_plane.shutdown_deadline().has_passed()
                && ended.recv_timeout(FINAL_REPORT_TIMEOUT) == Err(RecvTimeoutError::Timeout)
            {
                return log("an agent did not stop; the next start completes or undoes its unfinished work");
            }
        }
    }

    fn run_loop(mut self) {
        let mut reported = String::new();
        let mut round = None;
        while !self.control_plane.shutdown_deadline().is_set() {
            let Err(problem) = self.round(&mut round) else {
                if !reported.is_empty() {
                    (self.log)("the agent works again");
                    reported.clear();
                }
                continue;
            };
            if problem != reported {
                (self.log)(&format!("the agent failed and tries again: {problem}"));
                reported = problem;
            }
            // Start over, because the service may have been recreated.
            round = None;
            let until = Instant::now() + REPORT_WAIT;
            while Instant::now() < until && !self.control_plane.shutdown_deadline().is_set() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// Sends the host's description. If it conflicts with existing reservations, logs that and continues.
    fn describe(&self, host: &Host) -> Result<(), String> {
        match self.control_plane.describe(host) {
            Err(error @ StoreError::Conflict { .. }) => {
                (self.log)(&format!(
                    "the new description conflicts with reservations, so the previous one stays in use: {error}"
                ));
                Ok(())
            }
            described_at => described_at.map_err(|e| e.to_string()),
        }
    }

    /// The host without the CPUs and memory of domains that the service does not manage.
    fn current_host(&mut self) -> Result<Host, String> {
        let mut host = self.description.host()?;
        match foreign::find(self.control_plane.store(), &mut *self.hypervisor, &host) {
            Ok(found) => self.foreign = Some(found),
            // Without the list, a virtual machine could get resources that are in use.
            Err(error) if self.foreign.is_none() => return Err(error.to_string()),
            // The next check reports why the hypervisor does not answer.
            Err(_) => {}
        }
        foreign::withhold(&mut host, self.foreign.as_deref().unwrap_or_default());
        Ok(host)
    }

    fn begin(&mut self) -> Result<Round, String> {
        let host = self.current_host()?;
        self.describe(&host)?;
        let counters = self.description.counters();
        let report = AgentReport::default();
        Ok(Round { host, described_at: Instant::now(), checked_at: None, generation: 0, counters, report })
    }

    fn round(&mut self, kept: &mut Option<Round>) -> Result<(), String> {
        let mut round = match kept.take() {
            Some(round) => round,
            None => self.begin()?,
        };
        if round.described_at.elapsed() > DESCRIBE_INTERVAL {
            let heartbeats = self.start_heartbeats(&round.host.name);
            let host = self.current_host()?;
            drop(heartbeats);
            if host != round.host {
                self.describe(&host)?;
                round.host = host;
            }
            round.described_at = Instant::now();
        }
        // A client waits for the result of an order, so report it before the next full check.
        let has_done = !round.report.done.is_empty();
        if !has_done && round.checked_at.is_none_or(|at| at.elapsed() > CHECK_INTERVAL) {
            let _heartbeats = self.start_heartbeats(&round.host.name);
            self.check_host(&mut round);
        }
        if let (Some(now), Some(then)) = (self.description.counters(), &round.counters) {
            round.report.load = now.load_since(then, &round.host);
            round.counters = Some(now);
        }
        round.report.foreign_domains = self.foreign.clone().unwrap_or_default();
        round.report.generation = round.generation;
        round.report.wait_ms = if has_done { 0 } else { REPORT_WAIT.as_millis() as u64 };
        let report = std::mem::take(&mut round.report);
        let (problems, foreign) = (report.problems.clone(), report.foreign.clone());
        let orders = self.control_plane.report(&round.host.name, report).map_err(|e| e.to_string())?;
        // The problems and foreign domains stay valid until the next full check.
        (round.report.problems, round.report.foreign) = (problems, foreign);
        if orders.generation != round.generation {
            round.generation = orders.generation;
            let _heartbeats = self.start_heartbeats(&round.host.name);
            for order in orders.orders {
                let done = self.execute(&round.host, order);
                round.report.done.push(done);
            }
            match round.report.done.is_empty() {
                true => self.check_host(&mut round),
                false => round.checked_at = None,
            }
        }
        *kept = Some(round);
        Ok(())
    }

    /// Sends heartbeats until the returned sender is dropped.
    fn start_heartbeats(&self, host: &str) -> Sender<()> {
        let (held, released) = channel();
        let (control_plane, host) = (self.control_plane.clone(), host.to_string());
        std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = released.recv_timeout(HEARTBEAT_INTERVAL) {
                // If this fails, the agent is considered silent. The next regular report logs the reason.
                let _ = control_plane.report(&host, AgentReport { at_work: true, ..AgentReport::default() });
            }
        });
        held
    }

    /// Reconciles the host and audits it.
    fn check_host(&mut self, round: &mut Round) {
        round.checked_at = Some(Instant::now());
        let store = self.control_plane.store();
        round.report.problems.clear();
        match reconcile(store, &mut *self.hypervisor, &round.host) {
            Ok(done) => {
                done.done.iter().for_each(|line| (self.log)(line));
                done.problems.iter().for_each(|line| (self.log)(line));
                (round.report.problems, round.report.foreign) = (done.problems, done.foreign);
            }
            Err(error) => {
                (self.log)(&error.to_string());
                round.report.problems.push(error.to_string());
            }
        }
        if let Ok(vms) = self.control_plane.store().host_vms(&round.host.name) {
            let foreign = self.foreign.as_deref().unwrap_or_default();
            round.report.problems.extend(intrusions(foreign, &vms, &round.host.name));
        }
        if !round.report.problems.is_empty() {
            // Check again sooner than usual. An immediate retry would most likely fail again.
            round.checked_at = Instant::now().checked_sub(CHECK_INTERVAL.saturating_sub(REPORT_WAIT));
        }
        match audit(store, &mut *self.hypervisor, &round.host) {
            Ok(findings) => round.report.findings = Some(findings),
            Err(error) => round.report.problems.push(error.to_string()),
        }
        round.report.vm_cpus = self.vm_cpus(&round.host);
    }

    /// CPU usage of each virtual machine since the last check, in CPUs.
    fn vm_cpus(&mut self, host: &Host) -> BTreeMap<VmId, f64> {
        let vms: Vec<Vm> = self.control_plane.store().host_vms(&host.name).unwrap_or_default();
        let mut used = BTreeMap::new();
        let mut kept = BTreeMap::new();
        for vm in vms.iter().filter(|vm| vm.state == VmState::Running) {
            let Ok(Some(seconds)) = self.hypervisor.cpu_seconds(&domain_name(vm.id)) else { continue };
            let now = Instant::now();
            if let Some((at, before)) = self.cpu_seconds.get(&vm.id) {
                let passed = now.duration_since(*at).as_secs_f64();
                // The counter restarts when a domain is created again.
                if passed > 0.1 && seconds >= *before {
                    used.insert(vm.id, (seconds - before) / passed);
                }
            }
            kept.insert(vm.id, (now, seconds));
        }
        self.cpu_seconds = kept;
        used
    }

    fn execute(&mut self, host: &Host, order: Order) -> OrderDone {
        match order.kind {
            OrderKind::Move => self.make_move(host, order),
            OrderKind::Migrate => self.migrate(host, order),
            OrderKind::Receive => {
                let received = receive(self.control_plane.store(), &mut *self.hypervisor, host, order.vm);
                let (ready, problem) = match received {
                    Ok(ready) => (Some(ready), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                OrderDone { number: order.number, problem, ready }
            }
        }
    }

    /// Polls the service until the target's agent has prepared its host or refused.
    fn ready(control_plane: &dyn ControlPlane, vm: VmId) -> Result<Ready, String> {
        let until = Instant::now() + PREPARE_TIMEOUT;
        while Instant::now() < until && !control_plane.shutdown_deadline().is_set() {
            match control_plane.prepare(vm).map_err(|error| error.to_string())? {
                Preparation::Ready(ready) => return Ok(ready),
                Preparation::Refused(why) => return Err(why),
                Preparation::Pending => {}
            }
        }
        Err("its agent did not answer in time".into())
    }

    fn migrate(&mut self, host: &Host, order: Order) -> OrderDone {
        let control_plane = self.control_plane.clone();
        let mut prepare = || Self::ready(&*control_plane, order.vm);
        let store = self.control_plane.store();
        let migrated = migrate_vm(store, &mut *self.hypervisor, host, order.vm, &order.target, &mut prepare);
        let problem = match migrated {
            Ok(report) => (!report.has_migrated).then(|| report.problems.join("; ")),
            Err(error) => Some(error.to_string()),
        };
        let (vm, to) = (order.vm, &order.target.host);
        match &problem {
            None => (self.log)(&format!("virtual machine {vm} migrated to {to}")),
            Some(problem) => (self.log)(&format!("virtual machine {vm} was not migrated to {to}: {problem}")),
        }
        OrderDone { number: order.number, problem, ready: None }
    }

    fn make_move(&mut self, host: &Host, order: Order) -> OrderDone {
        let store = self.control_plane.store();
        let moved = move_vm(store, &mut *self.hypervisor, host, order.vm, &order.target);
        let problem = match moved {
            Ok(report) => {
                let arrived = store.vm(order.vm).is_ok_and(|vm| {
                    vm.state == VmState::Running && vm.placement.as_ref() == Some(&order.target)
                });
                (!arrived).then(|| report.problems.join("; "))
            }
            Err(error) => Some(error.to_string()),
        };
        match &problem {
            None => (self.log)(&format!("virtual machine {} moved", order.vm)),
            Some(problem) => (self.log)(&format!("virtual machine {} was not moved: {problem}", order.vm)),
        }
        OrderDone { number: order.number, problem, ready: None }
    }
}

/// Identity of this machine, different from any copy of it and constant until reboot: the kernel's boot ID (random(4)).
/// Falls back to the process ID.
fn machine() -> String {
    let started = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let started: String = started.chars().filter(char::is_ascii_hexdigit).collect();
    if started.is_empty() { format!("process{}", std::process::id()) } else { started }
}

/// A deadline that is set on SIGTERM or SIGINT.
fn deadline_on_signal(log: &Log) -> ShutdownDeadline {
    let shutdown_deadline = ShutdownDeadline::default();
    let (begun, log) = (shutdown_deadline.clone(), log.clone());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let waited = runtime.and_then(|runtime| runtime.block_on(crate::signals::ended()));
        match waited {
            Ok(()) => begun.begin(SHUTDOWN_TIMEOUT),
            Err(error) => log(&format!(
                "cannot handle signals, so they end the agent at once, which loses \
                no data: {error}"
            )),
        }
    });
    shutdown_deadline
}
