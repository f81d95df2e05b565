//! Flow control: PAUSE to the other end while the receive FIFO is nearly full, and heeding the other end's.
//! Not the frames: see `ethernet::pause`.
//! Source: IEEE 802.3-2018, annex 31B; two marks in the FIFO, a time that is renewed at its half, and no dropping for a queue without
//! descriptors as in Intel's 82599 data sheet (3.7.7.3, FCRTH, FCRTL, FCRTV) and Linux's ixgbe (`ixgbe_set_rx_drop_en`).

use super::super::pause::{Paused, pause_frame, pause_quanta, pause_time};
use super::super::{Frame, MIN_BYTES};
use super::registers as r;
use super::state::{MOST_FRAME, MacSpec, MacState, Step};
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// What is asked for: as long as there is. It ends by a frame that asks for none.
const LONGEST: u16 = u16::MAX;
/// Preamble, gap and the like around a frame, bytes.
const AROUND_FRAME: u64 = 20;

/// Where flow control stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FlowControl {
    /// The other end was asked to stop, and is asked again at this time.
    pub ask_again: Option<Time>,
    /// What the other end has asked for.
    pub paused: Paused,
}

impl MacState {
    /// When the other end has to be asked again.
    pub(super) fn flow_time(&self) -> Option<Time> {
        self.flow.ask_again.map(|at| at.max(self.now))
    }

    /// Asks the other end again.
    pub(super) fn ask_again(&mut self, spec: &MacSpec) {
        self.ask(spec, LONGEST);
    }

    /// The FIFO holds more or less than before: the other end is to stop, or may go on.
    pub(super) fn fifo_changed(&mut self, spec: &MacSpec) {
        if !spec.pause {
            return;
        }
        let stop = self.stop_mark(spec);
        match self.flow.ask_again {
            None if self.fifo_bytes > stop => self.ask(spec, LONGEST),
            Some(_) if self.fifo_bytes <= stop / 2 => self.ask(spec, 0),
            _ => {}
        }
    }

    /// The bytes in the FIFO above which the other end has to stop, lest what still comes finds no room: the frame that it has begun, what
    /// it sends while a frame of ours and one that stands ready go before ours that asks, and what is on the way both ways.
    fn stop_mark(&self, spec: &MacSpec) -> u64 {
        let longest = self.settings.max_frame.min(MOST_FRAME) + AROUND_FRAME;
        let round = u128::from(self.wire.propagation().ps()) * 2 * u128::from(spec.rate) / 8_000_000_000_000;
        let to_come =
            3 * longest + MIN_BYTES as u64 + AROUND_FRAME + u64::try_from(round).unwrap_or(u64::MAX);
        u64::from(spec.rx_fifo_bytes).saturating_sub(to_come)
    }

    /// A frame that asks for so many quanta goes next, even if the other end has this one pause (31B.3.3).
    fn ask(&mut self, spec: &MacSpec, quanta: u16) {
        let source = self.settings.address.to_le_bytes();
        let frame = pause_frame([source[0], source[1], source[2], source[3], source[4], source[5]], quanta);
        let passage = self.wire.send(&frame, self.now);
        self.outbox.push_back((passage.arrival, frame));
        self.counters.tx_pause += 1;
        let half = Duration::from_ps(pause_time(quanta, spec.rate).ps() / 2);
        self.flow.ask_again = (quanta > 0).then(|| passage.begin.checked_add(half)).flatten();
    }

    /// Heeds a frame of the other end that asks for a pause; true if it was one, which is handed to nobody (31.5.1).
    pub(super) fn heeds(&mut self, spec: &MacSpec, frame: &Frame) -> bool {
        let Some(quanta) = pause_quanta(frame).filter(|_| spec.pause) else { return false };
        self.counters.rx_pause += 1;
        self.flow.paused.ask(quanta, spec.rate, self.now);
        true
    }

    /// When sending may go on at `at` or later: what is ready for the wire waits for the end of a pause. A frame that has its place on
    /// the wire goes out still.
    pub(super) fn tx_after_pause(&self, at: Time) -> Time {
        match self.tx_step {
            Step::Moving { .. } => at.max(self.flow.paused.until()),
            _ => at,
        }
    }

    /// Whether a frame whose queue has no descriptor waits in the FIFO, and all others behind it, instead of being dropped.
    pub(super) fn waits_for_descriptors(&self, spec: &MacSpec) -> bool {
        spec.pause || !(r::SPREAD.is_set(self.settings.control) && self.queues.len() > 1)
    }
}
