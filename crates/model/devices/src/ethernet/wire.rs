//! One direction of a full-duplex Ethernet link: frames follow one another, each with preamble and gap.
//!
//! Source: IEEE 802.3-2018: preamble and start delimiter 8 bytes (3.2.1, 3.2.2), interpacket gap 96 bit times (4.4.2).

use super::Frame;
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

const PREAMBLE_BYTES: u64 = 8;
const GAP_BYTES: u64 = 12;

/// The times of a frame on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// Start of the preamble.
    pub begin: Time,
    /// Arrival of the last bit at the other end.
    pub arrival: Time,
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// Rate, bits per second.
    rate: u64,
    /// Propagation delay.
    propagation: Duration,
    /// When the next frame can start.
    free: Time,
}

impl Wire {
    /// Creates a wire of `rate` bits per second (at least 1) with a propagation delay.
    pub fn new(rate: u64, propagation: Duration) -> Self {
        Self { rate: rate.max(1), propagation, free: Time::ZERO }
    }

    /// When the next frame can start.
    pub const fn free(&self) -> Time {
        self.free
    }

    /// The propagation delay.
    pub const fn propagation(&self) -> Duration {
        self.propagation
    }

    /// Time from the start of a frame to the arrival of its last bit.
    pub fn takes(&self, frame: &Frame) -> Duration {
        let on_wire = self.time_of(PREAMBLE_BYTES + frame.len() as u64);
        on_wire.checked_add(self.propagation).unwrap_or(Duration::from_ps(u64::MAX))
    }

    /// Sends a frame as soon as possible, at `at` or later.
    pub fn send(&mut self, frame: &Frame, at: Time) -> Transmission {
        let begin = at.max(self.free);
        let bytes = PREAMBLE_BYTES + frame.len() as u64;
        self.free = later(begin, self.time_of(bytes + GAP_BYTES));
        let arrival = later(begin, self.takes(frame));
        Transmission { begin, arrival }
    }

    /// Transmission time of `bytes`, rounded up to a picosecond.
    fn time_of(&self, bytes: u64) -> Duration {
        let ps = (u128::from(bytes) * 8_000_000_000_000).div_ceil(u128::from(self.rate));
        Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }
}

fn later(at: Time, by: Duration) -> Time {
    Time::from_ps(at.ps().saturating_add(by.ps()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_frame_takes_84_bytes_at_every_rate() {
        for (rate, frames_a_second) in
            [(1, 1_488_095), (10, 14_880_952), (40, 59_523_809), (100, 148_809_523)]
        {
            let mut wire = Wire::new(rate * 1_000_000_000, Duration::ZERO);
            let frame = Frame::new(&[]);
            let mut sent = 0u64;
            while wire.send(&frame, Time::ZERO).begin.ps() < 1_000_000_000 {
                sent += 1;
            }
            assert_eq!(
                sent,
                frames_a_second / 1000 + 1,
                "frames in a millisecond, including the one that starts at 0"
            );
        }
    }

    #[test]
    fn a_frame_arrives_when_its_last_bit_does() {
        let mut wire = Wire::new(1_000_000_000, Duration::from_ps(500_000));
        let transmission = wire.send(&Frame::new(&[0; 1514]), Time::from_ps(1000));
        assert_eq!(transmission.arrival.ps(), 1000 + (1518 + 8) * 8000 + 500_000);
        assert_eq!(wire.free().ps(), 1000 + (1518 + 20) * 8000);
    }
}
