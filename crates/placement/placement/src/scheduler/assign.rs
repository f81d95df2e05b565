//! Builds a placement on nodes that `fit` has chosen: assigns CPUs, memory shares and devices.

use super::demand::{CellDemand, Demand};
use super::filter::free_mib;
use crate::inventory::HostState;
use crate::placement::{Cell, Placement, Share};
use crate::request::{CpuPolicy, EmulatorPolicy, MemoryPolicy, Request, SmtPolicy};
use crate::shape::Bits;

/// Builds the placement of `request` on these nodes; `None` if CPUs, memory or devices are insufficient.
pub(crate) fn assign(
    host: &HostState,
    request: &Request,
    demand: &Demand,
    nodes: &[u8],
) -> Option<Placement> {
    let shape = &host.shape;
    let memory = shares(host, demand, nodes)?;
    let mut cells = Vec::with_capacity(nodes.len());
    let (mut emulator_cpu, mut overhead) = (None, Vec::new());
    for (at, (node, mut shares)) in nodes.iter().zip(memory).enumerate() {
        let cell = demand.cell(at as u32);
        let node = usize::from(*node);
        let dedicated = if demand.cpu == CpuPolicy::Exclusive {
            dedicated_cpus(host, node, demand, &cell)?
        } else {
            DedicatedCpus::default()
        };
        emulator_cpu = emulator_cpu.or(dedicated.emulator);
        let id = shape.nodes[node].id;
        match demand.page_kib {
            None => overhead.extend(split_off(&mut shares, cell.overhead_mib)),
            Some(_) if cell.overhead_mib == 0 => {}
            Some(_) => {
                let page_kib = shape.nodes[node].pools[0].page_kib;
                overhead.push(Share { node: id, page_kib, mib: cell.overhead_mib });
            }
        }
        cells.push(Cell {
            node: id,
            vcpus: cell.vcpus,
            cpus: dedicated.cpus,
            idle: dedicated.unused_siblings,
            memory: shares,
        });
    }
    let id = |n: usize| shape.nodes[n].id;
    let mut bound: Vec<u32> = match request.memory {
        MemoryPolicy::Strict => nodes.iter().map(|n| id((*n).into())).collect(),
        MemoryPolicy::Preferred { within_distance } => {
            let near = |n: usize| nodes.iter().any(|c| within(host, (*c).into(), n, within_distance));
            let has = |n: usize| {
                shape.nodes[n].pool(demand.page_kib).is_some_and(|p| shape.nodes[n].pools[p].mib > 0)
            };
            (0..host.nodes.len()).filter(|n| near(*n) && has(*n)).map(id).collect()
        }
    };
    bound.sort_unstable();
    bound.dedup();
    let mut groups: Vec<String> =
        request.groups.iter().map(|m| group_key(&request.tenant, &m.group)).collect();
    groups.sort_unstable();
    groups.dedup();
    Some(Placement {
        host: host.name.to_string(),
        cpu: demand.cpu,
        memory: request.memory,
        emulator: demand.emulator,
        emulator_cpu,
        cells,
        bound,
        devices: devices(host, demand, nodes)?,
        groups,
        overhead,
        lifetime: None,
    })
}

/// Moves `mib` from `shares` to a new list, starting with the last share, which is the most remote one.
fn split_off(shares: &mut Vec<Share>, mib: u64) -> Vec<Share> {
    let (mut left, mut split) = (mib, Vec::new());
    while left > 0
        && let Some(last) = shares.last_mut()
    {
        let part = left.min(last.mib);
        split.push(Share { mib: part, ..*last });
        (last.mib, left) = (last.mib - part, left - part);
        if last.mib == 0 {
            shares.pop();
        }
    }
    split
}

/// Key of a group. Groups of different tenants are separate.
pub(crate) fn group_key(tenant: &str, group: &str) -> String {
    format!("{tenant}/{group}")
}

fn within(host: &HostState, from: usize, to: usize, distance: u32) -> bool {
    from == to || host.shape.distances[from][to] <= distance
}

/// Whether [`shares`] finds enough memory.
pub(crate) fn memory_fits(host: &HostState, demand: &Demand, nodes: &[u8]) -> bool {
    // The memory filter has checked strict memory node by node. Virtual nodes that may use remote memory compete for
    // the same nodes, so they are checked together.
    demand.memory == MemoryPolicy::Strict || missing_mib(host, demand, nodes) == 0
}

/// The shortfall in MiB over all virtual nodes on `nodes`, even with remote memory.
pub(crate) fn missing_mib(host: &HostState, demand: &Demand, nodes: &[u8]) -> u64 {
    distribute_memory(host, demand, nodes).1
}

/// Memory shares of each virtual node: its own node first, then remote memory of the allowed nodes: those without CPUs
/// first, near ones before distant ones.
fn shares(host: &HostState, demand: &Demand, nodes: &[u8]) -> Option<Vec<Vec<Share>>> {
    let (all, missing) = distribute_memory(host, demand, nodes);
    (missing == 0).then_some(all)
}

