//! Chooses which pairs to measure in order to find the best one: a few of each class once, more of the leading classes,
//! and the best pairs often.
//!
//! Source: successive halving (Karnin, Koren and Somekh, Almost Optimal Exploration in Multi-Armed Bandits, ICML 2013).
//! Pairs with the same topology initially form one arm.

use super::Candidate;
use crate::analysis::{Analysis, PairResult};
use crate::pairs::Pair;
use std::collections::BTreeSet;

/// Pairs of each kind in the first round. Two, so that a kind is not judged by a single busy CPU.
const FIRST_ROUND_PAIRS: usize = 2;
/// A kind is leading if its best pair reaches this fraction of the overall best. It is low because a single run is
/// unreliable.
const LEADS: f64 = 0.8;
/// Number of runs per pair after the second round.
const SECOND_ROUND_RUNS: u32 = 2;
/// Number of pairs in the last round.
const FINALISTS: usize = 4;

/// A round of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The pairs to measure.
    pub pairs: Vec<Pair>,
    /// Number of runs that each pair must have, including earlier ones.
    pub repeats: u32,
}

/// Generates the rounds of a measurement.
#[derive(Clone, Debug)]
pub struct Race<'a> {
    ranking: &'a [Candidate],
    candidates: usize,
    repeats: u32,
    done: u32,
}

impl<'a> Race<'a> {
    /// Creates a race of candidates ranked by topology. The second round has at most `candidates` pairs. The last round
    /// repeats its pairs until each has `repeats` runs.
    pub fn new(ranking: &'a [Candidate], candidates: usize, repeats: u32) -> Self {
        Self { ranking, candidates, repeats, done: 0 }
    }

    /// Upper bound of the total number of runs.
    pub fn most_runs(&self) -> usize {
        let kinds: Vec<_> = self.kinds();
        let (repeats, second) = (self.repeats as usize, SECOND_ROUND_RUNS.min(self.repeats) as usize);
        let last = FINALISTS.min(self.candidates) * repeats.saturating_sub(second);
        kinds.len() * FIRST_ROUND_PAIRS + self.candidates * second + last
    }

    /// Returns the next round, given the analysis of the previous ones; `None` after the last.
    pub fn next(&mut self, analysis: &Analysis) -> Option<Round> {
        self.done += 1;
        match self.done {
            1 => Some(Round { pairs: self.heats(), repeats: 1 }),
            2 => Some(Round {
                pairs: self.second_round(analysis),
                repeats: SECOND_ROUND_RUNS.min(self.repeats),
            }),
            3 => Some(Round {
                pairs: finalists(analysis, FINALISTS.min(self.candidates)),
                repeats: self.repeats,
            }),
            _ => None,
        }
    }

    /// The kinds of pairs, in the order of the topological ranking.
    fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for kind in self.ranking.iter().map(kind) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    fn heats(&self) -> Vec<Pair> {
        self.kinds().into_iter().flat_map(|kind| self.apart(&[kind], &[], FIRST_ROUND_PAIRS)).collect()
    }

    /// The best pairs of the first round, and more pairs of the leading kinds.
    fn second_round(&self, analysis: &Analysis) -> Vec<Pair> {
        let best = analysis.best().map_or(0.0, PairResult::median_weighed_gbps);
        let leads = |of: &Kind| {
            let pairs = self.ranking.iter().filter(|candidate| kind(candidate) == *of).map(|of| of.pair);
            pairs.filter_map(|pair| rate(analysis, pair)).any(|gbps| gbps >= LEADS * best)
        };
        let leading: Vec<Kind> = self.kinds().into_iter().filter(leads).collect();
        let known: Vec<Pair> = analysis.pairs.iter().map(|result| result.pair).collect();
        let mut pairs = finalists(analysis, self.candidates / 2);
        let more = self.apart(&leading, &known, self.candidates - pairs.len());
        pairs.extend(more);
        pairs
    }

    /// Unmeasured pairs, which alternate between these kinds, on CPUs not used by other pairs if possible.
    fn apart(&self, kinds: &[Kind], known: &[Pair], count: usize) -> Vec<Pair> {
        let mut chosen: Vec<Pair> = Vec::new();
        let mut used: BTreeSet<(bool, u32)> = BTreeSet::new();
        let ends = |pair: Pair| [(true, pair.flow), (false, pair.application)];
        known.iter().for_each(|pair| used.extend(ends(*pair)));
        let mut turn = 0;
        let mut exhausted = 0;
        while chosen.len() < count && exhausted < kinds.len() {
            let of = &kinds[turn % kinds.len()];
            let open = self.ranking.iter().filter(|candidate| kind(candidate) == *of).map(|of| of.pair);
            let open = open.filter(|pair| !known.contains(pair) && !chosen.contains(pair));
            // min_by_key returns the first minimum, which the topology ranks highest.
            let next = open.min_by_key(|pair| ends(*pair).iter().filter(|end| used.contains(end)).count());
            match next {
                Some(pair) => {
                    used.extend(ends(pair));
                    chosen.push(pair);
                    exhausted = 0;
                }
                None => exhausted += 1,
            }
            turn += 1;
        }
        chosen
    }
}

/// Pairs of one kind have the same class and the same distances from the NIC.
type Kind = (crate::pairs::Class, Option<bool>, Option<bool>);

fn kind(candidate: &Candidate) -> Kind {
    (candidate.class, candidate.is_near, candidate.is_application_near)
}

fn rate(analysis: &Analysis, pair: Pair) -> Option<f64> {
    analysis.pairs.iter().find(|result| result.pair == pair).map(PairResult::median_weighed_gbps)
}

/// The pairs with the highest medians.
fn finalists(analysis: &Analysis, count: usize) -> Vec<Pair> {
    let mut all: Vec<_> = analysis.pairs.iter().collect();
    all.sort_by(|one, other| other.median_weighed_gbps().total_cmp(&one.median_weighed_gbps()));
    all.into_iter().take(count).map(|result| result.pair).collect()
}

#[cfg(test)]
mod tests;
