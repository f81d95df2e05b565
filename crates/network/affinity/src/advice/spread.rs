//! Where the queues of one or several NICs go, and how many of them are used: one a core of the NIC's node, the other
//! hardware threads of these cores last, and another node only if the NIC's has no CPU. Half of the cores are for
//! applications, if the driver can reduce the number of queues or direct packets to some of them.
//!
//! Source: Hanford et al. 2014 for a flow and its application on different cores of the NIC's socket; Linux
//! Documentation/networking/scaling.rst ("one for each CPU in the system ... hyperthreading"), ethtool(8) (-L, -X).

use crate::ethtool::DriverFact;
use crate::host::Host;
use crate::interface::Nic;
use crate::pairs::{Class, Pair, classify};
use crate::rss_table::queue_of_irq;
use crate::setting::Interface;
use longma_cpu_set::CpuSet;
use longma_topology::CpuLocation;
use serde::Serialize;

/// What a driver can do about its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// Whether its receive queues also send, and their number can be changed (`ethtool -L`); `None` if it cannot.
    pub is_combined: Option<bool>,
    /// Whether packets can be directed to some of the queues (`ethtool -X`).
    pub has_table: bool,
}

impl Abilities {
    /// Asks the driver of `nic`.
    pub fn of(host: &dyn Host, nic: &Nic) -> Self {
        let fact = |fact| host.driver(nic.name.name(), fact).ok();
        let is_combined = fact(DriverFact::CombinedChannels).map(|combined| combined > 0);
        let can_change = fact(DriverFact::ChannelsMost).is_some_and(|most| most > 1);
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
    /// By an interrupt. The name survives changes of the number of queues, the number need not.
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
    /// What its driver can do.
    pub abilities: Abilities,
    /// The queues to use, with a CPU each.
    pub used: Vec<(Target, u32)>,
}

/// Where the queues of all NICs go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The queues of each NIC.
    pub nics: Vec<Queues>,
    /// CPUs for the applications.
    pub applications: CpuSet,
}

/// CPUs of a node, grouped for queues.
struct Order {
    /// One CPU of each core.
    cores: Vec<u32>,
    /// The other CPUs of these cores.
    siblings: Vec<u32>,
}

impl Spread {
    /// Places the queues of `nics` around a pair that was chosen for one flow. `allowed` are the CPUs of applications;
    /// `None` allows all. With `software`, packets are steered by RPS even if there are interrupts.
    pub fn of(
        places: &[CpuLocation],
        nics: &[(&Nic, Abilities)],
        pair: Pair,
        allowed: Option<&CpuSet>,
        software: bool,
    ) -> Self {
        if let [(nic, abilities)] = nics
            && let [_] = targets(nic, software)[..]
        {
            // A single queue stays where it was measured.
            let used = targets(nic, software).into_iter().map(|target| (target, pair.flow)).collect();
            let queues = Queues { interface: nic.name.clone(), count: 1, abilities: *abilities, used };
            return Self { nics: vec![queues], applications: CpuSet::one(pair.application) };
        }
        let order = order(places, nics, pair);
        // Pairs on one core were faster than others, so applications share the cores of queues.
        let shares = matches!(classify(places, pair), Some(Class::SameCpu | Class::Siblings) | None);
        let room = if shares { order.cores.len() } else { order.cores.len() / 2 };
        let room_of_each = (room / nics.len().max(1)).max(1);
        let mut all = order.cores.iter().chain(&order.siblings).copied().cycle();
        let mut placed = Vec::new();
        for (nic, abilities) in nics {
            let targets = targets(nic, software);
            let count = targets.len();
            let can_reduce = !software && (abilities.is_combined.is_some() || abilities.has_table);
            let used = if can_reduce { count.min(room_of_each) } else { count };
            let used = targets.into_iter().take(used).zip(&mut all).collect();
            placed.push(Queues { interface: nic.name.clone(), count, abilities: *abilities, used });
        }
        let taken: CpuSet = placed.iter().flat_map(|nic| nic.used.iter().map(|(_, cpu)| *cpu)).collect();
        let applications = applications(places, &order, &taken, pair, allowed, shares);
        Self { nics: placed, applications }
    }

    /// CPUs of the queues.
    pub fn flows(&self) -> CpuSet {
        self.nics.iter().flat_map(|nic| nic.used.iter().map(|(_, cpu)| *cpu)).collect()
    }

    /// Number of queues used, and of all queues.
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

/// The CPUs of the NICs' node: the flow's core first, then the other cores, then that of CPU 0, on which most other work
/// runs, and the application's last.
fn order(places: &[CpuLocation], nics: &[(&Nic, Abilities)], pair: Pair) -> Order {
    let node_of = |cpu: u32| places.iter().find(|place| place.cpu == cpu).map(|place| place.node);
    let has_cpus = |node: &u32| places.iter().any(|place| place.node == *node);
    let node = nics.iter().find_map(|(nic, _)| nic.node).filter(has_cpus).or_else(|| node_of(pair.flow));
    let mut near: Vec<&CpuLocation> = places.iter().filter(|place| Some(place.node) == node).collect();
    let is_core_of = |place: &CpuLocation, cpu: u32| place.cpu == cpu || place.core.contains(&cpu);
    near.sort_by_key(|place| {
        let is_application = is_core_of(place, pair.application) && !is_core_of(place, pair.flow);
        let rank = match (is_core_of(place, pair.flow), is_application, is_core_of(place, 0)) {
            (true, ..) => 0,
            (_, true, _) => 3,
            (.., true) => 2,
            _ => 1,
        };
        // Of the flow's core, its own CPU first.
        (rank, place.cpu != pair.flow, place.cpu)
    });
    let mut order = Order { cores: Vec::new(), siblings: Vec::new() };
    for place in near {
        let is_sibling = order.cores.iter().any(|cpu| is_core_of(place, *cpu));
        if is_sibling { order.siblings.push(place.cpu) } else { order.cores.push(place.cpu) }
    }
    order
}

/// CPUs of the same node for applications: cores without queues, or CPUs without queues, or all, as far as allowed.
fn applications(
    places: &[CpuLocation],
    order: &Order,
    taken: &CpuSet,
    pair: Pair,
    allowed: Option<&CpuSet>,
    shares: bool,
) -> CpuSet {
    let near = || order.cores.iter().chain(&order.siblings).copied();
    let core_of =
        |cpu: u32| places.iter().find(|place| place.cpu == cpu).map_or(&[][..], |place| &place.core);
    let is_apart = |cpu: &u32| !taken.contains(*cpu) && !core_of(*cpu).iter().any(|of| taken.contains(*of));
    let is_allowed = |cpu: &u32| allowed.is_none_or(|set| set.contains(*cpu));
    let sets: [CpuSet; 3] = [
        near().filter(|cpu| !shares && is_apart(cpu)).filter(is_allowed).collect(),
        near().filter(|cpu| !shares && !taken.contains(*cpu)).filter(is_allowed).collect(),
        near().filter(is_allowed).collect(),
    ];
    sets.into_iter().find(|set| !set.is_empty()).unwrap_or_else(|| CpuSet::one(pair.application))
}

#[cfg(test)]
mod tests;
