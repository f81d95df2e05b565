//! The sending half of a connection: keeps packets until they are acknowledged, detects losses, and selects the next
//! packet to send.
//!
//! Source: loss detection by later acknowledgements as in RFC 9002 (6.1.1), in order of transmission; time-outs as in
//! RFC 6298.

use crate::congestion::Congestion;
use crate::packet::MAX_SACK_WORDS;
use crate::round_trip::RoundTrip;
use std::collections::VecDeque;
use std::time::Duration;

/// The number of later transmissions that must be acknowledged before an earlier one counts as lost. Fewer are
/// attributed to reordering.
const REORDERING: u64 = 3;

/// An unacknowledged fragment.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The payload.
    pub payload: Vec<u8>,
    /// Whether a message begins in this fragment.
    pub first: bool,
    /// Whether a message ends in this fragment.
    pub last: bool,
    state: State,
    /// The time and the global number of the last transmission, and the number of transmissions.
    sent_at: Duration,
    transmission: u64,
    times: u32,
    first_sent_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    InFlight,
    Lost,
    Arrived,
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledgement {
    /// All packets below this number have arrived.
    pub below: u64,
    /// A bitmap of packets received after `below` (see [`crate::Packet::sack`]).
    pub sack: [u64; MAX_SACK_WORDS],
    /// The number of packets from `below` on that the receiver accepts.
    pub window: u16,
}

/// The sending half.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The queued packets, starting with number `base`.
    queue: VecDeque<Outgoing>,
    base: u64,
    /// The number of packets, at the front of the queue, that were sent at least once.
    sent: usize,
    in_flight: usize,
    lost: usize,
    /// The first packet number beyond the receiver's window.
    window_end: u64,
    congestion: Congestion,
    trip: RoundTrip,
    /// When the flight is considered lost if no acknowledgement arrives.
    timer: Option<Duration>,
    transmissions: u64,
    latest_arrived: u64,
    messages_queued: u64,
    messages_delivered: u64,
    retransmissions: u64,
    spare: Vec<Vec<u8>>,
}

impl Sender {
    /// Creates a sender whose receiver initially accepts `window` packets.
    pub fn new(window: u16, trip: RoundTrip) -> Self {
        Self {
            queue: VecDeque::new(),
            base: 0,
            sent: 0,
            in_flight: 0,
            lost: 0,
            window_end: u64::from(window),
            congestion: Congestion::default(),
            trip,
            timer: None,
            transmissions: 0,
            latest_arrived: 0,
            messages_queued: 0,
            messages_delivered: 0,
            retransmissions: 0,
            spare: Vec::new(),
        }
    }

    /// Splits a message, given in parts, into packets of at most `fragment` bytes and queues them. Returns its number.
    pub fn queue(&mut self, parts: &[&[u8]], fragment: usize) -> u64 {
        let mut left: usize = parts.iter().map(|p| p.len()).sum();
        let mut parts = parts.iter().copied();
        let mut part: &[u8] = &[];
        let mut first = true;
        loop {
            let bytes = left.min(fragment);
            let mut payload = self.spare.pop().unwrap_or_default();
            while payload.len() < bytes {
                if part.is_empty() {
                    part = parts.next().expect("the parts have the counted length");
                    continue;
                }
                let taken = part.len().min(bytes - payload.len());
                payload.extend_from_slice(&part[..taken]);
                part = &part[taken..];
            }
            left -= bytes;
            let state = State::Waiting;
            let (sent_at, first_sent_at, transmission, times) = (Duration::ZERO, Duration::ZERO, 0, 0);
            self.queue.push_back(Outgoing {
                payload,
                first,
                last: left == 0,
                state,
                sent_at,
                transmission,
                times,
                first_sent_at,
            });
            first = false;
            if left == 0 {
                break;
            }
        }
        self.messages_queued += 1;
        self.messages_queued
    }

    /// Selects the next packet, with its number. The caller must send it.
    pub fn next(&mut self, now: Duration) -> Option<(u64, &Outgoing)> {
        if self.in_flight as u64 >= u64::from(self.congestion.packets()) {
            return None;
        }
        let index = if self.lost > 0 {
            self.queue.iter().position(|p| p.state == State::Lost)?
        } else if self.sent < self.queue.len() && self.base + (self.sent as u64) < self.window_end {
            self.sent
        } else {
            return None;
        };
        self.transmissions += 1;
        let packet = &mut self.queue[index];
        if packet.state == State::Lost {
            self.lost -= 1;
            self.retransmissions += 1;
        } else {
            self.sent += 1;
        }
        packet.state = State::InFlight;
        packet.sent_at = now;
        if packet.times == 0 {
            packet.first_sent_at = now;
        }
        packet.transmission = self.transmissions;
        packet.times += 1;
        self.in_flight += 1;
        if self.timer.is_none() {
            self.timer = Some(now + self.trip.time_out());
        }
        Some((self.base + index as u64, packet))
    }

