//! Drives a host's hypervisor to what the store intends, from wherever it is: after a crash between any two steps as after none.
//! Not a loop: an agent calls it when something changed, and now and then.

use crate::audit::{self, AuditError, Finding, Intended, What, conditions, differences};
use crate::cpus::CpuSet;
use crate::host::Host;
use crate::hypervisor::{Actual, BY_HAND, Domain, Hypervisor, HypervisorError, Listed, domain_name};
use crate::placement::Placement;
use crate::store::{Intent, Store, Vm, VmId, VmQuery, VmState};
use std::collections::{BTreeMap, BTreeSet};

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Virtual machines that were changed, and how, for people.
    pub done: Vec<String>,
    /// What could not be done; it is noted with the virtual machine too.
    pub problems: Vec<String>,
    /// Domains of others, which are left alone.
    pub foreign: Vec<String>,
}

/// One host's store, hypervisor and description.
struct Agent<'a> {
    store: &'a dyn Store,
    hypervisor: &'a mut dyn Hypervisor,
    host: &'a Host,
    /// The store's identity.
    database: String,
    /// When each of the host's virtual machines was asked for.
    created: BTreeMap<VmId, i64>,
    /// All domains at the beginning: one by one they would be asked for again and again.
    seen: BTreeMap<String, (Listed, Option<Actual>)>,
    /// Domains that were changed since; these are asked for anew.
    touched: BTreeSet<String>,
    /// Virtual machines whose number of virtual CPUs was set: a guest that does not let one go is not asked twice, each takes seconds.
    counted: BTreeSet<VmId>,
    report: Report,
}

/// Makes the host as the store intends. What a hypervisor refuses is noted and the rest goes on.
///
/// # Errors
/// If the store or the hypervisor cannot be reached; then call it again later.
pub fn reconcile(
    store: &dyn Store,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
) -> Result<Report, AuditError> {
    let mut agent = Agent::new(store, hypervisor, host)?;
    let vms = agent.vms()?;
    agent.remove_orphans(&vms)?;
    // Who runs gives way first: then nobody is on a CPU that becomes another's own.
    for vm in vms.iter().filter(|vm| matches!(vm.state, VmState::Moving | VmState::Running)) {
        agent.keep(vm)?;
    }
    for vm in agent.vms()? {
        agent.drive(&vm)?;
    }
    // What was freed on the way may be shared again.
    for vm in agent.vms()?.iter().filter(|vm| vm.state == VmState::Running) {
        agent.keep(vm)?;
    }
    Ok(agent.report)
}

/// Moves a running virtual machine to other nodes of its host, live. What fails is undone; what can be neither done nor undone now stays
/// marked as moving, with both places reserved, and [`reconcile`] undoes it.
///
/// # Errors
/// If the target is taken, or the store or the hypervisor cannot be reached.
pub fn move_vm(
    store: &dyn Store,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
    id: VmId,
    target: &Placement,
) -> Result<Report, AuditError> {
    let mut agent = Agent::new(store, hypervisor, host)?;
    let vm = agent.store.begin_move(id, target)?;
    // Those who share CPUs that the target takes for itself give way first.
    for other in agent.vms()?.iter().filter(|o| o.id != id && o.state == VmState::Running) {
        agent.keep(other)?;
    }
    let applied = match agent.in_the_way(id, target)? {
        None => agent.apply(id, target),
        Some(why) => Err(HypervisorError::Refused { what: "clear its CPUs".into(), why }),
    };
    match applied {
        Ok(()) => {
            agent.store.end_move(id, true)?;
            agent.report.done.push(format!("virtual machine {id} moved"));
        }
        Err(HypervisorError::Refused { what, why }) => {
            agent
                .report
                .problems
                .push(format!("the hypervisor refused to {what}: {why}; the move is undone"));
            agent.keep(&vm)?;
        }
        Err(away) => return Err(away.into()),
    }
    // What was given back may be shared again, by itself too.
    for other in agent.vms()?.iter().filter(|o| o.state == VmState::Running) {
        agent.keep(other)?;
    }
    Ok(agent.report)
}

impl<'a> Agent<'a> {
    fn new(
        store: &'a dyn Store,
        hypervisor: &'a mut dyn Hypervisor,
        host: &'a Host,
    ) -> Result<Self, AuditError> {
        let database = store.identity()?;
        let seen = hypervisor.survey()?.into_iter().map(|found| (found.0.name.clone(), found)).collect();
        let (created, touched, counted) = Default::default();
        let report = Report::default();
        Ok(Self { store, hypervisor, host, database, created, seen, touched, counted, report })
    }
}

