//! Sends work requests: in a slot, through the arena, by a direct store to the peer's mapped memory, as a list of
//! sources from which the peer fetches the data, or in parts.
//!
//! Source: see `layout.rs`. The size thresholds are based on measurements (the book's chapter).

use super::control_message::{ControlMessage, send};
use super::layout::*;
use super::link::{MAX_READS, Pending, Reading, SharedLink, Use};
use super::ring::head;
use crate::attributes::Reliability;
use crate::descriptor::RemoteSegment;
use crate::provider::{EndReason, Outgoing, Posted, Request, Slice, Target};
use crate::shared_bytes::{copy, load_word};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering as Order;

/// The maximum size of a message that is copied twice through the arena although the peer could fetch it.
const FETCH_FROM_BYTES: u32 = 8 * 1024;
/// The number of consecutive posts without an incoming message after which the sender prefetches the cache lines of the
/// next slots. In a request-response exchange this would only take them from the peer, which polls them.
const PREFETCH_AFTER: u32 = 4;
/// The payload words taken by the remote address of an RDMA message.
const REMOTE_WORDS: usize = 2;
/// The payload word that holds the arena offset.
pub(super) const OFFSET_WORD: usize = WORDS - 1;
/// The number of sources that fit into a slot.
pub(super) const SOURCES_IN_SLOT: usize = WORDS / 2;

/// A message that is sent in parts, each as soon as the arena has space for it.
pub(super) struct Stream {
    /// Stored in the first part.
    request: Request,
    immediate: Option<u32>,
    token: u32,
    slices: Vec<Slice>,
    length: u32,
    sent: u32,
}

fn flags_of(immediate: Option<u32>) -> u8 {
    if immediate.is_some() { HAS_IMMEDIATE } else { 0 }
}

/// Copies `length` bytes at `offset` of the slices' concatenation to `to`.
///
/// # Safety
/// `to` must have space for them, and the slices must have that many readable bytes.
unsafe fn gather(slices: &[Slice], offset: u32, to: *mut u8, length: u32) {
    let (mut skip, mut copied, length) = (offset as usize, 0, length as usize);
    for slice in slices {
        let slice_bytes = slice.length as usize;
        if skip >= slice_bytes {
            skip -= slice_bytes;
            continue;
        }
        let count = (slice_bytes - skip).min(length - copied);
        // SAFETY: the range is inside the slice and inside the memory that the caller guarantees. The memory of a
        // descriptor may be shared with any process and may overlap the destination.
        unsafe { copy(slice.address.add(skip).cast_const(), to.add(copied), count) };
        (skip, copied) = (0, copied + count);
        if copied == length {
            return;
        }
    }
}

/// Copies up to 48 bytes of the slices to payload words, from word `first` on. Returns the number of words used.
#[inline]
fn gather_words(slices: &[Slice], words: &mut [u64; WORDS], first: usize, length: u32) -> usize {
    if let [slice] = slices
        && length == 8
    {
        // SAFETY: the slice was validated to have eight readable bytes.
        words[first] = unsafe { load_word(slice.address) };
        return first + 1;
    }
    // SAFETY: the callers ensure that `first * 8 + length` does not exceed the words; the slices have `length` bytes.
    unsafe { gather(slices, 0, words[first..].as_mut_ptr().cast(), length) };
    first + (length as usize).div_ceil(8)
}

impl SharedLink {
    #[inline]
    pub(super) fn post_any(&mut self, outgoing: &Outgoing<'_>) -> Result<Posted, EndReason> {
        if self.stream.is_some() || self.pending.len() == self.pending.capacity() {
            return Ok(Posted::Full);
        }
        match outgoing.request {
            Request::Send if outgoing.length <= INLINE_BYTES => self.post_in_slot(outgoing),
            Request::Send => self.post_send(outgoing),
            Request::RdmaWrite(remote) => self.post_write(outgoing, remote),
            Request::RdmaRead(remote) => self.post_read(outgoing, remote),
        }
    }

    #[inline]
    fn post_in_slot(&mut self, outgoing: &Outgoing<'_>) -> Result<Posted, EndReason> {
        if !self.out.has_space(1)? {
            return Ok(Posted::Full);
        }
        let mut words = [0; WORDS];
        let used = gather_words(outgoing.slices, &mut words, 0, outgoing.length);
        let head = head(Kind::Send, DataLocation::Slot, flags_of(outgoing.immediate), 0);
        self.out.push(head, outgoing.length, outgoing.immediate.unwrap_or(0), &words[..used]);
        self.posted_in_a_row += 1;
        if self.posted_in_a_row > PREFETCH_AFTER {
            self.out.prefetch_next_slot();
        }
        Ok(self.taken(outgoing.token, false))
    }

