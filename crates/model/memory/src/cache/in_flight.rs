//! Lines on their way into a cache whose tags hold them already: a second access must not be answered before they come.
//! Not what has arrived for everybody: a line is kept until nobody can ask any more for a time before it came.

use super::Line;

/// Lines of a bucket, which lie in two neighbouring lines of the host's cache.
const BUCKET: usize = 8;
/// Buckets at first; there are more as soon as one has no room.
const BUCKETS: usize = 32;

/// Lines with the same place, and when each arrives. What arrived long ago is room.
type Bucket = [(Line, u64); BUCKET];

/// When lines arrive, in any one unit of time. It forgets nothing that matters: accesses ask in any order, but none asks for a time
/// that is longer than the window before the latest one noted.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// A power of two of them.
    buckets: Vec<Bucket>,
    window: u64,
    /// The latest time at which a line was asked for.
    latest: u64,
}

const NOTHING: (Line, u64) = (Line(u64::MAX), 0);

impl InFlight {
    /// Nothing under way. Accesses come out of order by no more than `window`.
    pub fn new(window: u64) -> Self {
        Self { buckets: vec![[NOTHING; BUCKET]; BUCKETS], window, latest: 0 }
    }

    #[inline]
    fn at(&self, line: Line) -> usize {
        (line.hash() >> 32) as usize & (self.buckets.len() - 1)
    }

    /// `line` was asked for at `at`, and arrives at `ready`.
    #[inline]
    pub fn note(&mut self, line: Line, at: u64, ready: u64) {
        self.latest = self.latest.max(at);
        if ready <= at {
            self.arrived(line);
            return;
        }
        while !self.keep(line, ready) {
            self.grow();
        }
    }

    /// Keeps a line in its bucket; false if that has no room.
    #[inline]
    fn keep(&mut self, line: Line, ready: u64) -> bool {
        let (over, bucket) = (self.latest.saturating_sub(self.window), self.at(line));
        let bucket = &mut self.buckets[bucket];
        let place = bucket.iter().position(|kept| kept.0 == line);
        let place = place.or_else(|| bucket.iter().position(|kept| kept.1 <= over));
        place.inspect(|place| bucket[*place] = (line, ready)).is_some()
    }

    /// Nobody waits for `line`.
    fn arrived(&mut self, line: Line) {
        let bucket = self.at(line);
        self.buckets[bucket].iter_mut().filter(|kept| kept.0 == line).for_each(|kept| *kept = NOTHING);
    }

    /// Makes room: twice as many buckets, or more if one of them is still too small.
    #[cold]
    fn grow(&mut self) {
        let over = self.latest.saturating_sub(self.window);
        let kept: Vec<_> = self.buckets.iter().flatten().filter(|kept| kept.1 > over).copied().collect();
        let mut buckets = self.buckets.len();
        loop {
            buckets *= 2;
            self.buckets = vec![[NOTHING; BUCKET]; buckets];
            if kept.iter().all(|(line, ready)| self.keep(*line, *ready)) {
                return;
            }
        }
    }

    /// When `line` arrives; 0, or a time that is past for everybody, if it has arrived.
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
    fn thousands_of_lines_can_be_under_way_at_once() {
        let mut in_flight = InFlight::new(1000);
        (0..5000).for_each(|line| in_flight.note(Line(line), line / 10, 700 + line));
        assert!((0..5000).all(|line| in_flight.ready(Line(line)) == 700 + line));
    }

    #[test]
    fn lines_that_came_one_after_another_take_no_more_room() {
        let mut in_flight = InFlight::new(1000);
        (0..1_000_000).for_each(|line| in_flight.note(Line(line), 100 * line, 100 * line + 300));
        assert!(in_flight.buckets.len() <= 4 * BUCKETS, "{} buckets for ten lines", in_flight.buckets.len());
    }

    proptest! {
        #[test]
        fn an_access_waits_for_every_line_that_has_not_come(
            lines in prop::collection::vec((0u64..3000, 0u64..40, 0u64..500, 1u64..400), 1..2000),
        ) {
            let (mut in_flight, mut all, mut now) = (InFlight::new(500), HashMap::new(), 500);
            for (line, later, back, takes) in lines {
                now += later;
                let at = now - back;
                let expected = all.get(&line).copied().filter(|ready| *ready > at);
                let found = Some(in_flight.ready(Line(line))).filter(|ready| *ready > at);
                prop_assert_eq!(found, expected);
                in_flight.note(Line(line), at, at + takes);
                all.insert(line, at + takes);
            }
        }
    }
}
