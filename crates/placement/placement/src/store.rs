//! What survives a crash: hosts, virtual machines with their states and placements, events and alarms.
//! Not the decision (`scheduler`); but the last word: what a store has reserved, nobody else gets.

#[cfg(feature = "databases")]
mod accounts;
mod groups;
#[cfg(feature = "databases")]
mod jobs;
#[cfg(feature = "databases")]
mod members;
mod pending;
#[cfg(feature = "databases")]
mod postgres;
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
#[cfg(feature = "databases")]
mod whereabouts;

pub use groups::forbidding_group;
pub use pending::Pending;
#[cfg(feature = "databases")]
pub use sql_store::SqlStore;
pub use state::{Intent, VmState};

use crate::host::Host;
use crate::inventory::HostStatus;
use crate::placement::Placement;
use crate::request::Request;
use serde::{Deserialize, Serialize};

/// Number of a virtual machine, never used twice.
pub type VmId = i64;

/// A host as a store has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredHost {
    /// Its description.
    pub host: Host,
    /// Whether it takes virtual machines.
    pub status: HostStatus,
    /// When its agent was last heard of, seconds since 1970.
    pub seen_at: i64,
    /// The machine whose agent speaks for it; none before one does.
    #[serde(default)]
    pub agent: Option<String>,
}

/// A virtual machine as a store has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vm {
    /// Its number.
    pub id: VmId,
    /// What was asked for.
    pub request: Request,
    /// How far it is.
    pub state: VmState,
    /// What its owner wants of it.
    pub intent: Intent,
    /// Where it lies; none until it is reserved and after it is deleted.
    pub placement: Option<Placement>,
    /// Where it is moving to; both places are reserved meanwhile.
    pub target: Option<Placement>,
    /// What went wrong last.
    pub problem: Option<String>,
    /// Grows with every change.
    pub version: i64,
    /// When it was asked for, in seconds since 1970. With its number it is the only one: a database that is set back to an earlier time gives
    /// a number again.
    #[serde(default)]
    pub created_at: i64,
}

/// A virtual machine with a place, to be reserved.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// What was asked for.
    pub request: Request,
    /// Where it is to lie.
    pub placement: Placement,
    /// The client's key: a second reservation of the tenant with the same key is answered with the first.
    pub key: Option<String>,
    /// Who reserves: a scheduler's own changes are no news to it.
    pub origin: i64,
}

/// A reservation that is durable.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    /// The virtual machine's number.
    pub id: VmId,
    /// Where it lies: elsewhere than asked for if it was `replayed`.
    pub placement: Option<Placement>,
    /// Whether the key was known, and this is the answer that was given then.
    pub replayed: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Grows with time; 0 before it is recorded.
    pub number: i64,
    /// Seconds since 1970.
    pub at: i64,
    /// The virtual machine it is about.
    pub vm: Option<VmId>,
    /// The host it is about.
    pub host: Option<String>,
    /// One word: "reserved", "running", "moved".
    pub kind: String,
    /// For people.
    pub text: String,
}

/// Something that an operator should know of, until it is cleared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Alarm {
    /// The host.
    pub host: String,
    /// The node, if it is about one.
    pub node: Option<u32>,
    /// One word: "cpu", "memory", "remote-access".
    pub kind: String,
    /// What was measured when it was raised.
    pub value: f64,
    /// Seconds since 1970.
    pub raised_at: i64,
    /// Seconds since 1970; none while it stands.
    pub cleared_at: Option<i64>,
}

/// Who may call a service: what is kept of a token, which is not the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// Its name, unique.
    pub name: String,
    /// SHA-256 of the token, in hexadecimal digits.
    pub digest: String,
    /// What its bearer may do: a word of the service's.
    pub role: String,
    /// The tenant or the host that it is for; none for all.
    pub scope: Option<String>,
    /// Seconds since 1970; the store's.
    pub created_at: i64,
}

