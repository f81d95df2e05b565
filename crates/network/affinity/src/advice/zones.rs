//! The CPUs of a NUMA node in the order in which they are assigned to queues, divided by last-level cache. With
//! sub-NUMA clustering, a cache spans several nodes; only the CPUs of one node count.
//!
//! Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu (cache/index*/shared_cpu_list).

use crate::pairs::Pair;
use longma_cpu_set::CpuSet;
use longma_topology::CpuLocation;
use std::iter::Cycle;
use std::vec::IntoIter;

/// CPUs of one node that share a last-level cache.
pub(super) struct Zone {
    /// One CPU of each core.
    cores: Vec<u32>,
    /// The other CPUs of these cores.
    siblings: Vec<u32>,
}

/// A node.
pub(super) struct Node {
    /// Its CPUs, grouped by cache. If the system reports no cache, all CPUs form one group.
    pub zones: Vec<Zone>,
    /// Number of cores for queues: half of the cores, if applications use the other half.
    pub queue_cores: usize,
    /// CPUs for queues in order, repeated endlessly.
    pub slots: Cycle<IntoIter<u32>>,
}

impl Zone {
    /// All CPUs.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        self.cores.iter().chain(&self.siblings).copied()
    }

    /// Number of cores for queues; 0 in a zone in which no application may run. With `shares`, applications use the same
    /// cores.
    fn queue_cores(&self, allowed: Option<&CpuSet>, shares: bool) -> usize {
        let is_allowed = |cpu: u32| allowed.is_none_or(|set| set.contains(cpu));
        match (self.cpus().any(is_allowed), shares) {
            (false, _) => 0,
            (true, true) => self.cores.len(),
            (true, false) => self.cores.len() / 2,
        }
    }
}

impl Node {
    /// Orders the CPUs of `node` for the queues around a pair. `allowed` are the CPUs of applications.
    pub fn of(places: &[CpuLocation], node: u32, pair: Pair, allowed: Option<&CpuSet>, shares: bool) -> Self {
        let zones = zones(places, node, pair);
        let mut rooms: Vec<usize> = zones.iter().map(|zone| zone.queue_cores(allowed, shares)).collect();
        if rooms.iter().all(|queue_cores| *queue_cores == 0) {
            rooms = zones.iter().map(|zone| zone.queue_cores(None, shares)).collect();
        }
        let zone_cores = || zones.iter().zip(&rooms);
        let first = zone_cores().flat_map(|(zone, queue_cores)| zone.cores.iter().take(*queue_cores));
        // Further queues are distributed evenly over the caches.
        let rest: Vec<&[u32]> = zone_cores().map(|(zone, queue_cores)| &zone.cores[*queue_cores..]).collect();
        let siblings: Vec<&[u32]> = zones.iter().map(|zone| &zone.siblings[..]).collect();
        let slots: Vec<u32> = first.copied().chain(in_turn(&rest)).chain(in_turn(&siblings)).collect();
        Self { queue_cores: rooms.iter().sum(), slots: slots.into_iter().cycle(), zones }
    }
}

/// The first of each list, then the second of each, and so on.
fn in_turn(lists: &[&[u32]]) -> Vec<u32> {
    let most = lists.iter().map(|list| list.len()).max().unwrap_or(0);
    (0..most).flat_map(|at| lists.iter().filter_map(move |list| list.get(at).copied())).collect()
}

/// The zones of a node. Within each zone, the flow's core is first, then the other cores, then the core of CPU 0, on
/// which most other work runs, and the application's core is last.
fn zones(places: &[CpuLocation], node: u32, pair: Pair) -> Vec<Zone> {
    let mut near: Vec<&CpuLocation> = places.iter().filter(|place| place.node == node).collect();
    let is_core_of = |place: &CpuLocation, cpu: u32| place.cpu == cpu || place.core.contains(&cpu);
    near.sort_by_key(|place| {
        let is_application = is_core_of(place, pair.application) && !is_core_of(place, pair.flow);
        let rank = match (is_core_of(place, pair.flow), is_application, is_core_of(place, 0)) {
            (true, ..) => 0,
            (_, true, _) => 3,
            (.., true) => 2,
            _ => 1,
        };
        // Within the flow's core, the flow's CPU comes first.
        (rank, place.cpu != pair.flow, place.cpu)
    });
    let mut found: Vec<(Option<&Vec<u32>>, Zone)> = Vec::new();
    for place in near {
        let cache = place.last_cache.as_ref();
        let at = found.iter().position(|(of, _)| *of == cache).unwrap_or_else(|| {
            found.push((cache, Zone { cores: Vec::new(), siblings: Vec::new() }));
            found.len() - 1
        });
        let zone = &mut found[at].1;
        let is_sibling = zone.cores.iter().any(|cpu| is_core_of(place, *cpu));
        if is_sibling { zone.siblings.push(place.cpu) } else { zone.cores.push(place.cpu) }
    }
    joined(found.into_iter().map(|(_, zone)| zone).collect())
}

/// Joins zones of a single core, which some hypervisors report: such a zone has no core for the application beside the
/// queue's core.
fn joined(zones: Vec<Zone>) -> Vec<Zone> {
    let (single, mut whole): (Vec<Zone>, Vec<Zone>) =
        zones.into_iter().partition(|zone| zone.cores.len() < 2);
    if single.is_empty() {
        return whole;
    }
    let cores = single.iter().flat_map(|zone| zone.cores.iter().copied()).collect();
    let siblings = single.iter().flat_map(|zone| zone.siblings.iter().copied()).collect();
    whole.push(Zone { cores, siblings });
    whole
}
