//! Counters chosen by the branch's address and the history of all branches, joined by exclusive or.
//! Not a chooser between predictors (see `tournament.rs`).
//! Source: McFarling, Combining Branch Predictors (DEC WRL TN-36, 1993).

use super::{Counters, Outcome, Predict, ones};

/// A gshare predictor.
#[derive(Debug)]
pub(super) struct Gshare {
    counters: Counters,
    history: u64,
    history_bits: u32,
}

impl Gshare {
    /// With at most `entries` counters and `history_bits` branches of history, by default as many as index the table.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        let counters = Counters::new(entries);
        let most = counters.len_bits();
        Self { history: 0, history_bits: history_bits.unwrap_or(most).min(most), counters }
    }
}

impl Predict for Gshare {
    fn resolve(&mut self, outcome: Outcome) -> bool {
        // The history meets the high bits of the index, where neighbouring branches differ least.
        let index = outcome.address >> 2 ^ self.history << (self.counters.len_bits() - self.history_bits);
        let predicted = self.counters.predicts_taken(index);
        self.counters.learn(index, outcome.taken);
        self.history = (self.history << 1 | u64::from(outcome.taken)) & ones(self.history_bits);
        predicted
    }
}
