//! What drives virtual machines on one host: the boundary to libvirt, to a modelled host, and to the fake one of the tests.
//! Not when it is called (`reconcile`).
//! Source: libvirt's domain XML (cputune, numatune) and virDomainPinVcpu, virDomainPinEmulator, virDomainSetNumaParameters;
//! migrate_pages(2) for memory that is moved live.

use crate::cpus::CpuSet;
use crate::placement::{Placement, Share};
use crate::request::Request;
use crate::store::VmId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Why a hypervisor did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HypervisorError {
    /// It cannot be reached; whether the last call was done is not known. Try again later.
    #[error("the hypervisor cannot be reached: {0}")]
    Away(String),
    /// It refused this call and can be asked others.
    #[error("the hypervisor refused to {what}: {why}")]
    Refused {
        /// The call.
        what: String,
        /// Its reason.
        why: String,
    },
}

/// When whoever drives a hypervisor is to have ended: a call that lasts longer is given up. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<OnceLock<Instant>>);

impl Ending {
    /// All is to have ended after so long. Who says it first counts.
    pub fn begin(&self, within: Duration) {
        // Without a clock that goes so far it is over at once.
        let now = Instant::now();
        let _ = self.0.set(now.checked_add(within).unwrap_or(now));
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether its time is over.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// A domain to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// Its name on the host: [`domain_name`].
    pub name: String,
    /// The virtual machine that it is; the hypervisor keeps it with the domain, ...
    pub vm: VmId,
    /// ... the database that gave it this number: others may give the same, ...
    pub database: String,
    /// ... and when that did, in seconds since 1970: it gives it again if it is set back to an earlier time.
    pub created_at: i64,
    /// What was asked for.
    pub request: Request,
    /// Its virtual nodes and their memory.
    pub placement: Placement,
    /// Where its threads run.
    pub pins: Pins,
}

/// Where the threads of a domain run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// The CPUs of each virtual CPU.
    pub vcpus: Vec<CpuSet>,
    /// The CPUs of the emulator's threads.
    pub emulator: CpuSet,
}

/// A domain as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actual {
    /// The virtual machine that it says it is; none for a domain of others.
    pub vm: Option<VmId>,
    /// The database that it says its virtual machine is of; none for one of others, or that was made before databases had identities.
    #[serde(default)]
    pub database: Option<String>,
    /// When that virtual machine was asked for; none if the domain does not say.
    #[serde(default)]
    pub created_at: Option<i64>,
    /// Whether it runs.
    pub running: bool,
    /// Where its threads run, as the hypervisor says.
    pub pins: Pins,
    /// Where the kernel lets threads of virtual CPUs run, of those that are elsewhere than the hypervisor says: somebody moved them behind its back.
    #[serde(default)]
    pub strayed: BTreeMap<u32, CpuSet>,
    /// Virtual CPUs that it could be given and does not have: they have no thread, whatever their pins say.
    #[serde(default)]
    pub offline: CpuSet,
    /// Where its threads for input and output may run, by their numbers; empty if anywhere.
    #[serde(default)]
    pub io_threads: BTreeMap<u32, CpuSet>,
    /// Memory that it was made with, in MiB; none if the hypervisor does not say.
    #[serde(default)]
    pub size_mib: Option<u64>,
    /// Nodes that its memory may come from.
    pub bound: Vec<u32>,
    /// Memory that it has, in MiB by node; empty when it does not run.
    pub memory_mib: BTreeMap<u32, u64>,
    /// Why it stands still, if it does though it runs; [`BY_HAND`] if somebody paused it.
    #[serde(default)]
    pub paused: Option<String>,
    /// Whether it is forgotten when it ends: somebody undefined it.
    #[serde(default)]
    pub transient: bool,
    /// What keeps it from the CPU time that it should have, by the hypervisor's names.
    #[serde(default)]
    pub slowed: BTreeMap<String, i64>,
}

/// Why a domain is paused that somebody paused.
pub const BY_HAND: &str = "user";

impl Actual {
    /// Whether it says that it is of another database than this one, or of a virtual machine that was asked for at another time.
    pub fn is_of_other_than(&self, database: &str, created_at: Option<i64>) -> bool {
        let of_other = self.database.as_deref().is_some_and(|own| own != database);
        of_other || matches!((self.created_at, created_at), (Some(own), Some(at)) if own != at)
    }

    /// The virtual CPUs that it has, by their numbers.
    pub fn vcpus(&self) -> CpuSet {
        (0..self.pins.vcpus.len() as u32).filter(|vcpu| !self.offline.contains(*vcpu)).collect()
    }

    /// Where a virtual CPU that it has may run; empty if anywhere.
    pub fn vcpu_cpus(&self, vcpu: u32) -> Option<&CpuSet> {
        let pinned = self.pins.vcpus.get(vcpu as usize).filter(|_| !self.offline.contains(vcpu))?;
        Some(self.strayed.get(&vcpu).unwrap_or(pinned))
    }

