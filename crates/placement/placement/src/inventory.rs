//! In-memory record of the reserved resources of each host. A placement is reserved or released as a whole, and a host
//! is never oversubscribed. `store` holds the durable copy.

use crate::host::{Host, HostError, MAX_POOLS, NodeLoad, cpus_for, foreign_cpus};
use crate::lifetime::{self, Lifetime};
use crate::placement::Placement;
use crate::shape::{Bits, Shape};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Whether a host accepts new virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HostStatus {
    /// The host accepts them.
    #[default]
    Up,
    /// The host keeps its virtual machines but accepts no new ones.
    Draining,
    /// Like [`HostStatus::Draining`], and its virtual machines are moved to other hosts.
    Emptying,
    /// The host's agent has stopped reporting.
    Down,
    /// An operator has declared the host dead.
    ForcedDown,
}

/// A placement that cannot be reserved or released: its resources are taken, or it does not match the host's
/// description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host {host}: {problem}")]
pub struct ReserveError {
    /// Name of the host.
    pub host: String,
    /// The resources in conflict, with numbers.
    pub problem: String,
}

/// Reservations on one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeState {
    /// CPUs reserved for the host, dedicated to a virtual machine, offline, or removed.
    pub taken: Bits,
    pub free_cpus: u16,
    /// Cores with no taken thread.
    pub free_cores: u16,
    /// Virtual CPUs that share the remaining CPUs.
    pub shared: u32,
    /// Virtual CPUs of foreign domains, which also share the remaining CPUs.
    pub foreign_vcpus: u32,
    pub used_mib: [u32; MAX_POOLS],
    /// CPU and memory load in steps of 1/32. The coarse steps keep small fluctuations from invalidating cached
    /// decisions.
    pub load: [u8; 2],
    /// Number of virtual machines whose lifetime is not known.
    pub endless: u16,
    /// Class of the longest remaining lifetime on the node.
    pub lifetime_class: u8,
}

/// Number of load steps.
pub(crate) const LOAD_STEPS: f32 = 32.0;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostState {
    pub name: Arc<str>,
    pub shape: Arc<Shape>,
    pub status: HostStatus,
    pub nodes: Box<[NodeState]>,
    /// Slots in use of each device.
    pub devices: Box<[u16]>,
    pub vms: u32,
    /// Group memberships of these virtual machines.
    pub members: u32,
    pub free: FreeCapacity,
    /// Expected lifetimes of the virtual machines that have one, with masks of their nodes.
    pub lifetimes: Vec<(Lifetime, u64)>,
}

/// The largest free amounts on any node, cached so that most hosts that are too full for a large request are rejected
/// without examining their nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FreeCapacity {
    pub node_cpus: u16,
    /// Largest free memory of a node in ordinary pages, MiB.
    pub node_mib: u32,
    /// Free memory of all nodes in ordinary pages, MiB.
    pub host_mib: u64,
    /// Shared virtual CPUs that all nodes can still carry.
    pub host_vcpus: u32,
}

/// A group member: its host's index and a bit mask of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub host: u32,
    pub nodes: u64,
}

/// Interval at which the lifetime classes of all hosts are updated, seconds.
const CLASSIFYING_INTERVAL_S: i64 = 60;

/// All hosts with their reservations.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub(crate) hosts: Vec<HostState>,
    by_name: FxHashMap<Arc<str>, u32>,
    shapes: FxHashMap<u64, Vec<Arc<Shape>>>,
    pub(crate) groups: FxHashMap<String, Vec<Member>>,
    /// Shared virtual CPUs (policies `range` and `none`) allowed per hundred free CPUs.
    pub(crate) overcommit_percent: u32,
    /// Current time, seconds since 1970.
    now_s: i64,
    /// When the lifetime classes of all hosts were last updated.
    classified_s: i64,
}

