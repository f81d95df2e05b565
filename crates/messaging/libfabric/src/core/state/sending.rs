//! Sending: operations become frames as credits, slots and requests permit.

use super::State;
use crate::core::buffer::Buffer;
use crate::core::connection::{Connection, Posted, Request};
use crate::core::error::Failure;
use crate::core::operation::{Action, Operation, Source};
use crate::core::slots::{CREDITS, MAX_OFFERS, MAX_PAYLOAD_BYTES, MAX_REQUESTS};
use crate::core::wire::{Frame, Part, Window};
use longma_via::{Error, MemoryAttributes, MemoryRegion, Nic};

/// The number of operations that may wait for a peer. Further calls fail with `EAGAIN`.
pub(crate) const MAX_WAITING: usize = 256;

/// Memory that a peer may read, and the window that names it.
pub(super) fn offer(
    nic: &Nic,
    connection: &Connection,
    buffer: &Buffer,
) -> Result<(Vec<MemoryRegion>, Window), Error> {
    let link = connection.link.as_ref().ok_or(Error::InvalidState("not connected".into()))?;
    let readable = MemoryAttributes { rdma_write: false, ..MemoryAttributes::remote(link.tag.get()) };
    let regions = buffer.register(nic, readable)?;
    let part = |region: &MemoryRegion| {
        let start = region.remote(0);
        Part { address: start.address, handle: start.handle.0, length: region.len() as u32 }
    };
    let parts: Vec<_> = regions.iter().map(part).collect();
    Ok((regions, Window::new(&parts)))
}

impl Connection {
    /// The frame of an operation with its request, if it needs one.
    fn frame_of(&self, nic: &Nic, operation: &Operation) -> Result<(Frame, Option<Request>), Error> {
        let length = operation.source.len();
        let intent = operation.intent;
        let is_long = length > MAX_PAYLOAD_BYTES;
        let id = self.requests.vacant_key() as u32;
        let (frame, request) = match operation.action {
            Action::Message { tag, data, acknowledged } => {
                if !is_long && !acknowledged {
                    return Ok((Frame::Message { tag, data }, None));
                }
                let (registered, window) = self.offer(nic, &operation.source)?;
                (
                    Frame::Offer { id, tag, data, window },
                    Request::Offer { intent, length, _registered: registered },
                )
            }
            Action::Write { target, data } => {
                let (key, address) = (target.key, target.address);
                let (registered, frame) = if is_long {
                    let (registered, window) = self.offer(nic, &operation.source)?;
                    (registered, Frame::WriteOffer { id, key, address, data, window })
                } else {
                    (Vec::new(), Frame::Write { id, key, address, data })
                };
                (frame, Request::Write { intent, length, _registered: registered })
            }
            Action::Read { target, result } => {
                let frame =
                    Frame::Read { id, key: target.key, address: target.address, length: result.len() as u64 };
                (frame, Request::Fetch { intent, result })
            }
            Action::Atomic { target, request, result } => {
                let frame = Frame::Atomic { id, key: target.key, address: target.address, request };
                (frame, Request::Fetch { intent, result })
            }
        };
        Ok((frame, Some(request)))
    }

    fn offer(&self, nic: &Nic, source: &Source) -> Result<(Vec<MemoryRegion>, Window), Error> {
        match source {
            Source::Buffer(buffer) => offer(nic, self, buffer),
            // Copied messages are short, so they are sent in frames. An acknowledged message is never copied.
            Source::Copied(_) => Err(Error::InvalidParameter("a copy cannot be offered".into())),
        }
    }

    /// Sends an operation if that is possible now.
    #[inline]
    fn try_send(&mut self, nic: &Nic, operation: &Operation) -> Result<bool, Error> {
        let Some(link) = &self.link else { return Ok(false) };
        if self.credits == 0 || !link.slots.has_free() {
            return Ok(false);
        }
        let must_wait = match operation.action {
            Action::Message { .. } => self.requests.len() >= MAX_OFFERS,
            _ => self.asked >= MAX_REQUESTS,
        };
        if must_wait || (operation.fenced && !self.requests.is_empty()) {
            return Ok(false);
        }
        let (frame, request) = match self.frame_of(nic, operation) {
            // The NIC registers no more memory until other requests are answered.
            Err(Error::Resource(_)) if !self.requests.is_empty() => return Ok(false),
            outcome => outcome?,
        };
        let has_payload = matches!(frame, Frame::Message { .. } | Frame::Write { .. } | Frame::Atomic { .. });
        let payload = has_payload.then_some(&operation.source);
        let intent = request.is_none().then_some(operation.intent);
        let slot = self.post(&frame, |bytes| {
            let Some(source) = payload else { return 0 };
            source.read(&mut bytes[..source.len()]);
            source.len()
        })?;
        self.credits -= 1;
        if let Some(request) = request {
            self.asked += usize::from(!matches!(request, Request::Offer { .. }));
            self.requests.insert(request);
        }
        self.posted.push_back(Posted::Frame { slot, length: operation.source.len(), intent });
        Ok(true)
    }

