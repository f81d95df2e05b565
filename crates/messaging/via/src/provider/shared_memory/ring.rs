//! The two ends of a ring: a producer and a consumer in mutually untrusting processes. Each end keeps its position
//! privately, and validates the position that the peer reports.
//!
//! Source: see `layout.rs`. The order of loads and stores is model-checked in `ring_model.rs`.

use super::layout::*;
use crate::provider::EndReason;

/// A message copied from its slot. It cannot change any more, but its contents are not validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) place: u8,
    pub(super) flags: u8,
    /// The number of list entries in the payload.
    pub(super) count: u8,
    pub(super) length: u32,
    pub(super) immediate: u32,
    pub(super) words: [u64; WORDS],
}

/// The value of `stamp` in a full slot: the lap of its position, counted from 1, so that zeroed memory is empty. It
/// wraps around; consecutive laps still differ.
#[inline]
fn stamp_of(position: u64) -> u32 {
    ((position / u64::from(SLOTS)) as u32).wrapping_add(1)
}

/// The slot of a position.
#[inline]
fn slot_index(position: u64) -> usize {
    (position % u64::from(SLOTS)) as usize
}

/// The producer. Positions count messages from the first one and do not wrap; only their low halves are shared.
pub(super) struct Producer<'a> {
    slots: &'a [Slot],
    /// The consumer's progress.
    progress: &'a Progress,
    position: u64,
    /// The last known value of `progress`, extended to 64 bits.
    consumed: u64,
    /// A wrapping count of the arena bytes allocated, and its value after the message in each slot.
    arena_used: u32,
    arena_marks: Box<[u32]>,
    arena_freed: u32,
}

impl<'a> Producer<'a> {
    pub(super) fn new(slots: &'a [Slot], progress: &'a Progress) -> Producer<'a> {
        Producer::starting_at(0, slots, progress)
    }

    /// A producer that has sent `position` messages, all of which were consumed.
    pub(super) fn starting_at(position: u64, slots: &'a [Slot], progress: &'a Progress) -> Producer<'a> {
        let arena_marks = vec![0; slots.len()].into_boxed_slice();
        Producer { slots, progress, position, consumed: position, arena_used: 0, arena_marks, arena_freed: 0 }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether the message at `position` is known to be consumed.
    #[inline]
    pub(super) fn is_consumed(&self, position: u64) -> bool {
        position < self.consumed
    }

    /// Loads the consumer's progress.
    ///
    /// # Errors
    /// If the value is impossible, which violates the protocol.
    #[inline]
    pub(super) fn refresh(&mut self) -> Result<(), EndReason> {
        let newly_consumed =
            self.progress.consumed.load(Ordering::Acquire).wrapping_sub(self.consumed as u32);
        if newly_consumed == 0 {
            return Ok(());
        }
        let consumed = self.consumed + u64::from(newly_consumed);
        if consumed > self.position {
            return Err(EndReason::ProtocolViolation);
        }
        self.consumed = consumed;
        self.arena_freed = self.arena_marks[slot_index(consumed - 1)];
        Ok(())
    }

    /// Whether there is space for `slots` messages. Loads the consumer's progress only if necessary.
    #[inline]
    pub(super) fn has_space(&mut self, slots: u32) -> Result<bool, EndReason> {
        let fits = |this: &Self| this.position - this.consumed + u64::from(slots) <= u64::from(SLOTS);
        if fits(self) {
            return Ok(true);
        }
        self.refresh()?;
        Ok(fits(self))
    }

    /// Allocates `length` contiguous bytes of the arena for the next message and returns their offset. `None` if there
    /// is no space.
    pub(super) fn take_arena(&mut self, length: u32) -> Result<Option<u32>, EndReason> {
        let length = length.next_multiple_of(64);
        let place = self.arena_used % ARENA_BYTES;
        let skip = if place + length > ARENA_BYTES { ARENA_BYTES - place } else { 0 };
        let end = self.arena_used.wrapping_add(skip + length);
        if end.wrapping_sub(self.arena_freed) > ARENA_BYTES {
            self.refresh()?;
            if end.wrapping_sub(self.arena_freed) > ARENA_BYTES {
                return Ok(None);
            }
        }
        self.arena_used = end;
        Ok(Some(end.wrapping_sub(length) % ARENA_BYTES))
    }

    /// Publishes a message. `has_space` must have returned true. Payload words beyond `words` keep their old contents.
    #[inline]
    pub(super) fn push(&mut self, head: u32, length: u32, immediate: u32, words: &[u64]) {
        let place = slot_index(self.position);
        let slot = &self.slots[place];
        slot.head.store(head, Ordering::Relaxed);
        slot.length.store(length, Ordering::Relaxed);
        slot.immediate.store(immediate, Ordering::Relaxed);
        for (word, value) in slot.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.arena_marks[place] = self.arena_used;
        slot.stamp.store(stamp_of(self.position), Ordering::Release);
        self.position += 1;
    }
}

