//! VIs over UDP: two NICs on this host, each with its own socket. The conformance suite covers the specification.

use longma_random::SplitMix64;
use longma_reliable::{Kind, Packet};
use longma_via::provider::testing::set_max_service_sleep;
use longma_via::provider::udp::{TimeLimits, Udp};
use longma_via::{
    Address, Descriptor, Error, MemoryAttributes, MemoryRegion, Nic, Reliability, Vi, ViAttributes, ViState,
};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// For sleeps that must not end by themselves.
const LONGER_THAN_ANY_LIMIT: Duration = Duration::from_secs(3600);

fn nic() -> Nic {
    Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()))
}

struct End {
    vi: Vi,
    memory: MemoryRegion,
    nic: Nic,
}

fn end(reliability: Reliability) -> End {
    let nic = nic();
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(1 << 20, MemoryAttributes::remote(tag)).unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag).with_reliability(reliability), None, None).unwrap();
    End { vi, memory, nic }
}

fn connect(client: &End, server: &End, remote: &Address) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.nic.connect_wait(&Address::local("test"), LIMIT).unwrap().accept(&server.vi).unwrap()
        });
        while let Err(error) = client.vi.connect(&Address::local("me"), remote, LIMIT) {
            assert!(matches!(error, Error::NoMatch(_)), "{error}");
        }
    });
}

fn pair(reliability: Reliability) -> (End, End) {
    let (client, server) = (end(reliability), end(reliability));
    connect(&client, &server, &Address::new(&server.nic.attributes().local_address, "test"));
    (client, server)
}

#[test]
fn messages_of_all_sizes_arrive_whole_at_every_level() {
    for reliability in Reliability::ALL {
        let (client, server) = pair(reliability);
        for bytes in [0usize, 1, 63, 1400, 16_384, 100_000, 1 << 20] {
            let pattern: Vec<u8> = (0..bytes).map(|i| (i * 31 + bytes) as u8).collect();
            client.memory.write(0, &pattern);
            server.vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 1 << 20)])).unwrap();
            client
                .vi
                .post_send(&Descriptor::send(&[client.memory.segment(0, bytes)]).with_immediate(7))
                .unwrap();
            let got = server.vi.receive_wait(LIMIT).unwrap();
            assert!(got.is_success() && got.length as usize == bytes && got.immediate == Some(7), "{got:?}");
            assert!(client.vi.send_wait(LIMIT).unwrap().is_success());
            let mut read = vec![0; bytes];
            server.memory.read(0, &mut read);
            assert!(read == pattern, "{bytes} bytes, {reliability:?}");
        }
    }
}

#[test]
fn remote_memory_is_written_and_read() {
    let (client, server) = pair(Reliability::ReliableDelivery);
    client.memory.write(0, b"over there");
    client
        .vi
        .post_send(&Descriptor::rdma_write(&[client.memory.segment(0, 10)], server.memory.remote(100)))
        .unwrap();
    client
        .vi
        .post_send(&Descriptor::rdma_read(&[client.memory.segment(500, 10)], server.memory.remote(100)))
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    let mut completed = 0;
    while completed < 2 {
        assert!(Instant::now() < limit, "{completed} completed");
        completed += u32::from(client.vi.send_done().is_some_and(|c| c.is_success()));
        // No thread waits at the server; the NIC's thread does the work.
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut read = [0; 10];
    client.memory.read(500, &mut read);
    assert_eq!(&read, b"over there");
}

#[test]
fn more_reads_than_the_path_has_space_for_are_answered_while_both_programs_sleep() {
    let (client, server) = pair(Reliability::ReliableDelivery);
    let pattern: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    server.memory.write(0, &pattern);
    for _ in 0..40 {
        let into = [client.memory.segment(0, 1 << 20)];
        client.vi.post_send(&Descriptor::rdma_read(&into, server.memory.remote(0))).unwrap();
    }
    for turn in 0..40 {
        let completion = client.vi.send_wait(LIMIT).unwrap_or_else(|error| panic!("read {turn}: {error}"));
        assert!(completion.is_success() && completion.length == 1 << 20, "{completion:?}");
    }
    let mut read = vec![0; 1 << 20];
    client.memory.read(0, &mut read);
    assert!(read == pattern);
}

#[test]
fn a_disconnect_is_reported_after_the_messages_sent_before_it() {
    let (client, server) = pair(Reliability::ReliableDelivery);
    for _ in 0..50 {
        server.vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 100)])).unwrap();
    }
    for _ in 0..50 {
        client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 100)])).unwrap();
    }
    client.vi.disconnect().unwrap();
    for _ in 0..50 {
        assert!(server.vi.receive_wait(LIMIT).unwrap().is_success());
    }
    let limit = Instant::now() + Duration::from_secs(5);
    while server.vi.state() != ViState::Error {
        assert!(Instant::now() < limit, "never told");
        let _ = server.vi.receive_done();
    }
}

