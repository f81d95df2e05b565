//! Flow control: sends PAUSE to the other end while the receive FIFO is nearly full, and obeys PAUSE frames from it.
//!
//! Source: IEEE 802.3-2018, annex 31B. Two watermarks in the FIFO, a pause that is renewed halfway through, and no
//! drops for a queue without descriptors, as in Intel's 82599 data sheet (3.7.7.3, FCRTH, FCRTL, FCRTV) and Linux's
//! ixgbe (`ixgbe_set_rx_drop_en`).

use super::super::pause::{PauseState, pause_frame, pause_quanta, pause_time};
use super::super::{Frame, MIN_BYTES};
use super::registers as r;
use super::state::{DmaState, MAX_FRAME, MacSpec, MacState};
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// Requested pause time: the maximum. A frame with 0 quanta ends it.
const MAX_QUANTA: u16 = u16::MAX;
/// Preamble, gap and other overhead around a frame, bytes.
const FRAME_OVERHEAD_BYTES: u64 = 20;

/// State of flow control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FlowControl {
    /// When to renew the pause of the other end; `None` while it is not paused.
    pub renew_at: Option<Time>,
    /// Pauses requested by the other end.
    pub paused: PauseState,
}

impl MacState {
    /// When the pause of the other end must be renewed.
    pub(super) fn pause_renewal_time(&self) -> Option<Time> {
        self.flow.renew_at.map(|at| at.max(self.now))
    }

    /// Renews the pause of the other end.
    pub(super) fn renew_pause(&mut self, spec: &MacSpec) {
        self.send_pause(spec, MAX_QUANTA);
    }

    /// Pauses or resumes the other end after a change of the FIFO's fill level.
    pub(super) fn fifo_changed(&mut self, spec: &MacSpec) {
        if !spec.pause {
            return;
        }
        let stop = self.high_watermark(spec);
        match self.flow.renew_at {
            None if self.fifo_bytes > stop => self.send_pause(spec, MAX_QUANTA),
            Some(_) if self.fifo_bytes <= stop / 2 => self.send_pause(spec, 0),
            _ => {}
        }
    }

    /// The high watermark of the FIFO, bytes. The space above it must hold all data that arrives after this MAC
    /// requests a PAUSE: the frame that the other end is already sending; the frames it sends while this MAC transmits
    /// up to two frames (one in progress, one ready) and the PAUSE frame; and the data in flight in both directions.
    fn high_watermark(&self, spec: &MacSpec) -> u64 {
        let max_wire_bytes = self.settings.max_frame.min(MAX_FRAME) + FRAME_OVERHEAD_BYTES;
        let round_trip_bytes =
            u128::from(self.wire.propagation().ps()) * 2 * u128::from(spec.rate) / 8_000_000_000_000;
        let incoming_bytes = 3 * max_wire_bytes
            + MIN_BYTES as u64
            + FRAME_OVERHEAD_BYTES
            + u64::try_from(round_trip_bytes).unwrap_or(u64::MAX);
        u64::from(spec.rx_fifo_bytes).saturating_sub(incoming_bytes)
    }

    /// Sends a PAUSE frame for `quanta` next, even if the other end has paused this MAC (31B.3.3).
    fn send_pause(&mut self, spec: &MacSpec, quanta: u16) {
        let source = self.settings.address.to_le_bytes();
        let frame = pause_frame([source[0], source[1], source[2], source[3], source[4], source[5]], quanta);
        let transmission = self.wire.send(&frame, self.now);
        self.outbox.push_back((transmission.arrival, frame));
        self.counters.tx_pause += 1;
        let half = Duration::from_ps(pause_time(quanta, spec.rate).ps() / 2);
        self.flow.renew_at = (quanta > 0).then(|| transmission.begin.checked_add(half)).flatten();
    }

    /// Processes a PAUSE frame from the other end. Returns true if it was one; such frames are not passed to software
    /// (31.5.1).
    pub(super) fn process_pause(&mut self, spec: &MacSpec, frame: &Frame) -> bool {
        let Some(quanta) = pause_quanta(frame).filter(|_| spec.pause) else { return false };
        self.counters.rx_pause += 1;
        self.flow.paused.apply(quanta, spec.rate, self.now);
        true
    }

    /// When sending can continue, at `at` or later: the next frame waits for the end of a pause. A frame already
    /// scheduled on the wire is still sent.
    pub(super) fn tx_after_pause(&self, at: Time) -> Time {
        match self.tx_step {
            DmaState::Moving { .. } => at.max(self.flow.paused.until()),
            _ => at,
        }
    }

    /// Returns whether a frame whose queue has no descriptor stays in the FIFO and blocks the frames behind it.
    /// Otherwise it is dropped.
    pub(super) fn waits_for_descriptors(&self, spec: &MacSpec) -> bool {
        spec.pause || !(r::SPREAD.is_set(self.settings.control) && self.queues.len() > 1)
    }
}
