//! The ring's and the lock's own source, model-checked: every interleaving and every reordering that the memory model allows, on a small ring.
//! Not a stress test; what is checked here holds on any processor.
//! Source: loom, after Norris and Demsky, "CDSChecker: checking concurrent data structures written with C/C++ atomics" (2013).

mod provider {
    //! What the ring needs of the crate.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Gone {
        Lost,
    }
}

#[path = "../src/provider/shared_memory"]
mod shared {
    mod layout {
        //! The layout with loom's atomics and two slots, so that a model check goes round the ring.
        pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

        pub(super) const SLOTS: u32 = 2;
        pub(super) const WORDS: usize = 2;
        pub(super) const ARENA_BYTES: u32 = 256;

        #[derive(Clone, Copy)]
        #[repr(u8)]
        pub(super) enum Kind {
            Send = 1,
        }

        #[derive(Clone, Copy)]
        #[repr(u8)]
        pub(super) enum Place {
            Slot = 1,
        }

        pub(super) struct Slot {
            pub(super) stamp: AtomicU32,
            pub(super) head: AtomicU32,
            pub(super) length: AtomicU32,
            pub(super) immediate: AtomicU32,
            pub(super) words: [AtomicU64; WORDS],
        }

        pub(super) struct Progress {
            pub(super) consumed: AtomicU32,
        }

        pub(super) fn empty() -> (&'static [Slot], &'static Progress) {
            let slot = || Slot {
                stamp: AtomicU32::new(0),
                head: AtomicU32::new(0),
                length: AtomicU32::new(0),
                immediate: AtomicU32::new(0),
                words: [AtomicU64::new(0), AtomicU64::new(0)],
            };
            let slots: Vec<Slot> = (0..SLOTS).map(|_| slot()).collect();
            (Vec::leak(slots), Box::leak(Box::new(Progress { consumed: AtomicU32::new(0) })))
        }
    }

    #[path = "ring.rs"]
    #[allow(dead_code, unused_imports)]
    mod ring;

    use layout::{AtomicU32, Kind, Ordering, Place};
    use loom::sync::atomic::fence;
    use ring::{Consumer, Producer, head};

    fn bounded() -> loom::model::Builder {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder
    }

    #[test]
    fn messages_arrive_in_order_and_whole_round_the_ring() {
        bounded().check(|| {
            let (slots, progress) = layout::empty();
            let producer = loom::thread::spawn(move || {
                let mut producer = Producer::new(slots, progress);
                let mut sent = 0u64;
                while sent < 3 {
                    if producer.has_room(1).unwrap() {
                        sent += 1;
                        let words = [sent, sent * 100];
                        producer.push(
                            head(Kind::Send, Place::Slot, 0, 0),
                            sent as u32,
                            sent as u32 * 7,
                            &words,
                        );
                    } else {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut consumer = Consumer::new(slots, progress);
            let mut expected = 1u64;
            while expected <= 3 {
                let Some(message) = consumer.peek() else {
                    loom::thread::yield_now();
                    continue;
                };
                assert_eq!(
                    message.words,
                    [expected, expected * 100],
                    "a message of another lap, or half of one"
                );
                assert_eq!(
                    (u64::from(message.length), u64::from(message.immediate)),
                    (expected, expected * 7)
                );
                consumer.advance(0, true);
                expected += 1;
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn a_side_that_falls_asleep_sees_the_message_or_is_seen_asleep() {
        bounded().check(|| {
            let (slots, progress) = layout::empty();
            let asleep: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            let publisher = loom::thread::spawn(move || {
                let mut producer = Producer::new(slots, progress);
                producer.push(head(Kind::Send, Place::Slot, 0, 0), 8, 0, &[1]);
                // The fence that a membarrier of the sleeper replaces.
                fence(Ordering::SeqCst);
                asleep.load(Ordering::Relaxed) == 1
            });
            let consumer = Consumer::new(slots, progress);
            asleep.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let saw_message = consumer.peek().is_some();
            let rang = publisher.join().unwrap();
            assert!(saw_message || rang, "asleep, with a message that nobody rings for");
        });
    }

    #[test]
    fn a_consumer_that_says_it_took_more_than_was_sent_is_not_believed() {
        loom::model(|| {
            let (slots, progress) = layout::empty();
            let mut producer = Producer::new(slots, progress);
            producer.push(head(Kind::Send, Place::Slot, 0, 0), 8, 0, &[1]);
            progress.consumed.store(2, Ordering::Release);
            assert!(producer.refresh().is_err());
            progress.consumed.store(u32::MAX, Ordering::Release);
            assert!(producer.refresh().is_err());
        });
    }
}

#[path = "../src/engine"]
mod engine {
    mod asymmetric {
        //! The lock's parts with loom's atomics. A light and a heavy barrier together order what two full fences would.
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        pub(super) use std::cell::UnsafeCell;

        loom::thread_local! { static NUMBER: usize = next_number() }

        fn next_number() -> usize {
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
            NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }

        pub(super) fn is_available() -> bool {
            true
        }

        pub(super) fn light_barrier() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }

        pub(super) fn heavy_barrier() -> bool {
            loom::sync::atomic::fence(Ordering::SeqCst);
            true
        }

        pub(super) fn this_thread() -> usize {
            NUMBER.with(|number| *number)
        }

        pub(super) fn pause(_spins: u32) {
            loom::thread::yield_now();
        }
    }

    #[path = "lock.rs"]
    #[allow(dead_code)]
    mod lock;

    use lock::Lock;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// One step inside. Loom fails the model if another thread is at it, or was without an order between the two.
    fn step(protected: &UnsafeCell<u32>) {
        // SAFETY: whether nobody else is here is what is checked.
        protected.with_mut(|value| unsafe { *value += 1 });
    }

    #[test]
    fn an_owner_and_a_thread_that_takes_its_seat_are_never_inside_together() {
        loom::model(|| {
            let (lock, protected) = (Arc::new(Lock::new(())), Arc::new(UnsafeCell::new(0)));
            // This thread owns the lock from now on.
            drop(lock.lock());
            let other = {
                let (lock, protected) = (lock.clone(), protected.clone());
                loom::thread::spawn(move || {
                    // As if with `held`, which nobody else wants here. Instead of waiting for the owner to leave, it gives up.
                    let gone = lock
                        .take_next_seat()
                        .is_none_or(|inside| !inside.load(loom::sync::atomic::Ordering::Acquire));
                    if gone {
                        step(&protected);
                    }
                    gone
                })
            };
            let mut entered = 0;
            for _ in 0..2 {
                if let Some(_guard) = lock.enter_as_owner() {
                    step(&protected);
                    entered += 1;
                }
            }
            let gone = other.join().unwrap();
            assert!(lock.enter_as_owner().is_none(), "the old owner's seat is still good");
            // SAFETY: the other thread has ended.
            let sum = protected.with(|value| unsafe { *value });
            assert_eq!(sum, entered + u32::from(gone));
        });
    }
}