    /// Processes an acknowledgement. Returns `false` if it covers packets that were never sent.
    pub fn acknowledge(&mut self, ack: Acknowledgement, now: Duration) -> bool {
        let sent_end = self.base + self.sent as u64;
        let reach = highest(&ack.sack).map_or(ack.below, |bit| ack.below.saturating_add(2 + bit));
        if ack.below > sent_end || reach > sent_end {
            return false;
        }
        if ack.below < self.base {
            // A later acknowledgement has overtaken this one, which has no new information.
            return true;
        }
        self.window_end = self.window_end.max(ack.below + u64::from(ack.window));
        let mut arrived = 0;
        while self.base < ack.below {
            arrived += u32::from(self.arrived(0, now));
            let packet = self.queue.pop_front().expect("acknowledged packets were sent");
            self.messages_delivered += u64::from(packet.last);
            self.recycle(packet.payload);
            self.base += 1;
            self.sent -= 1;
        }
        for bit in bits(&ack.sack) {
            // Bit 0 is the packet after the first missing one.
            arrived += u32::from(self.arrived(1 + bit as usize, now));
        }
        if arrived > 0 {
            self.congestion.acknowledged(arrived);
            self.trip.progress();
            self.find_lost();
            self.timer = (self.in_flight + self.lost > 0).then(|| now + self.trip.time_out());
        }
        true
    }

    /// Marks a packet as received. Returns `false` if it was already marked.
    fn arrived(&mut self, index: usize, now: Duration) -> bool {
        let packet = &mut self.queue[index];
        match packet.state {
            State::InFlight => self.in_flight -= 1,
            State::Lost => self.lost -= 1,
            State::Arrived | State::Waiting => return false,
        }
        packet.state = State::Arrived;
        let took = now.saturating_sub(packet.sent_at);
        if packet.times == 1 {
            self.trip.sample(took);
        }
        // If a packet was sent twice, the acknowledgement may be for either transmission; an acknowledgement that
        // arrives too soon is for the earlier one.
        if packet.times == 1 || self.trip.smoothed().is_some_and(|usual| took >= usual / 2) {
            self.latest_arrived = self.latest_arrived.max(packet.transmission);
        }
        true
    }

    fn find_lost(&mut self) {
        let limit = self.latest_arrived;
        for packet in self.queue.iter_mut().take(self.sent) {
            if packet.state == State::InFlight && packet.transmission + REORDERING <= limit {
                packet.state = State::Lost;
                self.in_flight -= 1;
                self.lost += 1;
                self.congestion.lost(packet.transmission, self.transmissions);
            }
        }
    }

    /// If the timer has expired, marks all packets in flight as lost.
    pub fn check_timer(&mut self, now: Duration) {
        if self.timer.is_none_or(|at| at > now) {
            return;
        }
        for packet in self.queue.iter_mut().take(self.sent) {
            if packet.state == State::InFlight {
                packet.state = State::Lost;
                self.lost += 1;
            }
        }
        self.in_flight = 0;
        self.congestion.timed_out(self.transmissions);
        self.trip.back_off();
        self.timer = (self.lost > 0).then(|| now + self.trip.time_out());
    }

    fn recycle(&mut self, mut payload: Vec<u8>) {
        if self.spare.len() < 64 {
            payload.clear();
            self.spare.push(payload);
        }
    }

    /// When [`Sender::check_timer`] must be called.
    pub fn deadline(&self) -> Option<Duration> {
        self.timer
    }

    /// Whether a packet can be sent now.
    pub fn is_ready(&self) -> bool {
        let has_window = (self.in_flight as u64) < u64::from(self.congestion.packets());
        let fresh = self.sent < self.queue.len() && self.base + (self.sent as u64) < self.window_end;
        has_window && (self.lost > 0 || fresh)
    }

    /// Whether packets are held back only by the receiver's closed window.
    pub fn is_window_closed(&self) -> bool {
        let waiting = self.sent < self.queue.len();
        waiting && self.in_flight + self.lost == 0 && self.base + self.sent as u64 >= self.window_end
    }

    /// The number of transmissions of the oldest unacknowledged packet, and the time of the first one.
    pub fn oldest(&self) -> Option<(u32, Duration)> {
        self.queue.front().map(|packet| (packet.times, packet.first_sent_at))
    }

    /// Excludes `pause`, during which nothing was sent, from the time since the first transmissions.
    pub fn excuse(&mut self, pause: Duration) {
        for packet in self.queue.iter_mut().take(self.sent) {
            packet.first_sent_at += pause;
        }
    }

    /// The number of the next packet that was never sent.
    pub fn next_sequence(&self) -> u64 {
        self.base + self.sent as u64
    }

    /// The number of packets queued or unacknowledged.
    pub fn packets(&self) -> usize {
        self.queue.len()
    }

    /// The number of messages that have been delivered completely, in order.
    pub fn messages_delivered(&self) -> u64 {
        self.messages_delivered
    }