/// Reservations on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostUse {
    /// Number of virtual machines.
    pub vms: u32,
    /// Reservations of each node.
    pub nodes: Vec<NodeUse>,
    /// Names of devices, with the number of virtual machines that have each.
    pub devices: Vec<(String, u32)>,
}

/// Reservations on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeUse {
    /// The operating system's node number.
    pub node: u32,
    /// CPUs available to virtual machines.
    pub cpus: u32,
    /// CPUs of these that are dedicated to a virtual machine.
    pub exclusive: u32,
    /// Virtual CPUs that share the rest.
    pub shared: u32,
    /// For each page size: the size in KiB, the total in MiB, and the reserved part in MiB.
    pub memory: Vec<(u32, u64, u64)>,
    /// Last reported load, rounded to steps of 1/32.
    pub load: NodeLoad,
}

impl NodeState {
    fn new(shape: &crate::shape::NodeShape) -> Self {
        let taken = shape.reserved.or(shape.gone);
        let (free_cpus, free_cores) = (shape.cpus.len() as u16 - taken.count(), shape.usable_cores);
        let foreign_vcpus = shape.foreign_vcpus;
        Self {
            taken,
            free_cpus,
            free_cores,
            shared: 0,
            foreign_vcpus,
            used_mib: [0; MAX_POOLS],
            load: [0; 2],
            endless: 0,
            lifetime_class: 0,
        }
    }

    /// Number of shared virtual CPUs allowed on the node after `exclusive` more CPUs are dedicated, at `percent` virtual
    /// CPUs per hundred CPUs.
    pub fn capacity(&self, exclusive: u32, percent: u32) -> u32 {
        let foreign = foreign_cpus(self.foreign_vcpus, percent);
        u32::from(self.free_cpus).saturating_sub(exclusive).saturating_sub(foreign) * percent / 100
    }

    /// Number of CPUs that can still be dedicated: the others must suffice for the shared virtual CPUs.
    pub fn spare_cpus(&self, shape: &crate::shape::NodeShape, percent: u32) -> u32 {
        let needed_for_shared =
            cpus_for(self.shared, percent).saturating_add(foreign_cpus(self.foreign_vcpus, percent));
        let not_pinned = shape.cpus.len() as u32 - u32::from(self.taken.or(shape.foreign).count());
        u32::from(self.free_cpus).saturating_sub(needed_for_shared).min(not_pinned)
    }
}

impl HostState {
    fn new(name: Arc<str>, shape: Arc<Shape>, percent: u32) -> Self {
        let nodes = shape.nodes.iter().map(NodeState::new).collect();
        let devices = vec![0; shape.devices.len()].into();
        let (status, free) = (HostStatus::Up, FreeCapacity::default());
        let lifetimes = Vec::new();
        let mut host = Self { name, nodes, devices, shape, status, vms: 0, members: 0, free, lifetimes };
        host.update_free_capacity(percent);
        host
    }

    fn update_free_capacity(&mut self, percent: u32) {
        let mut free = FreeCapacity::default();
        for (shape, state) in self.shape.nodes.iter().zip(&*self.nodes) {
            let mib = shape.pools[0].mib - u64::from(state.used_mib[0]);
            free.node_cpus = free.node_cpus.max(state.free_cpus);
            free.node_mib = free.node_mib.max(mib as u32);
            free.host_mib += mib;
            free.host_vcpus += state.capacity(0, percent).saturating_sub(state.shared);
        }
        self.free = free;
    }

    /// Nodes that a placement uses, as a mask.
    fn nodes_of(&self, placement: &Placement) -> u64 {
        let shares = placement.cells.iter().flat_map(|cell| &cell.memory).chain(&placement.overhead);
        let nodes = placement.cells.iter().map(|cell| cell.node).chain(shares.map(|share| share.node));
        nodes.filter_map(|node| self.shape.node(node)).fold(0, |mask, n| mask | 1 << n)
    }

