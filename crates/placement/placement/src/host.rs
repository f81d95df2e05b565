//! Description of a host: NUMA nodes with their CPUs, memory and huge pages, distances, devices, and load. `collect`
//! reads it from a running system.
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-node; ACPI 6.5, section 5.2.17 (SLIT), for the distances.

use crate::cpus::CpuSet;
use longma_topology::Machine;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of NUMA nodes of a host.
pub const MAX_NODES: usize = 64;
/// Maximum number of CPUs of a node.
pub const MAX_NODE_CPUS: usize = 512;
/// Maximum number of page sizes of a node.
pub const MAX_POOLS: usize = 4;
/// Maximum memory of one page size on a node, MiB: 2 PiB.
pub const MAX_POOL_MIB: u64 = 1 << 31;

/// Hardware of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Name, unique within a database.
    pub name: String,
    /// NUMA nodes in ascending order of their numbers.
    pub nodes: Vec<Node>,
    /// Relative distances in the order of `nodes`: the row is the CPU's node, the column the memory's node; 10 is
    /// local.
    pub distances: Vec<Vec<u32>>,
    /// Devices that can be requested.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// CPUs reserved for the host. No virtual CPU runs on them.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reserved: CpuSet,
    /// CPUs that are offline or removed but still dedicated to a virtual machine. They stay in the description until
    /// that machine is deleted or moved, and are not allocated again.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub gone: CpuSet,
    /// CPUs in use by domains that the service does not manage. Their memory is not part of `nodes`.
    #[serde(default, skip_serializing_if = "ForeignUse::is_empty")]
    pub foreign: ForeignUse,
}

/// CPUs in use by domains that the service does not manage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ForeignUse {
    /// CPUs that such domains are pinned to. They may be shared, but are not dedicated to a virtual machine.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub cpus: CpuSet,
    /// Number of their virtual CPUs by node number. They count against the overcommit ratio.
    pub vcpus: BTreeMap<u32, u32>,
}

impl ForeignUse {
    /// Returns whether no such domain uses CPUs.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.vcpus.is_empty()
    }

    /// Number of CPUs of a node that its foreign virtual CPUs take up at `percent` virtual CPUs per hundred CPUs.
    pub fn node_cpus(&self, node: u32, percent: u32) -> u32 {
        foreign_cpus(self.vcpus.get(&node).copied().unwrap_or(0), percent)
    }
}

/// Number of CPUs that `vcpus` foreign virtual CPUs take up, at `percent` virtual CPUs per hundred CPUs. Rounded down, so
/// that half a CPU does not make a small host useless.
pub(crate) fn foreign_cpus(vcpus: u32, percent: u32) -> u32 {
    let cpus = u64::from(vcpus) * 100 / u64::from(percent.max(1));
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// Number of CPUs that `vcpus` virtual CPUs need, at `percent` virtual CPUs per hundred CPUs, rounded up.
pub(crate) fn cpus_for(vcpus: u32, percent: u32) -> u32 {
    let cpus = (u64::from(vcpus) * 100).div_ceil(u64::from(percent.max(1)));
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The operating system's node number.
    pub id: u32,
    /// Cores, each a set of hardware threads. Empty for a node that has only memory.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub cores: Vec<CpuSet>,
    /// Memory by page size. The first entry holds the ordinary pages, excluding memory set aside as huge pages.
    pub memory: Vec<Pool>,
}

/// Memory of one page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Page size in KiB: 4, 16, 64, 2048, 1048576.
    pub page_kib: u32,
    /// Amount of memory in pages of this size, MiB.
    pub mib: u64,
}

/// Type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A network interface.
    Nic,
    /// A graphics processor or other accelerator.
    Gpu,
}

/// Vendor and model of a PCI device, written like 8086:1572.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciId {
    /// Number of the vendor.
    pub vendor: u16,
    /// Number that the vendor has given the model.
    pub device: u16,
}

impl TryFrom<String> for PciId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |text: &str| {
            let is_number = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_number.then(|| u16::from_str_radix(text, 16).ok()).flatten()
        };
        let parts =
            text.split_once(':').and_then(|(vendor, device)| Some((number(vendor)?, number(device)?)));
        let (vendor, device) =
            parts.ok_or("must have the form 8086:1572: vendor and model in hexadecimal")?;
        Ok(Self { vendor, device })
    }
}

