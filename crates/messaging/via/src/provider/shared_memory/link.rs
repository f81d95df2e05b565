//! The link of a VI to its peer through the two shared halves: the state of both directions, completions, sleeping and
//! disconnecting. Sending is in `outgoing.rs`, receiving in `incoming.rs`.
//!
//! Source: see `layout.rs`.

use super::SharedMemory;
use super::barrier;
use super::incoming::PartialMessage;
use super::layout::*;
use super::outgoing::Stream;
use super::peer::Peer;
use super::peer_region::{PeerRegion, release_regions};
use super::ring::{Consumer, Producer, head};
use crate::address::Credentials;
use crate::attributes::Reliability;
use crate::descriptor::{RemoteSegment, Status};
use crate::provider::{EndReason, Link, Outgoing, Posted, Slice, Target, WakeSource};
use std::collections::VecDeque;
use std::sync::Arc;

/// The number of slots that a reader with a backlog prefetches ahead.
const PREFETCH_DISTANCE: u32 = 4;
/// The initial capacity for slices of a descriptor.
const FEW_SLICES: usize = 16;
/// The maximum number of outstanding RDMA reads of one side. The peer reserves an entry for each.
pub(super) const MAX_READS: usize = 16;

/// An accepted post that is not complete.
pub(super) struct Pending {
    pub(super) token: u32,
    /// The position of the message that the peer must consume; for a stream, that of its last part. `None` until that
    /// part has been sent.
    pub(super) position: Option<u64>,
    /// Whether the data is in our memory, mapped by the peer.
    pub(super) in_memory: bool,
    /// The state of an RDMA read, which completes when its data has arrived. `None` for other posts.
    pub(super) read: Option<Reading>,
}

/// The state of an outstanding RDMA read of ours.
pub(super) struct Reading {
    pub(super) length: u32,
    pub(super) received: u32,
    /// Whether all data has arrived. A read of zero bytes also needs an answer.
    pub(super) is_complete: bool,
}

/// The state of an RDMA read of the peer that is being answered.
pub(super) struct Answer {
    pub(super) token: u32,
    pub(super) remote: RemoteSegment,
    pub(super) length: u32,
    pub(super) sent: u32,
}

/// The intended use of a region of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// An RDMA write of ours.
    Write,
    /// An RDMA read of ours.
    Read,
    /// A fetch of the data of a message from the peer's memory. No access right is needed, and the region may be a lent
    /// one. Permitted only if single copies are enabled, because the peer chooses the pages that are accessed.
    Fetch,
}

/// The data needed to validate an access to a region of the peer, without accessing the region.
pub(super) struct LastRegion {
    handle: u32,
    slot: usize,
    address: u64,
    length: u64,
    base: *mut u8,
    write: bool,
    read: bool,
}

// SAFETY: `base` is the address of a mapping, which belongs to the process.
unsafe impl Send for LastRegion {}

pub(super) struct SharedLink {
    nic: Arc<SharedMemory>,
    pub(super) peer: Arc<Peer>,
    /// The two halves, which `peer` keeps mapped.
    ours: &'static Side,
    theirs: &'static Side,
    pub(super) level: Reliability,
    /// Whether fences are used on the fast path because there is no asymmetric barrier.
    pub(super) fences: bool,
    pub(super) out: Producer<'static>,
    pub(super) inn: Consumer<'static>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) reads: usize,
    /// The message being sent in parts.
    pub(super) stream: Option<Stream>,
    /// A reusable buffer for the slices of a stream.
    pub(super) stream_slices: Vec<Slice>,
    pub(super) answers: VecDeque<Answer>,
    /// The message being received in parts.
    pub(super) arriving: Option<PartialMessage>,
    /// The position of the last message that the peer carries out by accessing its own memory. Direct accesses must
    /// wait for it.
    pub(super) last_indirect: Option<u64>,
    pub(super) regions: Vec<Arc<PeerRegion>>,
    pub(super) regions_seen: u32,
    /// The entry of `regions` that was used last.
    pub(super) last_region: Option<LastRegion>,
    /// The local region that was last found to be mapped by the peer, and the change counter at that time.
    pub(super) last_mapped: (u32, u32),
    /// The number of consumed messages of which the peer must still be notified because it waits for them.
    pub(super) pending_answers: u32,
    /// The number of messages posted since the last one was received.
    pub(super) posted_in_a_row: u32,
    /// The states announced to the peer: `SLEEPS`, `PARKED`.
    sleep_state: u32,
    /// Whether the peer has sent its goodbye.
    pub(super) bye: bool,
    /// Whether the peer has violated the protocol.
    pub(super) broken: bool,
}

