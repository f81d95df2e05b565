//! Domains on a host that the service does not manage: the CPUs and memory that they use, which virtual machines must
//! not get.
//!
//! Source: libvirt, "Domain XML format": CPU Tuning, Memory Backing.

use crate::audit::AuditError;
use crate::cpus::CpuSet;
use crate::host::{Host, Pool};
use crate::hypervisor::{DomainEntry, DomainState, Hypervisor, domain_name};
use crate::store::{AgentStore, Vm};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Memory of each node is rounded up to this many MiB, so that small changes do not change the host's description.
const STEP_MIB: u64 = 128;

/// A domain that the service does not manage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForeignDomain {
    /// Domain name.
    pub name: String,
    /// Whether it runs. A domain that is shut off uses nothing.
    pub running: bool,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// CPUs that any of its threads is pinned to; empty if all of them may run on any CPU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub cpus: CpuSet,
    /// Virtual CPUs by node, rounded up.
    pub node_vcpus: BTreeMap<u32, u32>,
    /// Memory in MiB by node, rounded up.
    pub memory_mib: BTreeMap<u32, u64>,
    /// Page size of its memory, KiB; `None` for ordinary pages.
    #[serde(default)]
    pub huge_page_kib: Option<u32>,
    /// Addresses of the host's PCI functions that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

impl ForeignDomain {
    /// Describes the domain `name` with this state.
    pub fn of(name: &str, actual: &DomainState, host: &Host) -> Self {
        let all: CpuSet = host.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
        let vcpus = actual.vcpus();
        let mut domain = Self {
            name: name.into(),
            running: actual.running,
            vcpus: vcpus.len() as u32,
            huge_page_kib: actual.huge_page_kib,
            ..Self::default()
        };
        if !actual.running {
            return domain;
        }
        let is_pin = |cpus: &&CpuSet| !cpus.is_empty() && !all.difference(cpus).is_empty();
        let guest: Vec<&CpuSet> = vcpus.iter().filter_map(|vcpu| actual.vcpu_cpus(vcpu)).collect();
        let others = actual.io_threads.values().chain([&actual.pins.emulator]);
        let pins = guest.iter().copied().chain(others).filter(is_pin);
        domain.cpus = pins.flat_map(CpuSet::iter).filter(|cpu| all.contains(*cpu)).collect();
        domain.node_vcpus = vcpus_by_node(&guest, host);
        domain.memory_mib = memory_by_node(actual, host);
        domain.functions.clone_from(&actual.functions);
        domain
    }
}

/// Number of virtual CPUs on each node, rounded up. A virtual CPU that may run on several nodes counts in parts.
fn vcpus_by_node(pins: &[&CpuSet], host: &Host) -> BTreeMap<u32, u32> {
    let mut parts = BTreeMap::<u32, f64>::new();
    for pin in pins {
        let on = |cpus: &CpuSet| match pin.is_empty() {
            true => cpus.len(),
            false => cpus.iter().filter(|cpu| pin.contains(*cpu)).count(),
        };
        let nodes: Vec<(u32, usize)> = host.nodes.iter().map(|n| (n.id, on(&n.cpus()))).collect();
        let all: usize = nodes.iter().map(|n| n.1).sum();
        for (node, cpus) in nodes.into_iter().filter(|n| n.1 > 0) {
            *parts.entry(node).or_default() += cpus as f64 / all as f64;
        }
    }
    // Sums of fractions can exceed a whole number by a rounding error.
    parts.into_iter().map(|(node, vcpus)| (node, (vcpus - 1e-6).ceil() as u32)).collect()
}

