//! A modelled host that implements the hypervisor interface. Virtual CPUs read memory as fast as latency, memory
//! controllers and links allow; a scheduler balances threads; moving memory takes time. Time advances on request and
//! during a move.
//!
//! The model computes rates per tick and not per cycle. A line is in flight for its latency, a core has as many lines
//! in flight as its cache has MSHRs, and contended resources are shared with max-min fairness.
//!
//! Source: all numbers come from the machine file; max-min fairness after Bertsekas and Gallager, Data Networks, 6.5.2.

use longma_locks::IgnorePoison;
use longma_placement::Host;
use longma_placement::cpus::CpuSet;
use longma_placement::hypervisor::{Domain, DomainEntry, DomainState, Hypervisor, HypervisorError, Pins};
use longma_placement::placement::Share;
use longma_placement::store::VmId;
use longma_topology::Machine;
use longma_topology::parts::LINE_BYTES;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Length of a tick in seconds. Rates are constant within a tick.
pub const TICK_S: f64 = 0.01;
/// Lines in flight per core if the L1 cache does not specify MSHRs: the value of Zen.
const LINES_IN_FLIGHT: u32 = 22;

/// Static properties of a host.
#[derive(Clone, Debug)]
struct HostProperties {
    host: Host,
    /// Bytes in flight per virtual CPU.
    in_flight: f64,
    /// Latency of an access in seconds. The row is the CPUs' node, the column the memory's node.
    latency: Vec<Vec<f64>>,
    /// Capacity in bytes per second of each memory controller, followed by each direction of each link.
    capacity: Vec<f64>,
    /// Links that an access uses, with row and column as above.
    routes: Vec<Vec<Vec<usize>>>,
}

impl HostProperties {
    fn of(machine: &Machine, host: &Host) -> Result<Self, String> {
        let layout = machine.layout().hosts.first().ok_or("the machine has no host")?;
        let part = &machine.hosts[layout.of];
        let nodes = layout.nodes.len();
        let stated = part.distances.as_ref().and_then(|d| d.latency.as_ref());
        let stated = stated.ok_or("the machine file has no latency between its nodes")?;
        let latency: Vec<Vec<f64>> =
            stated.rows.iter().map(|row| row.iter().map(|time| time.ps() as f64 / 1e12).collect()).collect();
        let mut capacity = Vec::new();
        for node in &layout.nodes {
            let peak = node
                .memories
                .iter()
                .filter_map(|name| machine.memories.get(name.as_str())?.peak_bytes_per_second());
            capacity.push(peak.sum::<u64>() as f64);
        }
        if capacity.contains(&0.0) {
            return Err("the machine file has no bandwidth of a node's memory".into());
        }
        let mut links = Vec::new();
        for link in &part.links {
            let ends: Vec<usize> =
                link.between.iter().filter_map(|end| end.strip_prefix("node")?.parse().ok()).collect();
            let (&[one, other], Some(rate)) = (&ends[..], link.bandwidth) else { continue };
            for path in [(one, other), (other, one)] {
                links.push((path, capacity.len()));
                capacity.push(rate.bytes_per_second(machine.cores[&layout.cores[0].core].clock) as f64);
            }
        }
        // Data flows from the memory to the CPUs.
        let routes = (0..nodes)
            .map(|cpus| (0..nodes).map(|memory| route(&links, nodes, memory, cpus)).collect())
            .collect();
        let first_level = layout.cores[0]
            .caches
            .iter()
            .filter_map(|at| machine.caches.get(layout.caches[*at].cache.as_str()));
        let (mut lines, mut line_bytes) = (None, LINE_BYTES);
        for cache in first_level.filter(|cache| cache.level == 1) {
            lines = lines.or(cache.mshrs);
            line_bytes = cache.line.bytes();
        }
        let in_flight = f64::from(lines.unwrap_or(LINES_IN_FLIGHT)) * line_bytes as f64;
        Ok(Self { host: host.clone(), in_flight, latency, capacity, routes })
    }

