//! Estimates the retransmission timeout.
//!
//! Source: RFC 6298 sections 2 and 5.

use longma_sim::Duration;
use serde::{Deserialize, Serialize};

/// Maximum timeout: 60 s (RFC 6298, 2.5).
const MAX_TIMEOUT_PS: u64 = 60_000_000_000_000;

/// Minimum timeout: 1 us, so that simulated time advances.
const MIN_TIMEOUT_PS: u64 = 1_000_000;

/// Round-trip estimate, picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Estimator {
    smoothed: Option<u64>,
    variation: u64,
    timeout: u64,
    shortest: u64,
}

impl Estimator {
    /// Initial estimate without measurements: one second, or the minimum timeout if that is longer.
    pub fn new(shortest: Duration) -> Self {
        let shortest = shortest.ps().clamp(MIN_TIMEOUT_PS, MAX_TIMEOUT_PS);
        Self { smoothed: None, variation: 0, timeout: shortest.max(1_000_000_000_000), shortest }
    }

    /// Adds the measurement of a round trip without retransmission.
    pub fn measured(&mut self, trip: Duration) {
        let trip = trip.ps().min(MAX_TIMEOUT_PS);
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(trip), trip / 2),
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(trip)) / 4;
                self.smoothed = Some((7 * smoothed + trip) / 8);
            }
        }
        let smoothed = self.smoothed.unwrap_or(trip);
        self.timeout = (smoothed + 4 * self.variation).clamp(self.shortest, MAX_TIMEOUT_PS);
    }

    /// Doubles the timeout after it has expired.
    pub fn back_off(&mut self) {
        self.timeout = (2 * self.timeout).min(MAX_TIMEOUT_PS);
    }

    /// The current timeout.
    pub const fn timeout(&self) -> Duration {
        Duration::from_ps(self.timeout)
    }
}