/// Memory on each node, rounded up: the resident memory, plus the rest of the domain's size, divided among the nodes of
/// its memory policy in proportion to their memory.
fn memory_by_node(actual: &DomainState, host: &Host) -> BTreeMap<u32, u64> {
    let mut memory = actual.memory_mib.clone();
    let resident: u64 = memory.values().sum();
    let rest = actual.size_mib.unwrap_or(0).saturating_sub(resident);
    let pool = |pools: &[Pool]| match actual.huge_page_kib {
        None => pools.first().map_or(0, |pool| pool.mib),
        Some(kib) => pools.iter().find(|pool| pool.page_kib == kib).map_or(0, |pool| pool.mib),
    };
    let may_use = |id: u32| actual.bound.is_empty() || actual.bound.contains(&id);
    let nodes: Vec<(u32, u64)> =
        host.nodes.iter().filter(|n| may_use(n.id)).map(|n| (n.id, pool(&n.memory))).collect();
    let all: u128 = nodes.iter().map(|n| u128::from(n.1)).sum();
    for (node, mib) in nodes.into_iter().filter(|_| rest > 0 && all > 0) {
        let part = (u128::from(rest) * u128::from(mib)).div_ceil(all) as u64;
        *memory.entry(node).or_default() += part;
    }
    memory.retain(|_, mib| *mib > 0);
    memory.values_mut().for_each(|mib| *mib = mib.div_ceil(STEP_MIB).saturating_mul(STEP_MIB));
    memory
}

/// Lists the domains of the host that do not belong to a virtual machine of this database.
///
/// # Errors
/// If the store or the hypervisor is unreachable.
pub fn find(
    store: &dyn AgentStore,
    hypervisor: &mut dyn Hypervisor,
    host: &Host,
) -> Result<Vec<ForeignDomain>, AuditError> {
    let database = store.identity()?;
    // A host that is about to be registered has no virtual machines.
    let vms = store.host_vms(&host.name).unwrap_or_default();
    let is_own = |listed: &DomainEntry| {
        let Some(id) = listed.vm_in(&database).filter(|id| domain_name(*id) == listed.name) else {
            return false;
        };
        let is_it = |vm: &Vm| vm.id == id && listed.created_at.is_none_or(|at| at == vm.created_at);
        vms.iter().any(is_it) || store.has_created(id, listed.created_at).unwrap_or(true)
    };
    let mut found = Vec::new();
    for (listed, actual) in hypervisor.survey()? {
        if let Some(actual) = actual.filter(|_| !is_own(&listed)) {
            found.push(ForeignDomain::of(&listed.name, &actual, host));
        }
    }
    Ok(found)
}

/// Subtracts the CPUs, memory and devices of foreign domains from the description of their host.
pub fn withhold(host: &mut Host, domains: &[ForeignDomain]) {
    for domain in domains.iter().filter(|domain| domain.running) {
        host.foreign.cpus = host.foreign.cpus.iter().chain(domain.cpus.iter()).collect();
        let has = |function: &String| domain.functions.contains(function);
        for device in host.devices.iter_mut().filter(|device| device.functions.iter().any(has)) {
            device.slots = 0;
            device.unusable =
                Some(format!("domain {}, which the service does not manage, has it", domain.name));
        }
        for (node, vcpus) in &domain.node_vcpus {
            let sum = host.foreign.vcpus.entry(*node).or_default();
            *sum = sum.saturating_add(*vcpus);
        }
        for (node, mib) in &domain.memory_mib {
            let Some(node) = host.nodes.iter_mut().find(|n| n.id == *node) else { continue };
            let pool = match domain.huge_page_kib {
                None => node.memory.first_mut(),
                Some(kib) => node.memory.iter_mut().find(|pool| pool.page_kib == kib),
            };
            if let Some(pool) = pool {
                pool.mib = pool.mib.saturating_sub(*mib);
            }
        }
    }
}

/// One sentence for each foreign domain of `host` that is pinned to a CPU dedicated to one of `vms`.
pub fn intrusions(domains: &[ForeignDomain], vms: &[Vm], host: &str) -> Vec<String> {
    let mut found = Vec::new();
    for vm in vms {
        let places = vm.placements_on(host);
        let dedicated: CpuSet = places.flat_map(|p| p.tally().exclusive).map(|(_, cpu)| cpu).collect();
        for domain in domains.iter().filter(|domain| domain.running) {
            let both: CpuSet = dedicated.iter().filter(|cpu| domain.cpus.contains(*cpu)).collect();
            if !both.is_empty() {
                found.push(format!(
                    "domain {}, which the service does not manage, is pinned to CPUs {both}, which are dedicated to \
                     virtual machine {}: pin it elsewhere, or rebind the virtual machine",
                    domain.name, vm.id
                ));
            }
        }
    }
    found
}
