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

/// What a slot at `position` holds in `stamp` when it is full: its lap, counted from 1, so that zeroed memory is empty. It wraps;
/// one lap and the next differ all the same.
#[inline]
fn stamp_of(position: u64) -> u32 {
    ((position / u64::from(SLOTS)) as u32).wrapping_add(1)
}

/// The slot of a position.
#[inline]
fn place_of(position: u64) -> usize {
    (position % u64::from(SLOTS)) as usize
}

/// The writing end. Its positions count messages from the first and never wrap; only their low halves are shared.
pub(super) struct Producer<'a> {
    slots: &'a [Slot],
    /// Where the reading end says how far it is.
    progress: &'a Progress,
    position: u64,
    /// What of `progress` was read last, with the half that is not shared.
    consumed: u64,
    /// Running count of arena bytes given out, and, per slot, what it was after that slot's message.
    arena_used: u32,
    arena_marks: Box<[u32]>,
    arena_freed: u32,
}

impl<'a> Producer<'a> {
    pub(super) fn new(slots: &'a [Slot], progress: &'a Progress) -> Producer<'a> {
        Producer::starting_at(0, slots, progress)
    }

    /// A producer that has sent `position` messages, of which all were consumed.
    pub(super) fn starting_at(position: u64, slots: &'a [Slot], progress: &'a Progress) -> Producer<'a> {
        let arena_marks = vec![0; slots.len()].into_boxed_slice();
        Producer { slots, progress, position, consumed: position, arena_used: 0, arena_marks, arena_freed: 0 }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether the message at `position` has been consumed, as far as is known.
    #[inline]
    pub(super) fn is_consumed(&self, position: u64) -> bool {
        position < self.consumed
    }

    /// Learns how far the consumer is. A number that cannot be is a broken protocol.
    #[inline]
    pub(super) fn refresh(&mut self) -> Result<(), Gone> {
        let news = self.progress.consumed.load(Ordering::Acquire).wrapping_sub(self.consumed as u32);
        if news == 0 {
            return Ok(());
        }
        let consumed = self.consumed + u64::from(news);
        if consumed > self.position {
            return Err(Gone::Lost);
        }
        self.consumed = consumed;
        self.arena_freed = self.arena_marks[place_of(consumed - 1)];
        Ok(())
    }

    /// Whether `slots` messages have room; asks the consumer's progress only if not known already.
    #[inline]
    pub(super) fn has_room(&mut self, slots: u32) -> Result<bool, Gone> {
        let fits = |this: &Self| this.position - this.consumed + u64::from(slots) <= u64::from(SLOTS);
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
        let place = place_of(self.position);
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
    /// Asks for the cache line of a slot that will be written soon, if it is free: the peer had it last, and gives it up meanwhile.
    #[inline]
    pub(super) fn claim_ahead(&self) {
        let ahead = self.position + CLAIM_DISTANCE;
        if ahead - self.consumed < u64::from(SLOTS) {
            claim(std::ptr::from_ref(&self.slots[place_of(ahead)]).cast());
        }
    }
}

/// How far ahead of the next message `claim_ahead` reaches.
const CLAIM_DISTANCE: u64 = 8;

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
    position: u64,
    published: u64,
    /// Arena bytes read since it was said last.
    unpublished_bytes: u32,
}

impl<'a> Consumer<'a> {
    pub(super) fn new(slots: &'a [Slot], progress: &'a Progress) -> Consumer<'a> {
        Consumer::starting_at(0, slots, progress)
    }

    /// A consumer that has consumed `position` messages and has said so.
    pub(super) fn starting_at(position: u64, slots: &'a [Slot], progress: &'a Progress) -> Consumer<'a> {
        Consumer { slots, progress, position, published: position, unpublished_bytes: 0 }
    }

    /// The position of the next message.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// A copy of the next message, if there is one. It stays until `advance`.
    #[inline]
    pub(super) fn peek(&self) -> Option<Message> {
        let slot = &self.slots[place_of(self.position)];
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
            let slot = &self.slots[place_of(self.position + u64::from(distance))];
            // SAFETY: a hint; the address is that of a slot.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(slot).cast()) };
        }
    }

    /// The next message has been dealt with, `arena_bytes` of the arena with it. Says whether the producer was told.
    #[inline]
    pub(super) fn advance(&mut self, arena_bytes: u32, tell: bool) -> bool {
        self.position += 1;
        self.unpublished_bytes += arena_bytes;
        let slots = self.position - self.published;
        if tell || slots >= u64::from(SLOTS.div_ceil(4)) || self.unpublished_bytes >= ARENA_BYTES / 4 {
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
        self.progress.consumed.store(self.position as u32, Ordering::Release);
        true
    }
}
