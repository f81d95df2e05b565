//! Interfaces on top of others: bonds, teams, VLANs, bridges, macvlans. Packets are assigned to CPUs where they enter the
//! host: at the queues of the physical interfaces. Among the upper interfaces, only a bridge can move packets to another
//! CPU, by RPS, if it delivers them to the host.
//!
//! Source: Linux Documentation/ABI/testing/sysfs-class-net (lower_*, bonding, brif), proc(5)
//! (/proc/net/vlan), Documentation/networking/{bonding,bridge,team}.rst, net_failover.rst; net/core/dev.c
//! (netif_receive_skb: RPS acts once, on the device of the receive queue; bridges call it again).

use super::{Nic, read_one};
use crate::host::Host;
use crate::setting::Interface;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Type of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Receives packets by its own queues.
    #[default]
    Plain,
    /// Several interfaces that share the traffic.
    Bond,
    /// A bond of the team driver.
    Team,
    /// Packets of another interface with a VLAN tag.
    Vlan,
    /// A switch with other interfaces as ports.
    Bridge,
    /// Packets of another interface for another hardware address.
    Macvlan,
    /// Packets of another interface for another IP address.
    Ipvlan,
    /// Another kind on top of others, such as the interface of a hypervisor that uses a virtual function.
    Stacked,
}

impl Kind {
    /// Returns whether its packets arrive by other interfaces.
    pub fn is_layer(self) -> bool {
        self != Self::Plain
    }

    /// Display name with an article.
    pub fn words(self) -> &'static str {
        match self {
            Self::Plain => "an interface",
            Self::Bond => "a bond",
            Self::Team => "a team",
            Self::Vlan => "a VLAN",
            Self::Bridge => "a bridge",
            Self::Macvlan => "a macvlan",
            Self::Ipvlan => "an ipvlan",
            Self::Stacked => "a stacked interface",
        }
    }
}

/// Type of an interface, from its files.
pub(super) fn kind(host: &dyn Host, name: &Interface) -> Kind {
    let base = format!("sys/class/net/{name}");
    let files = host.names(&base);
    let has = |file: &str| files.iter().any(|of| of == file);
    let uevent = host.read(&format!("{base}/uevent")).unwrap_or_default();
    let stated = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    match stated.map(str::trim) {
        Some("bond") => return Kind::Bond,
        Some("team") => return Kind::Team,
        Some("vlan") => return Kind::Vlan,
        Some("bridge") => return Kind::Bridge,
        Some("macvlan" | "macvtap") => return Kind::Macvlan,
        Some("ipvlan" | "ipvtap") => return Kind::Ipvlan,
        _ => {}
    }
    // An interface with a device receives packets itself, unless a visible lower interface does so for it.
    let is_stacked = || {
        let lower = lower_links(&files);
        !lower.is_empty() && (!has("device") || lower.iter().any(|name| exists(host, name)))
    };
    // Not all kernels state the type. If the lower interface is not visible, as in a container, only the driver
    // identifies the kind.
    let driver = if has("device") { None } else { host.link_driver(name.name()) };
    match driver.as_deref() {
        Some("macvlan") => return Kind::Macvlan,
        Some("ipvlan") => return Kind::Ipvlan,
        _ => {}
    }
    if has("bonding") {
        Kind::Bond
    } else if has("bridge") || has("brif") {
        Kind::Bridge
    } else if host.read(&format!("proc/net/vlan/{name}")).is_ok() {
        Kind::Vlan
    } else if is_stacked() {
        Kind::Stacked
    } else {
        Kind::Plain
    }
}

fn exists(host: &dyn Host, name: &Interface) -> bool {
    !host.names(&format!("sys/class/net/{name}")).is_empty()
}

