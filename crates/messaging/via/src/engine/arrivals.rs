//! Incoming messages. Every header is validated here against the VI, its tag and its receive queue before any byte is
//! stored; headers are untrusted.
//!
//! Source: VIA, descriptor processing model, memory protection, reliability levels.

use super::queues::{Arrival, Queues, Side};
use super::work_queue::Stage;
use crate::descriptor::{Operation, RemoteSegment, Status};
use crate::error::ErrorCode;
use crate::provider::{Header, Refusal, Request, Slice, Target};
use crate::shared_bytes::{copy_from_own, store_word};

impl Queues {
    /// Completes the oldest receive descriptor with the error `status`, and refuses the message with `refusal`.
    fn refuse_receive(&mut self, status: Status, refusal: Refusal) -> Refusal {
        self.receive.advance(Stage::Done, |entry| {
            entry.status = status.with(Status::DONE);
            entry.length = 0;
        });
        self.receive_used();
        refusal
    }

    /// Completes the oldest receive descriptor with a message.
    #[inline]
    fn fill_receive(&mut self, operation: Operation, header: &Header, status: Status) {
        self.receive.advance(Stage::Done, |entry| {
            entry.operation = operation;
            entry.status = status.with(Status::DONE);
            // The data of an RDMA write is stored elsewhere, but its length is reported (VIA, length field).
            entry.length = if status.is_error() { 0 } else { header.length };
            entry.immediate = header.immediate;
            if header.immediate.is_some() && !status.is_error() {
                entry.status = entry.status.with(Status::IMMEDIATE);
            }
        });
        self.receive_used();
    }

    /// Called after the oldest receive has completed.
    #[inline]
    fn receive_used(&mut self) {
        self.completed(Side::Receive, 1);
        if self.is_special && self.malformed > 0 {
            self.fail_malformed();
        }
    }

    /// Checks that a receive descriptor is queued.
    #[inline]
    fn need_receive(&mut self) -> Result<(), Refusal> {
        if self.receive.has_queued() {
            return Ok(());
        }
        if self.is_reliable() {
            self.fault = Some(ErrorCode::ReceiveQueueEmpty);
        }
        Err(Refusal::NoDescriptor)
    }

    #[inline]
    fn begin_send(&mut self, header: &Header) -> Result<(), Refusal> {
        self.need_receive()?;
        let Some(entry) = self.receive.queued() else { return Err(Refusal::NoDescriptor) };
        if header.length > entry.length {
            return Err(self.refuse_receive(Status::LENGTH_ERROR, Refusal::Length));
        }
        let tag = self.attributes.tag;
        let segments = self.receive.queued_segments();
        if Queues::slices_again(&mut self.cache, &self.nic, tag, segments, &mut self.incoming).is_err() {
            return Err(self.refuse_receive(Status::PROTECTION_ERROR, Refusal::Protection));
        }
        Ok(())
    }

    fn begin_rdma_write(&mut self, header: &Header, remote: RemoteSegment) -> Result<(), Refusal> {
        let refused = !self.attributes.rdma_write;
        let found = self.cache.remote(&self.nic.memory, self.attributes.tag, remote, header.length, true);
        let slice = match found {
            Ok(slice) if !refused => slice,
            _ => {
                self.fault = Some(ErrorCode::RdmaWriteProtection);
                return Err(Refusal::RdmaProtection);
            }
        };
        if header.immediate.is_some() {
            self.need_receive()?;
        }
        self.incoming.clear();
        self.incoming.push(slice);
        Ok(())
    }
}

impl Target for Queues {
    #[inline]
    fn begin(&mut self, header: &Header) -> Result<&[Slice], Refusal> {
        if header.length > self.max_transfer_bytes {
            self.fault = Some(ErrorCode::ConnectionLost);
            return Err(Refusal::Malformed);
        }
        let uses_receive = match header.request {
            Request::Send => {
                self.begin_send(header)?;
                true
            }
            Request::RdmaWrite(remote) => {
                self.begin_rdma_write(header, remote)?;
                header.immediate.is_some()
            }
            Request::RdmaRead(_) => return Err(Refusal::Malformed),
        };
        // Clip the slices to the length of the message.
        let mut left = header.length;
        for slice in &mut self.incoming {
            slice.length = slice.length.min(left);
            left -= slice.length;
        }
        self.arrival = Some(Arrival { header: *header, uses_receive });
        Ok(&self.incoming)
    }

