//! Model checks of the source code of the ring and the lock: all interleavings and all reorderings that the memory
//! model permits, on a small ring. The results hold for every processor. `LONGMA_VIA_MODEL_PREEMPTIONS=2` explores more
//! schedules than the few seconds of the short form.
//!
//! Source: loom, after Norris and Demsky, "CDSChecker: checking concurrent data structures written with C/C++ atomics"
//! (2013).

use std::io::Write as _;
use std::sync::atomic::AtomicU64 as Count;
use std::time::Instant;

/// The number of additional preemptions per thread, compared with the short form.
const MORE: &str = "LONGMA_VIA_MODEL_PREEMPTIONS";

/// Runs `model` in every schedule in which each thread is preempted at most `preemptions` times (more on request), with
/// every value that the memory model permits for a load. Prints the number of executions to standard error, so that it
/// is shown for passing tests too.
fn explored(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let more = std::env::var(MORE).ok().and_then(|more| more.parse().ok()).unwrap_or(0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions + more);
    builder.max_branches = 100_000;
    let (count, begin) = (std::sync::Arc::new(Count::new(0)), Instant::now());
    let counted = count.clone();
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let (executions, bound) = (count.load(std::sync::atomic::Ordering::Relaxed), preemptions + more);
    let seconds = begin.elapsed().as_secs_f64();
    let line =
        format!("model: {name}: {executions} executions, at most {bound} preemptions, {seconds:.1} s\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

mod provider {
    //! The items of the crate that the ring uses.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum EndReason {
        ProtocolViolation,
    }
}

#[path = "../src/provider/shared_memory"]
mod shared {
    mod layout {
        //! The layout with loom's atomics and two slots, so that a model check wraps around the ring.
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
        pub(super) enum DataLocation {
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

    use super::explored;
    use layout::{AtomicU32, DataLocation, Kind, Ordering, Progress, Slot};
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::fence;
    use ring::{Consumer, Producer, head};

    fn send(producer: &mut Producer<'_>, number: u64, words: [u64; 2]) {
        while !producer.has_space(1).unwrap() {
            loom::thread::yield_now();
        }
        let number = number as u32;
        producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), number, number * 7, &words);
    }

    fn receive(consumer: &Consumer<'_>) -> ring::Message {
        loop {
            match consumer.peek() {
                Some(message) => return message,
                None => loom::thread::yield_now(),
            }
        }
    }

    /// Three messages through a ring of two slots, starting at position `first`.
    fn three_messages_from(first: u64, (slots, progress): (&'static [Slot], &'static Progress)) {
        progress.consumed.store(first as u32, Ordering::Relaxed);
        let numbers = first..first + 3;
        let sent = numbers.clone();
        let producer = loom::thread::spawn(move || {
            let mut producer = Producer::starting_at(first, slots, progress);
            sent.for_each(|number| send(&mut producer, number % 1000, [number, number * 100]));
            producer.refresh().unwrap();
            assert!(first == 0 || producer.is_consumed(first - 1));
        });
        let mut consumer = Consumer::starting_at(first, slots, progress);
        for number in numbers {
            let message = receive(&consumer);
            assert_eq!(message.words, [number, number * 100], "a message of another lap, or half of one");
            let contents = (u64::from(message.length), u64::from(message.immediate));
            assert_eq!(contents, (number % 1000, number % 1000 * 7));
            consumer.advance(0, true);
        }
        producer.join().unwrap();
    }

    #[test]
    fn messages_arrive_complete_and_in_order_around_the_ring() {
        explored("ring: three messages round two slots", 3, || three_messages_from(0, layout::empty()));
    }

    #[test]
    fn messages_arrive_complete_and_in_order_when_the_shared_count_wraps() {
        explored("ring: three messages where the shared count wraps", 3, || {
            three_messages_from((1 << 32) - 2, layout::empty());
        });
    }

    /// Loom fails the model if a piece is written while it is read, or if a read is not ordered after the write.
    fn pieces_of_the_arena(name: &str, pieces: [u32; 3]) {
        const LINE: u32 = 64;
        explored(name, 3, move || {
            let pieces = pieces.map(|lines| lines * LINE);
            let (slots, progress) = layout::empty();
            let lines: &'static [UnsafeCell<u64>] =
                Vec::leak((0..layout::ARENA_BYTES / LINE).map(|_| UnsafeCell::new(0)).collect());
            let lines_of = move |offset: u64, bytes: u32| {
                (0..bytes / LINE).map(move |line| &lines[(offset as u32 / LINE + line) as usize])
            };
            let producer = loom::thread::spawn(move || {
                let mut producer = Producer::new(slots, progress);
                for (number, bytes) in (1..).zip(pieces) {
                    let offset = loop {
                        match producer.take_arena(bytes).unwrap() {
                            Some(offset) => break u64::from(offset),
                            None => loom::thread::yield_now(),
                        }
                    };
                    for line in lines_of(offset, bytes) {
                        // SAFETY: exclusive access is what the model checks.
                        line.with_mut(|line| unsafe { *line = number });
                    }
                    send(&mut producer, number, [offset, 0]);
                }
            });
            let mut consumer = Consumer::new(slots, progress);
            for (number, bytes) in (1..).zip(pieces) {
                let message = receive(&consumer);
                for line in lines_of(message.words[0], bytes) {
                    // SAFETY: as above.
                    assert_eq!(line.with(|line| unsafe { *line }), number, "a piece that was written over");
                }
                consumer.advance(bytes, true);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn arena_space_is_not_reused_while_the_reader_may_access_it() {
        // The arena has four lines. In the first case, allocating a line too many would overwrite one in use; in the
        // second, the third piece does not fit before the end of the arena.
        pieces_of_the_arena("ring: pieces of an arena that is full", [3, 1, 1]);
        pieces_of_the_arena("ring: pieces of an arena with a rest at its end", [2, 1, 2]);
    }

    #[test]
    fn a_side_going_to_sleep_sees_the_message_or_is_woken() {
        explored("sleep: two messages and a consumer that goes to sleep", 4, || {
            let (slots, progress) = layout::empty();
            let word = || -> &'static AtomicU32 { Box::leak(Box::new(AtomicU32::new(0))) };
            let (asleep, wakes) = (word(), word());
            let publisher = loom::thread::spawn(move || {
                let mut producer = Producer::new(slots, progress);
                for number in 0..2 {
                    producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), 8, 0, &[number]);
                    // The fence that the sleeper's membarrier replaces.
                    fence(Ordering::SeqCst);
                    if asleep.load(Ordering::Relaxed) == 1 {
                        wakes.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let mut consumer = Consumer::new(slots, progress);
            let mut taken = 0;
            while taken < 2 {
                // Like `SharedLink::arm`, followed by one poll and sleeping while the wake word has its old value. A wake
                // for a message that has already been seen causes a spurious wakeup, and the loop repeats.
                let value = wakes.load(Ordering::SeqCst);
                asleep.store(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if consumer.peek().is_none() {
                    // The kernel compares and sleeps atomically. If no wake follows, the model does not terminate.
                    while wakes.load(Ordering::SeqCst) == value {
                        loom::thread::yield_now();
                    }
                }
                asleep.store(0, Ordering::Relaxed);
                while consumer.peek().is_some() {
                    consumer.advance(0, true);
                    taken += 1;
                }
            }
            publisher.join().unwrap();
        });
    }

    #[test]
    fn messages_sent_before_the_end_are_visible_with_the_end() {
        explored("end: a message and the flag that its sender has disconnected", 4, || {
            let (slots, progress) = layout::empty();
            let closed: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            let leaving = loom::thread::spawn(move || {
                let mut producer = Producer::new(slots, progress);
                producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), 8, 0, &[1]);
                closed.store(1, Ordering::Release);
            });
            let consumer = Consumer::new(slots, progress);
            // Like `SharedLink::check_presence`: no message, the peer has left, so poll once more.
            if consumer.peek().is_none() && closed.load(Ordering::Acquire) == 1 {
                assert!(consumer.peek().is_some(), "the last message is lost");
            }
            leaving.join().unwrap();
        });
    }

    #[test]
    fn arbitrary_consumer_counts_at_worst_end_the_connection() {
        explored("hostile: progress that is made up", 3, || {
            let (slots, progress) = layout::empty();
            let hostile = loom::thread::spawn(move || {
                for made_up in [1, u32::MAX, 0, 3] {
                    progress.consumed.store(made_up, Ordering::Relaxed);
                }
            });
            let mut producer = Producer::new(slots, progress);
            let mut freed = 0;
            for _ in 0..4 {
                match producer.has_space(1) {
                    Ok(true) => producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), 8, 0, &[1]),
                    Ok(false) => loom::thread::yield_now(),
                    Err(_) => break,
                }
                let known = (0..producer.position()).filter(|at| producer.is_consumed(*at)).count();
                assert!(known >= freed, "a message that was consumed is no longer");
                freed = known;
            }
            hostile.join().unwrap();
        });
    }

    #[test]
    fn a_consumer_that_claims_more_than_was_sent_is_rejected() {
        loom::model(|| {
            let (slots, progress) = layout::empty();
            let mut producer = Producer::new(slots, progress);
            producer.push(head(Kind::Send, DataLocation::Slot, 0, 0), 8, 0, &[1]);
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
        //! The items that the lock uses, with loom's atomics. A light and a heavy barrier together order the same
        //! accesses as two full fences.
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

    /// A step inside the lock. Loom fails the model if another thread accesses the value concurrently or without
    /// ordering.
    fn step(protected: &UnsafeCell<u32>) {
        // SAFETY: exclusive access is what the model checks.
        protected.with_mut(|value| unsafe { *value += 1 });
    }

    #[test]
    fn an_owner_and_the_thread_that_revokes_it_are_never_inside_together() {
        super::explored("lock: an owner and a thread that takes over its slot", 4, || {
            let (lock, protected) = (Arc::new(Lock::new(())), Arc::new(UnsafeCell::new(0)));
            // This thread owns the lock from here on.
            drop(lock.lock());
            let other = {
                let (lock, protected) = (lock.clone(), protected.clone());
                loom::thread::spawn(move || {
                    // As if holding `held`, for which there is no contention here. Instead of waiting for the owner to
                    // leave, the thread gives up.
                    let is_revoked = lock
                        .take_next_slot()
                        .is_none_or(|inside| !inside.load(loom::sync::atomic::Ordering::Acquire));
                    if is_revoked {
                        step(&protected);
                    }
                    is_revoked
                })
            };
            let mut entered = 0;
            for _ in 0..2 {
                if let Some(_guard) = lock.enter_as_owner() {
                    step(&protected);
                    entered += 1;
                }
            }
            let is_revoked = other.join().unwrap();
            assert!(lock.enter_as_owner().is_none(), "the old owner's slot is still current");
            // SAFETY: the other thread has ended.
            let sum = protected.with(|value| unsafe { *value });
            assert_eq!(sum, entered + u32::from(is_revoked));
        });
    }
}
