//! Credits: the number of frames that each side may still send. A state machine without I/O.
//!
//! A side has as many credits as the other has receive slots. A data frame uses one. When the program has received the
//! contents of a frame, the receiver returns the credit in the header of its next frame. If it sends nothing, it
//! returns credits in a separate frame as soon as half of the slots are free. At most two of these frames are in
//! flight, because the peer cannot fill the slots again before it has received the first frame.

use crate::wire::{FrameKind, Header, Hello};

/// Receive slots in addition to those for data: for a hello, an end, and two frames that only return credits.
pub(crate) const CONTROL_SLOTS: u32 = 4;

/// The action for a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// Its slot can be reused at once.
    Control,
    /// Its payload is for the program.
    Data,
}

/// The credits of both sides, and the phases of the connection.
#[derive(Debug)]
pub struct Flow {
    /// This side's receive slots.
    slots: u32,
    /// The peer's hello.
    peer: Option<Hello>,
    /// Frames that this side may send.
    credits: u32,
    /// Frames that the peer may send.
    granted: u32,
    /// Freed slots whose credits have not been returned.
    freed: u32,
    peer_has_ended: bool,
}

impl Flow {
    /// A new connection with this number of receive slots.
    pub fn new(slots: u32) -> Self {
        Self { slots, peer: None, credits: 0, granted: slots, freed: 0, peer_has_ended: false }
    }

    /// The peer's hello, once it has arrived.
    pub fn peer(&self) -> Option<Hello> {
        self.peer
    }

    /// Whether the peer has announced that it sends no more data.
    pub fn peer_has_ended(&self) -> bool {
        self.peer_has_ended
    }

    /// Processes the header of a frame from the peer.
    ///
    /// # Errors
    /// A violation of the protocol.
    pub fn received(&mut self, header: &Header, payload: &[u8]) -> Result<Frame, &'static str> {
        match (self.peer, header.kind) {
            (None, FrameKind::Hello) => {
                let hello = Hello::decode(payload)?;
                if header.credits != 0 {
                    return Err("credits that were not used");
                }
                (self.peer, self.credits) = (Some(hello), hello.slots);
                return Ok(Frame::Control);
            }
            (None, _) => return Err("a frame before the hello"),
            (Some(_), FrameKind::Hello) => return Err("a second hello"),
            (Some(hello), _) => self.credits_returned(header.credits.into(), hello)?,
        }
        match header.kind {
            FrameKind::Credit if header.credits == 0 => Err("a frame that returns no credits"),
            FrameKind::Credit | FrameKind::End if !payload.is_empty() => {
                Err("a control frame with a payload")
            }
            FrameKind::Credit => Ok(Frame::Control),
            _ if self.peer_has_ended => Err("a frame after the end"),
            FrameKind::End => {
                self.peer_has_ended = true;
                Ok(Frame::Control)
            }
            _ if self.granted == 0 => Err("a frame without a credit"),
            _ => {
                self.granted -= 1;
                Ok(Frame::Data)
            }
        }
    }

    fn credits_returned(&mut self, credits: u32, peer: Hello) -> Result<(), &'static str> {
        if self.credits + credits > peer.slots {
            return Err("credits that were not used");
        }
        self.credits += credits;
        Ok(())
    }

    /// Records that the program has received the contents of a data frame.
    pub fn free(&mut self) {
        self.freed += 1;
        debug_assert!(self.granted + self.freed <= self.slots);
    }

    /// Whether this side may send a data frame.
    pub fn may_send(&self) -> bool {
        self.credits > 0
    }

    /// Uses a credit for a data frame.
    pub fn use_credit(&mut self) {
        self.credits -= 1;
    }

    /// Whether to return credits in a separate frame.
    pub fn must_return(&self) -> bool {
        2 * self.freed >= self.slots && !self.peer_has_ended
    }

    /// The credits to put into the header of the next frame.
    pub fn take_freed(&mut self) -> u16 {
        let freed = std::mem::take(&mut self.freed);
        self.granted += freed;
        freed as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn hello(slots: u32) -> (Header, Vec<u8>) {
        (header(FrameKind::Hello, 0), Hello { slot_bytes: 64, slots }.encode().to_vec())
    }

    fn header(kind: FrameKind, credits: u16) -> Header {
        Header { kind, credits, total: 0, id: 0 }
    }

    /// Two sides that follow the rules, with queues between them.
    struct Pair {
        sides: [Flow; 2],
        wires: [VecDeque<(Header, Vec<u8>)>; 2],
        /// Data frames that have arrived and that the program has not received.
        unread: [u32; 2],
    }

    impl Pair {
        fn step(&mut self, side: usize, action: u8) {
            match action {
                0 => {
                    if let Some((header, payload)) = self.wires[1 - side].pop_front() {
                        let frame = self.sides[side].received(&header, &payload).unwrap();
                        self.unread[side] += u32::from(frame == Frame::Data);
                    }
                }
                1 if self.sides[side].may_send() => {
                    self.sides[side].use_credit();
                    self.send(side, FrameKind::Message);
                }
                2 if self.unread[side] > 0 => {
                    self.unread[side] -= 1;
                    self.sides[side].free();
                    if self.sides[side].must_return() {
                        self.send(side, FrameKind::Credit);
                    }
                }
                _ => {}
            }
        }

        fn send(&mut self, side: usize, kind: FrameKind) {
            let credits = self.sides[side].take_freed();
            self.wires[side].push_back((header(kind, credits), vec![]));
        }
    }

    proptest! {
        /// For any sequence of operations, neither side overruns the other's slots, and neither is blocked at the end.
        #[test]
        fn sides_that_follow_the_rules_never_overrun_or_block_each_other(
            slots in [2u32..40, 2u32..40],
            actions in prop::collection::vec((0usize..2, 0u8..3), 0..2000),
        ) {
            let wires = [hello(slots[0]), hello(slots[1])].map(|first| VecDeque::from([first]));
            let mut pair = Pair { sides: slots.map(Flow::new), wires, unread: [0; 2] };
            for (side, action) in actions {
                pair.step(side, action);
                for side in 0..2 {
                    // The frames that occupy a slot of the other side.
                    let (data, control): (Vec<_>, Vec<_>) = pair.wires[side].iter().partition(|(h, _)| h.kind.is_data());
                    prop_assert!(data.len() as u32 + pair.unread[1 - side] <= slots[1 - side]);
                    prop_assert!(control.len() as u32 <= CONTROL_SLOTS);
                }
            }
            // After all frames in flight are received, both can send again.
            for action in [0, 2, 0, 2] {
                for _ in 0..200 {
                    (0..2).for_each(|side| pair.step(side, action));
                }
            }
            prop_assert!(pair.sides.iter().all(Flow::may_send));
        }

        #[test]
        fn any_frames_are_accepted_or_refused(frames in prop::collection::vec((0u8..9, 0u16..5, prop::collection::vec(any::<u8>(), 0..14)), 0..50)) {
            let mut flow = Flow::new(4);
            let first = hello(3);
            flow.received(&first.0, &first.1).unwrap();
            let mut held = 0;
            for (kind, credits, payload) in frames {
                let mut bytes = header(FrameKind::Credit, credits).encode();
                bytes[0] = kind;
                let Ok(header) = Header::decode(&bytes) else { continue };
                match flow.received(&header, &payload) {
                    Ok(Frame::Data) => held += 1,
                    Ok(Frame::Control) => {}
                    Err(_) => break,
                }
                prop_assert!(held <= 4 && flow.credits <= 3);
            }
        }
    }
}
