//! Reliable connections over a faulty wire: every message arrives once, complete and in order. Time and wire are
//! simulated, so failures can be reproduced by their seed. `LONGMA_WIRE_MESSAGES=10000000 cargo test --release -p
//! longma-reliable --test reliable million` runs the long form.

use longma_random::SplitMix64;
use longma_reliable::wire::{Faults, FaultyWire};
use longma_reliable::{Config, Connection, Event, Kind, Loss, Opening, Packet, answer_stray};
use proptest::prelude::*;
use std::time::Duration;

const LATENCY: Duration = Duration::from_micros(20);

/// Two ends, a wire in each direction, and the time.
struct Link {
    now: Duration,
    ends: [Option<Connection>; 2],
    /// The wires to end 0 and to end 1.
    wires: [FaultyWire; 2],
    config: Config,
    events: [Vec<Event>; 2],
    damaged: u64,
    bytes: Vec<u8>,
}

impl Link {
    fn new(config: Config, faults: Faults, seed: u64) -> Self {
        let wire = |salt| FaultyWire::new(faults, LATENCY, seed ^ salt);
        let client = Connection::open(config, 0x1111, b"request", Duration::ZERO);
        Self {
            now: Duration::ZERO,
            ends: [Some(client), None],
            wires: [wire(0xaaaa), wire(0x5555)],
            config,
            events: Default::default(),
            damaged: 0,
            bytes: Vec::new(),
        }
    }

    /// Processes everything due at the next event time. Returns `false` if there are no more events.
    fn step(&mut self) -> bool {
        let deadlines = self.ends.iter().flatten().filter_map(Connection::deadline);
        let arrivals = self.wires.iter().filter_map(FaultyWire::next_arrival);
        let Some(next) = deadlines.chain(arrivals).min() else { return false };
        self.now = self.now.max(next);
        for end in 0..2 {
            while let Some(datagram) = self.wires[end].receive(self.now) {
                self.arrive(end, &datagram);
                self.wires[end].recycle(datagram);
            }
            if let Some(connection) = &mut self.ends[end] {
                self.bytes.clear();
                while connection.transmit(self.now, &mut self.bytes) {
                    assert!(self.bytes.len() <= usize::from(self.config.max_datagram));
                    self.wires[1 - end].send(self.now, &self.bytes);
                    self.bytes.clear();
                }
                self.events[end].extend(std::iter::from_fn(|| connection.take_event()));
            }
        }
        true
    }

    fn arrive(&mut self, end: usize, datagram: &[u8]) {
        let Ok(packet) = Packet::parse(datagram) else {
            self.damaged += 1;
            return;
        };
        if let Some(connection) = &mut self.ends[end] {
            return connection.receive(self.now, &packet);
        }
        if let Some(opening) = Opening::read(&packet) {
            assert_eq!(opening.request, b"request");
            self.ends[end] = Some(Connection::accept(self.config, 0x2222, &opening, b"answer", self.now));
        }
    }

    fn end(&mut self, end: usize) -> &mut Connection {
        self.ends[end].as_mut().expect("this end of the connection is open")
    }

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + Duration::from_secs(10_000);
        while !done(self) {
            assert!(
                self.step() && self.now < limit,
                "timed out waiting for {what}; events {:?}",
                self.events
            );
        }
    }

    fn open(config: Config, faults: Faults, seed: u64) -> Self {
        let mut link = Self::new(config, faults, seed);
        link.run_until("the opening", |link| !link.events[0].is_empty());
        assert_eq!(link.events[0].remove(0), Event::Opened(b"answer".to_vec()));
        link
    }
}

/// A long time-out, because on this wire a peer can be silent for seconds by chance.
fn long_time_outs() -> Config {
    let long = Duration::from_secs(120);
    Config { give_up_after: long, blocked_after: long, ..Config::default() }
}

