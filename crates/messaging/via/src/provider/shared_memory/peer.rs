//! The peer of a connection: the shared halves, and the regions that we export or lend to it.
//!
//! Source: unix(7), futex(2).

use super::control_message::{ControlMessage, RegionExport, send};
use super::layout::{EXPORTS, PARKED, SLEEPS, Side};
use super::mapping::SharedPages;
use super::peer_connection::{Half, PeerConnection, ProtocolViolation};
use super::peer_region::PeerRegion;
use crate::attributes::ViAttributes;
use crate::futex::wake_some;
use crate::provider::{EndReason, RegionInfo};
use longma_locks::IgnorePoison;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// A region of ours that was exported or lent to the peer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct ExportEntry {
    /// 0 if the entry is free.
    handle: u32,
    /// The serial number of the export message.
    serial: u32,
    /// Whether the peer has confirmed the mapping of this export.
    mapped: bool,
    /// Set for a region being revoked: the number of in-place messages that the peer must have consumed first. Until
    /// then the slot is not reused, because reusing it would make the peer unmap the region.
    revoking: Option<u32>,
}

impl ExportEntry {
    fn is_due(&self, taken: u32) -> bool {
        // The counters wrap around, but their difference stays small.
        self.revoking.is_some_and(|until| taken.wrapping_sub(until) < 1 << 31)
    }
}

pub(super) struct Peer {
    pub(super) vi: u32,
    tag: u32,
    /// The attributes of our VI, which limit the peer's access.
    attributes: ViAttributes,
    pub(super) peer_connection: Arc<PeerConnection>,
    /// Our half, which we write.
    ours: Half,
    /// The peer's half. On the connecting side it is known once the peer has accepted.
    theirs: Option<Half>,
    /// Why the monitor considers the connection lost.
    loss: OnceLock<EndReason>,
    /// Our regions that were exported or lent to the peer, by slot of `exports`.
    exports: Mutex<Vec<ExportEntry>>,
    export_changes: AtomicU32,
    serials: AtomicU32,
    /// The number of in-place messages sent, and the number that the peer has consumed in order; maintained by the
    /// link.
    in_place_sent: AtomicU32,
    taken: AtomicU32,
    /// Whether a region is waiting to be revoked.
    is_revoking: AtomicBool,
}

/// The parts of a new peer.
pub(super) struct PeerParts {
    pub(super) vi: u32,
    pub(super) tag: u32,
    pub(super) attributes: ViAttributes,
    pub(super) peer_connection: Arc<PeerConnection>,
    pub(super) ours: Half,
    pub(super) theirs: Option<Half>,
}

impl Peer {
    pub(super) fn new(parts: PeerParts) -> Peer {
        let PeerParts { vi, tag, attributes, peer_connection, ours, theirs } = parts;
        Peer {
            vi,
            tag,
            attributes,
            peer_connection,
            ours,
            theirs,
            loss: OnceLock::new(),
            exports: Mutex::default(),
            export_changes: AtomicU32::new(0),
            serials: AtomicU32::new(0),
            in_place_sent: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            is_revoking: AtomicBool::new(false),
        }
    }

    /// Adds the peer's half after the peer has accepted.
    pub(super) fn set_peer_half(&mut self, theirs: Half) {
        self.theirs = Some(theirs);
    }

    /// Our half.
    pub(super) fn ours(&self) -> &Side {
        // SAFETY: mapped as long as `self` lives; aligned like every mapping; only atomics are accessed through the
        // reference.
        unsafe { &*self.ours.side() }
    }

    fn their_side(&self) -> *const Side {
        self.theirs.as_ref().expect("both halves exist before anything is sent or received").side()
    }

    /// The peer's half, which is read-only. The peer must have accepted.
    pub(super) fn theirs(&self) -> &Side {
        // SAFETY: as above; nothing is stored through it.
        unsafe { &*self.their_side() }
    }

    /// The address of our arena. No references to bytes that the peer can access are ever created.
    pub(super) fn our_arena(&self) -> *mut u8 {
        // SAFETY: computes an address inside the mapping.
        unsafe { (&raw mut (*self.ours.side()).arena).cast() }
    }

