//! The two ends of a ring: a producer and a consumer in processes that do not trust each other.
//! Not a queue of a program's own: positions are kept privately, and what the peer says of its own is checked.
//! Source: see `layout.rs`; the order of loads and stores is model-checked in `ring_model.rs`.

use super::layout::*;
use crate::provider::Gone;

/// A message as it was copied out of its slot: it cannot change any more, and nothing in it is to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) place: u8,
    pub(super) flags: u8,
    /// Number of entries of a list in the payload.
    pub(super) count: u8,
    pub(super) length: u32,
    pub(super) immediate: u32,
    pub(super) words: [u64; WORDS],
}

/// What a slot at `position` holds in `stamp` when it is full: its lap, counted from 1, so that zeroed memory is empty.
#[inline]
fn stamp_of(position: u32) -> u32 {
    position / SLOTS + 1
}

/// The writing end.
pub(super) struct Producer<'a> {
    slots: &'a [Slot],
    /// Where the reading end says how far it is.
    progress: &'a Progress,
    position: u32,
    /// What of `progress` was read last.
    consumed: u32,
    /// Running count of arena bytes given out, and, per slot, what it was after that slot's message.
    arena_used: u32,
    arena_marks: Box<[u32]>,
    arena_freed: u32,
}

impl<'a> Producer<'a> {
    pub(super) fn new(slots: &'a [Slot], progress: &'a Progress) -> Producer<'a> {
        let arena_marks = vec![0; slots.len()].into_boxed_slice();
        Producer { slots, progress, position: 0, consumed: 0, arena_used: 0, arena_marks, arena_freed: 0 }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> u32 {
        self.position
    }

    /// Whether the message at `position` has been consumed, as far as is known.
    pub(super) fn is_consumed(&self, position: u32) -> bool {
        self.consumed.wrapping_sub(position).wrapping_sub(1) < u32::MAX / 2
    }

    /// Learns how far the consumer is. A number that cannot be is a broken protocol.
    #[inline]
    pub(super) fn refresh(&mut self) -> Result<(), Gone> {
        let consumed = self.progress.consumed.load(Ordering::Acquire);
        if consumed == self.consumed {
            return Ok(());
        }
        if consumed.wrapping_sub(self.consumed) > self.position.wrapping_sub(self.consumed) {
            return Err(Gone::Lost);
        }
        self.consumed = consumed;
        self.arena_freed = self.arena_marks[(consumed.wrapping_sub(1) % SLOTS) as usize];
        Ok(())
    }

    /// Whether `slots` messages have room; asks the consumer's progress only if not known already.
    #[inline]
    pub(super) fn has_room(&mut self, slots: u32) -> Result<bool, Gone> {
        let fits = |this: &Self| this.position.wrapping_sub(this.consumed) + slots <= SLOTS;
        if fits(self) {
            return Ok(true);
        }
        self.refresh()?;
        Ok(fits(self))
    }

    /// `length` bytes of the arena in one piece, for the next message: their offset. `None`: no room now.
    pub(super) fn take_arena(&mut self, length: u32) -> Result<Option<u32>, Gone> {
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

    /// Publishes a message; `has_room` must have said yes. `words` of it are written, the rest of the payload is left as it was.
    #[inline]
    pub(super) fn push(&mut self, head: u32, length: u32, immediate: u32, words: &[u64]) {
        let place = (self.position % SLOTS) as usize;
        let slot = &self.slots[place];
        slot.head.store(head, Ordering::Relaxed);
        slot.length.store(length, Ordering::Relaxed);
        slot.immediate.store(immediate, Ordering::Relaxed);
        for (word, value) in slot.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.arena_marks[place] = self.arena_used;
        slot.stamp.store(stamp_of(self.position), Ordering::Release);
        self.position = self.position.wrapping_add(1);
    }
}

impl Producer<'_> {
    /// Asks for the cache line of a slot that will be written soon, if it is free: the peer had it last, and gives it up meanwhile.
    #[inline]
    pub(super) fn claim_ahead(&self) {
        let ahead = self.position.wrapping_add(CLAIM_DISTANCE);
        if ahead.wrapping_sub(self.consumed) < SLOTS {
            claim(std::ptr::from_ref(&self.slots[(ahead % SLOTS) as usize]).cast());
        }
    }
}

/// How far ahead of the next message `claim_ahead` reaches.
const CLAIM_DISTANCE: u32 = 8;

/// Asks for a cache line in order to write to it.
#[inline]
fn claim(line: *const u8) {
    // SAFETY: a hint, which changes nothing that a program can see; x86-64 processors without it take it for no operation.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Makes a slot's `head`.
#[inline]
pub(super) fn head(kind: Kind, place: Place, flags: u8, count: u8) -> u32 {
    u32::from_le_bytes([kind as u8, place as u8, flags, count])
}

/// The reading end.
pub(super) struct Consumer<'a> {
    slots: &'a [Slot],
    /// Where this end says how far it is.
    progress: &'a Progress,
    position: u32,
    published: u32,
    /// Arena bytes read since it was said last.
    unpublished_bytes: u32,
}

impl<'a> Consumer<'a> {
    pub(super) fn new(slots: &'a [Slot], progress: &'a Progress) -> Consumer<'a> {
        Consumer { slots, progress, position: 0, published: 0, unpublished_bytes: 0 }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> u32 {
        self.position
    }

    /// A copy of the next message, if there is one. It stays until `advance`.
    #[inline]
    pub(super) fn peek(&self) -> Option<Message> {
        let slot = &self.slots[(self.position % SLOTS) as usize];
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

    /// Asks for the cache line of the message that comes so many after the next one.
    #[inline]
    pub(super) fn prefetch(&self, distance: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let slot = &self.slots[(self.position.wrapping_add(distance) % SLOTS) as usize];
            // SAFETY: a hint; the address is that of a slot.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(slot).cast()) };
        }
    }

    /// The next message has been dealt with, `arena_bytes` of the arena with it. Says whether the producer was told.
    #[inline]
    pub(super) fn advance(&mut self, arena_bytes: u32, tell: bool) -> bool {
        self.position = self.position.wrapping_add(1);
        self.unpublished_bytes += arena_bytes;
        let slots = self.position.wrapping_sub(self.published);
        if tell || slots >= SLOTS.div_ceil(4) || self.unpublished_bytes >= ARENA_BYTES / 4 {
            self.publish();
            return true;
        }
        false
    }

    /// Tells the producer how far this end is; says whether that was news.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        self.unpublished_bytes = 0;
        self.progress.consumed.store(self.position, Ordering::Release);
        true
    }
}
