//! Handles a host that has lost a reserved resource: a CPU went offline, or memory or a device was removed. The host's
//! description keeps the lost resource until its reservation is released, so that the rest of the host stays usable.
//! The service moves the affected virtual machines.
//!
//! Source: Linux Documentation/core-api/cpu_hotplug.rst: threads bound to a CPU that goes offline run elsewhere.

use crate::cpus::CpuSet;
use crate::host::{Host, Node, Pool, cpus_for};
use crate::placement::{Placement, Tally};

/// A host's description with the resources that are lost but still reserved.
#[derive(Clone, Debug, PartialEq)]
pub struct RetainedHost {
    /// The description. Every existing reservation fits it.
    pub host: Host,
    /// One sentence per lost resource; empty if none is lost.
    pub lost: Vec<String>,
    /// CPUs that are lost but dedicated to a virtual machine, or that must stay idle for it.
    pub dedicated_cpus: CpuSet,
}

/// Returns the host `found`, extended by the lost resources that `placements` still reserve. `known` is the previous
/// description. `overcommit_percent` virtual CPUs may share a hundred CPUs.
pub fn retain_reserved(
    found: &Host,
    known: &Host,
    placements: &[Placement],
    overcommit_percent: u32,
) -> RetainedHost {
    let tally = sum(placements.iter().filter(|p| p.host == found.name));
    let mut retained = RetainedHost {
        host: Host { gone: CpuSet::new(), ..found.clone() },
        lost: Vec::new(),
        dedicated_cpus: CpuSet::new(),
    };
    retained.retain_nodes(known, &tally);
    retained.retain_dedicated_cpus(known, &tally);
    retained.retain_shared_cpus(known, &tally, overcommit_percent);
    retained.limit_foreign(&tally, overcommit_percent);
    retained.retain_memory(&tally);
    retained.retain_devices(known, &tally);
    retained
}

/// Describes a dedicated CPU that is now on another node because the CPUs were renumbered; `None` if there is none. No
/// description of the host can satisfy the reservation.
pub fn renumbered(found: &Host, placements: &[Placement]) -> Option<String> {
    let tally = sum(placements.iter().filter(|p| p.host == found.name));
    let elsewhere = |id: u32, cpu: u32| found.nodes.iter().find(|n| n.id != id && n.cpus().contains(cpu));
    tally.exclusive.iter().find_map(|(id, cpu)| {
        let now = elsewhere(*id, *cpu)?.id;
        Some(format!(
            "CPU {cpu} is dedicated to a virtual machine on node {id}, but it belongs to node {now}"
        ))
    })
}

fn sum<'a>(placements: impl Iterator<Item = &'a Placement>) -> Tally {
    let mut all = Tally::default();
    for one in placements.map(Placement::tally) {
        all.exclusive.extend(one.exclusive);
        one.shared.into_iter().for_each(|(node, n)| *all.shared.entry(node).or_default() += n);
        one.memory.into_iter().for_each(|(pool, mib)| *all.memory.entry(pool).or_default() += mib);
        one.devices.into_iter().for_each(|(name, n)| *all.devices.entry(name).or_default() += n);
    }
    all
}

fn all_cpus(host: &Host) -> CpuSet {
    host.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect()
}

/// Adds a CPU to its former core, or as a new core.
fn add_cpu(node: &mut Node, known: &Host, cpu: u32) {
    let core = known.nodes.iter().flat_map(|n| &n.cores).find(|core| core.contains(cpu));
    let siblings = core.and_then(|core| node.cores.iter_mut().find(|here| here.intersects(core)));
    match siblings {
        Some(core) => drop(core.insert(cpu)),
        None => node.cores.push([cpu].into_iter().collect()),
    }
}

impl RetainedHost {
    fn node(&mut self, id: u32) -> Option<&mut Node> {
        self.host.nodes.iter_mut().find(|n| n.id == id)
    }

    /// Adds lost nodes again, without CPUs and memory.
    fn retain_nodes(&mut self, known: &Host, tally: &Tally) {
        let used = tally.exclusive.iter().map(|e| e.0).chain(tally.shared.keys().copied());
        let used: Vec<u32> = used.chain(tally.memory.keys().map(|pool| pool.0)).collect();
        let lost = |n: &&Node| used.contains(&n.id) && !self.host.nodes.iter().any(|here| here.id == n.id);
        let lost: Vec<&Node> = known.nodes.iter().filter(lost).collect();
        if lost.is_empty() {
            return;
        }
        for node in lost {
            self.lost.push(format!(
                "node {} is missing, but virtual machines have resources reserved there",
                node.id
            ));
            let memory = node.memory.iter().map(|p| Pool { mib: 0, ..*p }).collect();
            self.host.nodes.push(Node { id: node.id, cores: Vec::new(), memory });
        }
        let before: Vec<u32> = self.host.nodes.iter().map(|n| n.id).collect();
        self.host.nodes.sort_by_key(|n| n.id);
        let old = std::mem::take(&mut self.host.distances);
        let index_of = |host: &Host, id: u32| host.nodes.iter().position(|n| n.id == id);
        let distance = |from: u32, to: u32| {
            let found = before.iter().position(|id| *id == from).zip(before.iter().position(|id| *id == to));
            let current = found.and_then(|(a, b)| old.get(a)?.get(b).copied());
            let previous = || {
                let (a, b) = index_of(known, from).zip(index_of(known, to))?;
                known.distances.get(a)?.get(b).copied()
            };
            // The defaults of Linux for unknown distances.
            current.or_else(previous).unwrap_or(if from == to { 10 } else { 20 })
        };
        let ids: Vec<u32> = self.host.nodes.iter().map(|n| n.id).collect();
        self.host.distances = ids.iter().map(|a| ids.iter().map(|b| distance(*a, *b)).collect()).collect();
    }

