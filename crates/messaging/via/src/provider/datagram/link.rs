//! The link of a connected VI over a reliable connection of a datagram NIC.
//!
//! Source: VIA, reliability levels, RDMA.

use super::MAX_DESCRIPTORS;
use super::message::{HEAD_BYTES, MessageHeader};
use super::node::Node;
use crate::attributes::Reliability;
use crate::descriptor::{RemoteSegment, Status};
use crate::provider::slices::{gather, scatter};
use crate::provider::{EndReason, Header, Link, Outgoing, Posted, Refusal, Request, Target, WakeSource};
use longma_reliable::{Event, Loss, SendError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The maximum number of pending answers to a peer. The peer may have one for each descriptor of its send queue; a peer
/// that requests more before taking its answers violates the protocol.
const MAX_OWED: usize = MAX_DESCRIPTORS as usize;

/// A pending answer.
enum Answer {
    Message(MessageHeader),
    /// Data for an RDMA read. It is gathered when there is space, so that a peer's requests do not cost copies in
    /// memory.
    Read(RemoteSegment, u32, u32),
}

pub(super) struct DatagramLink {
    node: Arc<Node>,
    tag: u64,
    reliability: Reliability,
    /// Incomplete posts in order, with their status if known.
    pending: VecDeque<(u32, Option<Status>)>,
    bytes: Vec<u8>,
    /// Answers waiting for space. They precede all other messages.
    pending_answers: VecDeque<Answer>,
    over: bool,
    armed: bool,
    /// A futex word that is never woken directly: the node's thread wakes sleepers through the engine.
    quiet: Box<AtomicU32>,
}

impl DatagramLink {
    pub(super) fn new(node: Arc<Node>, tag: u64, reliability: Reliability) -> Self {
        let (pending, bytes, pending_answers) = Default::default();
        Self {
            node,
            tag,
            reliability,
            pending,
            bytes,
            pending_answers,
            over: false,
            armed: false,
            quiet: Box::default(),
        }
    }

    /// Sends an answer, now or when there is space.
    fn answer(&mut self, answer: Answer, target: &mut dyn Target) -> Result<(), EndReason> {
        if self.pending_answers.len() >= MAX_OWED {
            return Err(self.lose(EndReason::LimitExceeded));
        }
        self.pending_answers.push_back(answer);
        self.send_answers(target)
    }

    /// Sends pending answers while there is space.
    fn send_answers(&mut self, target: &mut dyn Target) -> Result<(), EndReason> {
        while let Some(answer) = self.pending_answers.front() {
            let sent = match *answer {
                Answer::Message(head) => self.node.send(self.tag, &[&head.write()]),
                Answer::Read(..) if !self.node.has_space(self.tag) => return Ok(()),
                Answer::Read(remote, length, token) => match target.readable(remote, length) {
                    Ok(slice) => {
                        self.bytes.clear();
                        self.bytes.extend(MessageHeader::ReadData(token).write());
                        gather(&[slice], &mut self.bytes);
                        self.node.send(self.tag, &[&self.bytes])
                    }
                    Err(refusal) => {
                        self.pending_answers.pop_front();
                        self.refuse(Some(token), refusal)?;
                        continue;
                    }
                },
            };
            if sent == Err(SendError::Full) {
                return Ok(());
            }
            // If the connection is over, the answer is dropped.
            self.pending_answers.pop_front();
        }
        Ok(())
    }

    fn completed(&mut self, token: u32, status: Status, target: &mut dyn Target) {
        if let Some(entry) = self.pending.iter_mut().find(|entry| entry.0 == token) {
            entry.1 = Some(status);
        }
        while let Some((token, Some(status))) = self.pending.front().copied() {
            self.pending.pop_front();
            target.completed(token, status);
        }
    }

    fn arrived(&mut self, message: &[u8], target: &mut dyn Target) -> Result<(), EndReason> {
        let Some((head, data)) = MessageHeader::read(message) else {
            return Err(self.lose(EndReason::ProtocolViolation));
        };
        match head {
            MessageHeader::Data(header, token) => match target.deliver(&header, data) {
                Ok(()) => {
                    let Some(token) = token else { return Ok(()) };
                    self.answer(Answer::Message(MessageHeader::Received(token)), target)
                }
                Err(refusal) => self.refuse(token, refusal),
            },
            MessageHeader::Read(header, token) => {
                let Request::RdmaRead(remote) = header.request else { return Ok(()) };
                self.answer(Answer::Read(remote, header.length, token), target)
            }
            MessageHeader::ReadData(token) => {
                if let Some(slices) = target.reading(token) {
                    scatter(slices, data);
                    self.completed(token, Status::DONE, target);
                }
                Ok(())
            }
            MessageHeader::Received(token) => {
                self.completed(token, Status::DONE, target);
                Ok(())
            }
            MessageHeader::Refused(token, status) => {
                if let Some(token) = token
                    && status.is_error()
                {
                    self.completed(token, status, target);
                }
                Err(self.lose(EndReason::MessageRefused))
            }
        }
    }

    /// Handles a message that the engine refused: with reliable delivery, the connection ends.
    fn refuse(&mut self, token: Option<u32>, refusal: Refusal) -> Result<(), EndReason> {
        if self.reliability == Reliability::Unreliable {
            return Ok(());
        }
        // Try to send the reason now. Earlier pending answers are dropped, and if there is no space, the peer only sees
        // the end of the connection.
        let _ = self.node.send(self.tag, &[&MessageHeader::Refused(token, refusal.remote_status()).write()]);
        Err(self.lose(EndReason::MessageRefused))
    }

    fn lose(&mut self, reason: EndReason) -> EndReason {
        self.leave();
        reason
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.node.leave(self.tag);
        }
    }
}