    /// Adds the lifetime of a placement, or removes it.
    fn count_lifetime(&mut self, placement: &Placement, is_added: bool, now_s: i64) {
        let mask = self.nodes_of(placement);
        match placement.lifetime {
            Some(lifetime) if is_added => self.lifetimes.push((lifetime, mask)),
            Some(lifetime) => {
                let found = self.lifetimes.iter().position(|one| *one == (lifetime, mask));
                found.map(|at| self.lifetimes.swap_remove(at));
            }
            None => {
                for (_, node) in self.nodes.iter_mut().enumerate().filter(|(at, _)| mask >> at & 1 == 1) {
                    node.endless = if is_added { node.endless + 1 } else { node.endless.saturating_sub(1) };
                }
            }
        }
        self.update_lifetime_classes(now_s);
    }

    /// Updates the lifetime class of each node. Returns whether any has changed.
    fn update_lifetime_classes(&mut self, now_s: i64) -> bool {
        let mut changed = false;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let here = self.lifetimes.iter().filter(|(_, mask)| mask >> at & 1 == 1);
            let class = match node.endless {
                0 => here.map(|(one, _)| lifetime::class(one.remaining_s(now_s))).max().unwrap_or(0),
                _ => lifetime::MAX_CLASS,
            };
            changed |= class != node.lifetime_class;
            node.lifetime_class = class;
        }
        changed
    }

    /// CPUs of the whole host that are not dedicated to a virtual machine.
    pub fn undedicated_cpus(&self) -> u32 {
        let free: u32 = self.nodes.iter().map(|n| u32::from(n.free_cpus)).sum();
        let reserved = |n: &crate::shape::NodeShape| n.cpus.len() as u32 - u32::from(n.usable);
        free + self.shape.nodes.iter().map(reserved).sum::<u32>()
    }
}

impl Inventory {
    /// Creates an inventory without hosts. It allows `overcommit_percent` shared virtual CPUs (policies `range` and
    /// `none`) per hundred CPUs.
    pub fn new(overcommit_percent: u32) -> Self {
        Self {
            hosts: Vec::new(),
            by_name: FxHashMap::default(),
            shapes: FxHashMap::default(),
            groups: FxHashMap::default(),
            overcommit_percent,
            now_s: i64::MIN / 2,
            classified_s: i64::MIN / 2,
        }
    }

