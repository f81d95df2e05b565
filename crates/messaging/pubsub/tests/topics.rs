//! Topics in one process: delivery, history, overflow, lengths, holds, waiting, names and rights.

use longma_pubsub::raw::{RawPublisher, RawSubscriber};
use longma_pubsub::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// A name that no other test uses.
fn name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A message that is too long for an entry.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Long([u64; 32]);

impl Message for Long {
    const NAME: &str = "test.Long";
}

fn options(depth: u32, overflow: Overflow) -> Options {
    Options { depth, overflow, max_elements: 1000, ..Options::default() }
}

#[test]
fn every_subscriber_receives_every_message_in_order() {
    let name = name("all");
    let mut publisher = Publisher::<u64>::create(&name).unwrap();
    let mut subscribers: Vec<_> = (0..4).map(|_| Subscriber::<u64>::connect(&name).unwrap()).collect();
    assert_eq!(publisher.subscribers(), 4);
    for value in 0..100 {
        assert_eq!(publisher.publish(&(value * 3)).unwrap(), value);
        for subscriber in &mut subscribers {
            let sample = subscriber.receive().unwrap().expect("a message");
            assert_eq!((sample.number(), sample.read().unwrap(), sample.lost()), (value, value * 3, 0));
            assert!(subscriber.receive().unwrap().is_none());
        }
    }
}

#[test]
fn slices_have_any_length_up_to_the_maximum() {
    let name = name("slices");
    let mut publisher = Publisher::<[u16]>::create_with(&name, options(4, Overflow::Overwrite)).unwrap();
    let mut subscriber = Subscriber::<[u16]>::connect(&name).unwrap();
    // 24 elements are 48 bytes, the longest message inside of an entry.
    for length in [0, 1, 3, 23, 24, 25, 999, 1000] {
        let message: Vec<u16> = (0..length).map(|index| index * 7).collect();
        publisher.publish_slice(&message).unwrap();
        let sample = subscriber.receive().unwrap().expect("a message");
        assert_eq!((sample.len(), sample.to_vec().unwrap()), (message.len(), message.clone()));
        assert_eq!(sample.iter().collect::<Vec<_>>(), message);
        assert_eq!((sample.get(0), sample.get(message.len())), (message.first().copied(), None));
        // SAFETY: the publisher of this test is honest.
        assert_eq!(unsafe { sample.as_ref() }, message);
    }
    let error = publisher.publish_slice(&[0; 1001]).unwrap_err();
    assert!(matches!(error, Error::TooLong { elements: 1001, limit: 1000 }), "{error}");
}

#[test]
fn a_loan_is_written_in_place_and_one_that_is_dropped_is_not_published() {
    let name = name("loan");
    let mut publisher = Publisher::<[u64]>::create_with(&name, options(4, Overflow::Overwrite)).unwrap();
    let mut subscriber = Subscriber::<[u64]>::connect(&name).unwrap();
    for length in [2, 100] {
        drop(publisher.loan_slice(length).unwrap());
        let mut loan = publisher.loan_slice(length).unwrap();
        assert_eq!(loan.as_ptr().addr() % 64, 0);
        loan.fill(9);
        loan[1] = 5;
        loan.publish().unwrap();
        let sample = subscriber.receive().unwrap().expect("a message");
        assert_eq!((sample.get(0), sample.get(1), sample.len()), (Some(9), Some(5), length));
    }
    assert!(subscriber.receive().unwrap().is_none());
}