    fn cpus_of(&self, node: usize) -> f64 {
        self.host.nodes[node].cores.iter().map(CpuSet::len).sum::<usize>() as f64
    }

    fn node_index(&self, node: u32) -> Option<usize> {
        self.host.nodes.iter().position(|n| n.id == node)
    }

    /// Returns whether `cpus` contains any CPU of a node.
    fn allows(&self, cpus: &CpuSet, node: usize) -> bool {
        self.host.nodes[node].cores.iter().any(|core| core.intersects(cpus))
    }

    /// Bytes per second that one core reads without contention, given the fraction of its data on each node.
    fn uncontended_rate(&self, node: usize, parts: &[f64]) -> f64 {
        let mean: f64 = parts.iter().zip(&self.latency[node]).map(|(part, latency)| part * latency).sum();
        if mean > 0.0 { self.in_flight / mean } else { 0.0 }
    }
}

/// The links of a shortest path.
fn route(links: &[((usize, usize), usize)], nodes: usize, from: usize, to: usize) -> Vec<usize> {
    let mut paths: Vec<Option<Vec<usize>>> = vec![None; nodes];
    paths[from] = Some(Vec::new());
    let mut next = VecDeque::from([from]);
    while let Some(at) = next.pop_front() {
        for ((one, other), link) in links.iter().filter(|link| link.0.0 == at) {
            debug_assert_eq!(*one, at);
            if paths[*other].is_none() {
                let mut path = paths[at].clone().unwrap_or_default();
                path.push(*link);
                paths[*other] = Some(path);
                next.push_back(*other);
            }
        }
    }
    paths[to].clone().unwrap_or_default()
}

/// A flow of memory reads: at most `limit` bytes per second, where each byte uses the given amounts of the capacities.
struct ReadFlow {
    limit: f64,
    uses: Vec<(usize, f64)>,
}

/// Rate of each flow. All rates grow in proportion to their demand until a capacity is exhausted. The flows that use
/// this capacity then keep their rate, and the remaining ones continue to grow.
fn max_min_fair_rates(capacity: &[f64], flows: &[ReadFlow]) -> Vec<f64> {
    let mut left = capacity.to_vec();
    let mut parts = vec![0.0; flows.len()];
    let mut growing: Vec<usize> = (0..flows.len()).filter(|at| flows[*at].limit > 0.0).collect();
    let mut part = 0.0f64;
    while !growing.is_empty() {
        let mut demand = vec![0.0; left.len()];
        for flow in growing.iter().map(|at| &flows[*at]) {
            flow.uses.iter().for_each(|(resource, share)| demand[*resource] += flow.limit * share);
        }
        let headroom = |at: usize| if demand[at] > 0.0 { left[at] / demand[at] } else { f64::INFINITY };
        let step = (0..left.len()).map(headroom).fold(1.0 - part, f64::min).max(0.0);
        part += step;
        left.iter_mut().zip(&demand).for_each(|(left, demand)| *left -= step * demand);
        growing.iter().for_each(|at| parts[*at] = part);
        if part >= 1.0 - 1e-9 {
            break;
        }
        let full = |at: usize| demand[at] > 0.0 && left[at] <= 1e-9 * capacity[at];
        growing.retain(|at| !flows[*at].uses.iter().any(|(resource, share)| *share > 0.0 && full(*resource)));
    }
    flows.iter().zip(parts).map(|(flow, part)| flow.limit * part).collect()
}

#[derive(Clone, Debug)]
struct ModelledDomain {
    vm: VmId,
    pins: Pins,
    bound: Vec<u32>,
    running: bool,
    busy: bool,
    /// The nodes on which the domain's memory will be allocated at the start.
    shares: Vec<Vec<Share>>,
    /// MiB of each virtual node by host node.
    memory: Vec<Vec<f64>>,
    /// Current node of each virtual CPU.
    vcpu_nodes: Vec<usize>,
    cpu_s: f64,
    /// Bytes read so far.
    read: f64,
}

