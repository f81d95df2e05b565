//! Decides which virtual machine to move between the nodes of its host to even out the load. A minimum gain, a minimum
//! interval and a rest period prevent oscillation. `reconcile::move_vm` makes the move.
//!
//! Source: VMware's documentation of Numa.RebalancePeriod (2 s) and Numa.MigImbalanceThreshold (10 %) for the defaults.

use crate::host::Host;
use crate::placement::Placement;
use crate::request::CpuPolicy;
use crate::scheduler::Scheduler;
use crate::store::{Vm, VmId, VmState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When to move virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchPolicy {
    /// Minimum difference between the highest and the lowest node load (0 to 1) that triggers a move.
    pub imbalance: f64,
    /// Fraction of the difference that a move must remove.
    pub gain: f64,
    /// Minimum number of seconds between two moves on a host.
    pub period_s: u64,
    /// Number of seconds before a moved virtual machine may be moved again.
    pub rest_s: u64,
    /// Whether virtual machines with exclusive CPUs are moved.
    pub exclusive: bool,
}

impl Default for SwitchPolicy {
    fn default() -> Self {
        Self { imbalance: 0.10, gain: 0.25, period_s: 2, rest_s: 60, exclusive: false }
    }
}

/// A move that reduces the imbalance.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// ID of the virtual machine.
    pub vm: VmId,
    /// New placement.
    pub target: Placement,
    /// Difference between the highest and the lowest node load: now, and predicted.
    pub imbalance: (f64, f64),
}

/// Plans the moves of one host.
#[derive(Clone, Debug, Default)]
pub struct Switcher {
    policy: SwitchPolicy,
    last_move_s: Option<u64>,
    moved_s: BTreeMap<VmId, u64>,
}

fn imbalance(loads: &[f64]) -> f64 {
    let max = loads.iter().copied().fold(f64::MIN, f64::max);
    let min = loads.iter().copied().fold(f64::MAX, f64::min);
    (max - min).max(0.0)
}

impl Switcher {
    /// Creates a switcher with no moves recorded.
    pub fn new(policy: SwitchPolicy) -> Self {
        Self { policy, last_move_s: None, moved_s: BTreeMap::new() }
    }

    /// Returns the best move, if one is due. `vm_cpus` is the CPU usage of each virtual machine, in CPUs. `scheduler`
    /// must hold the host and its reservations; the target's resources are free in addition to those that the virtual
    /// machine holds. After making or attempting the move, call [`Switcher::moved`].
    pub fn plan(
        &self,
        now_s: u64,
        host: &Host,
        vms: &[Vm],
        vm_cpus: &BTreeMap<VmId, f64>,
        scheduler: &Scheduler,
    ) -> Option<Move> {
        if self.last_move_s.is_some_and(|at| now_s < at.saturating_add(self.policy.period_s)) {
            return None;
        }
        let nodes: Vec<(u32, f64)> =
            host.nodes.iter().map(|n| (n.id, n.cpus().len() as f64)).filter(|n| n.1 > 0.0).collect();
        let index_of = |id: u32| nodes.iter().position(|n| n.0 == id);
        // Distributes a virtual machine's load over its nodes in proportion to their virtual CPUs.
        let add_load = |placement: &Placement, cpus: f64, loads: &mut [f64]| {
            let vcpus = f64::from(placement.vcpus().max(1));
            for cell in &placement.cells {
                if let Some(at) = index_of(cell.node) {
                    loads[at] += cpus * f64::from(cell.vcpus) / vcpus / nodes[at].1;
                }
            }
        };
        let mut loads = vec![0.0; nodes.len()];
        let cpu_usage =
            |vm: &Vm| vm_cpus.get(&vm.id).copied().filter(|c| c.is_finite()).unwrap_or(0.0).max(0.0);
        for vm in vms {
            if let Some(placement) = &vm.placement {
                add_load(placement, cpu_usage(vm), &mut loads);
            }
        }
        let before = imbalance(&loads);
        if before < self.policy.imbalance {
            return None;
        }
        let rested =
            |id| self.moved_s.get(&id).is_none_or(|at| now_s >= at.saturating_add(self.policy.rest_s));
        let mut best: Option<Move> = None;
        for vm in vms.iter().filter(|vm| vm.state == VmState::Running && rested(vm.id) && cpu_usage(vm) > 0.0)
        {
            let Some(placement) = &vm.placement else { continue };
            if placement.cpu == CpuPolicy::Exclusive && !self.policy.exclusive {
                continue;
            }
            let here: Vec<u32> = placement.cells.iter().map(|c| c.node).collect();
            let mut others: Vec<usize> = (0..nodes.len()).filter(|n| !here.contains(&nodes[*n].0)).collect();
            others.sort_by(|a, b| loads[*a].total_cmp(&loads[*b]));
            // The smallest set of least loaded nodes on which the virtual machine fits.
            let target = (here.len()..=others.len()).find_map(|n| {
                let allowed: Vec<u32> = others[..n].iter().map(|n| nodes[*n].0).collect();
                scheduler.decide_on(&vm.request, &host.name, &allowed, Some(placement))
            });
            let Some(target) = target else { continue };
            let mut predicted = loads.clone();
            add_load(placement, -cpu_usage(vm), &mut predicted);
            add_load(&target, cpu_usage(vm), &mut predicted);
            let after = imbalance(&predicted);
            let enough = before - after >= self.policy.gain * before;
            if enough && best.as_ref().is_none_or(|b| after < b.imbalance.1) {
                best = Some(Move { vm: vm.id, target, imbalance: (before, after) });
            }
        }
        best
    }

