//! How messages of the peer are taken: checked word by word after they were copied, then placed where the engine says.
//! Not trusting: whatever does not fit the protocol ends the connection, and touches nothing.
//! Source: see `layout.rs`.

use super::layout::*;
use super::link::{Answer, MOST_READS, SharedLink, Use};
use super::outgoing::{OFFSET_WORD, SOURCES_IN_SLOT};
use super::ring::Message;
use crate::attributes::Reliability;
use crate::descriptor::{RemoteSegment, Status};
use crate::protection::MemoryHandle;
use crate::provider::{Gone, Header, Refusal, Request, Slice, Target};
use crate::shared_bytes::copy;

/// How many completions the peer may wait for while more of its messages are taken. Each telling takes a cache line back from
/// the peer, who looks at it all the time.
const MOST_OWED: u32 = 2;

/// A message of which not all parts have come.
pub(super) struct Arriving {
    length: u32,
    received: u32,
    /// It was refused, at a level where that only drops it.
    dropped: bool,
}

/// Copies `length` bytes into the slices, from byte `offset` of their sum on.
///
/// # Safety
/// `from` must be readable for that length, and the slices must be writable.
unsafe fn scatter(slices: &[Slice], offset: u32, from: *const u8, length: u32) {
    let (mut skip, mut done, length) = (offset as usize, 0, length as usize);
    for slice in slices {
        let held = slice.length as usize;
        if skip >= held {
            skip -= held;
            continue;
        }
        let count = (held - skip).min(length - done);
        // SAFETY: inside the slice and inside what the caller promises.
        unsafe { copy(from.add(done), slice.address.add(skip), count) };
        (skip, done) = (0, done + count);
        if done == length {
            return;
        }
    }
}

fn remote_of(message: &Message) -> Result<RemoteSegment, Gone> {
    let handle = u32::try_from(message.words[1]).map_err(|_| Gone::Lost)?;
    Ok(RemoteSegment { address: message.words[0], handle: MemoryHandle(handle) })
}

/// The arena offset of a message, if `length` bytes there lie in the arena.
fn offset_of(message: &Message, length: u32) -> Result<usize, Gone> {
    let offset = message.words[OFFSET_WORD];
    let inside = length <= CHUNK_BYTES && offset <= u64::from(ARENA_BYTES - length);
    if inside { Ok(offset as usize) } else { Err(Gone::Lost) }
}

impl SharedLink {
    /// Takes one message, and moves on to the next.
    #[inline]
    pub(super) fn take(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), Gone> {
        let small = message.kind == Kind::Send as u8
            && message.place == Place::Slot as u8
            && message.length <= INLINE_BYTES
            && self.arriving.is_none();
        if small {
            let immediate = (message.flags & HAS_IMMEDIATE != 0).then_some(message.immediate);
            let header = Header { request: Request::Send, length: message.length, immediate };
            return self.take_in_slot(message, &header, 0, target);
        }
        self.take_other(message, target)
    }

    fn take_other(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), Gone> {
        let kind = Kind::from_byte(message.kind).ok_or(Gone::Lost)?;
        let place = Place::from_byte(message.place).ok_or(Gone::Lost)?;
        // Between the parts of a message only answers to reads come.
        let goes_on = matches!(kind, Kind::Part | Kind::ReadData);
        if self.arriving.is_some() && !goes_on {
            return Err(Gone::Lost);
        }
        let immediate = (message.flags & HAS_IMMEDIATE != 0).then_some(message.immediate);
        let send = Header { request: Request::Send, length: message.length, immediate };
        match (kind, place) {
            (Kind::Send, Place::Arena) => self.take_in_arena(message, &send, target),
            (Kind::Send, Place::Memory) => self.fetch(message, &send, target),
            (Kind::Send, Place::Parts) => self.take_first_part(message, &send, target),
            (Kind::Write | Kind::WriteDone, _) => {
                let header = Header { request: Request::RdmaWrite(remote_of(message)?), ..send };
                match (kind, place) {
                    (Kind::Write, Place::Slot) if message.length <= INLINE_BYTES - 16 => {
                        self.take_in_slot(message, &header, 2, target)
                    }
                    (Kind::Write, Place::Arena) => self.take_in_arena(message, &header, target),
                    (Kind::Write, Place::Parts) => self.take_first_part(message, &header, target),
                    (Kind::WriteDone, Place::Slot) if immediate.is_some() => {
                        self.take_notice(&header, target)
                    }
                    _ => Err(Gone::Lost),
                }
            }
            (Kind::Part, Place::Arena) => self.take_part(message, target),
            (Kind::ReadRequest, Place::Slot) => self.take_read_request(message, target),
            (Kind::ReadData, Place::Arena) => self.take_read_data(message, target),
            (Kind::Bye, _) => {
                self.bye = true;
                self.next(0, true);
                Ok(())
            }
            _ => Err(Gone::Lost),
        }
    }

    /// Moves on; the peer is told, at the end of the poll if not sooner, if its descriptor waits for that.
    #[inline]
    fn next(&mut self, arena_bytes: u32, tell: bool) {
        self.owed += u32::from(tell || self.level == Reliability::ReliableReception);
        if self.inn.advance(arena_bytes, self.owed >= MOST_OWED) {
            self.owed = 0;
            self.published();
        }
    }

    /// The engine did not take a message: either it is as if it had not come, or the connection ends and the peer hears why.
    fn refused(&mut self, refusal: Refusal, arena_bytes: u32) -> Result<(), Gone> {
        let harmless = matches!(refusal, Refusal::NoDescriptor | Refusal::Length | Refusal::Protection);
        if self.level == Reliability::Unreliable && harmless {
            self.next(arena_bytes, true);
            return Ok(());
        }
        self.report_fault(refusal.remote_status());
        Err(Gone::Lost)
    }