    /// Number of hosts.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns whether the inventory has no hosts.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Names of the hosts in insertion order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.indices().map(|at| &*self.hosts[at].name)
    }

    /// Names of the hosts with this status.
    pub fn hosts_with_status(&self, status: HostStatus) -> Vec<String> {
        let with = self.indices().map(|at| &self.hosts[at]).filter(|host| host.status == status);
        with.map(|host| host.name.to_string()).collect()
    }

    /// Indices of the hosts, without removed ones.
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> {
        (0..self.hosts.len()).filter(|at| self.find(&self.hosts[*at].name) == Some(*at))
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).map(|i| *i as usize)
    }

    /// Adds a host, or replaces its description. Replacing drops the host's reservations: the caller must take its
    /// placements again.
    ///
    /// # Errors
    /// If the description is inconsistent.
    pub fn put_host(&mut self, host: &Host) -> Result<usize, HostError> {
        host.check()?;
        let shape = Shape::of(host);
        let known = self.shapes.entry(shape.fingerprint()).or_default();
        let shape = match known.iter().find(|s| ***s == shape) {
            Some(known) => known.clone(),
            None => {
                let shape = Arc::new(shape);
                known.push(shape.clone());
                shape
            }
        };
        if let Some(at) = self.find(&host.name) {
            self.clear_reservations(at, shape);
            return Ok(at);
        }
        let name: Arc<str> = host.name.as_str().into();
        self.by_name.insert(name.clone(), self.hosts.len() as u32);
        self.hosts.push(HostState::new(name, shape, self.overcommit_percent));
        Ok(self.hosts.len() - 1)
    }

    /// Removes a host and its reservations. Returns its index, which no other host uses: indices are positions in cached
    /// rankings.
    pub fn remove_host(&mut self, name: &str) -> Option<usize> {
        let at = self.clear_host(name)?;
        self.hosts[at].status = HostStatus::Down;
        self.by_name.remove(name);
        Some(at)
    }

    /// Drops all reservations of a host, so that the caller can take them again from a store.
    pub fn clear_host(&mut self, name: &str) -> Option<usize> {
        let at = self.find(name)?;
        self.clear_reservations(at, self.hosts[at].shape.clone());
        Some(at)
    }

    /// Drops all reservations of a host. Keeps its status and, if the number of nodes is unchanged, their load.
    fn clear_reservations(&mut self, at: usize, shape: Arc<Shape>) {
        self.remove_members(at);
        let old = &self.hosts[at];
        let mut new = HostState::new(old.name.clone(), shape, self.overcommit_percent);
        new.status = old.status;
        if new.nodes.len() == old.nodes.len() {
            for (new, old) in new.nodes.iter_mut().zip(&old.nodes) {
                new.load = old.load;
            }
        }
        self.hosts[at] = new;
    }

    fn remove_members(&mut self, host: usize) {
        if self.hosts[host].members == 0 {
            return;
        }
        self.groups.retain(|_, members| {
            members.retain(|m| m.host as usize != host);
            !members.is_empty()
        });
    }

    /// Returns the reservations on a host.
    pub fn usage(&self, name: &str) -> Option<HostUse> {
        let host = &self.hosts[self.find(name)?];
        let node = |(shape, state): (&crate::shape::NodeShape, &NodeState)| {
            let used = shape.pools.iter().zip(state.used_mib);
            NodeUse {
                node: shape.id,
                cpus: shape.usable.into(),
                exclusive: u32::from(shape.usable - state.free_cpus),
                shared: state.shared,
                memory: used.map(|(p, used)| (p.page_kib, p.mib, used.into())).collect(),
                load: NodeLoad {
                    cpu: f32::from(state.load[0]) / LOAD_STEPS,
                    memory: f32::from(state.load[1]) / LOAD_STEPS,
                },
            }
        };
        let nodes = host.shape.nodes.iter().zip(&host.nodes).map(node).collect();
        let devices = host.shape.devices.iter().zip(&*host.devices);
        let devices = devices.map(|(device, used)| (device.name.clone(), (*used).into())).collect();
        Some(HostUse { vms: host.vms, nodes, devices })
    }

    /// Records the load of a host's nodes. Returns whether any stored value changed.
    pub(crate) fn set_load(&mut self, at: usize, loads: &[NodeLoad]) -> bool {
        let mut changed = false;
        for (node, load) in self.hosts[at].nodes.iter_mut().zip(loads) {
            for (kept, new) in node.load.iter_mut().zip([load.cpu, load.memory]) {
                let new = if new.is_finite() { new.clamp(0.0, 1.0) * LOAD_STEPS } else { 0.0 };
                // Hysteresis: a change of less than three quarters of a step is ignored, so a load at the edge of a
                // step does not flap.
                if (new - f32::from(*kept)).abs() > 0.75 {
                    *kept = new.round() as u8;
                    changed = true;
                }
            }
        }
        changed
    }

    /// Current time as last set, seconds since 1970.
    pub(crate) fn now_s(&self) -> i64 {
        self.now_s
    }

    /// Sets the current time. Returns the hosts on which the remaining lifetime of a node is now of another class.
    pub(crate) fn set_time(&mut self, now_s: i64) -> Vec<usize> {
        self.now_s = now_s;
        if now_s < self.classified_s + CLASSIFYING_INTERVAL_S {
            return Vec::new();
        }
        self.classified_s = now_s;
        let known = self.hosts.iter_mut().enumerate().filter(|(_, host)| !host.lifetimes.is_empty());
        known.filter_map(|(at, host)| host.update_lifetime_classes(now_s).then_some(at)).collect()
    }

    /// Returns the group member that a placement represents, or `None` if its host is unknown.
    pub(crate) fn member(&self, placement: &Placement) -> Option<Member> {
        let at = self.find(&placement.host)?;
        let nodes = placement.cells.iter().filter_map(|c| self.hosts[at].shape.node(c.node));
        Some(Member { host: at as u32, nodes: nodes.fold(0, |mask, n| mask | 1 << n) })
    }

    /// Reserves all resources of `placement`, or none. Returns the host's index.
    ///
    /// # Errors
    /// If the host is unknown or a resource is already taken.
    pub fn reserve(&mut self, placement: &Placement) -> Result<usize, ReserveError> {
        let fail = |problem: String| ReserveError { host: placement.host.clone(), problem };
        let at = self.find(&placement.host).ok_or_else(|| fail("is not known".into()))?;
        let percent = self.overcommit_percent;
        let mut host = self.hosts[at].clone();
        let mut mask = 0;
        for cell in &placement.cells {
            mask |= 1 << host.shape.node(cell.node).ok_or_else(|| fail(format!("no node {}", cell.node)))?;
        }
        add(&mut host, placement, percent).map_err(fail)?;
        host.vms += 1;
        host.members += placement.groups.len() as u32;
        host.count_lifetime(placement, true, self.now_s);
        host.update_free_capacity(self.overcommit_percent);
        self.hosts[at] = host;
        for group in &placement.groups {
            let members = self.groups.entry(group.clone()).or_default();
            members.push(Member { host: at as u32, nodes: mask });
        }
        Ok(at)
    }

    /// Releases the resources that `placement` reserved. Returns the host's index.
    ///
    /// # Errors
    /// The placement was not reserved; nothing is released.
    pub fn release(&mut self, placement: &Placement) -> Result<usize, ReserveError> {
        let fail = |problem: String| ReserveError { host: placement.host.clone(), problem };
        let at = self.find(&placement.host).ok_or_else(|| fail("is not known".into()))?;
        let mut host = self.hosts[at].clone();
        subtract(&mut host, placement).map_err(fail)?;
        host.vms = host.vms.saturating_sub(1);
        host.members = host.members.saturating_sub(placement.groups.len() as u32);
        host.count_lifetime(placement, false, self.now_s);
        host.update_free_capacity(self.overcommit_percent);
        self.hosts[at] = host;
        let member = self.member(placement);
        for group in &placement.groups {
            if let (Some(members), Some(member)) = (self.groups.get_mut(group), member) {
                if let Some(found) = members.iter().position(|m| *m == member) {
                    members.swap_remove(found);
                }
                if members.is_empty() {
                    self.groups.remove(group);
                }
            }
        }
        Ok(at)
    }
}

