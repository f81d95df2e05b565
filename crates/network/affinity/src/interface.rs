//! Properties of a network interface from sysfs and /proc/interrupts: driver, NUMA node, queues, interrupts, MTU.
//! `ethtool` queries the driver.
//!
//! Source: Linux Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-queues, sysfs-bus-pci (msi_irqs).

mod layers;

pub use layers::Kind;

use crate::host::Host;
use crate::numa::NodeDistances;
use crate::setting::{Interface, Setting};
use longma_cpu_set::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Name.
    pub name: Interface,
    /// Kind.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub kind: Kind,
    /// The physical interfaces below it; empty if packets arrive by its own queues, or if none is visible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lower: Vec<Nic>,
    /// Driver; `None` for virtual interfaces.
    pub driver: Option<String>,
    /// Its device; `None` for virtual interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// NUMA node of the interface, or of all interfaces below it; `None` if the system does not report one.
    pub node: Option<u32>,
    /// Distances from its node to the others.
    #[serde(default, skip_serializing_if = "NodeDistances::is_empty")]
    pub distances: NodeDistances,
    /// Link speed in Mbit/s; `None` if not reported, as for virtual interfaces.
    pub speed_mbps: Option<u64>,
    /// MTU in bytes.
    pub mtu: Option<u64>,
    /// Operational state as the kernel reports it.
    pub state: String,
    /// Numbers of its receive queues.
    pub rx_queues: Vec<u32>,
    /// Numbers of its transmit queues.
    pub tx_queues: Vec<u32>,
    /// Interrupts for received packets, recognized by name; all interrupts if no name matches.
    pub irqs: Vec<Irq>,
}

/// The device of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name on its bus, such as a PCI address.
    pub name: String,
    /// Port of a device with several interfaces, if the driver reports it.
    pub port: Option<u32>,
}

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Irq {
    /// Interrupt number.
    pub number: u32,
    /// Name given by the driver.
    pub name: String,
    /// Affinity; `None` if it cannot be read.
    pub cpus: Option<CpuSet>,
}

/// Names of the host's interfaces, except the loopback. The folder also has files, such as `bonding_masters`, which are
/// skipped.
pub fn names(host: &dyn Host) -> Vec<Interface> {
    let names = host.names("sys/class/net").into_iter();
    let is_interface =
        |name: &String| name != "lo" && !host.names(&format!("sys/class/net/{name}")).is_empty();
    names.filter(is_interface).filter_map(|name| name.try_into().ok()).collect()
}

fn is_plain(kind: &Kind) -> bool {
    !kind.is_layer()
}

impl Nic {
    /// The interfaces whose queues receive its packets: those below it, or itself.
    pub fn physical(&self) -> Vec<&Nic> {
        if self.lower.is_empty() { vec![self] } else { self.lower.iter().collect() }
    }

    /// The known NUMA nodes of the interfaces whose queues receive its packets.
    pub fn nodes(&self) -> BTreeSet<u32> {
        let lower = self.lower.iter().filter_map(|nic| nic.node);
        self.node.into_iter().chain(lower).collect()
    }

    /// Describes the interface by those below it; `None` for an interface that has its own queues.
    pub fn layers(&self) -> Option<String> {
        let lower: Vec<&str> = self.lower.iter().map(|nic| nic.name.name()).collect();
        let kind = self.kind.words();
        match (self.kind.is_layer(), lower.is_empty()) {
            (false, _) => None,
            (true, true) => Some(format!("{} is {kind} of interfaces that are not visible here", self.name)),
            (true, false) => Some(format!("{} is {kind} of {}", self.name, lower.join(", "))),
        }
    }
}

/// Reads an interface with those below it; `None` if it does not exist.
pub fn read(host: &dyn Host, name: &Interface) -> Option<Nic> {
    let mut nic = read_one(host, name)?;
    if nic.kind.is_layer() {
        nic.lower = layers::physical(host, name);
        let mut nodes = nic.lower.iter().map(|lower| lower.node);
        let first = nodes.next().flatten();
        nic.node = nic.node.or(first.filter(|_| nodes.all(|node| node == first)));
        nic.distances = distances(host, nic.node);
    }
    Some(nic)
}

