//! Bimodal predictor: one two-bit counter per branch.
//!
//! Source: Smith, A Study of Branch Prediction Strategies (ISCA 1981).

use super::{Counters, Predict, ResolvedBranch};

/// A bimodal predictor.
#[derive(Debug)]
pub(super) struct Bimodal(Counters);

impl Bimodal {
    /// Creates a predictor with at most `entries` counters.
    pub fn new(entries: u32) -> Self {
        Self(Counters::new(entries))
    }
}

impl Predict for Bimodal {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        let index = outcome.address >> 2;
        let predicted = self.0.predicts_taken(index);
        self.0.learn(index, outcome.taken);
        predicted
    }
}
