//! Gshare predictor: counters indexed by the branch's address XOR the global history.
//!
//! Source: McFarling, Combining Branch Predictors (DEC WRL TN-36, 1993).

use super::{Counters, Predict, ResolvedBranch, ones};

/// A gshare predictor.
#[derive(Debug)]
pub(super) struct Gshare {
    counters: Counters,
    history: u64,
    history_bits: u32,
}

impl Gshare {
    /// Creates a predictor with at most `entries` counters and `history_bits` branches of history. The default history
    /// is as long as the table's index.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        let counters = Counters::new(entries);
        let max_bits = counters.len_bits();
        Self { history: 0, history_bits: history_bits.unwrap_or(max_bits).min(max_bits), counters }
    }
}

impl Predict for Gshare {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        // The history is XORed with the high bits of the index, in which adjacent branches differ least.
        let index = outcome.address >> 2 ^ self.history << (self.counters.len_bits() - self.history_bits);
        let predicted = self.counters.predicts_taken(index);
        self.counters.learn(index, outcome.taken);
        self.history = (self.history << 1 | u64::from(outcome.taken)) & ones(self.history_bits);
        predicted
    }
}
