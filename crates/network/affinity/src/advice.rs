//! Recommends a pair of CPUs, based on the topology and on a sweep of the candidates if there is one, with the commands
//! that apply it.
//!
//! Source: Hanford et al. 2014: the best pairs are different cores of the NIC's socket.

mod commands;
mod packaged;
mod queue_placement;
mod race;
mod zones;

pub use commands::{Commands, commands};
pub use packaged::{ConfigurationFile, Package};
pub use queue_placement::{DriverCapabilities, Group, QueuePlacement, Queues, Target};
pub use race::{Race, Round};

use crate::analysis::{Analysis, PairResult, differ};
use crate::interface::Nic;
use crate::pairs::{Class, Pair, classify};
use longma_topology::CpuLocation;
use serde::Serialize;

/// A candidate pair with its topological properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The pair.
    pub pair: Pair,
    /// Topological relation of its CPUs.
    pub class: Class,
    /// Whether the flow's CPU is on the node of the NIC, or of a NIC below the interface; `None` if the node is unknown.
    pub is_near: Option<bool>,
    /// Whether the application's CPU is on such a node; `None` if the node is unknown.
    pub is_application_near: Option<bool>,
}

/// The topology decides between pairs whose loss-weighted median reaches this fraction of the highest one.
const CLOSE_FRACTION: f64 = 0.99;

/// Evaluation of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The pair with the highest loss-weighted median.
    pub best: PairResult,
    /// Pairs whose difference from the best pair is not significant at 95 %.
    pub not_told_apart: Vec<Pair>,
    /// The recommended pair. The topology decides between the best pair and those that are within 1 % of it and not
    /// significantly different.
    pub choice: PairResult,
}

/// Ranks pairs by topology: first by the distance of the flow's node from the NIC, then by class, then pairs on one
/// node before others, because a cache may span several nodes. CPU 0 is last, because most other work runs on it.
pub fn candidates(places: &[CpuLocation], nic: &Nic, pairs: &[Pair]) -> Vec<Candidate> {
    let node_of = |cpu: u32| places.iter().find(|place| place.cpu == cpu).map(|place| place.node);
    let nodes = nic.nodes();
    let candidate = |pair: &Pair| {
        let pair = *pair;
        let near =
            |cpu: u32| (!nodes.is_empty()).then(|| node_of(cpu).is_some_and(|node| nodes.contains(&node)));
        let (is_near, is_application_near) = (near(pair.flow), near(pair.application));
        Some(Candidate { pair, class: classify(places, pair)?, is_near, is_application_near })
    };
    let mut all: Vec<Candidate> = pairs.iter().filter_map(candidate).collect();
    let rank = |class: Class| Class::ALL.iter().position(|of| *of == class);
    all.sort_by_cached_key(|candidate| {
        let pair = candidate.pair;
        let uses_first = pair.flow == 0 || pair.application == 0;
        let is_split = node_of(pair.flow) != node_of(pair.application);
        let distance = node_of(pair.flow).and_then(|node| distance_from(nic, node));
        (distance, rank(candidate.class), is_split, uses_first, pair)
    });
    all
}

/// Distance from the NIC, or the closest NIC below the interface, to `node`; `None` if no NIC's node is known.
fn distance_from(nic: &Nic, node: u32) -> Option<u32> {
    let own = |nic: &Nic| Some(nic.distances.between(nic.node?, node));
    std::iter::once(nic).chain(&nic.lower).filter_map(own).min()
}

/// Evaluates a measurement of candidates that are ranked by topology. Ignores pairs with less than half as many runs as
/// others: they were eliminated in a [`Race`].
pub fn evaluate(analysis: &Analysis, ranking: &[Candidate]) -> Option<Evaluation> {
    let max_repeats = analysis.pairs.iter().map(|result| result.gbps.len()).max()?;
    let measured: Vec<&PairResult> =
        analysis.pairs.iter().filter(|result| 2 * result.gbps.len() > max_repeats).collect();
    let best = measured
        .iter()
        .max_by(|one, other| one.median_weighed_gbps().total_cmp(&other.median_weighed_gbps()))?;
    // With a single run per pair the variance is unknown, so the highest median wins.
    let alike = |other: &&&PairResult| {
        other.pair != best.pair && differ(&other.weighed_gbps, &best.weighed_gbps) == Some(false)
    };
    let alike: Vec<&PairResult> = measured.iter().filter(alike).copied().collect();
    let rank =
        |result: &&PairResult| ranking.iter().position(|of| of.pair == result.pair).unwrap_or(usize::MAX);
    let least = CLOSE_FRACTION * best.median_weighed_gbps();
    let close = alike.iter().copied().filter(|other| other.median_weighed_gbps() >= least);
    let choice = close.chain([*best]).min_by_key(rank)?.clone();
    Some(Evaluation {
        not_told_apart: alike.iter().map(|other| other.pair).collect(),
        choice,
        best: (*best).clone(),
    })
}

#[cfg(test)]
mod tests;
