//! Stream prefetcher: misses on adjacent lines in one direction start a stream that runs ahead of the accesses. Lines
//! are fetched into the cache; there are no separate stream buffers.
//!
//! Source: Jouppi, ISCA 1990 (stream buffers); confirmation and run-ahead as in IBM's POWER4 (Tendler et al., IBM
//! Journal of Research and Development 46(1), 2002, hardware data prefetch).

use super::{Limits, Prediction, PrefetchAlgorithm};
use crate::cache::Line;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    direction: i64,
    /// Consecutive misses in this direction so far.
    confirmed: u32,
    /// Lines fetched ahead of `last`. Lines beyond a page boundary that were not fetched are not counted.
    ahead: i64,
    /// Time of the last use; 0 if the entry is free.
    used: u64,
}

/// The table of streams; a new stream replaces the least recently used one.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    now: u64,
}

/// Misses after the first that confirm a stream.
const CONFIRMED: u32 = 2;
/// Maximum distance of a miss from a stream's last line: out-of-order cores swap adjacent lines. A sequence with longer
/// steps is not a stream, because fetching the lines in between would be useless.
const NEIGHBOUR_LINES: i64 = 2;

impl Stream {
    /// Returns whether a miss `step` lines after the last one belongs to the stream: it is close to the stream's last
    /// line, or in the range fetched ahead.
    fn continues(&self, step: i64) -> bool {
        let prefetched = if self.confirmed >= CONFIRMED { self.ahead } else { 0 };
        self.used > 0
            && (step.abs() <= NEIGHBOUR_LINES || (1..=prefetched + 1).contains(&(step * self.direction)))
    }
}

impl Streams {
    pub(super) fn new(streams: usize) -> Self {
        Self { streams: vec![Stream::default(); streams], now: 0 }
    }
}

impl PrefetchAlgorithm for Streams {
    fn observe(&mut self, line: Line, _instruction: u64, limits: Limits) -> Prediction {
        self.now += 1;
        let step_of = |s: &Stream| line.0.wrapping_sub(s.last) as i64;
        // Choose the nearest stream, so that a stream that has run ahead does not capture the accesses of another one.
        let continued = self.streams.iter_mut().filter(|s| s.continues(step_of(s)));
        let Some(stream) = continued.min_by_key(|s| step_of(s).unsigned_abs()) else {
            let oldest = self.streams.iter_mut().min_by_key(|s| s.used);
            if let Some(oldest) = oldest {
                *oldest = Stream { last: line.0, used: self.now, ..Stream::default() };
            }
            return Prediction::default();
        };
        let step = step_of(stream);
        stream.used = self.now;
        if step == 0 || step.signum() != stream.direction {
            // This is either the second miss, which sets the direction, or a late access to a line behind a running
            // stream.
            if stream.confirmed < CONFIRMED && step != 0 {
                *stream =
                    Stream { last: line.0, direction: step.signum(), confirmed: 1, ahead: 0, used: self.now };
            }
            return Prediction::default();
        }
        stream.last = line.0;
        stream.confirmed += 1;
        stream.ahead = (stream.ahead - step.abs()).max(0);
        if stream.confirmed < CONFIRMED {
            return Prediction::default();
        }
        let until = (stream.ahead + limits.degree).min(limits.distance);
        let mut prediction = Prediction::default();
        while stream.ahead < until
            && limits.append(&mut prediction, line, (stream.ahead + 1) * stream.direction)
        {
            stream.ahead += 1;
        }
        prediction
    }

    fn truncated(&mut self, from: Line) {
        // The prediction was made by the stream used last.
        if let Some(stream) = self.streams.iter_mut().max_by_key(|s| s.used) {
            let prefetched = (from.0.wrapping_sub(stream.last) as i64 * stream.direction - 1).max(0);
            stream.ahead = stream.ahead.min(prefetched);
        }
    }
}