fn cpu_index(shape: &Shape, node: u32, cpu: u32) -> Result<(usize, usize), String> {
    let n = shape.node(node).ok_or_else(|| format!("no node {node}"))?;
    let at = shape.nodes[n].cpus.iter().position(|c| *c == cpu);
    at.map(|at| (n, at)).ok_or_else(|| format!("CPU {cpu} is not on node {node}"))
}

fn core_is_free(host: &HostState, node: usize, at: usize) -> Option<bool> {
    let core = host.shape.nodes[node].cores.iter().find(|c| (c.0..c.0 + c.1).contains(&(at as u16)))?;
    let occupied = host.nodes[node].taken.or(host.shape.nodes[node].foreign);
    Some(occupied.none_of(core.0.into(), core.1.into()))
}

fn add(host: &mut HostState, placement: &Placement, percent: u32) -> Result<(), String> {
    let tally = placement.tally();
    let shape = host.shape.clone();
    let mut touched = Vec::new();
    for (node, cpu) in tally.exclusive {
        let (n, at) = cpu_index(&shape, node, cpu)?;
        if shape.nodes[n].gone.get(at) {
            // An offline or removed CPU counts as taken until its owner is deleted, so it is skipped here.
            continue;
        }
        if host.nodes[n].taken.get(at) {
            return Err(format!("CPU {cpu} is taken"));
        }
        if core_is_free(host, n, at) == Some(true) {
            host.nodes[n].free_cores -= 1;
        }
        host.nodes[n].taken.set(at, true);
        host.nodes[n].free_cpus -= 1;
        touched.push(n);
    }
    for (node, vcpus) in tally.shared {
        let n = shape.node(node).ok_or_else(|| format!("no node {node}"))?;
        host.nodes[n].shared += vcpus;
        touched.push(n);
    }
    for n in touched {
        let (state, id) = (&host.nodes[n], shape.nodes[n].id);
        let capacity = state.capacity(0, percent);
        if state.shared > capacity {
            return Err(format!(
                "node {id} would carry {} virtual CPUs; its capacity is {capacity}",
                state.shared
            ));
        }
    }
    for ((node, page_kib), mib) in tally.memory {
        let n = shape.node(node).ok_or_else(|| format!("no node {node}"))?;
        let pool = shape.nodes[n].pools.iter().position(|p| p.page_kib == page_kib);
        let pool = pool.ok_or_else(|| format!("node {node} has no pages of {page_kib} KiB"))?;
        let used = u64::from(host.nodes[n].used_mib[pool]) + mib;
        let total = shape.nodes[n].pools[pool].mib;
        if used > total {
            return Err(format!(
                "node {node} would hold {used} MiB in pages of {page_kib} KiB; it has {total}"
            ));
        }
        host.nodes[n].used_mib[pool] = used as u32;
    }
    for (name, count) in tally.devices {
        let device = shape.devices.iter().position(|d| d.name == name);
        let device = device.ok_or_else(|| format!("no device {name}"))?;
        let used = u32::from(host.devices[device]) + count;
        if used > shape.devices[device].slots {
            return Err(format!("device {name} is taken"));
        }
        host.devices[device] = used as u16;
    }
    if host.undedicated_cpus() == 0 {
        return Err("no CPU would be left for the host and emulators".into());
    }
    Ok(())
}

