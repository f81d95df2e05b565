//! Stream: misses on neighbouring lines in one direction start a stream that runs ahead of them.
//! Not buffers of their own: lines go into the cache.
//! Source: Jouppi, ISCA 1990 (stream buffers); confirmation and run-ahead as in IBM's POWER4 (Tendler et al., IBM Journal of
//! Research and Development 46(1), 2002, hardware data prefetch).

use super::{Reach, Wanted};
use crate::cache::Line;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    direction: i64,
    /// Misses in this direction so far.
    confirmed: u32,
    /// How far ahead of `last` it has run, in lines.
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
/// A miss this near to a stream's last line belongs to it: out-of-order cores swap neighbours.
const WINDOW_LINES: i64 = 4;

impl Streams {
    pub(super) fn new(streams: usize) -> Self {
        Self { streams: vec![Stream::default(); streams], now: 0 }
    }

    pub(super) fn observe(&mut self, line: Line, reach: Reach) -> Wanted {
        self.now += 1;
        let step_of = |s: &Stream| line.0.wrapping_sub(s.last) as i64;
        let near = |s: &Stream| s.used > 0 && step_of(s).abs() <= WINDOW_LINES.max(reach.distance);
        let Some(stream) = self.streams.iter_mut().find(|s| near(s)) else {
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
        for n in stream.ahead + 1..=until {
            reach.want(&mut wanted, line, n * stream.direction);
        }
        stream.ahead = until.max(stream.ahead);
        wanted
    }
}
