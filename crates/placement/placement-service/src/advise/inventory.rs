//! Inventories of other systems, and the commands by which these systems move and bind a virtual machine.

use longma_cpu_set::CpuSet;
use longma_text::quote_for_shell;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of virtual machines of an inventory.
const MAX_VMS: usize = 100_000;

/// The system that manages the virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Proxmox VE.
    Proxmox,
    /// OpenStack.
    OpenStack,
}

/// A virtual machine of an inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVm {
    /// ID in its system.
    pub id: String,
    /// Name.
    pub name: String,
    /// The virtual machine's host; `None` if it has none yet.
    pub host: Option<String>,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Memory in MiB, rounded up.
    pub memory_mib: u64,
}

/// Hosts and running virtual machines of a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The system.
    pub system: System,
    /// Names of the hosts.
    pub hosts: BTreeSet<String>,
    /// Virtual machines that run.
    pub vms: Vec<ListedVm>,
}

/// An entry of Proxmox's /cluster/resources. Storages and others are ignored.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Resource {
    Node {
        node: String,
        #[serde(default)]
        status: String,
    },
    Qemu {
        vmid: u64,
        #[serde(default)]
        name: String,
        node: String,
        #[serde(default)]
        status: String,
        // The field is missing while the host does not report.
        #[serde(default)]
        maxcpu: f64,
        #[serde(default)]
        maxmem: u64,
        #[serde(default)]
        template: u8,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Server {
    #[serde(rename = "ID")]
    id: String,
    name: String,
    status: String,
    #[serde(default)]
    host: Option<String>,
    /// Named so by `server list --long`; older clients print "Flavor".
    #[serde(rename = "Flavor Name", alias = "Flavor")]
    flavor: String,
}

#[derive(Deserialize)]
struct Flavor {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "RAM")]
    ram_mib: u64,
    #[serde(rename = "VCPUs")]
    vcpus: u32,
}

/// Parses an inventory: the output of `pvesh get /cluster/resources --output-format json` or of `openstack server list
/// --all-projects --long -f json`. The latter needs `flavors`, the output of `openstack flavor list --all -f json`.
///
/// # Errors
/// The error, and which of the two outputs it is in.
pub fn parse(inventory: &str, flavors: Option<&str>) -> Result<Inventory, String> {
    let parsed = match flavors {
        None => proxmox(inventory)?,
        Some(flavors) => openstack(inventory, flavors)?,
    };
    match parsed.vms.len() {
        0..=MAX_VMS => Ok(parsed),
        vms => Err(format!("the inventory has {vms} virtual machines; at most {MAX_VMS}")),
    }
}

fn proxmox(text: &str) -> Result<Inventory, String> {
    let resources: Vec<Resource> = serde_json::from_str(text).map_err(|error| {
        format!(
            "the inventory is not the output of `pvesh get /cluster/resources --output-format json`: {error}"
        )
    })?;
    let (mut hosts, mut vms) = (BTreeSet::new(), Vec::new());
    for resource in resources {
        match resource {
            Resource::Node { node, status } if status != "offline" => drop(hosts.insert(node)),
            Resource::Qemu { vmid, name, node, status, maxcpu, maxmem, template: 0 }
                if status == "running" =>
            {
                // The field is a float, because Proxmox permits a limit that is not a whole number of CPUs.
                let vcpus = maxcpu.ceil().clamp(0.0, f64::from(u32::MAX)) as u32;
                let memory_mib = maxmem.div_ceil(1 << 20);
                vms.push(ListedVm { id: vmid.to_string(), name, host: Some(node), vcpus, memory_mib });
            }
            _ => {}
        }
    }
    Ok(Inventory { system: System::Proxmox, hosts, vms })
}

fn openstack(servers: &str, flavors: &str) -> Result<Inventory, String> {
    let servers: Vec<Server> = serde_json::from_str(servers).map_err(|error| {
        format!("the inventory is not the output of `openstack server list --all-projects --long -f json`: {error}")
    })?;
    let flavors: Vec<Flavor> = serde_json::from_str(flavors).map_err(|error| {
        format!("--flavors is not the output of `openstack flavor list --all -f json`: {error}")
    })?;
    let flavors: BTreeMap<&str, &Flavor> = flavors.iter().map(|flavor| (&*flavor.name, flavor)).collect();
    let (mut hosts, mut vms) = (BTreeSet::new(), Vec::new());
    for server in servers.into_iter().filter(|server| server.status == "ACTIVE") {
        let flavor = flavors.get(&*server.flavor).ok_or_else(|| {
            format!("server {}: its flavor {:?} is not in --flavors", server.id, server.flavor)
        })?;
        let host = server.host.filter(|host| !host.is_empty() && host != "None");
        hosts.extend(host.clone());
        let (vcpus, memory_mib) = (flavor.vcpus, flavor.ram_mib);
        vms.push(ListedVm { id: server.id, name: server.name, host, vcpus, memory_mib });
    }
    Ok(Inventory { system: System::OpenStack, hosts, vms })
}

impl System {
    /// Commands that bring a virtual machine to a host and, where the system can do that, to NUMA nodes.
    pub(super) fn commands(self, vm: &ListedVm, host: &str, nodes: &[u32], cpus: &CpuSet) -> Vec<String> {
        let moves = vm.host.as_deref() != Some(host);
        let (id, target) = (quote_for_shell(&vm.id), quote_for_shell(host));
        let mut commands = Vec::new();
        match self {
            Self::Proxmox => {
                if moves {
                    commands.push(format!("qm migrate {id} {target} --online"));
                }
                commands.push(format!("qm set {id} --affinity {cpus}"));
                if let [node] = nodes {
                    // The command takes effect at the next start of the virtual machine.
                    commands.push(format!(
                        "qm set {id} --numa 1 --numa0 cpus=0-{},hostnodes={node},memory={},policy=preferred",
                        vm.vcpus.saturating_sub(1),
                        vm.memory_mib
                    ));
                }
            }
            // Nova chooses the NUMA nodes itself.
            Self::OpenStack if moves => {
                commands.push(format!("openstack server migrate --live-migration --host {target} {id}"));
            }
            Self::OpenStack => {}
        }
        commands
    }
}
