//! Next-line prefetcher: a miss fetches the lines that follow.
//!
//! Source: one-block lookahead, Smith, Cache memories, ACM Computing Surveys 14(3), 1982, section 2.1.

use super::{Limits, Prediction, PrefetchAlgorithm};
use crate::cache::Line;

#[derive(Debug)]
pub(super) struct NextLine;

impl PrefetchAlgorithm for NextLine {
    fn observe(&mut self, line: Line, _instruction: u64, limits: Limits) -> Prediction {
        let mut prediction = Prediction::default();
        for n in 0..limits.degree {
            limits.append(&mut prediction, line, limits.distance + n);
        }
        prediction
    }
}
