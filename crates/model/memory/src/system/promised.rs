//! Lines in flight to a core that are already promised to the next one. Stores of the core that wait for the line
//! complete before the line moves.
//!
//! Source: a request for a line in flight to its owner waits until the line has arrived and the accesses waiting for it
//! are done (the stalls in IM^D of Nagarajan et al., A Primer on Memory Consistency and Cache Coherence, 2nd edition,
//! table 8.1). The accesses wait in the line's miss register (Kroft, Lockup-free instruction fetch/prefetch cache
//! organization, ISCA 1981).

use super::private::Private;
use crate::cache::Line;

/// Entries of the direct-mapped table: more than a first level has miss registers.
const LINES: usize = 32;

/// A line that moves to another core as soon as it arrives.
#[derive(Clone, Copy, Debug)]
struct PendingTransfer {
    line: Line,
    /// When it arrives and moves on, in cycles of its present owner.
    ready: u64,
}

/// The most recent lines of one core that were promised to another core before they arrived.
#[derive(Debug)]
pub(super) struct PromisedLines([PendingTransfer; LINES]);

impl PromisedLines {
    pub fn new() -> Self {
        Self([PendingTransfer { line: Line(u64::MAX), ready: 0 }; LINES])
    }

    fn index(line: Line) -> usize {
        (line.hash() >> 32) as usize % LINES
    }

    /// Records that `line` arrives at `ready` and then moves to another core.
    pub fn record(&mut self, line: Line, ready: u64) {
        self.0[Self::index(line)] = PendingTransfer { line, ready };
    }

    /// Returns the time at which `line` arrives for an access waiting at `at`; `None` if it is not recorded or has
    /// already moved on.
    pub fn arrival(&self, line: Line, at: u64) -> Option<u64> {
        let promise = self.0[Self::index(line)];
        (promise.line == line && at < promise.ready).then_some(promise.ready)
    }
}

impl Private {
    /// Returns the time at which a store at `at` completes if the line is promised to another core: it completes
    /// together with the stores that already wait for the line.
    pub fn store_before_transfer(&mut self, line: Line, at: u64) -> Option<u64> {
        let arrival = self.promised.arrival(line, at)?;
        self.data.counters.merged += 1;
        Some(arrival.max(at + self.data.latency))
    }
}