fn subtract(host: &mut HostState, placement: &Placement) -> Result<(), String> {
    let tally = placement.tally();
    let shape = host.shape.clone();
    for (node, cpu) in tally.exclusive {
        let (n, at) = cpu_index(&shape, node, cpu)?;
        if shape.nodes[n].gone.get(at) {
            continue;
        }
        if !host.nodes[n].taken.get(at) || shape.nodes[n].reserved.get(at) {
            return Err(format!("CPU {cpu} was not taken"));
        }
        host.nodes[n].taken.set(at, false);
        host.nodes[n].free_cpus += 1;
        if core_is_free(host, n, at) == Some(true) {
            host.nodes[n].free_cores += 1;
        }
    }
    for (node, vcpus) in tally.shared {
        let n = shape.node(node).ok_or_else(|| format!("no node {node}"))?;
        let remaining = host.nodes[n].shared.checked_sub(vcpus);
        host.nodes[n].shared =
            remaining.ok_or_else(|| format!("node {node} does not carry {vcpus} virtual CPUs"))?;
    }
    for ((node, page_kib), mib) in tally.memory {
        let n = shape.node(node).ok_or_else(|| format!("no node {node}"))?;
        let pool = shape.nodes[n].pools.iter().position(|p| p.page_kib == page_kib);
        let used = pool.and_then(|p| u64::from(host.nodes[n].used_mib[p]).checked_sub(mib).map(|u| (p, u)));
        let (pool, used) = used.ok_or_else(|| format!("node {node} does not hold {mib} MiB for it"))?;
        host.nodes[n].used_mib[pool] = used as u32;
    }
    for (name, count) in tally.devices {
        let device = shape.devices.iter().position(|d| d.name == name);
        let used = device.and_then(|d| u32::from(host.devices[d]).checked_sub(count).map(|u| (d, u)));
        let (device, used) = used.ok_or_else(|| format!("device {name} was not taken"))?;
        host.devices[device] = used as u16;
    }
    Ok(())
}
