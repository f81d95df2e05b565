//! Perceptron predictor: a row of weights per branch, one for each bit of global history. The sign of the weighted sum
//! is the prediction. Rows are not hashed, and there is no path history.
//!
//! Source: Jimenez and Lin, Dynamic Branch Prediction with Perceptrons (HPCA 2001).

use super::{Predict, ResolvedBranch, ones};

/// Default history length, branches: within the 12 to 62 of the paper's table 1.
const DEFAULT_HISTORY_BITS: u32 = 28;
/// Maximum history length, the bits of a word less one.
const MAX_HISTORY_BITS: u32 = 63;

/// A perceptron predictor.
#[derive(Debug)]
pub(super) struct Perceptron {
    /// Rows of a bias and one weight per bit of history.
    weights: Box<[i8]>,
    rows: usize,
    history: u64,
    history_bits: u32,
    /// Training continues below this absolute sum.
    threshold: i32,
}

impl Perceptron {
    /// Creates a predictor with `entries` weights in total.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        let history_bits = history_bits.unwrap_or(DEFAULT_HISTORY_BITS).clamp(1, MAX_HISTORY_BITS);
        let width = history_bits + 1;
        let rows = (entries / width).max(1) as usize;
        Self {
            weights: vec![0; rows * width as usize].into(),
            rows,
            history: 0,
            history_bits,
            // The paper's best threshold, 1.93 h + 14.
            threshold: (193 * history_bits as i32) / 100 + 14,
        }
    }
}

impl Predict for Perceptron {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        let width = self.history_bits as usize + 1;
        let row = (outcome.address >> 2) as usize % self.rows;
        let weights = &mut self.weights[row * width..][..width];
        // Bit 0 is always set, for the bias.
        let inputs = self.history << 1 | 1;
        let signed = |set: bool, weight: i8| if set { i32::from(weight) } else { -i32::from(weight) };
        let sum: i32 = weights.iter().enumerate().map(|(bit, w)| signed(inputs >> bit & 1 != 0, *w)).sum();
        let predicted = sum >= 0;
        if predicted != outcome.taken || sum.abs() <= self.threshold {
            for (bit, weight) in weights.iter_mut().enumerate() {
                let agrees = (inputs >> bit & 1 != 0) == outcome.taken;
                *weight = if agrees { weight.saturating_add(1) } else { weight.saturating_sub(1) };
            }
        }
        self.history = (self.history << 1 | u64::from(outcome.taken)) & ones(self.history_bits);
        predicted
    }
}
