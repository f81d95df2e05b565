//! Replays arrivals and departures of virtual machines on modelled hosts under several placement policies, and compares
//! the refused requests, the remote memory and the fragmentation of free memory of each policy.
//!
//! Source: Law, "Simulation Modeling and Analysis", 5th edition, section 9.5.3: intervals from the means of batches of one
//! long run.

mod compare;
mod moves;

pub use compare::{Comparison, Interval, Recommendation, compare};

use crate::defragment::{COMMON_SIZES, inventory_score};
use crate::host::{Host, HostError};
use crate::placement::Placement;
use crate::request::Request;
use crate::scheduler::{Policy, Scheduler, Strategy, Weights};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of parts of equal numbers of requests into which a replay is divided for intervals.
pub const BATCHES: usize = 10;
/// Number of times that fragmentation is measured.
const SAMPLES: usize = 20;

/// A virtual machine of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// When it is requested, in hours.
    pub at: f64,
    /// When it is deleted, in hours; infinite if it outlives the trace.
    pub leaves: f64,
    /// The request.
    pub request: Request,
}

/// A policy under test.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name in tables.
    pub name: String,
    /// How hosts and nodes are chosen.
    pub policy: Policy,
    /// Whether a running virtual machine may move to another node of its host to make room for a request.
    pub moves: bool,
}

impl Candidate {
    /// Longma's policy with stated lifetimes weighed, with the settings of `policy`.
    pub fn with_lifetimes(policy: &Policy) -> Self {
        let weights = Weights { lifetime: Weights::with_lifetimes().lifetime, ..policy.weights };
        let policy = Policy { strategy: Strategy::Numa, weights, ..policy.clone() };
        Self { name: "longma with lifetimes".into(), policy, moves: false }
    }

    /// Longma's policy without and with moves, and the comparison strategies, with the settings of `policy`.
    pub fn all(policy: &Policy) -> Vec<Self> {
        let candidate = |name: &str, strategy, moves| Self {
            name: name.into(),
            policy: Policy { strategy, ..policy.clone() },
            moves,
        };
        vec![
            candidate("longma", Strategy::Numa, false),
            candidate("longma with moves", Strategy::Numa, true),
            candidate("first fit", Strategy::FirstFit, false),
            candidate("best fit by host", Strategy::BestFit, false),
            candidate("best fit by node", Strategy::BestNode, false),
            candidate("spreading", Strategy::Spread, false),
        ]
    }
}

/// Sums over a part of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sums {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that fitted on no host.
    pub refused: u64,
    /// Requested memory, MiB.
    pub requested_mib: u64,
    /// Memory of the refused requests, MiB.
    pub refused_mib: u64,
    /// Memory times the time it was held, MiB hours.
    pub held: f64,
    /// The part of it on other nodes than the virtual node's own.
    pub remote: f64,
}

impl Sums {
    fn part(part: f64, all: f64) -> f64 {
        if all > 0.0 { 100.0 * part / all } else { 0.0 }
    }

    /// Refused memory, percent of the requested memory.
    pub fn refused_percent(&self) -> f64 {
        Self::part(self.refused_mib as f64, self.requested_mib as f64)
    }

    /// Remote memory, percent of the memory of placed virtual machines over time.
    pub fn remote_percent(&self) -> f64 {
        Self::part(self.remote, self.held)
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.requested_mib += other.requested_mib;
        self.refused_mib += other.refused_mib;
        self.held += other.held;
        self.remote += other.remote;
    }
}

/// Result of a replay under one policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Sums over equal numbers of requests, in order.
    pub batches: Vec<Sums>,
    /// Free memory that virtual machines of common sizes cannot use, percent; mean over time.
    pub fragmentation_percent: f64,
    /// Number of moves of running virtual machines between nodes.
    pub moves: u64,
}

impl Outcome {
    /// Sums over the whole replay.
    pub fn total(&self) -> Sums {
        let mut total = Sums::default();
        self.batches.iter().for_each(|batch| total.add(batch));
        total
    }
}

/// Why a replay cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A host's description is inconsistent.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The arrivals are not in the order of their times.
    #[error("arrival {0} is earlier than the one before it")]
    Order(usize),
}

