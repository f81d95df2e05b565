//! Advice for virtual machines that another system manages: the host and NUMA nodes on which each should run. Only
//! reads files.
//!
//! Source: Proxmox VE API, GET /cluster/resources; python-openstackclient, `server list --long` and `flavor list`.

mod inventory;
#[cfg(test)]
mod tests;

pub use inventory::{Inventory, ListedVm, System, parse};

use crate::fleet_file::Fleet;
use longma_placement::placement::Placement;
use longma_placement::request::MemoryPolicy;
use longma_placement::{CpuSet, Host, Policy, Request, Scheduler};
use longma_topology::read_text;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum size of an inventory.
const MAX_BYTES: u64 = 256 << 20;

/// Reads an inventory.
///
/// # Errors
/// If the file cannot be read or is too large. The text names it.
pub fn read(file: &Path) -> Result<String, String> {
    let named = |problem: String| format!("{}: {problem}", file.display());
    let text = read_text(file, MAX_BYTES).map_err(|error| named(error.to_string()))?;
    text.ok_or_else(|| named(format!("is larger than {} MiB", MAX_BYTES >> 20)))
}

/// Where a virtual machine should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The virtual machine.
    pub vm: ListedVm,
    /// Host that it should be on; `None` if it fits nowhere.
    pub host: Option<String>,
    /// NUMA nodes of that host.
    pub nodes: Vec<u32>,
    /// CPUs of these nodes, for its virtual CPUs.
    pub cpus: CpuSet,
    /// Commands that move it there; empty if the system has no such command.
    pub commands: Vec<String>,
}

/// Places all virtual machines anew, the largest first: each on its present host if a set of NUMA nodes there holds it,
/// else on the host that the scheduler chooses. `fleet` describes the hosts by their names, or by the names of their kinds.
///
/// # Errors
/// The hosts of the inventory that the fleet does not describe, or a virtual machine of an impossible size.
pub fn advise(inventory: &Inventory, fleet: &Fleet, policy: Policy) -> Result<Vec<Advice>, String> {
    let hosts = described_hosts(inventory, fleet)?;
    let mut scheduler = Scheduler::new(policy, 0);
    for host in hosts.values() {
        scheduler.put_host(host).map_err(|error| error.to_string())?;
    }
    let mut vms: Vec<&ListedVm> = inventory.vms.iter().collect();
    vms.sort_by_key(|vm| (std::cmp::Reverse((vm.memory_mib, vm.vcpus)), vm.id.clone()));
    let mut all = Vec::with_capacity(vms.len());
    for (number, vm) in vms.into_iter().enumerate() {
        // Names in the inventory may repeat or contain any character.
        let with =
            |memory| Request { memory, ..Request::new(&format!("vm-{number}"), vm.vcpus, vm.memory_mib) };
        let borrowing = with(MemoryPolicy::Preferred { within_distance: 255 });
        borrowing.check().map_err(|fields| {
            let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
            format!("virtual machine {} ({}): {}", vm.id, vm.name, fields.join("; "))
        })?;
        let here = vm.host.as_ref().and_then(|name| hosts.get(name)).and_then(|host| {
            let nodes: Vec<u32> = host.nodes.iter().map(|node| node.id).collect();
            // First try only memory of the virtual machine's own nodes, then also of other nodes.
            let requests = [with(MemoryPolicy::Strict), borrowing.clone()];
            requests.iter().find_map(|request| scheduler.decide_on(request, &host.name, &nodes, None))
        });
        let placed = match here {
            Some(placement) => scheduler.reserve(&placement).map(|()| placement).ok(),
            None => scheduler.place(&borrowing).ok(),
        };
        all.push(advice(inventory.system, vm, placed, &hosts));
    }
    Ok(all)
}

/// The descriptions of the inventory's hosts, under the names that the inventory uses.
fn described_hosts(inventory: &Inventory, fleet: &Fleet) -> Result<BTreeMap<String, Host>, String> {
    let (mut hosts, mut unknown) = (BTreeMap::new(), BTreeSet::new());
    for name in &inventory.hosts {
        let of_name = fleet.hosts.iter().find(|host| host.name == *name);
        let of_kind = fleet.kinds.iter().find(|(kind, _)| kind == name).map(|(_, host)| host);
        match of_name.or(of_kind) {
            Some(host) => drop(hosts.insert(name.clone(), Host { name: name.clone(), ..host.clone() })),
            None => drop(unknown.insert(name.as_str())),
        }
    }
    if unknown.is_empty() {
        return Ok(hosts);
    }
    let names: Vec<&str> = unknown.into_iter().collect();
    Err(format!(
        "the fleet file describes no host called {}: add a [[hosts]] entry of that name",
        names.join(", ")
    ))
}

fn advice(
    system: System,
    vm: &ListedVm,
    placed: Option<Placement>,
    hosts: &BTreeMap<String, Host>,
) -> Advice {
    let nodes: Vec<u32> = placed.iter().flat_map(|p| &p.cells).map(|cell| cell.node).collect();
    let host = placed.map(|p| p.host);
    let described = host.as_ref().and_then(|name| hosts.get(name));
    let of_nodes = described.into_iter().flat_map(|host| &host.nodes).filter(|node| nodes.contains(&node.id));
    let cpus: CpuSet = of_nodes.flat_map(|node| node.cpus().iter().collect::<Vec<_>>()).collect();
    let cpus = described.map_or_else(CpuSet::new, |host| cpus.difference(&host.reserved));
    let commands = match &host {
        Some(host) => system.commands(vm, host, &nodes, &cpus),
        None => Vec::new(),
    };
    Advice { vm: vm.clone(), host, nodes, cpus, commands }
}
