//! An in-memory hypervisor for tests. It injects failures and crashes of the caller at any call, and lets tests change
//! or remove domains without the caller's knowledge. It can persist its domains to a file, so that they survive a
//! restart of the caller as libvirt's do.

mod network;

pub use network::FakeNetwork;

use crate::cpus::CpuSet;
use crate::hypervisor::{
    Destination, Domain, DomainEntry, DomainState, Hypervisor, HypervisorError, Outgoing,
};
use crate::placement::Share;
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// A failure to inject at a mutating call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This call is rejected; later calls succeed.
    Refuse,
    /// The caller crashes before the call takes effect. All calls fail until [`FakeHypervisor::recover`].
    CrashBefore,
    /// The caller crashes after the call takes effect.
    CrashAfter,
    /// The domain is removed just before the call.
    TakeAway,
}

/// Domains by name, each with the memory shares of its virtual nodes.
type Domains = BTreeMap<String, (DomainState, Vec<Vec<Share>>)>;

#[derive(Debug, Default)]
struct State {
    domains: Domains,
    /// File that the domains are persisted to.
    file: Option<PathBuf>,
    calls: u64,
    fault: Option<(u64, Fault)>,
    away: bool,
    /// Domains that have left this host by migration, or that a migration left suspended.
    outgoing: BTreeMap<String, Outgoing>,
}

impl State {
    /// Replaces the file atomically, so a kill leaves either the old or the new version.
    fn save(&self) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let written = || {
            let temporary = file.with_extension("new");
            std::fs::write(&temporary, serde_json::to_vec(&self.domains)?)?;
            std::fs::rename(&temporary, file)
        };
        written().map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }
}

/// An in-memory hypervisor. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct FakeHypervisor {
    state: Arc<Mutex<State>>,
    /// The network with the hypervisors that domains can be migrated to, and the address on it.
    network: Option<(FakeNetwork, String)>,
}

impl FakeHypervisor {
    /// Creates a hypervisor without domains.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a hypervisor that loads its domains from `file` and persists them there.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn with_file(file: &Path) -> io::Result<Self> {
        let domains = match std::fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Domains::new(),
            Err(error) => return Err(error),
        };
        let state = State { domains, file: Some(file.into()), ..State::default() };
        Ok(Self { state: Arc::new(Mutex::new(state)), network: None })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    /// Number of mutating calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Injects `fault` at a future mutating call, after `calls` other mutating calls.
    pub fn fail_after(&self, calls: u64, fault: Fault) {
        let mut state = self.state();
        state.fault = Some((state.calls + calls, fault));
    }

    /// Ends a simulated crash and cancels a pending fault. Domains keep their state.
    pub fn recover(&self) {
        let mut state = self.state();
        state.away = false;
        state.fault = None;
    }

    /// Sets the state in which a migration leaves a domain.
    pub fn set_outgoing(&self, name: &str, outgoing: Outgoing) {
        self.state().outgoing.insert(name.into(), outgoing);
    }

    /// Restarts the hypervisor's daemon: it forgets which domains have left by migration, and drops domains that have
    /// not completely arrived. Domains keep running.
    pub fn restart(&self) {
        let mut state = self.state();
        state.outgoing.retain(|_, outgoing| *outgoing == Outgoing::Suspended);
        network::drop_incomplete(&mut state, None);
    }

    /// All domains with their state.
    pub fn domains(&self) -> BTreeMap<String, DomainState> {
        self.state().domains.iter().map(|(name, d)| (name.clone(), d.0.clone())).collect()
    }

    /// Changes a domain without a hypervisor call, or removes it if `change` returns false. Returns whether the domain
    /// existed.
    pub fn tamper(&self, name: &str, change: impl FnOnce(&mut DomainState) -> bool) -> bool {
        let mut state = self.state();
        let Some((actual, _)) = state.domains.get_mut(name) else { return false };
        if !change(actual) {
            state.domains.remove(name);
        }
        true
    }

    /// Adds a domain that belongs to no virtual machine.
    pub fn add_foreign(&self, name: &str) {
        let foreign = DomainState { running: true, ..DomainState::default() };
        self.put_foreign(name, foreign);
    }

    /// Adds or replaces a domain with this state.
    pub fn put_foreign(&self, name: &str, actual: DomainState) {
        self.state().domains.insert(name.into(), (actual, Vec::new()));
    }

    fn change<T>(
        &mut self,
        what: &str,
        name: &str,
        change: impl FnOnce(&mut Domains) -> Result<T, String>,
    ) -> Result<T, HypervisorError> {
        let mut state = self.state();
        if state.away {
            return Err(HypervisorError::Unreachable("the caller has crashed".into()));
        }
        let refused = |why: String| HypervisorError::Refused { what: format!("{what} {name}"), why };
        let number = state.calls;
        state.calls += 1;
        let fault = state.fault.filter(|f| f.0 == number).map(|f| f.1);
        match fault {
            Some(Fault::Refuse) => return Err(refused("an injected failure".into())),
            Some(Fault::CrashBefore) => {
                state.away = true;
                return Err(HypervisorError::Unreachable("the caller crashed".into()));
            }
            Some(Fault::CrashAfter) => state.away = true,
            Some(Fault::TakeAway) => drop(state.domains.remove(name)),
            None => {}
        }
        let done = change(&mut state.domains).and_then(|done| state.save().map(|()| done)).map_err(refused);
        let away = state.away;
        drop(state);
        self.network.iter().for_each(|(network, _)| network.watch());
        if away { Err(HypervisorError::Unreachable("the caller crashed".into())) } else { done }
    }

    fn change_running(
        &mut self,
        what: &str,
        name: &str,
        change: impl FnOnce(&mut DomainState, &mut Vec<Vec<Share>>) -> Result<(), String>,
    ) -> Result<(), HypervisorError> {
        self.change(what, name, |domains| {
            let (actual, shares) = domains.get_mut(name).ok_or("the domain does not exist")?;
            if !actual.running {
                return Err("the domain is not running".into());
            }
            change(actual, shares)?;
            actual.memory_mib.clear();
            for share in shares.iter().flatten() {
                *actual.memory_mib.entry(share.node).or_default() += share.mib;
            }
            Ok(())
        })
    }
}