/// The most that a tenant may have; what is none has no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Virtual machines.
    pub vms: Option<u32>,
    /// Virtual CPUs of all of them.
    pub vcpus: Option<u32>,
    /// Memory of all of them, MiB; less than 2^63.
    #[cfg_attr(feature = "openapi", schema(maximum = 9223372036854775807_i64))]
    pub memory_mib: Option<u64>,
}

/// What a tenant has, and the most that it may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantUse {
    /// The tenant.
    pub tenant: String,
    /// The most that it may have.
    pub quota: Quota,
    /// Virtual machines that live.
    pub vms: u32,
    /// Their virtual CPUs.
    pub vcpus: u32,
    /// Their memory, MiB.
    pub memory_mib: u64,
}

/// How many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Virtual machines that live, by state.
    pub vms: Vec<(VmState, u64)>,
    /// Hosts by status.
    pub hosts: Vec<(HostStatus, u64)>,
    /// Alarms that stand.
    pub alarms: u64,
}

/// Which virtual machines are wanted.
#[derive(Clone, Debug, Default)]
pub struct VmQuery {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only on this host.
    pub host: Option<String>,
    /// Also those that are deleted.
    pub deleted: bool,
    /// Only those with a higher number: for the next page.
    pub after: VmId,
    /// At most so many; 0 is all.
    pub limit: usize,
}

/// Why a store refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else has what the placement needs: look at the host again and decide anew.
    #[error("host {host} no longer has what was decided on: {what}")]
    Conflict {
        /// The host.
        host: String,
        /// What is taken.
        what: String,
    },
    /// The tenant has a virtual machine of this name.
    #[error("tenant {tenant} has a virtual machine called {name} already")]
    Exists {
        /// The tenant.
        tenant: String,
        /// The name.
        name: String,
    },
    /// The client's key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The tenant would have more than it may.
    #[error("tenant {tenant} would have {would} {what}; its quota is {most}")]
    Quota {
        /// The tenant.
        tenant: String,
        /// What is counted.
        what: &'static str,
        /// The most.
        most: u64,
        /// What it would have.
        would: u64,
    },
    /// There is such a thing already.
    #[error("there is a {what} already")]
    Taken {
        /// What there is.
        what: String,
    },
    /// There is no such thing.
    #[error("there is no {what}")]
    Unknown {
        /// What there is not.
        what: String,
    },
    /// The state does not lead there.
    #[error("a virtual machine that is {from} cannot become {to}")]
    NotAllowed {
        /// Its state.
        from: VmState,
        /// What was wanted.
        to: VmState,
    },
    /// It is in another state; somebody else may have changed it meanwhile.
    #[error("virtual machine {id} is {found}, and this is for one that is {expected}")]
    Stale {
        /// The virtual machine.
        id: VmId,
        /// State that was expected.
        expected: VmState,
        /// State that it has.
        found: VmState,
    },
    /// The file is of another version or of another program.
    #[error("{0}")]
    Format(String),
    /// Others were in the way again and again; nothing was done.
    #[error("the database is busy: {0}")]
    Busy(String),
    /// There is no room where the database is; nothing was done.
    #[error("the database is full: {0}")]
    Full(String),
    /// It cannot be reached now. Nothing was done, unless the connection was lost in the middle of a commit.
    #[error("the database cannot be reached: {0}")]
    Away(String),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(String),
    /// The service that has the database refuses, or cannot be reached: in its own words.
    #[error("{0}")]
    Service(String),
    /// The store was closed.
    #[error("the store was closed before it answered")]
    Closed,
}

/// What a store does. Every call that changes something has it durable when it returns.
pub trait Store: Send + Sync {
    /// What tells this database from all others, in letters and digits: drawn when it is made, the same ever after. Domains name it.
    ///
    /// # Errors
    /// If the database fails.
    fn identity(&self) -> Result<String, StoreError>;

    /// Adds a host, or describes it anew.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if what is promised on it would no longer fit.
    fn put_host(&self, host: &Host, overcommit_percent: u32) -> Result<(), StoreError>;

