//! Durable state: hosts, virtual machines with their states and placements, events and alarms. The store has the last
//! word on a decision: it never reserves a resource twice.

#[cfg(feature = "databases")]
mod accounts;
mod agent_store;
#[cfg(feature = "databases")]
mod audit_log;
#[cfg(feature = "databases")]
mod backup;
#[cfg(feature = "databases")]
mod dead_hosts;
#[cfg(feature = "databases")]
mod file_identity;
mod groups;
#[cfg(feature = "databases")]
mod jobs;
#[cfg(feature = "databases")]
mod members;
#[cfg(feature = "databases")]
mod migrations;
mod pending;
#[cfg(feature = "databases")]
mod postgres;
#[cfg(feature = "databases")]
mod retention;
#[cfg(feature = "databases")]
mod schema;
#[cfg(feature = "databases")]
mod sql;
#[cfg(feature = "databases")]
mod sql_store;
#[cfg(feature = "databases")]
mod sqlite;
mod state;
#[cfg(feature = "databases")]
mod tables;

pub use agent_store::AgentStore;
pub use groups::forbidding_group;
#[cfg(feature = "databases")]
pub use jobs::ChangeTimes;
pub use pending::Pending;
#[cfg(feature = "databases")]
pub use sql_store::SqlStore;
pub use state::{Intent, VmState};

use crate::host::Host;
use crate::inventory::HostStatus;
use crate::placement::Placement;
use crate::request::Request;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// ID of a virtual machine. IDs are never reused.
pub type VmId = i64;

/// A host as recorded in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredHost {
    /// Description of the host.
    pub host: Host,
    /// Whether it accepts virtual machines.
    pub status: HostStatus,
    /// When its agent last reported, in seconds since 1970.
    pub seen_at: i64,
    /// ID of the machine whose agent manages the host; `None` before the first agent registers.
    #[serde(default)]
    pub agent: Option<String>,
}

/// A virtual machine as recorded in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vm {
    /// Its ID.
    pub id: VmId,
    /// The request.
    pub request: Request,
    /// Its state in the life cycle.
    pub state: VmState,
    /// The requested state: run, stop or delete.
    pub intent: Intent,
    /// Its placement; `None` before it is reserved and after it is deleted.
    pub placement: Option<Placement>,
    /// Target of a move or migration in progress. Both placements are reserved until it ends.
    pub target: Option<Placement>,
    /// The last problem.
    pub problem: Option<String>,
    /// Version number, incremented by every change.
    pub version: i64,
    /// Creation time in seconds since 1970. Together with the ID it is unique, even if the database is restored from a
    /// backup and assigns an ID again.
    #[serde(default)]
    pub created_at: i64,
}

impl Vm {
    /// Its placements on `host`; while it migrates, it also has a placement on another host.
    pub fn placements_on(&self, host: &str) -> impl Iterator<Item = &Placement> {
        self.placement.iter().chain(&self.target).filter(move |place| place.host == host)
    }

    /// Returns whether it is on `host`, and not being migrated to it.
    pub fn is_on(&self, host: &str) -> bool {
        self.placement.as_ref().is_some_and(|place| place.host == host)
    }
}

/// A virtual machine with its placement, to be reserved.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The request.
    pub request: Request,
    /// The placement to reserve.
    pub placement: Placement,
    /// The client's idempotency key. A second reservation of the tenant with the same key returns the result of the
    /// first.
    pub key: Option<String>,
    /// ID of the scheduler that makes the reservation. A scheduler's own changes are not reported back to it by
    /// [`Store::changes_since`].
    pub origin: i64,
}

