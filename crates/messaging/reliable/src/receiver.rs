//! The receiving half of a connection: takes packets in any order and reassembles the messages in their original order.
//!
//! Source: selective acknowledgement after RFC 2018.

use crate::packet::{MAX_SACK_WORDS, Packet};
use std::collections::VecDeque;

/// The result of receiving a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was the next packet in sequence.
    InOrder,
    /// It was out of order and is buffered.
    Early,
    /// It was received before.
    Duplicate,
    /// There is no space for the packet, which must be sent again.
    Refused,
}

/// A protocol violation by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message exceeded the agreed maximum size.
    #[error("it sent a message longer than the agreed maximum of {0} bytes")]
    TooLong(usize),
    /// A message began inside another one, or continued without a beginning.
    #[error("its fragments do not form messages")]
    Fragments,
    /// A packet exceeded the agreed maximum size.
    #[error("it sent a packet larger than the agreed maximum of {0} bytes")]
    Datagram(usize),
    /// This process has no memory for the message, which is not necessarily the peer's fault.
    #[error("this process cannot allocate memory for more than {0} bytes of its message")]
    Memory(usize),
}

#[derive(Clone, Debug)]
struct BufferedPacket {
    payload: Vec<u8>,
    first: bool,
    last: bool,
}

/// The receiving half.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The number of the next packet in sequence.
    next: u64,
    /// Out-of-order packets: entry `i` is packet `next + 1 + i`.
    early: VecDeque<Option<BufferedPacket>>,
    /// The maximum number of packets to buffer.
    window: u16,
    max_message: usize,
    /// The incomplete message, and the number of its packets.
    partial: Option<Vec<u8>>,
    partial_packets: u32,
    /// Complete messages, each with the number of its packets.
    complete: VecDeque<(Vec<u8>, u32)>,
    complete_packets: u64,
}

impl Receiver {
    /// Creates a receiver that buffers `window` packets and accepts messages up to `max_message` bytes.
    pub fn new(window: u16, max_message: usize) -> Self {
        Self {
            next: 0,
            early: VecDeque::new(),
            window,
            max_message,
            partial: None,
            partial_packets: 0,
            complete: VecDeque::new(),
            complete_packets: 0,
        }
    }

    /// Processes a `Data` packet.
    ///
    /// # Errors
    /// If it violates the protocol; the connection cannot continue.
    pub fn receive(&mut self, packet: &Packet) -> Result<Arrival, Violation> {
        let Some(ahead) = packet.sequence.checked_sub(self.next) else { return Ok(Arrival::Duplicate) };
        // When the window shrinks, the sender may still have a full window in flight. These packets are buffered too.
        let full = self.complete_packets >= 2 * u64::from(self.window);
        if ahead >= u64::from(self.window) || full {
            return Ok(Arrival::Refused);
        }
        if ahead == 0 {
            self.append(packet.payload, packet.first, packet.last)?;
            self.advance()?;
            return Ok(Arrival::InOrder);
        }
        let index = ahead as usize - 1;
        if self.early.len() <= index {
            self.early.resize(index + 1, None);
        }
        let slot = &mut self.early[index];
        if slot.is_some() {
            return Ok(Arrival::Duplicate);
        }
        *slot =
            Some(BufferedPacket { payload: packet.payload.to_vec(), first: packet.first, last: packet.last });
        Ok(Arrival::Early)
    }

    /// Advances over the packet just appended and all buffered ones that follow it.
    fn advance(&mut self) -> Result<(), Violation> {
        self.next += 1;
        while let Some(slot) = self.early.pop_front() {
            let Some(early) = slot else { break };
            self.append(&early.payload, early.first, early.last)?;
            self.next += 1;
        }
        Ok(())
    }

    fn append(&mut self, payload: &[u8], first: bool, last: bool) -> Result<(), Violation> {
        if first != self.partial.is_none() {
            return Err(Violation::Fragments);
        }
        let message = self.partial.get_or_insert_default();
        if message.len() + payload.len() > self.max_message {
            return Err(Violation::TooLong(self.max_message));
        }
        // The peer determines the length. Running out of memory must not abort the process.
        message.try_reserve(payload.len()).map_err(|_| Violation::Memory(message.len()))?;
        message.extend_from_slice(payload);
        self.partial_packets += 1;
        if last {
            let message = self.partial.take().unwrap_or_default();
            self.complete_packets += u64::from(self.partial_packets);
            self.complete.push_back((message, self.partial_packets));
            self.partial_packets = 0;
        }
        Ok(())
    }