impl ModelledDomain {
    /// Fraction of its memory on each node.
    fn parts(&self) -> Vec<f64> {
        let nodes = self.memory.first().map_or(0, Vec::len);
        let sums: Vec<f64> = (0..nodes).map(|node| self.memory.iter().map(|cell| cell[node]).sum()).collect();
        let all: f64 = sums.iter().sum();
        sums.iter().map(|mib| if all > 0.0 { mib / all } else { 0.0 }).collect()
    }
}

/// Source and destination node of memory that is being moved.
type MemoryCopy = (usize, usize);

#[derive(Debug)]
struct HostModel {
    properties: HostProperties,
    domains: BTreeMap<String, ModelledDomain>,
    /// Number of ticks so far.
    ticks: u64,
    /// Virtual machines that become busy, with the tick.
    pending_busy: Vec<(u64, VmId)>,
    history: Vec<Tick>,
}

/// Events of one tick.
#[derive(Clone, Debug, Default)]
pub struct Tick {
    /// Bytes read by each virtual machine.
    pub read: BTreeMap<VmId, f64>,
    /// Fraction of the accesses of all virtual machines that were remote.
    pub remote: f64,
    /// Bytes of memory moved.
    pub moved: f64,
}

/// A modelled host. Clones share their state.
#[derive(Clone, Debug)]
pub struct ModelledHost {
    model: Arc<Mutex<HostModel>>,
}

impl ModelledHost {
    /// Models the first host of a machine file.
    ///
    /// # Errors
    /// If the file omits a required property.
    pub fn new(machine: &Machine, host: &Host) -> Result<Self, String> {
        let properties = HostProperties::of(machine, host)?;
        let model = HostModel {
            properties,
            domains: BTreeMap::new(),
            ticks: 0,
            pending_busy: Vec::new(),
            history: Vec::new(),
        };
        Ok(Self { model: Arc::new(Mutex::new(model)) })
    }

    fn model(&self) -> MutexGuard<'_, HostModel> {
        self.model.lock().ignore_poison()
    }

    /// Simulated time in seconds.
    pub fn now_s(&self) -> f64 {
        self.model().ticks as f64 * TICK_S
    }

    /// Makes the virtual CPUs of `vm` read memory continuously from `at_s` on. They are idle before.
    pub fn become_busy_at(&self, vm: VmId, at_s: f64) {
        self.model().pending_busy.push(((at_s / TICK_S).round() as u64, vm));
    }

    /// Advances time to `at_s`.
    pub fn advance_to(&self, at_s: f64) {
        let mut model = self.model();
        while (model.ticks as f64 + 0.5) * TICK_S < at_s {
            model.tick(&[]);
        }
    }

    /// The ticks so far in order.
    pub fn history(&self) -> Vec<Tick> {
        self.model().history.clone()
    }
}

