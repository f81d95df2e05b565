//! Congestion control: limits the number of packets in flight to the capacity of the path. The receiver's window is a
//! separate limit.
//!
//! Source: RFC 5681 and RFC 6582 (slow start, one reduction per flight), counted in packets.

/// The maximum number of packets in flight, which is the range of the selective acknowledgements.
pub const MAX_PACKETS: u32 = 256;

const INITIAL_PACKETS: u32 = 16;
const MIN_PACKETS: u32 = 2;

/// The congestion window, in packets.
#[derive(Clone, Debug)]
pub struct Congestion {
    packets: u32,
    /// The slow-start threshold. Above it the window grows by one per round trip instead of doubling.
    threshold: u32,
    /// Packets acknowledged since the last increment in congestion avoidance.
    counted: u32,
    /// Losses of transmissions before this one belong to a flight for which the window has already been reduced.
    halved_at: u64,
}

impl Default for Congestion {
    fn default() -> Self {
        Self { packets: INITIAL_PACKETS, threshold: MAX_PACKETS, counted: 0, halved_at: 0 }
    }
}

impl Congestion {
    /// The number of packets that may be in flight.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Records the acknowledgement of `count` packets.
    pub fn acknowledged(&mut self, count: u32) {
        if self.packets < self.threshold {
            self.packets = (self.packets + count).min(self.threshold);
        } else {
            self.counted += count;
            if self.counted >= self.packets {
                self.counted = 0;
                self.packets += 1;
            }
        }
        self.packets = self.packets.min(MAX_PACKETS);
    }

    /// Records the loss of the packet sent as transmission `lost`; `latest` is the latest transmission so far.
    pub fn lost(&mut self, lost: u64, latest: u64) {
        if lost >= self.halved_at {
            self.threshold = (self.packets / 2).max(MIN_PACKETS);
            self.packets = self.threshold;
            self.halved_at = latest + 1;
        }
    }

    /// Records a time-out of the whole flight; `latest` is the latest transmission.
    pub fn timed_out(&mut self, latest: u64) {
        self.threshold = (self.packets / 2).max(MIN_PACKETS);
        self.packets = MIN_PACKETS;
        self.halved_at = latest + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_then_grows_slowly_and_never_beyond_the_selective_acknowledgements() {
        let mut window = Congestion::default();
        window.acknowledged(16);
        assert_eq!(window.packets(), 32);
        window.lost(5, 40);
        assert_eq!(window.packets(), 16);
        window.acknowledged(16);
        assert_eq!(window.packets(), 17);
        for _ in 0..100_000 {
            window.acknowledged(1);
        }
        assert_eq!(window.packets(), MAX_PACKETS);
    }

    #[test]
    fn it_is_halved_once_for_all_losses_of_a_flight() {
        let mut window = Congestion::default();
        for transmission in 10..20 {
            window.lost(transmission, 25);
        }
        assert_eq!(window.packets(), 8);
        window.lost(26, 30);
        assert_eq!(window.packets(), 4);
    }

    #[test]
    fn a_timeout_restarts_from_the_minimum() {
        let mut window = Congestion::default();
        window.timed_out(7);
        assert_eq!(window.packets(), MIN_PACKETS);
        window.acknowledged(100);
        assert_eq!(window.packets(), 8);
    }
}