impl Agent<'_> {
    fn vms(&mut self) -> Result<Vec<Vm>, AuditError> {
        let vms = self.store.vms(&VmQuery { host: Some(self.host.name.clone()), ..VmQuery::default() })?;
        self.created.extend(vms.iter().map(|vm| (vm.id, vm.created_at)));
        Ok(vms)
    }

    /// Whether a domain is of another database's virtual machine, or of one of this number that this database has lost.
    fn is_of_other(&self, actual: &Actual) -> bool {
        let created_at = actual.vm.and_then(|id| self.created.get(&id)).copied();
        actual.is_of_other_than(&self.database, created_at)
    }

    fn remove_orphans(&mut self, vms: &[Vm]) -> Result<(), AuditError> {
        let all: Vec<Listed> = self.seen.values().map(|found| found.0.clone()).collect();
        for listed in all {
            let (ours, said, domain) = (listed.vm_in(&self.database), listed.created_at, listed.name);
            match ours {
                None if listed.vm.is_none() => self.report.foreign.push(domain),
                None => self.leave_alone(domain, "is of another database's virtual machine"),
                Some(id) if domain != domain_name(id) => {
                    self.leave_alone(
                        domain,
                        &format!("says under another name that it is virtual machine {id}"),
                    );
                }
                Some(id) if vms.iter().any(|vm| vm.id == id && said.is_none_or(|at| at == vm.created_at)) => {
                }
                Some(id) if !self.store.has_made(id, said)? => {
                    self.leave_alone(domain, "is of no virtual machine that was ever made here, or of one that the database has lost");
                }
                Some(id) => {
                    let removed = self.remove(&domain);
                    if self.noted(id, removed)? {
                        self.report.done.push(format!("domain {domain} removed"));
                    }
                }
            }
        }
        Ok(())
    }

    fn leave_alone(&mut self, domain: String, why: &str) {
        self.report
            .problems
            .push(format!("domain {domain} {why}: it is not this service's, and is left alone"));
        self.report.foreign.push(domain);
    }

    /// A virtual machine's domain as it is, whatever its database.
    fn inspect_any(&mut self, domain: &str) -> Result<Option<Actual>, HypervisorError> {
        let found = match self.touched.contains(domain) {
            true => self.hypervisor.inspect(domain)?,
            false => self.seen.get(domain).and_then(|found| found.1.clone()),
        };
        Ok(found.filter(|actual| actual.vm.is_some()))
    }

    /// A domain as it is; none if there is none of this name but somebody else's or another database's.
    fn inspect(&mut self, domain: &str) -> Result<Option<Actual>, HypervisorError> {
        let found = self.inspect_any(domain)?;
        let is_named_so = |actual: &Actual| actual.vm.is_some_and(|id| domain_name(id) == domain);
        Ok(found.filter(|actual| is_named_so(actual) && !self.is_of_other(actual)))
    }

    /// A domain is about to be changed.
    fn touch(&mut self, domain: &str) {
        self.touched.insert(domain.into());
    }

    /// Whether it was done; a refusal is noted, anything else ends the run.
    fn noted(&mut self, id: VmId, done: Result<(), HypervisorError>) -> Result<bool, AuditError> {
        match done {
            Ok(()) => Ok(true),
            Err(error @ HypervisorError::Refused { .. }) => {
                self.report.problems.push(format!("virtual machine {id}: {error}"));
                Ok(false)
            }
            Err(away) => Err(away.into()),
        }
    }

    fn remove(&mut self, domain: &str) -> Result<(), HypervisorError> {
        if self.inspect(domain)?.is_none() {
            return Ok(());
        }
        self.touch(domain);
        self.hypervisor.stop(domain)?;
        self.hypervisor.undefine(domain)
    }

    fn halt(&mut self, domain: &str) -> Result<(), HypervisorError> {
        if self.inspect(domain)?.is_none() {
            return Ok(());
        }
        self.touch(domain);
        self.hypervisor.stop(domain)
    }

    /// A running virtual machine as intended: threads and memory where they should be, a move that was not ended undone.
    fn keep(&mut self, vm: &Vm) -> Result<(), AuditError> {
        let (id, Some(placement)) = (vm.id, &vm.placement) else { return Ok(()) };
        let running = self.inspect(&domain_name(id))?.is_some_and(|a| a.running);
        if !running {
            // It died: nothing of it is anywhere, so a move is as good as undone, and it is made again.
            if vm.state == VmState::Moving {
                self.store.end_move(id, false)?;
            }
            if vm.intent == Intent::Run {
                self.store.transition(
                    id,
                    VmState::Running,
                    VmState::Creating,
                    Some("its domain was gone"),
                )?;
            }
            return Ok(());
        }
        let before = self.report.problems.len();
        let applied = self.apply(id, placement);
        if self.noted(id, applied)? && vm.state == VmState::Moving {
            self.store.end_move(id, false)?;
            self.report.done.push(format!("virtual machine {id}: a half-done move was undone"));
        }
        debug_assert!(self.report.problems.len() <= before + 1);
        if vm.intent == Intent::Run {
            let righted = self.set_right(vm, placement);
            self.noted(id, righted)?;
        }
        Ok(())
    }

    /// Undoes what somebody did to a running domain beside its place. One that is paused for a reason of its own is left so.
    fn set_right(&mut self, vm: &Vm, placement: &Placement) -> Result<(), HypervisorError> {
        let name = domain_name(vm.id);
        let Some(actual) = self.inspect(&name)? else { return Ok(()) };
        for finding in conditions(vm.id, placement, &actual) {
            if self.mend(vm, placement, &finding, &actual)? {
                let intended = finding.intended.split(':').next().unwrap_or_default();
                self.report.done.push(format!("domain {name} was {}, and is {intended}", finding.actual));
            }
        }
        let actual = self.inspect(&name)?.unwrap_or_default();
        match conditions(vm.id, placement, &actual).first() {
            None => Ok(()),
            Some(left) => Err(HypervisorError::Refused {
                what: format!("set {name} right"),
                why: format!("it is {} and not {}", left.actual, left.intended),
            }),
        }
    }

    /// Undoes one thing that somebody did, if it can be undone while the domain runs; whether it was.
    fn mend(
        &mut self,
        vm: &Vm,
        placement: &Placement,
        finding: &Finding,
        actual: &Actual,
    ) -> Result<bool, HypervisorError> {
        let name = finding.domain.as_str();
        match finding.what {
            What::Paused if actual.paused.as_deref() == Some(BY_HAND) => {
                self.touch(name);
                self.hypervisor.resume(name)?;
            }
            What::Transient => {
                let domain = self.domain(vm, placement)?;
                self.touch(name);
                self.hypervisor.persist(&domain)?;
            }
            What::Slowed => {
                self.touch(name);
                self.hypervisor.unslow(name)?;
            }
            What::Vcpus if self.counted.insert(vm.id) => {
                self.touch(name);
                match self.hypervisor.set_vcpus(name, placement.vcpus()) {
                    // What is left is told with what to do.
                    Err(HypervisorError::Refused { .. }) => return Ok(false),
                    done => done?,
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A virtual machine as the hypervisor makes it.
    fn domain(&mut self, vm: &Vm, placement: &Placement) -> Result<Domain, HypervisorError> {
        Ok(Domain {
            name: domain_name(vm.id),
            vm: vm.id,
            database: self.database.clone(),
            created_at: vm.created_at,
            request: vm.request.clone(),
            placement: placement.clone(),
            pins: self.intended(placement)?.pins,
        })
    }

    /// Puts a running domain's threads and memory where `placement` says; touches only what differs.
    fn apply(&mut self, id: VmId, placement: &Placement) -> Result<(), HypervisorError> {
        let domain = domain_name(id);
        let intended = self.intended(placement)?;
        let Some(actual) = self.inspect(&domain)? else {
            return Err(HypervisorError::Refused {
                what: format!("change {domain}"),
                why: "there is none".into(),
            });
        };
        let found = differences(id, placement, &intended, &actual);
        if found.is_empty() {
            return Ok(());
        }
        self.touch(&domain);
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
                why: format!("{:?} is {} and not {}", left.what, left.actual, left.intended),
            }),
        }
    }

    fn intended(&mut self, placement: &Placement) -> Result<Intended, HypervisorError> {
        let vms = self.vms().map_err(|e| HypervisorError::Away(e.to_string()))?;
        Ok(Intended::at(self.host, &vms, placement))
    }

    /// Whether a domain still runs on a CPU that `placement` has for itself, and which; then it must not run there yet.
    fn in_the_way(&mut self, id: VmId, placement: &Placement) -> Result<Option<String>, AuditError> {
        let own: CpuSet = placement.tally().exclusive.into_iter().map(|(_, cpu)| cpu).collect();
        if own.is_empty() {
            return Ok(None);
        }
        let domains: BTreeSet<String> = self.seen.keys().chain(&self.touched).cloned().collect();
        for domain in domains {
            let Some(actual) = self.inspect_any(&domain)?.filter(|a| a.running) else { continue };
            if actual.vm == Some(id) && domain == domain_name(id) && !self.is_of_other(&actual) {
                continue;
            }
            if actual.may_run_on(&own) {
                return Ok(Some(format!("{domain} still runs there")));
            }
        }
        Ok(None)
    }

    /// The next steps of a virtual machine that is not where its owner wants it.
    fn drive(&mut self, vm: &Vm) -> Result<(), AuditError> {
        use VmState::*;
        match (vm.state, vm.intent) {
            (Requested | Deleted | Moving, _) | (Running, Intent::Run) | (Stopped, Intent::Stop) => Ok(()),
            // It is tried again when its owner asks for it.
            (Failed, Intent::Run) => Ok(()),
            (Reserved | Creating | Stopped, Intent::Run) => self.create(vm),
            (Stopping, intent) => self.stop(vm, intent),
            (state, intent) => {
                let vm = self.store.transition(vm.id, state, Stopping, None)?;
                self.stop(&vm, intent)
            }
        }
    }

    fn create(&mut self, vm: &Vm) -> Result<(), AuditError> {
        let (id, Some(placement)) = (vm.id, &vm.placement) else { return Ok(()) };
        if let Some(why) = self.in_the_way(id, placement)? {
            // It waits for the next call.
            self.report.problems.push(format!("virtual machine {id} is not started: {why}"));
            return Ok(());
        }
        if self.intended(placement)?.pins.vcpus.iter().any(CpuSet::is_empty) {
            // A CPU went, and the description that the place was chosen by still had it.
            let why = "a node of it has no CPU that virtual machines share";
            self.report.problems.push(format!("virtual machine {id} is not started: {why}"));
            return Ok(());
        }
        if vm.state != VmState::Creating {
            let begun = self.store.transition(id, vm.state, VmState::Creating, None)?;
            if begun.placement != vm.placement {
                // Its size was changed since it was read; from now on it stays.
                return self.create(&begun);
            }
        }
        match self.make(vm, placement) {
            Ok(true) => {
                self.store.transition(id, VmState::Creating, VmState::Running, None)?;
                self.report.done.push(format!("virtual machine {id} runs"));
            }
            Ok(false) => {
                let why = "somebody took its domain away meanwhile; it is started again by the next look";
                self.report.problems.push(format!("virtual machine {id} is not started: {why}"));
            }
            Err(HypervisorError::Refused { what, why }) => {
                let problem = format!("the hypervisor refused to {what}: {why}");
                let removed = self.remove(&domain_name(id));
                if self.noted(id, removed)? {
                    self.store.transition(id, VmState::Creating, VmState::Failed, Some(&problem))?;
                }
                self.report.problems.push(format!("virtual machine {id}: {problem}"));
            }
            Err(away) => return Err(away.into()),
        }
        Ok(())
    }

    /// Makes a domain and starts it; not if somebody took it away in between.
    fn make(&mut self, vm: &Vm, placement: &Placement) -> Result<bool, HypervisorError> {
        let name = domain_name(vm.id);
        let mut started = self.inspect(&name)?.is_some_and(|a| a.running);
        let mut done = Ok(());
        if !started {
            let domain = self.domain(vm, placement)?;
            self.touch(&name);
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
            Intent::Run | Intent::Stop => self.halt(&domain),
        };
        if self.noted(id, done)? {
            let to = if intent == Intent::Delete { VmState::Deleted } else { VmState::Stopped };
            let vm = self.store.transition(id, VmState::Stopping, to, None)?;
            self.report.done.push(format!("virtual machine {id} {to}"));
            if intent == Intent::Run {
                self.create(&vm)?;
            }
        }
        Ok(())
    }
}

/// Whether store and hypervisor agree about a host: nothing differs, and nothing is on its way.
///
/// # Errors
/// If either cannot be asked.
pub fn agrees(store: &dyn Store, hypervisor: &mut dyn Hypervisor, host: &Host) -> Result<bool, AuditError> {
    let vms = store.vms(&VmQuery { host: Some(host.name.clone()), ..VmQuery::default() })?;
    let at_rest = |vm: &Vm| matches!(vm.state, VmState::Running | VmState::Stopped | VmState::Failed);
    Ok(vms.iter().all(at_rest) && audit::audit(store, hypervisor, host)?.is_empty())
}