impl From<PciId> for String {
    fn from(id: PciId) -> Self {
        id.to_string()
    }
}

impl std::fmt::Display for PciId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// A device that can be assigned to virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name on the host: "eth0", or a PCI address.
    pub name: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Number of the NUMA node that the device is attached to; `None` if the system does not report one.
    pub node: Option<u32>,
    /// Number of virtual machines that can use it at once. A PCI function has 1, or 0 if it cannot be handed to any.
    pub slots: u32,
    /// Vendor and model; `None` for a modelled device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$"))]
    pub id: Option<PciId>,
    /// Addresses of the PCI functions that are handed over together, because the IOMMU cannot separate them. A modelled
    /// device has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
    /// Why the device cannot be assigned to a virtual machine, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

impl Device {
    /// A modelled device.
    pub fn new(name: &str, kind: DeviceKind, node: Option<u32>, slots: u32) -> Self {
        let (id, functions, unusable) = Default::default();
        Self { name: name.into(), kind, node, slots, id, functions, unusable }
    }
}

/// Load of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeLoad {
    /// Fraction of CPU time in use, 0 to 1.
    pub cpu: f32,
    /// Fraction of memory in use, 0 to 1.
    pub memory: f32,
}

/// An invalid description of a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host {host}: {problem}")]
pub struct HostError {
    /// Name of the host.
    pub host: String,
    /// Which field is wrong, and why.
    pub problem: String,
}

impl Node {
    /// All CPUs of the node's cores.
    pub fn cpus(&self) -> CpuSet {
        self.cores.iter().flat_map(CpuSet::iter).collect()
    }
}

impl Host {
    /// A host without devices in which all other nodes are at the same distance. [`Host::check`] validates it.
    pub fn new(name: &str, nodes: Vec<Node>) -> Self {
        Self {
            name: name.into(),
            distances: uniform_distances(nodes.len()),
            nodes,
            devices: Vec::new(),
            reserved: CpuSet::new(),
            gone: CpuSet::new(),
            foreign: ForeignUse::default(),
        }
    }

    /// Reserves the first core of the first node that has CPUs for the host, as most operators do.
    pub fn with_first_core_reserved(mut self) -> Self {
        let first = self.nodes.iter().find_map(|n| n.cores.first());
        self.reserved = first.cloned().unwrap_or_default();
        self
    }

    /// Builds a host from the first host of a machine file. CPUs are numbered as on most Linux servers: the first
    /// threads of all cores come first.
    ///
    /// # Errors
    /// If the file describes no host, or omits the memory of a node.
    pub fn of_machine(machine: &Machine, name: &str) -> Result<Self, HostError> {
        let error = |problem: &str| HostError { host: name.into(), problem: problem.into() };
        let layout =
            machine.layout().hosts.first().ok_or_else(|| error("the machine file has no `host` section"))?;
        let part = &machine.hosts[layout.of];
        let total = layout.cores.len() as u32;
        let threads =
            |core: usize| machine.cores.get(&layout.cores[core].core).map_or(1, |c| c.threads.max(1));
        let mut nodes = Vec::new();
        for (id, node) in layout.nodes.iter().enumerate() {
            let thread = |core: usize| (0..threads(core)).map(move |t| core as u32 + t * total).collect();
            let bytes = node.memory_bytes.ok_or_else(|| error(&format!("node {id} has no memory size")))?;
            let memory = vec![Pool { page_kib: 4, mib: bytes >> 20 }];
            nodes.push(Node {
                id: id as u32,
                cores: node.cores.iter().map(|c| thread(*c)).collect(),
                memory,
            });
        }
        let distances = part.distances.as_ref();
        let slit = distances.and_then(|d| d.slit.as_ref()).map(|m| m.rows.clone());
        let latency = || {
            let rows = distances?.latency.as_ref()?.rows.iter().enumerate();
            // Scales latencies to the kernel's distances, where 10 is local.
            let scaled = |at: usize, row: &Vec<longma_topology::units::Time>| {
                let local = row[at].ps().max(1);
                row.iter().map(|t| (t.ps() * 10 / local).max(10) as u32).collect()
            };
            Some(rows.map(|(at, row)| scaled(at, row)).collect())
        };
        let mut host = Self::new(name, nodes);
        if let Some(distances) = slit.or_else(latency) {
            host.distances = distances;
        }
        host.check()?;
        Ok(host)
    }

