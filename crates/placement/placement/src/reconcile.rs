//! Brings a host's hypervisor to the state that the store intends, from any current state. A crash between any two
//! steps is safe. An agent calls [`reconcile`] after changes and periodically.

mod migrate;

pub use migrate::{MAX_MIGRATION_S, Ready, migrate_vm, receive};

use crate::audit::{self, AuditError, Finding, Intended, What, conditions, differences};
use crate::cpus::CpuSet;
use crate::foreign::ForeignDomain;
use crate::host::Host;
use crate::hypervisor::{
    Domain, DomainEntry, DomainState, Hypervisor, HypervisorError, PAUSED_BY_MIGRATION, PAUSED_BY_USER,
    domain_name,
};
use crate::placement::Placement;
use crate::store::{AgentStore, Intent, StoreError, Vm, VmId, VmState};
use std::collections::{BTreeMap, BTreeSet};

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Changes that were made, as human-readable text.
    pub done: Vec<String>,
    /// Changes that failed. Each is also recorded with its virtual machine.
    pub problems: Vec<String>,
    /// Domains that do not belong to this database. They are left alone.
    pub foreign: Vec<String>,
    /// Whether a virtual machine has left the host by migration.
    pub has_migrated: bool,
}

/// State of one run for one host.
struct Agent<'a> {
    store: &'a dyn AgentStore,
    hypervisor: &'a mut dyn Hypervisor,
    host: &'a Host,
    /// Identity of the store's database.
    database: String,
    /// The host's virtual machines as last read or changed. The store of a remote agent answers over the network, so
    /// they are not read again for each virtual machine.
    vms: Vec<Vm>,
    /// Creation time of each virtual machine that was on the host during the run.
    created: BTreeMap<VmId, i64>,
    /// All domains at the start of the run, to avoid repeated queries.
    seen: BTreeMap<String, (DomainEntry, Option<DomainState>)>,
    /// Domains changed during the run. They must be queried again.
    changed_domains: BTreeSet<String>,
    /// Virtual machines whose number of virtual CPUs has already been set in this run. A guest that does not release a
    /// virtual CPU blocks the call for seconds, so it is tried only once.
    vcpus_set: BTreeSet<VmId>,
    report: Report,
}

/// Brings the host to the state that the store intends. If the hypervisor rejects a change, records the error and
/// continues with the other changes.
///
/// # Errors
/// If the store or the hypervisor is unreachable; retry later.
pub fn reconcile(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
) -> Result<Report, AuditError> {
    let mut agent = Agent::new(store, hypervisor, host)?;
    let vms = agent.read_vms()?;
    agent.remove_orphans(&vms)?;
    for vm in vms.iter().filter(|vm| vm.state == VmState::Migrating && vm.is_on(&host.name)) {
        agent.recover_migration(vm)?;
    }
    // Repin running virtual machines first, so that they leave CPUs that are about to be dedicated to another one.
    for vm in vms.iter().filter(|vm| matches!(vm.state, VmState::Moving | VmState::Running)) {
        agent.correct(vm)?;
    }
    for vm in agent.read_vms()? {
        agent.advance(&vm)?;
    }
    // Repin again: CPUs released above may now be shared.
    for vm in agent.read_vms()?.iter().filter(|vm| vm.state == VmState::Running) {
        agent.correct(vm)?;
    }
    Ok(agent.report)
}

/// Moves a running virtual machine live to other nodes of its host. If a step is rejected, undoes the move. If the undo
/// fails too, the virtual machine stays in the state `Moving` with both placements reserved, and [`reconcile`] undoes
/// the move later.
///
/// # Errors
/// If the target is taken, or the store or the hypervisor is unreachable.
pub fn move_vm(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
    id: VmId,
    target: &Placement,
) -> Result<Report, AuditError> {
    let mut agent = Agent::new(store, hypervisor, host)?;
    let vm = agent.store.begin_move(id, target)?;
    // First repin the virtual machines that share CPUs which the target dedicates.
    for other in agent.read_vms()?.iter().filter(|o| o.id != id && o.state == VmState::Running) {
        agent.correct(other)?;
    }
    let applied = match agent.occupant(id, target)? {
        None => agent.apply(id, target),
        Some(why) => Err(HypervisorError::Refused { what: "free its CPUs".into(), why }),
    };
    match applied {
        Ok(()) => {
            agent.end_move(id, true)?;
            agent.report.done.push(format!("virtual machine {id} moved"));
        }
        Err(HypervisorError::Refused { what, why }) => {
            agent
                .report
                .problems
                .push(format!("the hypervisor refused to {what}: {why}; the move was undone"));
            agent.correct(&vm)?;
        }
        Err(unreachable) => return Err(unreachable.into()),
    }
    // CPUs that the move released may now be shared, also by the moved virtual machine.
    for other in agent.read_vms()?.iter().filter(|o| o.state == VmState::Running) {
        agent.correct(other)?;
    }
    Ok(agent.report)
}