    /// The address of the peer's arena.
    pub(super) fn their_arena(&self) -> *const u8 {
        // SAFETY: computes an address inside the mapping.
        unsafe { (&raw const (*self.their_side()).arena).cast() }
    }

    /// Why the connection is lost, if it is.
    #[inline]
    pub(super) fn loss(&self) -> Option<EndReason> {
        self.loss.get().copied()
    }

    pub(super) fn lose(&self, reason: EndReason) {
        let _ = self.loss.set(reason);
    }

    /// Wakes the threads of this process that sleep on the connection. The word is in the peer's half and does not
    /// change, so sleepers must also check another condition when they wake.
    pub(super) fn wake_ourselves(&self) {
        wake_some(&self.theirs().wake_word.wakes);
    }

    /// Wakes the peer if it sleeps.
    pub(super) fn wake_peer(&self) {
        let wake_word = &self.ours().wake_word.wakes;
        wake_word.fetch_add(1, Ordering::SeqCst);
        wake_some(wake_word);
    }

    /// Notifies a peer that does not poll.
    #[inline(never)]
    pub(super) fn notify(&self, sleep_state: u32) {
        if sleep_state & SLEEPS != 0 {
            self.wake_peer();
        }
        if sleep_state & PARKED != 0 {
            // If the socket is full, the messages in it already make the peer poll.
            self.send(&ControlMessage::Nudge, None);
        }
    }

    /// Whether our side is parked.
    pub(super) fn is_parked(&self) -> bool {
        self.ours().presence.sleep_state.load(Ordering::Relaxed) & PARKED != 0
    }

    // ---- our regions ------------------------------------------------------------------------------------------------

