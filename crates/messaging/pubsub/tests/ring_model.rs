//! Model checks of the protocol in `ring.rs`: all interleavings and all reorderings that the memory model permits, on a
//! ring of one or two entries. `LONGMA_PUBSUB_MODEL_PREEMPTIONS=2` explores more schedules.
//!
//! Source: loom, after Norris and Demsky, "CDSChecker: checking concurrent data structures written with C/C++ atomics"
//! (2013).

#[path = "../src"]
mod protocol {
    mod layout {
        //! The layout with loom's atomics.
        pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

        pub(super) const INLINE_WORDS: usize = 2;

        pub(super) struct Entry {
            pub(super) stamp: AtomicU64,
            pub(super) place: AtomicU64,
            pub(super) words: [AtomicU64; INLINE_WORDS],
        }
    }

    #[path = "ring.rs"]
    #[allow(dead_code)]
    mod ring;

    use layout::{AtomicU32, AtomicU64, Entry, Ordering};
    use loom::cell::UnsafeCell;
    use ring::Reading;

    /// Runs `model` in every schedule in which each thread is preempted at most `preemptions` times, or more on request.
    fn explored(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let more = std::env::var("LONGMA_PUBSUB_MODEL_PREEMPTIONS").ok().and_then(|more| more.parse().ok());
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions + more.unwrap_or(0));
        builder.max_branches = 100_000;
        builder.check(model);
    }

    fn word() -> &'static AtomicU64 {
        Box::leak(Box::new(AtomicU64::new(0)))
    }

    fn entries(count: usize) -> &'static [Entry] {
        let words = || [AtomicU64::new(0), AtomicU64::new(0)];
        let entry = || Entry { stamp: AtomicU64::new(0), place: AtomicU64::new(0), words: words() };
        Vec::leak((0..count).map(|_| entry()).collect())
    }

    fn send(entries: &[Entry], published: &AtomicU64, number: u64) {
        let entry = &entries[number as usize % entries.len()];
        ring::withdraw(entry);
        ring::publish(entry, published, number, number * 10, &[number * 100, number * 1000]);
    }

    #[test]
    fn a_message_is_complete_or_lost_and_lost_ones_are_counted() {
        explored(2, || {
            let (entries, published) = (entries(1), word());
            let publisher =
                loom::thread::spawn(move || (0..2).for_each(|number| send(entries, published, number)));
            let (mut next, mut received, mut lost) = (0, 0, 0);
            while next < 2 {
                match ring::read(&entries[0], published, next) {
                    Reading::Empty => loom::thread::yield_now(),
                    Reading::Message { place, words } => {
                        assert_eq!((place, words), (next * 10, [next * 100, next * 1000]), "a torn message");
                        next += 1;
                        received += 1;
                    }
                    Reading::Lost(published) => {
                        assert!(published <= 2);
                        let to = published.saturating_sub(1).max(next + 1);
                        lost += to - next;
                        next = to;
                    }
                }
            }
            assert_eq!(received + lost, 2);
            publisher.join().unwrap();
        });
    }

    #[test]
    fn a_message_that_is_not_overwritten_is_never_lost() {
        explored(2, || {
            let (entries, published) = (entries(2), word());
            let publisher =
                loom::thread::spawn(move || (0..2).for_each(|number| send(entries, published, number)));
            let mut next = 0;
            while next < 2 {
                match ring::read(&entries[next as usize], published, next) {
                    Reading::Empty => loom::thread::yield_now(),
                    Reading::Message { .. } => next += 1,
                    Reading::Lost(_) => panic!("message {next} counts as lost while it is written"),
                }
            }
            publisher.join().unwrap();
        });
    }

    #[test]
    fn the_last_message_is_never_lost() {
        explored(2, || {
            let (entries, published) = (entries(1), word());
            let publisher =
                loom::thread::spawn(move || (0..2).for_each(|number| send(entries, published, number)));
            publisher.join().unwrap();
            let last = ring::read(&entries[0], published, 1);
            assert_eq!(last, Reading::Message { place: 10, words: [100, 1000] });
        });
    }

    #[test]
    fn a_slot_that_is_held_is_not_written() {
        // Messages 0 and 1 are in slots 0 and 1; message 2 takes slot 0 if no subscriber holds it. Loom fails the model
        // if the slot is written while it is read, or if a read is not ordered after the write.
        explored(2, || {
            let (entries, published, hold) = (entries(1), word(), word());
            let slots: &'static [UnsafeCell<u64>] = Vec::leak(vec![UnsafeCell::new(0), UnsafeCell::new(0)]);
            let publisher = loom::thread::spawn(move || {
                for number in 0..3u64 {
                    let slot = number as usize % 2;
                    if number == 2 {
                        ring::before_collecting_holds();
                        if ring::held(hold) == Some(0) {
                            break;
                        }
                    }
                    // SAFETY: exclusive access is what the model checks.
                    slots[slot].with_mut(|slot| unsafe { *slot = number });
                    ring::withdraw(&entries[0]);
                    ring::publish(&entries[0], published, number, slot as u64, &[]);
                }
            });
            for number in [0, 2] {
                let Reading::Message { place, .. } = ring::read(&entries[0], published, number) else {
                    continue;
                };
                if ring::hold(hold, place as u32, &entries[0], number) {
                    // SAFETY: as above.
                    assert_eq!(slots[place as usize].with(|slot| unsafe { *slot }), number);
                    ring::release(hold);
                }
            }
            publisher.join().unwrap();
        });
    }

    #[test]
    fn a_subscriber_that_falls_asleep_sees_the_message_or_is_woken() {
        explored(2, || {
            let (entries, published) = (entries(2), word());
            let asleep: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            let bell: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            let publisher = loom::thread::spawn(move || {
                let mut woken = 0;
                for number in 0..2 {
                    send(entries, published, number);
                    ring::before_waking();
                    if let Some(sleep) = ring::sleeper(asleep, woken) {
                        woken = sleep;
                        bell.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let (mut next, mut heard) = (0, 0);
            while next < 2 {
                let take = |next: &mut u64| match ring::read(&entries[*next as usize], published, *next) {
                    Reading::Message { .. } => {
                        *next += 1;
                        true
                    }
                    _ => false,
                };
                if take(&mut next) {
                    continue;
                }
                ring::fall_asleep(asleep);
                if !take(&mut next) {
                    // If the publisher does not send a byte, the model never terminates.
                    while bell.load(Ordering::SeqCst) == heard {
                        loom::thread::yield_now();
                    }
                    heard = bell.load(Ordering::SeqCst);
                }
                ring::awake(asleep);
            }
            publisher.join().unwrap();
        });
    }

    #[test]
    fn a_publisher_that_waits_for_room_sees_it_or_is_told() {
        explored(2, || {
            let (consumed, wanted, bell) = (word(), word(), word());
            let subscriber = loom::thread::spawn(move || {
                let mut answered = 0;
                for next in 1..=2 {
                    if ring::consume(consumed, wanted, next, &mut answered) {
                        bell.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            for target in 1..=2 {
                if consumed.load(Ordering::Acquire) >= target {
                    continue;
                }
                let before = bell.load(Ordering::SeqCst);
                ring::announce_wait(wanted, target);
                while consumed.load(Ordering::Acquire) < target && bell.load(Ordering::SeqCst) == before {
                    loom::thread::yield_now();
                }
            }
            subscriber.join().unwrap();
            // The subscriber sends at most one byte for each requested position.
            assert!(bell.load(Ordering::SeqCst) <= 2);
        });
    }
}