#[test]
fn sent_messages_arrive_even_if_the_sender_closes_the_nic_immediately() {
    let (client, server) = pair(Reliability::ReliableDelivery);
    for _ in 0..200 {
        server.vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 1000)])).unwrap();
    }
    for _ in 0..200 {
        client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 1000)])).unwrap();
    }
    for _ in 0..200 {
        assert!(client.vi.send_wait(LIMIT).unwrap().is_success());
    }
    client.vi.disconnect().unwrap();
    drop(client);
    for turn in 0..200 {
        let got = server.vi.receive_wait(LIMIT).unwrap();
        assert!(got.is_success(), "message {turn}: {got:?}");
    }
}

/// Forwards datagrams between a client and a server, and drops some on request.
struct Between {
    place: String,
    /// The number of the client's data datagrams to drop.
    drops: Arc<AtomicU32>,
    /// Whether to repeat the client's last request.
    repeats: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Between {
    fn new(server: &Nic) -> Between {
        let [front, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(String::from_utf8_lossy(&server.attributes().local_address).as_ref()).unwrap();
        let between = Between {
            place: front.local_addr().unwrap().to_string(),
            drops: Arc::default(),
            repeats: Arc::default(),
            over: Arc::default(),
        };
        for socket in [&front, &back] {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        }
        let client = Arc::new(Mutex::new(None));
        let (drops, repeats, over) = (between.drops.clone(), between.repeats.clone(), between.over.clone());
        let (front_too, back_too) = (front.try_clone().unwrap(), back.try_clone().unwrap());
        let (known, is_over) = (client.clone(), over.clone());
        std::thread::spawn(move || {
            let mut datagram = vec![0; 1 << 16];
            let mut asked = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                if repeats.load(Ordering::Relaxed) {
                    back.send(&asked).unwrap();
                    repeats.store(false, Ordering::Release);
                }
                let Ok((bytes, from)) = front.recv_from(&mut datagram) else { continue };
                *client.lock().unwrap() = Some(from);
                let is_of = |kind| Packet::parse(&datagram[..bytes]).is_ok_and(|packet| packet.kind == kind);
                if is_of(Kind::Open) {
                    asked = datagram[..bytes].to_vec();
                }
                if !is_of(Kind::Data)
                    || drops.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err()
                {
                    let _ = back.send(&datagram[..bytes]);
                }
            }
        });
        std::thread::spawn(move || {
            let mut datagram = vec![0; 1 << 16];
            while !over.load(Ordering::Relaxed) {
                let Ok(bytes) = back_too.recv(&mut datagram) else { continue };
                let to = known.lock().unwrap().expect("a client has sent a datagram");
                let _ = front_too.send_to(&datagram[..bytes], to);
            }
        });
        between
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn lost_packets_are_retransmitted_without_calls_by_the_sender() {
    set_max_service_sleep(LONGER_THAN_ANY_LIMIT);
    let (client, server) = (end(Reliability::ReliableDelivery), end(Reliability::ReliableDelivery));
    let between = Between::new(&server.nic);
    connect(&client, &server, &Address::new(&between.place, "test"));
    for turn in 0..20 {
        server.vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 100)])).unwrap();
        // In the first turns both sides learn the round-trip time. Then the client's service thread is asleep when the
        // packet is sent, and only its timer can send it again.
        if turn >= 10 {
            std::thread::sleep(Duration::from_millis(30));
            between.drops.store(1, Ordering::Relaxed);
        }
        client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 10)])).unwrap();
        assert!(server.vi.receive_wait(LIMIT).unwrap().is_success());
        assert_eq!(between.drops.load(Ordering::Relaxed), 0, "the packet was not dropped");
        assert!(client.vi.send_wait(LIMIT).unwrap().is_success());
    }
}