impl HostModel {
    /// Simulates a tick in which memory moves between the nodes of `copies`. Returns the bytes moved for each.
    fn tick(&mut self, copies: &[MemoryCopy]) -> Vec<f64> {
        let due = self
            .pending_busy
            .iter()
            .filter(|(at, _)| *at <= self.ticks)
            .map(|(_, vm)| *vm)
            .collect::<Vec<_>>();
        self.domains.values_mut().for_each(|domain| domain.busy |= due.contains(&domain.vm));
        self.balance();
        let threads = self.threads();
        let nodes = self.properties.latency.len();
        let share = |node: usize| (self.properties.cpus_of(node) / threads[node].max(1.0)).min(1.0);
        let (mut flows, mut flow_owners) = (Vec::new(), Vec::new());
        for (name, domain) in self.domains.iter().filter(|(_, domain)| domain.running && domain.busy) {
            let parts = domain.parts();
            for node in 0..nodes {
                let count = domain.vcpu_nodes.iter().filter(|vcpu_nodes| **vcpu_nodes == node).count() as f64;
                if count == 0.0 {
                    continue;
                }
                let mut uses = Vec::new();
                for (memory, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
                    uses.push((memory, *part));
                    uses.extend(self.properties.routes[node][memory].iter().map(|link| (*link, *part)));
                }
                let limit = count * share(node) * self.properties.uncontended_rate(node, &parts);
                flows.push(ReadFlow { limit, uses });
                flow_owners.push((name.clone(), node, count * share(node)));
            }
        }
        for (from, to) in copies {
            let mut only = vec![0.0; nodes];
            only[*from] = 1.0;
            let path = self.properties.routes[*to][*from].iter().map(|link| (*link, 1.0));
            // Reads from one node and writes to the other.
            let uses = [(*from, 1.0), (*to, 1.0)].into_iter().chain(path).collect();
            flows.push(ReadFlow { limit: self.properties.uncontended_rate(*to, &only), uses });
        }
        let rates = max_min_fair_rates(&self.properties.capacity, &flows);
        let mut tick = Tick::default();
        let (mut all, mut remote) = (0.0, 0.0);
        for ((name, node, cpus), rate) in flow_owners.iter().zip(&rates) {
            let Some(domain) = self.domains.get_mut(name) else { continue };
            let bytes = rate * TICK_S;
            all += bytes;
            remote += bytes * (1.0 - domain.parts()[*node]);
            domain.read += bytes;
            domain.cpu_s += cpus * TICK_S;
            *tick.read.entry(domain.vm).or_default() += bytes;
        }
        let moved: Vec<f64> = rates[flow_owners.len()..].iter().map(|rate| rate * TICK_S).collect();
        tick.remote = if all > 0.0 { remote / all } else { 0.0 };
        tick.moved = moved.iter().sum();
        self.history.push(tick);
        self.ticks += 1;
        moved
    }

    /// Number of busy virtual CPUs on each node.
    fn threads(&self) -> Vec<f64> {
        let mut threads = vec![0.0; self.properties.latency.len()];
        for domain in self.domains.values().filter(|domain| domain.running && domain.busy) {
            domain.vcpu_nodes.iter().for_each(|node| threads[*node] += 1.0);
        }
        threads
    }

    /// The host's scheduler: moves threads off CPUs that they may not use, and threads that wait for a CPU to idle CPUs
    /// that they may use. It ignores memory locality.
    fn balance(&mut self) {
        let mut threads = self.threads();
        let properties = &self.properties;
        for domain in self.domains.values_mut().filter(|domain| domain.running) {
            for (vcpu_nodes, cpus) in domain.vcpu_nodes.iter_mut().zip(&domain.pins.vcpus) {
                let load = |node: usize| threads[node] / properties.cpus_of(node);
                let allowed = (0..threads.len()).filter(|node| properties.allows(cpus, *node));
                let Some(idlest) = allowed.min_by(|a, b| load(*a).total_cmp(&load(*b))) else { continue };
                let must = !properties.allows(cpus, *vcpu_nodes);
                let waits = domain.busy
                    && load(*vcpu_nodes) > 1.0
                    && threads[idlest] + 1.0 <= properties.cpus_of(idlest);
                if must || waits {
                    if domain.busy {
                        threads[*vcpu_nodes] -= 1.0;
                        threads[idlest] += 1.0;
                    }
                    *vcpu_nodes = idlest;
                }
            }
        }
    }

    /// Initial placement of a domain's virtual CPUs: each on the allowed node with the fewest.
    fn place_vcpus(&mut self, name: &str) {
        let mut all = vec![0.0; self.properties.latency.len()];
        for domain in self.domains.values().filter(|domain| domain.running) {
            domain.vcpu_nodes.iter().for_each(|node| all[*node] += 1.0);
        }
        let properties = &self.properties;
        let Some(domain) = self.domains.get_mut(name) else { return };
        domain.vcpu_nodes.clear();
        for cpus in &domain.pins.vcpus {
            let load = |node: usize| all[node] / properties.cpus_of(node);
            let allowed = (0..all.len()).filter(|node| properties.allows(cpus, *node));
            let node = allowed.min_by(|a, b| load(*a).total_cmp(&load(*b))).unwrap_or(0);
            all[node] += 1.0;
            domain.vcpu_nodes.push(node);
        }
    }
}