    /// Called after a message was pushed: determines whether the post is complete at this reliability level.
    #[inline]
    fn taken(&mut self, token: u32, slices_in_use: bool) -> Posted {
        self.published();
        if !slices_in_use && self.level != Reliability::ReliableReception {
            return Posted::Done;
        }
        self.pending.push_back(Pending {
            token,
            position: Some(self.out.position() - 1),
            in_memory: slices_in_use,
            read: None,
        });
        Posted::Pending
    }

    fn post_send(&mut self, outgoing: &Outgoing<'_>) -> Result<Posted, EndReason> {
        if outgoing.length >= FETCH_FROM_BYTES && self.can_be_fetched(outgoing.slices) {
            return self.post_for_fetching(outgoing);
        }
        if outgoing.length > CHUNK_BYTES {
            return self.begin_stream(outgoing);
        }
        self.post_in_arena(outgoing, Kind::Send, [0; WORDS])
    }

    fn post_in_arena(
        &mut self,
        outgoing: &Outgoing<'_>,
        kind: Kind,
        mut words: [u64; WORDS],
    ) -> Result<Posted, EndReason> {
        if !self.out.has_space(1)? {
            return Ok(Posted::Full);
        }
        let Some(offset) = self.out.take_arena(outgoing.length)? else { return Ok(Posted::Full) };
        // SAFETY: the producer reserved that range of the arena; the slices have `length` bytes.
        unsafe { gather(outgoing.slices, 0, self.peer.our_arena().add(offset as usize), outgoing.length) };
        words[OFFSET_WORD] = u64::from(offset);
        let head = head(kind, DataLocation::Arena, flags_of(outgoing.immediate), 0);
        self.out.push(head, outgoing.length, outgoing.immediate.unwrap_or(0), &words);
        Ok(self.taken(outgoing.token, false))
    }

    /// Whether the peer has mapped these slices.
    fn can_be_fetched(&mut self, slices: &[Slice]) -> bool {
        slices.len() <= SOURCES_IN_SLOT && slices.iter().all(|slice| self.is_mapped_by_peer(slice.handle.0))
    }

    fn is_mapped_by_peer(&mut self, handle: u32) -> bool {
        let now = (handle, self.peer.export_changes());
        if self.last_mapped != now {
            if !self.peer.has_mapped(handle) {
                return false;
            }
            self.last_mapped = now;
        }
        true
    }

    fn post_for_fetching(&mut self, outgoing: &Outgoing<'_>) -> Result<Posted, EndReason> {
        if !self.out.has_space(1)? {
            return Ok(Posted::Full);
        }
        let mut words = [0; WORDS];
        for (source, slice) in words.chunks_exact_mut(2).zip(outgoing.slices) {
            source[0] = slice.address as u64;
            source[1] = u64::from(slice.length) | u64::from(slice.handle.0) << 32;
        }
        let head =
            head(Kind::Send, DataLocation::Memory, flags_of(outgoing.immediate), outgoing.slices.len() as u8);
        // Count the message before it becomes visible to the peer.
        self.peer.count_in_place();
        self.out.push(head, outgoing.length, outgoing.immediate.unwrap_or(0), &words);
        Ok(self.taken(outgoing.token, true))
    }

    // ---- remote memory ----------------------------------------------------------------------------------------------

    /// Whether a direct access to the peer's memory would be ordered after all earlier requests to the peer.
    fn may_go_directly(&mut self) -> Result<bool, EndReason> {
        if self.level == Reliability::ReliableReception && !self.pending.is_empty() {
            return Ok(false);
        }
        let Some(position) = self.last_indirect else { return Ok(true) };
        if !self.out.is_consumed(position) {
            self.out.refresh()?;
        }
        if self.out.is_consumed(position) {
            self.last_indirect = None;
        }
        Ok(self.last_indirect.is_none())
    }