#[test]
fn late_subscribers_get_the_history_that_they_ask_for_and_that_exists() {
    let name = name("history");
    let options = Options { depth: 8, history: 5, ..Options::default() };
    let mut publisher = Publisher::<u32>::create_with(&name, options).unwrap();
    let received = |history| {
        let options = SubscribeOptions { history, ..SubscribeOptions::default() };
        let mut subscriber = Subscriber::<u32>::connect_with(&name, &options).unwrap();
        std::iter::from_fn(|| subscriber.receive().unwrap())
            .map(|sample| sample.read().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(received(5), []);
    publisher.publish(&0).unwrap();
    publisher.publish(&1).unwrap();
    assert_eq!(received(5), [0, 1]);
    (2..100).for_each(|value| {
        publisher.publish(&value).unwrap();
    });
    assert_eq!(received(3), [97, 98, 99]);
    assert_eq!(received(1000), [95, 96, 97, 98, 99]);
    assert_eq!(received(0), []);
}

#[test]
fn a_slow_subscriber_loses_the_oldest_messages_and_learns_how_many() {
    let name = name("overwrite");
    let mut publisher = Publisher::<Long>::create_with(&name, options(8, Overflow::Overwrite)).unwrap();
    let mut slow = Subscriber::<Long>::connect(&name).unwrap();
    (0..20).for_each(|value| {
        publisher.publish(&Long([value; 32])).unwrap();
    });
    // The subscriber continues with the newest three quarters of the ring.
    let first = slow.receive().unwrap().expect("a message");
    assert_eq!((first.number(), first.lost(), slow.lost()), (14, 14, 14));
    let rest: Vec<u64> =
        std::iter::from_fn(|| slow.receive().unwrap()).map(|sample| sample.read().unwrap().0[31]).collect();
    assert_eq!(rest, [15, 16, 17, 18, 19]);
    publisher.publish(&Long([20; 32])).unwrap();
    assert_eq!((slow.receive().unwrap().unwrap().lost(), slow.lost()), (0, 14));
}

#[test]
fn a_topic_that_loses_nothing_is_full_until_every_subscriber_has_received() {
    let name = name("block");
    let mut publisher = Publisher::<u64>::create_with(&name, options(4, Overflow::Block)).unwrap();
    // Without subscribers, the publisher never waits.
    (0..10).for_each(|value| {
        publisher.publish(&value).unwrap();
    });
    let mut one = Subscriber::<u64>::connect(&name).unwrap();
    let mut two = Subscriber::<u64>::connect(&name).unwrap();
    (10..14).for_each(|value| {
        publisher.publish(&value).unwrap();
    });
    assert!(matches!(publisher.publish(&14), Err(Error::Full)));
    assert_eq!(one.receive().unwrap().unwrap().read().unwrap(), 10);
    let error = publisher.publish_wait(&14, Some(Duration::from_millis(20)));
    assert!(matches!(error, Err(Error::TimedOut)));
    assert_eq!(two.receive().unwrap().unwrap().read().unwrap(), 10);
    publisher.publish(&14).unwrap();
    assert!(matches!(publisher.publish(&15), Err(Error::Full)));
    // The publisher does not wait for a dropped subscriber.
    drop(one);
    (0..4).for_each(|_| drop(two.receive().unwrap().unwrap()));
    publisher.publish_wait(&15, SOON).unwrap();
}

#[test]
fn a_publisher_that_waits_for_room_is_woken_and_nothing_is_lost() {
    for depth in [1, 2, 16] {
        let name = name("wait");
        let mut publisher = Publisher::<u64>::create_with(&name, options(depth, Overflow::Block)).unwrap();
        let mut subscribers =
            [Subscriber::<u64>::connect(&name).unwrap(), Subscriber::<u64>::connect(&name).unwrap()];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..3000).for_each(|value| {
                    publisher.publish_wait(&value, SOON).unwrap();
                })
            });
            for subscriber in &mut subscribers {
                scope.spawn(|| {
                    for value in 0..3000 {
                        assert_eq!(subscriber.receive_wait(SOON).unwrap().read().unwrap(), value);
                    }
                    assert!(matches!(subscriber.receive_wait(SOON), Err(Error::Closed)));
                });
            }
        });
    }
}

#[test]
fn a_sample_that_is_kept_does_not_change_while_the_publisher_goes_on() {
    let name = name("kept");
    let mut publisher = Publisher::<Long>::create_with(&name, options(2, Overflow::Overwrite)).unwrap();
    let mut subscriber = Subscriber::<Long>::connect(&name).unwrap();
    let mut kept = Vec::new();
    for value in 0..4 {
        publisher.publish(&Long([value; 32])).unwrap();
        kept.push(subscriber.receive().unwrap().expect("a message"));
    }
    publisher.publish(&Long([4; 32])).unwrap();
    assert!(matches!(subscriber.receive(), Err(Error::TooManySamples(4))));
    (5..500).for_each(|value| {
        publisher.publish(&Long([value; 32])).unwrap();
    });
    for (value, sample) in (0..).zip(&kept) {
        assert!(sample.is_intact());
        assert_eq!(sample.read().unwrap(), Long([value; 32]));
    }
    kept.pop();
    let sample = subscriber.receive().unwrap().expect("a message");
    assert_eq!(sample.lost(), sample.number() - 4);
    // Samples outlive their subscriber, and the publisher.
    drop(subscriber);
    (500..600).for_each(|value| {
        publisher.publish(&Long([value; 32])).unwrap();
    });
    drop(publisher);
    assert_eq!(kept[0].read().unwrap(), Long([0; 32]));
}

#[test]
fn a_subscriber_of_another_type_gets_an_error_that_names_both() {
    let name = name("types");
    let _publisher = Publisher::<f64>::create(&name).unwrap();
    let error = Subscriber::<u64>::connect(&name).err().unwrap().to_string();
    assert!(error.contains("`f64` (8 bytes") && error.contains("`u64` (8 bytes"), "{error}");
    let error = Subscriber::<[f64]>::connect(&name).err().unwrap().to_string();
    assert!(error.contains("carries `f64`") && error.contains("expects `[f64]`"), "{error}");
}

