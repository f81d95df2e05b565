//! Hostile UDP peers: one that sends endless requests and never accepts an answer, and many that request connections.
//! Forged packets are tested in `longma-reliable`.

use super::message::{ConnectionParameters, MessageHeader};
use crate::descriptor::RemoteSegment;
use crate::memory::MemoryRegion;
use crate::protection::{MemoryAttributes, MemoryHandle};
use crate::provider::udp::Udp;
use crate::provider::{Header, Request};
use crate::{Address, Nic, Reliability, Vi, ViAttributes, ViState};
use longma_reliable::{Config, Connection, Event, Packet, SendError};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 64 << 10;

/// The peer: the sending half of a real connection, over a socket.
struct Asker {
    socket: UdpSocket,
    connection: Connection,
    begin: Instant,
}

impl Asker {
    fn new(server: &str, asked: &str) -> Self {
        Self::at("127.0.0.1", server, asked)
    }

    /// A peer at another address of this host.
    fn at(host: &str, server: &str, asked: &str) -> Self {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        socket.connect(server).unwrap();
        socket.set_nonblocking(true).unwrap();
        let parameters = ConnectionParameters {
            requested: asked.into(),
            requesting: b"asker".to_vec(),
            attributes: evil(),
        };
        let connection = Connection::open(Config::default(), 0x5eed, &parameters.write(), Duration::ZERO);
        Self { socket, connection, begin: Instant::now() }
    }

    /// Sends packets that are due and processes those that have arrived. The program never takes the messages, so they
    /// fill and close the window.
    fn turn(&mut self) {
        let (mut out, mut datagram) = (Vec::new(), [0; 2048]);
        while self.connection.transmit(self.begin.elapsed(), &mut out) {
            let _ = self.socket.send(&out);
            out.clear();
        }
        while let Ok(bytes) = self.socket.recv(&mut datagram) {
            let Ok(packet) = Packet::parse(&datagram[..bytes]) else { continue };
            self.connection.receive(self.begin.elapsed(), &packet);
        }
    }

    fn ask(&mut self, remote: RemoteSegment, token: u32) {
        let length = READ_BYTES as u32;
        let read = MessageHeader::Read(
            Header { request: Request::RdmaRead(remote), length, immediate: None },
            token,
        );
        while self.connection.send(&[&read.write()]) == Err(SendError::Full) && self.begin.elapsed() < LIMIT {
            self.turn();
        }
        self.turn();
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn served() -> (Nic, Vi, MemoryRegion) {
    let nic = Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(READ_BYTES, MemoryAttributes::remote(tag)).unwrap();
    let attributes = ViAttributes::new(tag).with_reliability(Reliability::ReliableDelivery);
    let vi = nic.create_vi(attributes, None, None).unwrap();
    (nic, vi, memory)
}

fn connected(nic: &Nic, vi: &Vi) -> Asker {
    let mut asker = Asker::new(&String::from_utf8_lossy(&nic.attributes().local_address), "served");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            nic.connect_wait(&Address::local("served"), Some(LIMIT)).unwrap().accept(vi).unwrap();
        });
        while !asker.connection.is_open() {
            assert!(asker.begin.elapsed() < LIMIT, "not accepted");
            asker.turn();
            // Retry: the server may not be listening yet and reject the request.
            if let Some(Event::Rejected(_)) = asker.connection.take_event() {
                asker = Asker::new(&String::from_utf8_lossy(&nic.attributes().local_address), "served");
            }
        }
    });
    asker
}

#[test]
fn a_repeated_request_is_delivered_once() {
    let (nic, vi, _memory) = served();
    let listen = |wait| nic.connect_wait(&Address::local("served"), Some(wait));
    let _ = listen(Duration::ZERO);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut asker = Asker::new(&String::from_utf8_lossy(&nic.attributes().local_address), "served");
            let mut was_open = false;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                asker.turn();
                was_open |= asker.connection.is_open();
                std::thread::sleep(Duration::from_millis(1));
            }
            was_open
        });
        let asked = listen(LIMIT).unwrap();
        // The client repeats its request, and gives up after three seconds.
        let again = listen(Duration::from_secs(1)).is_ok();
        let accepted = asked.accept(&vi);
        let after = listen(Duration::from_millis(500)).is_ok();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(asking.join().unwrap(), "not connected: {accepted:?}");
        assert_eq!((again, after), (false, false), "one request was reported twice");
    });
}

