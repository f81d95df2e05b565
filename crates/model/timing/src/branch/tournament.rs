//! Tournament predictor: a local and a global predictor, and a table that chooses between them. Modelled after the
//! Alpha 21264, with table sizes from the machine file.
//!
//! Source: McFarling (DEC WRL TN-36, 1993); Kessler, The Alpha 21264 Microprocessor (IEEE Micro, 1999).

use super::{Counters, Predict, ResolvedBranch, gshare::Gshare, two_level::TwoLevel};

/// Local history length: ten outcomes, as in the 21264.
const LOCAL_HISTORY_BITS: u32 = 10;

/// A tournament predictor.
#[derive(Debug)]
pub(super) struct Tournament {
    local: TwoLevel,
    global: Gshare,
    /// High counters choose the global predictor.
    choice: Counters,
}

impl Tournament {
    /// Creates a predictor with `entries` counters: half global, a quarter local, a quarter for the choice.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        Self {
            local: TwoLevel::new(entries / 4, Some(LOCAL_HISTORY_BITS)),
            global: Gshare::new(entries / 2, history_bits),
            choice: Counters::new(entries / 4),
        }
    }
}

impl Predict for Tournament {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        let index = outcome.address >> 2;
        let (local, global) = (self.local.resolve(outcome), self.global.resolve(outcome));
        let predicted = if self.choice.predicts_taken(index) { global } else { local };
        if local != global {
            self.choice.learn(index, global == outcome.taken);
        }
        predicted
    }
}
