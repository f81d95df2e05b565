//! The registered memory of a connection, in slots of one frame each.
//!
//! Receive slots come first, then slots for sending data, then slots for sending control frames. Flow control
//! guarantees that a slot for control frames is always free (see [`crate::flow`]).

use crate::flow::CONTROL_SLOTS;
use crate::options::Options;
use crate::wire::{HEADER_BYTES, Header};
use longma_via::{Descriptor, Error, MemoryAttributes, MemoryRegion, Nic, ProtectionTag, Vi};

/// The protection tag of one connection. A NIC exports the memory of a tag to the peers of all VIs with that tag, so with a
/// common tag, each peer could access the memory of all connections.
pub(crate) struct Tag {
    nic: Nic,
    tag: ProtectionTag,
    /// The process that created it.
    creator_pid: u32,
}

impl Tag {
    pub(crate) fn new(nic: &Nic) -> Result<Self, Error> {
        Ok(Self { nic: nic.clone(), tag: nic.create_protection_tag()?, creator_pid: std::process::id() })
    }

    pub(crate) fn get(&self) -> ProtectionTag {
        self.tag
    }

    /// Whether this process is a forked child, which must not use the connection.
    pub(crate) fn is_forked_child(&self) -> bool {
        std::process::id() != self.creator_pid
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        if self.is_forked_child() {
            return;
        }
        // The VI and the memory that use the tag have already been dropped.
        let _ = self.nic.destroy_protection_tag(self.tag);
    }
}

pub(crate) struct Slots {
    memory: MemoryRegion,
    slot_bytes: usize,
    receive_slots: usize,
    /// The first slot for control frames.
    first_control: usize,
    free: Vec<usize>,
    free_control: Vec<usize>,
    /// Frames whose sends have not completed.
    in_flight: usize,
}

impl Slots {
    pub(crate) fn new(tag: &Tag, options: &Options) -> Result<Self, Error> {
        let slot_bytes = options.slot_bytes as usize;
        let receive_slots = (options.receive_slots + CONTROL_SLOTS) as usize;
        let first_control = receive_slots + options.send_slots as usize;
        let all = first_control + CONTROL_SLOTS as usize;
        Ok(Self {
            memory: tag.nic.allocate(all * slot_bytes, MemoryAttributes::local(tag.tag))?,
            slot_bytes,
            receive_slots,
            first_control,
            free: (receive_slots..first_control).collect(),
            free_control: (first_control..all).collect(),
            in_flight: 0,
        })
    }

    /// Posts all receive slots.
    pub(crate) fn post_all(&self, vi: &Vi) -> Result<(), Error> {
        (0..self.receive_slots).try_for_each(|slot| self.post(vi, slot))
    }

    /// Posts a receive slot.
    pub(crate) fn post(&self, vi: &Vi, slot: usize) -> Result<(), Error> {
        let segment = [self.memory.segment(slot * self.slot_bytes, self.slot_bytes)];
        vi.post_receive(&Descriptor::receive(&segment).with_context(slot as u64))
    }

    /// Whether there is a free slot for sending data.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether a send has not completed.
    pub(crate) fn is_sending(&self) -> bool {
        self.in_flight > 0
    }

    /// Sends a data frame.
    ///
    /// # Panics
    /// If there is no free slot, or the payload does not fit.
    pub(crate) fn send(&mut self, vi: &Vi, header: &Header, payload: &[u8]) -> Result<(), Error> {
        let slot = self.free.pop().expect("the caller has waited for a free slot");
        self.send_from(vi, slot, header, payload)
    }

    /// Sends a control frame. If no slot is free, the connection has ended, and no frame is sent.
    pub(crate) fn send_control(&mut self, vi: &Vi, header: &Header, payload: &[u8]) -> Result<(), Error> {
        let Some(slot) = self.free_control.pop() else { return Ok(()) };
        self.send_from(vi, slot, header, payload)
    }

    fn send_from(&mut self, vi: &Vi, slot: usize, header: &Header, payload: &[u8]) -> Result<(), Error> {
        let (start, length) = (slot * self.slot_bytes, HEADER_BYTES + payload.len());
        assert!(length <= self.slot_bytes, "the payload fits into a slot");
        self.memory.write(start, &header.encode());
        self.memory.write(start + HEADER_BYTES, payload);
        vi.post_send(&Descriptor::send(&[self.memory.segment(start, length)]).with_context(slot as u64))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Frees a slot whose send has completed.
    pub(crate) fn release(&mut self, slot: u64) {
        let slot = slot as usize;
        self.in_flight -= 1;
        if slot < self.first_control { self.free.push(slot) } else { self.free_control.push(slot) }
    }

    /// The header of the frame in a slot.
    pub(crate) fn read_header(&self, slot: usize) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        self.memory.read(slot * self.slot_bytes, &mut bytes);
        bytes
    }

    /// Copies bytes of the payload of the frame in a slot.
    pub(crate) fn read(&self, slot: usize, offset: usize, into: &mut [u8]) {
        assert!(HEADER_BYTES + offset + into.len() <= self.slot_bytes, "the range is in the slot");
        self.memory.read(slot * self.slot_bytes + HEADER_BYTES + offset, into);
    }
}