/// Names of the interfaces that the `lower_*` links of an interface point to.
fn lower_links(files: &[String]) -> Vec<Interface> {
    let names = files.iter().filter_map(|file| file.strip_prefix("lower_"));
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Names of the interfaces directly below an interface.
fn below(host: &dyn Host, name: &Interface) -> Vec<Interface> {
    let base = format!("sys/class/net/{name}");
    let names = |names: Vec<String>| -> Vec<Interface> {
        names.into_iter().filter_map(|name| name.try_into().ok()).collect()
    };
    let lower = lower_links(&host.names(&base));
    if !lower.is_empty() {
        return lower;
    }
    let slaves = host.read(&format!("{base}/bonding/slaves")).unwrap_or_default();
    let vlan = host.read(&format!("proc/net/vlan/{name}")).unwrap_or_default();
    let device = vlan.lines().find_map(|line| line.trim().strip_prefix("Device:")).unwrap_or_default();
    let words = slaves.split_whitespace().chain(device.split_whitespace()).map(String::from);
    names(words.chain(host.names(&format!("{base}/brif"))).collect())
}

/// The physical interfaces below an interface, without duplicates. If some of them have a device, the others are
/// ignored: such ports of a bridge lead to guests and containers.
pub(super) fn physical(host: &dyn Host, name: &Interface) -> Vec<Nic> {
    let mut found: Vec<Nic> = Vec::new();
    let (mut seen, mut open) = (BTreeSet::from([name.clone()]), vec![name.clone()]);
    while let Some(name) = open.pop() {
        let new: Vec<Interface> =
            below(host, &name).into_iter().filter(|lower| seen.insert(lower.clone())).collect();
        for nic in new.iter().filter_map(|lower| read_one(host, lower)) {
            if nic.kind.is_layer() { open.push(nic.name) } else { found.push(nic) }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    if found.iter().any(|nic| nic.driver.is_some()) {
        found.retain(|nic| nic.driver.is_some());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::interface::read;

    /// Two NICs with two queues each, and the files `above` of the interfaces on top of them.
    fn host(above: &[(&str, &str)]) -> FakeHost {
        let host = FakeHost::with(above);
        let mut table = String::from("  CPU0 CPU1");
        for nic in 0..2 {
            let base = format!("sys/class/net/eth{nic}");
            for (file, text) in [("mtu", "1500"), ("operstate", "up"), ("device/numa_node", "1")] {
                host.put(&format!("{base}/{file}"), text);
            }
            host.put(&format!("{base}/device/driver"), "-> ../bus/pci/drivers/ixgbe");
            for queue in 0..2 {
                let irq = 40 + 2 * nic + queue;
                host.put(&format!("{base}/queues/rx-{queue}/rps_cpus"), "0");
                host.put(&format!("proc/irq/{irq}/smp_affinity_list"), "0-1");
                table += &format!("\n {irq}: 1 1 PCI eth{nic}-TxRx-{queue}");
            }
        }
        host.put("proc/interrupts", &table);
        host
    }

    fn resolved(host: &FakeHost, name: &str) -> (Kind, Vec<String>) {
        let nic = read(host, &name.parse().unwrap()).unwrap();
        (nic.kind, nic.physical().iter().map(|nic| nic.name.to_string()).collect())
    }

    #[test]
    fn bonds_teams_vlans_bridges_and_macvlans_are_resolved_to_their_nics() {
        let link = "-> ../eth0";
        let net = "sys/class/net";
        /// An interface, its files, and its expected kind and lower interfaces.
        type Case<'a> = (&'a str, Vec<(String, &'a str)>, Kind, &'a [&'a str]);
        let cases: [Case; 8] = [
            (
                "bond1",
                vec![
                    (format!("{net}/bond1/bonding/slaves"), "eth0 eth1"),
                    (format!("{net}/bond1/queues/rx-0/rps_cpus"), "0"),
                ],
                Kind::Bond,
                &["eth0", "eth1"],
            ),
            (
                "team0",
                vec![
                    (format!("{net}/team0/lower_eth0"), link),
                    (format!("{net}/team0/uevent"), "DEVTYPE=team\nINTERFACE=team0"),
                ],
                Kind::Team,
                &["eth0"],
            ),
            (
                "vlan7",
                vec![
                    (format!("{net}/vlan7/mtu"), "1500"),
                    (
                        "proc/net/vlan/vlan7".into(),
                        "vlan7  VID: 7\t REORDER_HDR: 1\n  total frames received 5\nDevice: eth1\nINGRESS priority",
                    ),
                ],
                Kind::Vlan,
                &["eth1"],
            ),
            (
                "br0",
                vec![
                    (format!("{net}/br0/brif/eth0/state"), "3"),
                    (format!("{net}/br0/brif/tap3/state"), "3"),
                    (format!("{net}/br0/bridge/stp_state"), "0"),
                    (format!("{net}/tap3/mtu"), "1500"),
                ],
                Kind::Bridge,
                &["eth0"],
            ),
            (
                "mv0",
                vec![
                    (format!("{net}/mv0/uevent"), "DEVTYPE=macvlan"),
                    (format!("{net}/mv0/lower_eth1"), link),
                ],
                Kind::Macvlan,
                &["eth1"],
            ),
            // A VLAN of a bond, on a bridge.
            (
                "br1",
                vec![
                    (format!("{net}/br1/lower_bond0.5"), link),
                    (format!("{net}/br1/bridge/stp_state"), "0"),
                    (format!("{net}/bond0.5/uevent"), "DEVTYPE=vlan"),
                    (format!("{net}/bond0.5/lower_bond0"), link),
                    (format!("{net}/bond0/uevent"), "DEVTYPE=bond"),
                    (format!("{net}/bond0/lower_eth0"), link),
                    (format!("{net}/bond0/lower_eth1"), link),
                ],
                Kind::Bridge,
                &["eth0", "eth1"],
            ),
            // The interface of a hypervisor, whose packets arrive by a virtual function.
            (
                "hv0",
                vec![
                    (format!("{net}/hv0/device/driver"), "-> ../bus/vmbus/drivers/hv_netvsc"),
                    (format!("{net}/hv0/lower_eth1"), link),
                ],
                Kind::Stacked,
                &["eth1"],
            ),
            // A stacked interface of another kind, whose lower interface is not visible.
            ("hs0", vec![(format!("{net}/hs0/lower_gone"), link)], Kind::Stacked, &["hs0"]),
        ];
        for (name, files, kind, expected) in cases {
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            let (found, below) = resolved(&host(&files), name);
            assert_eq!(
                (found, below.iter().map(String::as_str).collect::<Vec<_>>()),
                (kind, expected.to_vec()),
                "{name}"
            );
        }
        assert_eq!(resolved(&host(&[]), "eth0"), (Kind::Plain, vec!["eth0".into()]));
    }

    #[test]
    fn the_interface_above_has_the_node_and_the_interrupts_of_those_below() {
        let host = host(&[("sys/class/net/bond0/bonding/slaves", "eth0 eth1")]);
        let nic = read(&host, &"bond0".parse().unwrap()).unwrap();
        assert_eq!((nic.node, nic.irqs.len()), (Some(1), 0));
        let irqs: Vec<u32> =
            nic.physical().iter().flat_map(|nic| nic.irqs.iter().map(|irq| irq.number)).collect();
        assert_eq!(irqs, [40, 41, 42, 43]);
        host.put("sys/class/net/eth1/device/numa_node", "0");
        assert_eq!(read(&host, &"bond0".parse().unwrap()).unwrap().node, None);
    }

    #[test]
    fn cycles_of_stacked_interfaces_are_resolved() {
        let host = host(&[
            ("sys/class/net/a0/uevent", "DEVTYPE=vlan"),
            ("sys/class/net/a0/lower_b0", "-> b0"),
            ("sys/class/net/b0/uevent", "DEVTYPE=vlan"),
            ("sys/class/net/b0/lower_a0", "-> a0"),
            ("sys/class/net/b0/lower_b0", "-> b0"),
            ("sys/class/net/b0/lower_eth0", "-> eth0"),
        ]);
        assert_eq!(resolved(&host, "a0").1, ["eth0"]);
        // Sixty interfaces, each on top of all others, as in a forged tree.
        for (above, below) in (0..60).flat_map(|above| (0..60).map(move |below| (above, below))) {
            host.put(&format!("sys/class/net/f{above}/lower_f{below}"), "-> x");
        }
        assert_eq!(resolved(&host, "f0").1, ["f0"]);
    }
}
