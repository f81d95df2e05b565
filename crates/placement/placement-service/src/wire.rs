//! Request and response bodies of the API that are not types of `longma-placement`.
//!
//! Source: RFC 9457 for problems.

pub use crate::problem_kind::ProblemKind;
use longma_placement::audit::Finding;
use longma_placement::foreign::ForeignDomain;
use longma_placement::host::{Device, Host, NodeLoad};
use longma_placement::inventory::{HostStatus, NodeUse};
use longma_placement::placement::Placement;
use longma_placement::reconcile::Ready;
use longma_placement::request::Invalid;
use longma_placement::store::{Alarm, AuditRecord, Event, TenantUse, Vm, VmId, VmState};
use longma_text::sanitize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The type of the problem, for programs.
    #[serde(default)]
    pub kind: ProblemKind,
    /// HTTP status.
    pub status: u16,
    /// The kind in a few words, for people.
    pub title: String,
    /// The error and its remedy.
    pub detail: String,
    /// Invalid fields of the body.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Invalid>,
}

/// Maximum number of characters of the invalid fields in [`Problem::summary`].
const MAX_SUMMARY_CHARS: usize = 300;

impl Problem {
    /// The detail and the invalid fields in one line.
    pub(crate) fn summary(&self) -> String {
        let fields: Vec<String> = self.fields.iter().map(ToString::to_string).collect();
        let separator = if fields.is_empty() { "" } else { ": " };
        // The names of fields may be a client's own.
        let fields: String = fields.join("; ").chars().take(MAX_SUMMARY_CHARS).collect();
        format!("{}{separator}{fields}", self.detail)
    }
}

/// A page of virtual machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmPage {
    /// In ascending order of their IDs.
    pub items: Vec<Vm>,
    /// Value of `after` for the next page; `None` on the last page.
    pub next: Option<VmId>,
}

/// A host as shown to users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Name.
    pub name: String,
    /// Whether it accepts virtual machines.
    pub status: HostStatus,
    /// Seconds since its agent last reported; `None` if it has not reported since the service started.
    pub heard_s: Option<u64>,
    /// Number of virtual machines on it.
    pub vms: u32,
    /// Reservations and load of each node.
    pub nodes: Vec<NodeUse>,
    /// Relative distances between the nodes.
    pub distances: Vec<Vec<u32>>,
    /// Domains on the host that do not belong to this service.
    pub foreign: Vec<String>,
    /// The CPUs and memory of these domains, which are unavailable to virtual machines.
    #[serde(default)]
    pub foreign_domains: Vec<ForeignDomain>,
    /// Problems in its agent's last report.
    pub problems: Vec<String>,
    /// Devices for virtual machines.
    #[serde(default)]
    pub devices: Vec<DeviceView>,
}

/// A device of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// The device.
    #[serde(flatten)]
    pub device: Device,
    /// Number of virtual machines that have it.
    pub used: u32,
}

/// A drained host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// The host.
    pub host: HostView,
    /// Virtual machines that are still on it. They stay until they are deleted.
    pub left: Vec<Vm>,
}

/// The operator's assertion about a dead host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Evacuate {
    /// The host is powered off, or cut off from the disks and networks of its virtual machines. Must be true.
    pub fenced: bool,
}

/// Result of an evacuation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evacuation {
    /// The service's view of the host.
    pub assumed: String,
    /// Virtual machines that have left the host.
    pub left: Vec<Evacuated>,
    /// Virtual machines that fit nowhere else.
    pub stayed: Vec<NotEvacuated>,
}

/// A virtual machine that has left a dead host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evacuated {
    /// Its ID.
    pub vm: VmId,
    /// Its name.
    pub name: String,
    /// Its new host; `None` if it was deleted at its owner's request.
    pub to: Option<String>,
}

/// A virtual machine that stays on a dead host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotEvacuated {
    /// Its ID.
    pub vm: VmId,
    /// Its name.
    pub name: String,
    /// Why it was not moved.
    pub why: String,
}

/// Where to move a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rebind {
    /// Allowed nodes of its host; empty for any that it is not on.
    #[serde(default)]
    pub nodes: Vec<u32>,
}

/// New size of a stopped virtual machine. Omitted fields keep their value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Number of virtual CPUs.
    pub vcpus: Option<u32>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
}

