//! The protocol of entries, holds and sleep, as functions on shared words. `tests/ring_model.rs` runs this file under
//! loom.
//!
//! Source: seqlocks after Boehm, "Can seqlocks get along with programming language memory models?" (MSPC 2012); holds
//! are hazard pointers after Michael, "Hazard pointers: safe memory reclamation for lock-free objects" (TPDS 2004).

use super::layout::{AtomicU32, AtomicU64, Entry, INLINE_WORDS, Ordering, fence};

/// The contents of an entry for the reader of message `n`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The message.
    Message {
        /// Slot and number of elements.
        place: u64,
        /// The bytes of a short message.
        words: [u64; INLINE_WORDS],
    },
    /// The message has not been published.
    Empty,
    /// The message has been overwritten, or is being overwritten; this many messages have been published.
    Lost(u64),
}

/// Makes an entry invalid before it is overwritten. After this call and a fence, no reader begins to use the entry's
/// old slot.
pub(super) fn withdraw(entry: &Entry) {
    entry.stamp.store(0, Ordering::Relaxed);
    // A reader that sees a later store to the entry also sees the stamp above.
    fence(Ordering::Release);
}

/// Fills an entry that was withdrawn, and publishes it as message `number`.
pub(super) fn publish(entry: &Entry, published: &AtomicU64, number: u64, place: u64, words: &[u64]) {
    entry.place.store(place, Ordering::Relaxed);
    for (to, from) in entry.words.iter().zip(words) {
        to.store(*from, Ordering::Relaxed);
    }
    entry.stamp.store(number + 1, Ordering::Release);
    published.store(number + 1, Ordering::Release);
}

/// Reads message `number` from its entry. The result is not validated, but a message of an honest publisher is complete.
pub(super) fn read(entry: &Entry, published: &AtomicU64, number: u64) -> Reading {
    let mut stamp = entry.stamp.load(Ordering::Acquire);
    if stamp == 0 {
        // Either this message or a later one in the same entry is being written. If `published` already counts this
        // message, it is the later one.
        if published.load(Ordering::Acquire) <= number {
            return Reading::Empty;
        }
        stamp = entry.stamp.load(Ordering::Acquire);
    }
    // An older message: the usual case while polling, without access to `published`.
    if stamp != 0 && stamp <= number {
        return Reading::Empty;
    }
    if stamp == number.wrapping_add(1) {
        let place = entry.place.load(Ordering::Relaxed);
        let mut words = [0; INLINE_WORDS];
        for (to, from) in words.iter_mut().zip(&entry.words) {
            *to = from.load(Ordering::Relaxed);
        }
        if is_still(entry, number) {
            return Reading::Message { place, words };
        }
    }
    let published = published.load(Ordering::Acquire).max(stamp);
    if published > number { Reading::Lost(published) } else { Reading::Empty }
}

/// Whether an entry still has message `number`, so that all data read from it before belongs to that message.
pub(super) fn is_still(entry: &Entry, number: u64) -> bool {
    fence(Ordering::Acquire);
    entry.stamp.load(Ordering::Relaxed) == number.wrapping_add(1)
}

/// Holds a slot for the reader of message `number`. If true, the publisher does not use the slot again until
/// [`release`]. Otherwise the message is lost.
pub(super) fn hold(hold: &AtomicU64, slot: u32, entry: &Entry, number: u64) -> bool {
    // Every store to this word is a release, so that a publisher that sees this hold also sees that the previous one
    // has ended.
    hold.store(u64::from(slot) + 1, Ordering::Release);
    // Either the publisher's `collect_holds` sees the hold, or the reader sees that the entry was withdrawn.
    fence(Ordering::SeqCst);
    let held = entry.stamp.load(Ordering::Relaxed) == number.wrapping_add(1);
    if !held {
        release(hold);
    }
    held
}

/// Ends a hold. The subscriber's earlier reads of the slot happen before the publisher's next use of the slot.
pub(super) fn release(hold: &AtomicU64) {
    hold.store(0, Ordering::Release);
}

/// Orders the withdrawal of entries before the reads of subscribers' holds. Call it before [`held`].
pub(super) fn before_collecting_holds() {
    fence(Ordering::SeqCst);
}

/// The slot that a word of a subscriber holds, if any.
pub(super) fn held(hold: &AtomicU64) -> Option<u32> {
    let slot = hold.load(Ordering::Acquire).checked_sub(1)?;
    u32::try_from(slot).ok()
}

/// Announces that this subscriber is about to sleep. It must check for a message again before it sleeps.
pub(super) fn fall_asleep(asleep: &AtomicU32) {
    asleep.store(asleep.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    // Either the publisher sees the announcement, or the subscriber's next check sees the message.
    fence(Ordering::SeqCst);
}

/// Ends the announcement, with a new even value.
pub(super) fn awake(asleep: &AtomicU32) {
    asleep.store((asleep.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Relaxed);
}

/// Orders the publication of a message before the check for sleepers. Call it before [`sleeper`].
pub(super) fn before_waking() {
    fence(Ordering::SeqCst);
}

/// The value of the announcement if the subscriber sleeps and has not been woken from this sleep: the last wake was for
/// `woken`.
pub(super) fn sleeper(asleep: &AtomicU32, woken: u32) -> Option<u32> {
    let value = asleep.load(Ordering::Relaxed);
    (value & 1 == 1 && value != woken).then_some(value)
}

/// Notifies the publisher that messages below `next` were consumed. Returns whether the publisher waits for this number
/// of messages and must be woken; `answered` is the last wait that was answered.
pub(super) fn consume(consumed: &AtomicU64, wanted: &AtomicU64, next: u64, answered: &mut u64) -> bool {
    consumed.store(next, Ordering::Release);
    // Either the publisher's check sees the new `consumed`, or this side sees the number that the publisher waits for.
    fence(Ordering::SeqCst);
    let wanted = wanted.load(Ordering::Relaxed);
    let answers = wanted > *answered && next >= wanted;
    if answers {
        *answered = wanted;
    }
    answers
}

/// Announces that the publisher waits until `wanted` messages were consumed. It must check `consumed` again before it
/// sleeps.
pub(super) fn announce_wait(word: &AtomicU64, wanted: u64) {
    word.store(wanted, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}
