//! What a placing of queues and threads is worth: a number that is lower the better flows and their applications lie to each other.
//! Not a throughput: an order of placings, from classes and load alone. Nothing here looks at a host.
//! Source: the order of the classes is that of Hanford et al. 2014 ([`Class::ALL`]); the costs below are ranks and no measurements.

use crate::cpus::CpuSet;
use crate::places::{Class, Pair, classify};
use longma_topology::CpuLocation;
use std::collections::BTreeMap;

/// A flow on the wrong side of the socket link from its NIC costs as much as one class.
const FAR: f64 = 1.0;
/// A queue whose packets are handled wherever they happen to arrive: as bad as the middle of the classes.
const UNSTEERED: f64 = 2.0;
/// A CPU is full from here on, in parts of it: some room is needed for what varies.
const FULL: f64 = 0.9;
/// What a CPU's worth of work above that costs: as much as all bytes in the worst class.
const OVERLOAD: f64 = 4.0;

/// A queue: what sends the packets of some flows to one CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// The node of its NIC; none if unknown.
    pub node: Option<u32>,
    /// Parts of a CPU that its protocol work takes.
    pub load: f64,
    /// The CPUs that it may be sent to; none if it is to be left alone.
    pub open: Option<CpuSet>,
}

/// A thread that flows belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// Parts of a CPU that it takes.
    pub load: f64,
    /// The CPUs that it may be bound to; none if it is to be left alone.
    pub open: Option<CpuSet>,
}

/// The flows between a queue and a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The queue's index.
    pub queue: usize,
    /// The thread's index.
    pub thread: usize,
    /// Their part of all bytes: all links together make 1.
    pub weight: f64,
}

/// A host with its flows at one moment.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The CPUs that are online.
    pub places: Vec<CpuLocation>,
    /// The queues.
    pub queues: Vec<Queue>,
    /// The threads.
    pub threads: Vec<Thread>,
    /// Which thread has the flows of which queue.
    pub links: Vec<Link>,
    /// Other load by CPU, in parts of it.
    pub other: BTreeMap<u32, f64>,
}

/// Where queues and threads are.
#[derive(Clone, Debug, PartialEq)]
pub struct Placing {
    /// The CPU of each queue; none if its packets are handled where they arrive.
    pub queues: Vec<Option<u32>>,
    /// The CPUs over which each thread is spread: those that it may run on.
    pub threads: Vec<CpuSet>,
}

impl Model {
    /// What a placing costs: 0 if every flow shares a cache and no core with its application, near its NIC, and no CPU is full.
    pub fn measure(&self, placing: &Placing) -> f64 {
        self.distance(placing) + OVERLOAD * self.overload(placing)
    }

    /// The part of the cost that comes from where flows and applications lie.
    pub fn distance(&self, placing: &Placing) -> f64 {
        self.links.iter().map(|link| link.weight * self.link(placing, *link)).sum()
    }

    fn link(&self, placing: &Placing, link: Link) -> f64 {
        let Some(flow) = placing.queues[link.queue] else { return UNSTEERED };
        let node = self.queues[link.queue].node;
        let far = if self.is_far(node, flow) { FAR } else { 0.0 };
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
        // A NIC on a node without CPUs is near none and far from none.
        node.is_some_and(|node| place != Some(node) && self.places.iter().any(|place| place.node == node))
    }

    /// The load of each CPU.
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

    /// Where a CPU is.
    pub fn place(&self, cpu: u32) -> Option<&CpuLocation> {
        self.places.iter().find(|place| place.cpu == cpu)
    }

    /// The groups of CPUs that share a last cache, or a socket where no cache is named.
    pub fn groups(&self) -> Vec<Vec<u32>> {
        let mut groups: BTreeMap<(u32, Option<Vec<u32>>), Vec<u32>> = BTreeMap::new();
        for place in &self.places {
            groups.entry((place.socket, place.last_cache.clone())).or_default().push(place.cpu);
        }
        groups.into_values().collect()
    }
}
