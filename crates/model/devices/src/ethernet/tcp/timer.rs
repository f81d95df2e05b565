//! How long to wait for an acknowledgement.
//! Not when it is started or stopped: see `sender`.
//! Source: RFC 6298 sections 2 and 5.

use longma_sim::Duration;
use serde::{Deserialize, Serialize};

/// Longest wait: 60 s (RFC 6298, 2.5).
const LONGEST_PS: u64 = 60_000_000_000_000;

/// Shortest wait: 1 us, so that time passes whatever was asked for.
const SHORTEST_PS: u64 = 1_000_000;

/// What is known of round trips, picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Estimator {
    smoothed: Option<u64>,
    variation: u64,
    timeout: u64,
    shortest: u64,
}

impl Estimator {
    /// Nothing is known yet: a second, or the shortest wait if that is longer.
    pub fn new(shortest: Duration) -> Self {
        let shortest = shortest.ps().clamp(SHORTEST_PS, LONGEST_PS);
        Self { smoothed: None, variation: 0, timeout: shortest.max(1_000_000_000_000), shortest }
    }

    /// A round trip that was not of a retransmission.
    pub fn measured(&mut self, trip: Duration) {
        let trip = trip.ps().min(LONGEST_PS);
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(trip), trip / 2),
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(trip)) / 4;
                self.smoothed = Some((7 * smoothed + trip) / 8);
            }
        }
        let smoothed = self.smoothed.unwrap_or(trip);
        self.timeout = (smoothed + 4 * self.variation).clamp(self.shortest, LONGEST_PS);
    }

    /// It was too short: twice as long next time.
    pub fn back_off(&mut self) {
        self.timeout = (2 * self.timeout).min(LONGEST_PS);
    }

    /// How long to wait.
    pub const fn timeout(&self) -> Duration {
        Duration::from_ps(self.timeout)
    }
}
