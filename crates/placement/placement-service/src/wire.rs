//! What goes over the wire beside the library's own types: bodies of requests and answers.
//! Not how they are carried (`api`, `client`).
//! Source: RFC 9457 for problems.

use longma_placement::audit::Finding;
use longma_placement::host::{Host, NodeLoad};
use longma_placement::inventory::{HostStatus, NodeUse};
use longma_placement::placement::Placement;
use longma_placement::request::Invalid;
use longma_placement::store::{Alarm, Event, TenantUse, Vm, VmId, VmState};
pub use longma_topology::sanitize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The status of the answer.
    pub status: u16,
    /// What kind of problem it is, in a few words.
    pub title: String,
    /// What is wrong here, and what to do.
    pub detail: String,
    /// Fields of the body that are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Invalid>,
}

/// A page of virtual machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmPage {
    /// By rising number.
    pub items: Vec<Vm>,
    /// What to ask for as `after` to get the next page; none if this is the last.
    pub next: Option<VmId>,
}

/// A host as users see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Its name.
    pub name: String,
    /// Whether it takes virtual machines.
    pub status: HostStatus,
    /// Seconds since its agent was last heard of; none if it was not since the service began.
    pub heard_s: Option<u64>,
    /// Virtual machines on it.
    pub vms: u32,
    /// How much of each node is promised, and its load.
    pub nodes: Vec<NodeUse>,
    /// Relative distances between the nodes.
    pub distances: Vec<Vec<u32>>,
    /// Domains that somebody else made there.
    pub foreign: Vec<String>,
    /// What its agent could not do last.
    pub problems: Vec<String>,
}

/// A drained host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// The host.
    pub host: HostView,
    /// Virtual machines that are still on it: they stay until they are deleted.
    pub left: Vec<Vm>,
}

/// Where a virtual machine should move to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rebind {
    /// Nodes of its host that it may use; empty for any that it is not on.
    #[serde(default)]
    pub nodes: Vec<u32>,
}

/// The size that a stopped virtual machine should have; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
}

/// What an audit found on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audited {
    /// The host.
    pub host: String,
    /// Seconds since its agent looked; none if it has not looked since the service began.
    pub age_s: Option<u64>,
    /// What is not as intended.
    pub findings: Vec<Finding>,
    /// What could not be done.
    pub problems: Vec<String>,
    /// Domains of others, which are left alone.
    pub foreign: Vec<String>,
}

/// All of an audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// Host by host.
    pub hosts: Vec<Audited>,
    /// Contradictions inside the database; none is as it should be.
    pub database: Vec<String>,
}

/// A move that would mend a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedMove {
    /// The virtual machine.
    pub vm: VmId,
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Nodes it is on.
    pub from: Vec<u32>,
    /// Nodes it would be on.
    pub to: Vec<u32>,
}

/// How much of a host's free memory is in pieces, and which moves would mend it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Defragmentation {
    /// The host.
    pub host: String,
    /// Part of its free memory that virtual machines of common sizes could not use, 0 to 1: now, ...
    pub score_before: f64,
    /// ... and after the moves.
    pub score_after: f64,
    /// The moves in their order. They are a plan: nothing was moved.
    pub moves: Vec<PlannedMove>,
}

/// A token that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its name, unique.
    pub name: String,
    /// `admin`, `operator`, `tenant` or `agent`.
    pub role: String,
    /// The tenant of a tenant's token, the host of an agent's; none for the others.
    #[serde(default)]
    pub scope: Option<String>,
}

/// A token as it was made: the only time that it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// Its name.
    pub name: String,
    /// The token.
    pub token: String,
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// What its bearer may do.
    pub role: String,
    /// The tenant or the host that it is for.
    pub scope: Option<String>,
    /// Seconds since 1970.
    pub created_at: i64,
}

/// A move that an agent is to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// Its number, for the answer.
    pub number: u64,
    /// The virtual machine.
    pub vm: VmId,
    /// Where it is to lie.
    pub target: Placement,
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderDone {
    /// Its number.
    pub number: u64,
    /// Why it was not carried out; none if it was.
    pub problem: Option<String>,
}

/// What an agent says of its host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentReport {
    /// Load of the host's nodes, in their order; empty if not measured.
    #[serde(default)]
    pub load: Vec<NodeLoad>,
    /// CPUs' time that each virtual machine uses, where that is known.
    #[serde(default)]
    pub vm_cpus: BTreeMap<VmId, f64>,
    /// What is not as intended; none if it was not looked at.
    #[serde(default)]
    pub findings: Option<Vec<Finding>>,
    /// What could not be done.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Domains of others.
    #[serde(default)]
    pub foreign: Vec<String>,
    /// Orders that were carried out or not.
    #[serde(default)]
    pub done: Vec<OrderDone>,
    /// The generation that the agent knows: the answer comes when there is a later one, ...
    #[serde(default)]
    pub generation: u64,
    /// ... or after so many milliseconds, at most 5000.
    #[serde(default)]
    pub wait_ms: u64,
    /// It only says that the agent is there and at work, which may take minutes: nothing else of it counts, and no order is handed out.
    #[serde(default)]
    pub at_work: bool,
}

/// The same, and no book.
pub(crate) fn plain(text: &str) -> String {
    sanitize(&text.chars().take(MOST_CHARACTERS).collect::<String>())
}

/// Characters of a text of another machine.
const MOST_CHARACTERS: usize = 2000;
/// Texts of a kind in one report.
const MOST_TEXTS: usize = 1000;

impl AgentReport {
    /// Cuts its texts to what people can be shown.
    pub(crate) fn make_plain(&mut self) {
        let findings = self.findings.iter_mut().flatten();
        let of_findings = findings.flat_map(|f| [&mut f.domain, &mut f.intended, &mut f.actual]);
        let others = self.problems.iter_mut().chain(&mut self.foreign);
        let orders = self.done.iter_mut().filter_map(|done| done.problem.as_mut());
        of_findings.chain(others).chain(orders).for_each(|text| *text = plain(text));
        self.problems.truncate(MOST_TEXTS);
        self.foreign.truncate(MOST_TEXTS);
        self.findings.iter_mut().for_each(|findings| findings.truncate(MOST_TEXTS));
    }
}

/// What an agent is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentOrders {
    /// Grows whenever something is to be done on the host.
    pub generation: u64,
    /// Moves to be made.
    pub orders: Vec<Order>,
}

/// A change of the store that an agent makes; of its own host's virtual machines only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentChange {
    /// Describes the host.
    Describe(Host),
    /// From one state to the next.
    Transition {
        /// The virtual machine.
        vm: VmId,
        /// The state it is in.
        from: VmState,
        /// The next.
        to: VmState,
        /// What went wrong.
        problem: Option<String>,
    },
    /// A move begins.
    BeginMove {
        /// The virtual machine.
        vm: VmId,
        /// Where to.
        target: Placement,
    },
    /// A move ends.
    EndMove {
        /// The virtual machine.
        vm: VmId,
        /// Whether it arrived.
        arrived: bool,
    },
}

/// Lists of what has no pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Alarms {
    /// The newest first.
    pub items: Vec<Alarm>,
}

/// A page of hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hosts {
    /// By name.
    pub items: Vec<HostView>,
    /// What to ask for as `after` to get the next page; none if this is the last.
    #[serde(default)]
    pub next: Option<String>,
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// By name.
    pub items: Vec<TokenView>,
}

/// All tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenants {
    /// By name.
    pub items: Vec<TenantUse>,
}

/// What a watcher is sent.
pub type Watched = Event;
