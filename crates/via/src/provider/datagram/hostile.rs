//! A peer over UDP that asks and asks, and never takes an answer.
//! Not one that forges packets: the reliable connection's own tests do that.
//! Source: none.

use super::message::{Greeting, Head};
use crate::descriptor::RemoteSegment;
use crate::memory::{MemoryAttributes, MemoryHandle, MemoryRegion};
use crate::provider::udp::Udp;
use crate::provider::{Header, Request};
use crate::reliable::{Config, Connection, Event, Packet, SendError};
use crate::{Address, Nic, Reliability, Vi, ViAttributes, ViState};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 64 << 10;

/// The peer: a real connection's sending half over a socket.
struct Asker {
    socket: UdpSocket,
    connection: Connection,
    begin: Instant,
}

impl Asker {
    fn new(server: &str, asked: &str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        socket.set_nonblocking(true).unwrap();
        let attributes = ViAttributes::new(crate::memory::ProtectionTag::default())
            .with_reliability(Reliability::ReliableDelivery);
        let greeting = Greeting { asked: asked.into(), asking: b"asker".to_vec(), attributes };
        let connection = Connection::open(Config::default(), 0x5eed, &greeting.write(), Duration::ZERO);
        Self { socket, connection, begin: Instant::now() }
    }

    /// Sends what is due, and takes in what has come. Nobody takes the messages, so that they fill the window and shut it.
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
        let read = Head::Read(Header { request: Request::RdmaRead(remote), length, immediate: None }, token);
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
            // Nobody may wait there yet: then it is refused, and asks anew.
            if let Some(Event::Rejected(_)) = asker.connection.take_event() {
                asker = Asker::new(&String::from_utf8_lossy(&nic.attributes().local_address), "served");
            }
        }
    });
    asker
}

#[test]
fn who_reads_without_end_and_takes_nothing_is_cut_off_and_costs_little() {
    let (nic, vi, memory) = served();
    let mut asker = connected(&nic, &vi);
    let before = resident_bytes();
    for token in 0..4000 {
        asker.ask(memory.remote(0), token);
    }
    while vi.state() == ViState::Connected && !asker.connection.is_drained() {
        assert!(asker.begin.elapsed() < LIMIT, "not all was asked");
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
fn an_unknown_address_ends_the_connection_and_is_not_asked_for_again_and_again() {
    let (nic, vi, _) = served();
    let mut asker = connected(&nic, &vi);
    asker.ask(RemoteSegment { address: 0xdead_0000, handle: MemoryHandle(99) }, 0);
    while vi.state() != ViState::Error {
        assert!(asker.begin.elapsed() < LIMIT, "still served");
        asker.turn();
    }
}
