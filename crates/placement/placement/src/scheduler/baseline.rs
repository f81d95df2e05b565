//! The comparison strategies first fit, best fit and spread. They choose among all hosts by free capacity alone.
//!
//! Source: OpenStack Nova's documentation of its CPU and RAM weighers (free amounts, normalized over the hosts that
//! fit, summed up) and of its NUMA fitting, which takes a host's nodes in order.

use super::demand::Demand;
use super::fit::{Fit, Rules, fit, fullest};
use super::groups::GroupRules;
use super::{Scheduler, Strategy, assign};
use crate::inventory::HostState;
use crate::placement::Placement;
use crate::request::{MemoryPolicy, Request};
use rustc_hash::FxHashMap;

/// Free virtual CPUs and free MiB of ordinary pages of a host.
fn free(host: &HostState, percent: u32) -> (f32, f32) {
    let nodes = host.shape.nodes.iter().zip(&*host.nodes);
    nodes.fold((0.0, 0.0), |(cpus, mib), (shape, state)| {
        let cpu = state.capacity(0, percent).saturating_sub(state.shared);
        let memory = shape.pools[0].mib - u64::from(state.used_mib[0]);
        (cpus + cpu as f32, mib + memory as f32)
    })
}

/// A set of host indices.
#[derive(Clone, Debug, Default)]
struct Hosts(Vec<u64>);

impl Hosts {
    fn set(&mut self, host: usize, on: bool) {
        let bit = 1 << (host % 64);
        if on { self.0[host / 64] |= bit } else { self.0[host / 64] &= !bit }
    }

    /// The first member that is at least `from`.
    fn next(&self, from: usize) -> Option<usize> {
        let first = self.0.get(from / 64)? & (u64::MAX << (from % 64));
        let rest = self.0[from / 64 + 1..].iter().copied();
        let (words, word) = std::iter::once(first).chain(rest).enumerate().find(|(_, word)| *word != 0)?;
        Some((from / 64 + words) * 64 + word.trailing_zeros() as usize)
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.next(0), |last| self.next(last + 1))
    }
}

/// Cached results for one demand.
#[derive(Clone, Debug, Default)]
struct CachedFit {
    /// Hosts that fitted at their last evaluation.
    fits: Hosts,
    /// Hosts that changed since their last evaluation.
    stale: Hosts,
    /// Score of each host that fits, if the strategy has one.
    scores: Vec<f32>,
}

/// Caches which hosts fit each demand and reevaluates only hosts that changed. The choices equal those of a full scan.
#[derive(Clone, Debug, Default)]
pub(super) struct Fitting {
    cached: FxHashMap<Demand, CachedFit>,
    /// Free capacity of each host. Outdated for the hosts in `stale`.
    free: Vec<(f32, f32)>,
    stale: Hosts,
}

/// Maximum number of cached demands. When it is exceeded, the cache is cleared.
const MAX_CACHED_DEMANDS: usize = 2048;

impl Fitting {
    /// Marks a host as changed or new.
    pub fn changed(&mut self, host: usize) {
        let words = host / 64 + 1;
        if words > self.stale.0.len() {
            self.stale.0.resize(words, 0);
            self.cached.clear();
        }
        if host >= self.free.len() {
            self.free.resize(host + 1, (0.0, 0.0));
        }
        self.stale.set(host, true);
        self.cached.values_mut().for_each(|cached| cached.stale.set(host, true));
    }

    fn cached(&mut self, demand: &Demand) -> &mut CachedFit {
        if self.cached.len() >= MAX_CACHED_DEMANDS && !self.cached.contains_key(demand) {
            self.cached.clear();
        }
        let (words, hosts) = (self.stale.0.len(), self.free.len());
        self.cached.entry(demand.clone()).or_insert_with(|| {
            let mut stale = Hosts(vec![0; words]);
            (0..hosts).for_each(|host| stale.set(host, true));
            CachedFit { fits: Hosts(vec![0; words]), stale, scores: vec![0.0; hosts] }
        })
    }

    fn first(&mut self, demand: &Demand, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let cached = self.cached(demand);
        loop {
            let (stale, found) = (cached.stale.next(0), cached.fits.next(0));
            let at = stale.into_iter().chain(found).min()?;
            if stale == Some(at) {
                cached.fits.set(at, fits(at));
                cached.stale.set(at, false);
                continue;
            }
            return Some(at);
        }
    }

