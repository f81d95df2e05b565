//! The interface to the hypervisor of one host. Implementations drive libvirt, a modelled host, and the fake hypervisor
//! of the tests; `reconcile` calls it.
//!
//! Source: libvirt's domain XML (cputune, numatune), virDomainPinVcpu, virDomainPinEmulator and
//! virDomainSetNumaParameters; migrate_pages(2) for memory that is moved live.

use crate::cpus::CpuSet;
use crate::placement::{Placement, Share};
use crate::request::Request;
use crate::store::VmId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Why a hypervisor call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HypervisorError {
    /// The hypervisor is unreachable, and the outcome of the last call is unknown. Retry later.
    #[error("the hypervisor cannot be reached: {0}")]
    Unreachable(String),
    /// The hypervisor rejected this call. Other calls may succeed.
    #[error("the hypervisor refused to {what}: {why}")]
    Refused {
        /// The operation that the call requested.
        what: String,
        /// The hypervisor's reason.
        why: String,
    },
}

/// A deadline for hypervisor calls, set when the agent begins to shut down. Calls that run past it are aborted. Clones
/// share one deadline.
#[derive(Clone, Debug, Default)]
pub struct ShutdownDeadline(Arc<OnceLock<Instant>>);

impl ShutdownDeadline {
    /// Sets the deadline to `within` from now. Later calls have no effect.
    pub fn begin(&self, within: Duration) {
        // If the clock cannot represent the deadline, it expires at once.
        let now = Instant::now();
        let _ = self.0.set(now.checked_add(within).unwrap_or(now));
    }

    /// Returns whether a deadline is set.
    pub fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.0.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// A domain to define.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// Domain name on the host, as returned by [`domain_name`].
    pub name: String,
    /// ID of the virtual machine. The hypervisor stores it with the domain.
    pub vm: VmId,
    /// Identity of the database that assigned the ID. Other databases may assign the same ID.
    pub database: String,
    /// When the database assigned the ID, in seconds since 1970. A database restored from a backup may assign the same
    /// ID again.
    pub created_at: i64,
    /// The request.
    pub request: Request,
    /// Its placement: virtual nodes and their memory.
    pub placement: Placement,
    /// CPU affinity of its threads.
    pub pins: Pins,
    /// Addresses of the host's PCI functions assigned to the domain.
    pub functions: Vec<String>,
}

/// CPU affinity of a domain's threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pins {
    /// Allowed CPUs of each virtual CPU.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub vcpus: Vec<CpuSet>,
    /// Allowed CPUs of the emulator threads.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub emulator: CpuSet,
}

/// The observed state of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainState {
    /// ID of the virtual machine stored with the domain; `None` if Longma did not create the domain.
    pub vm: Option<VmId>,
    /// Database stored with the domain; `None` if Longma did not create the domain or created it before databases had
    /// identities.
    #[serde(default)]
    pub database: Option<String>,
    /// Creation time of the virtual machine stored with the domain; `None` if it is missing.
    #[serde(default)]
    pub created_at: Option<i64>,
    /// Whether the domain is running.
    pub running: bool,
    /// CPU affinity as the hypervisor reports it.
    pub pins: Pins,
    /// Affinity that the kernel reports for virtual CPU threads where it differs from `pins`: another program changed
    /// it without the hypervisor.
    #[serde(default)]
    pub misplaced_vcpus: BTreeMap<u32, CpuSet>,
    /// Virtual CPUs that are below the maximum but not plugged in. They have no thread, even if `pins` lists them.
    #[serde(default)]
    pub offline: CpuSet,
    /// Allowed CPUs of each I/O thread by its number; an empty set means any CPU.
    #[serde(default)]
    pub io_threads: BTreeMap<u32, CpuSet>,
    /// Memory that the domain was defined with, MiB; `None` if the hypervisor does not report it.
    #[serde(default)]
    pub size_mib: Option<u64>,
    /// Page size of its memory, KiB; `None` for ordinary pages.
    #[serde(default)]
    pub huge_page_kib: Option<u32>,
    /// Nodes that its memory is bound to.
    pub bound: Vec<u32>,
    /// Resident memory in MiB by node; empty if the domain is not running.
    pub memory_mib: BTreeMap<u32, u64>,
    /// Why the running domain is paused, if it is; [`PAUSED_BY_USER`] if a user paused it.
    #[serde(default)]
    pub paused: Option<String>,
    /// Whether the domain disappears when it stops, because a user undefined it while it ran.
    #[serde(default)]
    pub transient: bool,
    /// CPU limits set on the domain, by the hypervisor's parameter names.
    #[serde(default)]
    pub cpu_limits: BTreeMap<String, i64>,
    /// Addresses of the host's PCI functions that it has.
    #[serde(default)]
    pub functions: Vec<String>,
}

