//! How much may be in flight: slow start, congestion avoidance, fast recovery.
//! Not the receiver's window.
//! Source: RFC 5681 sections 3.1 and 3.2; RFC 6582 section 3.2 (NewReno).

use serde::{Deserialize, Serialize};

/// What the congestion control knows. Numbers are bytes or offsets in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Congestion {
    mss: u64,
    pub window: u64,
    threshold: u64,
    duplicates: u32,
    /// In fast recovery until everything before this is acknowledged.
    recover: Option<u64>,
}

/// What an acknowledgement asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Go on.
    None,
    /// Send the oldest segment again.
    Retransmit,
}

impl Congestion {
    /// A connection that has sent nothing yet; `initial` bytes at first, or what RFC 5681 allows.
    pub fn new(mss: u64, initial: Option<u64>) -> Self {
        let window = initial.unwrap_or(match mss {
            0..=1095 => 4 * mss,
            1096..=2190 => 3 * mss,
            _ => 2 * mss,
        });
        Self { mss, window: window.max(mss), threshold: u64::MAX, duplicates: 0, recover: None }
    }

    /// `acked` more bytes are acknowledged, up to `una`; `flight` are still out.
    pub fn advanced(&mut self, acked: u64, una: u64, flight: u64) -> Reaction {
        self.duplicates = 0;
        if let Some(recover) = self.recover {
            if una < recover {
                // A part: the next hole is lost too.
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

    /// A duplicate acknowledgement, with `flight` bytes out, `next` being the next new byte.
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

    /// The retransmission timer went off with `flight` bytes out.
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
    fn slow_start_doubles_a_round_and_avoidance_adds_a_segment_a_round() {
        let mut state = Congestion::new(1000, Some(2000));
        (0..2).for_each(|_| assert_eq!(state.advanced(1000, 0, 0), Reaction::None));
        assert_eq!(state.window, 4000);
        state.threshold = 4000;
        (0..4).for_each(|_| assert_eq!(state.advanced(1000, 0, 0), Reaction::None));
        assert!((4900..=5000).contains(&state.window), "{}", state.window);
    }

    #[test]
    fn the_third_duplicate_halves_and_partial_acknowledgements_retransmit_until_all_is_there() {
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