/// Replays `arrivals`, which are in the order of their times, on empty `hosts`. Those that arrive before hour 0 fill the
/// hosts and do not count. `seed` breaks ties between equally good hosts.
///
/// # Errors
/// If a host is inconsistent or the arrivals are out of order.
pub fn replay(
    hosts: &[Host],
    arrivals: &[Arrival],
    candidate: &Candidate,
    seed: u64,
) -> Result<Outcome, ReplayError> {
    if let Some(at) = arrivals.windows(2).position(|pair| pair[1].at < pair[0].at) {
        return Err(ReplayError::Order(at + 1));
    }
    let mut run = Run::new(hosts, candidate, seed)?;
    let first = arrivals.partition_point(|arrival| arrival.at < 0.0);
    let end = arrivals.last().map_or(0.0, |last| last.at);
    let counted = arrivals.len() - first;
    let mut outcome = Outcome::default();
    let mut scores = Vec::new();
    for (at, arrival) in arrivals.iter().enumerate() {
        run.release(arrival.at);
        let sums = run.arrive(at, arrival, end);
        let Some(number) = at.checked_sub(first) else { continue };
        let batch = number * BATCHES.min(counted) / counted;
        if outcome.batches.len() <= batch {
            outcome.batches.push(Sums::default());
        }
        if let Some(batch) = outcome.batches.last_mut() {
            batch.add(&sums);
        }
        if scores.len() <= number * SAMPLES / counted {
            scores.push(inventory_score(
                run.scheduler.inventory(),
                &COMMON_SIZES,
                candidate.policy.overcommit_percent,
            ));
        }
    }
    let fragmentation = 100.0 * scores.iter().sum::<f64>() / scores.len().max(1) as f64;
    // Avoids the negative zero of rounding.
    outcome.fragmentation_percent = fragmentation.max(0.0) + 0.0;
    outcome.moves = run.moves;
    Ok(outcome)
}

/// Replays `arrivals` under each candidate, on as many threads as the machine has CPUs. Returns the outcomes by name.
///
/// # Errors
/// As [`replay`].
pub fn replay_all(
    hosts: &[Host],
    arrivals: &[Arrival],
    candidates: &[Candidate],
    seed: u64,
) -> Result<Vec<(String, Outcome)>, ReplayError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(candidate) = candidates.get(at) else { return done };
            done.push((at, replay(hosts, arrivals, candidate, seed)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(candidates.len());
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        // A panic in a thread continues here.
        joined.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.sort_by_key(|one| one.0);
    done.into_iter().map(|(at, outcome)| Ok((candidates[at].name.clone(), outcome?))).collect()
}

/// Time of the scheduler, which begins at the earliest time of a trace.
fn seconds(hours: f64) -> i64 {
    (hours * 3600.0) as i64
}

/// State of a replay.
struct Run<'a> {
    hosts: &'a [Host],
    scheduler: Scheduler,
    moving: bool,
    moves: u64,
    /// Placement of each arrival that is present.
    placed: Vec<Option<Placement>>,
    /// Departures as (order of the time, arrival).
    leaving: BinaryHeap<Reverse<(u64, usize)>>,
    residents: moves::Residents,
}

/// Converts a time to an integer of the same order.
fn order(hours: f64) -> u64 {
    // Flips the sign bit of positive numbers, and all bits of negative ones.
    let bits = hours.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

impl<'a> Run<'a> {
    fn new(hosts: &'a [Host], candidate: &Candidate, seed: u64) -> Result<Self, HostError> {
        let mut scheduler = Scheduler::new(candidate.policy.clone(), seed);
        hosts.iter().try_for_each(|host| scheduler.put_host(host))?;
        Ok(Self {
            hosts,
            scheduler,
            moving: candidate.moves,
            moves: 0,
            placed: Vec::new(),
            leaving: BinaryHeap::new(),
            residents: moves::Residents::new(hosts),
        })
    }

    /// Removes the virtual machines that leave at `hours` or earlier.
    fn release(&mut self, hours: f64) {
        while self.leaving.peek().is_some_and(|Reverse((at, _))| *at <= order(hours)) {
            let Some(Reverse((_, vm))) = self.leaving.pop() else { break };
            if let Some(placement) = self.placed[vm].take() {
                self.residents.remove(&placement.host, vm);
                let given = self.scheduler.release(&placement);
                debug_assert_eq!(given, Ok(()));
            }
        }
    }

    fn arrive(&mut self, at: usize, arrival: &Arrival, end: f64) -> Sums {
        let mib = arrival.request.memory_mib;
        let mut sums = Sums { requests: 1, requested_mib: mib, ..Sums::default() };
        self.placed.push(None);
        self.scheduler.set_time(seconds(arrival.at));
        let mut found = self.scheduler.place(&arrival.request).ok();
        if found.is_none() && self.moving {
            found = self.make_room(&arrival.request);
        }
        let Some(placement) = found else {
            (sums.refused, sums.refused_mib) = (1, mib);
            return sums;
        };
        let (all, remote) = placement.memory_mib();
        let hours = (arrival.leaves.min(end) - arrival.at.max(0.0)).max(0.0);
        (sums.held, sums.remote) = (all as f64 * hours, remote as f64 * hours);
        self.residents.add(&placement.host, at, &arrival.request);
        self.leaving.push(Reverse((order(arrival.leaves), at)));
        self.placed[at] = Some(placement);
        sums
    }
}
