//! Intended against actual: where each virtual machine's threads and memory should be, and where they are.
//! Not what is done about it (`reconcile`).

use crate::cpus::CpuSet;
use crate::host::Host;
use crate::hypervisor::{Actual, BY_HAND, Hypervisor, HypervisorError, Pins, domain_name};
use crate::placement::Placement;
use crate::request::{CpuPolicy, EmulatorPolicy, MemoryPolicy};
use crate::store::{Intent, Store, StoreError, Vm, VmId, VmQuery, VmState};
use serde::{Deserialize, Serialize};

/// Something that is not as intended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// The virtual machine; none for a domain that should not be there.
    pub vm: Option<VmId>,
    /// Its domain.
    pub domain: String,
    /// What differs.
    pub what: What,
    /// What is intended, for people.
    pub intended: String,
    /// What is, for people.
    pub actual: String,
}

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The CPUs of a virtual CPU.
    VcpuPin(u32),
    /// The virtual CPUs that it has.
    Vcpus,
    /// The CPUs of a thread for input and output.
    IoThreadPin(u32),
    /// The memory that it was made with.
    Size,
    /// The CPUs of the emulator's threads.
    EmulatorPin,
    /// The nodes that memory may come from.
    Bound,
    /// Memory that lies where it should not.
    Memory,
    /// A domain that should run does not, or is missing.
    NotRunning,
    /// A domain that runs and stands still.
    Paused,
    /// A domain that is forgotten when it ends.
    Transient,
    /// A domain that gets less CPU time than it should.
    Slowed,
    /// A domain of a virtual machine that should not be here.
    Orphan,
}

/// CPUs of a host that are no virtual machine's own, given all that lies there.
fn common(host: &Host, vms: &[Vm]) -> CpuSet {
    let all: CpuSet = host.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
    let places = vms.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target));
    let own: CpuSet = places.flat_map(|p| p.tally().exclusive).map(|(_, cpu)| cpu).collect();
    all.difference(&own).difference(&host.gone)
}

/// Where the threads of a virtual machine at `placement` should run, given all virtual machines of the host.
pub fn intended_pins(host: &Host, vms: &[Vm], placement: &Placement) -> Pins {
    let common = common(host, vms);
    let guests = common.difference(&host.reserved);
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
        _ => common,
    };
    Pins { vcpus, emulator }
}

/// Where the threads of a virtual machine should run, also those that it should not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intended {
    /// Threads that it should have.
    pub pins: Pins,
    /// Virtual CPUs that nobody asked for: nobody's own CPUs, or this virtual machine's where there are no others.
    pub spare: CpuSet,
}

impl Intended {
    /// What is intended at `placement`, given all virtual machines of the host.
    pub fn at(host: &Host, vms: &[Vm], placement: &Placement) -> Self {
        let pins = intended_pins(host, vms, placement);
        let shared = common(host, vms).difference(&host.reserved);
        let nodes = host.nodes.iter().filter(|n| placement.cells.iter().any(|cell| cell.node == n.id));
        let near = nodes.flat_map(|n| n.cpus().iter().filter(|c| shared.contains(*c)).collect::<Vec<_>>());
        let own = pins.vcpus.iter().flat_map(CpuSet::iter).collect();
        let choices = [near.collect(), shared, own];
        let spare = choices.into_iter().find(|cpus: &CpuSet| !cpus.is_empty()).unwrap_or_default();
        Self { pins, spare }
    }

    /// The CPUs of a virtual CPU, whether it should be there or not.
    pub fn of_vcpu(&self, vcpu: u32) -> &CpuSet {
        self.pins.vcpus.get(vcpu as usize).unwrap_or(&self.spare)
    }
}

/// Memory of a placement, on all nodes.
fn size_mib(placement: &Placement) -> u64 {
    placement.tally().memory.values().sum()
}