    /// Records that a move was made or attempted.
    pub fn moved(&mut self, now_s: u64, vm: VmId) {
        self.last_move_s = Some(now_s);
        self.moved_s.retain(|_, at| now_s < at.saturating_add(self.policy.rest_s));
        self.moved_s.insert(vm, now_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Level, Membership, Relation, Request};
    use crate::scheduler::Policy;
    use crate::store::Intent;
    use longma_topology::Machine;

    /// Virtual machines with 4 virtual CPUs each, all on node 1.
    fn crowded(policies: &[CpuPolicy]) -> (Host, Vec<Vm>, Scheduler) {
        let host = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        let mut scheduler = Scheduler::new(Policy::default(), 1);
        scheduler.put_host(&host).unwrap();
        let vm = |(at, cpu): (usize, &CpuPolicy)| {
            let request = Request { cpu: *cpu, ..Request::new(&format!("v{at}"), 4, 1024) };
            let placement = scheduler.decide_on(&request, "h", &[1], None).unwrap();
            scheduler.reserve(&placement).unwrap();
            let (state, intent) = (VmState::Running, Intent::Run);
            let placement = Some(placement);
            Vm {
                id: at as i64 + 1,
                request,
                state,
                intent,
                placement,
                target: None,
                problem: None,
                version: 1,
                created_at: 0,
            }
        };
        let vms = policies.iter().enumerate().map(vm).collect();
        (host, vms, scheduler)
    }

    #[test]
    fn a_move_that_a_group_by_node_forbids_is_not_planned() {
        let (host, mut vms, mut scheduler) = crowded(&[CpuPolicy::Range; 3]);
        // Put one group member on every other node.
        let member = |relation, name: &str| {
            let (group, level) = ("g".into(), Level::Node);
            Request { groups: vec![Membership { group, relation, level }], ..Request::new(name, 1, 64) }
        };
        for node in (0..8).filter(|n| *n != 1) {
            let request = member(Relation::Affinity, &format!("other{node}"));
            let placement = scheduler.decide_on_without_groups(&request, "h", &[node]).unwrap();
            scheduler.reserve(&placement).unwrap();
        }
        vms[0].request.groups = member(Relation::AntiAffinity, "x").groups;
        let busy: BTreeMap<VmId, f64> = [(1, 4.0), (2, 0.0), (3, 4.0)].into();
        let switcher = Switcher::new(SwitchPolicy::default());
        assert_eq!(switcher.plan(9, &host, &vms, &busy, &scheduler).unwrap().vm, 3);
        vms[2].request.groups = vms[0].request.groups.clone();
        assert_eq!(switcher.plan(9, &host, &vms, &busy, &scheduler), None);
    }

    #[test]
    fn a_crowded_node_is_relieved_rarely_and_without_oscillation() {
        let (host, vms, scheduler) = crowded(&[CpuPolicy::Range; 3]);
        let busy: BTreeMap<VmId, f64> = [(1, 4.0), (2, 4.0), (3, 1.0)].into();
        let mut switcher = Switcher::new(SwitchPolicy::default());
        let plan = switcher.plan(100, &host, &vms, &busy, &scheduler).unwrap();
        assert!(plan.vm != 3 && plan.target.cells[0].node != 1 && plan.imbalance.1 < plan.imbalance.0);
        switcher.moved(100, plan.vm);
        assert_eq!(switcher.plan(101, &host, &vms, &busy, &scheduler), None, "two seconds apart");
        let next = switcher.plan(102, &host, &vms, &busy, &scheduler).unwrap();
        assert_ne!(next.vm, plan.vm, "it rests");
        let even: BTreeMap<VmId, f64> = [(1, 0.4), (2, 0.4), (3, 0.4)].into();
        assert_eq!(switcher.plan(200, &host, &vms, &even, &scheduler), None, "below the threshold");
    }

    #[test]
    fn a_virtual_machine_with_its_own_cpus_stays_unless_allowed_and_one_that_gains_nothing_stays() {
        let (host, vms, scheduler) = crowded(&[CpuPolicy::Exclusive, CpuPolicy::Exclusive]);
        let busy: BTreeMap<VmId, f64> = [(1, 4.0), (2, 4.0)].into();
        assert_eq!(Switcher::default().plan(9, &host, &vms, &busy, &scheduler), None);
        let allowed = Switcher::new(SwitchPolicy { exclusive: true, ..SwitchPolicy::default() });
        assert!(allowed.plan(9, &host, &vms, &busy, &scheduler).is_some());
        let (host, vms, scheduler) = crowded(&[CpuPolicy::Range]);
        let alone: BTreeMap<VmId, f64> = [(1, 4.0)].into();
        assert_eq!(
            Switcher::default().plan(9, &host, &vms, &alone, &scheduler),
            None,
            "its load would only be elsewhere"
        );
    }
}
