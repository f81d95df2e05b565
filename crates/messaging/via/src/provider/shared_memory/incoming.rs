//! Receives messages from the peer. Each message is copied, then validated word by word, then stored at the destination
//! that the engine gives. A message that violates the protocol ends the connection without any other effect.
//!
//! Source: see `layout.rs`.

use super::layout::*;
use super::link::{Answer, MAX_READS, SharedLink, Use};
use super::outgoing::{OFFSET_WORD, SOURCES_IN_SLOT};
use super::ring::Message;
use crate::attributes::Reliability;
use crate::descriptor::{RemoteSegment, Status};
use crate::protection::MemoryHandle;
use crate::provider::{EndReason, Header, Refusal, Request, Slice, Target};
use crate::shared_bytes::copy;

/// The number of completions that may be withheld from the peer while more messages are received. Each notification
/// takes a cache line away from the peer, which polls it continuously.
const MAX_OWED: u32 = 2;

/// A message of which some parts have not arrived.
pub(super) struct PartialMessage {
    length: u32,
    received: u32,
    /// Whether the engine refused the message, and the reliability level permits dropping it.
    dropped: bool,
}

/// Copies `length` bytes to the slices, starting at byte `offset` of their concatenation.
///
/// # Safety
/// `from` must be readable for that length, and the slices must be writable.
unsafe fn scatter(slices: &[Slice], offset: u32, from: *const u8, length: u32) {
    let (mut skip, mut copied, length) = (offset as usize, 0, length as usize);
    for slice in slices {
        let slice_bytes = slice.length as usize;
        if skip >= slice_bytes {
            skip -= slice_bytes;
            continue;
        }
        let count = (slice_bytes - skip).min(length - copied);
        // SAFETY: the range is inside the slice and inside the memory that the caller guarantees.
        unsafe { copy(from.add(copied), slice.address.add(skip), count) };
        (skip, copied) = (0, copied + count);
        if copied == length {
            return;
        }
    }
}

fn remote_of(message: &Message) -> Result<RemoteSegment, EndReason> {
    let handle = u32::try_from(message.words[1]).map_err(|_| EndReason::ProtocolViolation)?;
    Ok(RemoteSegment { address: message.words[0], handle: MemoryHandle(handle) })
}

/// The arena offset of a message.
///
/// # Errors
/// If `length` bytes from there are not inside the arena.
fn offset_of(message: &Message, length: u32) -> Result<usize, EndReason> {
    let offset = message.words[OFFSET_WORD];
    let inside = length <= CHUNK_BYTES && offset <= u64::from(ARENA_BYTES - length);
    if inside { Ok(offset as usize) } else { Err(EndReason::ProtocolViolation) }
}

impl SharedLink {
    /// Handles one message and advances to the next.
    #[inline]
    pub(super) fn take(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), EndReason> {
        let small = message.kind == Kind::Send as u8
            && message.place == DataLocation::Slot as u8
            && message.length <= INLINE_BYTES
            && self.arriving.is_none();
        if small {
            let immediate = (message.flags & HAS_IMMEDIATE != 0).then_some(message.immediate);
            let header = Header { request: Request::Send, length: message.length, immediate };
            return self.take_in_slot(message, &header, 0, target);
        }
        self.take_other(message, target)
    }

    fn take_other(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), EndReason> {
        let kind = Kind::from_byte(message.kind).ok_or(EndReason::ProtocolViolation)?;
        let place = DataLocation::from_byte(message.place).ok_or(EndReason::ProtocolViolation)?;
        // Only answers to reads may come between the parts of a message.
        let continues = matches!(kind, Kind::Part | Kind::ReadData);
        if self.arriving.is_some() && !continues {
            return Err(EndReason::ProtocolViolation);
        }
        let immediate = (message.flags & HAS_IMMEDIATE != 0).then_some(message.immediate);
        let send = Header { request: Request::Send, length: message.length, immediate };
        match (kind, place) {
            (Kind::Send, DataLocation::Arena) => self.take_in_arena(message, &send, target),
            (Kind::Send, DataLocation::Memory) => self.fetch(message, &send, target),
            (Kind::Send, DataLocation::Parts) => self.take_first_part(message, &send, target),
            (Kind::Write | Kind::WriteDone, _) => {
                let header = Header { request: Request::RdmaWrite(remote_of(message)?), ..send };
                match (kind, place) {
                    (Kind::Write, DataLocation::Slot) if message.length <= INLINE_BYTES - 16 => {
                        self.take_in_slot(message, &header, 2, target)
                    }
                    (Kind::Write, DataLocation::Arena) => self.take_in_arena(message, &header, target),
                    (Kind::Write, DataLocation::Parts) => self.take_first_part(message, &header, target),
                    (Kind::WriteDone, DataLocation::Slot) if immediate.is_some() => {
                        self.take_notice(&header, target)
                    }
                    _ => Err(EndReason::ProtocolViolation),
                }
            }
            (Kind::Part, DataLocation::Arena) => self.take_part(message, target),
            (Kind::ReadRequest, DataLocation::Slot) => self.take_read_request(message, target),
            (Kind::ReadData, DataLocation::Arena) => self.take_read_data(message, target),
            (Kind::Bye, _) => {
                self.bye = true;
                self.next(0, true);
                Ok(())
            }
            _ => Err(EndReason::ProtocolViolation),
        }
    }