/// What of a running domain is not where `placement` and `intended` want it. Virtual CPUs that are missing have no place (`conditions`).
pub fn differences(vm: VmId, placement: &Placement, intended: &Intended, actual: &Actual) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut note = |what, intended: String, actual: String| {
        found.push(Finding { vm: Some(vm), domain: domain_name(vm), what, intended, actual });
    };
    for vcpu in actual.vcpus().iter() {
        let (cpus, now) = (intended.of_vcpu(vcpu), actual.vcpu_cpus(vcpu));
        if now != Some(cpus) {
            let now = now.map(ToString::to_string).unwrap_or_default();
            note(What::VcpuPin(vcpu), cpus.to_string(), now);
        }
    }
    let emulator = &intended.pins.emulator;
    if actual.pins.emulator != *emulator {
        note(What::EmulatorPin, emulator.to_string(), actual.pins.emulator.to_string());
    }
    for (thread, now) in actual.io_threads.iter().filter(|(_, now)| *now != emulator) {
        note(What::IoThreadPin(*thread), emulator.to_string(), now.to_string());
    }
    let mut bound = actual.bound.clone();
    bound.sort_unstable();
    if bound != placement.bound {
        note(What::Bound, format!("{:?}", placement.bound), format!("{bound:?}"));
    }
    let tally = placement.tally();
    // Memory that nobody asked for lies somewhere too; what is found of it is its size.
    let resized = actual.size_mib.is_some_and(|mib| mib != size_mib(placement));
    let misplaced = actual.memory_mib.iter().filter(|(node, mib)| {
        let planned: u64 = tally.memory.iter().filter(|(k, _)| k.0 == **node).map(|(_, mib)| mib).sum();
        match placement.memory {
            MemoryPolicy::Strict => **mib > planned && (planned == 0 || !resized),
            MemoryPolicy::Preferred { .. } => !placement.bound.contains(node) && **mib > 0,
        }
    });
    if misplaced.count() > 0 {
        note(
            What::Memory,
            format!("{:?} MiB by node and page", tally.memory),
            format!("{:?} MiB by node", actual.memory_mib),
        );
    }
    found
}

/// What of a running domain somebody changed beside its place: paused, undefined, slowed, with other virtual CPUs or memory. What is to be
/// done by people is behind a colon.
pub fn conditions(vm: VmId, placement: &Placement, actual: &Actual) -> Vec<Finding> {
    let domain = domain_name(vm);
    let mut found = Vec::new();
    let mut note = |what, intended: String, actual: String| {
        found.push(Finding { vm: Some(vm), domain: domain.clone(), what, intended, actual });
    };
    if let Some(why) = &actual.paused {
        let advice = match &**why {
            BY_HAND => String::new(),
            _ => format!(": mend what paused it, then: virsh resume {domain}"),
        };
        note(What::Paused, format!("running{advice}"), format!("paused ({why})"));
    }
    if actual.transient {
        note(What::Transient, "kept when it ends".into(), "forgotten when it ends (undefined)".into());
    }
    if !actual.slowed.is_empty() {
        let slowed: Vec<String> =
            actual.slowed.iter().map(|(name, value)| format!("{name} {value}")).collect();
        note(What::Slowed, "the CPU time of its place".into(), slowed.join(", "));
    }
    let again = format!(
        ": what it cannot get while it runs it gets by longma placement stop {vm}, longma placement start {vm}"
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

/// Compares all of a host. A virtual machine that is moving is left out: it is about to change.
///
/// # Errors
/// If the store or the hypervisor cannot be asked.
pub fn audit(
    store: &dyn Store,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
) -> Result<Vec<Finding>, AuditError> {
    let vms = store.vms(&VmQuery { host: Some(host.name.clone()), ..VmQuery::default() })?;
    let database = store.identity()?;
    let all = hypervisor.survey()?;
    let own = |domain: &str, vm: &Vm| {
        let (_, actual) = all.iter().find(|(listed, _)| listed.name == domain)?;
        actual.as_ref().filter(|actual| !actual.is_of_other_than(&database, Some(vm.created_at)))
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
    // Somebody wants it to run, and it does not: whoever asked is told why, and who looks after the host as well.
    for vm in vms.iter().filter(|vm| vm.state == VmState::Failed && vm.intent == Intent::Run) {
        let (domain, intended) = (domain_name(vm.id), "running".to_string());
        let actual = format!("failed: {}", vm.problem.as_deref().unwrap_or("without a word"));
        found.push(Finding { vm: Some(vm.id), domain, what: What::NotRunning, intended, actual });
    }
    for (listed, _) in all {
        let (vm, domain) = (listed.vm_in(&database), listed.name);
        let is_own = |id: VmId, vm: &Vm| {
            vm.id == id && domain_name(id) == domain && listed.created_at.is_none_or(|at| at == vm.created_at)
        };
        if vm.is_some_and(|id| !vms.iter().any(|vm| is_own(id, vm))) {
            let (intended, actual) =
                ("no domain".to_string(), "a domain that says it is this virtual machine's".to_string());
            found.push(Finding { vm, domain, what: What::Orphan, intended, actual });
        }
    }
    Ok(found)
}

/// Why a host could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hypervisor failed.
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
}