/// Reason of a pause that a user requested. A domain that has arrived from another host has it until it is resumed.
pub const PAUSED_BY_USER: &str = "user";
/// Reason of a pause at the end of a migration.
pub const PAUSED_BY_MIGRATION: &str = "migrating";

/// The host that a domain is migrated to.
#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    /// Address of its hypervisor, as returned by [`Hypervisor::accept_migration`].
    pub address: String,
    /// The domain's placement and affinity on the target.
    pub domain: Domain,
}

/// The state of a domain on the source host of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It is on this host, and no migration is in progress.
    Stays,
    /// A migration is in progress, or may be about to begin.
    InProgress {
        /// For how long, in seconds.
        for_s: u64,
    },
    /// The domain's memory is complete on both hosts, but it runs on neither, because the migration was interrupted at
    /// its end.
    Suspended,
    /// It has ended here because it was migrated. On its new host it is paused.
    Left,
    /// It does not run here, for another reason.
    Gone,
}

impl DomainState {
    /// Returns whether the domain belongs to another database than `database`, or to a virtual machine with another
    /// creation time.
    pub fn belongs_to_other(&self, database: &str, created_at: Option<i64>) -> bool {
        let of_other = self.database.as_deref().is_some_and(|own| own != database);
        of_other || matches!((self.created_at, created_at), (Some(own), Some(at)) if own != at)
    }

    /// Numbers of the virtual CPUs that are plugged in.
    pub fn vcpus(&self) -> CpuSet {
        (0..self.pins.vcpus.len() as u32).filter(|vcpu| !self.offline.contains(*vcpu)).collect()
    }

    /// Effective affinity of a plugged-in virtual CPU; an empty set means any CPU.
    pub fn vcpu_cpus(&self, vcpu: u32) -> Option<&CpuSet> {
        let pinned = self.pins.vcpus.get(vcpu as usize).filter(|_| !self.offline.contains(vcpu))?;
        Some(self.misplaced_vcpus.get(&vcpu).unwrap_or(pinned))
    }

    /// Returns whether any thread of the domain may run on one of `cpus`. A thread that is not pinned may run anywhere.
    pub fn may_run_on(&self, cpus: &CpuSet) -> bool {
        let vcpus = self.vcpus();
        let guest = vcpus.iter().filter_map(|vcpu| self.vcpu_cpus(vcpu)).chain(self.io_threads.values());
        guest.into_iter().any(|on| on.is_empty() || on.intersects(cpus))
            || self.pins.emulator.intersects(cpus)
    }
}

/// An entry of the hypervisor's domain list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainEntry {
    /// Domain name.
    pub name: String,
    /// ID of the virtual machine, as in [`DomainState`].
    pub vm: Option<VmId>,
    /// Database, as in [`DomainState`].
    pub database: Option<String>,
    /// Creation time, as in [`DomainState`].
    pub created_at: Option<i64>,
}

impl DomainEntry {
    /// ID of the virtual machine if the domain may belong to `database`.
    pub fn vm_in(&self, database: &str) -> Option<VmId> {
        self.vm.filter(|_| self.database.as_deref().is_none_or(|own| own == database))
    }
}

/// Domain name of a virtual machine.
pub fn domain_name(vm: VmId) -> String {
    format!("longma-{vm}")
}

/// Hypervisor of one host. Every call is idempotent: it succeeds if its effect is already present.
pub trait Hypervisor: Send {
    /// Sets the deadline for all later calls. Calls that run past it are aborted, and calls made after it fail with
    /// [`HypervisorError::Unreachable`]. An implementation whose calls cannot block may ignore the deadline.
    fn set_shutdown_deadline(&mut self, ending: &ShutdownDeadline) {
        let _ = ending;
    }

    /// Lists all domains, running or not, with the virtual machines they belong to.
    ///
    /// # Errors
    /// If the hypervisor is unreachable.
    fn list(&mut self) -> Result<Vec<DomainEntry>, HypervisorError>;

    /// Reads the state of a domain; `None` if no domain has this name.
    ///
    /// # Errors
    /// If the hypervisor is unreachable.
    fn inspect(&mut self, name: &str) -> Result<Option<DomainState>, HypervisorError>;

    /// Lists all domains with their state. Equivalent to [`Hypervisor::list`] and [`Hypervisor::inspect`], but an
    /// implementation with slow calls can batch them. The state is `None` if a domain has disappeared, or belongs to no
    /// virtual machine and cannot be described.
    ///
    /// # Errors
    /// If the hypervisor is unreachable.
    fn survey(&mut self) -> Result<Vec<(DomainEntry, Option<DomainState>)>, HypervisorError> {
        let mut all = Vec::new();
        for listed in self.list()? {
            let actual = self.inspect(&listed.name)?;
            all.push((listed, actual));
        }
        Ok(all)
    }

