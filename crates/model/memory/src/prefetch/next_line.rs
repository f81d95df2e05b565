//! Next-line prefetcher: a miss fetches the lines that follow.
//!
//! Source: one-block lookahead, Smith, Cache memories, ACM Computing Surveys 14(3), 1982, section 2.1.

use super::{Predicts, Reach, Wanted};
use crate::cache::Line;

#[derive(Debug)]
pub(super) struct NextLine;

impl Predicts for NextLine {
    fn observe(&mut self, line: Line, _instruction: u64, reach: Reach) -> Wanted {
        let mut wanted = Wanted::default();
        for n in 0..reach.degree {
            reach.want(&mut wanted, line, reach.distance + n);
        }
        wanted
    }
}
