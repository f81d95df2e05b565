//! Cost model for the placement of queues and threads on CPUs. A lower cost means that flows and their applications are
//! closer together. The cost ranks placements by class and load; it does not predict throughput.
//!
//! Source: the order of the classes is that of Hanford et al. 2014 ([`Class::ALL`]); the costs below are ranks, not
//! measurements.

use crate::pairs::{Class, Pair, classify};
use longma_cpu_set::CpuSet;
use longma_topology::CpuLocation;
use std::collections::BTreeMap;

/// Cost of a flow on another socket than its NIC, the same as one class.
const FAR_COST: f64 = 1.0;
/// Cost of a queue whose packets are processed wherever they arrive, as for the middle class.
const UNSTEERED_COST: f64 = 2.0;
/// Load above which a CPU counts as full. Below 1, to leave room for variation.
const FULL: f64 = 0.9;
/// Cost of one CPU's worth of load above that, as much as all bytes in the worst class.
const OVERLOAD_COST: f64 = 4.0;

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
    /// Other load of each CPU, as a fraction.
    pub other: BTreeMap<u32, f64>,
}

/// An assignment of queues and threads to CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Placing {
    /// CPU of each queue; `None` if its packets are processed where they arrive.
    pub queues: Vec<Option<u32>>,
    /// CPUs that each thread may run on.
    pub threads: Vec<CpuSet>,
}

impl Model {
    /// Cost of a placement. 0 if every flow shares a cache but no core with its application, is close to its NIC, and
    /// no CPU is full.
    pub fn measure(&self, placing: &Placing) -> f64 {
        self.distance(placing) + OVERLOAD_COST * self.overload(placing)
    }

    /// The part of the cost that is due to topology.
    pub fn distance(&self, placing: &Placing) -> f64 {
        self.links.iter().map(|link| link.weight * self.link(placing, *link)).sum()
    }

    fn link(&self, placing: &Placing, link: Link) -> f64 {
        let Some(flow) = placing.queues[link.queue] else { return UNSTEERED_COST };
        let node = self.queues[link.queue].node;
        let far = if self.is_far(node, flow) { FAR_COST } else { 0.0 };
        let cpus = &placing.threads[link.thread];
        let costs: Vec<f64> = cpus.iter().map(|cpu| self.rank(flow, cpu)).collect();
        far + costs.iter().sum::<f64>() / costs.len().max(1) as f64
    }

    fn rank(&self, flow: u32, application: u32) -> f64 {
        let class = classify(&self.places, Pair { flow, application }).unwrap_or(Class::SameCpu);
        Class::ALL.iter().position(|of| *of == class).unwrap_or_default() as f64
    }

    fn is_far(&self, node: Option<u32>, cpu: u32) -> bool {
        let place = self.place(cpu).map(|place| place.node);
        // No CPU is close to a NIC on a node without CPUs, so none counts as far.
        node.is_some_and(|node| place != Some(node) && self.places.iter().any(|place| place.node == node))
    }

    /// Load of each CPU.
    pub fn loads(&self, placing: &Placing) -> BTreeMap<u32, f64> {
        let mut loads: BTreeMap<u32, f64> = self
            .places
            .iter()
            .map(|place| (place.cpu, self.other.get(&place.cpu).copied().unwrap_or(0.0)))
            .collect();
        for (queue, cpu) in self.queues.iter().zip(&placing.queues) {
            if let Some(load) = cpu.and_then(|cpu| loads.get_mut(&cpu)) {
                *load += queue.load;
            }
        }
        for (thread, cpus) in self.threads.iter().zip(&placing.threads) {
            let part = thread.load / cpus.iter().count().max(1) as f64;
            for cpu in cpus.iter() {
                if let Some(load) = loads.get_mut(&cpu) {
                    *load += part;
                }
            }
        }
        loads
    }

    fn overload(&self, placing: &Placing) -> f64 {
        self.loads(placing).values().map(|load| (load - FULL).max(0.0)).sum()
    }

    /// Topology of a CPU.
    pub fn place(&self, cpu: u32) -> Option<&CpuLocation> {
        self.places.iter().find(|place| place.cpu == cpu)
    }

    /// Groups of CPUs that share a last-level cache, or a socket if no cache is known.
    pub fn groups(&self) -> Vec<Vec<u32>> {
        let mut groups: BTreeMap<(u32, Option<Vec<u32>>), Vec<u32>> = BTreeMap::new();
        for place in &self.places {
            groups.entry((place.socket, place.last_cache.clone())).or_default().push(place.cpu);
        }
        groups.into_values().collect()
    }
}
