//! Compares the intended CPU affinity and memory binding of each virtual machine with the observed state. `reconcile`
//! corrects the differences.

use crate::cpus::CpuSet;
use crate::host::Host;
use crate::hypervisor::{DomainState, Hypervisor, HypervisorError, PAUSED_BY_USER, Pins, domain_name};
use crate::placement::Placement;
use crate::request::{CpuPolicy, EmulatorPolicy, MemoryPolicy};
use crate::store::{AgentStore, Intent, StoreError, Vm, VmId, VmState};
use serde::{Deserialize, Serialize};

/// A difference between the intended and the observed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// ID of the virtual machine; `None` for a domain that should not exist.
    pub vm: Option<VmId>,
    /// Name of the domain.
    pub domain: String,
    /// Which property differs.
    pub what: What,
    /// Intended value, as human-readable text.
    pub intended: String,
    /// Observed value, as human-readable text.
    pub actual: String,
}

/// A property that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Affinity of the given virtual CPU.
    VcpuPin(u32),
    /// The set of online virtual CPUs.
    Vcpus,
    /// Affinity of the given I/O thread.
    IoThreadPin(u32),
    /// Memory size that the domain was defined with.
    Size,
    /// Affinity of the emulator threads.
    EmulatorPin,
    /// Nodes that memory may be allocated from.
    Bound,
    /// Memory on a node that the placement does not use.
    Memory,
    /// A domain that should run is stopped or missing.
    NotRunning,
    /// A running domain is paused.
    Paused,
    /// The domain is transient: it disappears when it stops.
    Transient,
    /// A CPU limit is set on the domain.
    Slowed,
    /// The domain belongs to a virtual machine that should not be on this host.
    Orphan,
}

/// CPUs of a host that are not dedicated to any of `vms`.
fn undedicated_cpus(host: &Host, vms: &[Vm]) -> CpuSet {
    let all: CpuSet = host.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
    let placements = vms.iter().flat_map(|vm| vm.placements_on(&host.name));
    let dedicated: CpuSet = placements.flat_map(|p| p.tally().exclusive).map(|(_, cpu)| cpu).collect();
    all.difference(&dedicated).difference(&host.gone)
}

/// The intended thread affinity for `placement`. `vms` are all virtual machines of the host.
pub fn intended_pins(host: &Host, vms: &[Vm], placement: &Placement) -> Pins {
    let undedicated_cpus = undedicated_cpus(host, vms);
    let guests = undedicated_cpus.difference(&host.reserved);
    let on_node = |id: u32| -> CpuSet {
        let cpus = host.nodes.iter().find(|n| n.id == id).map(|n| n.cpus()).unwrap_or_default();
        cpus.iter().filter(|c| guests.contains(*c)).collect()
    };
    let mut vcpus = Vec::new();
    for cell in &placement.cells {
        match placement.cpu {
            CpuPolicy::Exclusive => {
                vcpus.extend(cell.cpus.iter().map(|c| [*c].into_iter().collect::<CpuSet>()))
            }
            CpuPolicy::Range => vcpus.extend(std::iter::repeat_n(on_node(cell.node), cell.vcpus as usize)),
            CpuPolicy::None => vcpus.extend(std::iter::repeat_n(guests.clone(), cell.vcpus as usize)),
        }
    }
    let emulator = match (placement.emulator, placement.emulator_cpu) {
        (EmulatorPolicy::Isolated, Some(cpu)) => [cpu].into_iter().collect(),
        (EmulatorPolicy::WithVcpus, _) => vcpus.iter().flat_map(CpuSet::iter).collect(),
        _ => undedicated_cpus,
    };
    Pins { vcpus, emulator }
}

/// Intended affinity of a domain's threads, including surplus threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intended {
    /// Affinity of the threads that the domain should have.
    pub pins: Pins,
    /// Affinity of surplus virtual CPUs: shared CPUs, or the virtual machine's own CPUs if the host has no shared ones.
    pub spare: CpuSet,
}