/// The bytes of message `number`, which the receiver can recompute.
fn message(number: u64, longest: u64, into: &mut Vec<u8>) {
    let mut random = SplitMix64::new(number);
    let length = match random.below(16) {
        0 => random.below(longest + 1),
        _ => random.below(longest.min(64) + 1),
    };
    into.clear();
    into.extend(number.to_le_bytes());
    while (into.len() as u64) < length {
        into.extend(random.next_u64().to_le_bytes());
    }
}

/// Sends `count` messages in each direction over a faulty wire and checks all of them. Returns the link, for its
/// statistics.
fn exchange(config: Config, faults: Faults, seed: u64, count: u64, longest: u64) -> Link {
    let mut link = Link::open(config, faults, seed);
    let (mut sent, mut received, mut delivered) = ([0u64; 2], [0u64; 2], [0u64; 2]);
    let mut bytes = Vec::new();
    link.run_until("the last message", |link| {
        for end in 0..2 {
            for event in std::mem::take(&mut link.events[end]) {
                match event {
                    Event::Message(got) => {
                        message(received[end], longest, &mut bytes);
                        assert!(got == bytes, "message {} is not what was sent (seed {seed})", received[end]);
                        received[end] += 1;
                    }
                    Event::Delivered(number) => {
                        assert!(number > delivered[end] && number <= sent[end]);
                        delivered[end] = number;
                    }
                    other => panic!("{other:?} (seed {seed})"),
                }
            }
            while sent[end] < count && link.ends[end].is_some() {
                message(sent[end], longest, &mut bytes);
                if link.end(end).send(&[&bytes[..3], &bytes[3..]]).is_err() {
                    break;
                }
                sent[end] += 1;
            }
        }
        received == [count; 2] && delivered == [count; 2]
    });
    link
}

const BAD: Faults =
    Faults { drop: 20_000, duplicate: 20_000, reorder: 50_000, corrupt: 10_000, delay: 1_000 };

#[test]
fn a_hundred_thousand_or_ten_million_messages_arrive_once_complete_and_in_order() {
    let count = match std::env::var("LONGMA_WIRE_MESSAGES") {
        Ok(text) => text.parse().expect("LONGMA_WIRE_MESSAGES is a number"),
        Err(_) => 100_000,
    };
    let link = exchange(long_time_outs(), BAD, 1, count / 2, 4096);
    for end in &link.ends {
        let statistics = end.as_ref().unwrap().statistics();
        assert!(statistics.sent_again > 0 && statistics.duplicates > 0 && statistics.early > 0);
        println!("{count} messages in {:?} of simulated time: {statistics:?}", link.now);
    }
    assert!(link.damaged > 0);
    println!("{} datagrams were damaged and noticed", link.damaged);
}

#[test]
fn a_fault_free_network_needs_no_retransmission() {
    let link = exchange(Config::default(), Faults::default(), 3, 5_000, 20_000);
    for end in link.ends.iter().flatten() {
        assert_eq!(end.statistics().sent_again + end.statistics().duplicates + end.statistics().refused, 0);
    }
}

#[test]
fn megabyte_messages_arrive_with_ten_percent_packet_loss() {
    let faults = Faults { drop: 100_000, ..Faults::default() };
    exchange(long_time_outs(), faults, 4, 8, 1 << 20);
}

#[test]
fn a_dead_peer_is_detected_and_idle_connections_last() {
    let config = Config::default();
    let mut link = Link::open(config, Faults::default(), 5);
    link.run_until("an hour", |link| link.now > Duration::from_secs(3600));
    assert!(link.events.iter().all(Vec::is_empty), "{:?}", link.events);
    let then = link.now;
    let everything = Faults { drop: 1_000_000, ..Faults::default() };
    link.wires.iter_mut().for_each(|w| w.set_faults(everything));
    link.run_until("the loss", |link| link.events.iter().all(|e| !e.is_empty()));
    for events in &link.events {
        assert_eq!(events, &[Event::Lost(Loss::Silent(config.give_up_after))]);
    }
    assert!(link.now - then <= config.give_up_after + config.probe_after);
}

