//! What may go wrong on a wire: frames lost, damaged, late, doubled.
//! Not a model of why.
//! Source: our own; the same seed gives the same faults (xorshift64*, Marsaglia 2003 and Vigna 2016).

use super::Frame;
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// How often what goes wrong, in frames of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturbance {
    /// The frame does not arrive.
    pub lost: u32,
    /// One bit of it is changed; the check sequence is not.
    pub damaged: u32,
    /// It arrives later by `lateness`, and so behind others.
    pub late: u32,
    /// By how much.
    pub lateness: Duration,
    /// It arrives twice.
    pub doubled: u32,
}

/// A wire's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturber {
    disturbance: Disturbance,
    state: u64,
}

impl Disturber {
    /// Faults drawn from `seed`.
    pub fn new(disturbance: Disturbance, seed: u64) -> Self {
        Self { disturbance, state: seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// What arrives for a frame that was to arrive at `at`.
    pub fn pass(&mut self, mut frame: Frame, at: Time) -> Vec<(Time, Frame)> {
        let Disturbance { lost, damaged, late, lateness, doubled } = self.disturbance;
        if self.happens(lost) {
            return Vec::new();
        }
        if self.happens(damaged) && !frame.is_empty() {
            let bit = self.draw() as usize % (frame.len() * 8);
            frame.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
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