impl Intended {
    /// Computes the intended affinity for `placement`. `vms` are all virtual machines of the host.
    pub fn at(host: &Host, vms: &[Vm], placement: &Placement) -> Self {
        let pins = intended_pins(host, vms, placement);
        let shared = undedicated_cpus(host, vms).difference(&host.reserved);
        let nodes = host.nodes.iter().filter(|n| placement.cells.iter().any(|cell| cell.node == n.id));
        let near = nodes.flat_map(|n| n.cpus().iter().filter(|c| shared.contains(*c)).collect::<Vec<_>>());
        let own = pins.vcpus.iter().flat_map(CpuSet::iter).collect();
        let choices = [near.collect(), shared, own];
        let spare = choices.into_iter().find(|cpus: &CpuSet| !cpus.is_empty()).unwrap_or_default();
        Self { pins, spare }
    }

    /// Intended affinity of a virtual CPU, even a surplus one.
    pub fn of_vcpu(&self, vcpu: u32) -> &CpuSet {
        self.pins.vcpus.get(vcpu as usize).unwrap_or(&self.spare)
    }
}

/// Total memory of a placement on all nodes.
fn size_mib(placement: &Placement) -> u64 {
    placement.memory_mib().0
}

/// Lists the differences in affinity and memory binding of a running domain. Virtual CPUs that are missing are reported
/// by [`conditions`].
pub fn differences(
    vm: VmId,
    placement: &Placement,
    intended: &Intended,
    actual: &DomainState,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut note = |what, intended: String, actual: String| {
        found.push(Finding { vm: Some(vm), domain: domain_name(vm), what, intended, actual });
    };
    for vcpu in actual.vcpus().iter() {
        let (cpus, observed) = (intended.of_vcpu(vcpu), actual.vcpu_cpus(vcpu));
        if observed != Some(cpus) {
            let observed = observed.map(ToString::to_string).unwrap_or_default();
            note(What::VcpuPin(vcpu), cpus.to_string(), observed);
        }
    }
    let emulator = &intended.pins.emulator;
    if actual.pins.emulator != *emulator {
        note(What::EmulatorPin, emulator.to_string(), actual.pins.emulator.to_string());
    }
    for (thread, observed) in actual.io_threads.iter().filter(|(_, observed)| *observed != emulator) {
        note(What::IoThreadPin(*thread), emulator.to_string(), observed.to_string());
    }
    let mut bound = actual.bound.clone();
    bound.sort_unstable();
    if bound != placement.bound {
        note(What::Bound, format!("{:?}", placement.bound), format!("{bound:?}"));
    }
    let memory = placement.guest_memory();
    // If the domain has another memory size than planned, report the size and not the location of the surplus.
    let resized = actual.size_mib.is_some_and(|mib| mib != size_mib(placement));
    let misplaced = actual.memory_mib.iter().filter(|(node, mib)| {
        let planned: u64 = memory.iter().filter(|(k, _)| k.0 == **node).map(|(_, mib)| mib).sum();
        match placement.memory {
            MemoryPolicy::Strict => **mib > planned && (planned == 0 || !resized),
            MemoryPolicy::Preferred { .. } => !placement.bound.contains(node) && **mib > 0,
        }
    });
    if misplaced.count() > 0 {
        note(
            What::Memory,
            format!("{memory:?} MiB by node and page"),
            format!("{:?} MiB by node", actual.memory_mib),
        );
    }
    found
}

