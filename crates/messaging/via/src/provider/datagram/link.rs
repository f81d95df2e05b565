//! A connected VI's path over a reliable connection of a datagram NIC.
//! Not the connection itself, nor the socket: those are the node's.
//! Source: VIA, reliability levels, RDMA.

use super::MAX_DESCRIPTORS;
use super::message::{HEAD_BYTES, Head};
use super::node::Node;
use crate::attributes::Reliability;
use crate::descriptor::{RemoteSegment, Status};
use crate::provider::slices::{gather, scatter};
use crate::provider::{Bell, Gone, Header, Link, Outgoing, Posted, Refusal, Request, Target};
use longma_reliable::{Event, SendError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Answers that may be owed to a peer. It has one for each descriptor of its send queue at most; one who asks for more before he has
/// taken what he asked for breaks the protocol.
const MOST_OWED: usize = MAX_DESCRIPTORS as usize;

/// An answer that is to be given.
enum Answer {
    Message(Head),
    /// The bytes of an RDMA read are gathered when there is room for them, so that a peer's questions cost no copies of memory.
    Read(RemoteSegment, u32, u32),
}

pub(super) struct DatagramLink {
    node: Arc<Node>,
    tag: u64,
    reliability: Reliability,
    /// Posts that are not complete, in their order, with what has become of them.
    pending: VecDeque<(u32, Option<Status>)>,
    bytes: Vec<u8>,
    /// Answers that found no room, to be said before anything else.
    owed: VecDeque<Answer>,
    over: bool,
    armed: bool,
    /// Nothing rings here: the node's thread wakes sleepers through the engine.
    quiet: Box<AtomicU32>,
}

impl DatagramLink {
    pub(super) fn new(node: Arc<Node>, tag: u64, reliability: Reliability) -> Self {
        let (pending, bytes, owed) = Default::default();
        Self {
            node,
            tag,
            reliability,
            pending,
            bytes,
            owed,
            over: false,
            armed: false,
            quiet: Box::default(),
        }
    }

    /// Answers, now or when there is room.
    fn answer(&mut self, answer: Answer, target: &mut dyn Target) -> Result<(), Gone> {
        if self.owed.len() >= MOST_OWED {
            return Err(self.lose());
        }
        self.owed.push_back(answer);
        self.pay(target)
    }

    /// Gives the answers that are owed, as far as there is room.
    fn pay(&mut self, target: &mut dyn Target) -> Result<(), Gone> {
        while let Some(answer) = self.owed.front() {
            let sent = match *answer {
                Answer::Message(head) => self.node.send(self.tag, &[&head.write()]),
                Answer::Read(..) if !self.node.has_room(self.tag) => return Ok(()),
                Answer::Read(remote, length, token) => match target.readable(remote, length) {
                    Ok(slice) => {
                        self.bytes.clear();
                        self.bytes.extend(Head::ReadData(token).write());
                        gather(&[slice], &mut self.bytes);
                        self.node.send(self.tag, &[&self.bytes])
                    }
                    Err(refusal) => {
                        self.owed.pop_front();
                        self.refuse(Some(token), refusal)?;
                        continue;
                    }
                },
            };
            if sent == Err(SendError::Full) {
                return Ok(());
            }
            // With the connection over there is nobody to hear it.
            self.owed.pop_front();
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

    fn arrived(&mut self, message: &[u8], target: &mut dyn Target) -> Result<(), Gone> {
        let Some((head, data)) = Head::read(message) else { return Err(self.lose()) };
        match head {
            Head::Data(header, token) => match target.deliver(&header, data) {
                Ok(()) => {
                    let Some(token) = token else { return Ok(()) };
                    self.answer(Answer::Message(Head::Received(token)), target)
                }
                Err(refusal) => self.refuse(token, refusal),
            },
            Head::Read(header, token) => {
                let Request::RdmaRead(remote) = header.request else { return Ok(()) };
                self.answer(Answer::Read(remote, header.length, token), target)
            }
            Head::ReadData(token) => {
                if let Some(slices) = target.reading(token) {
                    scatter(slices, data);
                    self.completed(token, Status::DONE, target);
                }
                Ok(())
            }
            Head::Received(token) => {
                self.completed(token, Status::DONE, target);
                Ok(())
            }
            Head::Refused(token, status) => {
                if let Some(token) = token
                    && status.is_error()
                {
                    self.completed(token, status, target);
                }
                Err(self.lose())
            }
        }
    }

    /// The engine did not take what the peer sent: with reliable delivery that is the end of the connection.
    fn refuse(&mut self, token: Option<u32>, refusal: Refusal) -> Result<(), Gone> {
        if self.reliability == Reliability::Unreliable {
            return Ok(());
        }
        // Said at once or not at all: what is owed before it is not given any more, and a full queue tells the peer by its end.
        let _ = self.node.send(self.tag, &[&Head::Refused(token, refusal.remote_status()).write()]);
        Err(self.lose())
    }

    fn lose(&mut self) -> Gone {
        self.leave();
        Gone::Lost
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.node.leave(self.tag);
        }
    }
}

impl Link for DatagramLink {
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted {
        // The next poll pays; what is said later must not overtake it.
        if !self.owed.is_empty() {
            return Posted::Full;
        }
        let Outgoing { request, token, length, immediate, slices } = *outgoing;
        let header = Header { request, length, immediate };
        let is_read = matches!(request, Request::RdmaRead(_));
        let waits = self.reliability == Reliability::ReliableReception || is_read;
        let head =
            if is_read { Head::Read(header, token) } else { Head::Data(header, waits.then_some(token)) };
        self.bytes.clear();
        self.bytes.extend(head.write());
        if !is_read {
            gather(slices, &mut self.bytes);
        }
        debug_assert!(is_read || self.bytes.len() == HEAD_BYTES + length as usize);
        match self.node.send(self.tag, &[&self.bytes]) {
            // A copy is on its way, and what was posted before it is complete: then this is.
            Ok(_) if !waits && self.pending.is_empty() => Posted::Done,
            Ok(_) => {
                self.pending.push_back((token, (!waits).then_some(Status::DONE)));
                Posted::Pending
            }
            Err(SendError::Full) => Posted::Full,
            Err(SendError::TooLong(_)) => Posted::Failed(Status::LENGTH_ERROR),
            Err(SendError::NotOpen) => Posted::Failed(Status::TRANSPORT_ERROR),
        }
    }

    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), Gone> {
        self.pay(target)?;
        for turn in 0..budget.max(1) {
            let Some(event) = self.node.poll(self.tag, turn == 0) else { break };
            match event {
                Event::Message(message) => self.arrived(&message, target)?,
                Event::Closed => {
                    self.leave();
                    return Err(Gone::Disconnected);
                }
                Event::Lost(_) => return Err(self.lose()),
                Event::Opened(_) | Event::Rejected(_) | Event::Delivered(_) => {}
            }
        }
        // What has just come may have made room.
        self.pay(target)
    }

    fn arm(&mut self) -> Bell {
        if !std::mem::replace(&mut self.armed, true) {
            self.node.arm(true);
        }
        Bell::Word { word: &raw const *self.quiet, value: 0 }
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.node.arm(false);
        }
    }

    fn park(&mut self) -> bool {
        // The node's thread has whoever gets something looked at, whether he polls or not.
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