    fn exports(&self) -> MutexGuard<'_, Vec<ExportEntry>> {
        self.exports.lock().ignore_poison()
    }

    fn send(&self, message: &ControlMessage, file: Option<i32>) -> bool {
        send(self.peer_connection.socket.as_raw_fd(), message, file).is_ok()
    }

    /// Exports or lends a region to the peer, if the region and our VI permit it. If the peer does not empty its
    /// socket, nothing is sent.
    pub(super) fn offer(&self, region: &RegionInfo) {
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
        // Pages that some peers may write to cannot be exported read-only to others.
        let as_it_is = if region.rdma_write { write } else { read };
        let (address, length) = (region.address, region.length);
        let export = |slot: usize, serial| RegionExport {
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
            if let Err(reason) = self.peer_connection.account.unread().count(&self.peer_connection) {
                // The peer accesses the region by messages instead.
                return self.peer_connection.account.note(false, &reason);
            }
            self.enter(region.handle.0, |slot, serial| {
                let is_sent =
                    self.send(&ControlMessage::Export(export(slot, serial)), Some(file.as_raw_fd()));
                if is_sent {
                    self.ours().exports[slot].store(region.handle.0, Ordering::Release);
                }
                is_sent
            });
        } else if self.peer_connection.single_copy {
            let Some(file) = pages.file_number() else { return };
            self.enter(region.handle.0, |slot, serial| {
                self.send(&ControlMessage::Lend { export: export(slot, serial), file }, None)
            });
        }
    }

    /// Reserves a slot for a region and keeps it if `announce` returns true.
    fn enter(&self, handle: u32, announce: impl FnOnce(usize, u32) -> bool) {
        let mut shown = self.exports();
        // A region that is offered again while it waits to be revoked reuses its slot, and the revocation is cancelled.
        let again = shown.iter().position(|shown| shown.revoking.is_some() && shown.handle == handle);
        let slot = again.or_else(|| shown.iter().position(|shown| shown.handle == 0)).unwrap_or(shown.len());
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        if slot >= EXPORTS || !announce(slot, serial) {
            return;
        }
        if slot == shown.len() {
            shown.push(ExportEntry::default());
        }
        shown[slot] = ExportEntry { handle, serial, ..ExportEntry::default() };
    }

    /// Revokes a region. A well-behaved peer sees this before its next transfer.
    pub(super) fn revoke(&self, handle: u32) {
        let mut shown = self.exports();
        let places = shown.iter_mut().enumerate();
        for (slot, place) in places.filter(|(_, place)| place.handle == handle && place.revoking.is_none()) {
            *place = ExportEntry::default();
            self.ours().exports[slot].store(0, Ordering::SeqCst);
            self.export_changes.fetch_add(1, Ordering::Release);
            // A message may refer to the region: the peer keeps its mapping until it has consumed all in-place messages
            // sent so far.
            *place = ExportEntry {
                handle,
                revoking: Some(self.in_place_sent.load(Ordering::SeqCst)),
                ..ExportEntry::default()
            };
        }
        self.complete_revocations(&mut shown);
    }

    /// Sends the revocations for which the socket had no space. Called when the peer has shown that it is alive.
    pub(super) fn retry_revocations(&self) {
        if self.is_revoking.load(Ordering::SeqCst) {
            self.complete_revocations(&mut self.exports());
        }
    }

    /// Completes the revocations that no longer wait for messages. If the socket has no space, they are retried later.
    fn complete_revocations(&self, shown: &mut [ExportEntry]) {
        // Set before `taken` is loaded. The link that consumes the last message then sees the flag and waits for the
        // lock.
        self.is_revoking.store(true, Ordering::SeqCst);
        let taken = self.taken.load(Ordering::SeqCst);
        for place in shown.iter_mut().filter(|place| place.is_due(taken)) {
            if !self.send(&ControlMessage::Revoke { handle: place.handle }, None) {
                break;
            }
            *place = ExportEntry::default();
        }
        if shown.iter().all(|place| place.revoking.is_none()) {
            self.is_revoking.store(false, Ordering::SeqCst);
        }
    }

    /// Counts an in-place message that is about to be sent. Called only by the link, under its VI's lock.
    pub(super) fn count_in_place(&self) {
        self.in_place_sent
            .store(self.in_place_sent.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
    }

    /// Counts an in-place message that was consumed. Called only by the link, as above.
    pub(super) fn count_in_place_consumed(&self) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
        self.retry_revocations();
    }

    /// Whether the peer has mapped our region.
    pub(super) fn has_mapped(&self, handle: u32) -> bool {
        self.exports().iter().any(|shown| shown.handle == handle && shown.mapped)
    }

    /// A counter of changes that may affect `has_mapped`.
    #[inline]
    pub(super) fn export_changes(&self) -> u32 {
        self.export_changes.load(Ordering::Acquire)
    }

    // ---- control messages -------------------------------------------------------------------------------------------

    /// Handles a control message of an established connection, or of one about to be established.
    pub(super) fn handle_message(
        &self,
        message: ControlMessage,
        file: Option<super::deferred_close::PeerFile>,
    ) -> Result<(), ProtocolViolation> {
        match message {
            ControlMessage::Export(export) => self.peer_connection.handle_export(export, file),
            ControlMessage::Lend { export, file } => self.peer_connection.handle_lend(export, file),
            ControlMessage::Revoke { handle } => {
                self.peer_connection.handle_revoke(handle);
                Ok(())
            }
            ControlMessage::Mapped { handle, serial } => {
                let is_it = |shown: &&mut ExportEntry| {
                    (shown.handle, shown.serial) == (handle, serial) && shown.revoking.is_none()
                };
                if let Some(place) = self.exports().iter_mut().find(is_it) {
                    place.mapped = handle != 0;
                }
                Ok(())
            }
            ControlMessage::Declined { reason, .. } => {
                self.peer_connection.account.note(true, &reason);
                Ok(())
            }
            _ => Err(ProtocolViolation),
        }
    }

    #[inline]
    pub(super) fn mapped_changes(&self) -> u32 {
        self.peer_connection.changes()
    }

    pub(super) fn mapped(&self) -> Vec<Arc<PeerRegion>> {
        self.peer_connection.mapped()
    }
}
