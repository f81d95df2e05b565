//! A local and a global predictor, and a table that chooses between them.
//! Not the Alpha 21264 bit for bit: tables have the machine file's sizes.
//! Source: McFarling (DEC WRL TN-36, 1993); Kessler, The Alpha 21264 Microprocessor (IEEE Micro, 1999).

use super::{Counters, Outcome, Predict, gshare::Gshare, two_level::TwoLevel};

/// Outcomes of a branch the local predictor keeps: the 21264's ten.
const LOCAL_HISTORY_BITS: u32 = 10;

/// A tournament predictor.
#[derive(Debug)]
pub(super) struct Tournament {
    local: TwoLevel,
    global: Gshare,
    /// High where the global predictor was better.
    choice: Counters,
}

impl Tournament {
    /// With `entries` counters shared out: half global, a quarter local, a quarter to choose.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        Self {
            local: TwoLevel::new(entries / 4, Some(LOCAL_HISTORY_BITS)),
            global: Gshare::new(entries / 2, history_bits),
            choice: Counters::new(entries / 4),
        }
    }
}

impl Predict for Tournament {
    fn resolve(&mut self, outcome: Outcome) -> bool {
        let index = outcome.address >> 2;
        let (local, global) = (self.local.resolve(outcome), self.global.resolve(outcome));
        let predicted = if self.choice.predicts_taken(index) { global } else { local };
        if local != global {
            self.choice.learn(index, global == outcome.taken);
        }
        predicted
    }
}