    /// CPU time used by a running domain's virtual CPUs, in seconds; `None` if the hypervisor does not report it.
    ///
    /// # Errors
    /// If the hypervisor is unreachable.
    fn cpu_seconds(&mut self, name: &str) -> Result<Option<f64>, HypervisorError> {
        let _ = name;
        Ok(None)
    }

    /// Defines a domain without starting it, or redefines one that is stopped.
    ///
    /// # Errors
    /// The hypervisor is unreachable or refuses, for example because a domain of another user or database has the name.
    fn define(&mut self, domain: &Domain) -> Result<(), HypervisorError>;

    /// Starts a domain.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses, for example because memory or the disk image is missing.
    fn start(&mut self, name: &str) -> Result<(), HypervisorError>;

    /// Stops a domain immediately; it stays defined. A missing domain is not an error.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn stop(&mut self, name: &str) -> Result<(), HypervisorError>;

    /// Deletes the definition of a stopped domain. A missing domain is not an error.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn undefine(&mut self, name: &str) -> Result<(), HypervisorError>;

    /// Resumes a paused domain.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn resume(&mut self, name: &str) -> Result<(), HypervisorError> {
        let _ = name;
        Ok(())
    }

    /// Makes a running transient domain persistent.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn persist(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        let _ = domain;
        Ok(())
    }

    /// Removes the CPU limits of a running domain.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn remove_cpu_limits(&mut self, name: &str) -> Result<(), HypervisorError> {
        let _ = name;
        Ok(())
    }

    /// Checks that a domain can be migrated to this host. Returns the address at which the other host's hypervisor reaches
    /// this one.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses, for example because it has no address or lacks the disk image.
    fn accept_migration(&mut self, domain: &Domain) -> Result<String, HypervisorError> {
        Err(HypervisorError::Refused {
            what: format!("accept {}", domain.name),
            why: "it does not take part in migrations".into(),
        })
    }

    /// Migrates a running domain to another host, where it is left paused, so that it never runs on both. Returns when
    /// it has ended here. After an error, [`Hypervisor::outgoing`] returns the state of the domain on this host.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or either host refuses.
    fn migrate(&mut self, name: &str, to: &Destination) -> Result<(), HypervisorError> {
        Err(HypervisorError::Refused {
            what: format!("migrate {name} to {}", to.address),
            why: "it does not take part in migrations".into(),
        })
    }

    /// The state on this host of a domain that was or is being migrated to another host.
    ///
    /// # Errors
    /// If the hypervisor is unreachable.
    fn outgoing(&mut self, name: &str) -> Result<Outgoing, HypervisorError> {
        Ok(match self.inspect(name)? {
            Some(actual) if actual.running => Outgoing::Stays,
            _ => Outgoing::Gone,
        })
    }

    /// Aborts the migration of a domain that is in progress.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn abort_migration(&mut self, name: &str) -> Result<(), HypervisorError> {
        let _ = name;
        Ok(())
    }

    /// Resumes a domain on the host that it was migrated to.
    ///
    /// # Errors
    /// If either hypervisor is unreachable or refuses.
    fn resume_at(&mut self, address: &str, name: &str) -> Result<(), HypervisorError> {
        let _ = (address, name);
        Ok(())
    }

    /// Sets the affinity of a virtual CPU of a running domain.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn pin_vcpu(&mut self, name: &str, vcpu: u32, cpus: &CpuSet) -> Result<(), HypervisorError>;

    /// Sets the number of virtual CPUs of a running domain. To reduce the number, the guest must cooperate.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses: `count` exceeds the domain's maximum, or the guest does not release
    /// a virtual CPU.
    fn set_vcpus(&mut self, name: &str, count: u32) -> Result<(), HypervisorError> {
        let what = format!("give {count} virtual CPUs to {name}");
        Err(HypervisorError::Refused {
            what,
            why: "this hypervisor cannot change it while the domain runs".into(),
        })
    }

    /// Sets the affinity of an I/O thread of a running domain.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn pin_io_thread(&mut self, name: &str, thread: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        let _ = (name, thread, cpus);
        Ok(())
    }

    /// Sets the affinity of a running domain's emulator threads, except I/O threads.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn pin_emulator(&mut self, name: &str, cpus: &CpuSet) -> Result<(), HypervisorError>;

    /// Sets the nodes that a running domain allocates memory from.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses.
    fn bind_memory(&mut self, name: &str, nodes: &[u32]) -> Result<(), HypervisorError>;

    /// Moves the memory of one virtual node of a running domain to the nodes in `shares`.
    ///
    /// # Errors
    /// If the hypervisor is unreachable or refuses, for example because a node has too little free memory.
    fn move_memory(&mut self, name: &str, cell: usize, shares: &[Share]) -> Result<(), HypervisorError>;
}