    fn resume(&mut self) -> Option<&[Slice]> {
        let arrival = self.arrival.as_ref()?;
        let tag = self.attributes.tag;
        let mut left = arrival.header.length;
        match arrival.header.request {
            Request::RdmaWrite(remote) => {
                let slice = self.cache.remote(&self.nic.memory, tag, remote, left, true).ok()?;
                self.incoming.clear();
                self.incoming.push(slice);
            }
            _ => {
                let segments = self.receive.queued_segments();
                Queues::slices_again(&mut self.cache, &self.nic, tag, segments, &mut self.incoming).ok()?;
            }
        }
        for slice in &mut self.incoming {
            slice.length = slice.length.min(left);
            left -= slice.length;
        }
        (left == 0).then_some(&self.incoming)
    }

    #[inline]
    fn put(&mut self, offset: u32, bytes: &[u8]) {
        if let Some(slices) = self.resume() {
            scatter(slices, offset, bytes);
        }
    }

    #[inline]
    fn end(&mut self, status: Status) {
        let Some(arrival) = self.arrival.take() else { return };
        if !arrival.uses_receive {
            if status.is_error() && self.is_reliable() {
                self.fault = Some(ErrorCode::RdmaWriteAbort);
            }
            return;
        }
        let write = matches!(arrival.header.request, Request::RdmaWrite(_));
        let operation = if write { Operation::RemoteRdmaWrite } else { Operation::Receive };
        self.fill_receive(operation, &arrival.header, status);
    }

    #[inline]
    fn deliver(&mut self, header: &Header, bytes: &[u8]) -> Result<(), Refusal> {
        // The fast path for most small messages: a send that fits into the single segment of the oldest receive.
        if header.request == Request::Send
            && header.length <= self.max_transfer_bytes
            && let [segment] = self.receive.queued_segments()
            && header.length <= segment.length
            && bytes.len() == header.length as usize
            && let Ok(slice) = self.cache.local(&self.nic.memory, self.attributes.tag, segment)
        {
            scatter(&[slice], 0, bytes);
            self.fill_receive(Operation::Receive, header, Status::DONE);
            return Ok(());
        }
        self.begin(header)?;
        self.put(0, bytes);
        self.end(Status::DONE);
        Ok(())
    }

    fn readable(&mut self, remote: RemoteSegment, length: u32) -> Result<Slice, Refusal> {
        let found = self.cache.remote(&self.nic.memory, self.attributes.tag, remote, length, false);
        match found {
            Ok(slice) if self.attributes.rdma_read && length <= self.max_transfer_bytes => Ok(slice),
            _ => {
                self.fault = Some(ErrorCode::RdmaReadProtection);
                Err(Refusal::RdmaProtection)
            }
        }
    }

    fn reading(&mut self, token: u32) -> Option<&[Slice]> {
        let (entry, segments) = self.send.posted(token)?;
        if entry.operation != Operation::RdmaRead {
            return None;
        }
        let tag = self.attributes.tag;
        Queues::slices_again(&mut self.cache, &self.nic, tag, segments, &mut self.incoming).ok()?;
        Some(&self.incoming)
    }

    fn completed(&mut self, token: u32, status: Status) {
        let count = self.send.complete_to(token, status);
        Queues::completed(self, Side::Send, count);
        if status.is_error() {
            self.fault = Some(ErrorCode::ConnectionLost);
        }
    }
}

/// Copies `bytes`, which start at `offset` of a message, to the slices of the receiver. Bytes that do not fit are
/// dropped.
#[inline]
fn scatter(slices: &[Slice], offset: u32, bytes: &[u8]) {
    if let ([slice], 0, Ok(word)) = (slices, offset, <[u8; 8]>::try_from(bytes))
        && slice.length >= 8
    {
        // SAFETY: as below; the slice has room for the eight bytes.
        unsafe { store_word(slice.address, u64::from_ne_bytes(word)) };
        return;
    }
    let mut skip = offset as usize;
    let mut rest = bytes;
    for slice in slices {
        let length = slice.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        let count = rest.len().min(length - skip);
        // SAFETY: the slice was validated to be in registered memory, which is mapped and writable as long as it is
        // registered; `skip + count` is at most its length; `bytes` is not registered memory.
        unsafe { copy_from_own(&rest[..count], slice.address.add(skip)) };
        rest = &rest[count..];
        skip = 0;
        if rest.is_empty() {
            return;
        }
    }
}