impl Hypervisor for FakeHypervisor {
    fn list(&mut self) -> Result<Vec<DomainEntry>, HypervisorError> {
        let state = self.state();
        if state.away {
            return Err(HypervisorError::Unreachable("the caller has crashed".into()));
        }
        let listed = |(name, (actual, _)): (&String, &(DomainState, Vec<Vec<Share>>))| DomainEntry {
            name: name.clone(),
            vm: actual.vm,
            database: actual.database.clone(),
            created_at: actual.created_at,
        };
        Ok(state.domains.iter().map(listed).collect())
    }

    fn inspect(&mut self, name: &str) -> Result<Option<DomainState>, HypervisorError> {
        let state = self.state();
        match state.away {
            true => Err(HypervisorError::Unreachable("the caller has crashed".into())),
            false => Ok(state.domains.get(name).map(|d| d.0.clone())),
        }
    }

    fn define(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        self.change("define", &domain.name, |domains| {
            let created_at = Some(domain.created_at);
            if domains.get(&domain.name).is_some_and(|d| d.0.belongs_to_other(&domain.database, created_at)) {
                return Err(
                    "a domain of this name belongs to another database or to a lost virtual machine".into()
                );
            }
            if domains.get(&domain.name).is_some_and(|d| d.0.running) {
                return Err("the domain is running".into());
            }
            let actual = DomainState {
                vm: Some(domain.vm),
                database: Some(domain.database.clone()),
                created_at: Some(domain.created_at),
                pins: domain.pins.clone(),
                bound: domain.placement.bound.clone(),
                size_mib: Some(domain.placement.memory_mib().0),
                huge_page_kib: domain.request.huge_page_kib,
                functions: domain.functions.clone(),
                ..DomainState::default()
            };
            let shares = domain.placement.cells.iter().map(|c| c.memory.clone()).collect();
            domains.insert(domain.name.clone(), (actual, shares));
            Ok(())
        })
    }

    fn start(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.state().outgoing.remove(name);
        self.change("start", name, |domains| {
            domains.get_mut(name).ok_or("the domain does not exist")?.0.running = true;
            Ok(())
        })?;
        self.change_running("allocate memory of", name, |_, _| Ok(()))
    }

    fn stop(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.change("stop", name, |domains| {
            if domains.get(name).is_some_and(|d| d.0.transient && d.0.running) {
                domains.remove(name);
            }
            if let Some((actual, _)) = domains.get_mut(name) {
                (actual.running, actual.paused) = (false, None);
                actual.cpu_limits.clear();
                actual.memory_mib.clear();
            }
            Ok(())
        })
    }

    fn undefine(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.change("undefine", name, |domains| {
            if domains.get(name).is_some_and(|d| d.0.running) {
                return Err("the domain is running".into());
            }
            domains.remove(name);
            Ok(())
        })
    }

    fn resume(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.change_running("resume", name, |actual, _| {
            actual.paused = None;
            Ok(())
        })?;
        self.state().outgoing.remove(name);
        Ok(())
    }