    /// Number of CPUs.
    pub fn cpu_count(&self) -> usize {
        self.nodes.iter().flat_map(|n| &n.cores).map(CpuSet::len).sum()
    }

    /// Checks that the description is consistent.
    ///
    /// # Errors
    /// The first inconsistency found.
    pub fn check(&self) -> Result<(), HostError> {
        let fail = |problem: String| Err(HostError { host: self.name.clone(), problem });
        if let Some(problem) = crate::name::name_problem(&self.name) {
            return fail(format!("name: {problem}"));
        }
        if self.nodes.is_empty() || self.nodes.len() > MAX_NODES {
            return fail(format!("nodes: {} entries; expected 1 to {MAX_NODES}", self.nodes.len()));
        }
        let mut seen = CpuSet::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if at > 0 && self.nodes[at - 1].id >= node.id {
                return fail(format!("nodes[{at}].id: node numbers must be in ascending order"));
            }
            let cpus: usize = node.cores.iter().map(CpuSet::len).sum();
            if cpus > MAX_NODE_CPUS {
                return fail(format!("nodes[{at}].cores: {cpus} CPUs; a node has at most {MAX_NODE_CPUS}"));
            }
            for core in &node.cores {
                match core.iter().find(|cpu| !seen.insert(*cpu)) {
                    Some(cpu) => return fail(format!("nodes[{at}].cores: CPU {cpu} is listed twice")),
                    None if core.is_empty() => {
                        return fail(format!("nodes[{at}].cores: a core has no CPUs"));
                    }
                    None => {}
                }
            }
            if node.memory.is_empty() || node.memory.len() > MAX_POOLS {
                return fail(format!("nodes[{at}].memory: expected 1 to {MAX_POOLS} page sizes"));
            }
            for (p, pool) in node.memory.iter().enumerate() {
                let twice = node.memory[..p].iter().any(|q| q.page_kib == pool.page_kib);
                if pool.mib >= MAX_POOL_MIB || !pool.page_kib.is_power_of_two() || twice {
                    return fail(format!("nodes[{at}].memory[{p}]: invalid page size or amount of memory"));
                }
            }
        }
        let n = self.nodes.len();
        let square = self.distances.len() == n && self.distances.iter().all(|r| r.len() == n);
        let plausible = |(i, r): (usize, &Vec<u32>)| r[i] == 10 && r.iter().all(|d| (10..=255).contains(d));
        if !square || !self.distances.iter().enumerate().all(plausible) {
            return fail(format!(
                "distances: expected {n} rows of {n} values from 10 to 255, with 10 on the diagonal"
            ));
        }
        if let Some(cpu) = self.reserved.iter().find(|c| !seen.contains(*c)) {
            return fail(format!("reserved: CPU {cpu} does not belong to any node"));
        }
        let mut functions = BTreeSet::new();
        for (at, device) in self.devices.iter().enumerate() {
            if !is_device_name(&device.name) {
                return fail(format!(
                    "devices[{at}].name: must have 1 to {MAX_DEVICE_NAME} letters, digits, `-`, `_`, `.`, `:` or `@`"
                ));
            }
            let node = device.node.is_none_or(|id| self.nodes.iter().any(|n| n.id == id));
            let twice = self.devices[..at].iter().any(|d| d.name == device.name);
            if !node || twice {
                return fail(format!("devices[{at}]: its node does not exist, or its name is used twice"));
            }
            if let Some(wrong) = device.functions.iter().find(|function| !is_pci_address(function)) {
                let wrong: String = wrong.chars().take(MAX_DEVICE_NAME).collect();
                return fail(format!(
                    "devices[{at}].functions: {wrong:?} is not a PCI address such as 0000:41:00.1"
                ));
            }
            // A function of two devices could be assigned to two virtual machines, and the second one could not start.
            if let Some(twice) =
                device.functions.iter().find(|function| !functions.insert(function.to_lowercase()))
            {
                return fail(format!("devices[{at}].functions: {twice} is listed twice"));
            }
        }
        Ok(())
    }
}

/// Maximum length of a device's name.
const MAX_DEVICE_NAME: usize = 64;

