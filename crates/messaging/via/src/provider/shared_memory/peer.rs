//! The other side of a connection: what is shared with it, and the regions that we show it.
//! Not the data path, which is `link.rs`, nor what it shows us, which is `contact.rs`.
//! Source: unix(7), futex(2).

use super::contact::{Broken, Contact, Half};
use super::layout::{EXPORTS, PARKED, SLEEPS, Side};
use super::letters::{Letter, Showing, send};
use super::mapping::SharedPages;
use super::peer_region::PeerRegion;
use crate::attributes::ViAttributes;
use crate::futex::wake_some;
use crate::provider::RegionFacts;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region of ours that the peer was told of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Shown {
    /// 0: the place is free.
    handle: u32,
    /// Of the letter that told.
    serial: u32,
    /// The peer said that it has mapped it, as that letter said.
    mapped: bool,
    /// It is to be hidden when so many messages in memory of ours were taken. Until then its place is no other's, for which the peer would
    /// give it up.
    leaving: Option<u32>,
}

impl Shown {
    fn is_due(&self, taken: u32) -> bool {
        // Counts wrap round, and are never far apart.
        self.leaving.is_some_and(|until| taken.wrapping_sub(until) < 1 << 31)
    }
}

pub(super) struct Peer {
    pub(super) vi: u32,
    tag: u32,
    /// What our VI lets the peer do.
    attributes: ViAttributes,
    pub(super) contact: Arc<Contact>,
    /// What we write.
    ours: Half,
    /// What the peer writes. A side that asks for a connection has it from the answer on.
    theirs: Option<Half>,
    pub(super) lost: AtomicBool,
    /// Our regions that the peer was told of, at each place of `exports`.
    shown: Mutex<Vec<Shown>>,
    shown_changes: AtomicU32,
    serials: AtomicU32,
    /// Messages that were laid in regions of ours, and those of them that the peer has taken, in their order; the link counts them.
    laid: AtomicU32,
    taken: AtomicU32,
    /// One of our regions is leaving.
    leaves: AtomicBool,
}

/// What to make a peer from.
pub(super) struct Meeting {
    pub(super) vi: u32,
    pub(super) tag: u32,
    pub(super) attributes: ViAttributes,
    pub(super) contact: Arc<Contact>,
    pub(super) ours: Half,
    pub(super) theirs: Option<Half>,
}

impl Peer {
    pub(super) fn new(meeting: Meeting) -> Peer {
        let Meeting { vi, tag, attributes, contact, ours, theirs } = meeting;
        Peer {
            vi,
            tag,
            attributes,
            contact,
            ours,
            theirs,
            lost: AtomicBool::new(false),
            shown: Mutex::default(),
            shown_changes: AtomicU32::new(0),
            serials: AtomicU32::new(0),
            laid: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            leaves: AtomicBool::new(false),
        }
    }

    /// The peer has agreed.
    pub(super) fn meet(&mut self, theirs: Half) {
        self.theirs = Some(theirs);
    }

    /// What we write.
    pub(super) fn ours(&self) -> &Side {
        // SAFETY: mapped as long as `self`; aligned, since mappings are; all that is reached through the reference is atomics.
        unsafe { &*self.ours.side() }
    }

    fn their_side(&self) -> *const Side {
        self.theirs.as_ref().expect("nothing is sent or received before both halves are there").side()
    }

    /// What the peer writes, and we can only read. It must have agreed.
    pub(super) fn theirs(&self) -> &Side {
        // SAFETY: as above; nothing is stored through it.
        unsafe { &*self.their_side() }
    }

    /// Our arena, for copies by address: no reference to bytes that the peer can change is ever made.
    pub(super) fn our_arena(&self) -> *mut u8 {
        // SAFETY: takes an address inside the mapping.
        unsafe { (&raw mut (*self.ours.side()).arena).cast() }
    }

    /// The peer's arena.
    pub(super) fn their_arena(&self) -> *const u8 {
        // SAFETY: takes an address inside the mapping.
        unsafe { (&raw const (*self.their_side()).arena).cast() }
    }

    /// Wakes whoever sleeps on this connection in this process. The word is the peer's: who looks again must find another reason.
    pub(super) fn wake_ourselves(&self) {
        wake_some(&self.theirs().bell.rung);
    }

    /// Wakes the peer, if it sleeps.
    pub(super) fn ring(&self) {
        let bell = &self.ours().bell.rung;
        bell.fetch_add(1, Ordering::SeqCst);
        wake_some(bell);
    }

    /// Tells the peer that there is news, since it does not look itself.
    #[inline(never)]
    pub(super) fn rouse(&self, asleep: u32) {
        if asleep & SLEEPS != 0 {
            self.ring();
        }
        if asleep & PARKED != 0 {
            // Where the socket is full, there are letters in it that bring the peer here.
            self.tell(&Letter::Nudge, None);
        }
    }

    /// Whether our side is parked.
    pub(super) fn is_parked(&self) -> bool {
        self.ours().presence.asleep.load(Ordering::Relaxed) & PARKED != 0
    }

    // ---- our regions ------------------------------------------------------------------------------------------------