    /// At most `limit` hosts whose names come after this one, by name: all of a hundred thousand at once would take a gigabyte.
    ///
    /// # Errors
    /// If the database fails.
    fn hosts_after(&self, name: &str, limit: usize) -> Result<Vec<StoredHost>, StoreError>;

    /// When each host's agent was last heard of, by name.
    ///
    /// # Errors
    /// If the database fails.
    fn seen(&self) -> Result<Vec<(String, i64)>, StoreError>;

    /// Says that the agent of a machine speaks for a host and was heard of now, if nobody else's does, or only that of the machine
    /// `instead_of`. Whose agent it is afterwards.
    ///
    /// # Errors
    /// If the host is unknown.
    fn claim_host(&self, host: &str, machine: &str, instead_of: Option<&str>) -> Result<String, StoreError>;

    /// One host.
    ///
    /// # Errors
    /// If there is none of this name.
    fn host(&self, name: &str) -> Result<StoredHost, StoreError>;

    /// What is promised on these hosts: each with the virtual machines that live on it or are moved there. Those that there are not are left out.
    ///
    /// # Errors
    /// If the database fails.
    fn promised_on(&self, hosts: &[String]) -> Result<Vec<(StoredHost, Vec<Vm>)>, StoreError> {
        let mut all = Vec::with_capacity(hosts.len());
        for name in hosts {
            match self.host(name) {
                Err(StoreError::Unknown { .. }) => {}
                host => {
                    all.push((host?, self.vms(&VmQuery { host: Some(name.clone()), ..VmQuery::default() })?))
                }
            }
        }
        Ok(all)
    }

    /// Says whether a host takes virtual machines; `seen` also notes that its agent was heard of now.
    ///
    /// # Errors
    /// If the host is unknown.
    fn set_host_status(&self, host: &str, status: HostStatus, seen: bool) -> Result<(), StoreError>;

    /// Adds a virtual machine with its place, if everything it needs is free; the answer comes when it is durable. Reservations that
    /// wait together become durable together.
    fn reserve(&self, reservation: Reservation) -> Pending<Reserved>;

    /// What a request with this idempotency key was answered before; none if it is new.
    ///
    /// # Errors
    /// If the key was used for another request, or the database fails.
    fn answered(&self, request: &Request, key: &str) -> Result<Option<Reserved>, StoreError>;