    fn persist(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        self.change_running("persist", &domain.name, |actual, _| {
            actual.transient = false;
            Ok(())
        })
    }

    fn remove_cpu_limits(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.change_running("give CPU time to", name, |actual, _| {
            actual.cpu_limits.clear();
            Ok(())
        })
    }

    fn pin_vcpu(&mut self, name: &str, vcpu: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.change_running("pin a virtual CPU of", name, |actual, _| {
            *actual.pins.vcpus.get_mut(vcpu as usize).ok_or("it has no such virtual CPU")? = cpus.clone();
            actual.misplaced_vcpus.remove(&vcpu);
            Ok(())
        })
    }

    fn accept_migration(&mut self, domain: &Domain) -> Result<String, HypervisorError> {
        self.change("accept", &domain.name, |_| Ok(()))?;
        self.network.as_ref().map(|(_, address)| address.clone()).ok_or_else(|| HypervisorError::Refused {
            what: format!("accept {}", domain.name),
            why: "it is on no network".into(),
        })
    }

    fn migrate(&mut self, name: &str, to: &Destination) -> Result<(), HypervisorError> {
        self.send(name, to)
    }

    fn outgoing(&mut self, name: &str) -> Result<Outgoing, HypervisorError> {
        let running = self.inspect(name)?.is_some_and(|actual| actual.running);
        let known = self.state().outgoing.get(name).copied();
        Ok(known.unwrap_or(if running { Outgoing::Stays } else { Outgoing::Gone }))
    }

    fn abort_migration(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.state().outgoing.remove(name);
        Ok(())
    }

    fn resume_at(&mut self, address: &str, name: &str) -> Result<(), HypervisorError> {
        self.peer(address)?.resume(name)
    }

    fn set_vcpus(&mut self, name: &str, count: u32) -> Result<(), HypervisorError> {
        self.change_running("give virtual CPUs to", name, |actual, _| {
            let max_vcpus = actual.pins.vcpus.len() as u32;
            if count > max_vcpus {
                return Err(format!("its maximum is {max_vcpus}"));
            }
            actual.offline = (count..max_vcpus).collect();
            Ok(())
        })
    }

    fn pin_io_thread(&mut self, name: &str, thread: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.change_running("pin an I/O thread of", name, |actual, _| {
            *actual.io_threads.get_mut(&thread).ok_or("it has no such I/O thread")? = cpus.clone();
            Ok(())
        })
    }

    fn pin_emulator(&mut self, name: &str, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.change_running("pin the emulator of", name, |actual, _| {
            actual.pins.emulator = cpus.clone();
            Ok(())
        })
    }

    fn bind_memory(&mut self, name: &str, nodes: &[u32]) -> Result<(), HypervisorError> {
        self.change_running("bind the memory of", name, |actual, _| {
            actual.bound = nodes.to_vec();
            Ok(())
        })
    }

    fn move_memory(&mut self, name: &str, cell: usize, to: &[Share]) -> Result<(), HypervisorError> {
        self.change_running("move the memory of", name, |actual, shares| {
            if to.iter().any(|share| !actual.bound.contains(&share.node)) {
                return Err("a node is outside its memory binding".into());
            }
            *shares.get_mut(cell).ok_or("it has no such virtual node")? = to.to_vec();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Placement;
    use crate::request::{CpuPolicy, EmulatorPolicy, MemoryPolicy, Request};

    #[test]
    fn domains_in_a_file_outlive_their_hypervisor() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("h1.json");
        let mut hypervisor = FakeHypervisor::with_file(&file).unwrap();
        let placement = Placement {
            lifetime: None,
            host: "h1".into(),
            cpu: CpuPolicy::Range,
            memory: MemoryPolicy::Strict,
            emulator: EmulatorPolicy::Shared,
            emulator_cpu: None,
            cells: Vec::new(),
            bound: vec![0],
            devices: Vec::new(),
            groups: Vec::new(),
            overhead: Vec::new(),
        };
        let request = Request::new("a", 1, 64);
        let (name, database) = ("longma-1".into(), "here".into());
        let domain = Domain {
            name,
            vm: 1,
            database,
            created_at: 1,
            request,
            placement,
            pins: Default::default(),
            functions: Vec::new(),
        };
        hypervisor.define(&domain).unwrap();
        hypervisor.start("longma-1").unwrap();
        let mut again = FakeHypervisor::with_file(&file).unwrap();
        assert_eq!(again.domains(), hypervisor.domains());
        assert!(again.inspect("longma-1").unwrap().unwrap().running);
        std::fs::write(&file, "no domains").unwrap();
        assert!(FakeHypervisor::with_file(&file).is_err());
    }
}
