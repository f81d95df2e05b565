//! Two-level predictor with local history: a branch's own last outcomes select the counter.
//!
//! Source: Yeh and Patt, Two-Level Adaptive Training Branch Prediction (MICRO 1991); the predictor of the Pentium III
//! records four outcomes (Fog, 2023).

use super::{Counters, Predict, ResolvedBranch, ones};

/// Default history length: four outcomes, as in the Pentium III.
const DEFAULT_HISTORY_BITS: u32 = 4;
/// Maximum history length, the 16 bits of an entry.
const MAX_HISTORY_BITS: u32 = 16;

/// A two-level predictor with local history.
#[derive(Debug)]
pub(super) struct TwoLevel {
    histories: Box<[u16]>,
    counters: Counters,
    history_bits: u32,
}

impl TwoLevel {
    /// Creates a predictor with at most `entries` counters, indexed by `history_bits` outcomes and, in the remaining
    /// bits, the branch's address.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        let counters = Counters::new(entries);
        let max_bits = counters.len_bits().min(MAX_HISTORY_BITS);
        let history_bits = history_bits.unwrap_or(DEFAULT_HISTORY_BITS).min(max_bits);
        let branches = 1 << (counters.len_bits() - history_bits);
        Self { histories: vec![0; branches].into(), counters, history_bits }
    }
}

impl Predict for TwoLevel {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        let branch = (outcome.address >> 2) as usize & (self.histories.len() - 1);
        let history = self.histories[branch];
        let index = (branch as u64) << self.history_bits | u64::from(history);
        let predicted = self.counters.predicts_taken(index);
        self.counters.learn(index, outcome.taken);
        self.histories[branch] = (history << 1 | u16::from(outcome.taken)) & ones(self.history_bits) as u16;
        predicted
    }
}