impl SharedLink {
    pub(super) fn new(
        nic: Arc<SharedMemory>,
        peer: Arc<Peer>,
        level: Reliability,
        fences: bool,
    ) -> SharedLink {
        let (ours, theirs): (*const Side, *const Side) = (peer.ours(), peer.theirs());
        // SAFETY: both sides are in mappings that `self.peer` keeps. The references, the producer and the consumer are
        // dropped with `self`, and nothing borrowed from them leaves it.
        let (ours, theirs): (&'static Side, &'static Side) = unsafe { (&*ours, &*theirs) };
        SharedLink {
            nic,
            ours,
            theirs,
            level,
            fences,
            out: Producer::new(&ours.slots, &theirs.progress),
            inn: Consumer::new(&theirs.slots, &ours.progress),
            pending: VecDeque::with_capacity(1024),
            reads: 0,
            stream: None,
            stream_slices: Vec::with_capacity(FEW_SLICES),
            answers: VecDeque::with_capacity(MAX_READS),
            arriving: None,
            last_indirect: None,
            regions_seen: peer.mapped_changes(),
            regions: peer.mapped(),
            last_region: None,
            last_mapped: (0, 0),
            peer,
            pending_answers: 0,
            posted_in_a_row: 0,
            sleep_state: 0,
            bye: false,
            broken: false,
        }
    }

    /// Wakes the peer if it sleeps. Called after publishing a message.
    #[inline]
    pub(super) fn published(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
        let sleep_state = self.theirs.presence.sleep_state.load(Ordering::Relaxed);
        if sleep_state != 0 {
            self.peer.notify(sleep_state);
        }
    }

    /// Announces a state in which the peer must notify us of events. Returns `false` if the barrier failed, so that the
    /// peer may miss the announcement.
    fn announce(&mut self, how: u32) -> bool {
        self.sleep_state |= how;
        self.ours.presence.sleep_state.store(self.sleep_state, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.fences || barrier::everywhere()
    }

    fn take_back(&mut self, how: u32) {
        self.sleep_state &= !how;
        self.ours.presence.sleep_state.store(self.sleep_state, Ordering::Relaxed);
    }

    /// The local address of `length` bytes at `address` of the peer's region `handle`, if that use is permitted.
    #[inline]
    pub(super) fn mapped(
        &mut self,
        handle: u32,
        address: u64,
        length: u32,
        for_what: Use,
    ) -> Option<*mut u8> {
        let known = self.last_region.as_ref().is_some_and(|last| last.handle == handle);
        if !known || self.regions_seen != self.peer.mapped_changes() {
            self.find_region(handle)?;
        }
        let last = self.last_region.as_ref()?;
        let allowed = match for_what {
            Use::Write => last.write,
            Use::Read => last.read,
            Use::Fetch => self.peer.peer_connection.single_copy,
        };
        // The peer revokes a region by clearing its entry in `exports`. Messages in it were sent before that, so
        // fetching is still permitted.
        let live = for_what == Use::Fetch || self.theirs.exports[last.slot].load(Ordering::Acquire) == handle;
        let offset = address.wrapping_sub(last.address);
        // Addresses below the region wrap around to offsets beyond any length.
        let inside = offset <= last.length && u64::from(length) <= last.length - offset;
        // SAFETY: the mapping, which `self.regions` keeps, has at least `last.length` bytes, and `offset` is within
        // them.
        (allowed && live && inside).then(|| unsafe { last.base.add(offset as usize) })
    }

    #[cold]
    #[inline(never)]
    fn find_region(&mut self, handle: u32) -> Option<()> {
        if self.regions_seen != self.peer.mapped_changes() {
            self.last_region = None;
            self.regions_seen = self.peer.mapped_changes();
            release_regions(std::mem::replace(&mut self.regions, self.peer.mapped()));
        }
        let region = self.regions.iter().find(|region| region.export.handle == handle)?;
        let export = &region.export;
        self.last_region = Some(LastRegion {
            handle,
            slot: export.slot as usize,
            address: export.address,
            length: export.length,
            base: region.base(),
            write: export.write,
            read: export.read,
        });
        Some(())
    }

    /// Completes pending posts in order.
    pub(super) fn complete_pending(&mut self, target: &mut dyn Target) -> Result<(), EndReason> {
        self.out.refresh()?;
        let mut last = None;
        while let Some(first) = self.pending.front() {
            let complete = match (&first.read, first.position) {
                (Some(reading), _) => reading.is_complete,
                (None, Some(position)) => self.out.is_consumed(position),
                (None, None) => false,
            };
            if !complete {
                break;
            }
            last = Some(first.token);
            if first.read.is_some() {
                self.reads -= 1;
            }
            if first.in_memory {
                self.peer.count_in_place_consumed();
            }
            self.pending.pop_front();
        }
        if let Some(token) = last {
            target.completed(token, Status::DONE);
        }
        Ok(())
    }

    /// If the peer has reported a fault of one of our messages, completes that message with the fault's status.
    fn take_fault(&mut self, target: &mut dyn Target) -> Result<(), EndReason> {
        let fault = self.theirs.progress.fault.load(Ordering::Acquire);
        if fault == 0 {
            return Ok(());
        }
        let status = Status(fault as u32 & Status::ERROR_MASK.0);
        let position = (fault >> 32) as u32;
        // Earlier messages succeeded.
        let _ = self.complete_pending(target);
        let found =
            self.pending.iter().find(|pending| pending.position.is_some_and(|at| at as u32 == position));
        if let Some(pending) = found
            && status.is_error()
        {
            target.completed(pending.token, status);
        }
        Err(EndReason::MessageRefused)
    }

    /// Reports that the current message failed, so that the peer can complete its descriptor.
    pub(super) fn report_fault(&self, status: Status) {
        let fault = self.inn.position() << 32 | u64::from(status.0);
        self.ours.progress.fault.store(fault, Ordering::Release);
        self.published();
    }

    /// Checks whether the connection still exists. Called when no message has arrived.
    #[inline]
    fn check_presence(&mut self, target: &mut dyn Target) -> Result<(), EndReason> {
        let theirs = self.theirs;
        let closed = theirs.progress.closed.load(Ordering::Acquire) != 0;
        let loss = self.peer.loss();
        if !closed && loss.is_none() && theirs.progress.fault.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.take_fault(target)?;
        if self.inn.peek().is_some() {
            // A message was published before the end.
            return Ok(());
        }
        let _ = self.complete_pending(target);
        Err(if closed { EndReason::Disconnected } else { loss.unwrap_or(EndReason::PeerExited) })
    }
}

impl Link for SharedLink {
    fn credentials(&self) -> Option<Credentials> {
        Some(self.peer.peer_connection.process.credentials())
    }