/// Lists other changes made to a running domain from outside: paused, undefined, CPU limited, different virtual CPUs or
/// memory. If an operator must act, the instruction follows a colon in the `intended` text.
pub fn conditions(vm: VmId, placement: &Placement, actual: &DomainState) -> Vec<Finding> {
    let domain = domain_name(vm);
    let mut found = Vec::new();
    let mut note = |what, intended: String, actual: String| {
        found.push(Finding { vm: Some(vm), domain: domain.clone(), what, intended, actual });
    };
    if let Some(why) = &actual.paused {
        let advice = match &**why {
            PAUSED_BY_USER => String::new(),
            _ => format!(": remove the cause of the pause, then: virsh resume {domain}"),
        };
        note(What::Paused, format!("running{advice}"), format!("paused ({why})"));
    }
    if actual.transient {
        note(
            What::Transient,
            "persistent".into(),
            "transient (undefined): libvirt forgets it when it stops".into(),
        );
    }
    if !actual.cpu_limits.is_empty() {
        let cpu_limits: Vec<String> =
            actual.cpu_limits.iter().map(|(name, value)| format!("{name} {value}")).collect();
        note(What::Slowed, "without a limit of its CPU time".into(), cpu_limits.join(", "));
    }
    let again = format!(
        ": if this cannot change while it runs: longma placement stop {vm}, longma placement start {vm}"
    );
    let (wanted, has) = ((0..placement.vcpus()).collect::<CpuSet>(), actual.vcpus());
    if has != wanted {
        note(What::Vcpus, format!("with virtual CPUs {wanted}{again}"), format!("with virtual CPUs {has}"));
    }
    let (wanted, has) = (size_mib(placement), actual.size_mib);
    if let Some(has) = has.filter(|has| *has != wanted) {
        note(What::Size, format!("of {wanted} MiB{again}"), format!("of {has} MiB"));
    }
    found
}

/// Compares all domains of a host with the store. Skips virtual machines that are being moved, because their state is
/// in transition.
///
/// # Errors
/// If the store or the hypervisor fails.
pub fn audit(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
) -> Result<Vec<Finding>, AuditError> {
    let vms = store.host_vms(&host.name)?;
    let database = store.identity()?;
    let domains = hypervisor.survey()?;
    let own = |domain: &str, vm: &Vm| {
        let (_, actual) = domains.iter().find(|(listed, _)| listed.name == domain)?;
        let actual = actual.as_ref().filter(|actual| actual.vm.is_some())?;
        Some(actual).filter(|actual| !actual.belongs_to_other(&database, Some(vm.created_at)))
    };
    let mut found = Vec::new();
    for vm in vms.iter().filter(|vm| vm.state == VmState::Running) {
        let Some(placement) = &vm.placement else { continue };
        let domain = domain_name(vm.id);
        match own(&domain, vm) {
            Some(actual) if actual.running => {
                found.extend(differences(vm.id, placement, &Intended::at(host, &vms, placement), actual));
                found.extend(conditions(vm.id, placement, actual));
            }
            other => {
                let actual = if other.is_some() { "stopped" } else { "missing" }.to_string();
                let intended = "running".to_string();
                found.push(Finding { vm: Some(vm.id), domain, what: What::NotRunning, intended, actual });
            }
        }
    }
    // Report a failed virtual machine that should run to the operator too, not only to its owner.
    for vm in vms.iter().filter(|vm| vm.state == VmState::Failed && vm.intent == Intent::Run) {
        let (domain, intended) = (domain_name(vm.id), "running".to_string());
        let actual = format!("failed: {}", vm.problem.as_deref().unwrap_or("no reason is recorded"));
        found.push(Finding { vm: Some(vm.id), domain, what: What::NotRunning, intended, actual });
    }
    for (listed, _) in domains {
        let (vm, domain) = (listed.vm_in(&database), listed.name);
        let is_own = |id: VmId, vm: &Vm| {
            vm.id == id && domain_name(id) == domain && listed.created_at.is_none_or(|at| at == vm.created_at)
        };
        if vm.is_some_and(|id| !vms.iter().any(|vm| is_own(id, vm))) {
            let (intended, actual) =
                ("no domain".to_string(), "a domain labelled as this virtual machine".to_string());
            found.push(Finding { vm, domain, what: What::Orphan, intended, actual });
        }
    }
    Ok(found)
}

/// Why a host could not be audited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hypervisor failed.
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
}