    #[inline]
    fn post_write(&mut self, outgoing: &Outgoing<'_>, remote: RemoteSegment) -> Result<Posted, EndReason> {
        if !self.may_go_directly()? {
            return if self.level == Reliability::ReliableReception {
                Ok(Posted::Full)
            } else {
                self.post_write_by_message(outgoing, remote)
            };
        }
        if outgoing.immediate.is_some() && !self.out.has_space(1)? {
            return Ok(Posted::Full);
        }
        let Some(to) = self.mapped(remote.handle.0, remote.address, outgoing.length, Use::Write) else {
            return self.post_write_by_message(outgoing, remote);
        };
        // SAFETY: `mapped` guarantees `length` writable bytes of a mapping that `self.regions` keeps; the slices have
        // as many.
        unsafe { store(outgoing.slices, to, outgoing.length) };
        let Some(immediate) = outgoing.immediate else { return Ok(Posted::Done) };
        let words = [remote.address, u64::from(remote.handle.0)];
        self.out.push(
            head(Kind::WriteDone, DataLocation::Slot, HAS_IMMEDIATE, 0),
            outgoing.length,
            immediate,
            &words,
        );
        Ok(self.taken(outgoing.token, false))
    }

    /// Sends an RDMA write as a message, because the peer's memory is not mapped here. The peer's process stores the
    /// data.
    fn post_write_by_message(
        &mut self,
        outgoing: &Outgoing<'_>,
        remote: RemoteSegment,
    ) -> Result<Posted, EndReason> {
        let mut words = [0; WORDS];
        (words[0], words[1]) = (remote.address, u64::from(remote.handle.0));
        let before = self.out.position();
        let posted = if outgoing.length <= INLINE_BYTES - REMOTE_WORDS as u32 * 8 {
            if !self.out.has_space(1)? {
                return Ok(Posted::Full);
            }
            let used = gather_words(outgoing.slices, &mut words, REMOTE_WORDS, outgoing.length);
            let head = head(Kind::Write, DataLocation::Slot, flags_of(outgoing.immediate), 0);
            self.out.push(head, outgoing.length, outgoing.immediate.unwrap_or(0), &words[..used]);
            self.taken(outgoing.token, false)
        } else if outgoing.length <= CHUNK_BYTES {
            self.post_in_arena(outgoing, Kind::Write, words)?
        } else {
            self.begin_stream(outgoing)?
        };
        if self.out.position() != before {
            self.last_indirect = Some(self.out.position() - 1);
            self.nudge();
        }
        Ok(posted)
    }

    /// Makes the peer's process poll even if its program does not: RDMA does not require calls at the target.
    pub(super) fn nudge(&self) {
        let _ = send(self.peer.peer_connection.socket.as_raw_fd(), &ControlMessage::Nudge, None);
    }

    fn post_read(&mut self, outgoing: &Outgoing<'_>, remote: RemoteSegment) -> Result<Posted, EndReason> {
        if self.may_go_directly()?
            && let Some(from) = self.mapped(remote.handle.0, remote.address, outgoing.length, Use::Read)
        {
            let mut offset = 0;
            for slice in outgoing.slices {
                // SAFETY: `mapped` guarantees `length` readable bytes, the total length of the slices; each slice is
                // writable for its length.
                unsafe { copy(from.add(offset).cast_const(), slice.address, slice.length as usize) };
                offset += slice.length as usize;
            }
            return Ok(Posted::Done);
        }
        if self.reads >= MAX_READS || !self.out.has_space(1)? {
            return Ok(Posted::Full);
        }
        let words = [remote.address, u64::from(remote.handle.0), u64::from(outgoing.token)];
        self.out.push(head(Kind::ReadRequest, DataLocation::Slot, 0, 0), outgoing.length, 0, &words);
        self.reads += 1;
        let position = Some(self.out.position() - 1);
        let read = Some(Reading { length: outgoing.length, received: 0, is_complete: false });
        self.pending.push_back(Pending { token: outgoing.token, position, in_memory: false, read });
        self.published();
        self.nudge();
        Ok(Posted::Pending)
    }

    // ---- in parts ---------------------------------------------------------------------------------------------------

    fn begin_stream(&mut self, outgoing: &Outgoing<'_>) -> Result<Posted, EndReason> {
        // Reuse the buffer of the last stream, so that sending does not allocate.
        let mut slices = std::mem::take(&mut self.stream_slices);
        slices.clear();
        slices.extend_from_slice(outgoing.slices);
        self.stream = Some(Stream {
            request: outgoing.request,
            immediate: outgoing.immediate,
            token: outgoing.token,
            slices,
            length: outgoing.length,
            sent: 0,
        });
        self.pending.push_back(Pending {
            token: outgoing.token,
            position: None,
            in_memory: false,
            read: None,
        });
        self.pump_stream()?;
        Ok(Posted::Pending)
    }