/// Distributes the available memory over the virtual nodes. Also returns the number of MiB that are missing.
fn distribute_memory(host: &HostState, demand: &Demand, nodes: &[u8]) -> (Vec<Vec<Share>>, u64) {
    let unit = demand.unit_mib();
    let mut free: Vec<u64> =
        (0..host.nodes.len()).map(|n| free_mib(host, n, demand.page_kib) / unit * unit).collect();
    let mut all: Vec<Vec<Share>> = vec![Vec::new(); nodes.len()];
    let mut missing: Vec<u64> =
        (0..nodes.len()).map(|at| demand.pages_mib(&demand.cell(at as u32))).collect();
    let take_from_node =
        |at: usize, node: usize, free: &mut u64, missing: &mut u64, all: &mut Vec<Vec<Share>>| {
            let mib = (*free).min(*missing);
            if mib > 0 {
                let shape = &host.shape.nodes[node];
                let page_kib = shape.pools[shape.pool(demand.page_kib).unwrap_or(0)].page_kib;
                all[at].push(Share { node: shape.id, page_kib, mib });
                *free -= mib;
                *missing -= mib;
            }
        };
    // Assign local memory to every virtual node first, so that no virtual node remotely uses memory that another one
    // can use locally.
    for (at, node) in nodes.iter().enumerate() {
        let node = usize::from(*node);
        take_from_node(at, node, &mut free[node], &mut missing[at], &mut all);
    }
    if let MemoryPolicy::Preferred { within_distance } = demand.memory {
        for (at, home) in nodes.iter().enumerate() {
            let home = usize::from(*home);
            // The memory of nodes without CPUs is of no other use.
            for has_cpus in [false, true] {
                for node in host.shape.by_distance[home].iter().map(|n| usize::from(*n)) {
                    let is_next = host.shape.nodes[node].cpus.is_empty() != has_cpus;
                    if is_next && within(host, home, node, within_distance) {
                        take_from_node(at, node, &mut free[node], &mut missing[at], &mut all);
                    }
                }
            }
        }
    }
    (all, missing.iter().sum())
}

#[derive(Default)]
struct DedicatedCpus {
    cpus: Vec<u32>,
    /// SMT siblings that stay unused.
    unused_siblings: Vec<u32>,
    emulator: Option<u32>,
}

/// Chooses dedicated CPUs on one node: whole cores first, the remainder from cores that are already partly in use.
fn dedicated_cpus(
    host: &HostState,
    node: usize,
    demand: &Demand,
    cell: &CellDemand,
) -> Option<DedicatedCpus> {
    let shape = &host.shape.nodes[node];
    let mut taken: Bits = host.nodes[node].taken.or(shape.foreign);
    let before = taken;
    let mut dedicated = DedicatedCpus::default();
    let mut free_cores = shape.cores.iter().filter(|c| before.none_of(c.0.into(), c.1.into()));
    let mut remaining = cell.vcpus as usize;
    while remaining > 0 && demand.smt != SmtPolicy::Avoid {
        let Some(core) = free_cores.clone().next() else { break };
        if usize::from(core.1) > remaining {
            break;
        }
        free_cores.next();
        let places = core.0..core.0 + core.1;
        dedicated.cpus.extend(places.clone().map(|at| shape.cpus[usize::from(at)]));
        places.for_each(|at| taken.set(at.into(), true));
        remaining -= usize::from(core.1);
    }
    if demand.smt == SmtPolicy::Avoid {
        for core in free_cores.by_ref().take(remaining) {
            dedicated.cpus.push(shape.cpus[usize::from(core.0)]);
            dedicated
                .unused_siblings
                .extend((core.0 + 1..core.0 + core.1).map(|at| shape.cpus[usize::from(at)]));
            (core.0..core.0 + core.1).for_each(|at| taken.set(at.into(), true));
            remaining -= 1;
        }
    }
    let thread_of_split_core = |taken: &Bits| {
        let is_in_use = |c: &&(u16, u16)| !taken.none_of(c.0.into(), c.1.into());
        let free = |c: &(u16, u16)| (c.0..c.0 + c.1).find(|at| !taken.get((*at).into()));
        let single = shape.cores.iter().filter(is_in_use).find_map(free);
        single.or_else(|| shape.cores.iter().find_map(free)).map(usize::from)
    };
    while remaining > 0 {
        if demand.smt != SmtPolicy::Prefer {
            return None;
        }
        let at = thread_of_split_core(&taken)?;
        taken.set(at, true);
        dedicated.cpus.push(shape.cpus[at]);
        remaining -= 1;
    }
    if cell.first && demand.emulator == EmulatorPolicy::Isolated {
        dedicated.emulator = Some(shape.cpus[thread_of_split_core(&taken)?]);
    }
    Some(dedicated)
}

/// Assigns a device to each need, local needs first. Prefers the first virtual node's physical node, then the nearest
/// one.
fn devices(host: &HostState, demand: &Demand, nodes: &[u8]) -> Option<Vec<String>> {
    let home = usize::from(nodes[0]);
    let mut used = host.devices.clone();
    let mut needs = demand.devices.clone();
    // Serve the most specific needs first, so that other needs do not take the only device that suits them.
    needs.sort_by_key(|n| (!n.local, n.id.is_none()));
    let mut names = Vec::new();
    for need in needs {
        let devices = host.shape.devices.iter().zip(&host.shape.device_nodes).enumerate();
        let free = devices.filter(|(at, (d, _))| need.matches(d) && u32::from(used[*at]) < d.slots);
        let distance = |node: Option<u8>| {
            node.map_or(u32::MAX, |n| match usize::from(n) == home {
                true => 0,
                false => host.shape.distances[home][usize::from(n)],
            })
        };
        let (at, (device, node)) = free.min_by_key(|(_, (_, node))| distance(**node))?;
        if need.local && distance(*node) != 0 {
            return None;
        }
        used[at] += 1;
        names.push(device.name.clone());
    }
    Some(names)
}