fn distances(host: &dyn Host, node: Option<u32>) -> NodeDistances {
    node.map(|node| NodeDistances::from(host, node)).unwrap_or_default()
}

fn read_one(host: &dyn Host, name: &Interface) -> Option<Nic> {
    let base = format!("sys/class/net/{name}");
    let files = host.names(&base);
    if files.is_empty() {
        return None;
    }
    let text = |file: &str| host.read(&format!("{base}/{file}")).ok().filter(|text| !text.is_empty());
    let number = |file: &str| text(file).and_then(|text| text.parse::<u64>().ok());
    let last = |path: &str| host.link(path).and_then(|to| to.rsplit('/').next().map(String::from));
    let queues = host.names(&format!("{base}/queues"));
    let of_kind = |kind: &str| {
        let mut found: Vec<u32> =
            queues.iter().filter_map(|queue| queue.strip_prefix(kind)?.parse().ok()).collect();
        found.sort_unstable();
        found
    };
    // For virtio, the PCI device with the node and the interrupts is one level up.
    let devices = ["device", "device/.."];
    let node = devices.iter().find_map(|device| number(&format!("{device}/numa_node")));
    let node = node.and_then(|node| u32::try_from(node).ok());
    Some(Nic {
        name: name.clone(),
        kind: layers::kind(host, name),
        lower: Vec::new(),
        driver: last(&format!("{base}/device/driver")),
        device: last(&format!("{base}/device")).map(|name| {
            let port = number("dev_port").and_then(|port| u32::try_from(port).ok());
            Device { name, port }
        }),
        node,
        distances: distances(host, node),
        speed_mbps: number("speed").filter(|speed| (1..u64::from(u32::MAX)).contains(speed)),
        mtu: number("mtu"),
        state: text("operstate").unwrap_or_else(|| "unknown".into()),
        rx_queues: of_kind("rx-"),
        tx_queues: of_kind("tx-"),
        irqs: irqs(host, name),
    })
}

/// Interrupts of an interface: those of its device, or those with its name.
fn irqs(host: &dyn Host, name: &Interface) -> Vec<Irq> {
    let base = format!("sys/class/net/{name}/device");
    let of_device = [format!("{base}/msi_irqs"), format!("{base}/../msi_irqs")];
    let mut numbers: Vec<u32> = of_device
        .iter()
        .map(|folder| host.names(folder).iter().filter_map(|number| number.parse().ok()).collect::<Vec<_>>())
        .find(|numbers| !numbers.is_empty())
        .unwrap_or_default();
    let all = actions(&host.read("proc/interrupts").unwrap_or_default());
    if numbers.is_empty() {
        let of_name = |action: &str| {
            let rest = action.strip_prefix(name.name());
            rest.is_some_and(|rest| !rest.starts_with(|letter: char| letter.is_ascii_digit()))
        };
        numbers = all.iter().filter(|(_, action)| of_name(action)).map(|(number, _)| *number).collect();
    }
    numbers.sort_unstable();
    // Insert in reverse order, so that the first of several lines with the same number remains.
    let actions: HashMap<u32, &String> = all.iter().rev().map(|(number, action)| (*number, action)).collect();
    let irq = |number: u32| {
        let action = actions.get(&number).map(|action| action.to_string());
        let cpus = Setting::Irq(number).read(host).ok().and_then(|text| text.parse().ok());
        // A reserved interrupt without a handler has no name and never fires.
        action.map(|name| Irq { number, name, cpus })
    };
    let found: Vec<Irq> = numbers.into_iter().filter_map(irq).collect();
    let receives: Vec<Irq> = found.iter().filter(|irq| is_reception(&irq.name)).cloned().collect();
    if receives.is_empty() { found } else { receives }
}

