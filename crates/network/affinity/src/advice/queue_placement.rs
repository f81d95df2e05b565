//! Assigns the queues of one or several NICs to CPUs, and chooses how many queues to use. Each queue gets a core of the
//! NIC's node. When the cores are exhausted, further queues get their other hardware threads. CPUs of another node, the
//! closest one, are used only if the NIC's node has none. If the driver can reduce the number of queues, or direct
//! packets to some of them, half of the cores that share a last-level cache are left to the applications of the queues
//! on the other half.
//!
//! Source: Hanford et al. 2014 for a flow and its application on different cores of the NIC's socket; Linux
//! Documentation/networking/scaling.rst ("one for each CPU in the system ... hyperthreading"), ethtool(8) (-L, -X).

use super::zones::{Node, Zone};
use crate::host::Host;
use crate::interface::Nic;
use crate::pairs::{Class, Pair, classify};
use crate::setting::Interface;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use longma_linux_network::rss_table::queue_of_irq;
use longma_topology::CpuLocation;
use serde::Serialize;
use std::collections::BTreeMap;

/// How a driver can change the use of its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverCapabilities {
    /// Whether its queues both receive and send (`combined`); `None` if their number cannot be changed (`ethtool -L`).
    pub is_combined: Option<bool>,
    /// Whether packets can be directed to some of the queues (`ethtool -X`).
    pub has_table: bool,
}

impl DriverCapabilities {
    /// Queries the driver of `nic`.
    pub fn of(host: &dyn Host, nic: &Nic) -> Self {
        let fact = |fact| host.driver(nic.name.name(), fact).ok();
        let is_combined = fact(DriverProperty::CombinedChannels).map(|combined| combined > 0);
        let can_change = fact(DriverProperty::MaxChannels).is_some_and(|most| most > 1);
        Self {
            is_combined: is_combined.filter(|_| can_change),
            has_table: host.rss_table(nic.name.name()).is_ok(),
        }
    }
}

/// How packets of a queue are directed to a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// By an interrupt. A change of the number of queues keeps the interrupt's name, but may change its number.
    Irq {
        /// Number of the interrupt.
        number: u32,
        /// Its name in /proc/interrupts.
        name: String,
    },
    /// By RPS of a receive queue.
    Rps {
        /// Number of the queue.
        queue: u32,
    },
}

/// The queues of a NIC with their CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queues {
    /// The NIC.
    pub interface: Interface,
    /// Number of its queues.
    pub count: usize,
    /// The capabilities of its driver.
    pub abilities: DriverCapabilities,
    /// The queues to use, with a CPU each.
    pub used: Vec<(Target, u32)>,
}

/// Queues, and the applications of their flows, on CPUs of one node that share a last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The NUMA node.
    pub node: u32,
    /// The NICs with queues on these CPUs.
    pub interfaces: Vec<Interface>,
    /// CPUs of the queues.
    pub flows: CpuSet,
    /// CPUs for the applications of the flows that arrive by these queues.
    pub applications: CpuSet,
}

/// The CPUs of all queues and of their applications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuePlacement {
    /// The queues of each NIC.
    pub nics: Vec<Queues>,
    /// The queues grouped by last-level cache, with the CPUs of their applications.
    pub groups: Vec<Group>,
    /// CPUs for the applications of all groups.
    pub applications: CpuSet,
}

