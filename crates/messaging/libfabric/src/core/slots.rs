//! The registered memory of a connection, in slots of one frame each.
//!
//! The peer cannot access the slots. The NIC writes to a slot only while a posted receive uses it, and reads from it
//! only while a posted send does; `is_posted` prevents borrowing of these slots.

use super::wire::MAX_HEADER_BYTES;
use longma_via::{Descriptor, Error, MemoryAttributes, MemoryRegion, Nic, ProtectionTag, Vi};

/// The size of a slot, bytes.
pub(crate) const SLOT_BYTES: usize = 8192;
/// The longest payload of a frame, bytes.
pub(crate) const MAX_PAYLOAD_BYTES: usize = SLOT_BYTES - MAX_HEADER_BYTES;
/// The number of frames that a side may have in flight: sent, but not processed by the peer.
pub(crate) const CREDITS: u16 = 64;
/// The number of requests that a side may have unanswered, except offers. Their answers need no credits.
pub(crate) const MAX_REQUESTS: usize = 32;
/// The number of offers that a side may have unanswered. They wait for receives of the program, and other messages must be
/// able to pass them, so there is no small limit.
pub(crate) const MAX_OFFERS: usize = 1 << 16;
/// Receive slots: for frames with credits, answers to this side's requests, the ends of this side's grants, and two
/// frames that only return credits.
const RECEIVE_SLOTS: usize = CREDITS as usize + 2 * MAX_REQUESTS + 2;
const SEND_SLOTS: usize = 32;

/// The slots of a connection.
pub(crate) struct Slots {
    memory: MemoryRegion,
    is_posted: Vec<bool>,
    free: Vec<usize>,
}

impl Slots {
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn new(nic: &Nic, tag: ProtectionTag) -> Result<Self, Error> {
        let count = RECEIVE_SLOTS + SEND_SLOTS;
        let memory = nic.allocate(count * SLOT_BYTES, MemoryAttributes::local(tag))?;
        Ok(Self { memory, is_posted: vec![false; count], free: (RECEIVE_SLOTS..count).rev().collect() })
    }

    /// Posts all receive slots.
    pub(crate) fn post_all(&mut self, vi: &Vi) -> Result<(), Error> {
        (0..RECEIVE_SLOTS).try_for_each(|slot| self.post(vi, slot))
    }

    /// Posts a receive slot.
    pub(crate) fn post(&mut self, vi: &Vi, slot: usize) -> Result<(), Error> {
        let segment = [self.memory.segment(slot * SLOT_BYTES, SLOT_BYTES)];
        self.is_posted[slot] = true;
        vi.post_receive(&Descriptor::receive(&segment).with_context(slot as u64))
    }

    /// The slot of a completed receive, which may be read from now on.
    pub(crate) fn taken(&mut self, context: u64) -> usize {
        let slot = context as usize;
        self.is_posted[slot] = false;
        slot
    }

    /// The first bytes of a slot.
    #[inline]
    pub(crate) fn bytes(&self, slot: usize, length: usize) -> &[u8] {
        assert!(!self.is_posted[slot] && length <= SLOT_BYTES, "the NIC does not use the slot");
        // SAFETY: the range is in the region, which lives as long as `self`. The NIC does not write to it, the peer
        // cannot, and `fill` borrows `self` exclusively.
        unsafe {
            std::slice::from_raw_parts(self.memory.as_ptr().add(slot * SLOT_BYTES).cast_const(), length)
        }
    }

    /// Whether a frame can be sent.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Sends a frame. `fill` writes it to a free slot and returns its length. The slot is the context of the
    /// descriptor.
    ///
    /// # Panics
    /// If no slot is free.
    #[inline]
    pub(crate) fn send(&mut self, vi: &Vi, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, Error> {
        let slot = self.free.pop().expect("the caller has looked for a free slot");
        // SAFETY: as in `bytes`; a free slot is not posted, and `self` is borrowed exclusively.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.memory.as_ptr().add(slot * SLOT_BYTES), SLOT_BYTES)
        };
        let length = fill(bytes);
        self.is_posted[slot] = true;
        let segment = [self.memory.segment(slot * SLOT_BYTES, length)];
        vi.post_send(&Descriptor::send(&segment).with_context(slot as u64))?;
        Ok(slot)
    }

    /// Frees the slot of a completed send.
    pub(crate) fn release(&mut self, slot: usize) {
        self.is_posted[slot] = false;
        self.free.push(slot);
    }
}
