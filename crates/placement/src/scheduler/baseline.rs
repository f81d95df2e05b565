//! First fit, best fit and spreading, over all hosts and by inventory alone: what our choice is compared with.
//! Not for production: each decision looks at every host.
//! Source: OpenStack Nova's documented CPU and RAM weighers (free amounts, normalised over the hosts that fit, added up), and its NUMA fit,
//! which takes a host's nodes in their order.

use super::demand::Demand;
use super::fit::{Fit, fit};
use super::groups::GroupRules;
use super::{Scheduler, Strategy, assign};
use crate::inventory::HostState;
use crate::placement::Placement;
use crate::request::Request;

/// Free virtual CPUs and free MiB of ordinary pages of a host.
fn free(host: &HostState, percent: u32) -> (f32, f32) {
    let nodes = host.shape.nodes.iter().zip(&*host.nodes);
    nodes.fold((0.0, 0.0), |(cpus, mib), (shape, state)| {
        let cpu = state.capacity(0, percent).saturating_sub(state.shared);
        let memory = shape.pools[0].mib - u64::from(state.used_mib[0]);
        (cpus + cpu as f32, mib + memory as f32)
    })
}

impl Scheduler {
    pub(super) fn find_as_others_do(&self, request: &Request, demand: &Demand) -> Option<Placement> {
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
        let free: Vec<_> = fitting.iter().map(|(at, _)| free(&self.inventory.hosts[*at], percent)).collect();
        let most = free.iter().fold((1.0f32, 1.0f32), |m, f| (m.0.max(f.0), m.1.max(f.1)));
        let least = free.iter().fold(most, |m, f| (m.0.min(f.0), m.1.min(f.1)));
        let part = |value: f32, least: f32, most: f32| {
            if most > least { (value - least) / (most - least) } else { 0.0 }
        };
        let weight = |f: &(f32, f32)| part(f.0, least.0, most.0) + part(f.1, least.1, most.1);
        let sign = if self.policy.strategy == Strategy::BestFit { -1.0 } else { 1.0 };
        let weights = free.iter().map(|f| sign * weight(f));
        let best = weights.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best })?.0;
        let (at, found) = &fitting[best];
        assign::assign(&self.inventory.hosts[*at], request, demand, found.nodes())
    }
}
