//! A simulated wire that loses, duplicates, reorders, damages and delays datagrams, driven by a seed. The caller
//! supplies the time. It is for tests of transports.

use longma_random::SplitMix64;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Fault rates, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost.
    pub drop: u32,
    /// Delivered twice.
    pub duplicate: u32,
    /// Delayed so that up to a few dozen later ones overtake it.
    pub reorder: u32,
    /// Delivered with some bytes changed, or truncated.
    pub corrupt: u32,
    /// Delayed longer than any time-out, so that it arrives as a stale packet.
    pub delay: u32,
}

/// One direction of a wire.
#[derive(Clone, Debug)]
pub struct FaultyWire {
    faults: Faults,
    latency: Duration,
    random: SplitMix64,
    in_flight: BinaryHeap<Reverse<(Duration, u64, Vec<u8>)>>,
    sent: u64,
    spare: Vec<Vec<u8>>,
}

impl FaultyWire {
    /// Creates a wire with a latency and fault rates.
    pub fn new(faults: Faults, latency: Duration, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { faults, latency, random, in_flight: BinaryHeap::new(), sent: 0, spare: Vec::new() }
    }

    /// Sends a datagram.
    pub fn send(&mut self, now: Duration, datagram: &[u8]) {
        let copies = match self.happens(self.faults.drop) {
            true => 0,
            false => 1 + u32::from(self.happens(self.faults.duplicate)),
        };
        for _ in 0..copies {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(datagram);
            if self.happens(self.faults.corrupt) {
                self.damage(&mut bytes);
            }
            let at = now + self.latency + self.delay();
            self.sent += 1;
            self.in_flight.push(Reverse((at, self.sent, bytes)));
        }
    }

    /// Whether a fault with this rate happens, in parts per million.
    fn happens(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.below(1_000_000) < u64::from(rate)
    }

    fn delay(&mut self) -> Duration {
        if self.happens(self.faults.delay) {
            Duration::from_millis(10 + self.random.below(5_000))
        } else if self.happens(self.faults.reorder) {
            self.latency * (1 + self.random.below(8) as u32) / 4
        } else {
            Duration::ZERO
        }
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        if self.random.below(8) == 0 {
            bytes.truncate(self.random.below(bytes.len() as u64 + 1) as usize);
        }
        for _ in 0..1 + self.random.below(4) {
            if !bytes.is_empty() {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
        }
    }

    /// When the next datagram arrives.
    pub fn next_arrival(&self) -> Option<Duration> {
        self.in_flight.peek().map(|Reverse(next)| next.0)
    }

    /// Receives the next datagram that has arrived by `now`.
    pub fn receive(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        self.in_flight.pop().map(|Reverse(next)| next.2)
    }

    /// Returns the memory of a datagram for reuse.
    pub fn recycle(&mut self, datagram: Vec<u8>) {
        if self.spare.len() < 1024 {
            self.spare.push(datagram);
        }
    }

    /// Changes the fault rates.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }
}
