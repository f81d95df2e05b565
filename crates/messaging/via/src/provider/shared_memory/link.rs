//! A connected VI's path to its peer through the two halves that they share: state of both directions, completions, sleep and farewell.
//! Not how a message goes out (`outgoing.rs`) or comes in (`incoming.rs`).
//! Source: see `layout.rs`.

use super::SharedMemory;
use super::barrier;
use super::incoming::Arriving;
use super::layout::*;
use super::outgoing::Stream;
use super::peer::Peer;
use super::peer_region::{PeerRegion, give_up};
use super::ring::{Consumer, Producer, head};
use crate::address::Credentials;
use crate::attributes::Reliability;
use crate::descriptor::{RemoteSegment, Status};
use crate::provider::{Bell, Gone, Link, Outgoing, Posted, Slice, Target};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many messages ahead a reader that is behind asks for.
const PREFETCH_DISTANCE: u32 = 4;
/// Slices of a descriptor that there is room for from the beginning.
const FEW_SLICES: usize = 16;
/// RDMA reads that a side may have asked for at a time; the peer keeps a place for each.
pub(super) const MOST_READS: usize = 16;

/// A post that was taken and is not complete.
pub(super) struct Pending {
    pub(super) token: u32,
    /// The message that has to be consumed; for a stream, its last part, known when that has gone out.
    pub(super) position: Option<u64>,
    /// It lies in memory of ours that the peer has mapped.
    pub(super) in_memory: bool,
    /// An RDMA read: complete when the data has come.
    pub(super) read: Option<Reading>,
}

/// An RDMA read of ours under way.
pub(super) struct Reading {
    pub(super) length: u32,
    pub(super) received: u32,
    /// All of it has come, if it is anything.
    pub(super) whole: bool,
}

/// An RDMA read of the peer's that is being answered.
pub(super) struct Answer {
    pub(super) token: u32,
    pub(super) remote: RemoteSegment,
    pub(super) length: u32,
    pub(super) sent: u32,
}

/// What is done with a region of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// An RDMA write of ours.
    Write,
    /// An RDMA read of ours.
    Read,
    /// A message of the peer's lies there, as it says itself: no right is needed, and the region may be one that was lent. Only where
    /// single copies are agreed to: the peer decides which pages are touched.
    Fetch,
}

/// What a transfer to or from a region of the peer is checked against, without a look at the region itself.
pub(super) struct LastRegion {
    handle: u32,
    slot: usize,
    address: u64,
    length: u64,
    base: *mut u8,
    write: bool,
    read: bool,
}

// SAFETY: `base` is the address of a mapping, which belongs to the whole process.
unsafe impl Send for LastRegion {}

