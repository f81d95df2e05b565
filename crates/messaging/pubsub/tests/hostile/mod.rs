//! Publishers and clients that violate the protocol. Compiled into the crate, because they use its private parts.

use crate::error::Error;
use crate::folder::Folder;
use crate::layout::{INLINE, place};
use crate::memory::{Access, create};
use crate::message::MessageType;
use crate::options::{Options, Overflow};
use crate::publisher::{RawPublisher, WaitLimit};
use crate::shared::{ControlPage, TopicMemory};
use crate::socket;
use crate::subscriber::{RawSubscriber, SubscribeOptions};
use crate::wire::{Answer, HEADER_BYTES, HELLO_BYTES, Hello, Offer, Report};
use longma_random::SplitMix64;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A folder of the test's own.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("topics")
    }

    fn subscribe(&self) -> Result<RawSubscriber, Error> {
        RawSubscriber::connect(
            "topic",
            &SubscribeOptions { folder: Some(self.path()), ..SubscribeOptions::default() },
        )
    }

    fn publisher(&self, options: Options) -> RawPublisher {
        let message = MessageType::of::<[u64]>();
        RawPublisher::create("topic", message, Options { folder: Some(self.path()), ..options }).unwrap()
    }

    fn listen(&self) -> UnixListener {
        UnixListener::bind(Folder::open(Some(&self.path())).unwrap().socket("topic").unwrap()).unwrap()
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path().join("topic.socket")).unwrap()
    }
}

fn offer() -> Offer {
    Offer {
        message: MessageType::of::<[u64]>(),
        depth: 4,
        slots: 8,
        max_elements: 64,
        max_samples: 4,
        overflow: Overflow::Block,
        start: 0,
    }
}

/// A publisher that answers one subscriber with these bytes and files, and keeps the connection until the end.
fn answer(home: &Home, answer: Vec<u8>, files: Vec<OwnedFd>) -> std::thread::JoinHandle<UnixStream> {
    let listener = home.listen();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let socket = OwnedFd::from(stream.try_clone().unwrap());
        socket::send(&socket, &answer, &borrowed).unwrap();
        stream
    })
}

#[test]
fn wrong_offers_and_wrong_files_are_refused() {
    let sealed = |bytes| create(bytes, Access::Read).unwrap().0;
    let page = || create(4096, Access::Write).unwrap().0;
    let total = offer().geometry().unwrap().total;
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let frame = Answer::Offer(offer()).encode();
    let mut wrong_version = frame.clone();
    wrong_version[4] ^= 1;
    let mut too_long = frame.clone();
    too_long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let report = Report {
        message: MessageType::of::<u8>(),
        process: 1,
        depth: 1,
        history: 0,
        overflow: Overflow::Block,
        published: 0,
        bytes: 0,
        subscribers: Vec::new(),
    };
    let many = Offer { depth: u32::MAX, slots: u32::MAX, ..offer() };
    let cases: Vec<(Vec<u8>, Vec<OwnedFd>)> = vec![
        (frame.clone(), vec![]),
        (frame.clone(), vec![sealed(total)]),
        (frame.clone(), vec![sealed(total - 4096), page()]),
        (frame.clone(), vec![null(), page()]),
        (frame.clone(), vec![sealed(total), null()]),
        // The control page must be writable.
        (frame.clone(), vec![sealed(total), sealed(4096)]),
        (wrong_version, vec![sealed(total), page()]),
        (too_long, vec![sealed(total), page()]),
        (frame[..HEADER_BYTES + 3].to_vec(), vec![]),
        (Answer::Report(report).encode(), vec![]),
        (Answer::Offer(many).encode(), vec![sealed(total), page()]),
    ];
    for (index, (frame, files)) in cases.into_iter().enumerate() {
        let home = Home::new();
        let stays = index == 8;
        let publisher = answer(&home, frame, files);
        let begin = Instant::now();
        let error = home.subscribe().err().unwrap_or_else(|| panic!("case {index} is accepted"));
        assert!(stays == matches!(error, Error::TimedOut), "case {index}: {error}");
        assert!(begin.elapsed() < Duration::from_secs(10));
        drop(publisher.join().unwrap());
    }
}

/// A subscriber of a publisher that the test simulates.
fn hostile() -> (Home, TopicMemory, ControlPage, UnixStream, RawSubscriber) {
    let home = Home::new();
    let (file, memory) = TopicMemory::create(offer().geometry().unwrap()).unwrap();
    let (page, control) = ControlPage::create().unwrap();
    let publisher = answer(&home, Answer::Offer(offer()).encode(), vec![file, page]);
    let subscriber = home.subscribe().unwrap();
    (home, memory, control, publisher.join().unwrap(), subscriber)
}

/// Publishes the slot `place`, valid or not, as the first message.
fn first(memory: &TopicMemory, place: u64) {
    let entry = memory.entry(0);
    entry.place.store(place, Ordering::Relaxed);
    entry.stamp.store(1, Ordering::Release);
}