    /// Posts a frame; `fill` writes the payload and returns its length.
    #[inline]
    fn post(&mut self, frame: &Frame, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, Error> {
        let link = self.link.as_mut().ok_or(Error::InvalidState("not connected".into()))?;
        let credits = std::mem::take(&mut self.freed);
        self.granted += credits;
        link.slots.send(&link.vi, |bytes| {
            let header = frame.encode(credits, bytes);
            header + fill(&mut bytes[header..])
        })
    }

    /// Sends replies, then operations in order, then credits.
    fn send_waiting(&mut self, nic: &Nic) -> Result<(), Error> {
        while self.link.as_ref().is_some_and(|link| link.slots.has_free()) {
            // Replies that need no credit may overtake replies that need one.
            let is_possible = |(frame, _): &(Frame, Vec<u8>)| self.credits > 0 || !frame.needs_credit();
            let Some(place) = self.replies.iter().position(is_possible) else { break };
            let Some((frame, payload)) = self.replies.remove(place) else { break };
            let slot = self.post(&frame, |bytes| {
                bytes[..payload.len()].copy_from_slice(&payload);
                payload.len()
            })?;
            self.posted.push_back(Posted::Frame { slot, length: 0, intent: None });
            match frame {
                Frame::Done { .. } | Frame::Reply { .. } => self.owed -= 1,
                Frame::Taken { .. } => (self.offered, self.credits) = (self.offered - 1, self.credits - 1),
                _ => {}
            }
        }
        while let Some(operation) = self.waiting.pop_front() {
            let outcome = self.try_send(nic, &operation);
            if !matches!(outcome, Ok(true)) {
                self.waiting.push_front(operation);
                outcome?;
                break;
            }
        }
        if self.freed >= CREDITS / 2 && self.link.as_ref().is_some_and(|link| link.slots.has_free()) {
            let slot = self.post(&Frame::Credit, |_| 0)?;
            self.posted.push_back(Posted::Frame { slot, length: 0, intent: None });
        }
        Ok(())
    }
}

impl State {
    /// Starts an operation on a connection, or queues it.
    ///
    /// # Errors
    /// `EAGAIN` if too many operations wait.
    #[inline]
    pub(crate) fn submit(&mut self, key: usize, operation: Operation) -> Result<(), i32> {
        let connection = self.connections.get_mut(key).ok_or(libc::ENOTCONN)?;
        let outcome = match connection.waiting.is_empty() && connection.replies.is_empty() {
            true => connection.try_send(&self.shared.nic, &operation),
            false if connection.waiting.len() >= MAX_WAITING => return Err(libc::EAGAIN),
            false => Ok(false),
        };
        match outcome {
            Ok(true) => self.collect_sent(key),
            Ok(false) => connection.waiting.push_back(match operation.is_transient {
                true => Operation { source: operation.source.copied(), ..operation },
                false => operation,
            }),
            Err(error) => {
                self.setup.report_sent(&operation.intent, 0, Some(Failure::of_connect(&error)));
                self.end_of(key);
                return Ok(());
            }
        }
        let is_busy = self
            .connections
            .get(key)
            .is_some_and(|connection| !connection.posted.is_empty() || !connection.waiting.is_empty());
        if is_busy {
            self.mark_busy(key);
        }
        Ok(())
    }

    /// Sends waiting frames of a connection and reports completed sends.
    pub(super) fn pump(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_ending {
            return;
        }
        if connection.send_waiting(&self.shared.nic).is_err() {
            return self.end_of(key);
        }
        self.collect_sent(key);
    }

    /// Answers a frame.
    pub(super) fn reply(&mut self, key: usize, frame: Frame, payload: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.replies.push_back((frame, payload));
        self.mark_busy(key);
        self.pump(key);
    }

    /// Reports the completed descriptors of a connection's send queue.
    #[inline]
    fn collect_sent(&mut self, key: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if connection.posted.is_empty() || connection.is_ending {
                return;
            }
            let Some(link) = &mut connection.link else { return };
            let Some(completion) = link.vi.send_done() else { return };
            if !completion.is_success() {
                return self.end_of(key);
            }
            match connection.posted.pop_front() {
                Some(Posted::Frame { slot, length, intent }) => {
                    link.slots.release(slot);
                    if let Some(intent) = intent {
                        self.setup.report_sent(&intent, length, None);
                    }
                }
                Some(Posted::Read { pull, is_last: true }) => self.pulled(key, pull),
                Some(Posted::Read { .. }) | None => {}
            }
        }
    }
}
