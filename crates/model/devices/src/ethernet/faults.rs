//! Faults of a wire: frames that are lost, damaged, truncated, too long, delayed or duplicated. The same seed gives the
//! same faults.
//!
//! Source: xorshift64* (Marsaglia 2003 and Vigna 2016).

use super::Frame;
use super::frame::{FCS_BYTES, MAX_UNTAGGED_BYTES, MIN_BYTES};
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// Rates of each kind of fault, in frames per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRates {
    /// The frame is lost.
    pub lost: u32,
    /// One bit is flipped and the check sequence is not updated.
    pub damaged: u32,
    /// One bit is flipped and the check sequence is recomputed, as by a switch with faulty memory: only checks of the
    /// payload detect it.
    pub corrupted: u32,
    /// The frame is truncated below the minimum length, as after a collision.
    pub cut: u32,
    /// The frame is extended beyond the maximum untagged length, with a valid check sequence.
    pub stretched: u32,
    /// The frame is delayed by `lateness` and thus arrives after later frames.
    pub late: u32,
    /// Duration of a delay.
    pub lateness: Duration,
    /// The frame arrives twice.
    pub doubled: u32,
}

/// Generates a wire's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultInjector {
    faults: FaultRates,
    state: u64,
}

impl FaultInjector {
    /// Creates a generator with the given seed.
    pub fn new(faults: FaultRates, seed: u64) -> Self {
        Self { faults, state: seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// Returns the frames that arrive in place of a frame that would arrive at `at`.
    pub fn pass(&mut self, mut frame: Frame, at: Time) -> Vec<(Time, Frame)> {
        let FaultRates { lost, damaged, corrupted, cut, stretched, late, lateness, doubled } = self.faults;
        if self.happens(lost) {
            return Vec::new();
        }
        if self.happens(damaged) && !frame.is_empty() {
            let bit = self.draw() as usize % (frame.len() * 8);
            frame.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        }
        if self.happens(corrupted) && frame.len() > FCS_BYTES {
            let mut payload = frame.bytes()[..frame.len() - FCS_BYTES].to_vec();
            let bit = self.draw() as usize % (payload.len() * 8);
            payload[bit / 8] ^= 1 << (bit % 8);
            frame = Frame::new(&payload);
        }
        if self.happens(stretched) {
            let mut payload = frame.bytes().to_vec();
            payload.resize(MAX_UNTAGGED_BYTES + 1 + self.draw() as usize % 1000, 0);
            frame = Frame::new(&payload);
        }
        if self.happens(cut) {
            let left = self.draw() as usize % MIN_BYTES;
            frame.bytes_mut().truncate(left);
        }
        let at = if self.happens(late) { at.checked_add(lateness).unwrap_or(at) } else { at };
        let count = if self.happens(doubled) { 2 } else { 1 };
        vec![(at, frame); count]
    }

    fn happens(&mut self, of_a_million: u32) -> bool {
        of_a_million > 0 && self.draw() % 1_000_000 < of_a_million.into()
    }

    fn draw(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }
}