impl QueuePlacement {
    /// Places the queues of each NIC on its node, beginning with the CPUs of a pair that was chosen for one flow.
    /// Applications may use the CPUs of `allowed`; `None` allows all. With `software`, packets are steered by RPS even if
    /// there are interrupts.
    pub fn of(
        places: &[CpuLocation],
        nics: &[(&Nic, DriverCapabilities)],
        pair: Pair,
        allowed: Option<&CpuSet>,
        software: bool,
    ) -> Self {
        if let [(nic, abilities)] = nics
            && let [_] = targets(nic, software)[..]
        {
            return Self::single(places, nic, *abilities, pair, software);
        }
        // Pairs on one core were fastest, so applications share the cores of queues.
        let shares = matches!(classify(places, pair), Some(Class::SameCpu | Class::Siblings) | None);
        let nic_nodes: Vec<u32> = nics.iter().map(|(nic, _)| nic_node(places, nic, pair)).collect();
        let mut nodes: BTreeMap<u32, Node> = BTreeMap::new();
        let mut placed = Vec::new();
        for ((nic, abilities), nic_node) in nics.iter().zip(&nic_nodes) {
            let node =
                nodes.entry(*nic_node).or_insert_with(|| Node::of(places, *nic_node, pair, allowed, shares));
            let cores_per_nic =
                (node.queue_cores / nic_nodes.iter().filter(|other| *other == nic_node).count()).max(1);
            let targets = targets(nic, software);
            let count = targets.len();
            let can_reduce = !software && (abilities.is_combined.is_some() || abilities.has_table);
            let used = if can_reduce { count.min(cores_per_nic) } else { count };
            let used = targets.into_iter().take(used).zip(&mut node.slots).collect();
            placed.push(Queues { interface: nic.name.clone(), count, abilities: *abilities, used });
        }
        let groups = groups(places, (&nodes, nics), &placed, pair, allowed, shares);
        let applications = groups.iter().flat_map(|group| group.applications.iter()).collect();
        Self { nics: placed, groups, applications }
    }

    /// Keeps a single queue on the CPU on which it was measured.
    fn single(
        places: &[CpuLocation],
        nic: &Nic,
        abilities: DriverCapabilities,
        pair: Pair,
        software: bool,
    ) -> Self {
        let used = targets(nic, software).into_iter().map(|target| (target, pair.flow)).collect();
        let queues = Queues { interface: nic.name.clone(), count: 1, abilities, used };
        let applications = CpuSet::one(pair.application);
        let group = Group {
            node: node_of(places, pair.flow).unwrap_or(0),
            interfaces: vec![nic.name.clone()],
            flows: CpuSet::one(pair.flow),
            applications: applications.clone(),
        };
        Self { nics: vec![queues], groups: vec![group], applications }
    }

    /// CPUs of the queues.
    pub fn flows(&self) -> CpuSet {
        self.nics.iter().flat_map(|nic| nic.used.iter().map(|(_, cpu)| *cpu)).collect()
    }

    /// The number of used queues, and of all queues.
    pub fn counts(&self) -> (usize, usize) {
        (self.nics.iter().map(|nic| nic.used.len()).sum(), self.nics.iter().map(|nic| nic.count).sum())
    }
}

/// The interrupts of a NIC that can be moved, or its receive queues.
fn targets(nic: &Nic, software: bool) -> Vec<Target> {
    let movable = nic.irqs.iter().filter(|irq| irq.cpus.is_some() && !software);
    let mut irqs: Vec<Target> =
        movable.map(|irq| Target::Irq { number: irq.number, name: irq.name.clone() }).collect();
    // The driver keeps the first queues if their number is reduced.
    irqs.sort_by_key(|target| match target {
        Target::Irq { number, name } => (queue_of_irq(name).unwrap_or(u32::MAX), *number),
        Target::Rps { queue } => (*queue, 0),
    });
    if !irqs.is_empty() {
        return irqs;
    }
    nic.rx_queues.iter().map(|queue| Target::Rps { queue: *queue }).collect()
}

fn node_of(places: &[CpuLocation], cpu: u32) -> Option<u32> {
    places.iter().find(|place| place.cpu == cpu).map(|place| place.node)
}

/// The node for a NIC's queues: the node with CPUs that is closest to the NIC. It is the pair's node if the NIC's node
/// is unknown, or if it has no CPUs and no distances are known.
fn nic_node(places: &[CpuLocation], nic: &Nic, pair: Pair) -> u32 {
    let nearest = nic.node.and_then(|node| nic.distances.sorted(node, nodes_of(places)).first().copied());
    let is_known = |node: &u32| Some(*node) == nic.node || !nic.distances.is_empty();
    nearest.filter(is_known).or_else(|| node_of(places, pair.flow)).unwrap_or(0)
}

