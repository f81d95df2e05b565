//! Lines that a core gives away as soon as they have come: until then they are what its stores wait for.
//! Not who gets them, nor when: a probe says that (see `probe`).
//! Source: a request for a line that is under way to its owner waits there until it has come and what waited for it is done (the
//! stalls in IM^D of Nagarajan et al., A Primer on Memory Consistency and Cache Coherence, 2nd edition, table 8.1); what waits for a
//! line is in its miss register (Kroft, Lockup-free instruction fetch/prefetch cache organization, ISCA 1981).

use super::private::Private;
use crate::cache::Line;

/// Lines that are remembered, each at a place of its own: more than a first level has miss registers.
const LINES: usize = 32;

/// A line that somebody else gets next.
#[derive(Clone, Copy, Debug)]
struct Given {
    line: Line,
    /// When it comes, and goes on at once, cycles of its owner.
    ready: u64,
}

/// The last lines that one core has given away before they had come.
#[derive(Debug)]
pub(super) struct GivenAway([Given; LINES]);

impl GivenAway {
    pub fn new() -> Self {
        Self([Given { line: Line(u64::MAX), ready: 0 }; LINES])
    }

    fn place(line: Line) -> usize {
        (line.hash() >> 32) as usize % LINES
    }

    /// `line` comes at `ready`, and is somebody else's from then on.
    pub fn note(&mut self, line: Line, ready: u64) {
        self.0[Self::place(line)] = Given { line, ready };
    }

    /// When `line` comes for what waits for it at `at`; `None` if it has come by then, or does not.
    pub fn comes(&self, line: Line, at: u64) -> Option<u64> {
        let given = self.0[Self::place(line)];
        (given.line == line && at < given.ready).then_some(given.ready)
    }
}

impl Private {
    /// When a store at `at` to a line that this core has not, or may not write, is done nevertheless: with those that waited for the line
    /// when another core asked for it.
    pub fn done_before_giving(&mut self, line: Line, at: u64) -> Option<u64> {
        let comes = self.given_away.comes(line, at)?;
        self.data.counters.merged += 1;
        Some(comes.max(at + self.data.latency))
    }
}