#[test]
fn a_request_duplicated_by_the_network_after_its_answer_is_ignored() {
    for accepts in [true, false] {
        let (client, server) = (end(Reliability::ReliableDelivery), end(Reliability::ReliableDelivery));
        let between = Between::new(&server.nic);
        let remote = Address::new(&between.place, "test");
        let wait = |limit| server.nic.connect_wait(&Address::local("test"), limit);
        let _ = wait(Some(Duration::ZERO));
        if accepts {
            connect(&client, &server, &remote);
            client.vi.disconnect().unwrap();
            assert!(server.vi.receive_wait(Some(Duration::from_millis(300))).is_err());
            server.vi.disconnect().unwrap();
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| wait(LIMIT).unwrap().reject());
                assert!(matches!(
                    client.vi.connect(&Address::local("me"), &remote, LIMIT),
                    Err(Error::Rejected)
                ));
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        between.repeats.store(true, Ordering::Relaxed);
        let limit = Instant::now() + LIMIT.unwrap();
        while between.repeats.load(Ordering::Acquire) {
            assert!(Instant::now() < limit, "the datagram was not repeated");
            std::thread::sleep(Duration::from_millis(1));
        }
        let again = wait(Some(Duration::from_millis(400)));
        assert!(matches!(again, Err(Error::Timeout)), "accepted: {accepts}");
        // A new request is accepted.
        connect(&client, &server, &remote);
    }
}

/// Disconnects and closes a client whose data does not arrive. Returns how long that took.
fn close_undelivered(client: End, between: &Between) -> Duration {
    between.drops.store(u32::MAX, Ordering::Relaxed);
    client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 10)])).unwrap();
    // The time limit for delivery begins when the VI is disconnected.
    let begin = Instant::now();
    client.vi.disconnect().unwrap();
    drop(client);
    begin.elapsed()
}

#[test]
fn closing_a_nic_does_not_wait_long_for_a_peer_that_receives_nothing() {
    let (client, server) = (end(Reliability::ReliableDelivery), end(Reliability::ReliableDelivery));
    let between = Between::new(&server.nic);
    connect(&client, &server, &Address::new(&between.place, "test"));
    let took = close_undelivered(client, &between);
    // The call waits a while for an acknowledgement. The upper bound is generous, so that a busy host does not exceed
    // it.
    assert!(took > Duration::from_secs(1) && took < LIMIT.unwrap(), "{took:?}");
}

/// Keeps the thread that calls it, as a busy host keeps a thread from running.
#[derive(Default)]
struct KeepingWaker {
    is_called: AtomicBool,
    lets_go: AtomicBool,
}

impl Wake for KeepingWaker {
    fn wake(self: Arc<Self>) {
        self.is_called.store(true, Ordering::Release);
        while !self.lets_go.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_nic_is_closed_by_the_program_even_if_a_thread_of_the_nic_is_using_it() {
    let (client, server) = (end(Reliability::ReliableDelivery), end(Reliability::ReliableDelivery));
    let between = Between::new(&server.nic);
    connect(&client, &server, &Address::new(&between.place, "test"));
    client.vi.post_receive(&Descriptor::receive(&[client.memory.segment(0, 10)])).unwrap();
    let waker = Arc::new(KeepingWaker::default());
    let mut completion = Box::pin(client.vi.receive_completion());
    assert!(completion.as_mut().poll(&mut Context::from_waker(&waker.clone().into())).is_pending());
    server.vi.post_send(&Descriptor::send(&[server.memory.segment(0, 10)])).unwrap();
    let limit = Instant::now() + LIMIT.unwrap();
    while !waker.is_called.load(Ordering::Acquire) {
        assert!(Instant::now() < limit, "not woken");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(completion);
    let took = close_undelivered(client, &between);
    waker.lets_go.store(true, Ordering::Release);
    assert!(took > Duration::from_secs(1), "the data was not delivered, but the NIC closed after {took:?}");
}

#[test]
fn a_client_is_accepted_while_other_threads_poll_and_sleep() {
    set_max_service_sleep(LONGER_THAN_ANY_LIMIT);
    let (_client, server) = pair(Reliability::ReliableDelivery);
    let tag = server.nic.create_protection_tag().unwrap();
    let attributes = ViAttributes::new(tag).with_reliability(Reliability::ReliableDelivery);
    let remote = Address::new(&server.nic.attributes().local_address, "others");
    let _ = server.nic.connect_wait(&Address::local("others"), Some(Duration::ZERO));
    // Connects a client and returns both ends. Fails if the waiting thread is not woken within the limit.
    let accept_one = || {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let client = end(Reliability::ReliableDelivery);
                client.vi.connect(&Address::local("me"), &remote, LIMIT).map(|_| client)
            });
            let request = server.nic.connect_wait(&Address::local("others"), LIMIT).unwrap();
            let accepting = server.nic.create_vi(attributes, None, None).unwrap();
            request.accept(&accepting).unwrap();
            (client.join().unwrap().unwrap(), accepting)
        })
    };
    let (_first, polled) = accept_one();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One thread polls continuously and takes all arriving packets. Another one sleeps, so that the NIC's thread
        // watches the socket.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = polled.receive_done();
            }
        });
        scope.spawn(|| server.vi.receive_wait(Some(Duration::from_secs(3))));
        let accepted: Vec<_> = (0..30).map(|_| accept_one()).collect();
        over.store(true, Ordering::Relaxed);
        drop(accepted);
    });
}