    /// Sends as many parts as there is space for.
    pub(super) fn pump_stream(&mut self) -> Result<(), EndReason> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        let mut pushed = false;
        while stream.sent < stream.length && self.out.has_space(1)? {
            let count = CHUNK_BYTES.min(stream.length - stream.sent);
            let Some(offset) = self.out.take_arena(count)? else { break };
            // SAFETY: the producer reserved that range of the arena; the slices have `length` bytes and stay valid
            // until completion.
            unsafe { gather(&stream.slices, stream.sent, self.peer.our_arena().add(offset as usize), count) };
            self.push_part(&stream, offset);
            stream.sent += count;
            pushed = true;
        }
        if pushed {
            self.published();
            if matches!(stream.request, Request::RdmaWrite(_)) {
                self.last_indirect = Some(self.out.position() - 1);
                self.nudge();
            }
        }
        if stream.sent < stream.length {
            self.stream = Some(stream);
            return Ok(());
        }
        self.stream_slices = stream.slices;
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.token == stream.token) {
            pending.position = Some(self.out.position() - 1);
        }
        Ok(())
    }

    fn push_part(&mut self, stream: &Stream, offset: u32) {
        let mut words = [0; WORDS];
        words[OFFSET_WORD] = u64::from(offset);
        if stream.sent > 0 {
            return self.out.push(
                head(Kind::Part, DataLocation::Arena, 0, 0),
                stream.length - stream.sent,
                0,
                &words,
            );
        }
        let kind = match stream.request {
            Request::RdmaWrite(remote) => {
                (words[0], words[1]) = (remote.address, u64::from(remote.handle.0));
                Kind::Write
            }
            _ => Kind::Send,
        };
        let head = head(kind, DataLocation::Parts, flags_of(stream.immediate), 0);
        self.out.push(head, stream.length, stream.immediate.unwrap_or(0), &words);
    }

    /// Sends as much of the data requested by the peer as there is space for. Access is validated again each time.
    pub(super) fn pump_answers(&mut self, target: &mut dyn Target) -> Result<(), EndReason> {
        let mut pushed = false;
        while let Some(answer) = self.answers.front_mut() {
            if !self.out.has_space(1)? {
                break;
            }
            let (sent, token) = (answer.sent, answer.token);
            let count = CHUNK_BYTES.min(answer.length - sent);
            let Some(offset) = self.out.take_arena(count)? else { break };
            let remote = RemoteSegment { address: answer.remote.address + u64::from(sent), ..answer.remote };
            let Ok(slice) = target.readable(remote, count) else { return Err(EndReason::MessageRefused) };
            answer.sent += count;
            if answer.sent == answer.length {
                self.answers.pop_front();
            }
            // SAFETY: the producer reserved that range of the arena; the engine has just validated the slice.
            unsafe { gather(&[slice], 0, self.peer.our_arena().add(offset as usize), count) };
            let mut words = [0; WORDS];
            (words[0], words[1], words[OFFSET_WORD]) = (u64::from(token), u64::from(sent), u64::from(offset));
            self.out.push(head(Kind::ReadData, DataLocation::Arena, 0, 0), count, 0, &words);
            pushed = true;
        }
        if pushed {
            self.published();
        }
        Ok(())
    }
}

/// A remote store. Eight aligned bytes are stored atomically; other data is stored in address order, if the processor's
/// copy instruction preserves it.
///
/// # Safety
/// `to` must have space for `length` bytes, and the slices must have as many readable bytes.
#[inline]
unsafe fn store(slices: &[Slice], to: *mut u8, length: u32) {
    if let [slice] = slices
        && length == 8
        && to.addr().is_multiple_of(8)
    {
        // SAFETY: eight readable bytes, and eight aligned writable ones, as guaranteed by the caller.
        unsafe { AtomicU64::from_ptr(to.cast()).store(load_word(slice.address), Order::Release) };
        return;
    }
    std::sync::atomic::fence(Order::Release);
    // SAFETY: guaranteed by the caller.
    unsafe { gather(slices, 0, to, length) };
}
