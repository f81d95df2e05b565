//! Measures memory fragmentation: how much free memory is in pieces that no commonly requested size fits. Plans moves
//! between the nodes of a host that reduce it; the plan is a dry run.
//!
//! Source: measuring fragmentation against the requested sizes follows Weng et al., "Beware of Fragmentation:
//! Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023).

use crate::inventory::{HostUse, Inventory};
use crate::placement::Placement;
use crate::request::CpuPolicy;
use crate::scheduler::Scheduler;
use crate::store::{Vm, VmId, VmState};
use serde::{Deserialize, Serialize};

/// A common size of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub mib: u64,
}

/// Default sizes: 4 GiB per virtual CPU.
pub const COMMON_SIZES: [Size; 4] = [
    Size { vcpus: 2, mib: 8192 },
    Size { vcpus: 4, mib: 16384 },
    Size { vcpus: 8, mib: 32768 },
    Size { vcpus: 16, mib: 65536 },
];

/// Returns the host's free memory, and the part that virtual machines of this size could use. Each must fit on one
/// node.
fn usable(usage: &HostUse, size: Size, percent: u32) -> (u64, u64) {
    usage.nodes.iter().fold((0, 0), |(free, usable), node| {
        let cpus = ((node.cpus - node.exclusive) * percent / 100).saturating_sub(node.shared);
        let left = node.memory.first().map_or(0, |m| m.1 - m.2);
        let fitting = u64::from(cpus / size.vcpus.max(1)).min(left / size.mib.max(1));
        (free + left, usable + fitting * size.mib)
    })
}

/// Fraction of the hosts' free memory that is unusable for virtual machines of the given sizes, from 0 to 1, averaged
/// over the sizes.
pub fn score<'a>(hosts: impl IntoIterator<Item = &'a HostUse> + Clone, sizes: &[Size], percent: u32) -> f64 {
    let lost = |size: &Size| {
        let each = hosts.clone().into_iter().map(|h| usable(h, *size, percent));
        let (free, usable) = each.fold((0, 0), |sum, h| (sum.0 + h.0, sum.1 + h.1));
        if free == 0 { 0.0 } else { 1.0 - usable as f64 / free as f64 }
    };
    sizes.iter().map(lost).sum::<f64>() / sizes.len().max(1) as f64
}

/// Fragmentation score of all hosts of an inventory.
pub fn inventory_score(inventory: &Inventory, sizes: &[Size], percent: u32) -> f64 {
    let usage: Vec<HostUse> = inventory.names().filter_map(|name| inventory.usage(name)).collect();
    score(&usage, sizes, percent)
}

/// A sequence of moves that reduces fragmentation of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Virtual machines and their new placements, in order.
    pub moves: Vec<(VmId, Placement)>,
    /// Score before and after the moves.
    pub score: (f64, f64),
}