#[test]
fn a_topic_has_one_publisher_and_ends_with_it() {
    let name = name("taken");
    let mut publisher = Publisher::<u8>::create(&name).unwrap();
    assert!(matches!(Publisher::<u8>::create(&name), Err(Error::Taken(_))));
    let mut subscriber = Subscriber::<u8>::connect(&name).unwrap();
    publisher.publish(&1).unwrap();
    drop(publisher);
    // Messages published before the end are received.
    assert_eq!(subscriber.receive_wait(SOON).unwrap().read().unwrap(), 1);
    assert!(matches!(subscriber.receive_wait(SOON), Err(Error::Closed)));
    assert!(matches!(Subscriber::<u8>::connect(&name), Err(Error::NoPublisher(_))));
    let begin = Instant::now();
    let waited = Subscriber::<u8>::connect_within(&name, Duration::from_millis(30));
    assert!(matches!(waited, Err(Error::NoPublisher(_))) && begin.elapsed() >= Duration::from_millis(30));
    Publisher::<u8>::create(&name).unwrap();
}

#[test]
fn a_subscriber_that_polls_notices_the_end_too() {
    let name = name("polls");
    let publisher = Publisher::<u8>::create(&name).unwrap();
    let mut subscriber = Subscriber::<u8>::connect(&name).unwrap();
    drop(publisher);
    let end = Instant::now() + Duration::from_secs(10);
    while !matches!(subscriber.receive(), Err(Error::Closed)) {
        assert!(Instant::now() < end);
    }
}

#[test]
fn a_topic_has_as_many_subscribers_as_it_permits() {
    let name = name("many");
    let publisher =
        Publisher::<u8>::create_with(&name, Options { max_subscribers: 2, ..Options::default() }).unwrap();
    let one = Subscriber::<u8>::connect(&name).unwrap();
    let _two = Subscriber::<u8>::connect(&name).unwrap();
    let error = Subscriber::<u8>::connect(&name).err().unwrap().to_string();
    assert!(error.contains("2 subscribers, its maximum"), "{error}");
    drop(one);
    let end = Instant::now() + Duration::from_secs(10);
    while publisher.subscribers() == 2 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    Subscriber::<u8>::connect(&name).unwrap();
}

