//! PAUSE frames, by which one end of a link stops the other from sending for a while. `mac/flow_control` decides when
//! to send them.
//!
//! Source: IEEE 802.3-2018, clause 31 (MAC Control frames) and annex 31B (PAUSE).

use super::Frame;
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// The multicast address of PAUSE frames (31B.1), which bridges do not forward.
const GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
/// The type of MAC Control frames (31.4.1.3).
const MAC_CONTROL: [u8; 2] = [0x88, 0x08];
/// The PAUSE opcode (31B.1).
const PAUSE: [u8; 2] = [0, 1];
/// Bit times per quantum (31B.2).
const QUANTUM_BITS: u64 = 512;

/// Creates the frame by which `source` asks the other end to pause for `quanta`; 0 ends a pause.
pub fn pause_frame(source: [u8; 6], quanta: u16) -> Frame {
    let [high, low] = quanta.to_be_bytes();
    let parts: [&[u8]; 5] = [&GROUP, &source, &MAC_CONTROL, &PAUSE, &[high, low]];
    Frame::new(&parts.concat())
}

/// The quanta in a PAUSE frame; `None` if it is not a valid PAUSE frame.
pub fn pause_quanta(frame: &Frame) -> Option<u16> {
    let bytes = frame.payload().ok()?;
    let is_pause = frame.destination() == GROUP && bytes[12..14] == MAC_CONTROL && bytes[14..16] == PAUSE;
    is_pause.then(|| u16::from_be_bytes([bytes[16], bytes[17]]))
}

/// Duration of `quanta` at `rate` bits per second.
pub fn pause_time(quanta: u16, rate: u64) -> Duration {
    let ps = u128::from(quanta) * u128::from(QUANTUM_BITS) * 1_000_000_000_000 / u128::from(rate.max(1));
    Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// The pause state of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseState {
    since: Time,
    until: Time,
    /// Total duration of earlier pauses.
    before: Duration,
}

impl PauseState {
    /// Processes a PAUSE frame for `quanta` that arrived at `at`, on a link of `rate` bits per second. It replaces the
    /// previous pause.
    pub fn apply(&mut self, quanta: u16, rate: u64, at: Time) {
        self.before = self.total(at);
        self.since = at;
        self.until = at.checked_add(pause_time(quanta, rate)).unwrap_or(Time::from_ps(u64::MAX));
    }

    /// When the sender may send again.
    pub const fn until(&self) -> Time {
        self.until
    }

    /// Total duration of pauses up to `at`.
    pub fn total(&self, at: Time) -> Duration {
        let now = at.min(self.until).checked_since(self.since).unwrap_or_default();
        self.before.checked_add(now).unwrap_or(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    #[test]
    fn a_pause_frame_has_the_standard_layout() {
        let frame = pause_frame([2, 0, 0, 0, 0, 9], 0x1234);
        let payload = frame.payload().unwrap();
        assert_eq!(frame.len(), 64);
        assert_eq!(payload[..18], [1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 8, 0, 1, 0x12, 0x34]);
        assert!(payload[18..].iter().all(|byte| *byte == 0), "reserved, sent as zeros");
        assert_eq!(pause_quanta(&frame), Some(0x1234));
        let mut other = payload.to_vec();
        other[15] = 2;
        assert_eq!(pause_quanta(&Frame::new(&other)), None, "another operation");
    }

    #[test]
    fn the_latest_pause_applies_and_pause_times_accumulate() {
        let mut paused = PauseState::default();
        paused.apply(10, GIGABIT, Time::from_ps(1000));
        assert_eq!(paused.until().ps(), 1000 + 10 * 512 * 1000);
        paused.apply(0, GIGABIT, Time::from_ps(501_000));
        assert_eq!(paused.until().ps(), 501_000, "it may continue");
        assert_eq!(paused.total(Time::from_ps(9_000_000)).ps(), 500_000);
        paused.apply(1, GIGABIT, Time::from_ps(10_000_000));
        assert_eq!(paused.total(Time::from_ps(20_000_000)).ps(), 500_000 + 512_000);
    }
}
