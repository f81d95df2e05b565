//! TCP congestion control: slow start, congestion avoidance, fast recovery.
//!
//! Source: RFC 5681 sections 3.1 and 3.2; RFC 6582 section 3.2 (NewReno).

use serde::{Deserialize, Serialize};

/// Congestion state. Numbers are bytes or stream offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Congestion {
    mss: u64,
    pub window: u64,
    threshold: u64,
    duplicates: u32,
    /// In fast recovery, the offset whose acknowledgement ends it.
    recover: Option<u64>,
}

/// The action after an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Continue.
    None,
    /// Retransmit the oldest segment.
    Retransmit,
}

impl Congestion {
    /// State of a new connection, with an initial window of `initial` bytes or that of RFC 5681.
    pub fn new(mss: u64, initial: Option<u64>) -> Self {
        let window = initial.unwrap_or(match mss {
            0..=1095 => 4 * mss,
            1096..=2190 => 3 * mss,
            _ => 2 * mss,
        });
        Self { mss, window: window.max(mss), threshold: u64::MAX, duplicates: 0, recover: None }
    }

    /// Processes the acknowledgement of `acked` more bytes, up to `una`, with `flight` bytes in flight.
    pub fn advanced(&mut self, acked: u64, una: u64, flight: u64) -> Reaction {
        self.duplicates = 0;
        if let Some(recover) = self.recover {
            if una < recover {
                // Partial acknowledgement: the next segment is lost too.
                self.window = self.window.saturating_sub(acked).max(self.mss);
                self.window += if acked >= self.mss { self.mss } else { 0 };
                return Reaction::Retransmit;
            }
            self.window = self.threshold.min(flight.max(self.mss) + self.mss);
            self.recover = None;
            return Reaction::None;
        }
        let more = match self.window < self.threshold {
            true => acked.min(self.mss),
            false => (self.mss * self.mss / self.window).max(1),
        };
        self.window = self.window.saturating_add(more);
        Reaction::None
    }

    /// Processes a duplicate acknowledgement, with `flight` bytes in flight. `next` is the offset of the next new byte.
    pub fn duplicate(&mut self, flight: u64, next: u64) -> Reaction {
        self.duplicates += 1;
        if self.recover.is_some() {
            self.window += self.mss;
        } else if self.duplicates == 3 {
            self.threshold = (flight / 2).max(2 * self.mss);
            self.window = self.threshold + 3 * self.mss;
            self.recover = Some(next);
            return Reaction::Retransmit;
        }
        Reaction::None
    }

    /// Processes a retransmission timeout with `flight` bytes in flight.
    pub fn timed_out(&mut self, flight: u64) {
        self.threshold = (flight / 2).max(2 * self.mss);
        self.window = self.mss;
        (self.duplicates, self.recover) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_per_round_trip_and_avoidance_adds_a_segment() {
        let mut state = Congestion::new(1000, Some(2000));
        (0..2).for_each(|_| assert_eq!(state.advanced(1000, 0, 0), Reaction::None));
        assert_eq!(state.window, 4000);
        state.threshold = 4000;
        (0..4).for_each(|_| assert_eq!(state.advanced(1000, 0, 0), Reaction::None));
        assert!((4900..=5000).contains(&state.window), "{}", state.window);
    }

    #[test]
    fn the_third_duplicate_halves_the_window_and_partial_acknowledgements_retransmit() {
        let mut state = Congestion::new(1000, Some(20_000));
        assert_eq!(
            [1, 2, 3].map(|_| state.duplicate(20_000, 50_000)),
            [Reaction::None, Reaction::None, Reaction::Retransmit]
        );
        assert_eq!(state.window, 13_000);
        assert_eq!(state.duplicate(20_000, 50_000), Reaction::None);
        assert_eq!(state.window, 14_000);
        assert_eq!(state.advanced(3000, 33_000, 17_000), Reaction::Retransmit);
        assert_eq!(state.advanced(17_000, 50_000, 0), Reaction::None);
        assert_eq!((state.window, state.recover), (2000, None));
        state.timed_out(8000);
        assert_eq!((state.window, state.threshold), (1000, 4000));
    }
}