    #[inline]
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted {
        if self.broken || self.bye {
            return Posted::Full;
        }
        self.post_any(outgoing).unwrap_or_else(|_| {
            // The next poll reports the violation.
            self.broken = true;
            Posted::Full
        })
    }

    #[inline]
    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), EndReason> {
        let mut left = budget;
        while left > 0 && !self.bye {
            let Some(message) = self.inn.peek() else { break };
            let large = message.place == DataLocation::Memory as u8;
            if large || left < budget {
                // Messages arrive faster than they are received: prefetch the cache lines of the next ones.
                self.inn.prefetch(if large { 1 } else { PREFETCH_DISTANCE });
            }
            left -= 1;
            self.posted_in_a_row = 0;
            self.take(&message, target)?;
            if large {
                // Return after a large message, so that the program can process it while the next one is being
                // transferred.
                break;
            }
        }
        if self.pending_answers > 0 {
            self.pending_answers = 0;
            if self.inn.publish() {
                self.published();
            }
        }
        if self.broken {
            return Err(EndReason::ProtocolViolation);
        }
        if !self.pending.is_empty() {
            self.complete_pending(target)?;
        }
        if self.stream.is_some() {
            self.pump_stream()?;
        }
        if !self.answers.is_empty() {
            self.pump_answers(target)?;
        }
        if self.bye {
            // If the peer disconnected because one of our messages failed, it has reported that message.
            self.take_fault(target)?;
            return Err(EndReason::Disconnected);
        }
        if left == budget { self.check_presence(target) } else { Ok(()) }
    }

    fn arm(&mut self) -> WakeSource {
        if self.inn.publish() {
            self.published();
        }
        let wake_word = &self.theirs.wake_word.wakes;
        let value = wake_word.load(Ordering::SeqCst);
        if !self.announce(SLEEPS) {
            // The barrier worked before. If it fails now, the peer may miss the announcement, so do not sleep.
            return WakeSource::None;
        }
        WakeSource::Word { word: wake_word, value }
    }

    fn disarm(&mut self) {
        self.take_back(SLEEPS);
    }

    fn park(&mut self) -> bool {
        if self.inn.publish() {
            self.published();
        }
        // Messages published before the announcement caused no notification, so look for them now.
        let parked = self.announce(PARKED) && self.inn.peek().is_none();
        if !parked {
            self.take_back(PARKED);
        }
        parked
    }

    fn unpark(&mut self) {
        self.take_back(PARKED);
    }

    fn disconnect(&mut self) {
        if !self.broken && self.stream.is_none() && matches!(self.out.has_space(1), Ok(true)) {
            self.out.push(head(Kind::Bye, DataLocation::Slot, 0, 0), 0, 0, &[]);
        }
        self.inn.publish();
        self.ours.progress.closed.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.peer.wake_peer();
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        // The socket is closed with the last reference to the peer, which notifies the other process's monitor.
        self.nic.unwatch(&self.peer);
        // The peer holds references to the regions too, and unmaps them all at once.
        self.last_region = None;
        release_regions(std::mem::take(&mut self.regions));
    }
}