    /// Takes the next message.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let (message, packets) = self.complete.pop_front()?;
        self.complete_packets -= u64::from(packets);
        Some(message)
    }

    /// All packets below this number have arrived.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of packets from [`Receiver::next`] on that the sender may send.
    pub fn credits(&self) -> u16 {
        u64::from(self.window).saturating_sub(self.complete_packets) as u16
    }

    /// A bitmap of the packets received after the first missing one.
    pub fn sack(&self) -> [u64; MAX_SACK_WORDS] {
        let mut words = [0; MAX_SACK_WORDS];
        for (bit, _) in self.early.iter().enumerate().filter(|(_, slot)| slot.is_some()) {
            words[bit / 64] |= 1 << (bit % 64);
        }
        words
    }

    /// Whether packets are missing.
    pub fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Kind;
    use proptest::prelude::*;

    fn data(sequence: u64, payload: &[u8], first: bool, last: bool) -> Packet<'_> {
        Packet { sequence, payload, first, last, ..Packet::new(Kind::Data, 1, 2) }
    }

    proptest! {
        #[test]
        fn packets_in_any_order_with_duplicates_give_the_messages_once_and_in_order(
            order in Just((0u64..40).collect::<Vec<_>>()).prop_shuffle(),
            repeats in proptest::collection::vec(0u64..40, 0..20),
        ) {
            let mut receiver = Receiver::new(64, 100);
            let mut messages = Vec::new();
            for sequence in order.into_iter().chain(repeats) {
                // Each message consists of two packets.
                let payload = [sequence as u8];
                receiver.receive(&data(sequence, &payload, sequence % 2 == 0, sequence % 2 == 1)).unwrap();
                messages.extend(std::iter::from_fn(|| receiver.take()));
            }
            let expected: Vec<_> = (0u8..20).map(|m| vec![2 * m, 2 * m + 1]).collect();
            prop_assert_eq!(messages, expected);
            prop_assert!(!receiver.has_gap());
        }
    }

    #[test]
    fn early_packets_are_acknowledged_by_their_position_after_the_gap() {
        let mut receiver = Receiver::new(200, 100);
        for sequence in [1, 3, 66] {
            assert_eq!(receiver.receive(&data(sequence, b"", true, true)), Ok(Arrival::Early));
        }
        assert_eq!((receiver.next(), receiver.sack()), (0, [0b101, 0b10, 0, 0]));
        assert_eq!(receiver.receive(&data(0, b"", true, true)), Ok(Arrival::InOrder));
        assert_eq!((receiver.next(), receiver.sack()), (2, [0b1 | 1 << 63, 0, 0, 0]));
        assert_eq!(receiver.receive(&data(1, b"", true, true)), Ok(Arrival::Duplicate));
    }

    #[test]
    fn messages_that_are_not_taken_use_up_the_credits() {
        let mut receiver = Receiver::new(4, 100);
        for sequence in 0..8 {
            assert_eq!(receiver.receive(&data(sequence, b"", true, true)), Ok(Arrival::InOrder));
            assert_eq!(receiver.credits(), 3u16.saturating_sub(sequence as u16));
        }
        assert_eq!(receiver.receive(&data(8, b"", true, true)), Ok(Arrival::Refused));
        receiver.take();
        assert_eq!(receiver.receive(&data(8, b"", true, true)), Ok(Arrival::InOrder));
    }

    #[test]
    fn overlong_messages_and_inconsistent_fragments_are_rejected() {
        let mut receiver = Receiver::new(4, 3);
        receiver.receive(&data(0, b"ab", true, false)).unwrap();
        assert_eq!(receiver.clone().receive(&data(1, b"cd", false, true)), Err(Violation::TooLong(3)));
        assert_eq!(receiver.receive(&data(1, b"c", true, true)), Err(Violation::Fragments));
        assert_eq!(Receiver::new(4, 3).receive(&data(0, b"c", false, true)), Err(Violation::Fragments));
        assert_eq!(Receiver::new(4, 3).receive(&data(u64::MAX, b"c", false, true)), Ok(Arrival::Refused));
    }
}