/// Audit of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audited {
    /// Name of the host.
    pub host: String,
    /// Seconds since its agent's last audit; `None` if there was none since the service started.
    pub age_s: Option<u64>,
    /// Differences from the intended state.
    pub findings: Vec<Finding>,
    /// Problems of its agent.
    pub problems: Vec<String>,
    /// Domains that do not belong to this service. They are left alone.
    pub foreign: Vec<String>,
}

/// A complete audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// Audit of each host.
    pub hosts: Vec<Audited>,
    /// Inconsistencies in the database; empty if there are none.
    pub database: Vec<String>,
}

/// A move that would reduce fragmentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedMove {
    /// ID of the virtual machine.
    pub vm: VmId,
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Nodes that it is on.
    pub from: Vec<u32>,
    /// Nodes that it would be on.
    pub to: Vec<u32>,
}

/// Fragmentation of a host's free memory, and moves that would reduce it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Defragmentation {
    /// Name of the host.
    pub host: String,
    /// Fraction of its free memory that virtual machines of common sizes cannot use, 0 to 1.
    pub score_before: f64,
    /// The same after the moves.
    pub score_after: f64,
    /// The moves in order. They are only planned.
    pub moves: Vec<PlannedMove>,
}

/// A token to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Unique name.
    pub name: String,
    /// `admin`, `operator`, `tenant`, `agent` or `scheduler`.
    pub role: String,
    /// The tenant of a tenant's token or the host of an agent's token; `None` for other roles.
    #[serde(default)]
    pub scope: Option<String>,
    /// Seconds until it expires, at most ten years; `None` for a token that does not expire.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub lifetime_s: Option<u64>,
}

/// A new token. It is shown only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// Its name.
    pub name: String,
    /// The token.
    pub token: String,
    /// When it expires, in seconds since 1970; `None` if it does not.
    #[serde(default)]
    pub expires_at: Option<i64>,
}

/// A token as shown later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// Role of its bearer.
    pub role: String,
    /// The tenant or host that it is restricted to.
    pub scope: Option<String>,
    /// Creation time in seconds since 1970.
    pub created_at: i64,
    /// When it expires, in seconds since 1970; `None` if it does not.
    #[serde(default)]
    pub expires_at: Option<i64>,
    /// When it was last used, in seconds since 1970; `None` if never. Uses through other services appear within a
    /// minute.
    #[serde(default)]
    pub used_at: Option<i64>,
}

/// A page of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// Newest first.
    pub items: Vec<AuditRecord>,
    /// Value of `before` for the next page; `None` on the last page.
    pub next: Option<i64>,
}

/// Version of the protocol between agents and services that this program speaks. Version 2 has [`OrderKind`].
pub const PROTOCOL: u32 = 2;

/// An order for an agent. Agents of protocol version 1 support only moves and receive no other orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OrderKind {
    /// Move the virtual machine to other nodes of the host.
    #[default]
    Move,
    /// Migrate the virtual machine to another host.
    Migrate,
    /// Prepare the host for a virtual machine that is being migrated to it.
    Receive,
}

/// A move for an agent to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// Number of the order, repeated in the result.
    pub number: u64,
    /// ID of the virtual machine.
    pub vm: VmId,
    /// New placement.
    pub target: Placement,
    /// The action for it.
    #[serde(default)]
    pub kind: OrderKind,
}

/// Result of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderDone {
    /// Number of the order.
    pub number: u64,
    /// Why it was not carried out; `None` if it was.
    pub problem: Option<String>,
    /// With [`OrderKind::Receive`]: how the virtual machine reaches the host, and its affinity there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// An agent's report about its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentReport {
    /// Load of the host's nodes in order; empty if not measured.
    #[serde(default)]
    pub load: Vec<NodeLoad>,
    /// CPU usage of each virtual machine in CPUs, where known.
    #[serde(default)]
    pub vm_cpus: BTreeMap<VmId, f64>,
    /// Differences from the intended state; `None` if no audit was made.
    #[serde(default)]
    pub findings: Option<Vec<Finding>>,
    /// Changes that failed.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Domains that do not belong to this service.
    #[serde(default)]
    pub foreign: Vec<String>,
    /// The CPUs and memory of these domains.
    #[serde(default)]
    pub foreign_domains: Vec<ForeignDomain>,
    /// Results of orders.
    #[serde(default)]
    pub done: Vec<OrderDone>,
    /// Generation known to the agent. The answer is delayed until there is a newer one or `wait_ms` has passed.
    #[serde(default)]
    pub generation: u64,
    /// Maximum delay in milliseconds, at most 5000.
    #[serde(default)]
    pub wait_ms: u64,
    /// Version of the protocol that the agent speaks.
    #[serde(default = "first_protocol")]
    pub protocol: u32,
    /// Only signals that the agent is alive and busy, possibly for minutes. Other fields are ignored, and no orders are
    /// handed out.
    #[serde(default)]
    pub at_work: bool,
}