    /// Whether a virtual machine of this number was ever made by this store, at this time if a domain says so: if not, a domain that names
    /// it is another store's, or one that this store has lost.
    ///
    /// # Errors
    /// If the database fails.
    fn has_made(&self, id: VmId, created_at: Option<i64>) -> Result<bool, StoreError> {
        match self.vm(id) {
            Ok(vm) => Ok(created_at.is_none_or(|at| at == vm.created_at)),
            Err(StoreError::Unknown { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One virtual machine.
    ///
    /// # Errors
    /// If there is none.
    fn vm(&self, id: VmId) -> Result<Vm, StoreError>;

    /// The tenant's virtual machine of this name, if one lives.
    ///
    /// # Errors
    /// If the database fails.
    fn find_vm(&self, tenant: &str, name: &str) -> Result<Option<Vm>, StoreError>;

    /// Virtual machines by number.
    ///
    /// # Errors
    /// If the database fails.
    fn vms(&self, query: &VmQuery) -> Result<Vec<Vm>, StoreError>;

    /// Says what the owner wants.
    ///
    /// # Errors
    /// If there is no such virtual machine, or it is deleted.
    fn set_intent(&self, id: VmId, intent: Intent) -> Result<Vm, StoreError>;

    /// Moves a virtual machine from one state to the next. `problem` replaces what is noted as having gone wrong. On the way to
    /// [`VmState::Deleted`] its place is given back.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is in another state, [`StoreError::NotAllowed`] if there is no such way.
    fn transition(
        &self,
        id: VmId,
        from: VmState,
        to: VmState,
        problem: Option<&str>,
    ) -> Result<Vm, StoreError>;

    /// Reserves a second place on the same host for a running virtual machine, and marks it as moving there.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the place is taken or its groups forbid it, [`StoreError::Stale`] if it does not run.
    fn begin_move(&self, id: VmId, target: &Placement) -> Result<Vm, StoreError>;

    /// Gives a stopped virtual machine another size: its request and its place are replaced, its old place is given back.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is not stopped, [`StoreError::Conflict`] if the place is taken, forbidden by its groups or on another host,
    /// [`StoreError::Quota`] if its tenant would have more than it may.
    fn resize(&self, id: VmId, request: &Request, placement: &Placement) -> Result<Vm, StoreError>;

    /// Ends a move: if `arrived`, the target becomes the place; the other one is given back.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if it is not moving.
    fn end_move(&self, id: VmId, arrived: bool) -> Result<Vm, StoreError>;

    /// Events after a number, oldest first.
    ///
    /// # Errors
    /// If the database fails.
    fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StoreError>;

    /// Records an event; its number and time are the store's.
    ///
    /// # Errors
    /// If the database fails.
    fn record(&self, event: &Event) -> Result<(), StoreError>;

    /// Hosts on which others than `origin` changed something after event `after`, and the number of the last event.
    ///
    /// # Errors
    /// If the database fails.
    fn news(&self, after: i64, origin: i64) -> Result<(Vec<String>, i64), StoreError>;

    /// Raises an alarm, unless it stands; whether it is new.
    ///
    /// # Errors
    /// If the database fails.
    fn raise_alarm(&self, host: &str, node: Option<u32>, kind: &str, value: f64) -> Result<bool, StoreError>;

    /// Clears an alarm; whether it stood.
    ///
    /// # Errors
    /// If the database fails.
    fn clear_alarm(&self, host: &str, node: Option<u32>, kind: &str) -> Result<bool, StoreError>;

    /// Alarms, the newest first: those that stand, or all.
    ///
    /// # Errors
    /// If the database fails.
    fn alarms(&self, standing_only: bool, limit: usize) -> Result<Vec<Alarm>, StoreError>;

    /// Keeps a token's digest.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if there is one of this name.
    fn put_token(&self, token: &Token) -> Result<(), StoreError>;

    /// All tokens by name.
    ///
    /// # Errors
    /// If the database fails.
    fn tokens(&self) -> Result<Vec<Token>, StoreError>;

    /// Forgets a token; whether there was one.
    ///
    /// # Errors
    /// If the database fails.
    fn remove_token(&self, name: &str) -> Result<bool, StoreError>;

    /// Says how much a tenant may have. What it has already it keeps.
    ///
    /// # Errors
    /// If the database fails.
    fn set_quota(&self, tenant: &str, quota: &Quota) -> Result<(), StoreError>;

    /// What each tenant has and may have, by name.
    ///
    /// # Errors
    /// If the database fails.
    fn tenants(&self) -> Result<Vec<TenantUse>, StoreError>;

    /// Whether what is kept is where whoever starts next looks for it.
    ///
    /// # Errors
    /// [`StoreError::Away`] if a file was moved or deleted.
    fn is_in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// How many virtual machines, hosts and alarms there are.
    ///
    /// # Errors
    /// If the database fails.
    fn counts(&self) -> Result<Counts, StoreError>;

    /// Names of all hosts, in order.
    ///
    /// # Errors
    /// If the database fails.
    fn host_names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.seen()?.into_iter().map(|(name, _)| name).collect())
    }

    /// The ratios of over-commit that hosts were described with, in percent: what is promised was held to them.
    ///
    /// # Errors
    /// If the database fails.
    fn ratios(&self) -> Result<Vec<u32>, StoreError>;

    /// Adds up all placements and compares with what the tables say is taken: each difference a sentence.
    ///
    /// # Errors
    /// If the database fails.
    fn check(&self) -> Result<Vec<String>, StoreError>;
}