#[test]
fn an_address_is_free_again_as_soon_as_its_nic_is_closed() {
    let first = nic();
    let place: SocketAddr = String::from_utf8_lossy(&first.attributes().local_address).parse().unwrap();
    drop(first);
    for turn in 0..5 {
        let again = Udp::open(place);
        assert!(again.is_ok(), "turn {turn}: {:?}", again.err());
        drop(Nic::with_provider(Box::new(again.unwrap())));
    }
}

#[test]
fn connecting_without_a_waiting_server_fails_soon() {
    let (client, server) = (end(Reliability::ReliableDelivery), nic());
    let remote = Address::new(&server.attributes().local_address, "no such");
    let error = client.vi.connect(&Address::local("me"), &remote, LIMIT).unwrap_err();
    // The server's answer, not a timeout.
    assert!(matches!(error, Error::NoMatch(_)), "{error}");
    let error = client.vi.connect(&Address::local("me"), &Address::new("nonsense", "x"), LIMIT).unwrap_err();
    assert!(error.to_string().contains("192.168.0.7:7471"), "{error}");
}

/// The state of SplitMix64 after it returned `number`. Each of its steps is invertible.
fn state_behind(number: u64) -> u64 {
    let undo_shift =
        |mixed: u64, shift: u32| (0..64 / shift).fold(mixed, |found, _| mixed ^ (found >> shift));
    // The inverses of its two factors modulo 2^64.
    let state = undo_shift(number, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
    undo_shift(undo_shift(state, 27).wrapping_mul(0x96de_1b17_3f11_9089), 30)
}

#[test]
fn a_connections_tag_has_64_bits_and_does_not_follow_from_earlier_ones() {
    let observer = UdpSocket::bind("127.0.0.1:0").unwrap();
    observer.set_read_timeout(LIMIT).unwrap();
    let client = end(Reliability::ReliableDelivery);
    let remote = Address::new(observer.local_addr().unwrap().to_string(), "anybody");
    let mut tags: Vec<u64> = Vec::new();
    while tags.len() < 16 {
        client.vi.connect(&Address::local("me"), &remote, Some(Duration::ZERO)).unwrap_err();
        let mut datagram = [0; 2048];
        let seen = loop {
            let bytes = observer.recv(&mut datagram).unwrap();
            let packet = Packet::parse(&datagram[..bytes]).unwrap();
            if packet.kind == Kind::Open && !tags.contains(&packet.from) {
                break packet.from;
            }
        };
        tags.push(seen);
    }
    // With sixteen random 64-bit tags, the probability that some half is empty or some bit is never set is about 2^-9.
    assert!(tags.iter().all(|tag| tag >> 32 != 0), "{tags:x?}");
    assert!(tags.iter().fold(0, |all, tag| all | tag).count_ones() > 60, "{tags:x?}");
    let steps: BTreeSet<u64> =
        tags.windows(2).map(|two| state_behind(two[1]).wrapping_sub(state_behind(two[0]))).collect();
    assert!(steps.len() > 1, "all tags follow from two: {tags:x?}");
}

#[test]
fn the_attack_on_tags_recovers_the_states_of_a_weak_generator() {
    let mut generator = SplitMix64::new(7);
    let (first, second) = (generator.next_u64(), generator.next_u64());
    assert_eq!(state_behind(second).wrapping_sub(state_behind(first)), 0x9e37_79b9_7f4a_7c15);
}

#[test]
fn a_peer_may_be_silent_for_as_long_as_the_time_limits_permit() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = Address::new(silent.local_addr().unwrap().to_string(), "silent");
    let connect = |limits, timeout| {
        let nic =
            Nic::with_provider(Box::new(Udp::open_with("127.0.0.1:0".parse().unwrap(), limits).unwrap()));
        let tag = nic.create_protection_tag().unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
        vi.connect(&Address::local("client"), &to, timeout).unwrap_err()
    };
    let limits =
        |seconds| TimeLimits { give_up_after: Duration::from_secs(seconds), ..TimeLimits::default() };
    // Longer than the default limit, after which a peer is considered dead.
    assert!(matches!(connect(limits(60), Some(Duration::from_secs(4))), Error::Timeout));
    assert!(matches!(connect(limits(1), LIMIT), Error::NoMatch(_)));
}