/// Returns whether a name denotes an interrupt for received packets: "eth0-TxRx-3", "mlx5_comp3@pci...",
/// "virtio2-input.0", "eth0-rx-1".
fn is_reception(action: &str) -> bool {
    let action = action.to_ascii_lowercase();
    ["txrx", "tx-rx", "input", "_comp", "-rx", "fp-", "-queue-"].iter().any(|word| action.contains(word))
}

/// Numbers and names of the interrupts in /proc/interrupts. The name is the last word of the line.
fn actions(interrupts: &str) -> Vec<(u32, String)> {
    let line = |line: &str| {
        let (number, rest) = line.trim().split_once(':')?;
        let name = rest.split_whitespace().last()?;
        Some((number.parse().ok()?, name.into()))
    };
    interrupts.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;

    /// A virtio NIC as Linux shows it, and a veth.
    fn host() -> FakeHost {
        FakeHost::with(&[
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/speed", "-1"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
            ("sys/class/net/eth0/queues/tx-0/xps_cpus", "0"),
            ("sys/class/net/eth0/device/driver", "-> ../../../bus/virtio/drivers/virtio_net"),
            ("sys/class/net/eth0/device/../msi_irqs/37", "msix"),
            ("sys/class/net/eth0/device/../msi_irqs/38", "msix"),
            ("sys/class/net/eth0/device/../msi_irqs/39", "msix"),
            ("sys/class/net/eth0/device/../numa_node", "-1"),
            ("sys/class/net/eth1/mtu", "9000"),
            ("sys/class/net/eth10/mtu", "9000"),
            ("sys/class/net/eth1/speed", "40000"),
            ("sys/class/net/eth1/device/numa_node", "1"),
            ("proc/irq/38/smp_affinity_list", "0-1"),
            (
                "proc/interrupts",
                "     CPU0 CPU1\n 37: 0 0 PCI-MSIX 0-edge virtio2-config\n 38: 0 30 PCI-MSIX 1-edge virtio2-input.0\n \
                 39: 22 0 PCI-MSIX 2-edge virtio2-output.0\n 50: 0 1 PCI eth1-TxRx-0\n 51: 0 1 PCI eth10-TxRx-0\n 52: 1 1 PCI eth1\nNMI: 0 0 Non-maskable interrupts",
            ),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/class/net/bonding_masters", "bond0"),
        ])
    }

    #[test]
    fn a_virtual_nic_has_the_interrupts_of_the_device_behind_it() {
        let nic = read(&host(), &"eth0".parse().unwrap()).unwrap();
        assert_eq!((nic.driver.as_deref(), nic.node, nic.speed_mbps), (Some("virtio_net"), None, None));
        assert_eq!((nic.rx_queues, nic.tx_queues, nic.mtu), (vec![0], vec![0], Some(1500)));
        let [irq] = &nic.irqs[..] else { panic!("{:?}", nic.irqs) };
        assert_eq!((irq.number, irq.name.as_str()), (38, "virtio2-input.0"));
        assert_eq!(irq.cpus, "0-1".parse().ok());
    }

    #[test]
    fn an_interrupt_belongs_to_the_interface_after_which_it_is_named_and_not_to_longer_names() {
        let nic = read(&host(), &"eth1".parse().unwrap()).unwrap();
        assert_eq!(nic.irqs.iter().map(|irq| irq.number).collect::<Vec<_>>(), [50]);
        assert_eq!((nic.node, nic.speed_mbps), (Some(1), Some(40_000)));
    }

    #[test]
    fn the_loopback_files_and_missing_interfaces_cannot_be_swept() {
        let found: Vec<String> = names(&host()).into_iter().map(String::from).collect();
        assert_eq!(found, ["eth0", "eth1", "eth10"]);
        assert_eq!(read(&host(), &"eth7".parse().unwrap()), None);
    }
}
