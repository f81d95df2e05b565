//! Chooses a host and its NUMA nodes. Filters exclude candidates and weighers score the rest; cached rankings avoid a
//! scan of all hosts. `allocator` makes a decision durable in a store, which may reject it.
//!
//! Source: Hadary et al., "Protean" (OSDI 2020) for the separation of rules and mechanism; He Mujun et al. for the CPU
//! and memory policies.

mod assign;
mod baseline;
pub mod capacity;
mod demand;
mod explain;
mod filter;
mod fit;
mod groups;
mod overhead;
mod ranking;
#[cfg(test)]
mod tests;
mod weigh;

pub(crate) use assign::group_key;
pub use explain::{Explanation, HostVerdict, NodeVerdict, Refusal, Weighed};
pub use overhead::Overhead;
pub use weigh::Weights;

use crate::host::{Host, HostError, NodeLoad};
use crate::inventory::{HostStatus, Inventory, ReserveError};
use crate::lifetime::Lifetime;
use crate::placement::Placement;
use crate::request::{Invalid, Request};
use baseline::Fitting;
use demand::Demand;
use fit::{Fit, Rules, fit};
use groups::GroupRules;
use longma_random::SplitMix64;
use ranking::Rankings;
use serde::{Deserialize, Serialize};

/// How a host and nodes are chosen among the candidates that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// By the weighers, node by node.
    #[default]
    Numa,
    /// For comparison: the first host, and its first nodes.
    FirstFit,
    /// For comparison: the host with the least free resources, and its first nodes.
    BestFit,
    /// Placement as by an administrator, for comparison: the fullest nodes of all hosts on which the virtual nodes fit
    /// without borrowed memory, or else with it.
    BestNode,
    /// For comparison: the host with the most free resources by Nova's CPU and RAM weighers, and its first nodes.
    Spread,
}

/// Scheduling policy set by the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// How to choose among candidates.
    pub strategy: Strategy,
    /// Weight of each weigher.
    pub weights: Weights,
    /// Shared virtual CPUs (policies `range` and `none`) per hundred CPUs; 100 means no overcommit.
    pub overcommit_percent: u32,
    /// Memory that each virtual machine takes besides its guest memory. The default is none.
    pub overhead: Overhead,
    /// Number of request kinds for which a ranking of the hosts is cached. Each ranking takes 18 bytes per host.
    pub rankings: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            weights: Weights::default(),
            overcommit_percent: 200,
            overhead: Overhead::default(),
            rankings: 256,
        }
    }
}

/// Why a request has no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlacement {
    /// The request is invalid.
    #[error("the request is invalid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Invalid>),
    /// The request fits on no host at present. [`Scheduler::explain`] gives the reasons.
    #[error("it fits none of {hosts} hosts; request an explanation to see what each host lacks")]
    NoFit {
        /// Number of hosts.
        hosts: usize,
    },
}

/// Chooses hosts and nodes. The same calls with the same seed give the same results.
#[derive(Clone, Debug)]
pub struct Scheduler {
    inventory: Inventory,
    policy: Policy,
    rankings: Rankings,
    /// Used only by the comparison strategies.
    fitting: Fitting,
    random: SplitMix64,
    /// The partition that the scheduler currently prefers.
    part: Option<u64>,
}

/// Number of partitions of the hosts, for schedulers that conflict with each other.
const PARTITIONS: u64 = 16;
/// Minimum number of hosts to use partitions. With fewer hosts, a partition may have none that fits.
const MIN_PARTITIONED_HOSTS: usize = 512;

/// Partition of a host by its index: Fibonacci hashing (Knuth, volume 3, section 6.4), so that neighbours fall into
/// different partitions.
fn part_of(host: u32) -> u64 {
    u64::from(host).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60
}