    #[inline]
    fn take_in_slot(
        &mut self,
        message: &Message,
        header: &Header,
        first: usize,
        target: &mut dyn Target,
    ) -> Result<(), Gone> {
        let words = &message.words[first..];
        debug_assert!(header.length as usize <= words.len() * 8, "the callers compare");
        // SAFETY: the words are ours, any bytes are valid, and `take` compared the length with what the words hold.
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
    ) -> Result<(), Gone> {
        let offset = offset_of(message, header.length)?;
        let arena_bytes = header.length.next_multiple_of(64);
        match target.begin(header) {
            Ok(slices) => {
                // SAFETY: inside the arena, as `offset_of` compared; the engine checked the slices.
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
    ) -> Result<(), Gone> {
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
        self.arriving = Some(Arriving { length: header.length, received: 0, dropped });
        self.take_part(message, target)
    }

    fn take_part(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), Gone> {
        let Some(mut arriving) = self.arriving.take() else { return Err(Gone::Lost) };
        let count = CHUNK_BYTES.min(arriving.length - arriving.received);
        let offset = offset_of(message, count)?;
        if !arriving.dropped {
            let Some(slices) = target.resume() else {
                target.end(Status::PROTECTION_ERROR);
                self.report_fault(Status::REMOTE_DESCRIPTOR_ERROR);
                return Err(Gone::Lost);
            };
            // SAFETY: inside the arena, as `offset_of` compared; the engine has just checked the slices again.
            unsafe { scatter(slices, arriving.received, self.peer.their_arena().add(offset), count) };
        }
        arriving.received += count;
        let whole = arriving.received == arriving.length;
        if whole && !arriving.dropped {
            target.end(Status::DONE);
        }
        if !whole {
            self.arriving = Some(arriving);
        }
        self.next(count.next_multiple_of(64), whole);
        Ok(())
    }

    /// An RDMA write that the peer has placed itself tells its immediate data.
    fn take_notice(&mut self, header: &Header, target: &mut dyn Target) -> Result<(), Gone> {
        if let Err(refusal) = target.begin(header) {
            return self.refused(refusal, 0);
        }
        target.end(Status::DONE);
        self.next(0, false);
        Ok(())
    }

    // ---- fetching ---------------------------------------------------------------------------------------------------

    /// The message lies in the peer's memory: copies it from there, once.
    fn fetch(&mut self, message: &Message, header: &Header, target: &mut dyn Target) -> Result<(), Gone> {
        let count = message.count as usize;
        if count > SOURCES_IN_SLOT {
            return Err(Gone::Lost);
        }
        let sources: [(u64, u32, u32); SOURCES_IN_SLOT] = std::array::from_fn(|index| {
            let packed = message.words[2 * index + 1];
            (message.words[2 * index], packed as u32, (packed >> 32) as u32)
        });
        let sources = &sources[..count];
        let total: u64 = sources.iter().map(|(_, length, _)| u64::from(*length)).sum();
        if total != u64::from(header.length) {
            return Err(Gone::Lost);
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
        Err(Gone::Lost)
    }

    /// `false`: something of it is not in a region that the peer showed or lent. The peer's memory is reached in no other way, since the
    /// pages of a process may be such that whoever touches them waits for ever.
    fn copy_sources(&mut self, sources: &[(u64, u32, u32)], slices: &[Slice]) -> bool {
        let mut offset = 0;
        for &(address, length, handle) in sources {
            let Some(from) = self.mapped(handle, address, length, Use::Fetch) else { return false };
            // SAFETY: `mapped` gave `length` readable bytes; the engine checked the slices, which hold the message.
            unsafe { scatter(slices, offset, from, length) };
            offset += length;
        }
        true
    }

    // ---- RDMA reads -------------------------------------------------------------------------------------------------

    fn take_read_request(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), Gone> {
        if self.answers.len() >= MOST_READS {
            return Err(Gone::Lost);
        }
        let token = u32::try_from(message.words[2]).map_err(|_| Gone::Lost)?;
        let remote = remote_of(message)?;
        if let Err(refusal) = target.readable(remote, message.length) {
            return self.refused(refusal, 0);
        }
        self.answers.push_back(Answer { token, remote, length: message.length, sent: 0 });
        self.next(0, true);
        self.pump_answers(target)
    }

    fn take_read_data(&mut self, message: &Message, target: &mut dyn Target) -> Result<(), Gone> {
        let offset = offset_of(message, message.length)?;
        let token = u32::try_from(message.words[0]).map_err(|_| Gone::Lost)?;
        let pending = self.pending.iter_mut().find(|pending| pending.token == token).ok_or(Gone::Lost)?;
        let Some(reading) = &mut pending.read else { return Err(Gone::Lost) };
        let fits = u64::from(reading.received) == message.words[1]
            && message.length <= reading.length - reading.received;
        if !fits {
            return Err(Gone::Lost);
        }
        let slices = target.reading(token).ok_or(Gone::Lost)?;
        // SAFETY: inside the arena, as `offset_of` compared; the engine checked the slices, which hold the read's length.
        unsafe { scatter(slices, reading.received, self.peer.their_arena().add(offset), message.length) };
        reading.received += message.length;
        reading.whole = reading.received == reading.length;
        let more = !reading.whole;
        self.next(message.length.next_multiple_of(64), true);
        if more && self.inn.peek().is_none() {
            // There is room again for what is missing, and the peer's program need not know.
            self.nudge();
        }
        Ok(())
    }
}
