//! Picks a host and its NUMA nodes: filters rule out, weighers prefer, rankings are kept so that no decision looks at all hosts.
//! Not durable: `allocator` puts a decision into a store, which has the last word.
//! Source: Hadary et al., "Protean" (OSDI 2020) for the separation of rules and mechanism; `placement.md`'s policies from He Mujun et al.

mod assign;
mod baseline;
mod demand;
mod explain;
mod filter;
mod fit;
mod groups;
mod ranking;
#[cfg(test)]
mod tests;
mod weigh;

pub(crate) use assign::group_key;
pub use explain::{Explanation, HostVerdict, NodeVerdict, Refusal, Weighed};
pub use weigh::Weights;

use crate::host::{Host, HostError, NodeLoad};
use crate::inventory::{HostStatus, Inventory, TakeError};
use crate::placement::Placement;
use crate::request::{Invalid, Request};
use baseline::Fitting;
use demand::Demand;
use fit::{Fit, Rules, fit};
use groups::GroupRules;
use ranking::Rankings;
use serde::{Deserialize, Serialize};

/// How hosts and nodes are chosen among those that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// By the weighers, node by node.
    #[default]
    Numa,
    /// For comparison: the first host, and on it the first nodes.
    FirstFit,
    /// For comparison: the host with the least left, and on it the first nodes.
    BestFit,
    /// For comparison: the host with the most left as Nova's CPU and RAM weighers see it, and on it the first nodes.
    Spread,
}

/// What an operator decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// How to choose.
    pub strategy: Strategy,
    /// How much each weigher counts.
    pub weights: Weights,
    /// Virtual CPUs of the policies range and none on a hundred CPUs: 100 is no over-commit.
    pub overcommit_percent: u32,
    /// Kinds of requests whose ranking of hosts is kept: each takes 18 bytes a host.
    pub rankings: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            weights: Weights::default(),
            overcommit_percent: 200,
            rankings: 256,
        }
    }
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlacement {
    /// The request is wrong.
    #[error("the request is wrong: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Invalid>),
    /// It fits no host now. [`Scheduler::explain`] says why.
    #[error("it fits none of {hosts} hosts; ask for an explanation to see what is missing where")]
    NoFit {
        /// Hosts there are.
        hosts: usize,
    },
}

/// Picks hosts and nodes. The same calls with the same seed give the same answers.
#[derive(Clone, Debug)]
pub struct Scheduler {
    inventory: Inventory,
    policy: Policy,
    rankings: Rankings,
    /// For the strategies of others only.
    fitting: Fitting,
    random: u64,
    /// The part of the hosts that it keeps to where it can.
    part: Option<u64>,
}

/// Parts that hosts are in, for schedulers that are in each other's way.
const PARTS: u64 = 16;
/// With fewer hosts than this a part may have none that fits.
const FEW: usize = 512;

/// The part that a host is in, by the number of its place: Fibonacci hashing (Knuth, volume 3, 6.4), so that neighbours are in different ones.
fn part_of(host: u32) -> u64 {
    u64::from(host).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60
}