#[test]
fn a_peer_that_requests_reads_but_takes_no_answers_is_disconnected_and_costs_little() {
    let (nic, vi, memory) = served();
    let mut asker = connected(&nic, &vi);
    let before = resident_bytes();
    for token in 0..4000 {
        asker.ask(memory.remote(0), token);
    }
    while vi.state() == ViState::Connected && !asker.connection.is_drained() {
        assert!(asker.begin.elapsed() < LIMIT, "not all requests were sent");
        asker.turn();
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{} MiB more for a peer that only asks", grown >> 20);
    while vi.state() != ViState::Error {
        assert!(asker.begin.elapsed() < LIMIT, "still served");
        asker.turn();
    }
}

#[test]
fn an_unknown_address_ends_the_connection_and_is_not_requested_repeatedly() {
    let (nic, vi, _) = served();
    let mut asker = connected(&nic, &vi);
    asker.ask(RemoteSegment { address: 0xdead_0000, handle: MemoryHandle(99) }, 0);
    while vi.state() != ViState::Error {
        assert!(asker.begin.elapsed() < LIMIT, "still served");
        asker.turn();
    }
}

fn evil() -> ViAttributes {
    ViAttributes::new(crate::protection::ProtectionTag::default())
        .with_reliability(Reliability::ReliableDelivery)
}

/// A server with a listening address whose program is slow to accept. Returns its NIC and its host.
fn served_slowly() -> (Nic, String) {
    let nic = Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    let _ = nic.connect_wait(&Address::local("served"), Some(Duration::ZERO));
    let place = String::from_utf8_lossy(&nic.attributes().local_address).into_owned();
    (nic, place)
}

/// Checks that a well-behaved client of `nic` is accepted once the program accepts connections.
fn an_honest_client_is_admitted(nic: &Nic, place: &str) {
    let (client, vi, _) = served();
    let tag = nic.create_protection_tag().unwrap();
    let attributes = ViAttributes::new(tag).with_reliability(Reliability::ReliableDelivery);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let remote = Address::new(place.as_bytes(), "served");
        let asks = scope.spawn(move || vi.connect(&Address::local("honest"), &remote, Some(LIMIT)));
        // By now the honest client's request has arrived, after all others.
        std::thread::sleep(Duration::from_millis(300));
        while !asks.is_finished() && begin.elapsed() < LIMIT {
            let Ok(asked) = nic.connect_wait(&Address::local("served"), Some(Duration::from_millis(10)))
            else {
                continue;
            };
            if asked.remote().discriminator == b"honest" {
                let vi = nic.create_vi(attributes, None, None).unwrap();
                asked.accept(&vi).unwrap();
                asks.join().unwrap().expect("an honest client is let in");
                return;
            }
            asked.reject();
        }
        panic!("an honest client was refused: {:?}", asks.join().unwrap());
    });
    drop(client);
}

#[test]
fn requests_with_forged_source_addresses_do_not_block_an_honest_client() {
    let (nic, place) = served_slowly();
    let parameters = ConnectionParameters {
        requested: b"served".to_vec(),
        requesting: b"nobody".to_vec(),
        attributes: evil(),
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for tag in 1..=2000 {
        let mut out = Vec::new();
        let mut asking = Connection::open(Config::default(), tag, &parameters.write(), Duration::ZERO);
        asking.transmit(Duration::ZERO, &mut out);
        socket.send_to(&out, &place).unwrap();
        if tag % 32 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    an_honest_client_is_admitted(&nic, &place);
}

#[test]
fn a_host_that_floods_requests_does_not_block_another() {
    let (nic, place) = served_slowly();
    let mut askers: Vec<_> = (0..100).map(|_| Asker::at("127.0.0.2", &place, "served")).collect();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        askers.iter_mut().for_each(Asker::turn);
    }
    an_honest_client_is_admitted(&nic, &place);
}