    fn retain_dedicated_cpus(&mut self, known: &Host, tally: &Tally) {
        for (id, cpu) in &tally.exclusive {
            let here = all_cpus(&self.host).contains(*cpu);
            if here && !self.host.reserved.contains(*cpu) {
                continue;
            }
            self.dedicated_cpus.insert(*cpu);
            self.host.gone.insert(*cpu);
            self.lost.push(match here {
                true => format!("CPU {cpu} of node {id} is dedicated to a virtual machine, but it is reserved for the host"),
                false => format!("CPU {cpu} of node {id} is dedicated to a virtual machine, but it is missing"),
            });
            self.host.reserved = self.host.reserved.difference(&[*cpu].into_iter().collect());
            if let Some(node) = self.node(*id).filter(|_| !here) {
                add_cpu(node, known, *cpu);
            }
        }
    }

    /// Adds back as many lost CPUs as the reserved virtual CPUs need to stay within the overcommit ratio, so that the
    /// node accepts no more of them. Adds another CPU for the host if it has none left.
    fn retain_shared_cpus(&mut self, known: &Host, tally: &Tally, percent: u32) {
        let own: CpuSet = tally.exclusive.iter().map(|e| e.1).collect();
        for (id, shared) in &tally.shared {
            let free = |host: &Host| {
                let cpus = host.nodes.iter().find(|n| n.id == *id).map(Node::cpus).unwrap_or_default();
                cpus.difference(&host.reserved).difference(&own).len() as u32
            };
            let before = free(&self.host);
            while *shared > free(&self.host).saturating_mul(percent) / 100 {
                if !self.restore_lost_cpu(known, Some(*id)) {
                    break;
                }
            }
            if free(&self.host) > before {
                self.lost.push(format!(
                    "node {id} has only {before} CPUs for {shared} virtual CPUs, which exceeds the \
                        overcommit ratio of {percent} %"
                ));
            }
        }
        if !tally.exclusive.is_empty() && all_cpus(&self.host).difference(&own).is_empty() {
            self.restore_lost_cpu(known, None);
            self.lost.push("no CPU is left for the host and its emulators".into());
        }
    }

    /// Adds back one lost CPU of `node`, or of any node if it is `None`. Returns false if there is none.
    fn restore_lost_cpu(&mut self, known: &Host, node: Option<u32>) -> bool {
        let here = all_cpus(&self.host);
        let lost_cpu = |n: &Node| {
            n.cpus().difference(&here).difference(&known.reserved).iter().next().map(|cpu| (n.id, cpu))
        };
        let of = known.nodes.iter().filter(|n| node.is_none_or(|id| id == n.id));
        let found = of.filter(|n| self.host.nodes.iter().any(|here| here.id == n.id)).find_map(lost_cpu);
        let Some((id, cpu)) = found else { return false };
        if let Some(node) = self.node(id) {
            add_cpu(node, known, cpu);
        }
        true
    }

    /// Counts fewer virtual CPUs of foreign domains on nodes that are too full for all of them.
    fn limit_foreign(&mut self, tally: &Tally, percent: u32) {
        let nodes: Vec<u32> = self.host.foreign.vcpus.keys().copied().collect();
        for id in nodes {
            let Some(node) = self.host.nodes.iter().find(|n| n.id == id) else { continue };
            let usable = node.cpus().difference(&self.host.reserved).len() as u32;
            let exclusive = tally.exclusive.iter().filter(|(node, _)| *node == id).count() as u32;
            let shared = tally.shared.get(&id).copied().unwrap_or(0);
            let left = usable.saturating_sub(exclusive).saturating_sub(cpus_for(shared, percent));
            let fitting = (u64::from(left) * u64::from(percent) / 100) as u32;
            if let Some(foreign) = self.host.foreign.vcpus.get_mut(&id).filter(|foreign| **foreign > fitting)
            {
                self.lost.push(format!(
                    "node {id} has CPUs for {fitting} more virtual CPUs, but domains that the service does not manage \
                        have {foreign}"
                ));
                *foreign = fitting;
            }
        }
    }

    fn retain_memory(&mut self, tally: &Tally) {
        for ((id, page_kib), mib) in &tally.memory {
            let Some(node) = self.node(*id) else { continue };
            let (before, lost) = match node.memory.iter_mut().find(|p| p.page_kib == *page_kib) {
                Some(pool) => {
                    let before = pool.mib;
                    pool.mib = before.max(*mib);
                    (before, before < *mib)
                }
                None => {
                    node.memory.push(Pool { page_kib: *page_kib, mib: *mib });
                    (0, true)
                }
            };
            if lost {
                self.lost.push(format!(
                    "node {id} has only {before} MiB in pages of {page_kib} KiB, but {mib} MiB are reserved"
                ));
            }
        }
    }

    fn retain_devices(&mut self, known: &Host, tally: &Tally) {
        for (name, slots) in &tally.devices {
            let current = self.host.devices.iter_mut().find(|d| d.name == *name);
            let before = current.as_ref().map_or(0, |d| d.slots);
            if before >= *slots {
                continue;
            }
            match (current, known.devices.iter().find(|d| d.name == *name)) {
                (Some(device), _) => device.slots = *slots,
                (None, Some(device)) => {
                    let node = device.node.filter(|id| self.host.nodes.iter().any(|n| n.id == *id));
                    self.host.devices.push(crate::host::Device { slots: *slots, node, ..device.clone() });
                }
                (None, None) => continue,
            }
            self.lost.push(format!("device {name} has only {before} slots, but {slots} are reserved"));
        }
    }
}
