//! Arrival times of lines whose fill is still in flight. The tags already contain such a line, so a second access must
//! not complete before the line arrives. An entry is kept until every later call has a time after the arrival.

use super::Line;

/// Lines of a bucket. A bucket spans two adjacent cache lines of the host.
const BUCKET: usize = 8;
/// Initial number of buckets. The table grows when a bucket is full.
const BUCKETS: usize = 32;

/// Lines with the same hash and their arrival times. Entries that arrived before the window are free for reuse.
type Bucket = [(Line, u64); BUCKET];

/// Arrival times of lines, in any one unit. Calls may come out of time order, but never earlier than `window` before
/// the latest time recorded, so entries older than that can be discarded.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The length is a power of two.
    buckets: Vec<Bucket>,
    window: u64,
    /// The latest request time recorded.
    latest: u64,
}

const EMPTY: (Line, u64) = (Line(u64::MAX), 0);

impl InFlight {
    /// Creates an empty table. Requests may be out of time order by at most `window`.
    pub fn new(window: u64) -> Self {
        Self { buckets: vec![[EMPTY; BUCKET]; BUCKETS], window, latest: 0 }
    }

    #[inline]
    fn at(&self, line: Line) -> usize {
        (line.hash() >> 32) as usize & (self.buckets.len() - 1)
    }

    /// Records that `line` was requested at `at` and arrives at `ready`.
    #[inline]
    pub fn record(&mut self, line: Line, at: u64, ready: u64) {
        self.latest = self.latest.max(at);
        if ready <= at {
            self.arrived(line);
            return;
        }
        while !self.store(line, ready) {
            self.grow();
        }
    }

    /// Stores a line in its bucket. Returns false if the bucket is full.
    #[inline]
    fn store(&mut self, line: Line, ready: u64) -> bool {
        let (expired, bucket) = (self.latest.saturating_sub(self.window), self.at(line));
        let bucket = &mut self.buckets[bucket];
        let place = bucket.iter().position(|kept| kept.0 == line);
        let place = place.or_else(|| bucket.iter().position(|kept| kept.1 <= expired));
        place.inspect(|place| bucket[*place] = (line, ready)).is_some()
    }

    /// Removes `line`.
    fn arrived(&mut self, line: Line) {
        let bucket = self.at(line);
        self.buckets[bucket].iter_mut().filter(|kept| kept.0 == line).for_each(|kept| *kept = EMPTY);
    }

    /// Doubles the number of buckets until every live entry fits.
    #[cold]
    fn grow(&mut self) {
        let expired = self.latest.saturating_sub(self.window);
        let live: Vec<_> = self.buckets.iter().flatten().filter(|live| live.1 > expired).copied().collect();
        let mut buckets = self.buckets.len();
        loop {
            buckets *= 2;
            self.buckets = vec![[EMPTY; BUCKET]; buckets];
            if live.iter().all(|(line, ready)| self.store(*line, *ready)) {
                return;
            }
        }
    }

    /// Returns the arrival time of `line`, or 0 if none is recorded. A time in the past means that the line has
    /// arrived.
    #[inline]
    pub fn ready(&self, line: Line) -> u64 {
        let bucket = &self.buckets[self.at(line)];
        bucket.iter().find(|kept| kept.0 == line).map_or(0, |kept| kept.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn thousands_of_lines_can_be_in_flight() {
        let mut in_flight = InFlight::new(1000);
        (0..5000).for_each(|line| in_flight.record(Line(line), line / 10, 700 + line));
        assert!((0..5000).all(|line| in_flight.ready(Line(line)) == 700 + line));
    }

    #[test]
    fn arrived_lines_free_their_entries() {
        let mut in_flight = InFlight::new(1000);
        (0..1_000_000).for_each(|line| in_flight.record(Line(line), 100 * line, 100 * line + 300));
        assert!(in_flight.buckets.len() <= 4 * BUCKETS, "{} buckets for ten lines", in_flight.buckets.len());
    }

    proptest! {
        #[test]
        fn an_access_waits_for_every_line_in_flight(
            lines in prop::collection::vec((0u64..3000, 0u64..40, 0u64..500, 1u64..400), 1..2000),
        ) {
            let (mut in_flight, mut all, mut now) = (InFlight::new(500), HashMap::new(), 500);
            for (line, later, back, takes) in lines {
                now += later;
                let at = now - back;
                let expected = all.get(&line).copied().filter(|ready| *ready > at);
                let found = Some(in_flight.ready(Line(line))).filter(|ready| *ready > at);
                prop_assert_eq!(found, expected);
                in_flight.record(Line(line), at, at + takes);
                all.insert(line, at + takes);
            }
        }
    }
}