/// A durable reservation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    /// The virtual machine. If `replayed`, its placement may differ from the requested one.
    pub vm: Vm,
    /// Whether the key was already used, and this is the earlier result.
    pub replayed: bool,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Ascending number; 0 before the event is recorded.
    pub number: i64,
    /// Time in seconds since 1970.
    pub at: i64,
    /// The virtual machine concerned.
    pub vm: Option<VmId>,
    /// The host concerned.
    pub host: Option<String>,
    /// Kind as one word: "reserved", "running", "moved".
    pub kind: String,
    /// Human-readable text.
    pub text: String,
    /// Name of the token on whose behalf the change was made; `None` if the service made it on its own.
    #[serde(default)]
    pub actor: Option<String>,
}

/// A request that changed something or was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRecord {
    /// Ascending number; 0 before the record is stored.
    pub number: i64,
    /// Time of the answer, in seconds since 1970.
    pub at: i64,
    /// Name of the caller's token; `None` if the caller was not authenticated.
    pub actor: Option<String>,
    /// Role of the token at that time.
    pub role: Option<String>,
    /// Tenant or host that the token was restricted to.
    pub scope: Option<String>,
    /// Address that the request came from.
    pub peer: String,
    /// HTTP method and path.
    pub action: String,
    /// The object of the request if the path does not name it, such as "virtual machine 12 (acme/db)". May be empty.
    pub object: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Why the request was refused or failed.
    pub problem: Option<String>,
}

/// Selects records of the audit log.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only records of the token with this name.
    pub actor: Option<String>,
    /// Only those with a lower number, for paging; 0 begins with the newest.
    pub before: i64,
    /// Only those at or after this time, in seconds since 1970.
    pub since: i64,
    /// Maximum number of results; 0 means no limit.
    pub limit: usize,
}

/// A condition that an operator should know about until it is cleared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Alarm {
    /// The host.
    pub host: String,
    /// The node, if the alarm concerns one.
    pub node: Option<u32>,
    /// Kind as one word: "cpu", "memory", "remote-access".
    pub kind: String,
    /// Value measured when the alarm was raised.
    pub value: f64,
    /// When it was raised, in seconds since 1970.
    pub raised_at: i64,
    /// When it was cleared, in seconds since 1970; `None` while it is active.
    pub cleared_at: Option<i64>,
}

/// An access token of a service. The store keeps only a digest of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// Unique name.
    pub name: String,
    /// SHA-256 digest of the token in hexadecimal.
    pub digest: String,
    /// Role of the bearer, as defined by the service.
    pub role: String,
    /// Tenant or host that the token is restricted to; `None` for no restriction.
    pub scope: Option<String>,
    /// Creation time by the store's clock, in seconds since 1970.
    pub created_at: i64,
    /// When it expires, in seconds since 1970; `None` if it does not.
    #[serde(default)]
    pub expires_at: Option<i64>,
    /// When it was last used, in seconds since 1970, as last recorded; `None` if never.
    #[serde(default)]
    pub used_at: Option<i64>,
}

/// Resource limits of a tenant. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Number of virtual machines.
    pub vms: Option<u32>,
    /// Total number of virtual CPUs.
    pub vcpus: Option<u32>,
    /// Total memory in MiB, less than 2^63.
    #[cfg_attr(feature = "openapi", schema(maximum = 9223372036854775807_i64))]
    pub memory_mib: Option<u64>,
}

/// Resource usage and limits of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantUse {
    /// Name of the tenant.
    pub tenant: String,
    /// Its limits.
    pub quota: Quota,
    /// Number of live virtual machines.
    pub vms: u32,
    /// Total number of their virtual CPUs.
    pub vcpus: u32,
    /// Their total memory in MiB.
    pub memory_mib: u64,
}

/// Number of objects in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live virtual machines by state.
    pub vms: Vec<(VmState, u64)>,
    /// Hosts by status.
    pub hosts: Vec<(HostStatus, u64)>,
    /// Active alarms by kind.
    pub alarms: Vec<(String, u64)>,
}