impl Scheduler {
    /// A scheduler without hosts. `seed` decides among hosts that are equally good; schedulers of one store should differ in it.
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self {
            inventory: Inventory::new(policy.overcommit_percent),
            rankings: Rankings::new(policy.rankings),
            fitting: Fitting::default(),
            policy,
            random: seed,
            part: None,
        }
    }

    /// Notes that a host changed.
    fn changed(&mut self, host: usize) {
        self.rankings.changed(host);
        if self.policy.strategy != Strategy::Numa {
            self.fitting.changed(host);
        }
    }

    /// Keeps to a part of the hosts that it draws anew, as long as one of them fits: schedulers of one store that pack as well as they can
    /// all want the same hosts, and what one decides is taken by another one meanwhile.
    pub fn keep_to_a_part(&mut self) {
        self.part = (self.inventory.len() >= FEW).then(|| self.next_random() % PARTS);
    }

    /// Looks at all hosts alike again.
    pub fn keep_to_no_part(&mut self) {
        self.part = None;
    }

    /// What is promised where.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What the operator decided.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Adds a host, or describes it anew without anything promised on it.
    ///
    /// # Errors
    /// If the description does not hold together.
    pub fn put_host(&mut self, host: &Host) -> Result<(), HostError> {
        let at = self.inventory.put_host(host)?;
        self.changed(at);
        Ok(())
    }

    /// Makes what is promised on a host exactly `placements`: what a store says after a conflict or a restart.
    ///
    /// # Errors
    /// If the host is unknown or the placements contradict each other; then the host is down until it is called again.
    pub fn reload_host<'a>(
        &mut self,
        name: &str,
        placements: impl IntoIterator<Item = &'a Placement>,
    ) -> Result<(), TakeError> {
        let unknown = || TakeError { host: name.into(), problem: "is not known".into() };
        let at = self.inventory.empty_host(name).ok_or_else(unknown)?;
        self.changed(at);
        for placement in placements {
            if let Err(error) = self.inventory.take(placement) {
                self.inventory.hosts[at].status = HostStatus::Down;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Says whether a host takes virtual machines; false if it is unknown.
    pub fn set_status(&mut self, host: &str, status: HostStatus) -> bool {
        let Some(at) = self.inventory.find(host) else { return false };
        if self.inventory.hosts[at].status != status {
            self.inventory.hosts[at].status = status;
            self.changed(at);
        }
        true
    }

    /// Takes in the load of a host's nodes, in the order of its nodes; false if the host is unknown.
    pub fn set_load(&mut self, host: &str, loads: &[NodeLoad]) -> bool {
        let Some(at) = self.inventory.find(host) else { return false };
        if self.inventory.set_load(at, loads) {
            self.changed(at);
        }
        true
    }

    /// Takes what a placement needs.
    ///
    /// # Errors
    /// If any of it is taken; then nothing changes.
    pub fn take(&mut self, placement: &Placement) -> Result<(), TakeError> {
        let at = self.inventory.take(placement)?;
        self.changed(at);
        Ok(())
    }

    /// Gives back what a placement took.
    ///
    /// # Errors
    /// If it was not taken.
    pub fn give(&mut self, placement: &Placement) -> Result<(), TakeError> {
        let at = self.inventory.give(placement)?;
        self.changed(at);
        Ok(())
    }

    /// Picks a place for `request` and takes it.
    ///
    /// # Errors
    /// If the request is wrong or fits nowhere.
    pub fn place(&mut self, request: &Request) -> Result<Placement, NoPlacement> {
        let placement = self.decide(request)?;
        let taken = self.take(&placement);
        // What was decided from the inventory is free in it.
        debug_assert_eq!(taken, Ok(()));
        taken.map(|()| placement).map_err(|_| NoPlacement::NoFit { hosts: self.inventory.len() })
    }

    /// Picks a place for `request` without taking it.
    ///
    /// # Errors
    /// If the request is wrong or fits nowhere.
    pub fn decide(&mut self, request: &Request) -> Result<Placement, NoPlacement> {
        request.check().map_err(NoPlacement::Invalid)?;
        let demands = Demand::of(request);
        let found = demands.iter().find_map(|demand| self.find(request, demand));
        found.ok_or(NoPlacement::NoFit { hosts: self.inventory.len() })
    }

    /// The best place for `request` on some of the nodes of the host where it lies, without taking it; none if it does not fit there, its groups
    /// forbid it or it is wrong. `own` are the places that are taken for it already: they are no other member of its groups.
    pub fn decide_on<'a>(
        &self,
        request: &Request,
        host: &str,
        nodes: &[u32],
        own: impl IntoIterator<Item = &'a Placement>,
    ) -> Option<Placement> {
        let groups = GroupRules::besides(&self.inventory, request, own);
        let at = self.inventory.find(host)?;
        self.fit_on(request, at, nodes, groups.nodes(at as u32))
    }

    /// As [`Scheduler::decide_on`] if there were no groups: what that finds and the other does not, groups forbid.
    pub fn decide_on_without_groups(
        &self,
        request: &Request,
        host: &str,
        nodes: &[u32],
    ) -> Option<Placement> {
        self.fit_on(request, self.inventory.find(host)?, nodes, u64::MAX)
    }

    fn fit_on(&self, request: &Request, at: usize, nodes: &[u32], mask: u64) -> Option<Placement> {
        request.check().ok()?;
        let state = &self.inventory.hosts[at];
        let allowed = nodes.iter().filter_map(|id| state.shape.node(*id)).fold(0, |mask, n| mask | 1 << n);
        let allowed = allowed & mask;
        Demand::of(request).iter().find_map(|demand| {
            let fit = fit(&self.rules(), state, demand, allowed)?;
            assign::assign(state, request, demand, fit.nodes())
        })
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
            return self.find_as_others_do(request, demand);
        }
        if let Some(hosts) = GroupRules::of(&self.inventory, request).hosts() {
            return self.best_of(request, demand, hosts.into_iter().map(|h| h as usize));
        }
        let kind = demand.kind();
        let random = self.next_random();
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
        let own =
            self.part.and_then(|part| rankings.glance(&kind, random, score, |host| accept(host, Some(part))));
        let found = own.or_else(|| rankings.pick(&kind, random, score, |host| accept(host, None)));
        // Memory that was rounded up may fit nowhere where the memory itself does.
        if found.is_none() && kind.mib != demand.mib {
            self.best_of(request, demand, 0..self.inventory.len())
        } else {
            found
        }
    }

    /// The best of `hosts`, each looked at.
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

    /// The next number of a splitmix64 sequence (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