    /// The fitting host with the highest score; the first one if there are several.
    fn best(&mut self, demand: &Demand, score: impl Fn(usize) -> Option<f32>) -> Option<usize> {
        let cached = self.cached(demand);
        while let Some(at) = cached.stale.next(0) {
            let new = score(at);
            cached.fits.set(at, new.is_some());
            cached.scores[at] = new.unwrap_or_default();
            cached.stale.set(at, false);
        }
        let scored = cached.fits.iter().map(|at| (cached.scores[at], at));
        scored.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|best| best.1)
    }

    /// The fitting host with the least or the most free capacity; the first one if there are several.
    fn extreme(
        &mut self,
        demand: &Demand,
        prefer_most_free: bool,
        fits: impl Fn(usize) -> bool,
        free: impl Fn(usize) -> (f32, f32),
    ) -> Option<usize> {
        while let Some(at) = self.stale.next(0) {
            self.free[at] = free(at);
            self.stale.set(at, false);
        }
        let cached = self.cached(demand);
        while let Some(at) = cached.stale.next(0) {
            cached.fits.set(at, fits(at));
            cached.stale.set(at, false);
        }
        let fits = &self.cached.get(demand)?.fits;
        let free: Vec<(usize, (f32, f32))> = fits.iter().map(|at| (at, self.free[at])).collect();
        Some(free[extreme(free.iter().map(|f| f.1), prefer_most_free)?].0)
    }
}

/// Index of the least or the greatest free capacity; the first one if there are several. CPUs and memory are each
/// normalized to the range of the values and summed.
fn extreme(free: impl Iterator<Item = (f32, f32)> + Clone, prefer_most_free: bool) -> Option<usize> {
    let max = free.clone().fold((1.0f32, 1.0f32), |m, f| (m.0.max(f.0), m.1.max(f.1)));
    let min = free.clone().fold(max, |m, f| (m.0.min(f.0), m.1.min(f.1)));
    let part = |value: f32, min: f32, max: f32| {
        if max > min { (value - min) / (max - min) } else { 0.0 }
    };
    let sign = if prefer_most_free { 1.0 } else { -1.0 };
    let weights = free.map(|f| sign * (part(f.0, min.0, max.0) + part(f.1, min.1, max.1)));
    weights.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|best| best.0)
}

impl Scheduler {
    pub(super) fn find_baseline(&mut self, request: &Request, demand: &Demand) -> Option<Placement> {
        if self.policy.strategy == Strategy::BestNode {
            return self.find_best_node(request, demand);
        }
        if !GroupRules::of(&self.inventory, request).is_empty() {
            return self.scan_baseline(request, demand);
        }
        let Self { inventory, policy, fitting, .. } = self;
        let percent = policy.overcommit_percent;
        let rules = Rules { weights: &policy.weights, overcommit_percent: percent, first_nodes: true };
        let fit_of = |host: usize| fit(&rules, &inventory.hosts[host], demand, u64::MAX);
        let fits = |host: usize| fit_of(host).is_some();
        let chosen = match policy.strategy {
            Strategy::FirstFit => fitting.first(demand, fits),
            other => {
                let free = |host: usize| free(&inventory.hosts[host], percent);
                fitting.extreme(demand, other == Strategy::Spread, fits, free)
            }
        }?;
        assign::assign(&inventory.hosts[chosen], request, demand, fit_of(chosen)?.nodes())
    }

    fn find_best_node(&mut self, request: &Request, demand: &Demand) -> Option<Placement> {
        let Self { inventory, policy, fitting, .. } = self;
        let rules = Rules {
            weights: &policy.weights,
            overcommit_percent: policy.overcommit_percent,
            first_nodes: false,
        };
        let groups = GroupRules::of(inventory, request);
        let fit_of = |demand: &Demand, host: usize| {
            fullest(&rules, &inventory.hosts[host], demand, groups.nodes(host as u32))
        };
        let local = Demand { memory: MemoryPolicy::Strict, ..demand.clone() };
        let local = (demand.memory != MemoryPolicy::Strict).then_some(local);
        for tried in local.iter().chain([demand]) {
            let score = |host: usize| fit_of(tried, host).map(|found| found.score);
            let chosen = match groups.is_empty() {
                true => fitting.best(tried, score),
                false => {
                    let all = inventory.indices().filter_map(|host| Some((score(host)?, host)));
                    all.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|best| best.1)
                }
            };
            if let Some(host) = chosen {
                return assign::assign(&inventory.hosts[host], request, demand, fit_of(tried, host)?.nodes());
            }
        }
        None
    }

    /// Makes the same choice by a full scan. Used for requests with groups, and as a reference in tests.
    pub(super) fn scan_baseline(&self, request: &Request, demand: &Demand) -> Option<Placement> {
        let rules = self.rules();
        let groups = GroupRules::of(&self.inventory, request);
        let mut fitting: Vec<(usize, Fit)> = Vec::new();
        for (at, host) in self.inventory.hosts.iter().enumerate() {
            if let Some(found) = fit(&rules, host, demand, groups.nodes(at as u32)) {
                fitting.push((at, found));
                if self.policy.strategy == Strategy::FirstFit {
                    break;
                }
            }
        }
        let percent = self.policy.overcommit_percent;
        let left = fitting.iter().map(|(at, _)| free(&self.inventory.hosts[*at], percent));
        let best = extreme(left, self.policy.strategy == Strategy::Spread)?;
        let (at, found) = &fitting[best];
        assign::assign(&self.inventory.hosts[*at], request, demand, found.nodes())
    }
}