pub(super) struct SharedLink {
    nic: Arc<SharedMemory>,
    pub(super) peer: Arc<Peer>,
    /// The halves of `peer`.
    ours: &'static Side,
    theirs: &'static Side,
    pub(super) level: Reliability,
    /// No asymmetric barrier: fences on the fast path.
    pub(super) fences: bool,
    pub(super) out: Producer<'static>,
    pub(super) inn: Consumer<'static>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) reads: usize,
    /// A message going out in parts.
    pub(super) stream: Option<Stream>,
    /// Room for the next stream's slices.
    pub(super) stream_slices: Vec<Slice>,
    pub(super) answers: VecDeque<Answer>,
    /// A message coming in in parts.
    pub(super) arriving: Option<Arriving>,
    /// The last message that stores to or loads from the peer's memory by the peer's own hand: what is done directly waits for it.
    pub(super) last_indirect: Option<u64>,
    pub(super) regions: Vec<Arc<PeerRegion>>,
    pub(super) regions_seen: u32,
    /// The one of `regions` that was used last.
    pub(super) last_region: Option<LastRegion>,
    /// The region of ours that was found last to be mapped by the peer, and the count of changes then.
    pub(super) last_mapped: (u32, u32),
    /// How many consumed messages the peer waits to hear of.
    pub(super) owed: u32,
    /// Messages posted since the last one came.
    pub(super) posted_in_a_row: u32,
    /// What the peer is to do when there is news: `SLEEPS`, `PARKED`.
    asleep: u32,
    /// The peer said goodbye.
    pub(super) bye: bool,
    /// The peer broke the protocol.
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
        // SAFETY: both sides lie in mappings that `self.peer` keeps; the references and the two ends are dropped with `self`, and
        // nothing borrowed from them leaves it.
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
            answers: VecDeque::with_capacity(MOST_READS),
            arriving: None,
            last_indirect: None,
            regions_seen: peer.mapped_changes(),
            regions: peer.mapped(),
            last_region: None,
            last_mapped: (0, 0),
            peer,
            owed: 0,
            posted_in_a_row: 0,
            asleep: 0,
            bye: false,
            broken: false,
        }
    }

    /// After something was published: wakes the peer if it sleeps.
    #[inline]
    pub(super) fn published(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
        let asleep = self.theirs.presence.asleep.load(Ordering::Relaxed);
        if asleep != 0 {
            self.peer.rouse(asleep);
        }
    }

    /// Has the peer tell of its news from here on. `false`: it may miss that.
    fn announce(&mut self, how: u32) -> bool {
        self.asleep |= how;
        self.ours.presence.asleep.store(self.asleep, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.fences || barrier::everywhere()
    }

    fn take_back(&mut self, how: u32) {
        self.asleep &= !how;
        self.ours.presence.asleep.store(self.asleep, Ordering::Relaxed);
    }

    /// Where `length` bytes at `address` of the peer's region `handle` are mapped here, if that use is allowed.
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
            Use::Fetch => self.peer.contact.single_copy,
        };
        // The peer takes a region back by clearing its word; what lies in it was sent before.
        let live = for_what == Use::Fetch || self.theirs.exports[last.slot].load(Ordering::Acquire) == handle;
        let offset = address.wrapping_sub(last.address);
        // Addresses below the region wrap round to offsets beyond any length.
        let inside = offset <= last.length && u64::from(length) <= last.length - offset;
        // SAFETY: the mapping, which `self.regions` keeps, has at least `last.length` bytes, and `offset` is not beyond them.
        (allowed && live && inside).then(|| unsafe { last.base.add(offset as usize) })
    }

    #[cold]
    #[inline(never)]
    fn find_region(&mut self, handle: u32) -> Option<()> {
        if self.regions_seen != self.peer.mapped_changes() {
            self.last_region = None;
            self.regions_seen = self.peer.mapped_changes();
            give_up(std::mem::replace(&mut self.regions, self.peer.mapped()));
        }
        let region = self.regions.iter().find(|region| region.showing.handle == handle)?;
        let showing = &region.showing;
        self.last_region = Some(LastRegion {
            handle,
            slot: showing.slot as usize,
            address: showing.address,
            length: showing.length,
            base: region.base(),
            write: showing.write,
            read: showing.read,
        });
        Some(())
    }

    /// Completes, in order, the posts that are complete.
    pub(super) fn complete_pending(&mut self, target: &mut dyn Target) -> Result<(), Gone> {
        self.out.refresh()?;
        let mut last = None;
        while let Some(first) = self.pending.front() {
            let complete = match (&first.read, first.position) {
                (Some(reading), _) => reading.whole,
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
                self.peer.one_was_taken();
            }
            self.pending.pop_front();
        }
        if let Some(token) = last {
            target.completed(token, Status::DONE);
        }
        Ok(())
    }

    /// Looks whether the peer said that one of our messages failed, and which.
    fn take_fault(&mut self, target: &mut dyn Target) -> Result<(), Gone> {
        let fault = self.theirs.progress.fault.load(Ordering::Acquire);
        if fault == 0 {
            return Ok(());
        }
        let status = Status(fault as u32 & Status::ERROR_MASK.0);
        let position = (fault >> 32) as u32;
        // Messages before it went well.
        let _ = self.complete_pending(target);
        let found =
            self.pending.iter().find(|pending| pending.position.is_some_and(|at| at as u32 == position));
        if let Some(pending) = found
            && status.is_error()
        {
            target.completed(pending.token, status);
        }
        Err(Gone::Lost)
    }

    /// Says that the message being consumed failed, for the peer to complete its descriptor with.
    pub(super) fn report_fault(&self, status: Status) {
        let fault = self.inn.position() << 32 | u64::from(status.0);
        self.ours.progress.fault.store(fault, Ordering::Release);
        self.published();
    }

    /// Nothing came: is anybody still there?
    #[inline]
    fn check_presence(&mut self, target: &mut dyn Target) -> Result<(), Gone> {
        let theirs = self.theirs;
        let closed = theirs.progress.closed.load(Ordering::Acquire) != 0;
        let lost = self.peer.lost.load(Ordering::Acquire);
        if !closed && !lost && theirs.progress.fault.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.take_fault(target)?;
        if self.inn.peek().is_some() {
            // It came before the end.
            return Ok(());
        }
        let _ = self.complete_pending(target);
        Err(if closed { Gone::Disconnected } else { Gone::Lost })
    }
}