impl Scheduler {
    /// Creates a scheduler without hosts. `seed` breaks ties between equally good hosts; schedulers of one store should
    /// use different seeds.
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self {
            inventory: Inventory::new(policy.overcommit_percent),
            rankings: Rankings::new(policy.rankings),
            fitting: Fitting::default(),
            policy,
            random: SplitMix64::new(seed),
            part: None,
        }
    }

    /// Invalidates cached results of a host.
    fn changed(&mut self, host: usize) {
        self.rankings.changed(host);
        if self.policy.strategy != Strategy::Numa {
            self.fitting.changed(host);
        }
    }

    /// Restricts decisions to a randomly drawn partition of the hosts as long as one of them fits. Without a partition,
    /// schedulers that share a store all prefer the same hosts and conflict at commit.
    pub fn use_one_partition(&mut self) {
        self.part =
            (self.inventory.len() >= MIN_PARTITIONED_HOSTS).then(|| self.random.next_u64() % PARTITIONS);
    }

    /// Lifts the restriction to a partition.
    pub fn use_all_hosts(&mut self) {
        self.part = None;
    }

    /// The reservations on all hosts.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The operator's policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Adds a host, or replaces its description and drops its reservations.
    ///
    /// # Errors
    /// If the description is inconsistent.
    pub fn put_host(&mut self, host: &Host) -> Result<(), HostError> {
        let at = self.inventory.put_host(host)?;
        self.changed(at);
        Ok(())
    }

    /// Removes a host and its reservations. Returns false if the host is unknown.
    pub fn remove_host(&mut self, name: &str) -> bool {
        let removed = self.inventory.remove_host(name);
        removed.inspect(|at| self.changed(*at)).is_some()
    }

    /// Replaces the reservations on a host by `placements`, as read from a store after a conflict or a restart.
    ///
    /// # Errors
    /// If the host is unknown or the placements conflict. In the latter case the host is marked down until the next
    /// successful call.
    pub fn reload_host<'a>(
        &mut self,
        name: &str,
        placements: impl IntoIterator<Item = &'a Placement>,
    ) -> Result<(), ReserveError> {
        let unknown = || ReserveError { host: name.into(), problem: "is not known".into() };
        let at = self.inventory.clear_host(name).ok_or_else(unknown)?;
        self.changed(at);
        for placement in placements {
            if let Err(error) = self.inventory.reserve(placement) {
                self.inventory.hosts[at].status = HostStatus::Down;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sets the status of a host. Returns false if the host is unknown.
    pub fn set_status(&mut self, host: &str, status: HostStatus) -> bool {
        let Some(at) = self.inventory.find(host) else { return false };
        if self.inventory.hosts[at].status != status {
            self.inventory.hosts[at].status = status;
            self.changed(at);
        }
        true
    }

    /// Updates the load of a host's nodes, given in the order of its nodes. Returns false if the host is unknown.
    pub fn set_load(&mut self, host: &str, loads: &[NodeLoad]) -> bool {
        let Some(at) = self.inventory.find(host) else { return false };
        if self.inventory.set_load(at, loads) {
            self.changed(at);
        }
        true
    }

    /// Sets the current time, in seconds since 1970. Expected lifetimes are compared with it once a minute.
    pub fn set_time(&mut self, now_s: i64) {
        for host in self.inventory.set_time(now_s) {
            self.changed(host);
        }
    }

    /// Reserves the resources of a placement.
    ///
    /// # Errors
    /// One of the resources is taken; nothing changes.
    pub fn reserve(&mut self, placement: &Placement) -> Result<(), ReserveError> {
        let at = self.inventory.reserve(placement)?;
        self.changed(at);
        Ok(())
    }

    /// Releases the resources of a placement.
    ///
    /// # Errors
    /// If they were not reserved.
    pub fn release(&mut self, placement: &Placement) -> Result<(), ReserveError> {
        let at = self.inventory.release(placement)?;
        self.changed(at);
        Ok(())
    }

    /// Chooses a placement for `request` and reserves it.
    ///
    /// # Errors
    /// If the request is invalid or fits on no host.
    pub fn place(&mut self, request: &Request) -> Result<Placement, NoPlacement> {
        let placement = self.decide(request)?;
        let taken = self.reserve(&placement);
        // The decision was made from this inventory, so its resources are free.
        debug_assert_eq!(taken, Ok(()));
        taken.map(|()| placement).map_err(|_| NoPlacement::NoFit { hosts: self.inventory.len() })
    }

    /// Chooses a placement for `request` without reserving it.
    ///
    /// # Errors
    /// If the request is invalid or fits on no host.
    pub fn decide(&mut self, request: &Request) -> Result<Placement, NoPlacement> {
        request.check().map_err(NoPlacement::Invalid)?;
        let found = self.demands(request).iter().find_map(|demand| self.find(request, demand));
        let lifetime = self.lifetime_from_now(request);
        found
            .map(|place| Placement { lifetime, ..place })
            .ok_or(NoPlacement::NoFit { hosts: self.inventory.len() })
    }

    /// Returns the best placement for `request` on the given nodes of a host, without reserving it. Returns `None` if
    /// the request is invalid, does not fit or its groups forbid it. `own` lists the placements already reserved for
    /// the same virtual machine; they are not treated as other group members.
    pub fn decide_on<'a>(
        &self,
        request: &Request,
        host: &str,
        nodes: &[u32],
        own: impl IntoIterator<Item = &'a Placement>,
    ) -> Option<Placement> {
        let own: Vec<&Placement> = own.into_iter().collect();
        let lifetime = own.first().map_or(self.lifetime_from_now(request), |place| place.lifetime);
        let groups = GroupRules::for_resident(&self.inventory, request, own);
        let at = self.inventory.find(host)?;
        let found = self.fit_on(request, at, nodes, groups.nodes(at as u32))?;
        Some(Placement { lifetime, ..found })
    }

    /// Returns the best placement on the host `to`, or on any host, for a virtual machine that is to leave its host, on
    /// which its placement is `own`. Reserves nothing.
    ///
    /// # Errors
    /// If the request is invalid or fits on no other host.
    pub fn decide_elsewhere(
        &mut self,
        request: &Request,
        own: &Placement,
        to: Option<&str>,
    ) -> Result<Placement, NoPlacement> {
        request.check().map_err(NoPlacement::Invalid)?;
        let no_fit = |hosts: usize| NoPlacement::NoFit { hosts };
        let hosts = self.inventory.len().saturating_sub(1);
        let Some(at) = self.inventory.find(&own.host) else { return Err(no_fit(hosts)) };
        // The virtual machine's own placement is not treated as another member of its groups.
        self.release(own).map_err(|_| no_fit(hosts))?;
        let status = self.inventory.hosts[at].status;
        self.set_status(&own.host, HostStatus::Draining);
        let found = match to {
            None => self.decide(request).ok(),
            Some(to) => self.inventory.find(to).filter(|to| *to != at).and_then(|to| {
                let mask = GroupRules::of(&self.inventory, request).nodes(to as u32);
                self.demands(request).iter().find_map(|demand| {
                    let state = &self.inventory.hosts[to];
                    let fit = fit(&self.rules(), state, demand, mask)?;
                    assign::assign(state, request, demand, fit.nodes())
                })
            }),
        };
        self.set_status(&own.host, status);
        let kept = self.reserve(own);
        debug_assert_eq!(kept, Ok(()), "it was released above");
        let found = found.map(|target| Placement { lifetime: own.lifetime, ..target });
        found.ok_or(no_fit(if to.is_some() { 1 } else { hosts }))
    }

    /// Like [`Scheduler::decide_on`], but ignores groups. If only this call finds a placement, a group rule forbids it.
    pub fn decide_on_without_groups(
        &self,
        request: &Request,
        host: &str,
        nodes: &[u32],
    ) -> Option<Placement> {
        self.fit_on(request, self.inventory.find(host)?, nodes, u64::MAX)
    }

    /// The lifetime of a virtual machine that begins now.
    fn lifetime_from_now(&self, request: &Request) -> Option<Lifetime> {
        let since_s = self.inventory.now_s();
        request.lifetime_s.map(|expected_s| Lifetime { since_s, expected_s })
    }

    fn fit_on(&self, request: &Request, at: usize, nodes: &[u32], mask: u64) -> Option<Placement> {
        request.check().ok()?;
        let state = &self.inventory.hosts[at];
        let allowed = nodes.iter().filter_map(|id| state.shape.node(*id)).fold(0, |mask, n| mask | 1 << n);
        let allowed = allowed & mask;
        self.demands(request).iter().find_map(|demand| {
            let fit = fit(&self.rules(), state, demand, allowed)?;
            assign::assign(state, request, demand, fit.nodes())
        })
    }

    /// The demands to try for `request`, in order. The comparison strategies do not try to avoid borrowed memory.
    fn demands(&self, request: &Request) -> Vec<Demand> {
        let mut demands = Demand::of(request, self.policy.overhead);
        if self.policy.strategy != Strategy::Numa {
            demands.retain(|demand| demand.memory == request.memory);
        }
        if self.policy.strategy != Strategy::Numa || self.policy.weights.lifetime == 0.0 {
            // Kinds that differ only in their lifetimes share a ranking.
            demands.iter_mut().for_each(|demand| demand.lifetime_class = None);
        }
        demands
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            weights: &self.policy.weights,
            overcommit_percent: self.policy.overcommit_percent,
            first_nodes: self.policy.strategy != Strategy::Numa,
        }
    }

    fn find(&mut self, request: &Request, demand: &Demand) -> Option<Placement> {
        if self.policy.strategy != Strategy::Numa {
            return self.find_baseline(request, demand);
        }
        if let Some(hosts) = GroupRules::of(&self.inventory, request).hosts() {
            return self.best_of(request, demand, hosts.into_iter().map(|h| h as usize));
        }
        let kind = demand.kind();
        let random = self.random.next_u64();
        let Self { inventory, policy, rankings, .. } = self;
        let inventory = &*inventory;
        let rules = Rules {
            weights: &policy.weights,
            overcommit_percent: policy.overcommit_percent,
            first_nodes: false,
        };
        let score = |host: usize| fit(&rules, &inventory.hosts[host], &kind, u64::MAX).map(|f| f.rank());
        let groups = GroupRules::of(inventory, request);
        let accept = |host: u32, part: Option<u64>| {
            if part.is_some_and(|part| part_of(host) != part) {
                return None;
            }
            let state = &inventory.hosts[host as usize];
            let mask = if groups.is_empty() { u64::MAX } else { groups.nodes(host) };
            let fit = fit(&rules, state, demand, mask)?;
            assign::assign(state, request, demand, fit.nodes())
        };
        let own = self
            .part
            .and_then(|part| rankings.pick_known(&kind, random, score, |host| accept(host, Some(part))));
        let found = own.or_else(|| rankings.pick(&kind, random, score, |host| accept(host, None)));
        // The ranking rounds memory up. Without a match, search all hosts for the exact amount.
        if found.is_none() && kind.mib != demand.mib {
            self.best_of(request, demand, self.inventory.indices())
        } else {
            found
        }
    }

    /// Evaluates each of `hosts` and returns the best placement.
    fn best_of(
        &self,
        request: &Request,
        demand: &Demand,
        hosts: impl Iterator<Item = usize>,
    ) -> Option<Placement> {
        let rules = self.rules();
        let groups = GroupRules::of(&self.inventory, request);
        let mut best: Option<(Fit, usize)> = None;
        for at in hosts {
            let found = fit(&rules, &self.inventory.hosts[at], demand, groups.nodes(at as u32));
            if let Some(found) = found
                && best.as_ref().is_none_or(|(b, _)| found.score > b.score)
            {
                best = Some((found, at));
            }
        }
        let (fit, at) = best?;
        assign::assign(&self.inventory.hosts[at], request, demand, fit.nodes())
    }
}