/// The reason that a program sees for a broken connection.
fn reason_of(loss: &Loss) -> EndReason {
    match loss {
        Loss::Silent(_) => EndReason::TimedOut,
        Loss::Blocked(_) => EndReason::PathMtu,
        Loss::Reset => EndReason::PeerExited,
        Loss::Violation(_) | Loss::MalformedAnswer => EndReason::ProtocolViolation,
    }
}

impl Link for DatagramLink {
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted {
        // The next poll sends the pending answers. New messages must not overtake them.
        if !self.pending_answers.is_empty() {
            return Posted::Full;
        }
        let Outgoing { request, token, length, immediate, slices } = *outgoing;
        let header = Header { request, length, immediate };
        let is_read = matches!(request, Request::RdmaRead(_));
        let waits = self.reliability == Reliability::ReliableReception || is_read;
        let head = if is_read {
            MessageHeader::Read(header, token)
        } else {
            MessageHeader::Data(header, waits.then_some(token))
        };
        self.bytes.clear();
        self.bytes.extend(head.write());
        if !is_read {
            gather(slices, &mut self.bytes);
        }
        debug_assert!(is_read || self.bytes.len() == HEAD_BYTES + length as usize);
        match self.node.send(self.tag, &[&self.bytes]) {
            // The data has been copied and all earlier posts are complete, so this one is complete too.
            Ok(_) if !waits && self.pending.is_empty() => Posted::Done,
            Ok(_) => {
                self.pending.push_back((token, (!waits).then_some(Status::DONE)));
                Posted::Pending
            }
            // After the end of the connection, the next polls first deliver the messages that have arrived, and then
            // report the end.
            Err(SendError::Full | SendError::NotOpen) => Posted::Full,
            Err(SendError::TooLong(_)) => Posted::Failed(Status::LENGTH_ERROR),
        }
    }

    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), EndReason> {
        self.send_answers(target)?;
        for turn in 0..budget.max(1) {
            let Some(event) = self.node.poll(self.tag, turn == 0) else { break };
            match event {
                Event::Message(message) => self.arrived(&message, target)?,
                Event::Closed => {
                    self.leave();
                    return Err(EndReason::Disconnected);
                }
                Event::Lost(loss) => {
                    if matches!(loss, Loss::Blocked(_)) {
                        self.node.shrink(self.tag);
                    }
                    return Err(self.lose(reason_of(&loss)));
                }
                Event::Opened(_) | Event::Rejected(_) | Event::Delivered(_) => {}
            }
        }
        // The messages just received may have freed space.
        self.send_answers(target)
    }

    fn arm(&mut self) -> WakeSource {
        if !std::mem::replace(&mut self.armed, true) {
            self.node.arm(true);
        }
        WakeSource::Word { word: &raw const *self.quiet, value: 0 }
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.node.arm(false);
        }
    }

    fn park(&mut self) -> bool {
        // The node's thread reports arrivals for all VIs, polled or not.
        true
    }

    fn disconnect(&mut self) {
        self.leave();
    }
}

impl Drop for DatagramLink {
    fn drop(&mut self) {
        self.disarm();
        self.leave();
    }
}