/// Selects virtual machines.
#[derive(Clone, Debug, Default)]
pub struct VmQuery {
    /// Only virtual machines of this tenant.
    pub tenant: Option<String>,
    /// Only those on this host or being migrated to it.
    pub host: Option<String>,
    /// Whether to include deleted ones.
    pub deleted: bool,
    /// Only those with a higher ID, for paging.
    pub after: VmId,
    /// Maximum number of results; 0 means no limit.
    pub limit: usize,
}

/// Why a store operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A resource of the placement is taken. Reload the host and decide again.
    #[error("the chosen resources of host {host} are no longer free: {what}")]
    Conflict {
        /// Name of the host.
        host: String,
        /// The resources in conflict.
        what: String,
    },
    /// The tenant already has a virtual machine with this name.
    #[error("tenant {tenant} already has a virtual machine called {name}")]
    Exists {
        /// Name of the tenant.
        tenant: String,
        /// Name of the virtual machine.
        name: String,
    },
    /// The idempotency key belongs to another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The tenant would exceed its quota.
    #[error("tenant {tenant} would have {would} {what}; its quota is {limit}")]
    Quota {
        /// Name of the tenant.
        tenant: String,
        /// The limited resource.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// Usage that the operation would lead to.
        would: u64,
    },
    /// An object with this name already exists.
    #[error("there is already a {what}")]
    Taken {
        /// The object.
        what: String,
    },
    /// An object does not exist.
    #[error("there is no {what}")]
    Unknown {
        /// The object.
        what: String,
    },
    /// The state machine has no such transition.
    #[error("a virtual machine that is {from} cannot become {to}")]
    NotAllowed {
        /// Current state.
        from: VmState,
        /// Requested state.
        to: VmState,
    },
    /// The virtual machine is not in the expected state. A concurrent operation may have changed it.
    #[error("virtual machine {id} is {found}; this needs one that is {expected}")]
    Stale {
        /// ID of the virtual machine.
        id: VmId,
        /// Expected state.
        expected: VmState,
        /// Actual state.
        found: VmState,
    },
    /// The file was written by another version or another program.
    #[error("{0}")]
    Format(String),
    /// Concurrent transactions conflicted repeatedly; nothing was changed.
    #[error("the database is busy: {0}")]
    Busy(String),
    /// The disk is full; nothing was changed.
    #[error("the database is full: {0}")]
    Full(String),
    /// The database is unreachable. Nothing was changed, unless the connection was lost during a commit.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(String),
    /// The service that owns the database refused or is unreachable. The text is its message.
    #[error("{0}")]
    Service(String),
    /// The store was closed.
    #[error("the store was closed before it answered")]
    Closed,
}

/// All operations of a store, those of agents included. A call that changes something returns after the change is durable.
pub trait Store: AgentStore {
    /// Returns the same store, whose changes record events with this actor.
    fn on_behalf_of(&self, actor: &str) -> Arc<dyn Store>;

    /// Adds a host, or replaces its description.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if existing reservations would no longer fit.
    fn put_host(&self, host: &Host, overcommit_percent: u32) -> Result<(), StoreError>;

    /// Returns up to `limit` hosts whose names sort after `name`, in order. Paged, because a hundred thousand hosts at
    /// once would take a gigabyte.
    ///
    /// # Errors
    /// If the database fails.
    fn hosts_after(&self, name: &str, limit: usize) -> Result<Vec<StoredHost>, StoreError>;

    /// When each host's agent last reported, by host name.
    ///
    /// # Errors
    /// If the database fails.
    fn last_reports(&self) -> Result<Vec<(String, i64)>, StoreError>;

    /// Makes the agent of `machine` responsible for a host and records that it reported. Succeeds if the responsible
    /// agent, if any, is on `machine` or `instead_of`. Returns the machine that is responsible afterwards.
    ///
    /// # Errors
    /// If the host is unknown.
    fn claim_host(&self, host: &str, machine: &str, instead_of: Option<&str>) -> Result<String, StoreError>;

    /// Returns one host.
    ///
    /// # Errors
    /// If the host is unknown.
    fn host(&self, name: &str) -> Result<StoredHost, StoreError>;

