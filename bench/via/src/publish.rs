//! Measures publish and subscribe, one to one and one to four: `longma-pubsub` and iceoryx2. The publisher writes each
//! message in place, and each subscriber copies it out. All poll. The publisher has the first core, and all subscribers
//! share the second one, where they yield while they wait. Source: iceoryx2's documentation.

use crate::processes::{Cores, fresh_name, measure_many, time_ns};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory as Topic;
use longma_pubsub::{Options, Overflow, Publisher, Subscriber};
use std::time::Duration;

/// The queue length of a subscriber, for both libraries.
const DEPTH: usize = 16;
/// The size of an answer, bytes.
const ANSWER: usize = 8;

/// Which library is measured.
#[derive(Clone, Copy)]
pub enum Library {
    Longma,
    Iceoryx,
}

/// Publishes a message filled with this byte; waits for space.
type Publish = Box<dyn FnMut(u8)>;
/// Copies the next message into a buffer, if there is one.
type Receive = Box<dyn FnMut(&mut [u8]) -> bool>;

fn service(name: &str) -> Topic<ipc::Service, [u8], ()> {
    // Nodes exist as long as the process, which is a child of this benchmark.
    let node = Box::leak(Box::new(NodeBuilder::new().create::<ipc::Service>().expect("a node")));
    let name = ServiceName::new(name).expect("a name");
    let builder = node.service_builder(&name).publish_subscribe::<[u8]>();
    let builder = builder.enable_safe_overflow(false).subscriber_max_buffer_size(DEPTH);
    builder.max_nodes(16).open_or_create().expect("a service")
}

impl Library {
    /// A publisher of `bytes` bytes. Waits until this many subscribers have connected.
    fn publisher(self, name: &str, bytes: usize, subscribers: usize) -> Publish {
        match self {
            Self::Longma => {
                let (depth, max_elements) = (DEPTH as u32, bytes as u32);
                let options =
                    Options { depth, max_elements, overflow: Overflow::Block, ..Options::default() };
                let mut publisher = Publisher::<[u8]>::create_with(name, options).expect("a topic");
                while publisher.subscribers() < subscribers {
                    std::thread::yield_now();
                }
                Box::new(move |value| {
                    let mut loan = publisher.loan_slice_wait(bytes, None).expect("room");
                    loan.fill(value);
                    loan.publish().expect("a loan");
                })
            }
            Self::Iceoryx => {
                let service = service(name);
                let publisher = service.publisher_builder().initial_max_slice_len(bytes);
                let publisher = publisher.backpressure_strategy(BackpressureStrategy::RetryUntilDelivered);
                let publisher = publisher.create().expect("a publisher");
                while service.dynamic_config().number_of_subscribers() < subscribers {
                    std::thread::yield_now();
                }
                Box::new(move |value| {
                    let _ = &service;
                    let mut sample = publisher.loan_slice_uninit(bytes).expect("a sample");
                    // Does the same as `fill` for the other library.
                    sample.payload_mut().fill(std::mem::MaybeUninit::new(value));
                    // SAFETY: all bytes are initialized.
                    unsafe { sample.assume_init() }.send().expect("room");
                })
            }
        }
    }

    fn subscriber(self, name: &str) -> Receive {
        match self {
            Self::Longma => {
                let mut subscriber =
                    Subscriber::<[u8]>::connect_within(name, Duration::from_secs(20)).expect("a topic");
                Box::new(move |to| match subscriber.receive().expect("a publisher") {
                    Some(sample) => sample.copy_to(to).is_ok(),
                    None => false,
                })
            }
            Self::Iceoryx => {
                let service = service(name);
                let subscriber = service.subscriber_builder().create().expect("a subscriber");
                while service.dynamic_config().number_of_publishers() == 0 {
                    std::thread::yield_now();
                }
                Box::new(move |to| {
                    let _ = &service;
                    let sample = subscriber.receive().expect("a publisher");
                    sample.map(|sample| to.copy_from_slice(sample.payload())).is_some()
                })
            }
        }
    }
}

/// Polls until there is a message. A subscriber that shares its core yields.
fn receive(from: &mut Receive, to: &mut [u8], shares: bool) {
    while !from(to) {
        if shares { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// Runs `client` with a publisher of `bytes` bytes, and with the receivers of each subscriber's answers. A subscriber
/// answers every `interval` messages, `messages` in all.
fn measure(
    cores: Cores,
    library: Library,
    (bytes, subscribers): (usize, usize),
    (messages, interval): (u64, u64),
    client: impl FnOnce(&mut Publish, &mut [Receive]) -> f64,
) -> Option<f64> {
    let (name, answers) = (fresh_name("publish"), fresh_name("answer"));
    let answers: Vec<_> = (0..subscribers).map(|index| format!("{answers}-{index}")).collect();
    let shares = subscribers > 1;
    let serve = |index: usize| {
        let mut from = library.subscriber(&name);
        let mut answer = library.publisher(&answers[index], ANSWER, 1);
        let mut buffer = vec![0; bytes];
        for number in 1..=messages {
            receive(&mut from, &mut buffer, shares);
            if number % interval == 0 {
                answer(buffer[bytes - 1]);
            }
        }
        // The last answer is taken before the topic ends.
        std::thread::sleep(Duration::from_millis(200));
    };
    let ask = || {
        let mut publish = library.publisher(&name, bytes, subscribers);
        let mut from: Vec<_> = answers.iter().map(|name| library.subscriber(name)).collect();
        client(&mut publish, &mut from)
    };
    measure_many(cores, subscribers, serve, ask)
}

/// Time from a loan of `bytes` bytes until all subscribers have answered with 8 bytes, ns.
pub fn answered_ns(
    cores: Cores,
    library: Library,
    bytes: usize,
    subscribers: usize,
    rounds: u64,
) -> Option<f64> {
    measure(cores, library, (bytes, subscribers), (rounds, 1), |publish, answers| {
        let ns = time_ns(|| {
            for round in 0..rounds {
                publish(round as u8);
                let mut answer = [0; ANSWER];
                for from in answers.iter_mut() {
                    receive(from, &mut answer, false);
                    assert_eq!(answer[0], round as u8, "an answer to another message");
                }
            }
        });
        ns / rounds as f64
    })
}

/// Messages of `bytes` bytes per second that all subscribers receive, without loss, in millions.
pub fn rate_mps(
    cores: Cores,
    library: Library,
    bytes: usize,
    subscribers: usize,
    messages: u64,
) -> Option<f64> {
    measure(cores, library, (bytes, subscribers), (messages, messages), |publish, answers| {
        let ns = time_ns(|| {
            (0..messages).for_each(|number| publish(number as u8));
            answers.iter_mut().for_each(|from| receive(from, &mut [0; ANSWER], false));
        });
        messages as f64 / ns * 1000.0
    })
}
