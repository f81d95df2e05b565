//! Stream: misses on neighbouring lines in one direction start a stream that runs ahead of them.
//! Not buffers of their own: lines go into the cache.
//! Source: Jouppi, ISCA 1990 (stream buffers); confirmation and run-ahead as in IBM's POWER4 (Tendler et al., IBM Journal of
//! Research and Development 46(1), 2002, hardware data prefetch).

use super::{Predicts, Reach, Wanted};
use crate::cache::Line;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    direction: i64,
    /// Misses in this direction so far.
    confirmed: u32,
    /// How far ahead of `last` it has run, in lines: as far as they were within reach, so that it does not count what lies beyond a page.
    ahead: i64,
    /// When it was last used; 0 if it never was.
    used: u64,
}

/// The streams a prefetcher follows; the one used longest ago makes room.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    now: u64,
}

/// Misses in a row before a stream runs.
const CONFIRMED: u32 = 2;
/// A miss this near to a stream's last line belongs to it: out-of-order cores swap neighbours. What goes in longer steps is no stream,
/// and the lines between would be brought for nothing.
const NEIGHBOUR_LINES: i64 = 2;

impl Stream {
    /// True if a miss `step` lines behind the last one belongs to the stream: to a neighbour, or to what it has brought already.
    fn goes_on(&self, step: i64) -> bool {
        let brought = if self.confirmed >= CONFIRMED { self.ahead } else { 0 };
        self.used > 0
            && (step.abs() <= NEIGHBOUR_LINES || (1..=brought + 1).contains(&(step * self.direction)))
    }
}

impl Streams {
    pub(super) fn new(streams: usize) -> Self {
        Self { streams: vec![Stream::default(); streams], now: 0 }
    }
}

impl Predicts for Streams {
    fn observe(&mut self, line: Line, _instruction: u64, reach: Reach) -> Wanted {
        self.now += 1;
        let step_of = |s: &Stream| line.0.wrapping_sub(s.last) as i64;
        // The nearest of them, so that one that runs ahead takes nothing that another has come to.
        let near = self.streams.iter_mut().filter(|s| s.goes_on(step_of(s)));
        let Some(stream) = near.min_by_key(|s| step_of(s).unsigned_abs()) else {
            let oldest = self.streams.iter_mut().min_by_key(|s| s.used);
            if let Some(oldest) = oldest {
                *oldest = Stream { last: line.0, used: self.now, ..Stream::default() };
            }
            return Wanted::default();
        };
        let step = step_of(stream);
        stream.used = self.now;
        if step == 0 || step.signum() != stream.direction {
            // A first direction, or a late neighbour of a running stream.
            if stream.confirmed < CONFIRMED && step != 0 {
                *stream =
                    Stream { last: line.0, direction: step.signum(), confirmed: 1, ahead: 0, used: self.now };
            }
            return Wanted::default();
        }
        stream.last = line.0;
        stream.confirmed += 1;
        stream.ahead = (stream.ahead - step.abs()).max(0);
        if stream.confirmed < CONFIRMED {
            return Wanted::default();
        }
        let until = (stream.ahead + reach.degree).min(reach.distance);
        let mut wanted = Wanted::default();
        while stream.ahead < until && reach.want(&mut wanted, line, (stream.ahead + 1) * stream.direction) {
            stream.ahead += 1;
        }
        wanted
    }

    fn left_out(&mut self, from: Line) {
        // The stream that has just been asked.
        if let Some(stream) = self.streams.iter_mut().max_by_key(|s| s.used) {
            let brought = (from.0.wrapping_sub(stream.last) as i64 * stream.direction - 1).max(0);
            stream.ahead = stream.ahead.min(brought);
        }
    }
}