    /// Returns each of these hosts with the virtual machines that are on it or being moved to it. Unknown hosts are
    /// left out.
    ///
    /// # Errors
    /// If the database fails.
    fn reservations_on(&self, hosts: &[String]) -> Result<Vec<(StoredHost, Vec<Vm>)>, StoreError> {
        let mut all = Vec::with_capacity(hosts.len());
        for name in hosts {
            match self.host(name) {
                Err(StoreError::Unknown { .. }) => {}
                host => {
                    all.push((host?, self.host_vms(name)?));
                }
            }
        }
        Ok(all)
    }

    /// Sets the status of a host. If `seen`, also records that its agent reported.
    ///
    /// # Errors
    /// If the host is unknown.
    fn set_host_status(&self, host: &str, status: HostStatus, seen: bool) -> Result<(), StoreError>;

    /// Adds a virtual machine with its placement if all resources are free. The answer arrives when the reservation is
    /// durable. Reservations that are pending together are committed together.
    fn reserve(&self, reservation: Reservation) -> Pending<Reserved>;

    /// Returns the earlier answer to a request with this idempotency key; `None` if the key is new.
    ///
    /// # Errors
    /// The key belongs to another request, or the database fails.
    fn earlier_answer(&self, request: &Request, key: &str) -> Result<Option<Reserved>, StoreError>;

    /// Returns the tenant's live virtual machine with this name.
    ///
    /// # Errors
    /// If the database fails.
    fn find_vm(&self, tenant: &str, name: &str) -> Result<Option<Vm>, StoreError>;

    /// Returns virtual machines in the order of their IDs.
    ///
    /// # Errors
    /// If the database fails.
    fn vms(&self, query: &VmQuery) -> Result<Vec<Vm>, StoreError>;

    /// Records the state requested by the owner.
    ///
    /// # Errors
    /// If the virtual machine does not exist or is deleted.
    fn set_intent(&self, id: VmId, intent: Intent) -> Result<Vm, StoreError>;

    /// Resizes a stopped virtual machine: replaces its request and its placement and releases the old placement.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is not stopped; [`StoreError::Conflict`] if the placement is taken, forbidden by its
    /// groups or on another host; [`StoreError::Quota`] if its tenant would exceed its quota.
    fn resize(&self, id: VmId, request: &Request, placement: &Placement) -> Result<Vm, StoreError>;

    /// Assigns a virtual machine of a host that was forced down a placement on another host, where it is started. Its
    /// old domain must no longer run.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if its host was not forced down, or the placement is taken or forbidden by its groups.
    fn evacuate(&self, id: VmId, placement: &Placement) -> Result<Vm, StoreError>;

    /// Assigns a stopped virtual machine a placement on another host.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is not stopped; [`StoreError::Conflict`] if the placement is taken or forbidden by its
    /// groups, or it has devices.
    fn relocate_stopped(&self, id: VmId, placement: &Placement) -> Result<Vm, StoreError>;

    /// Deletes a virtual machine of a host that was forced down, without its agent. Its domain must no longer run.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if its host was not forced down.
    fn force_delete(&self, id: VmId) -> Result<Vm, StoreError>;

    /// Removes a host, the tokens of its agents and its alarms.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if virtual machines are on it.
    fn remove_host(&self, host: &str) -> Result<(), StoreError>;

    /// Returns events after the given number, oldest first.
    ///
    /// # Errors
    /// If the database fails.
    fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StoreError>;

    /// Records an event. The store assigns its number and time.
    ///
    /// # Errors
    /// If the database fails.
    fn record_event(&self, event: &Event) -> Result<(), StoreError>;

    /// Returns the hosts changed or removed since event `after` by others than `origin`, and the number of the last
    /// event.
    ///
    /// # Errors
    /// If the database fails.
    fn changes_since(&self, after: i64, origin: i64) -> Result<(Vec<String>, i64), StoreError>;