impl ModelledHost {
    fn change<T>(
        &self,
        what: &str,
        name: &str,
        change: impl FnOnce(&mut ModelledDomain) -> Result<T, String>,
    ) -> Result<T, HypervisorError> {
        let mut model = self.model();
        let domain = model.domains.get_mut(name).ok_or_else(|| "the domain does not exist".to_string());
        let changed = domain.and_then(change);
        changed.map_err(|why| HypervisorError::Refused { what: format!("{what} {name}"), why })
    }
}

impl Hypervisor for ModelledHost {
    fn list(&mut self) -> Result<Vec<DomainEntry>, HypervisorError> {
        // All domains belong to the same database.
        let listed = |(name, domain): (&String, &ModelledDomain)| DomainEntry {
            name: name.clone(),
            vm: Some(domain.vm),
            ..DomainEntry::default()
        };
        Ok(self.model().domains.iter().map(listed).collect())
    }

    fn inspect(&mut self, name: &str) -> Result<Option<DomainState>, HypervisorError> {
        let model = self.model();
        Ok(model.domains.get(name).map(|domain| {
            let mib = |node: usize| domain.memory.iter().map(|cell| cell[node]).sum::<f64>().round() as u64;
            let nodes = model.properties.host.nodes.iter().enumerate().map(|(at, node)| (node.id, at));
            let memory = nodes.map(|(id, at)| (id, mib(at))).filter(|(_, mib)| *mib > 0).collect();
            DomainState {
                vm: Some(domain.vm),
                running: domain.running,
                pins: domain.pins.clone(),
                bound: domain.bound.clone(),
                memory_mib: if domain.running { memory } else { BTreeMap::new() },
                ..DomainState::default()
            }
        }))
    }

    fn cpu_seconds(&mut self, name: &str) -> Result<Option<f64>, HypervisorError> {
        Ok(self.model().domains.get(name).map(|domain| domain.cpu_s))
    }

    fn define(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        let mut model = self.model();
        let nodes = model.properties.latency.len();
        let made = ModelledDomain {
            vm: domain.vm,
            pins: domain.pins.clone(),
            bound: domain.placement.bound.clone(),
            running: false,
            busy: false,
            shares: domain.placement.cells.iter().map(|cell| cell.memory.clone()).collect(),
            memory: vec![vec![0.0; nodes]; domain.placement.cells.len()],
            vcpu_nodes: Vec::new(),
            cpu_s: 0.0,
            read: 0.0,
        };
        model.domains.insert(domain.name.clone(), made);
        Ok(())
    }

    fn start(&mut self, name: &str) -> Result<(), HypervisorError> {
        let properties = self.model().properties.clone();
        self.change("start", name, |domain| {
            domain.running = true;
            for (cell, shares) in domain.memory.iter_mut().zip(&domain.shares) {
                cell.fill(0.0);
                for share in shares {
                    cell[properties.node_index(share.node).ok_or("no such node")?] += share.mib as f64;
                }
            }
            Ok(())
        })?;
        self.model().place_vcpus(name);
        Ok(())
    }

    fn stop(&mut self, name: &str) -> Result<(), HypervisorError> {
        if let Some(domain) = self.model().domains.get_mut(name) {
            domain.running = false;
        }
        Ok(())
    }

    fn undefine(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.model().domains.remove(name);
        Ok(())
    }

    fn pin_vcpu(&mut self, name: &str, vcpu: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.change("pin a virtual CPU of", name, |domain| {
            *domain.pins.vcpus.get_mut(vcpu as usize).ok_or("it has no such virtual CPU")? = cpus.clone();
            Ok(())
        })
    }

