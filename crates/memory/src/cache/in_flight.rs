//! Lines on their way into a cache whose tags hold them already: a second access must not be answered before they come.
//! Not complete: a small table that forgets a line when another takes its place, which then looks as if it had arrived.
//! Source: our own.

use super::Line;

/// Lines remembered: more than the misses that all cores of a domain can have outstanding, so that few are forgotten.
const ENTRIES: usize = 512;

/// When lines arrive, in any one unit of time.
#[derive(Debug)]
pub(crate) struct InFlight {
    entries: Vec<(Line, u64)>,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { entries: vec![(Line(u64::MAX), 0); ENTRIES] }
    }
}

impl InFlight {
    #[inline]
    fn at(line: Line) -> usize {
        (line.hash() >> 32) as usize & (ENTRIES - 1)
    }

    /// `line` arrives at `ready`.
    #[inline]
    pub fn note(&mut self, line: Line, ready: u64) {
        self.entries[Self::at(line)] = (line, ready);
    }

    /// When `line` arrives, as far as that is remembered; 0 if it is not.
    #[inline]
    pub fn ready(&self, line: Line) -> u64 {
        let (known, ready) = self.entries[Self::at(line)];
        if known == line { ready } else { 0 }
    }
}
