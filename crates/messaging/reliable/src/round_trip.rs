//! Estimates the round-trip time and the retransmission time-out.
//!
//! Source: RFC 6298 (estimate, back-off). Its minimum time-out of 1 s is for the Internet; local networks use a shorter
//! one.

use std::time::Duration;

/// The estimator.
#[derive(Clone, Debug)]
pub struct RoundTrip {
    /// The smoothed time and its variation; `None` before the first sample.
    smoothed: Option<(Duration, Duration)>,
    initial: Duration,
    min: Duration,
    max: Duration,
    /// The number of time-outs since the last progress. Each of them doubles the time-out.
    backed_off: u32,
}

impl RoundTrip {
    /// Creates an estimator without samples. The time-out is `initial` at first, and later between `min` and `max`.
    pub fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        Self { smoothed: None, initial, min, max, backed_off: 0 }
    }

    /// Adds a sample from a packet that was sent only once (Karn's rule).
    pub fn sample(&mut self, took: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (took, took / 2),
            Some((mean, variation)) => (mean * 7 / 8 + took / 8, variation * 3 / 4 + mean.abs_diff(took) / 4),
        });
    }

    /// The smoothed round-trip time; `None` before the first sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(|s| s.0)
    }

    /// The current retransmission time-out.
    pub fn time_out(&self) -> Duration {
        let once = match self.smoothed {
            None => self.initial,
            Some((mean, variation)) => mean + variation * 4,
        };
        (once.max(self.min) * (1u32 << self.backed_off.min(16))).min(self.max)
    }

    /// Doubles the time-out after it has expired.
    pub fn back_off(&mut self) {
        self.backed_off = self.backed_off.saturating_add(1);
    }

    /// Resets the back-off after an acknowledgement.
    pub fn progress(&mut self) {
        self.backed_off = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_time_out_follows_the_samples_and_doubles_until_progress() {
        let mut trip = RoundTrip::new(200 * MS, 2 * MS, 1000 * MS);
        assert_eq!(trip.time_out(), 200 * MS);
        for _ in 0..100 {
            trip.sample(10 * MS);
        }
        assert!(trip.time_out() >= 10 * MS && trip.time_out() < 11 * MS, "{:?}", trip.time_out());
        let once = trip.time_out();
        trip.back_off();
        trip.back_off();
        assert_eq!(trip.time_out(), once * 4);
        for _ in 0..100 {
            trip.back_off();
        }
        assert_eq!(trip.time_out(), 1000 * MS);
        trip.progress();
        assert_eq!(trip.time_out(), once);
    }

    #[test]
    fn the_timeout_of_a_short_path_is_at_least_the_minimum() {
        let mut trip = RoundTrip::new(200 * MS, 2 * MS, 1000 * MS);
        trip.sample(Duration::from_micros(3));
        assert_eq!(trip.time_out(), 2 * MS);
    }
}