#[test]
fn a_machine_suspended_for_minutes_does_not_lose_its_peers() {
    let mut link = Link::open(Config::default(), Faults::default(), 5);
    link.run_until("a minute", |link| link.now > Duration::from_secs(60));
    // Neither end was serviced during that time, as when a virtual machine with both is stopped.
    link.now += Duration::from_secs(300);
    let then = link.now;
    link.end(0).send(&[b"still there?"]).unwrap();
    link.run_until("ten seconds more", |link| link.now > then + Duration::from_secs(10));
    assert_eq!(link.events[1], [Event::Message(b"still there?".to_vec())]);
    assert_eq!(link.events[0], [Event::Delivered(1)]);
}

#[test]
fn a_path_that_drops_large_packets_is_reported_as_blocked() {
    let config = Config { blocked_after: Duration::from_secs(4), ..Config::default() };
    let mut link = Link::open(config, Faults::default(), 6);
    link.end(0).send(&[&[7; 1000]]).unwrap();
    let sent = link.now;
    for _ in 0..1_000_000 {
        let small_only = |wire: &mut FaultyWire, now| {
            // Packets above 500 bytes never arrive.
            let mut kept = Vec::new();
            while let Some(datagram) = wire.receive(now) {
                kept.push(datagram);
            }
            kept.retain(|d| d.len() < 500);
            kept
        };
        let now = link.now;
        for datagram in small_only(&mut link.wires[1], now) {
            link.arrive(1, &datagram);
        }
        if !link.step() || !link.events[0].is_empty() {
            break;
        }
        let arrival = link.wires[1].next_arrival();
        link.now = arrival.map_or(link.now, |at| link.now.max(at));
    }
    assert!(matches!(link.events[0][..], [Event::Lost(Loss::Blocked(_))]), "{:?}", link.events);
    let took = link.now - sent;
    assert!(took >= config.blocked_after && took < config.blocked_after + Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_close_reaches_the_peer_even_over_a_bad_wire() {
    for seed in 0..50 {
        let faults = Faults { drop: 200_000, ..Faults::default() };
        let mut link = Link::open(long_time_outs(), faults, seed);
        let now = link.now;
        link.end(0).close(now);
        link.run_until("the end of the closing side", |link| link.end(0).is_over());
        assert!(link.events[0].is_empty());
        // With five attempts over a wire that loses a fifth, the peer has to detect the end itself in one of 3,000
        // cases.
        if link.events[1].is_empty() {
            continue;
        }
        assert_eq!(link.events[1], [Event::Closed]);
        link.run_until("the end of the other side", |link| link.end(1).is_over());
    }
}

#[test]
fn a_refused_request_is_answered_with_the_reason() {
    let mut client = Connection::open(Config::default(), 5, b"hello", Duration::ZERO);
    let mut bytes = Vec::new();
    assert!(client.transmit(Duration::ZERO, &mut bytes));
    let opening = Opening::read(&Packet::parse(&bytes).unwrap()).unwrap();
    assert_eq!((opening.from, &opening.request[..]), (5, &b"hello"[..]));
    let mut answer = Vec::new();
    opening.reject(9, b"no room", &mut answer);
    client.receive(LATENCY, &Packet::parse(&answer).unwrap());
    assert_eq!(client.take_event(), Some(Event::Rejected(b"no room".to_vec())));
    assert!(client.is_over());
}

#[test]
fn packets_of_an_earlier_connection_are_dropped_and_answered_with_a_reset() {
    let mut link = Link::open(Config::default(), Faults::default(), 8);
    link.end(0).send(&[b"new"]).unwrap();
    let stale = Packet {
        first: true,
        last: true,
        payload: b"old",
        ..Packet::new(longma_reliable::Kind::Data, 0x2222, 0x0bad)
    };
    let now = link.now;
    link.run_until("the accepted end", |link| link.ends[1].is_some());
    link.end(1).receive(now, &stale);
    assert_eq!(link.end(1).statistics().refused, 1);
    link.run_until("the message", |link| !link.events[1].is_empty());
    assert_eq!(link.events[1], [Event::Message(b"new".to_vec())]);

    // A restarted peer does not know the connection and answers with a reset.
    let mut answer = Vec::new();
    let packet = Packet { payload: b"x", ..Packet::new(longma_reliable::Kind::Data, 0x2222, 0x1111) };
    assert!(answer_stray(&packet, &mut answer));
    let now = link.now;
    link.end(0).receive(now, &Packet::parse(&answer).unwrap());
    let lost = link.end(0).take_event();
    assert_eq!(lost.or(link.events[0].pop()), Some(Event::Lost(Loss::Reset)));
}

#[test]
fn a_receiver_whose_program_takes_no_messages_pauses_the_sender() {
    let config = Config { window: 8, ..Config::default() };
    let mut sender = Connection::open(config, 1, b"", Duration::ZERO);
    let mut bytes = Vec::new();
    sender.transmit(Duration::ZERO, &mut bytes);
    let opening = Opening::read(&Packet::parse(&bytes).unwrap()).unwrap();
    let mut receiver = Connection::accept(config, 2, &opening, b"", Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut shuttle = |sender: &mut Connection, receiver: &mut Connection| {
        for _ in 0..2_000 {
            now += Duration::from_millis(1);
            for (from, to) in [(true, false), (false, true)].map(|(a, _)| if a { (0, 1) } else { (1, 0) }) {
                let ends = [&mut *sender, &mut *receiver];
                bytes.clear();
                while ends[from].transmit(now, &mut bytes) {
                    ends[to].receive(now, &Packet::parse(&bytes).unwrap());
                    bytes.clear();
                }
            }
        }
    };
    shuttle(&mut sender, &mut receiver);
    for number in 0..100u8 {
        sender.send(&[&[number]]).unwrap();
    }
    shuttle(&mut sender, &mut receiver);
    let mut got = Vec::new();
    while let Some(event) = receiver.take_event() {
        got.push(event);
    }
    assert_eq!(got.len(), 8, "as many as the window holds: {got:?}");
    shuttle(&mut sender, &mut receiver);
    while let Some(event) = receiver.take_event() {
        got.push(event);
        shuttle(&mut sender, &mut receiver);
    }
    let expected: Vec<_> = (0..100u8).map(|n| Event::Message(vec![n])).collect();
    assert_eq!(got, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn messages_arrive_over_any_faulty_network(
        drop in 0u32..300_000, duplicate in 0u32..300_000, reorder in 0u32..500_000,
        corrupt in 0u32..200_000, delay in 0u32..20_000, seed: u64,
        window in 1u16..=256, max_datagram in 600u16..9000, longest in 0u64..40_000,
    ) {
        let faults = Faults { drop, duplicate, reorder, corrupt, delay };
        let config = Config { window, max_datagram, give_up_after: Duration::from_secs(1000), ..Config::default() };
        exchange(config, faults, seed, 60, longest);
    }

    #[test]
    fn a_hostile_peer_that_knows_the_tags_breaks_only_its_own_connection(
        packets in proptest::collection::vec((0usize..9, 0u64..300, 0u64..300, any::<u16>(), any::<[u64; 4]>(), any::<bool>(), any::<bool>(), 0usize..600), 0..200),
        far: u64,
    ) {
        use longma_reliable::Kind::{self, *};
        let kinds: [Kind; 9] = [Open, Accept, Reject, Data, Ack, Probe, Close, Closed, Reset];
        let config = Config { max_message: 10_000, ..Config::default() };
        let mut link = Link::open(config, Faults::default(), 9);
        let (mut now, mut bytes) = (link.now, Vec::new());
        let payload = vec![0x5a; 600];
        link.end(0).send(&[b"mine"]).unwrap();
        for (kind, sequence, acknowledged, window, sack, first, last, length) in packets {
            let hostile = Packet {
                sequence: if sequence == 299 { far } else { sequence },
                acknowledged: if acknowledged == 299 { far } else { acknowledged / 100 },
                window, sack, first, last, payload: &payload[..length],
                ..Packet::new(kinds[kind], 0x1111, 0x2222)
            };
            now += Duration::from_micros(100);
            let victim = link.end(0);
            victim.receive(now, &hostile);
            while victim.transmit(now, &mut bytes) { bytes.clear(); }
            while let Some(event) = victim.take_event() {
                if let Event::Message(message) = event { prop_assert!(message.len() <= 10_000); }
            }
            let _ = victim.deadline();
        }
    }
}

#[test]
fn messages_that_came_before_the_end_are_taken_before_it() {
    for (kind, end) in [(Kind::Close, Event::Closed), (Kind::Reset, Event::Lost(Loss::Reset))] {
        let last = vec![Event::Message(b"last words".to_vec()), end];
        assert_eq!(events_polled_late(kind), last, "{kind:?}");
    }
}

/// A message and then an end of the given kind arrive at an end that polls rarely.
fn events_polled_late(kind: Kind) -> Vec<Event> {
    let mut link = Link::open(Config::default(), Faults::default(), 9);
    link.run_until("quiet", |link| link.end(0).is_drained() && link.end(1).is_drained());
    link.end(0).send(&[b"last words"]).unwrap();
    let now = link.now;
    let mut under_way = Vec::new();
    let mut transmit = |connection: &mut Connection| {
        let mut bytes = Vec::new();
        while connection.transmit(now, &mut bytes) {
            under_way.push(std::mem::take(&mut bytes));
        }
    };
    transmit(link.end(0));
    let mut end = Vec::new();
    Packet::new(kind, 0x2222, 0x1111).write(&mut end);
    for datagram in under_way.iter().chain([&end]) {
        link.arrive(1, datagram);
    }
    std::iter::from_fn(|| link.end(1).take_event()).collect()
}

#[test]
fn a_packet_larger_than_agreed_breaks_its_connection() {
    let config = Config { max_datagram: 600, ..Config::default() };
    let mut link = Link::open(config, Faults::default(), 10);
    link.run_until("the accepted end", |link| link.ends[1].is_some());
    let payload = [1; 600];
    let large =
        Packet { first: true, last: true, payload: &payload, ..Packet::new(Kind::Data, 0x2222, 0x1111) };
    let now = link.now;
    link.end(1).receive(now, &large);
    let lost = link.end(1).take_event();
    assert!(matches!(lost, Some(Event::Lost(Loss::Violation(_)))), "{lost:?}");
}

/// The result of `act` in a forked child whose address space may grow by only `more` bytes.
fn with_little_memory(more: u64, act: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs only `act` and exits without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let max_bytes = pages * 4096 + more;
        let limit = libc::rlimit { rlim_cur: max_bytes, rlim_max: max_bytes };
        // SAFETY: reads the given structure; the second call ends the child.
        unsafe {
            libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
            libc::_exit(i32::from(!act()))
        }
    }
    let mut status = 0;
    // SAFETY: writes to the given integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

#[test]
fn a_message_that_cannot_be_allocated_ends_the_connection_not_the_process() {
    let (config, now) = (Config::default(), Duration::ZERO);
    let mut open = Vec::new();
    Connection::open(config, 7, b"", now).transmit(now, &mut open);
    let opening = Opening::read(&Packet::parse(&open).unwrap()).unwrap();
    let survives = with_little_memory(8 << 20, || {
        let mut server = Connection::accept(config, 8, &opening, b"", now);
        let payload = [5; 1400];
        // A message of nearly 64 MiB, within the agreed maximum, whose last part never arrives.
        for sequence in 0..47_000 {
            let first = sequence == 0;
            let part =
                Packet { sequence, first, last: false, payload: &payload, ..Packet::new(Kind::Data, 8, 7) };
            server.receive(now, &part);
        }
        std::iter::from_fn(|| server.take_event()).any(|event| matches!(event, Event::Lost(_)))
    });
    assert!(survives, "the process ended");
}