/// Returns whether `name` can be the name of a device: a network interface or a PCI address. The syntax is narrow
/// because names appear in XML, on terminals and on web pages.
pub fn is_device_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    (1..=MAX_DEVICE_NAME).contains(&name.len()) && name.chars().all(good)
}

/// Returns whether `text` is the address of a PCI function, such as 0000:41:00.1.
fn is_pci_address(text: &str) -> bool {
    let is_hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((device, function)) = text.rsplit_once('.') else { return false };
    let parts: Vec<&str> = device.split(':').collect();
    let [domain, bus, slot] = parts[..] else { return false };
    // Some hosts have domains of more than 16 bits.
    is_hex(domain, 4..=8) && is_hex(bus, 2..=2) && is_hex(slot, 2..=2) && is_hex(function, 1..=1)
}

/// Distances of `nodes` nodes if none are known: 10 to itself and 20 to the others, as in Linux.
pub fn uniform_distances(nodes: usize) -> Vec<Vec<u32>> {
    (0..nodes).map(|i| (0..nodes).map(|j| if i == j { 10 } else { 20 }).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_file_becomes_a_host() {
        let machine = Machine::open("hygon-8node").unwrap();
        let host = Host::of_machine(&machine, "h1").unwrap();
        assert_eq!(host.nodes.len(), 8);
        assert_eq!(host.cpu_count(), 128);
        assert_eq!(host.nodes[1].cores[0].to_string(), "8,72");
        assert_eq!(host.nodes[7].memory, [Pool { page_kib: 4, mib: 32768 }]);
        assert_eq!(host.distances[0], [10, 16, 16, 16, 32, 32, 32, 32]);
        let own = host.with_first_core_reserved();
        assert_eq!(own.reserved.to_string(), "0,64");
    }

    #[test]
    fn a_host_that_contradicts_itself_is_refused_with_the_place() {
        let machine = Machine::open("hygon-8node").unwrap();
        let good = Host::of_machine(&machine, "h1").unwrap();
        let wrong = |change: fn(&mut Host)| {
            let mut host = good.clone();
            change(&mut host);
            host.check().unwrap_err().problem
        };
        assert!(wrong(|h| h.name = "a b".into()).starts_with("name"));
        assert!(wrong(|h| h.nodes[1].cores[0] = "0".parse().unwrap()).starts_with("nodes[1].cores: CPU 0"));
        assert!(wrong(|h| h.distances[2][3] = 9).starts_with("distances"));
        assert!(wrong(|h| h.nodes[3].id = 0).starts_with("nodes[3].id"));
        assert!(wrong(|h| h.reserved = "500".parse().unwrap()).starts_with("reserved"));
        assert!(wrong(|h| h.nodes[0].memory.clear()).starts_with("nodes[0].memory"));
        for name in ["", "a\u{1b}[2J", "a<b>", "a b"] {
            let mut host = good.clone();
            let device = Device::new(name, DeviceKind::Nic, None, 1);
            host.devices = vec![device];
            assert!(host.check().unwrap_err().problem.starts_with("devices[0].name"), "{name:?}");
        }
        let with = |all: &[&[&str]]| {
            let device = |(at, functions): (usize, &&[&str])| Device {
                functions: functions.iter().map(ToString::to_string).collect(),
                ..Device::new(&format!("d{at}"), DeviceKind::Nic, None, 1)
            };
            Host { devices: all.iter().enumerate().map(device).collect(), ..good.clone() }.check()
        };
        assert_eq!(with(&[&["0000:41:00.1", "10000:e1:00.0"], &["0000:41:00.2"]]), Ok(()));
        for function in [
            "",
            "0000:41:00.1'/>",
            "0000.41.00:1",
            "0000:41.00.1",
            "41:00.1",
            "0000:41:00.1\u{1b}",
            "0000:41:0g.1",
        ] {
            let problem = with(&[&[function]]).unwrap_err().problem;
            assert!(problem.contains("is not a PCI address"), "{problem}");
        }
        let twice = with(&[&["0000:41:00.0", "0000:41:00.1"], &["0000:41:00.1"]]).unwrap_err().problem;
        assert_eq!(twice, "devices[1].functions: 0000:41:00.1 is listed twice");
    }
}