fn first_protocol() -> u32 {
    1
}

impl Default for AgentReport {
    fn default() -> Self {
        Self {
            load: Vec::new(),
            vm_cpus: BTreeMap::new(),
            findings: None,
            problems: Vec::new(),
            foreign: Vec::new(),
            foreign_domains: Vec::new(),
            done: Vec::new(),
            generation: 0,
            wait_ms: 0,
            protocol: PROTOCOL,
            at_work: false,
        }
    }
}

/// Strips control characters and limits the length.
pub(crate) fn plain(text: &str) -> String {
    sanitize(&text.chars().take(MAX_TEXT_CHARS).collect::<String>())
}

/// Maximum number of characters of a text from another machine.
const MAX_TEXT_CHARS: usize = 2000;
/// Maximum number of texts of one kind in a report.
const MAX_TEXTS: usize = 1000;

impl AgentReport {
    /// Makes the report's texts safe to show, and limits their number and length.
    pub(crate) fn make_plain(&mut self) {
        let findings = self.findings.iter_mut().flatten();
        let of_findings = findings.flat_map(|f| [&mut f.domain, &mut f.intended, &mut f.actual]);
        let others = self.problems.iter_mut().chain(&mut self.foreign);
        let others = others.chain(self.foreign_domains.iter_mut().map(|domain| &mut domain.name));
        let orders = self.done.iter_mut().filter_map(|done| done.problem.as_mut());
        of_findings.chain(others).chain(orders).for_each(|text| *text = plain(text));
        self.problems.truncate(MAX_TEXTS);
        self.foreign.truncate(MAX_TEXTS);
        self.foreign_domains.truncate(MAX_TEXTS);
        self.findings.iter_mut().for_each(|findings| findings.truncate(MAX_TEXTS));
    }
}

/// Work for an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentOrders {
    /// Increases whenever there is new work for the host.
    pub generation: u64,
    /// Moves to make.
    pub orders: Vec<Order>,
}

/// A change that an agent makes in the store, for virtual machines of its host only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentChange {
    /// Registers the host or updates its description.
    Describe(Host),
    /// Changes a virtual machine's state.
    Transition {
        /// ID of the virtual machine.
        vm: VmId,
        /// Current state.
        from: VmState,
        /// Next state.
        to: VmState,
        /// Problem to record.
        problem: Option<String>,
    },
    /// Begins a move.
    BeginMove {
        /// ID of the virtual machine.
        vm: VmId,
        /// New placement.
        target: Placement,
    },
    /// Ends a move.
    EndMove {
        /// ID of the virtual machine.
        vm: VmId,
        /// Whether the move succeeded.
        arrived: bool,
    },
    /// Begins the ordered migration.
    BeginMigration {
        /// ID of the virtual machine.
        vm: VmId,
        /// New placement, as in the order.
        target: Placement,
    },
    /// Ends a migration.
    EndMigration {
        /// ID of the virtual machine.
        vm: VmId,
        /// Why the virtual machine has stayed; `None` if it has left the host.
        problem: Option<String>,
    },
}

/// Whether the target of a migration is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preparation {
    /// The target's agent has not answered yet; repeat the request.
    Pending,
    /// It is ready.
    Ready(Ready),
    /// It cannot take the virtual machine.
    Refused(String),
}

/// Where to migrate a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// The host; `None` for the best one.
    #[serde(default)]
    pub to: Option<String>,
}

/// A list of alarms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Alarms {
    /// Newest first.
    pub items: Vec<Alarm>,
}

/// A page of hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hosts {
    /// In the order of their names.
    pub items: Vec<HostView>,
    /// Value of `after` for the next page; `None` on the last page.
    #[serde(default)]
    pub next: Option<String>,
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// In the order of their names.
    pub items: Vec<TokenView>,
}

/// All tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenants {
    /// In the order of their names.
    pub items: Vec<TenantUse>,
}

/// An event sent to watchers.
pub type Watched = Event;
