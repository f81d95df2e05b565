//! Makes room for a request by one move of a running virtual machine between the nodes of its host.

use super::Run;
use crate::host::Host;
use crate::placement::Placement;
use crate::request::{CpuPolicy, Request};
use crate::scheduler::{Policy, Scheduler, Strategy};
use rustc_hash::FxHashMap;

/// Number of hosts that are tried for a request.
const MAX_HOSTS: usize = 8;

/// The virtual machines on each host, with their requests.
pub(super) struct Residents {
    at: FxHashMap<String, usize>,
    vms: Vec<Vec<(usize, Request)>>,
}

impl Residents {
    pub fn new(hosts: &[Host]) -> Self {
        let at = hosts.iter().enumerate().map(|(at, host)| (host.name.clone(), at)).collect();
        Self { at, vms: vec![Vec::new(); hosts.len()] }
    }

    pub fn add(&mut self, host: &str, vm: usize, request: &Request) {
        if let Some(at) = self.at.get(host) {
            self.vms[*at].push((vm, request.clone()));
        }
    }

    pub fn remove(&mut self, host: &str, vm: usize) {
        if let Some(at) = self.at.get(host) {
            self.vms[*at].retain(|resident| resident.0 != vm);
        }
    }
}

impl Run<'_> {
    /// Moves one virtual machine so that `request` fits on its host, and places the request there. Tries the hosts with
    /// the least free memory among those that have enough in total.
    pub(super) fn make_room(&mut self, request: &Request) -> Option<Placement> {
        let mut hosts: Vec<(u64, usize)> = self
            .scheduler
            .inventory()
            .indices()
            .map(|at| (self.scheduler.inventory().hosts[at].room.host_mib, at))
            .filter(|host| host.0 >= request.memory_mib)
            .collect();
        hosts.sort_unstable();
        hosts.into_iter().take(MAX_HOSTS).find_map(|(_, at)| self.make_room_on(at, request))
    }

    fn make_room_on(&mut self, host: usize, request: &Request) -> Option<Placement> {
        let described = self.hosts.get(host)?;
        // Longma's own choice of nodes: the strategies for comparison do not move.
        let policy = Policy { strategy: Strategy::Numa, ..self.scheduler.policy().clone() };
        let mut alone = Scheduler::new(policy, 1);
        alone.put_host(described).ok()?;
        let residents = self.residents.vms.get(host)?;
        for (vm, _) in residents {
            alone.take(self.placed[*vm].as_ref()?).ok()?;
        }
        let nodes: Vec<u32> = described.nodes.iter().map(|node| node.id).collect();
        for (vm, resident) in residents {
            let here = self.placed[*vm].clone()?;
            if here.cpu == CpuPolicy::Exclusive || here.cells.len() > 1 {
                continue;
            }
            for node in nodes.iter().filter(|node| **node != here.cells[0].node) {
                let Some(target) = alone.decide_on(resident, &described.name, &[*node], [&here]) else {
                    continue;
                };
                alone.take(&target).ok()?;
                alone.give(&here).ok()?;
                if let Ok(found) = alone.decide(request) {
                    self.scheduler.take(&target).ok()?;
                    self.scheduler.give(&here).ok()?;
                    self.scheduler.take(&found).ok()?;
                    self.placed[*vm] = Some(target);
                    self.moves += 1;
                    return Some(found);
                }
                alone.take(&here).ok()?;
                alone.give(&target).ok()?;
            }
        }
        None
    }
}