    fn pin_emulator(&mut self, name: &str, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.change("pin the emulator of", name, |domain| {
            domain.pins.emulator = cpus.clone();
            Ok(())
        })
    }

    fn bind_memory(&mut self, name: &str, nodes: &[u32]) -> Result<(), HypervisorError> {
        self.change("bind the memory of", name, |domain| {
            domain.bound = nodes.to_vec();
            Ok(())
        })
    }

    /// Returns when the memory is moved. All virtual machines keep running during this time.
    fn move_memory(&mut self, name: &str, cell: usize, shares: &[Share]) -> Result<(), HypervisorError> {
        let mut model = self.model();
        let refused = |why: &str| HypervisorError::Refused {
            what: format!("move the memory of {name}"),
            why: why.into(),
        };
        let mut wanted = vec![0.0; model.properties.latency.len()];
        for share in shares {
            wanted[model.properties.node_index(share.node).ok_or_else(|| refused("no such node"))?] +=
                share.mib as f64;
        }
        loop {
            let domain = model.domains.get_mut(name).ok_or_else(|| refused("the domain does not exist"))?;
            let memory = domain.memory.get_mut(cell).ok_or_else(|| refused("it has no such virtual node"))?;
            let surplus = |at: &usize| memory[*at] - wanted[*at] > 1e-6;
            let lack = |at: &usize| wanted[*at] - memory[*at] > 1e-6;
            let (from, to) = ((0..wanted.len()).find(surplus), (0..wanted.len()).find(lack));
            let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
            let limit = (memory[from] - wanted[from]).min(wanted[to] - memory[to]);
            let moved = model.tick(&[(from, to)])[0] / f64::from(1 << 20);
            if moved <= 0.0 {
                return Err(refused("nothing moves"));
            }
            if let Some(memory) = model.domains.get_mut(name).and_then(|domain| domain.memory.get_mut(cell)) {
                let moved = moved.min(limit);
                memory[from] -= moved;
                memory[to] += moved;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_capacities_are_shared_and_other_flows_are_not_limited() {
        let flow = |limit: f64, of: usize| ReadFlow { limit, uses: vec![(of, 1.0)] };
        let got = max_min_fair_rates(&[10.0, 100.0], &[flow(10.0, 0), flow(30.0, 0), flow(50.0, 1)]);
        assert!((got[0] - 2.5).abs() < 1e-9 && (got[1] - 7.5).abs() < 1e-9, "{got:?}");
        assert!((got[2] - 50.0).abs() < 1e-6, "{got:?}");
        let crossing = ReadFlow { limit: 10.0, uses: vec![(0, 0.5), (1, 0.5)] };
        let got = max_min_fair_rates(&[10.0, 100.0], &[crossing]);
        assert!((got[0] - 10.0).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn a_single_core_is_limited_by_its_lines_in_flight_and_the_latency() {
        let machine = Machine::open("hygon-8node").unwrap();
        let host = Host::of_machine(&machine, "h").unwrap();
        let properties = HostProperties::of(&machine, &host).unwrap();
        let mut parts = vec![0.0; 8];
        parts[0] = 1.0;
        let (own, neighbour, remote) = (
            properties.uncontended_rate(0, &parts),
            properties.uncontended_rate(1, &parts),
            properties.uncontended_rate(4, &parts),
        );
        assert!((own - 22.0 * 64.0 / 85e-9).abs() < 1.0, "{own}");
        assert!((own / neighbour - 140.0 / 85.0).abs() < 1e-9 && (own / remote - 240.0 / 85.0).abs() < 1e-9);
        assert_eq!(properties.routes[1][0].len(), 1);
        assert_eq!(properties.routes[0][4].len(), 1, "over the link between the sockets");
        assert_eq!(properties.routes[0][5].len(), 2, "and on to a neighbour");
        assert!(properties.routes[3][3].is_empty());
    }
}