    /// Raises an alarm unless it is already active. Returns whether it is new.
    ///
    /// # Errors
    /// If the database fails.
    fn raise_alarm(&self, host: &str, node: Option<u32>, kind: &str, value: f64) -> Result<bool, StoreError>;

    /// Clears an alarm. Returns whether it was active.
    ///
    /// # Errors
    /// If the database fails.
    fn clear_alarm(&self, host: &str, node: Option<u32>, kind: &str) -> Result<bool, StoreError>;

    /// Returns alarms, newest first: only active ones, or all.
    ///
    /// # Errors
    /// If the database fails.
    fn alarms(&self, active_only: bool, limit: usize) -> Result<Vec<Alarm>, StoreError>;

    /// Stores the digest of a token.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if the name is in use.
    fn put_token(&self, token: &Token) -> Result<(), StoreError>;

    /// Returns all tokens in the order of their names.
    ///
    /// # Errors
    /// If the database fails.
    fn tokens(&self) -> Result<Vec<Token>, StoreError>;

    /// Deletes a token. Returns whether it existed.
    ///
    /// # Errors
    /// If the database fails.
    fn remove_token(&self, name: &str) -> Result<bool, StoreError>;

    /// Records when tokens were last used, by their digests, in seconds since 1970. Earlier times than the recorded ones
    /// and unknown tokens are ignored.
    ///
    /// # Errors
    /// If the database fails.
    fn record_token_uses(&self, uses: &[(String, i64)]) -> Result<(), StoreError>;

    /// Appends records to the audit log in one transaction. The store assigns their numbers.
    ///
    /// # Errors
    /// If the database fails; then none is appended.
    fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError>;

    /// Returns records of the audit log, newest first.
    ///
    /// # Errors
    /// If the database fails.
    fn audit_log(&self, query: &AuditQuery) -> Result<Vec<AuditRecord>, StoreError>;

    /// Returns the quota assigned to a tenant with its first virtual machine.
    ///
    /// # Errors
    /// If the database fails.
    fn default_quota(&self) -> Result<Quota, StoreError>;

    /// Sets the quota of future tenants. Present tenants keep theirs.
    ///
    /// # Errors
    /// If the database fails.
    fn set_default_quota(&self, quota: &Quota) -> Result<(), StoreError>;

    /// Sets the quota of a tenant. Existing virtual machines that exceed it continue to run.
    ///
    /// # Errors
    /// If the database fails.
    fn set_quota(&self, tenant: &str, quota: &Quota) -> Result<(), StoreError>;

    /// Returns usage and quota of each tenant, in the order of their names.
    ///
    /// # Errors
    /// If the database fails.
    fn tenants(&self) -> Result<Vec<TenantUse>, StoreError>;

    /// Deletes history that ended before `before`, in seconds since 1970: deleted virtual machines with their
    /// idempotency keys, events, cleared alarms, the audit log, expired tokens. Returns the number of deleted records.
    ///
    /// # Errors
    /// If the database fails.
    fn prune(&self, before: i64) -> Result<usize, StoreError>;

    /// Checks that the database file is still at its path, where the next process will look for it.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the file was moved or deleted.
    fn check_files_in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Counts virtual machines, hosts and active alarms.
    ///
    /// # Errors
    /// If the database fails.
    fn counts(&self) -> Result<Counts, StoreError>;

    /// Returns the names of all hosts in order.
    ///
    /// # Errors
    /// If the database fails.
    fn host_names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.last_reports()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns the overcommit ratios, in percent, that hosts were registered with. The reservations were checked
    /// against them.
    ///
    /// # Errors
    /// If the database fails.
    fn overcommit_ratios(&self) -> Result<Vec<u32>, StoreError>;

    /// Sums up all placements and compares the result with the usage tables. Returns one sentence per difference.
    ///
    /// # Errors
    /// If the database fails.
    fn check(&self) -> Result<Vec<String>, StoreError>;
}
