//! Months of arrivals and departures: what each strategy refuses, borrows and leaves in pieces.
//! Not in real time: events by their own clock, no hypervisor.
//! Source: none.

use crate::fleet;
use longma_placement::scheduler::{Strategy, Weights};
use longma_placement::{Host, Placement, Policy, Request, Scheduler};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How long arrivals are drawn before the beginning, for those that are there then: the longest lifetime.
const BEFORE_HOURS: f64 = 2160.0;

pub struct Options {
    pub hosts: usize,
    pub hours: f64,
    /// Offered load: part of the hosts' memory that would be in use if nothing were refused.
    pub load: f64,
    pub overcommit_percent: u32,
    pub weights: Weights,
}

/// What arrives when, and for how long.
struct Arrival {
    at: f64,
    leaves: f64,
    request: Request,
}

fn arrivals(options: &Options, hosts: &[Host], seed: u64) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut sample = StdRng::seed_from_u64(seed ^ 1);
    let draws = 200_000;
    let mean_mib = (0..draws).map(|_| fleet::request(&mut sample, "x".into()).memory_mib as f64).sum::<f64>()
        / draws as f64;
    let mean_hours = (0..draws).map(|_| fleet::lifetime_hours(&mut sample)).sum::<f64>() / draws as f64;
    let mib: f64 = hosts.iter().flat_map(|h| &h.nodes).map(|n| n.memory[0].mib as f64).sum();
    let an_hour = options.load * mib / mean_mib / mean_hours;
    let mut all = Vec::new();
    let mut at = -BEFORE_HOURS;
    loop {
        // Poisson arrivals.
        at -= (1.0 - random.random_range(0.0..1.0f64)).ln() / an_hour;
        if at > options.hours {
            return all;
        }
        let request = fleet::request(&mut random, format!("v{}", all.len()));
        let leaves = at + fleet::lifetime_hours(&mut random);
        if leaves > 0.0 {
            all.push(Arrival { at: at.max(0.0), leaves, request });
        }
    }
}

/// Part of the free memory that virtual machines of the common sizes could not use, each on one node: the mean over sizes by their memory.
fn fragmentation(scheduler: &Scheduler, percent: u32) -> f64 {
    let sizes: [(u32, u64); 4] = [(2, 8192), (4, 16384), (8, 32768), (16, 65536)];
    let mut lost = 0.0;
    for (vcpus, mib) in sizes {
        let (mut free, mut usable) = (0u64, 0u64);
        for name in scheduler.inventory().names() {
            let Some(usage) = scheduler.inventory().usage(name) else { continue };
            for node in usage.nodes {
                let cpus = ((node.cpus - node.exclusive) * percent / 100).saturating_sub(node.shared);
                let left = node.memory[0].1 - node.memory[0].2;
                free += left;
                usable += u64::from(cpus / vcpus).min(left / mib) * mib;
            }
        }
        lost += 1.0 - usable as f64 / free.max(1) as f64;
    }
    lost / sizes.len() as f64
}

pub fn run(options: &Options, strategy: Strategy, seed: u64) -> Value {
    let hosts = fleet::hosts(options.hosts);
    let policy = Policy {
        strategy,
        overcommit_percent: options.overcommit_percent,
        weights: options.weights,
        ..Policy::default()
    };
    let mut scheduler = Scheduler::new(policy, seed);
    hosts.iter().for_each(|h| scheduler.put_host(h).expect("a good host"));
    let mut leaving: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut placed: Vec<Option<Placement>> = Vec::new();
    let (mut arrived, mut refused, mut refused_mib, mut asked_mib) = (0u64, 0u64, 0u64, 0u64);
    let (mut borrowed, mut preferred, mut several) = (0.0f64, 0.0f64, 0u64);
    let (mut fragments, mut samples, mut used) = (0.0, 0u32, 0.0);
    let mut next_sample = options.hours * 0.1;
    let whole: u64 = hosts.iter().flat_map(|h| &h.nodes).map(|n| n.memory[0].mib).sum();
    let mut in_use = 0u64;
    for arrival in arrivals(options, &hosts, seed) {
        while leaving.peek().is_some_and(|Reverse((at, _))| *at as f64 / 1e6 <= arrival.at) {
            if let Some(Reverse((_, vm))) = leaving.pop() {
                let placement: longma_placement::Placement =
                    std::mem::take(&mut placed[vm]).expect("it leaves once");
                in_use -= placement.memory_mib().0;
                scheduler.give(&placement).expect("it was taken");
            }
        }
        if arrival.at >= next_sample {
            fragments += fragmentation(&scheduler, options.overcommit_percent);
            used += in_use as f64 / whole as f64;
            samples += 1;
            next_sample += options.hours * 0.05;
        }
        // Those that are there at the beginning are not counted.
        let counted = arrival.at > 0.0;
        let mib = arrival.request.memory_mib;
        arrived += u64::from(counted);
        asked_mib += if counted { mib } else { 0 };
        match scheduler.place(&arrival.request) {
            Ok(placement) => {
                let hours = arrival.leaves - arrival.at;
                let (all, remote) = placement.memory_mib();
                in_use += all;
                if counted && placement.memory != longma_placement::request::MemoryPolicy::Strict {
                    borrowed += remote as f64 * hours;
                    preferred += all as f64 * hours;
                }
                several += u64::from(counted && placement.cells.len() > 1);
                leaving.push(Reverse(((arrival.leaves * 1e6) as u64, placed.len())));
                placed.push(Some(placement));
            }
            Err(_) if counted => {
                refused += 1;
                refused_mib += mib;
            }
            Err(_) => {}
        }
    }
    json!({
        "strategy": strategy, "seed": seed, "arrived": arrived,
        "refused_percent": 100.0 * refused as f64 / arrived as f64,
        "refused_memory_percent": 100.0 * refused_mib as f64 / asked_mib as f64,
        "remote_percent": 100.0 * borrowed / preferred.max(1.0),
        "several_nodes_percent": 100.0 * several as f64 / arrived as f64,
        "fragmentation_percent": 100.0 * fragments / f64::from(samples.max(1)),
        "memory_used_percent": 100.0 * used / f64::from(samples.max(1)),
    })
}