impl<'a> Agent<'a> {
    fn new(
        store: &'a dyn AgentStore,
        hypervisor: &'a mut dyn Hypervisor,
        host: &'a Host,
    ) -> Result<Self, AuditError> {
        let database = store.identity()?;
        let seen = hypervisor.survey()?.into_iter().map(|found| (found.0.name.clone(), found)).collect();
        let (vms, created, changed_domains, vcpus_set) = Default::default();
        let report = Report::default();
        Ok(Self { store, hypervisor, host, database, vms, created, seen, changed_domains, vcpus_set, report })
    }
}

impl Agent<'_> {
    /// Reads the host's virtual machines.
    fn read_vms(&mut self) -> Result<Vec<Vm>, AuditError> {
        let vms = self.store.host_vms(&self.host.name)?;
        self.created.extend(vms.iter().map(|vm| (vm.id, vm.created_at)));
        self.vms.clone_from(&vms);
        Ok(vms)
    }

    fn transition(
        &mut self,
        id: VmId,
        from: VmState,
        to: VmState,
        problem: Option<&str>,
    ) -> Result<Vm, StoreError> {
        let vm = self.store.transition(id, from, to, problem)?;
        self.remember(&vm);
        Ok(vm)
    }

    fn end_move(&mut self, id: VmId, arrived: bool) -> Result<(), StoreError> {
        let vm = self.store.end_move(id, arrived)?;
        self.remember(&vm);
        Ok(())
    }

    /// Replaces the record of a virtual machine in memory.
    fn remember(&mut self, vm: &Vm) {
        if let Some(known) = self.vms.iter_mut().find(|known| known.id == vm.id) {
            known.clone_from(vm);
        }
    }

    /// Returns whether a domain belongs to another database, or to a virtual machine with the same ID that this
    /// database has lost.
    fn belongs_to_other(&self, actual: &DomainState) -> bool {
        let created_at = actual.vm.and_then(|id| self.created.get(&id)).copied();
        actual.belongs_to_other(&self.database, created_at)
    }

    fn remove_orphans(&mut self, vms: &[Vm]) -> Result<(), AuditError> {
        let all: Vec<DomainEntry> = self.seen.values().map(|found| found.0.clone()).collect();
        for listed in all {
            let (ours, created, domain) = (listed.vm_in(&self.database), listed.created_at, listed.name);
            match ours {
                None if listed.vm.is_none() => self.report.foreign.push(domain),
                None => self.leave_alone(domain, "is labelled with another database"),
                Some(id) if domain != domain_name(id) => {
                    self.leave_alone(
                        domain,
                        &format!("is labelled as virtual machine {id} but has another name"),
                    );
                }
                Some(id)
                    if vms.iter().any(|vm| vm.id == id && created.is_none_or(|at| at == vm.created_at)) => {}
                Some(id) if !self.store.has_created(id, created)? => {
                    self.leave_alone(
                        domain,
                        "is labelled as a virtual machine that was never created \
                        here or that the database has lost",
                    );
                }
                Some(id) => {
                    let removed = self.remove(&domain);
                    if self.is_done(id, removed)? {
                        self.report.done.push(format!("domain {domain} removed"));
                    }
                }
            }
        }
        Ok(())
    }

    fn leave_alone(&mut self, domain: String, why: &str) {
        self.report.problems.push(format!("domain {domain} {why}: this service leaves it alone"));
        self.report.foreign.push(domain);
    }

    /// State of a virtual machine's domain, even if it belongs to another database.
    fn inspect_labelled(&mut self, domain: &str) -> Result<Option<DomainState>, HypervisorError> {
        Ok(self.domain_state(domain)?.filter(|actual| actual.vm.is_some()))
    }

    /// State of a domain, even if it belongs to no virtual machine.
    fn domain_state(&mut self, domain: &str) -> Result<Option<DomainState>, HypervisorError> {
        match self.changed_domains.contains(domain) {
            true => self.hypervisor.inspect(domain),
            false => Ok(self.seen.get(domain).and_then(|found| found.1.clone())),
        }
    }

    /// State of a domain of this database; `None` if no domain has this name or it belongs to another owner.
    fn inspect(&mut self, domain: &str) -> Result<Option<DomainState>, HypervisorError> {
        let found = self.inspect_labelled(domain)?;
        let is_named_so = |actual: &DomainState| actual.vm.is_some_and(|id| domain_name(id) == domain);
        Ok(found.filter(|actual| is_named_so(actual) && !self.belongs_to_other(actual)))
    }

    /// Marks a domain as changed.
    fn mark_changed(&mut self, domain: &str) {
        self.changed_domains.insert(domain.into());
    }

    /// Returns whether a change succeeded. Records a rejected change; passes on any other error.
    fn is_done(&mut self, id: VmId, done: Result<(), HypervisorError>) -> Result<bool, AuditError> {
        match done {
            Ok(()) => Ok(true),
            Err(error @ HypervisorError::Refused { .. }) => {
                self.report.problems.push(format!("virtual machine {id}: {error}"));
                Ok(false)
            }
            Err(unreachable) => Err(unreachable.into()),
        }
    }

    fn remove(&mut self, domain: &str) -> Result<(), HypervisorError> {
        if self.inspect(domain)?.is_none() {
            return Ok(());
        }
        self.mark_changed(domain);
        self.hypervisor.stop(domain)?;
        self.hypervisor.undefine(domain)
    }

    fn stop_domain(&mut self, domain: &str) -> Result<(), HypervisorError> {
        if self.inspect(domain)?.is_none() {
            return Ok(());
        }
        self.mark_changed(domain);
        self.hypervisor.stop(domain)
    }

    /// Corrects affinity and memory of a running virtual machine and undoes an unfinished move.
    fn correct(&mut self, vm: &Vm) -> Result<(), AuditError> {
        let (id, Some(placement)) = (vm.id, &vm.placement) else { return Ok(()) };
        let running = self.inspect(&domain_name(id))?.is_some_and(|a| a.running);
        if !running {
            // The domain died. It occupies no resources, so an unfinished move can be dropped; the domain is created
            // again.
            if vm.state == VmState::Moving {
                self.end_move(id, false)?;
            }
            if vm.intent == Intent::Run {
                self.transition(id, VmState::Running, VmState::Creating, Some("its domain had disappeared"))?;
            }
            return Ok(());
        }
        let before = self.report.problems.len();
        let applied = self.apply(id, placement);
        if self.is_done(id, applied)? && vm.state == VmState::Moving {
            self.end_move(id, false)?;
            self.report.done.push(format!("virtual machine {id}: an unfinished move was undone"));
        }
        debug_assert!(self.report.problems.len() <= before + 1);
        if vm.intent == Intent::Run {
            let reverted = self.revert_changes(vm, placement);
            self.is_done(id, reverted)?;
        }
        Ok(())
    }

    /// Undoes external changes to a running domain other than affinity and memory. A domain that was not paused by a
    /// user stays paused.
    fn revert_changes(&mut self, vm: &Vm, placement: &Placement) -> Result<(), HypervisorError> {
        let name = domain_name(vm.id);
        let Some(actual) = self.inspect(&name)? else { return Ok(()) };
        for finding in conditions(vm.id, placement, &actual) {
            if self.revert_change(vm, placement, &finding, &actual)? {
                let intended = finding.intended.split(':').next().unwrap_or_default();
                self.report
                    .done
                    .push(format!("domain {name} was {} and is {intended} again", finding.actual));
            }
        }
        let actual = self.inspect(&name)?.unwrap_or_default();
        match conditions(vm.id, placement, &actual).first() {
            None => Ok(()),
            Some(left) => Err(HypervisorError::Refused {
                what: format!("correct {name}"),
                why: format!("it is {}, expected {}", left.actual, left.intended),
            }),
        }
    }

    /// Undoes one external change if that is possible while the domain runs. Returns whether it was undone.
    fn revert_change(
        &mut self,
        vm: &Vm,
        placement: &Placement,
        finding: &Finding,
        actual: &DomainState,
    ) -> Result<bool, HypervisorError> {
        let name = finding.domain.as_str();
        match finding.what {
            // A domain that a migration left paused is resumed only if the store places the virtual machine on this
            // host.
            What::Paused
                if matches!(actual.paused.as_deref(), Some(PAUSED_BY_USER | PAUSED_BY_MIGRATION)) =>
            {
                self.mark_changed(name);
                self.hypervisor.resume(name)?;
            }
            What::Transient => {
                let domain = self.domain(vm, placement);
                self.mark_changed(name);
                self.hypervisor.persist(&domain)?;
            }
            What::Slowed => {
                self.mark_changed(name);
                self.hypervisor.remove_cpu_limits(name)?;
            }
            What::Vcpus if self.vcpus_set.insert(vm.id) => {
                self.mark_changed(name);
                match self.hypervisor.set_vcpus(name, placement.vcpus()) {
                    // The caller reports this difference together with instructions.
                    Err(HypervisorError::Refused { .. }) => return Ok(false),
                    done => done?,
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The domain to define for a virtual machine.
    fn domain(&self, vm: &Vm, placement: &Placement) -> Domain {
        Domain {
            name: domain_name(vm.id),
            vm: vm.id,
            database: self.database.clone(),
            created_at: vm.created_at,
            request: vm.request.clone(),
            placement: placement.clone(),
            pins: self.intended(placement).pins,
            functions: self.functions(placement),
        }
    }

    /// The PCI functions of a placement's devices.
    fn functions(&self, placement: &Placement) -> Vec<String> {
        let devices = placement.devices.iter();
        let known = devices.filter_map(|name| self.host.devices.iter().find(|device| device.name == *name));
        known.flat_map(|device| device.functions.clone()).collect()
    }

    /// Applies the affinity and memory binding of `placement` to a running domain. Changes only the parts that differ.
    fn apply(&mut self, id: VmId, placement: &Placement) -> Result<(), HypervisorError> {
        let domain = domain_name(id);
        let intended = self.intended(placement);
        let Some(actual) = self.inspect(&domain)? else {
            return Err(HypervisorError::Refused {
                what: format!("change {domain}"),
                why: "the domain does not exist".into(),
            });
        };
        let found = differences(id, placement, &intended, &actual);
        if found.is_empty() {
            return Ok(());
        }
        self.mark_changed(&domain);
        for finding in &found {
            match finding.what {
                What::VcpuPin(vcpu) => self.hypervisor.pin_vcpu(&domain, vcpu, intended.of_vcpu(vcpu))?,
                What::EmulatorPin => self.hypervisor.pin_emulator(&domain, &intended.pins.emulator)?,
                What::IoThreadPin(thread) => {
                    self.hypervisor.pin_io_thread(&domain, thread, &intended.pins.emulator)?;
                }
                What::Bound => self.hypervisor.bind_memory(&domain, &placement.bound)?,
                _ => {}
            }
        }
        if found.iter().any(|f| matches!(f.what, What::Bound | What::Memory)) {
            for (cell, at) in placement.cells.iter().zip(0..) {
                self.hypervisor.move_memory(&domain, at, &cell.memory)?;
            }
        }
        let actual = self.inspect(&domain)?.unwrap_or_default();
        match differences(id, placement, &intended, &actual).first() {
            None => Ok(()),
            Some(left) => Err(HypervisorError::Refused {
                what: format!("change {domain}"),
                why: format!("{:?} is {}, expected {}", left.what, left.actual, left.intended),
            }),
        }
    }

    fn intended(&self, placement: &Placement) -> Intended {
        Intended::at(self.host, &self.vms, placement)
    }

    /// Returns which domain still runs on a CPU that `placement` dedicates. The virtual machine must not run there
    /// until that domain has left.
    fn occupant(&mut self, id: VmId, placement: &Placement) -> Result<Option<String>, AuditError> {
        let dedicated: CpuSet = placement.tally().exclusive.into_iter().map(|(_, cpu)| cpu).collect();
        if dedicated.is_empty() {
            return Ok(None);
        }
        let domains: BTreeSet<String> = self.seen.keys().chain(&self.changed_domains).cloned().collect();
        for domain in domains {
            let Some(actual) = self.domain_state(&domain)?.filter(|a| a.running) else { continue };
            if actual.vm.is_none() {
                // Unpinned threads of a foreign domain can run anywhere; no placement avoids them.
                if ForeignDomain::of(&domain, &actual, self.host).cpus.intersects(&dedicated) {
                    return Ok(Some(format!(
                        "{domain}, which the service does not manage, is pinned to them"
                    )));
                }
                continue;
            }
            if actual.vm == Some(id) && domain == domain_name(id) && !self.belongs_to_other(&actual) {
                continue;
            }
            if actual.may_run_on(&dedicated) {
                return Ok(Some(format!("{domain} still runs on them")));
            }
        }
        Ok(None)
    }

    /// Takes the next steps toward the state requested by the owner.
    fn advance(&mut self, vm: &Vm) -> Result<(), AuditError> {
        use VmState::*;
        match (vm.state, vm.intent) {
            (Requested | Deleted | Moving | Migrating, _)
            | (Running, Intent::Run)
            | (Stopped, Intent::Stop) => Ok(()),
            // Retried at the owner's request.
            (Failed, Intent::Run) => Ok(()),
            (Reserved | Creating | Stopped, Intent::Run) => self.create(vm),
            (Stopping, intent) => self.stop(vm, intent),
            (state, intent) => {
                let vm = self.transition(vm.id, state, Stopping, None)?;
                self.stop(&vm, intent)
            }
        }
    }

    fn create(&mut self, vm: &Vm) -> Result<(), AuditError> {
        let (id, Some(placement)) = (vm.id, &vm.placement) else { return Ok(()) };
        if let Some(why) = self.occupant(id, placement)? {
            // The next run tries again.
            self.report.problems.push(format!("virtual machine {id} was not started: {why}"));
            return Ok(());
        }
        if self.intended(placement).pins.vcpus.iter().any(CpuSet::is_empty) {
            // A CPU was lost after the scheduler had chosen this placement.
            let why = "one of its nodes has no shared CPU left";
            self.report.problems.push(format!("virtual machine {id} was not started: {why}"));
            return Ok(());
        }
        if vm.state != VmState::Creating {
            let begun = self.transition(id, vm.state, VmState::Creating, None)?;
            if begun.placement != vm.placement {
                // The virtual machine was resized after `vm` was read. From the state `Creating` on, its size is fixed.
                return self.create(&begun);
            }
        }
        match self.define_and_start(vm, placement) {
            Ok(true) => {
                self.transition(id, VmState::Creating, VmState::Running, None)?;
                self.report.done.push(format!("virtual machine {id} is running"));
            }
            Ok(false) => {
                let why = "its domain was removed during the start; the next check starts it again";
                self.report.problems.push(format!("virtual machine {id} was not started: {why}"));
            }
            Err(HypervisorError::Refused { what, why }) => {
                let problem = format!("the hypervisor refused to {what}: {why}");
                let removed = self.remove(&domain_name(id));
                if self.is_done(id, removed)? {
                    self.transition(id, VmState::Creating, VmState::Failed, Some(&problem))?;
                }
                self.report.problems.push(format!("virtual machine {id}: {problem}"));
            }
            Err(unreachable) => return Err(unreachable.into()),
        }
        Ok(())
    }

    /// Defines and starts a domain. Returns false if the domain was removed in between.
    fn define_and_start(&mut self, vm: &Vm, placement: &Placement) -> Result<bool, HypervisorError> {
        let name = domain_name(vm.id);
        let found = self.inspect(&name)?;
        if found.as_ref().is_some_and(|actual| actual.running && actual.paused.is_some()) {
            // The domain may be the remnant of an abandoned migration, with memory older than the disks.
            self.remove(&name)?;
        }
        let mut started = found.is_some_and(|actual| actual.running && actual.paused.is_none());
        let mut done = Ok(());
        if !started {
            let domain = self.domain(vm, placement);
            self.mark_changed(&name);
            self.hypervisor.define(&domain)?;
            done = self.hypervisor.start(&name);
            started = done.is_ok();
        }
        match done.and_then(|()| self.apply(vm.id, placement)) {
            Err(refused @ HypervisorError::Refused { .. }) => match self.inspect(&name)? {
                None => Ok(false),
                Some(actual) if started && !actual.running => Ok(false),
                Some(_) => Err(refused),
            },
            done => done.map(|()| true),
        }
    }

    fn stop(&mut self, vm: &Vm, intent: Intent) -> Result<(), AuditError> {
        let (id, domain) = (vm.id, domain_name(vm.id));
        let done = match intent {
            Intent::Delete => self.remove(&domain),
            Intent::Run | Intent::Stop => self.stop_domain(&domain),
        };
        if self.is_done(id, done)? {
            let to = if intent == Intent::Delete { VmState::Deleted } else { VmState::Stopped };
            let vm = self.transition(id, VmState::Stopping, to, None)?;
            self.report.done.push(format!("virtual machine {id} {to}"));
            if intent == Intent::Run {
                self.create(&vm)?;
            }
        }
        Ok(())
    }
}

/// Returns whether the store and the hypervisor agree about a host: no differences, and no virtual machine in
/// transition.
///
/// # Errors
/// If the store or the hypervisor fails.
pub fn is_converged(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
) -> Result<bool, AuditError> {
    let vms = store.host_vms(&host.name)?;
    let at_rest = |vm: &Vm| matches!(vm.state, VmState::Running | VmState::Stopped | VmState::Failed);
    Ok(vms.iter().all(at_rest) && audit::audit(store, hypervisor, host)?.is_empty())
}