#[test]
fn messages_outside_of_the_memory_or_longer_than_possible_are_refused() {
    for wrong in [place(8, 10), place(INLINE - 1, 10), place(0, 65), place(0, u32::MAX), place(INLINE, 7)] {
        let (_home, memory, _control, _stream, mut subscriber) = hostile();
        first(&memory, wrong);
        assert!(matches!(subscriber.receive(), Err(Error::Protocol(_))), "{wrong:x}");
    }
    let (_home, memory, _control, _stream, mut subscriber) = hostile();
    first(&memory, place(7, 64));
    assert_eq!(subscriber.receive().unwrap().unwrap().bytes(), 512);
}

#[test]
fn a_sample_that_is_overwritten_although_it_is_held_is_reported() {
    let (_home, memory, _control, _stream, mut subscriber) = hostile();
    memory.slot_head(3).stamp.store(1, Ordering::Relaxed);
    first(&memory, place(3, 64));
    let sample = subscriber.receive().unwrap().unwrap();
    sample.copy(0, &mut [0; 512]).unwrap();
    memory.slot_head(3).stamp.store(9, Ordering::Release);
    assert!(matches!(sample.copy(0, &mut [0; 512]), Err(Error::Overwritten)));
}

#[test]
fn impossible_counts_end_in_an_error_and_no_call_takes_long() {
    let (_home, memory, _control, mut stream, mut subscriber) = hostile();
    memory.head().published.store(1 << 40, Ordering::Relaxed);
    let begin = Instant::now();
    for _ in 0..100 {
        let _ = subscriber.receive().unwrap();
    }
    // Wake-ups without a message do not extend the time limit of a wait.
    stream.write_all(&[1; 4000]).unwrap();
    let waited = subscriber.receive_wait(Some(Duration::from_millis(50)));
    assert!(matches!(waited, Err(Error::TimedOut)));
    memory.head().published.store(u64::MAX, Ordering::Relaxed);
    memory.entry(0).stamp.store(u64::MAX, Ordering::Relaxed);
    memory.entry(1).stamp.store(u64::MAX, Ordering::Relaxed);
    memory.entry(2).stamp.store(u64::MAX, Ordering::Relaxed);
    memory.entry(3).stamp.store(u64::MAX, Ordering::Relaxed);
    assert!(matches!(subscriber.receive(), Err(Error::Protocol(_))));
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_publisher_that_writes_random_words_does_no_harm() {
    let seconds =
        std::env::var("LONGMA_PUBSUB_GARBAGE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let end = Instant::now() + seconds.map_or(Duration::from_millis(500), Duration::from_secs);
    let mut random = SplitMix64::new(5);
    while Instant::now() < end {
        let (_home, memory, _control, _stream, mut subscriber) = hostile();
        let is_over = AtomicBool::new(false);
        let seed = random.below(u64::MAX);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = SplitMix64::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let entry = memory.entry(random.below(4) as u32);
                    let near = random.below(40);
                    entry.stamp.store(near, Ordering::Relaxed);
                    entry
                        .place
                        .store(place(random.below(10) as u32, random.below(70) as u32), Ordering::Relaxed);
                    entry.stamp.store(near, Ordering::Release);
                    memory.head().published.store(near, Ordering::Relaxed);
                    memory.slot_head(random.below(8) as u32).stamp.store(near, Ordering::Relaxed);
                    memory.head().wanted.store(random.below(50), Ordering::Relaxed);
                }
            });
            let mut kept = Vec::new();
            for _ in 0..2000 {
                match subscriber.receive() {
                    Ok(Some(sample)) => {
                        assert!(sample.bytes() <= 512 && sample.number() < 50);
                        let _ = sample.copy(0, &mut vec![0; sample.bytes()]);
                        kept.push(sample);
                    }
                    Ok(None) => {}
                    Err(Error::TooManySamples(_)) => kept.clear(),
                    Err(Error::Protocol(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_publisher_stops_for_no_client() {
    let home = Home::new();
    let mut publisher = home.publisher(Options { max_elements: 64, depth: 2, ..Options::default() });
    // Clients that are silent, send half a request or garbage, or disconnect.
    let mut silent: Vec<_> = (0..20).map(|_| home.connect()).collect();
    silent[0].write_all(&Hello::Query.encode()[..5]).unwrap();
    silent[1].write_all(&[0xff; 100]).unwrap();
    // A subscriber that claims to hold all slots, to have consumed messages that were never published, and to sleep.
    let mut rogue = home.subscribe().unwrap();
    let (control, stream) = rogue.parts();
    for (index, hold) in control.words().holds.iter().enumerate() {
        hold.store(index as u64 % 9, Ordering::Relaxed);
    }
    control.words().consumed.store(u64::MAX, Ordering::Relaxed);
    for number in 0..1000 {
        control.words().asleep.store(number * 2 + 1, Ordering::Relaxed);
        publisher.loan(64, WaitLimit::None).unwrap();
        publisher.publish_loan().unwrap();
    }
    // The subscriber sends unrequested bytes and is removed.
    socket::nudge(stream.as_fd());
    let end = Instant::now() + Duration::from_secs(10);
    while publisher.subscribers() > 0 {
        assert!(Instant::now() < end, "it is still there");
        std::thread::yield_now();
    }
    assert!(matches!(rogue.receive_wait(Some(Duration::from_secs(10))), Ok(_) | Err(Error::Died)));
    drop(silent);
    home.subscribe().unwrap();
}
