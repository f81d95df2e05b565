//! What may go wrong on a wire: frames lost, damaged, cut, stretched, late, doubled.
//! Not a model of why.
//! Source: the same seed gives the same faults (xorshift64*, Marsaglia 2003 and Vigna 2016).

use super::Frame;
use super::frame::{FCS_BYTES, MAX_UNTAGGED_BYTES, MIN_BYTES};
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// How often what goes wrong, in frames of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturbance {
    /// The frame does not arrive.
    pub lost: u32,
    /// One bit of it is changed; the check sequence is not.
    pub damaged: u32,
    /// One bit of it is changed and its check sequence fits, as behind a switch with bad memory: only what it carries can tell.
    pub corrupted: u32,
    /// It is cut off below the shortest length, as after a collision.
    pub cut: u32,
    /// It is longer than the longest untagged frame, and its check sequence fits.
    pub stretched: u32,
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
        let Disturbance { lost, damaged, corrupted, cut, stretched, late, lateness, doubled } =
            self.disturbance;
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
