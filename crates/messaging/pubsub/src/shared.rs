//! The memory of a topic and the control page of a subscriber, as structures.

use crate::error::Error;
use crate::layout::{Control, Entry, Geometry, Head, LINE_BYTES, PAGE_BYTES, SlotHead};
use crate::memory::{Access, Mapping, create, map_foreign};
use std::os::fd::OwnedFd;

/// A topic's memory: written by the publisher, mapped read-only by subscribers.
#[derive(Debug)]
pub(crate) struct TopicMemory {
    mapping: Mapping,
    pub(crate) geometry: Geometry,
}

impl TopicMemory {
    /// Creates the memory. Called by the publisher.
    pub(crate) fn create(geometry: Geometry) -> Result<(OwnedFd, Self), Error> {
        let (file, mapping) = create(geometry.total, Access::Read)?;
        Ok((file, Self { mapping, geometry }))
    }

    /// Maps a publisher's memory. Called by subscribers.
    pub(crate) fn map(file: OwnedFd, geometry: Geometry) -> Result<Self, Error> {
        Ok(Self { mapping: map_foreign(file, geometry.total, Access::Read)?, geometry })
    }

    pub(crate) fn head(&self) -> &Head {
        // SAFETY: atomics, at the start of the mapping.
        unsafe { self.mapping.atomics(0) }
    }

    /// `index` must be less than the depth.
    pub(crate) fn entry(&self, index: u32) -> &Entry {
        // SAFETY: atomics, at a multiple of a line.
        unsafe { self.mapping.atomics(self.geometry.entries_at() + index as usize * LINE_BYTES) }
    }

    /// `slot` must be less than the number of slots.
    pub(crate) fn slot_head(&self, slot: u32) -> &SlotHead {
        // SAFETY: atomics, at a multiple of a line.
        unsafe { self.mapping.atomics(self.geometry.slot_at(slot)) }
    }

    /// The payload of a slot, aligned to a line, with room for the longest message. `slot` must be less than the number
    /// of slots.
    pub(crate) fn payload(&self, slot: u32) -> *mut u8 {
        self.mapping.at(self.geometry.slot_at(slot) + LINE_BYTES, self.geometry.message_bytes)
    }

    /// The entry of a message.
    pub(crate) fn index_of(&self, number: u64) -> u32 {
        (number % u64::from(self.geometry.depth)) as u32
    }
}

/// A subscriber's control page: created by the publisher, written by the subscriber.
#[derive(Debug)]
pub(crate) struct ControlPage(Mapping);

impl ControlPage {
    /// Creates the page. Called by the publisher.
    pub(crate) fn create() -> Result<(OwnedFd, Self), Error> {
        let (file, mapping) = create(PAGE_BYTES, Access::Write)?;
        Ok((file, Self(mapping)))
    }

    /// Maps the page. Called by the subscriber.
    pub(crate) fn map(file: OwnedFd) -> Result<Self, Error> {
        map_foreign(file, PAGE_BYTES, Access::Write).map(Self)
    }

    pub(crate) fn words(&self) -> &Control {
        // SAFETY: atomics, at the start of the page.
        unsafe { self.0.atomics(0) }
    }
}
