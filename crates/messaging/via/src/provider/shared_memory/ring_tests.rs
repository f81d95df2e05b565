//! Tests of a ring around the points where its counters wrap (31 and 32 bits). `tests/ring_model.rs` checks
//! interleavings.

use super::layout::*;
use super::ring::{Consumer, Producer, head};

fn ring_at(position: u64) -> (Producer<'static>, Consumer<'static>) {
    // SAFETY: all zeros is a valid value of these structures of atomics. They are leaked, so they outlive both ends.
    let side: &'static Side = Box::leak(unsafe { Box::<Side>::new_zeroed().assume_init() });
    side.progress.consumed.store(position as u32, Ordering::Relaxed);
    (
        Producer::starting_at(position, &side.slots, &side.progress),
        Consumer::starting_at(position, &side.slots, &side.progress),
    )
}

fn send(producer: &mut Producer<'_>, number: u64) {
    assert!(producer.has_space(1).expect("an honest consumer"));
    producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), 8, 0, &[number]);
}

fn take(consumer: &mut Consumer<'_>) -> Option<u64> {
    let message = consumer.peek()?;
    consumer.advance(0, true);
    Some(message.words[0])
}

#[test]
fn messages_arrive_once_and_in_order_when_the_shared_counts_wrap() {
    for edge in [1 << 31, 1 << 32, u64::from(SLOTS) << 32] {
        let first = edge - 3 * u64::from(SLOTS) / 2;
        let (mut producer, mut consumer) = ring_at(first);
        for lap in 0..4 {
            let (begin, end) = (first + lap * u64::from(SLOTS), first + (lap + 1) * u64::from(SLOTS));
            (begin..end).for_each(|number| send(&mut producer, number));
            assert!(!producer.has_space(1).unwrap(), "a full ring at {end}");
            for number in begin..end {
                assert_eq!(take(&mut consumer), Some(number));
            }
            assert_eq!(take(&mut consumer), None);
        }
    }
}

#[test]
fn a_consumed_message_is_not_delivered_again() {
    for later in [1u64 << 31, 1 << 32, 1 << 40] {
        let (mut producer, mut consumer) = ring_at(5 + later);
        assert!(producer.is_consumed(5) && producer.is_consumed(4 + later));
        send(&mut producer, 0);
        assert!(producer.is_consumed(5) && !producer.is_consumed(5 + later));
        take(&mut consumer);
        producer.refresh().unwrap();
        assert!(producer.is_consumed(5) && producer.is_consumed(5 + later));
    }
}

#[test]
fn impossible_consumer_counts_are_rejected_at_the_wrap() {
    for claimed in [1u32, u32::MAX - 2, 1 << 31] {
        // SAFETY: as in `ring_at`.
        let side: &'static Side = Box::leak(unsafe { Box::<Side>::new_zeroed().assume_init() });
        let mut producer = Producer::starting_at((1 << 32) - 1, &side.slots, &side.progress);
        send_unchecked(&mut producer);
        side.progress.consumed.store(claimed, Ordering::Release);
        assert!(producer.refresh().is_err(), "{claimed} of one message");
    }
}

fn send_unchecked(producer: &mut Producer<'_>) {
    producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), 8, 0, &[0]);
}

#[test]
#[cfg_attr(miri, ignore = "a quarter of a million messages")]
fn arena_offsets_stay_correct_when_the_byte_count_wraps() {
    let (mut producer, mut consumer) = ring_at(0);
    let messages = (1u64 << 32) / u64::from(CHUNK_BYTES) + 40;
    let mut expected = 0;
    for number in 0..messages {
        // One message is always in flight, so the arena is never completely free.
        let offset = producer.take_arena(CHUNK_BYTES).unwrap().expect("room next to one other message");
        assert_eq!(offset, expected, "message {number}");
        expected = (expected + CHUNK_BYTES) % ARENA_BYTES;
        send(&mut producer, number);
        if number > 0 {
            assert_eq!(consumer.peek().map(|message| message.words[0]), Some(number - 1));
            consumer.advance(CHUNK_BYTES, true);
        }
    }
    // The counter has wrapped. Still, no more than the free space can be allocated.
    let more =
        (0..ARENA_BYTES / CHUNK_BYTES).take_while(|_| producer.take_arena(CHUNK_BYTES).unwrap().is_some());
    assert_eq!(more.count() as u32, ARENA_BYTES / CHUNK_BYTES - 1);
}