#[test]
fn a_sleeping_subscriber_is_woken_by_a_message_and_by_its_time_limit() {
    let name = name("sleep");
    let mut publisher = Publisher::<u64>::create(&name).unwrap();
    let mut subscriber = Subscriber::<u64>::connect(&name).unwrap();
    let error = subscriber.receive_wait(Some(Duration::from_millis(10)));
    assert!(matches!(error, Err(Error::TimedOut)));
    let waiter = std::thread::spawn(move || {
        (0..20).map(|_| subscriber.receive_wait(SOON).unwrap().read().unwrap()).collect::<Vec<_>>()
    });
    for value in 0..20 {
        std::thread::sleep(Duration::from_millis(1));
        publisher.publish(&value).unwrap();
    }
    assert_eq!(waiter.join().unwrap(), (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn futures_are_woken_and_may_be_dropped() {
    let name = name("futures");
    let mut publisher = Publisher::<u64>::create(&name).unwrap();
    let mut subscriber = Subscriber::<u64>::connect(&name).unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(5), subscriber.receive_async()).await;
    assert!(dropped.is_err());
    let publishing = tokio::task::spawn_blocking(move || {
        for value in 0..100 {
            std::thread::sleep(Duration::from_micros(300));
            publisher.publish(&value).unwrap();
        }
    });
    let receiving = async {
        for value in 0..100 {
            assert_eq!(subscriber.receive_async().await.unwrap().read().unwrap(), value);
        }
        assert!(matches!(subscriber.receive_async().await, Err(Error::Closed)));
    };
    tokio::time::timeout(Duration::from_secs(20), receiving).await.expect("woken");
    publishing.await.unwrap();
}

#[test]
fn the_files_of_a_topic_are_for_its_user_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("topics");
    let options = Options { folder: Some(folder.clone()), ..Options::default() };
    let publisher = Publisher::<u8>::create_with("rights", options).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in ["rights.socket", "rights.lock"] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
    let topics = longma_pubsub::topics(Some(&folder)).unwrap();
    assert_eq!((topics.len(), topics[0].0.as_str()), (1, "rights"));
    drop(publisher);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn the_state_of_a_topic_can_be_asked_for() {
    let name = name("state");
    let options = Options { depth: 4, history: 2, max_elements: 100, ..Options::default() };
    let mut publisher = Publisher::<[f32]>::create_with(&name, options).unwrap();
    let mut subscriber = Subscriber::<[f32]>::connect(&name).unwrap();
    publisher.publish_slice(&[1.0; 100]).unwrap();
    let kept = subscriber.receive().unwrap();
    (0..2).for_each(|_| {
        publisher.publish_slice(&[1.0]).unwrap();
    });
    let report = topic(&name, None).unwrap();
    assert_eq!((report.published, report.bytes, report.depth, report.history), (3, 408, 4, 2));
    assert_eq!(
        (report.message.to_string().as_str(), report.process),
        ("`[f32]` (4 bytes, aligned to 4)", std::process::id())
    );
    let expected = SubscriberReport { process: std::process::id(), lag: 2, lost: 0, held: 1 };
    assert_eq!(report.subscribers, [expected]);
    drop(kept);
    assert!(matches!(topic("no-such-topic", None), Err(Error::NoPublisher(_))));
}

#[test]
fn options_outside_of_their_range_are_named() {
    let cases: [(Options, &str); 6] = [
        (Options { depth: 0, ..Options::default() }, "depth is 0"),
        (Options { history: 17, ..Options::default() }, "history is 17; it must be between 0 and 16"),
        (Options { max_subscribers: 65, ..Options::default() }, "max_subscribers is 65"),
        (Options { max_samples: 0, ..Options::default() }, "max_samples is 0"),
        (Options { max_elements: u32::MAX - 1, ..Options::default() }, "the longest message"),
        (Options { depth: 1 << 20, max_elements: 1 << 20, ..Options::default() }, "the memory of the topic"),
    ];
    for (options, expected) in cases {
        let error = Publisher::<[u64]>::create_with(&name("options"), options).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn many_threads_get_no_wrong_byte_while_samples_are_kept_and_lost() {
    let name = name("stress");
    let mut publisher = Publisher::<[u64]>::create_with(&name, options(4, Overflow::Overwrite)).unwrap();
    let received = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let (mut subscriber, received) = (Subscriber::<[u64]>::connect(&name).unwrap(), &received);
            scope.spawn(move || {
                let (mut kept, mut expected) = (Vec::new(), 0);
                loop {
                    let sample = match subscriber.receive_wait(SOON) {
                        Ok(sample) => sample,
                        Err(Error::Closed) => break,
                        Err(Error::TooManySamples(_)) => {
                            kept.clear();
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    assert_eq!(sample.number(), expected + sample.lost());
                    expected = sample.number() + 1;
                    received.fetch_add(1, Ordering::Relaxed);
                    if sample.number() % 5 == seed {
                        kept.push(sample);
                    } else if kept.len() == 3 {
                        kept.remove((expected % 3) as usize);
                    } else {
                        assert!(sample.iter().all(|element| element == sample.number()));
                    }
                    for sample in &kept {
                        assert!(sample.to_vec().unwrap().iter().all(|element| *element == sample.number()));
                    }
                }
                assert_eq!(expected, 20_000);
            });
        }
        for number in 0..20_000u64 {
            let mut loan = publisher.loan_slice((number % 300) as usize).unwrap();
            loan.fill(number);
            loan.publish().unwrap();
            if number % 64 == 0 {
                std::thread::yield_now();
            }
        }
        drop(publisher);
    });
    assert!(received.into_inner() >= 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// One subscriber, against a model: which messages it gets, and how many it loses.
    #[test]
    fn a_subscriber_gets_what_the_model_says(
        depth in 1u32..12, steps in proptest::collection::vec((0u32..30, 0u32..30), 1..20), bytes in 1usize..100,
    ) {
        let name = name("model");
        let message = MessageType { name: "bytes".into(), element_bytes: bytes, alignment: 1, is_slice: false };
        let options = options(depth, Overflow::Overwrite);
        let mut publisher = RawPublisher::create(&name, message, options).unwrap();
        let mut subscriber = RawSubscriber::connect(&name, &SubscribeOptions::default()).unwrap();
        let (mut published, mut next, mut lost) = (0u64, 0u64, 0u64);
        for (publishes, receives) in steps {
            for _ in 0..publishes {
                let payload = publisher.loan(1, raw::WaitLimit::None).unwrap();
                // SAFETY: the loan has this many bytes.
                unsafe { payload.as_ptr().write_bytes(published as u8, bytes) };
                publisher.publish_loan().unwrap();
                published += 1;
            }
            for _ in 0..receives {
                let sample = subscriber.receive().unwrap();
                if published - next > u64::from(depth) {
                    let to = published - u64::from(depth) + u64::from(depth / 4);
                    lost += to - next;
                    next = to;
                }
                prop_assert_eq!(sample.is_some(), next < published);
                let Some(sample) = sample else { continue };
                let mut received = vec![0; bytes];
                sample.copy(0, &mut received).unwrap();
                prop_assert_eq!((sample.number(), received), (next, vec![next as u8; bytes]));
                next += 1;
            }
            prop_assert_eq!(subscriber.lost(), lost);
        }
    }
}