impl Link for SharedLink {
    fn credentials(&self) -> Option<Credentials> {
        Some(self.peer.contact.process.credentials())
    }

    #[inline]
    fn post(&mut self, outgoing: &Outgoing<'_>) -> Posted {
        if self.broken || self.bye {
            return Posted::Full;
        }
        self.post_any(outgoing).unwrap_or_else(|_| {
            // The next poll says so.
            self.broken = true;
            Posted::Full
        })
    }

    #[inline]
    fn poll(&mut self, target: &mut dyn Target, budget: u32) -> Result<(), Gone> {
        let mut left = budget;
        while left > 0 && !self.bye {
            let Some(message) = self.inn.peek() else { break };
            let large = message.place == Place::Memory as u8;
            if large || left < budget {
                // Messages come faster than they are taken: have the lines of the next ones on their way.
                self.inn.prefetch(if large { 1 } else { PREFETCH_DISTANCE });
            }
            left -= 1;
            self.posted_in_a_row = 0;
            self.take(&message, target)?;
            if large {
                // The program can work on this one while the next is copied into place.
                break;
            }
        }
        if self.owed > 0 {
            self.owed = 0;
            if self.inn.publish() {
                self.published();
            }
        }
        if self.broken {
            return Err(Gone::Lost);
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
            // A peer that ends because of a message of ours has said which.
            self.take_fault(target)?;
            return Err(Gone::Disconnected);
        }
        if left == budget { self.check_presence(target) } else { Ok(()) }
    }

    fn arm(&mut self) -> Bell {
        if self.inn.publish() {
            self.published();
        }
        let bell = &self.theirs.bell.rung;
        let value = bell.load(Ordering::SeqCst);
        if !self.announce(SLEEPS) {
            // It worked before; should it not now, the peer may miss that we sleep. Do not sleep.
            return Bell::None;
        }
        Bell::Word { word: bell, value }
    }

    fn disarm(&mut self) {
        self.take_back(SLEEPS);
    }

    fn park(&mut self) -> bool {
        if self.inn.publish() {
            self.published();
        }
        // What came before it was announced nobody was told of.
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
        if !self.broken && self.stream.is_none() && matches!(self.out.has_room(1), Ok(true)) {
            self.out.push(head(Kind::Bye, Place::Slot, 0, 0), 0, 0, &[]);
        }
        self.inn.publish();
        self.ours.progress.closed.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.peer.ring();
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        // The socket closes with the last reference to the peer, which tells the other process's monitor.
        self.nic.unwatch(&self.peer);
        // The peer has them too, and gives them up at a time.
        self.last_region = None;
        give_up(std::mem::take(&mut self.regions));
    }
}
