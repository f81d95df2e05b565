//! Live migration between hosts. The agent of the source host drives it: it reserves the target, waits until the
//! target's agent has prepared its host, migrates, and ends the migration in the store. The hypervisor leaves the
//! domain paused on the target, and it is resumed only when the store places the virtual machine on the target.
//! Therefore it never runs on both hosts, whichever process or connection fails: a copy that the store does not confirm
//! is removed.
//!
//! Source: libvirt, "Guest migration": the source resumes a domain if the answer of the target is lost, even if the target
//! has completed the migration.

use super::{Agent, Report};
use crate::audit::AuditError;
use crate::cpus::CpuSet;
use crate::host::Host;
use crate::hypervisor::{Destination, Domain, Hypervisor, HypervisorError, Outgoing, Pins, domain_name};
use crate::placement::Placement;
use crate::store::{AgentStore, Intent, Vm, VmId, VmState};
use serde::{Deserialize, Serialize};

/// Maximum duration of a migration in seconds. After that it is aborted.
pub const MAX_MIGRATION_S: u64 = 600;

/// A host that is ready for a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    /// Address of its hypervisor for the source host.
    pub address: String,
    /// Affinity of the virtual machine's threads there.
    pub pins: Pins,
}

/// Prepares `host` for a virtual machine that is being migrated to it: other virtual machines leave the CPUs to be
/// dedicated.
///
/// # Errors
/// If the host cannot take it, or the store or the hypervisor is unreachable.
pub fn receive(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
    id: VmId,
) -> Result<Ready, AuditError> {
    let mut agent = Agent::new(store, hypervisor, host)?;
    let what = format!("accept virtual machine {id}");
    let refused =
        |why: &str| AuditError::from(HypervisorError::Refused { what: what.clone(), why: why.into() });
    let vms = agent.read_vms()?;
    let vm = vms.iter().find(|vm| vm.id == id && vm.state == VmState::Migrating);
    let target = vm.and_then(|vm| vm.target.as_ref()).filter(|target| target.host == host.name);
    let Some((vm, target)) = vm.zip(target) else {
        return Err(refused("it is not being migrated to this host"));
    };
    let name = domain_name(id);
    if let Some(actual) = agent.domain_state(&name)? {
        if agent.inspect(&name)?.is_none() {
            return Err(refused("a domain of this name exists that does not belong to it"));
        }
        if actual.running && actual.paused.is_none() {
            return Err(refused("its domain runs here already"));
        }
        // An earlier attempt left this domain.
        agent.remove(&name)?;
    }
    for other in vms.iter().filter(|other| other.state == VmState::Running) {
        agent.correct(other)?;
    }
    if let Some(why) = agent.occupant(id, target)? {
        return Err(refused(&why));
    }
    let domain = agent.domain(vm, target);
    if domain.pins.vcpus.iter().any(CpuSet::is_empty) {
        return Err(refused("one of its nodes has no shared CPU left"));
    }
    let address = agent.hypervisor.accept_migration(&domain)?;
    Ok(Ready { address, pins: domain.pins })
}

/// Migrates a running virtual machine of `host` to `target` on another host. `prepare` asks the target's agent to
/// prepare its host. If a step is rejected, undoes everything. If the outcome is unknown, the virtual machine stays in
/// the state `Migrating` with both placements reserved, and [`super::reconcile`] ends the migration.
///
/// # Errors
/// If the target is taken, or the store or the hypervisor is unreachable.
pub fn migrate_vm(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
    id: VmId,
    target: &Placement,
    prepare: &mut dyn FnMut() -> Result<Ready, String>,
) -> Result<Report, AuditError> {
    let mut agent = Agent::new(store, hypervisor, host)?;
    let vm = agent.store.begin_migration(id, target)?;
    let ready = match prepare() {
        Ok(ready) => ready,
        Err(why) => {
            agent.end_migration(id, Some(&format!("{} is not ready: {why}", target.host)))?;
            return Ok(agent.report);
        }
    };
    let name = domain_name(id);
    let domain = Domain {
        name: name.clone(),
        vm: id,
        database: agent.database.clone(),
        created_at: vm.created_at,
        request: vm.request.clone(),
        placement: target.clone(),
        pins: ready.pins,
        functions: Vec::new(),
    };
    let to = Destination { address: ready.address, domain };
    agent.mark_changed(&name);
    let problem = match agent.hypervisor.migrate(&name, &to) {
        Ok(()) => "the hypervisor reported success, but the domain is still here".to_string(),
        Err(error) => error.to_string(),
    };
    agent.settle(&vm, Some(&to.address), &problem)?;
    // Other virtual machines may now share the CPUs that this one has left.
    for other in agent.read_vms()?.iter().filter(|other| other.state == VmState::Running) {
        agent.correct(other)?;
    }
    Ok(agent.report)
}

impl Agent<'_> {
    fn end_migration(&mut self, id: VmId, problem: Option<&str>) -> Result<(), AuditError> {
        self.store.end_migration(id, problem)?;
        match problem {
            None => {
                self.report.has_migrated = true;
                self.report.done.push(format!("virtual machine {id} migrated"));
            }
            Some(why) => self.report.problems.push(format!("virtual machine {id} was not migrated: {why}")),
        }
        Ok(())
    }

    /// Ends a migration that another process or a failure has interrupted.
    pub(super) fn recover_migration(&mut self, vm: &Vm) -> Result<(), AuditError> {
        self.settle(vm, None, "it was interrupted")
    }

    /// Ends a migration according to the state of the domain on this host. Records `problem` if the domain has not
    /// left.
    fn settle(&mut self, vm: &Vm, address: Option<&str>, problem: &str) -> Result<(), AuditError> {
        let (id, name) = (vm.id, domain_name(vm.id));
        self.mark_changed(&name);
        match self.hypervisor.outgoing(&name)? {
            Outgoing::InProgress { for_s } => {
                if for_s > MAX_MIGRATION_S {
                    let aborted = self.hypervisor.abort_migration(&name);
                    self.is_done(id, aborted)?;
                }
                self.report.problems.push(format!("virtual machine {id} is still being migrated"));
            }
            Outgoing::Stays => self.end_migration(id, Some(problem))?,
            // First record durably that the copy on the target is not used.
            Outgoing::Suspended => {
                self.end_migration(id, Some(problem))?;
                let resumed = self.hypervisor.resume(&name);
                self.is_done(id, resumed)?;
            }
            Outgoing::Left => {
                self.end_migration(id, None)?;
                if let Some(address) = address.filter(|_| vm.intent == Intent::Run) {
                    // If this fails, the agent of the target resumes the domain.
                    let _ = self.hypervisor.resume_at(address, &name);
                }
                let removed = self.remove(&name);
                self.is_done(id, removed)?;
            }
            Outgoing::Gone => {
                // The memory of the virtual machine is lost, so it restarts on the host where it was before.
                self.end_migration(id, Some(&format!("{problem}; its domain had disappeared")))?;
            }
        }
        Ok(())
    }
}
