//! Compares the outcomes of a replay under several policies and recommends one.

use super::{Outcome, Sums};
use serde::Serialize;

/// A mean with half of its 95 % interval, percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half of the interval by Student's t; infinite for fewer than two values.
    pub half: f64,
}

impl Interval {
    /// The mean of `values`, which are taken as independent.
    pub fn of(values: &[f64]) -> Self {
        let interval = longma_confidence::Interval::of(values);
        Self {
            mean: interval.map_or(0.0, |interval| interval.mean),
            half: interval.and_then(|interval| interval.half).unwrap_or(f64::INFINITY),
        }
    }

    /// Returns whether 0 is outside the interval.
    pub fn excludes_zero(&self) -> bool {
        self.mean.abs() > self.half
    }
}

/// One policy's row of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The policy.
    pub policy: String,
    /// Refused requests, percent of all requests.
    pub refused_requests: f64,
    /// Refused memory, percent of the requested memory.
    pub refused: Interval,
    /// Remote memory, percent of the memory in use.
    pub remote: Interval,
    /// Free memory that virtual machines of common sizes cannot use, percent.
    pub fragmentation: f64,
    /// Moves of running virtual machines.
    pub moves: u64,
}

/// The recommended policy, and its advantage over the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The policy.
    pub policy: String,
    /// The best of the policies that refuse measurably more, if there is one.
    pub next: Option<String>,
    /// Refused memory of `next` minus that of `policy`, percentage points.
    pub margin: Option<Interval>,
    /// The other policies whose refused memory is not significantly higher than the lowest. `policy` has the least
    /// remote memory of all of these; ties go to the policy that refuses least.
    pub alike: Vec<String>,
}

/// Compares named outcomes of one trace. `None` if there are no outcomes.
pub fn compare(outcomes: &[(String, Outcome)]) -> Option<(Vec<Comparison>, Recommendation)> {
    let rows = outcomes.iter().map(|(name, outcome)| {
        let total = outcome.total();
        let interval = |of: fn(&Sums) -> f64, mean| Interval {
            mean,
            half: Interval::of(&outcome.batches.iter().map(of).collect::<Vec<_>>()).half,
        };
        Comparison {
            policy: name.clone(),
            refused_requests: 100.0 * total.refused as f64 / (total.requests as f64).max(1.0),
            refused: interval(Sums::refused_percent, total.refused_percent()),
            remote: interval(Sums::remote_percent, total.remote_percent()),
            fragmentation: outcome.fragmentation_percent,
            moves: outcome.moves,
        }
    });
    let rows: Vec<Comparison> = rows.collect();
    let least = |a: &usize, b: &usize| rows[*a].refused.mean.total_cmp(&rows[*b].refused.mean);
    let best = (0..rows.len()).min_by(least)?;
    // All policies see the same requests, so the difference between two policies varies less from batch to batch than
    // each percentage.
    let excess = |at: usize, over: usize| {
        let batches = outcomes[at].1.batches.iter().zip(&outcomes[over].1.batches);
        Interval::of(&batches.map(|(a, b)| a.refused_percent() - b.refused_percent()).collect::<Vec<_>>())
    };
    let is_alike = |at: &usize| *at == best || !excess(*at, best).excludes_zero();
    let alike: Vec<usize> = (0..rows.len()).filter(is_alike).collect();
    let less_remote = |a: usize, b: usize| rows[a].remote.mean.total_cmp(&rows[b].remote.mean);
    let chosen = *alike.iter().min_by(|a, b| less_remote(**a, **b).then_with(|| least(a, b)))?;
    let next = (0..rows.len()).filter(|at| !alike.contains(at)).min_by(least);
    let recommendation = Recommendation {
        policy: rows[chosen].policy.clone(),
        next: next.map(|next| rows[next].policy.clone()),
        margin: next.map(|next| excess(next, chosen)),
        alike: alike.iter().filter(|at| **at != chosen).map(|at| rows[*at].policy.clone()).collect(),
    };
    Some((rows, recommendation))
}
