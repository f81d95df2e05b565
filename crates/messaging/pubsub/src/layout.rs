//! The layout of a topic's memory, which the publisher writes, and of a subscriber's control page, which the subscriber
//! writes. Neither side trusts the contents.
//!
//! ```text
//! topic:    Head | entries: depth * 64 bytes | slots: slots * (64 bytes + the longest message)
//! control:  Control, one page
//! ```

use crate::error::Error;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The bytes of a message that fit into its entry. Longer messages are in a slot.
pub(crate) const INLINE_BYTES: usize = INLINE_WORDS * 8;
/// [`INLINE_BYTES`] in 64-bit words.
pub(crate) const INLINE_WORDS: usize = 6;
/// The slot number of a message that is in its entry instead of a slot.
pub(crate) const INLINE: u32 = u32::MAX;
/// The largest number of samples that a subscriber can keep.
pub(crate) const MAX_HELD: u32 = 32;
/// The size of a page, and of the control page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The size of a cache line. Messages are aligned to it.
pub(crate) const LINE_BYTES: usize = 64;
/// The longest message, bytes.
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 30;
/// The largest memory of a topic, bytes. Pages are allocated at their first use.
pub(crate) const MAX_TOPIC_BYTES: u64 = 64 << 30;

/// The first page of a topic's memory.
#[repr(C, align(64))]
pub(crate) struct Head {
    /// The number of published messages, which is also the number of the next message.
    pub(crate) published: AtomicU64,
    /// 1 once the publisher has closed the topic.
    pub(crate) closed: AtomicU32,
    pub(crate) _line: [AtomicU32; 13],
    /// The publisher waits until each subscriber has consumed this many messages.
    pub(crate) wanted: AtomicU64,
}

/// An entry of the ring. Message `n` is in entry `n % depth`.
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// The number of the message plus one; 0 while it is being written, or before the first.
    pub(crate) stamp: AtomicU64,
    /// Lower half: the number of elements. Upper half: the slot, or [`INLINE`].
    pub(crate) place: AtomicU64,
    /// A message of at most [`INLINE_BYTES`].
    pub(crate) words: [AtomicU64; INLINE_WORDS],
}

/// The line before a slot's payload.
#[repr(C, align(64))]
pub(crate) struct SlotHead {
    /// The number of the message plus one; 0 while it is being written.
    pub(crate) stamp: AtomicU64,
}

/// A subscriber's control page.
#[repr(C, align(64))]
pub(crate) struct Control {
    /// The number of the message that the subscriber expects next.
    pub(crate) consumed: AtomicU64,
    /// The number of messages that the subscriber has lost.
    pub(crate) lost: AtomicU64,
    pub(crate) _line: [AtomicU64; 6],
    /// Odd while the subscriber sleeps, or is about to.
    pub(crate) asleep: AtomicU32,
    pub(crate) _line2: [AtomicU32; 15],
    /// The slots that the subscriber's samples refer to, plus one; 0 for none.
    pub(crate) holds: [AtomicU64; MAX_HELD as usize],
}

const _: () = assert!(size_of::<Entry>() == LINE_BYTES && size_of::<SlotHead>() == LINE_BYTES);
const _: () = assert!(size_of::<Head>() <= PAGE_BYTES && size_of::<Control>() <= PAGE_BYTES);

/// The sizes and offsets of a topic's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Entries of the ring.
    pub(crate) depth: u32,
    /// Slots for messages that do not fit into an entry.
    pub(crate) slots: u32,
    /// The longest message, bytes.
    pub(crate) message_bytes: usize,
    /// Distance between two slots, bytes.
    stride: usize,
    /// Offset of the first slot, bytes.
    slots_at: usize,
    /// Size of the memory, bytes.
    pub(crate) total: usize,
}

impl Geometry {
    /// Computes the layout and checks its parameters, which may come from another process.
    pub(crate) fn new(depth: u32, slots: u32, message_bytes: u64) -> Result<Self, Error> {
        let within = |name, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(Error::InvalidOption { name, value, min, max })
            }
        };
        within("depth", depth.into(), 1, MAX_DEPTH.into())?;
        within("slots", slots.into(), 1, MAX_SLOTS.into())?;
        within("the longest message, bytes,", message_bytes, 0, MAX_MESSAGE_BYTES)?;
        let line = LINE_BYTES as u64;
        let stride = line + message_bytes.next_multiple_of(line);
        let page = PAGE_BYTES as u64;
        let slots_at = (page + u64::from(depth) * line).next_multiple_of(page);
        let total = (slots_at + u64::from(slots) * stride).next_multiple_of(page);
        within("the memory of the topic, bytes,", total, 1, MAX_TOPIC_BYTES)?;
        // All are at most MAX_TOPIC_BYTES, and `usize` has 64 bits wherever this crate runs.
        let (stride, slots_at, total) = (stride as usize, slots_at as usize, total as usize);
        Ok(Self { depth, slots, message_bytes: message_bytes as usize, stride, slots_at, total })
    }

    /// Offset of the ring.
    pub(crate) fn entries_at(self) -> usize {
        PAGE_BYTES
    }

    /// Offset of a slot. `slot` must be less than `slots`.
    pub(crate) fn slot_at(self, slot: u32) -> usize {
        debug_assert!(slot < self.slots);
        self.slots_at + slot as usize * self.stride
    }
}

/// The largest depth of a ring.
pub(crate) const MAX_DEPTH: u32 = 1 << 20;
/// The largest number of slots.
const MAX_SLOTS: u32 = 1 << 22;

/// Encodes the location of a message: its slot or [`INLINE`], and its number of elements.
pub(crate) fn place(slot: u32, elements: u32) -> u64 {
    u64::from(slot) << 32 | u64::from(elements)
}

/// The slot, and the number of elements.
pub(crate) fn slot_and_elements(place: u64) -> (u32, u32) {
    ((place >> 32) as u32, place as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_the_numbers_everything_lies_inside_and_apart(depth: u32, slots: u32, bytes: u64, small: bool) {
            let (depth, slots, bytes) = if small { (depth % 5000, slots % 5000, bytes % 70_000) } else { (depth, slots, bytes) };
            let Ok(geometry) = Geometry::new(depth, slots, bytes) else { return Ok(()) };
            let entries_end = geometry.entries_at() + depth as usize * LINE_BYTES;
            prop_assert!(geometry.slot_at(0) >= entries_end);
            let end = geometry.slot_at(slots - 1) + LINE_BYTES + bytes as usize;
            prop_assert!(end <= geometry.total && geometry.total as u64 <= MAX_TOPIC_BYTES);
            if slots > 1 {
                prop_assert!(geometry.slot_at(1) >= geometry.slot_at(0) + LINE_BYTES + bytes as usize);
            }
            prop_assert_eq!(geometry.slot_at(slots - 1) % LINE_BYTES, 0);
        }

        #[test]
        fn a_place_keeps_its_parts(slot: u32, elements: u32) {
            prop_assert_eq!(slot_and_elements(place(slot, elements)), (slot, elements));
        }
    }
}