    fn shown(&self) -> MutexGuard<'_, Vec<Shown>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, letter: &Letter, file: Option<i32>) -> bool {
        send(self.contact.socket.as_raw_fd(), letter, file).is_ok()
    }

    /// Lets the peer map a region, if the region and our VI allow it. A peer that does not empty its socket does without.
    pub(super) fn show(&self, region: &RegionFacts) {
        if region.tag != self.tag {
            return;
        }
        let Some(pages) =
            region.memory.as_ref().and_then(|memory| memory.as_any().downcast_ref::<SharedPages>())
        else {
            return;
        };
        let write = region.rdma_write && self.attributes.rdma_write;
        let read = region.rdma_read && self.attributes.rdma_read;
        // Pages that some may write to cannot be shown to others for reading only.
        let as_it_is = if region.rdma_write { write } else { read };
        let (address, length) = (region.address, region.length);
        let showing = |slot: usize, serial| Showing {
            handle: region.handle.0,
            address,
            length,
            write: as_it_is && write,
            read: as_it_is && read,
            slot: slot as u32,
            serial,
        };
        if as_it_is {
            let Some(file) = pages.file() else { return };
            if let Err(reason) = self.contact.account.unread().count(&self.contact) {
                // It reaches the region by messages.
                return self.contact.account.note(false, &reason);
            }
            self.enter(region.handle.0, |slot, serial| {
                let told = self.tell(&Letter::Show(showing(slot, serial)), Some(file.as_raw_fd()));
                if told {
                    self.ours().exports[slot].store(region.handle.0, Ordering::Release);
                }
                told
            });
        } else if self.contact.single_copy {
            let Some(file) = pages.file_number() else { return };
            self.enter(region.handle.0, |slot, serial| {
                self.tell(&Letter::Lend { showing: showing(slot, serial), file }, None)
            });
        }
    }

    /// Finds a place for a region, and keeps it there if `tell` says so.
    fn enter(&self, handle: u32, tell: impl FnOnce(usize, u32) -> bool) {
        let mut shown = self.shown();
        // One that comes again before it has left takes its own place, and is not to be hidden any more.
        let again = shown.iter().position(|shown| shown.leaving.is_some() && shown.handle == handle);
        let slot = again.or_else(|| shown.iter().position(|shown| shown.handle == 0)).unwrap_or(shown.len());
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        if slot >= EXPORTS || !tell(slot, serial) {
            return;
        }
        if slot == shown.len() {
            shown.push(Shown::default());
        }
        shown[slot] = Shown { handle, serial, ..Shown::default() };
    }

    /// Takes a region back: an honest peer sees it before its next transfer.
    pub(super) fn hide(&self, handle: u32) {
        let mut shown = self.shown();
        let places = shown.iter_mut().enumerate();
        for (slot, place) in places.filter(|(_, place)| place.handle == handle && place.leaving.is_none()) {
            *place = Shown::default();
            self.ours().exports[slot].store(0, Ordering::SeqCst);
            self.shown_changes.fetch_add(1, Ordering::Release);
            // A message may lie in it: the peer keeps its mapping until it has taken all that were laid before.
            *place = Shown { handle, leaving: Some(self.laid.load(Ordering::SeqCst)), ..Shown::default() };
        }
        self.hide_due(&mut shown);
    }

    /// Hides those that wait for no message any more.
    fn hide_due(&self, shown: &mut [Shown]) {
        // Said before it is looked what was taken: who takes the last one sees it, and waits for the places.
        self.leaves.store(true, Ordering::SeqCst);
        let taken = self.taken.load(Ordering::SeqCst);
        for place in shown.iter_mut().filter(|place| place.is_due(taken)) {
            self.tell(&Letter::Hide { handle: place.handle }, None);
            *place = Shown::default();
        }
        if shown.iter().all(|place| place.leaving.is_none()) {
            self.leaves.store(false, Ordering::SeqCst);
        }
    }

    /// A message is about to be laid in memory of ours. Only the link, under its VI's lock, says so.
    pub(super) fn lay(&self) {
        self.laid.store(self.laid.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
    }

    /// The first of those was taken. Only the link, as above.
    pub(super) fn one_was_taken(&self) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
        if self.leaves.load(Ordering::SeqCst) {
            self.hide_due(&mut self.shown());
        }
    }

    /// Whether the peer has mapped that region of ours.
    pub(super) fn has_mapped(&self, handle: u32) -> bool {
        self.shown().iter().any(|shown| shown.handle == handle && shown.mapped)
    }

    /// Counts what may make `has_mapped` say something else.
    #[inline]
    pub(super) fn shown_changes(&self) -> u32 {
        self.shown_changes.load(Ordering::Acquire)
    }

    // ---- letters ----------------------------------------------------------------------------------------------------

    /// Takes a letter of a connection that stands, or is about to.
    pub(super) fn hear(&self, letter: Letter, file: Option<super::closing::Foreign>) -> Result<(), Broken> {
        match letter {
            Letter::Show(showing) => self.contact.hear_show(showing, file),
            Letter::Lend { showing, file } => self.contact.hear_lend(showing, file),
            Letter::Hide { handle } => {
                self.contact.hear_hide(handle);
                Ok(())
            }
            Letter::Mapped { handle, serial } => {
                let is_it = |shown: &&mut Shown| {
                    (shown.handle, shown.serial) == (handle, serial) && shown.leaving.is_none()
                };
                if let Some(place) = self.shown().iter_mut().find(is_it) {
                    place.mapped = handle != 0;
                }
                Ok(())
            }
            Letter::Declined { reason, .. } => {
                self.contact.account.note(true, &reason);
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    #[inline]
    pub(super) fn mapped_changes(&self) -> u32 {
        self.contact.changes()
    }

    pub(super) fn mapped(&self) -> Vec<Arc<PeerRegion>> {
        self.contact.mapped()
    }
}