impl Producer<'_> {
    /// Prefetches the cache line of a slot that will be written soon, if the slot is free: the peer accessed it last
    /// and still has the line.
    #[inline]
    pub(super) fn prefetch_next_slot(&self) {
        let ahead = self.position + PREFETCH_DISTANCE;
        if ahead - self.consumed < u64::from(SLOTS) {
            prefetch_for_writing(std::ptr::from_ref(&self.slots[slot_index(ahead)]).cast());
        }
    }
}

/// How many slots `prefetch_next_slot` looks ahead.
const PREFETCH_DISTANCE: u64 = 8;

/// Prefetches a cache line for writing.
#[inline]
fn prefetch_for_writing(line: *const u8) {
    // SAFETY: a hint without visible effects; x86-64 processors that do not support it treat it as a no-op.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Encodes the `head` of a slot.
#[inline]
pub(super) fn head(kind: Kind, place: DataLocation, flags: u8, count: u8) -> u32 {
    u32::from_le_bytes([kind as u8, place as u8, flags, count])
}

/// The consumer.
pub(super) struct Consumer<'a> {
    slots: &'a [Slot],
    /// Where the consumer publishes its progress.
    progress: &'a Progress,
    position: u64,
    published: u64,
    /// Arena bytes consumed since the progress was last published.
    unpublished_bytes: u32,
}

impl<'a> Consumer<'a> {
    pub(super) fn new(slots: &'a [Slot], progress: &'a Progress) -> Consumer<'a> {
        Consumer::starting_at(0, slots, progress)
    }

    /// A consumer that has consumed `position` messages and published that.
    pub(super) fn starting_at(position: u64, slots: &'a [Slot], progress: &'a Progress) -> Consumer<'a> {
        Consumer { slots, progress, position, published: position, unpublished_bytes: 0 }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// A copy of the next message, if there is one. The slot stays occupied until `advance`.
    #[inline]
    pub(super) fn peek(&self) -> Option<Message> {
        let slot = &self.slots[slot_index(self.position)];
        if slot.stamp.load(Ordering::Acquire) != stamp_of(self.position) {
            return None;
        }
        let [kind, place, flags, count] = slot.head.load(Ordering::Relaxed).to_le_bytes();
        Some(Message {
            kind,
            place,
            flags,
            count,
            length: slot.length.load(Ordering::Relaxed),
            immediate: slot.immediate.load(Ordering::Relaxed),
            words: std::array::from_fn(|index| slot.words[index].load(Ordering::Relaxed)),
        })
    }

    /// Prefetches the cache line of the message `distance` slots after the next one.
    #[inline]
    pub(super) fn prefetch(&self, distance: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let slot = &self.slots[slot_index(self.position + u64::from(distance))];
            // SAFETY: a hint; the address is that of a slot.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(slot).cast()) };
        }
    }

    /// Marks the next message and `arena_bytes` of the arena as consumed. Returns whether the progress was published.
    #[inline]
    pub(super) fn advance(&mut self, arena_bytes: u32, publish_now: bool) -> bool {
        self.position += 1;
        self.unpublished_bytes += arena_bytes;
        let slots = self.position - self.published;
        if publish_now || slots >= u64::from(SLOTS.div_ceil(4)) || self.unpublished_bytes >= ARENA_BYTES / 4 {
            self.publish();
            return true;
        }
        false
    }

    /// Publishes the progress. Returns whether it had changed.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        self.unpublished_bytes = 0;
        self.progress.consumed.store(self.position as u32, Ordering::Release);
        true
    }
}