fn nodes_of(places: &[CpuLocation]) -> impl Iterator<Item = u32> {
    places.iter().map(|place| place.node)
}

/// The groups of all nodes that have queues, with the CPUs of their applications.
fn groups(
    places: &[CpuLocation],
    (nodes, nics): (&BTreeMap<u32, Node>, &[(&Nic, DriverCapabilities)]),
    placed: &[Queues],
    pair: Pair,
    allowed: Option<&CpuSet>,
    shares: bool,
) -> Vec<Group> {
    let taken: CpuSet = placed.iter().flat_map(|nic| nic.used.iter().map(|(_, cpu)| *cpu)).collect();
    let mut groups = Vec::new();
    for (number, node) in nodes {
        for zone in &node.zones {
            let flows: CpuSet = zone.cpus().filter(|cpu| taken.contains(*cpu)).collect();
            if flows.is_empty() {
                continue;
            }
            let is_here = |nic: &&Queues| nic.used.iter().any(|(_, cpu)| flows.contains(*cpu));
            let interfaces = placed.iter().filter(is_here).map(|nic| nic.interface.clone()).collect();
            let own = || applications(places, zone.cpus(), &taken, allowed, shares);
            let of_node =
                || applications(places, node.zones.iter().flat_map(Zone::cpus), &taken, allowed, shares);
            let of_nearest = || nearest(places, nics, *number, &taken, (allowed, shares));
            let applications = own().or_else(of_node).or_else(of_nearest);
            let applications = applications.unwrap_or_else(|| CpuSet::one(pair.application));
            groups.push(Group { node: *number, interfaces, flows, applications });
        }
    }
    // The pair's group is first.
    groups.sort_by_key(|group| !group.flows.contains(pair.flow));
    groups
}

/// The CPUs for applications on the node closest to `node` that has any, by the distances from a NIC on it; `None` if no
/// distances are known.
fn nearest(
    places: &[CpuLocation],
    nics: &[(&Nic, DriverCapabilities)],
    node: u32,
    taken: &CpuSet,
    (allowed, shares): (Option<&CpuSet>, bool),
) -> Option<CpuSet> {
    let of_nic = nics.iter().find(|(nic, _)| nic.node == Some(node) && !nic.distances.is_empty());
    let nodes = of_nic?.0.distances.sorted(node, nodes_of(places));
    nodes.into_iter().find_map(|node| {
        let cpus = places.iter().filter(|place| place.node == node).map(|place| place.cpu);
        applications(places, cpus, taken, allowed, shares)
    })
}

/// Chooses CPUs for applications from the allowed CPUs of `near`: CPUs of cores without queues; failing that, CPUs
/// without queues; failing that, all.
fn applications(
    places: &[CpuLocation],
    near: impl Iterator<Item = u32>,
    taken: &CpuSet,
    allowed: Option<&CpuSet>,
    shares: bool,
) -> Option<CpuSet> {
    let near: Vec<u32> = near.filter(|cpu| allowed.is_none_or(|set| set.contains(*cpu))).collect();
    let core_of =
        |cpu: u32| places.iter().find(|place| place.cpu == cpu).map_or(&[][..], |place| &place.core);
    let is_free = |cpu: &u32| !shares && !taken.contains(*cpu);
    let is_apart = |cpu: &u32| is_free(cpu) && !core_of(*cpu).iter().any(|of| taken.contains(*of));
    let sets: [CpuSet; 3] = [
        near.iter().copied().filter(is_apart).collect(),
        near.iter().copied().filter(is_free).collect(),
        near.iter().copied().collect(),
    ];
    sets.into_iter().find(|set| !set.is_empty())
}

#[cfg(test)]
mod tests;
