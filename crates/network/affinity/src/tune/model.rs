//! Cost model for the placement of queues and threads on CPUs. A lower cost means that flows and their applications are
//! closer together. The cost ranks placements by class and load; it does not predict throughput.
//!
//! Source: the order of the classes is that of Hanford et al. 2014 ([`Class::ALL`](crate::pairs::Class::ALL)); the
//! costs in [`costs`] are ranks, not measurements.

use crate::numa::NodeDistances;
use longma_cpu_set::CpuSet;
use longma_topology::CpuLocation;
use std::collections::{BTreeMap, BTreeSet};

/// Costs in addition to those of the classes. The unit is one class for all bytes unless stated otherwise. The order of
/// the costs decides between bad placements: a queue first uses the other cores of its NIC's node, then their other hardware threads, then CPUs with
/// another queue, then another node.
pub mod costs {
    /// A queue beside a busier one on another hardware thread of the core.
    pub const SIBLING: f64 = 1.25;
    /// A queue beside a busier one on the same CPU.
    pub const STACKED: f64 = 1.3;
    /// Added to [`STACKED`] in proportion to the fraction of the CPU's bytes that belong to other queues than the
    /// busiest one. Queues that must share CPUs are thereby distributed evenly.
    pub const UNEVEN: f64 = 0.65;
    /// A flow on the node closest to its NIC's node. If the NIC's node has no CPUs, the closest node with CPUs is
    /// treated as the NIC's.
    pub const FAR: f64 = 2.0;
    /// Added to [`FAR`] on the farthest node, and in proportion to the distance on those between.
    pub const FARTHER: f64 = 0.5;
    /// A queue whose packets are processed on an unknown CPU; the cost is that of the middle class.
    pub const UNSTEERED: f64 = 2.0;
    /// Load above which a CPU is considered full. Less than 1, to allow for variation.
    pub const FULL: f64 = 0.9;
    /// Cost of load above [`FULL`] that amounts to one CPU: as much as if all bytes were in the worst class.
    pub const OVERLOAD: f64 = 4.0;
}

/// A queue, which directs the packets of some flows to one CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// NUMA node of its NIC; `None` if unknown.
    pub node: Option<u32>,
    /// Load of its protocol processing in CPUs.
    pub load: f64,
    /// CPUs that it may be directed to; `None` if it must not be changed.
    pub open: Option<CpuSet>,
}

/// A thread that uses flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// Load in CPUs.
    pub load: f64,
    /// CPUs that it may be bound to; `None` if it must not be changed.
    pub open: Option<CpuSet>,
}

/// The flows between a queue and a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Index of the queue.
    pub queue: usize,
    /// Index of the thread.
    pub thread: usize,
    /// Their fraction of all bytes. The weights of all links add up to 1.
    pub weight: f64,
}

/// A snapshot of a host with its flows.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Topology of the online CPUs.
    pub places: Vec<CpuLocation>,
    /// The queues.
    pub queues: Vec<Queue>,
    /// The threads.
    pub threads: Vec<Thread>,
    /// The links between queues and threads.
    pub links: Vec<Link>,
    /// Distances from the nodes of NICs to others.
    pub distances: BTreeMap<u32, NodeDistances>,
    /// Other load of each CPU, as a fraction.
    pub other: BTreeMap<u32, f64>,
}

/// An assignment of queues and threads to CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// CPU of each queue; `None` if its packets are processed where they arrive.
    pub queues: Vec<Option<u32>>,
    /// CPUs that each thread may run on.
    pub threads: Vec<CpuSet>,
}

impl Model {
    /// Load of each CPU.
    pub fn loads(&self, assignment: &Assignment) -> BTreeMap<u32, f64> {
        let mut loads: BTreeMap<u32, f64> = self
            .places
            .iter()
            .map(|place| (place.cpu, self.other.get(&place.cpu).copied().unwrap_or(0.0)))
            .collect();
        for (queue, cpu) in self.queues.iter().zip(&assignment.queues) {
            if let Some(load) = cpu.and_then(|cpu| loads.get_mut(&cpu)) {
                *load += queue.load;
            }
        }
        for (thread, cpus) in self.threads.iter().zip(&assignment.threads) {
            let part = thread.load / cpus.len().max(1) as f64;
            for cpu in cpus.iter() {
                if let Some(load) = loads.get_mut(&cpu) {
                    *load += part;
                }
            }
        }
        loads
    }

    /// Confines queues without known flows to the nodes of their NICs: there is no application to follow elsewhere.
    pub fn keep_unlinked_queues_near(&mut self) {
        let linked: BTreeSet<usize> = self.links.iter().map(|link| link.queue).collect();
        for (_, queue) in self.queues.iter_mut().enumerate().filter(|(index, _)| !linked.contains(index)) {
            let (Some(open), Some(node)) = (&queue.open, queue.node) else { continue };
            let is_near = |place: &&CpuLocation| place.node == node && open.contains(place.cpu);
            let near: CpuSet = self.places.iter().filter(is_near).map(|place| place.cpu).collect();
            if !near.is_empty() {
                queue.open = Some(near);
            }
        }
    }

    /// Topology of a CPU.
    pub fn place(&self, cpu: u32) -> Option<&CpuLocation> {
        self.places.iter().find(|place| place.cpu == cpu)
    }
}
