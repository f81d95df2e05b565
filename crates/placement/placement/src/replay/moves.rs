//! Makes space for a request by moving one running virtual machine between the nodes of its host.

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
    /// Requests, without their names, for which no move made room since the host last changed. Equal requests
    /// are frequent in an overloaded fleet; the host is not searched again for them.
    hopeless: Vec<Vec<Request>>,
}

impl Residents {
    pub fn new(hosts: &[Host]) -> Self {
        let at = hosts.iter().enumerate().map(|(at, host)| (host.name.clone(), at)).collect();
        Self { at, vms: vec![Vec::new(); hosts.len()], hopeless: vec![Vec::new(); hosts.len()] }
    }

    pub fn add(&mut self, host: &str, vm: usize, request: &Request) {
        if let Some(at) = self.at.get(host) {
            self.vms[*at].push((vm, request.clone()));
            self.hopeless[*at].clear();
        }
    }

    pub fn remove(&mut self, host: &str, vm: usize) {
        if let Some(at) = self.at.get(host) {
            self.vms[*at].retain(|resident| resident.0 != vm);
            self.hopeless[*at].clear();
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
            .map(|at| (self.scheduler.inventory().hosts[at].free.host_mib, at))
            .filter(|host| host.0 >= request.memory_mib)
            .collect();
        hosts.sort_unstable();
        let unnamed = Request { name: String::new(), ..request.clone() };
        hosts.into_iter().take(MAX_HOSTS).find_map(|(_, at)| {
            if self.residents.hopeless[at].contains(&unnamed) {
                return None;
            }
            let found = self.make_room_on(at, request);
            if found.is_none() {
                self.residents.hopeless[at].push(unnamed.clone());
            }
            found
        })
    }

    fn make_room_on(&mut self, host: usize, request: &Request) -> Option<Placement> {
        let description = self.hosts.get(host)?;
        // Nodes are chosen by Longma's strategy: the strategies for comparison never move virtual machines.
        let policy = Policy { strategy: Strategy::Numa, ..self.scheduler.policy().clone() };
        let mut single_host = Scheduler::new(policy, 1);
        single_host.put_host(description).ok()?;
        let residents = self.residents.vms.get(host)?;
        for (vm, _) in residents {
            single_host.reserve(self.placed[*vm].as_ref()?).ok()?;
        }
        let nodes: Vec<u32> = description.nodes.iter().map(|node| node.id).collect();
        for (vm, resident) in residents {
            let current = self.placed[*vm].clone()?;
            if current.cpu == CpuPolicy::Exclusive || current.cells.len() > 1 {
                continue;
            }
            for node in nodes.iter().filter(|node| **node != current.cells[0].node) {
                let Some(target) = single_host.decide_on(resident, &description.name, &[*node], [&current])
                else {
                    continue;
                };
                single_host.reserve(&target).ok()?;
                single_host.release(&current).ok()?;
                if let Ok(found) = single_host.decide(request) {
                    self.scheduler.reserve(&target).ok()?;
                    self.scheduler.release(&current).ok()?;
                    self.scheduler.reserve(&found).ok()?;
                    self.placed[*vm] = Some(target);
                    self.moves += 1;
                    return Some(found);
                }
                single_host.reserve(&current).ok()?;
                single_host.release(&target).ok()?;
            }
        }
        None
    }
}