/// Plans up to `max_moves` moves between the nodes of `host`, greedily by the largest reduction of the score. Virtual
/// machines with exclusive CPUs and those that are not running are not moved.
///
/// Each target is free while the virtual machine still occupies its old node, so every move is possible while it runs.
pub fn plan(scheduler: &Scheduler, host: &str, vms: &[Vm], sizes: &[Size], max_moves: usize) -> Plan {
    let percent = scheduler.policy().overcommit_percent;
    let mut scheduler = scheduler.clone();
    let score_of = |s: &Scheduler| s.inventory().usage(host).map_or(0.0, |u| score([&u], sizes, percent));
    let before = score_of(&scheduler);
    let mut current = before;
    let mut moves: Vec<(VmId, Placement)> = Vec::new();
    let nodes: Vec<u32> = scheduler
        .inventory()
        .usage(host)
        .map(|u| u.nodes.iter().map(|n| n.node).collect())
        .unwrap_or_default();
    let mut candidates: Vec<(&Vm, Placement)> = vms
        .iter()
        .filter(|vm| vm.state == VmState::Running)
        .filter_map(|vm| {
            Some((vm, vm.placement.clone().filter(|p| p.host == host && p.cpu != CpuPolicy::Exclusive)?))
        })
        .collect();
    while moves.len() < max_moves {
        let mut best: Option<(f64, usize, Placement)> = None;
        for (at, (vm, place)) in candidates.iter().enumerate().filter(|(_, (_, p))| p.cells.len() == 1) {
            for node in nodes.iter().filter(|n| **n != place.cells[0].node) {
                let own = [place].into_iter().chain(&vm.target);
                let Some(target) = scheduler.decide_on(&vm.request, host, &[*node], own) else { continue };
                let mut after_move = scheduler.clone();
                if after_move.reserve(&target).is_err() || after_move.release(place).is_err() {
                    continue;
                }
                let score = score_of(&after_move);
                if score < best.as_ref().map_or(current, |b| b.0) - 1e-9 {
                    best = Some((score, at, target));
                }
            }
        }
        let Some((score, at, target)) = best else { break };
        if scheduler.reserve(&target).is_err() || scheduler.release(&candidates[at].1).is_err() {
            break;
        }
        current = score;
        moves.push((candidates[at].0.id, target.clone()));
        candidates[at].1 = target;
    }
    Plan { moves, score: (before, current) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::request::{Level, Membership, Relation, Request};
    use crate::scheduler::Policy;
    use crate::store::Intent;
    use longma_topology::Machine;

    /// One virtual machine on each node of host h. If `are_grouped`, they are in an anti-affinity group by node.
    fn scattered(are_grouped: bool) -> (Scheduler, Vec<Vm>) {
        let host = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        let mut scheduler = Scheduler::new(Policy::default(), 1);
        scheduler.put_host(&host).unwrap();
        let (group, relation, level) = ("g".to_string(), Relation::AntiAffinity, Level::Node);
        let groups = if are_grouped { vec![Membership { group, relation, level }] } else { Vec::new() };
        let place = |node: u32| {
            let id = i64::from(node);
            let request = Request { groups: groups.clone(), ..Request::new(&format!("v{id}"), 1, 2048) };
            let placement = scheduler.decide_on(&request, "h", &[node], None).unwrap();
            scheduler.reserve(&placement).unwrap();
            let (state, placement) = (VmState::Running, Some(placement));
            Vm {
                id,
                request,
                state,
                intent: Intent::Run,
                placement,
                target: None,
                problem: None,
                version: 1,
                created_at: 0,
            }
        };
        let vms = (0..8).map(place).collect();
        (scheduler, vms)
    }

    #[test]
    fn few_moves_defragment_a_scattered_host() {
        let (scheduler, vms) = scattered(false);
        let plan = super::plan(&scheduler, "h", &vms, &COMMON_SIZES, 20);
        assert!(plan.score.1 < plan.score.0 / 2.0, "{:?}", plan.score);
        assert!((1..=7).contains(&plan.moves.len()));
        let empty = Scheduler::new(Policy::default(), 1);
        assert_eq!(super::plan(&empty, "h", &vms, &COMMON_SIZES, 20).moves, []);
        assert_eq!(scheduler.inventory().usage("h").unwrap().vms, 8, "a dry run");
    }

    #[test]
    fn stopped_virtual_machines_are_not_moved() {
        let (scheduler, mut vms) = scattered(false);
        for vm in &mut vms[1..] {
            vm.state = VmState::Stopped;
        }
        let plan = super::plan(&scheduler, "h", &vms, &COMMON_SIZES, 20);
        assert!(plan.moves.iter().all(|(vm, _)| *vm == 0), "{plan:?}");
    }

    #[test]
    fn members_of_an_anti_affinity_group_are_not_packed_together() {
        let (scheduler, vms) = scattered(true);
        assert_eq!(super::plan(&scheduler, "h", &vms, &COMMON_SIZES, 20).moves, []);
    }
}
