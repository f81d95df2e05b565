//! The hosts: the last reports of their agents, and whether they are up.

use super::ServiceState;
use super::migrations::Stuck;
use crate::wire::{AgentReport, Order, PROTOCOL};
use longma_locks::IgnorePoison;
use longma_placement::audit::Finding;
use longma_placement::foreign::ForeignDomain;
use longma_placement::inventory::HostStatus;
use longma_placement::store::{StoreError, VmId};
use longma_placement::switcher::{SwitchPolicy, Switcher};
use longma_placement::{CpuSet, Host, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A host whose agent is silent for this long accepts no more virtual machines.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which an agent's last contact is written to the store.
pub(crate) const CONTACT_INTERVAL: Duration = Duration::from_secs(10);

/// Lost resources of a host, as its agent last reported.
#[derive(Clone, Debug)]
pub(crate) struct LostResources {
    pub found: Arc<Host>,
    /// Lost CPUs that are dedicated to a virtual machine.
    pub dedicated_cpus: CpuSet,
    /// One sentence per lost resource.
    pub problems: Vec<String>,
    /// When a virtual machine was last moved off a lost CPU.
    pub moved: Option<Instant>,
}

/// The machine whose agent manages a host.
#[derive(Clone, Debug)]
pub(crate) struct ManagingAgent {
    pub machine: String,
    /// When the agent last reported here.
    pub last_report: Instant,
    /// When the store last confirmed that this machine manages the host.
    pub confirmed: Instant,
}

/// In-memory state of a host.
#[derive(Debug)]
pub(crate) struct HostState {
    pub(super) generation: watch::Sender<u64>,
    pub(super) orders: Vec<Order>,
    /// When its agent last reported here.
    pub last_report: Option<Instant>,
    /// When that contact was last written to the store.
    pub(super) contact_stored: Option<Instant>,
    /// Last contact time in the store, and when that value was first seen here: the agent may report to another
    /// service. Time stamps of other machines are compared only with each other.
    pub store_contact: Option<(i64, Instant)>,
    pub findings: Vec<Finding>,
    pub audited: Option<Instant>,
    pub problems: Vec<String>,
    pub foreign: Vec<String>,
    pub foreign_domains: Vec<ForeignDomain>,
    /// The agent that manages the host.
    pub manager: Option<ManagingAgent>,
    /// When an agent of another machine was last rejected.
    pub refused: Option<Instant>,
    /// Resources that are reserved but lost.
    pub lost: Option<LostResources>,
    /// The host as its agent found it, if existing reservations do not fit this description; the reason; and the time
    /// of the last attempt to store it.
    pub rejected_description: Option<(Arc<Host>, String, Instant)>,
    pub(super) switcher: Switcher,
    /// Version of the protocol that its agent speaks; `None` before its first report.
    pub(super) protocol: Option<u32>,
    /// Whether virtual machines are being migrated off it.
    pub(super) is_emptying: bool,
    /// Name of the token whose request emptied the host, if this process received the request.
    pub emptied_by: Option<String>,
    /// Virtual machines that could not leave the host.
    pub(super) stuck: BTreeMap<VmId, Stuck>,
}

impl HostState {
    /// When the store's last contact time `seen_at` was first seen here.
    pub fn seen(&mut self, seen_at: i64) -> Instant {
        match self.store_contact {
            Some((known, at)) if known == seen_at => at,
            _ => self.store_contact.insert((seen_at, Instant::now())).1,
        }
    }

    /// Ensures that the next report updates the host's status.
    pub fn expire_contact(&mut self) {
        self.contact_stored = None;
    }

    /// All problems of the host: those that the agent reports, lost resources, an unusable description, and a silent
    /// agent.
    pub fn all_problems(&self) -> Vec<String> {
        let silent = self.last_report.map(|at| at.elapsed()).filter(|silent| *silent > SILENCE_TIMEOUT);
        let silent = silent.map(|silent| {
            format!(
                "its agent has not reported here for {} s: the virtual machines there are not supervised",
                silent.as_secs()
            )
        });
        let lost = self.lost.iter().flat_map(|lost| &lost.problems);
        let rejected_description = self.rejected_description.iter().map(|(_, why, _)| why);
        let is_old = self.protocol.is_some_and(|version| version < PROTOCOL);
        let old = is_old.then(|| "its agent is of an older version than this service: update it".to_string());
        let stuck = self.stuck.values().map(|(_, why)| why);
        let others = self.problems.iter().chain(lost).chain(rejected_description).chain(stuck);
        others.cloned().chain(silent).chain(old).collect()
    }

    fn new() -> Self {
        Self {
            generation: watch::Sender::new(1),
            orders: Vec::new(),
            last_report: None,
            contact_stored: None,
            store_contact: None,
            findings: Vec::new(),
            audited: None,
            problems: Vec::new(),
            foreign: Vec::new(),
            foreign_domains: Vec::new(),
            manager: None,
            refused: None,
            lost: None,
            rejected_description: None,
            switcher: Switcher::new(SwitchPolicy::default()),
            protocol: None,
            is_emptying: false,
            emptied_by: None,
            stuck: BTreeMap::new(),
        }
    }
}

impl ServiceState {
    /// Calls `look` with the in-memory state of a host, creating it if necessary.
    pub fn host<T>(&self, name: &str, look: impl FnOnce(&mut HostState) -> T) -> T {
        let mut hosts = self.hosts.lock().ignore_poison();
        if !hosts.contains_key(name) {
            hosts.insert(name.into(), HostState::new());
        }
        look(hosts.get_mut(name).expect("it was inserted above"))
    }

    /// Number of hosts whose agents have reported to this service.
    pub fn reported_hosts(&self) -> usize {
        self.hosts.lock().ignore_poison().values().filter(|h| h.last_report.is_some()).count()
    }

    /// Returns whether a host's agent reports to this service. Only then can it receive orders.
    pub fn is_connected(&self, host: &str) -> bool {
        self.host(host, |h| h.last_report.is_some_and(|at| at.elapsed() < SILENCE_TIMEOUT))
    }

    /// Returns whether a host's agent may still run: it has reported here lately or, if other services use the database,
    /// perhaps to one of them. `seen_at` is the contact time in the store.
    pub fn is_alive(&self, host: &str, seen_at: i64) -> bool {
        let is_shared = self.shared;
        self.host(host, |h| {
            let store_contact = h.seen(seen_at);
            let lately = |at: Instant| at.elapsed() < SILENCE_TIMEOUT;
            h.last_report.is_some_and(lately) || is_shared && lately(store_contact)
        })
    }

    /// Drops the in-memory state of a host that was removed.
    pub fn forget_host(&self, host: &str) {
        self.hosts.lock().ignore_poison().remove(host);
    }

    /// Records contact with an agent, and writes it to the store at intervals.
    pub fn record_contact(&self, host: &str) -> Result<(), StoreError> {
        let due = self.host(host, |h| {
            let now = Instant::now();
            h.last_report = Some(now);
            let due = h.contact_stored.is_none_or(|at| at.elapsed() > CONTACT_INTERVAL);
            if due {
                h.contact_stored = Some(now);
            }
            due
        });
        if !due {
            return Ok(());
        }
        let _guard = self.status_lock.lock().ignore_poison();
        let is_described = self.host(host, |h| h.rejected_description.is_none());
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
            (h.foreign_domains, h.protocol) = (report.foreign_domains, Some(report.protocol));
            had
        });
        match (had, problems) {
            (0, 1..) => drop(self.store.raise_alarm(host, None, "agent-problem", problems as f64)?),
            (1.., 0) => drop(self.store.clear_alarm(host, None, "agent-problem")?),
            _ => {}
        }
        for done in report.done {
            self.complete(host, done);
        }
        if report.generation == 0 {
            self.drop_fetched_orders(host);
        }
        self.record_contact(host)?;
        if !report.load.is_empty() {
            self.record_load(host, report.load)?;
        }
        self.recheck_lost(host)?;
        if !report.vm_cpus.is_empty() {
            self.balance(host, report.vm_cpus)?;
        }
        Ok(())
    }

    /// Sets a host's status through `store`, which records the actor. While its agent is silent or the host does not match its description, `Up`
    /// becomes `Down`.
    pub fn set_status(&self, store: &dyn Store, host: &str, status: HostStatus) -> Result<(), StoreError> {
        let _guard = self.status_lock.lock().ignore_poison();
        let seen_at = self.store.host(host)?.seen_at;
        let is_fit = self.host(host, |h| {
            let store_contact = h.seen(seen_at);
            let last_report =
                h.last_report.map_or(store_contact, |last_report| last_report.max(store_contact));
            h.rejected_description.is_none() && last_report.elapsed() < SILENCE_TIMEOUT
        });
        let status = if status == HostStatus::Up && !is_fit { HostStatus::Down } else { status };
        if status != HostStatus::Emptying {
            self.host(host, |h| h.stuck.clear());
        }
        store.set_host_status(host, status, false)
    }

    /// Marks a host that is up as down, until its agent reports again.
    pub(crate) fn set_down(&self, host: &str) -> Result<(), StoreError> {
        let _guard = self.status_lock.lock().ignore_poison();
        if self.store.host(host)?.status == HostStatus::Up {
            self.store.set_host_status(host, HostStatus::Down, false)?;
        }
        Ok(())
    }
}