    /// Whether a thread of it may run on one of these CPUs. One that is not pinned may run on any.
    pub fn may_run_on(&self, cpus: &CpuSet) -> bool {
        let vcpus = self.vcpus();
        let guest = vcpus.iter().filter_map(|vcpu| self.vcpu_cpus(vcpu)).chain(self.io_threads.values());
        guest.into_iter().any(|on| on.is_empty() || on.intersects(cpus))
            || self.pins.emulator.intersects(cpus)
    }
}

/// A domain in a hypervisor's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// The virtual machine that it says it is; none for a domain of others.
    pub vm: Option<VmId>,
    /// The database that it says its virtual machine is of, as in [`Actual`].
    pub database: Option<String>,
    /// When it says that this was asked for, as in [`Actual`].
    pub created_at: Option<i64>,
}

impl Listed {
    /// The virtual machine of this database that it says it is.
    pub fn vm_in(&self, database: &str) -> Option<VmId> {
        self.vm.filter(|_| self.database.as_deref().is_none_or(|own| own == database))
    }
}

/// The name of a virtual machine's domain.
pub fn domain_name(vm: VmId) -> String {
    format!("longma-{vm}")
}

/// One host's hypervisor. Every call may be made again: what is so already is no error.
pub trait Hypervisor: Send {
    /// Gives up what lasts beyond this ending, and refuses what is asked after it as [`HypervisorError::Away`]. One whose calls cannot last
    /// need not heed it.
    fn heed(&mut self, ending: &Ending) {
        let _ = ending;
    }

    /// All domains, running or not, and the virtual machines that they say they are.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn list(&mut self) -> Result<Vec<Listed>, HypervisorError>;

    /// A domain as it is; none if there is none of this name.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn inspect(&mut self, name: &str) -> Result<Option<Actual>, HypervisorError>;

    /// All domains, and as they are those that say they are virtual machines: what [`Hypervisor::list`] and [`Hypervisor::inspect`] say, by fewer
    /// calls where a call takes long.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn survey(&mut self) -> Result<Vec<(Listed, Option<Actual>)>, HypervisorError> {
        let mut all = Vec::new();
        for listed in self.list()? {
            let actual = if listed.vm.is_some() { self.inspect(&listed.name)? } else { None };
            all.push((listed, actual));
        }
        Ok(all)
    }

    /// CPU time that a running domain's virtual CPUs have used, in seconds; none if the hypervisor does not say.
    ///
    /// # Errors
    /// If it cannot be reached.
    fn cpu_seconds(&mut self, name: &str) -> Result<Option<f64>, HypervisorError> {
        let _ = name;
        Ok(None)
    }

    /// Makes a domain that does not run, or replaces one that does not run.
    ///
    /// # Errors
    /// If it cannot be reached or refuses, as where somebody else or another database has a domain of this name.
    fn define(&mut self, domain: &Domain) -> Result<(), HypervisorError>;

    /// Starts a domain.
    ///
    /// # Errors
    /// If it cannot be reached or refuses: without memory, without its image.
    fn start(&mut self, name: &str) -> Result<(), HypervisorError>;

    /// Stops a domain at once; it stays defined. No domain is no error.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn stop(&mut self, name: &str) -> Result<(), HypervisorError>;

    /// Forgets a domain that does not run. No domain is no error.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn undefine(&mut self, name: &str) -> Result<(), HypervisorError>;

    /// Lets a domain go on that is paused.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn resume(&mut self, name: &str) -> Result<(), HypervisorError> {
        let _ = name;
        Ok(())
    }

    /// Makes a running domain one that is not forgotten when it ends.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn persist(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        let _ = domain;
        Ok(())
    }

    /// Takes away what keeps a running domain from CPU time.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn unslow(&mut self, name: &str) -> Result<(), HypervisorError> {
        let _ = name;
        Ok(())
    }

    /// Says where a virtual CPU of a running domain runs.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn pin_vcpu(&mut self, name: &str, vcpu: u32, cpus: &CpuSet) -> Result<(), HypervisorError>;

    /// Gives a running domain so many virtual CPUs. To have fewer, its guest has to let them go.
    ///
    /// # Errors
    /// If it cannot be reached or refuses: it can have only so many, or the guest does not let them go.
    fn set_vcpus(&mut self, name: &str, count: u32) -> Result<(), HypervisorError> {
        let what = format!("give {count} virtual CPUs to {name}");
        Err(HypervisorError::Refused { what, why: "this hypervisor cannot while it runs".into() })
    }

    /// Says where a thread for input and output of a running domain runs.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn pin_io_thread(&mut self, name: &str, thread: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        let _ = (name, thread, cpus);
        Ok(())
    }

    /// Says where the emulator's threads of a running domain run, but those for input and output.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn pin_emulator(&mut self, name: &str, cpus: &CpuSet) -> Result<(), HypervisorError>;

    /// Says which nodes a running domain's memory may come from.
    ///
    /// # Errors
    /// If it cannot be reached or refuses.
    fn bind_memory(&mut self, name: &str, nodes: &[u32]) -> Result<(), HypervisorError>;

    /// Moves the memory of one virtual node of a running domain to where `shares` say.
    ///
    /// # Errors
    /// If it cannot be reached or refuses: there may be no room.
    fn move_memory(&mut self, name: &str, cell: usize, shares: &[Share]) -> Result<(), HypervisorError>;
}