    /// The number of retransmissions.
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// The round-trip estimator.
    pub fn trip(&self) -> &RoundTrip {
        &self.trip
    }
}

/// The indices of the set bits.
fn bits(words: &[u64; MAX_SACK_WORDS]) -> impl Iterator<Item = u64> + use<> {
    let words = *words;
    (0..MAX_SACK_WORDS).flat_map(move |w| {
        let mut left = words[w];
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| u64::from(left.trailing_zeros()))?;
            left &= left - 1;
            Some(64 * w as u64 + bit)
        })
    })
}

/// The index of the highest set bit.
fn highest(words: &[u64; MAX_SACK_WORDS]) -> Option<u64> {
    let word = (0..MAX_SACK_WORDS).rev().find(|w| words[*w] != 0)?;
    Some(64 * word as u64 + 63 - u64::from(words[word].leading_zeros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const NONE: [u64; MAX_SACK_WORDS] = [0; MAX_SACK_WORDS];

    fn sender(window: u16) -> Sender {
        Sender::new(window, RoundTrip::new(1000 * US, 100 * US, 10_000 * US))
    }

    fn sent(sender: &mut Sender, now: Duration) -> Vec<u64> {
        std::iter::from_fn(|| sender.next(now).map(|p| p.0)).collect()
    }

    #[test]
    fn messages_are_fragmented_and_reassembled() {
        let mut sender = sender(100);
        assert_eq!(sender.queue(&[b"abc", b"", b"defgh"], 3), 1);
        assert_eq!(sender.queue(&[], 3), 2);
        let mut fragments = Vec::new();
        while let Some((number, packet)) = sender.next(US) {
            fragments.push((number, packet.payload.clone(), packet.first, packet.last));
        }
        let expected = [
            (0, b"abc".to_vec(), true, false),
            (1, b"def".to_vec(), false, false),
            (2, b"gh".to_vec(), false, true),
            (3, vec![], true, true),
        ];
        assert_eq!(fragments, expected);
    }

    #[test]
    fn a_packet_overtaken_by_three_later_ones_is_retransmitted_first() {
        let mut sender = sender(100);
        for _ in 0..6 {
            sender.queue(&[b"x"], 10);
        }
        assert_eq!(sent(&mut sender, US), [0, 1, 2, 3, 4, 5]);
        // Packet 0 is missing; 1 and 2 have arrived, which is not enough to distinguish loss from reordering.
        let ack = Acknowledgement { below: 0, sack: [0b11, 0, 0, 0], window: 100 };
        assert!(sender.acknowledge(ack, 50 * US));
        assert!(sent(&mut sender, 50 * US).is_empty());
        let ack = Acknowledgement { below: 0, sack: [0b111, 0, 0, 0], window: 100 };
        assert!(sender.acknowledge(ack, 51 * US));
        assert_eq!(sent(&mut sender, 51 * US), [0]);
        let ack = Acknowledgement { below: 6, sack: NONE, window: 100 };
        assert!(sender.acknowledge(ack, 90 * US));
        assert_eq!((sender.messages_delivered(), sender.packets(), sender.deadline()), (6, 0, None));
    }

    #[test]
    fn without_acknowledgements_everything_is_retransmitted_after_the_timeout() {
        let mut sender = sender(100);
        sender.queue(&[b"x"], 10);
        sent(&mut sender, US);
        let deadline = sender.deadline().unwrap();
        sender.check_timer(deadline - US);
        assert!(sent(&mut sender, deadline).is_empty());
        sender.check_timer(deadline);
        assert_eq!(sent(&mut sender, deadline), [0]);
        assert!(sender.deadline().unwrap() - deadline >= 2 * (deadline - US));
    }

    #[test]
    fn the_receivers_window_holds_packets_back() {
        let mut sender = sender(2);
        for _ in 0..5 {
            sender.queue(&[b"x"], 10);
        }
        assert_eq!(sent(&mut sender, US), [0, 1]);
        assert!(sender.acknowledge(Acknowledgement { below: 2, sack: NONE, window: 0 }, 2 * US));
        assert!(sent(&mut sender, 2 * US).is_empty() && sender.is_window_closed());
        assert!(sender.acknowledge(Acknowledgement { below: 2, sack: NONE, window: 2 }, 3 * US));
        assert_eq!(sent(&mut sender, 3 * US), [2, 3]);
    }

    #[test]
    fn an_acknowledgement_of_unsent_packets_changes_nothing() {
        let mut sender = sender(10);
        sender.queue(&[b"x"], 10);
        sent(&mut sender, US);
        for (below, sack) in [(2, 0), (u64::MAX, 0), (0, 1), (1, 1), (0, u64::MAX)] {
            let ack = Acknowledgement { below, sack: [sack, 0, 0, 0], window: 9 };
            assert!(!sender.acknowledge(ack, US), "{below} {sack:b}");
        }
        assert_eq!(sender.packets(), 1);
    }
}
