//! Stride prefetcher: a load that advances twice by the same stride is expected to continue. Strides are in lines,
//! because the prefetcher only sees misses.
//!
//! Source: the reference prediction table of Chen and Baer, IEEE Transactions on Computers 44(5), 1995, section 3.

use super::{Limits, Prediction, PrefetchAlgorithm};
use crate::cache::Line;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    instruction: u64,
    last: u64,
    stride: i64,
}

/// A direct-mapped table, indexed by the address of the load instruction.
#[derive(Debug)]
pub(super) struct Strides {
    entries: Vec<Entry>,
}

impl Strides {
    pub(super) fn new(entries: usize) -> Self {
        Self { entries: vec![Entry::default(); entries.next_power_of_two()] }
    }
}

impl PrefetchAlgorithm for Strides {
    fn observe(&mut self, line: Line, instruction: u64, limits: Limits) -> Prediction {
        // Instructions are four bytes long.
        let at = (instruction >> 2) as usize & (self.entries.len() - 1);
        let entry = &mut self.entries[at];
        let mut prediction = Prediction::default();
        if entry.instruction != instruction {
            *entry = Entry { instruction, last: line.0, stride: 0 };
            return prediction;
        }
        let stride = line.0.wrapping_sub(entry.last) as i64;
        entry.last = line.0;
        let confirmed = stride != 0 && stride == entry.stride;
        entry.stride = stride;
        if confirmed {
            for n in 0..limits.degree {
                limits.append(&mut prediction, line, stride.saturating_mul(limits.distance + n));
            }
        }
        prediction
    }
}