    /// Advances to the next message. If the peer's descriptor waits for that, the peer is notified by the end of the
    /// poll at the latest.
    #[inline]
    fn next(&mut self, arena_bytes: u32, publish_now: bool) {
        self.pending_answers += u32::from(publish_now || self.level == Reliability::ReliableReception);
        if self.inn.advance(arena_bytes, self.pending_answers >= MAX_OWED) {
            self.pending_answers = 0;
            self.published();
        }
    }

    /// Handles a message that the engine refused: either it is dropped, or the connection ends and the
    /// reason is sent to the peer.
    fn refused(&mut self, refusal: Refusal, arena_bytes: u32) -> Result<(), EndReason> {
        let harmless = matches!(refusal, Refusal::NoDescriptor | Refusal::Length | Refusal::Protection);
        if self.level == Reliability::Unreliable && harmless {
            self.next(arena_bytes, true);
            return Ok(());
        }
        self.report_fault(refusal.remote_status());
        Err(if refusal == Refusal::Malformed {
            EndReason::ProtocolViolation
        } else {
            EndReason::MessageRefused
        })
    }

    #[inline]
    fn take_in_slot(
        &mut self,
        message: &Message,
        header: &Header,
        first: usize,
        target: &mut dyn Target,
    ) -> Result<(), EndReason> {
        let words = &message.words[first..];
        debug_assert!(header.length as usize <= words.len() * 8, "the callers check the length");
        // SAFETY: the words are local, any bytes are valid, and `take` has compared the length with the size of the
        // words.
        let bytes =
            unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), header.length as usize) };
        if let Err(refusal) = target.deliver(header, bytes) {
            return self.refused(refusal, 0);
        }
        self.next(0, false);
        Ok(())
    }

    fn take_in_arena(
        &mut self,
        message: &Message,
        header: &Header,
        target: &mut dyn Target,
    ) -> Result<(), EndReason> {
        let offset = offset_of(message, header.length)?;
        let arena_bytes = header.length.next_multiple_of(64);
        match target.begin(header) {
            Ok(slices) => {
                // SAFETY: the range is inside the arena, as checked by `offset_of`; the engine has validated the
                // slices.
                unsafe { scatter(slices, 0, self.peer.their_arena().add(offset), header.length) };
            }
            Err(refusal) => return self.refused(refusal, arena_bytes),
        }
        target.end(Status::DONE);
        self.next(arena_bytes, false);
        Ok(())
    }

    fn take_first_part(
        &mut self,
        message: &Message,
        header: &Header,
        target: &mut dyn Target,
    ) -> Result<(), EndReason> {
        let dropped = match target.begin(header) {
            Ok(_) => false,
            Err(refusal) => {
                let harmless =
                    matches!(refusal, Refusal::NoDescriptor | Refusal::Length | Refusal::Protection);
                if self.level != Reliability::Unreliable || !harmless {
                    return self.refused(refusal, 0);
                }
                true
            }
        };
        self.arriving = Some(PartialMessage { length: header.length, received: 0, dropped });
        self.take_part(message, target)
    }

    fn take_part(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), EndReason> {
        let Some(mut arriving) = self.arriving.take() else { return Err(EndReason::ProtocolViolation) };
        let count = CHUNK_BYTES.min(arriving.length - arriving.received);
        let offset = offset_of(message, count)?;
        if !arriving.dropped {
            let Some(slices) = target.resume() else {
                target.end(Status::PROTECTION_ERROR);
                self.report_fault(Status::REMOTE_DESCRIPTOR_ERROR);
                return Err(EndReason::MessageRefused);
            };
            // SAFETY: the range is inside the arena, as checked by `offset_of`; the engine has just validated the
            // slices again.
            unsafe { scatter(slices, arriving.received, self.peer.their_arena().add(offset), count) };
        }
        arriving.received += count;
        let is_complete = arriving.received == arriving.length;
        if is_complete && !arriving.dropped {
            target.end(Status::DONE);
        }
        if !is_complete {
            self.arriving = Some(arriving);
        }
        self.next(count.next_multiple_of(64), is_complete);
        Ok(())
    }

    /// Handles the immediate data of an RDMA write that the peer has already stored.
    fn take_notice(&mut self, header: &Header, target: &mut dyn Target) -> Result<(), EndReason> {
        if let Err(refusal) = target.begin(header) {
            return self.refused(refusal, 0);
        }
        target.end(Status::DONE);
        self.next(0, false);
        Ok(())
    }

    // ---- fetching ---------------------------------------------------------------------------------------------------

    /// Copies a message directly from the peer's memory.
    fn fetch(
        &mut self,
        message: &Message,
        header: &Header,
        target: &mut dyn Target,
    ) -> Result<(), EndReason> {
        let count = message.count as usize;
        if count > SOURCES_IN_SLOT {
            return Err(EndReason::ProtocolViolation);
        }
        let sources: [(u64, u32, u32); SOURCES_IN_SLOT] = std::array::from_fn(|index| {
            let packed = message.words[2 * index + 1];
            (message.words[2 * index], packed as u32, (packed >> 32) as u32)
        });
        let sources = &sources[..count];
        let total: u64 = sources.iter().map(|(_, length, _)| u64::from(*length)).sum();
        if total != u64::from(header.length) {
            return Err(EndReason::ProtocolViolation);
        }
        let slices = match target.begin(header) {
            Ok(slices) => slices,
            Err(refusal) => return self.refused(refusal, 0),
        };
        if self.copy_sources(sources, slices) {
            target.end(Status::DONE);
            self.next(0, true);
            return Ok(());
        }
        target.end(Status::TRANSPORT_ERROR);
        if self.level == Reliability::Unreliable {
            self.next(0, true);
            return Ok(());
        }
        self.report_fault(Status::TRANSPORT_ERROR);
        Err(EndReason::MessageRefused)
    }

    /// Copies from the peer's regions. Returns `false` if a source is not in a region that the peer exported or lent.
    /// The peer's memory is never accessed in any other way, because a page of the process can be set up so that an
    /// access to it blocks indefinitely.
    fn copy_sources(&mut self, sources: &[(u64, u32, u32)], slices: &[Slice]) -> bool {
        let mut offset = 0;
        for &(address, length, handle) in sources {
            let Some(from) = self.mapped(handle, address, length, Use::Fetch) else { return false };
            // SAFETY: `mapped` guarantees `length` readable bytes; the engine has validated the slices, which can hold
            // the message.
            unsafe { scatter(slices, offset, from, length) };
            offset += length;
        }
        true
    }

    // ---- RDMA reads -------------------------------------------------------------------------------------------------

    fn take_read_request(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), EndReason> {
        if self.answers.len() >= MAX_READS {
            return Err(EndReason::LimitExceeded);
        }
        let token = u32::try_from(message.words[2]).map_err(|_| EndReason::ProtocolViolation)?;
        let remote = remote_of(message)?;
        if let Err(refusal) = target.readable(remote, message.length) {
            return self.refused(refusal, 0);
        }
        self.answers.push_back(Answer { token, remote, length: message.length, sent: 0 });
        self.next(0, true);
        self.pump_answers(target)
    }

    fn take_read_data(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), EndReason> {
        let offset = offset_of(message, message.length)?;
        let token = u32::try_from(message.words[0]).map_err(|_| EndReason::ProtocolViolation)?;
        let pending = self
            .pending
            .iter_mut()
            .find(|pending| pending.token == token)
            .ok_or(EndReason::ProtocolViolation)?;
        let Some(reading) = &mut pending.read else { return Err(EndReason::ProtocolViolation) };
        let fits = u64::from(reading.received) == message.words[1]
            && message.length <= reading.length - reading.received;
        if !fits {
            return Err(EndReason::ProtocolViolation);
        }
        let slices = target.reading(token).ok_or(EndReason::ProtocolViolation)?;
        // SAFETY: the range is inside the arena, as checked by `offset_of`; the engine has validated the slices, which
        // can hold the read.
        unsafe { scatter(slices, reading.received, self.peer.their_arena().add(offset), message.length) };
        reading.received += message.length;
        reading.is_complete = reading.received == reading.length;
        let more = !reading.is_complete;
        self.next(message.length.next_multiple_of(64), true);
        if more && self.inn.peek().is_none() {
            // There is space again for the rest of the data. Notify the peer, because its program may not be polling.
            self.nudge();
        }
        Ok(())
    }
}
