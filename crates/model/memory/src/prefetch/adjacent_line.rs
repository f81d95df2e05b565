//! Adjacent-line prefetcher: a miss fetches the other line of its aligned pair. `degree` and `distance` have no effect.
//!
//! Source: Intel 64 and IA-32 Architectures Optimization Reference Manual (248966), section on data prefetching, the
//! spatial prefetcher.

use super::{Limits, Prediction, PrefetchAlgorithm};
use crate::cache::Line;

#[derive(Debug)]
pub(super) struct AdjacentLine;

impl PrefetchAlgorithm for AdjacentLine {
    fn observe(&mut self, line: Line, _instruction: u64, limits: Limits) -> Prediction {
        let mut prediction = Prediction::default();
        let step = if line.0.is_multiple_of(2) { 1 } else { -1 };
        limits.append(&mut prediction, line, step);
        prediction
    }
}
