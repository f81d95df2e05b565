//! Tests the network with a guest that also uses smoltcp for TCP/IP, and with single frames.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use proptest::prelude::*;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{
    ArpOperation, DhcpMessageType, DhcpPacket, DhcpRepr, EthernetRepr, Ipv4Address, Ipv4Repr,
};

use super::*;

const GUEST_MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
/// The number of exchanges after which a test gives up.
const ROUNDS: u64 = 20_000;

struct Guest {
    network: UserNetwork,
    frames: Frames,
    interface: Interface,
    wire: Wire,
    sockets: SocketSet<'static>,
    now_ns: u64,
}

impl Guest {
    fn new(options: &UserOptions) -> Self {
        let mut wire = Wire::default();
        let mut interface = Interface::new(Config::new(GUEST_MAC.into()), &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(GUEST.into(), PREFIX)).expect("there is room");
        });
        interface.routes_mut().add_default_ipv4_route(GATEWAY).expect("there is room");
        let network = UserNetwork::new(options).expect("it opens no port");
        let sockets = SocketSet::new(Vec::new());
        Self { network, frames: Frames::default(), interface, wire, sockets, now_ns: 0 }
    }

    fn socket(&mut self) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; 4096]);
        self.sockets.add(Socket::new(buffer(), buffer()))
    }

    fn connect(&mut self, to: SocketAddrV4) -> SocketHandle {
        let handle = self.socket();
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        socket.connect(self.interface.context(), (*to.ip(), to.port()), 4000).expect("the port is free");
        handle
    }

    /// Exchanges frames once, and lets a millisecond of the guest's time pass.
    fn exchange(&mut self) {
        let now = Instant::from_micros((self.now_ns / 1000) as i64);
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        while let Some(frame) = self.wire.take_sent() {
            self.frames.send(frame);
        }
        self.network.exchange(&mut self.frames, self.now_ns, Duration::from_millis(1));
        while let Some(frame) = self.frames.take() {
            self.wire.receive(frame);
        }
        self.now_ns += 1_000_000;
    }

    /// Exchanges frames until `act` returns something.
    fn until<R>(
        &mut self,
        handle: SocketHandle,
        mut act: impl FnMut(&mut Socket<'static>) -> Option<R>,
    ) -> R {
        for _ in 0..ROUNDS {
            self.exchange();
            if let Some(result) = act(self.sockets.get_mut::<Socket<'static>>(handle)) {
                return result;
            }
        }
        panic!("nothing happens: the socket is {}", self.sockets.get::<Socket<'_>>(handle).state());
    }

    fn read(&mut self, handle: SocketHandle, bytes: usize) -> Vec<u8> {
        let mut read = Vec::new();
        self.until(handle, |socket| {
            while socket.can_recv() {
                let part = socket.recv(|data| (data.len(), data.to_vec())).expect("it is open");
                read.extend(part);
            }
            (read.len() >= bytes).then_some(())
        });
        read
    }

    /// Sends one frame, and returns the answers.
    fn answers(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        self.frames.send(frame);
        self.network.exchange(&mut self.frames, self.now_ns, Duration::ZERO);
        std::iter::from_fn(|| self.frames.take()).collect()
    }
}

fn loopback() -> UserOptions {
    UserOptions { loopback: true, ..UserOptions::default() }
}

fn listening() -> (TcpListener, SocketAddrV4) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    (listener, SocketAddrV4::new(GATEWAY, port))
}

#[test]
fn a_connection_of_the_guest_carries_data_both_ways_until_both_ends_close() {
    let (listener, gateway) = listening();
    let content: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    let sent = content.clone();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the guest connects");
        let mut request = [0; 5];
        stream.read_exact(&mut request).expect("the guest sends");
        stream.write_all(&sent).expect("the guest receives");
        stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the guest closes");
        (request.to_vec(), rest)
    });
    let mut guest = Guest::new(&loopback());
    let handle = guest.connect(gateway);
    guest.until(handle, |socket| socket.can_send().then(|| socket.send_slice(b"hello").expect("it is open")));
    assert!(guest.read(handle, content.len()) == content);
    guest.until(handle, |socket| (socket.state() == State::CloseWait).then_some(()));
    let socket = guest.sockets.get_mut::<Socket<'_>>(handle);
    socket.send_slice(b"bye").expect("it is open");
    socket.close();
    guest.until(handle, |socket| (socket.state() == State::Closed).then_some(()));
    assert_eq!(server.join().expect("it ends"), (b"hello".to_vec(), b"bye".to_vec()));
    for _ in 0..ROUNDS {
        if guest.network.sockets.iter().next().is_none() {
            return;
        }
        guest.exchange();
    }
    panic!("the network keeps the connection");
}

#[test]
fn connections_to_the_host_are_refused_unless_asked_for() {
    let (listener, gateway) = listening();
    let refused = [
        (UserOptions::default(), gateway),
        (loopback(), SocketAddrV4::new(Ipv4Addr::LOCALHOST, gateway.port())),
        (loopback(), SocketAddrV4::new(Ipv4Addr::new(169, 254, 169, 254), 80)),
        (loopback(), SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 77), gateway.port())),
        (UserOptions { isolated: true, ..loopback() }, SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80)),
        (UserOptions { isolated: true, ..loopback() }, SocketAddrV4::new(DNS, 53)),
    ];
    for (options, to) in refused {
        let routes = Guest::new(&options).network.routes;
        assert_eq!(routes.outside(to), None, "{to}");
    }
    let mut guest = Guest::new(&UserOptions::default());
    let handle = guest.connect(gateway);
    guest.until(handle, |socket| (socket.state() == State::Closed).then_some(()));
    // The host refuses a connection to a port without a listener.
    drop(listener);
    let mut guest = Guest::new(&loopback());
    let handle = guest.connect(gateway);
    guest.until(handle, |socket| (socket.state() == State::Closed).then_some(()));
}

#[test]
fn a_forwarded_port_reaches_the_guest() {
    let free =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free");
    let forward = Forward::parse(&format!("tcp:{free}-:22")).expect("it is a forward");
    assert_eq!(forward, Forward { host: free, port: 22 });
    let mut guest = Guest::new(&UserOptions { forwards: vec![forward], ..UserOptions::default() });
    let handle = guest.socket();
    guest.sockets.get_mut::<Socket<'_>>(handle).listen(22).expect("the port is free");
    let mut client = TcpStream::connect(free).expect("the network listens");
    client.write_all(b"to the guest").expect("it is open");
    assert_eq!(guest.read(handle, 12), b"to the guest");
    guest.sockets.get_mut::<Socket<'_>>(handle).send_slice(b"back").expect("it is open");
    client.set_nonblocking(true).expect("it is a socket");
    let mut answer = [0; 4];
    guest.until(handle, |_| client.read_exact(&mut answer).ok());
    assert_eq!(&answer, b"back");
}

#[test]
fn a_client_of_dhcp_gets_the_address_and_the_servers() {
    let message = |message_type, requested_ip| DhcpRepr {
        message_type,
        transaction_id: 7,
        secs: 0,
        client_hardware_address: GUEST_MAC,
        client_ip: Ipv4Address::UNSPECIFIED,
        your_ip: Ipv4Address::UNSPECIFIED,
        server_ip: Ipv4Address::UNSPECIFIED,
        router: None,
        subnet_mask: None,
        relay_agent_ip: Ipv4Address::UNSPECIFIED,
        broadcast: true,
        requested_ip,
        client_identifier: None,
        server_identifier: None,
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        lease_duration: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    };
    let cases = [
        (DhcpMessageType::Discover, None, DhcpMessageType::Offer),
        (DhcpMessageType::Request, Some(GUEST), DhcpMessageType::Ack),
        (DhcpMessageType::Request, Some(Ipv4Addr::new(192, 168, 0, 1)), DhcpMessageType::Nak),
    ];
    for (sent, wanted, expected) in cases {
        let message = message(sent, wanted);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..])).expect("it has room");
        let (from, to) =
            (SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68), SocketAddrV4::new(Ipv4Addr::BROADCAST, 67));
        let mut guest = Guest::new(&UserOptions::default());
        let mut frame = wire::datagram(EthernetAddress::BROADCAST, from, to, &bytes).expect("it is short");
        EthernetFrame::new_unchecked(&mut frame[..]).set_src_addr(GUEST_MAC);
        let answers = guest.answers(frame);
        let [answer] = &answers[..] else { panic!("{} answers", answers.len()) };
        let ethernet = EthernetFrame::new_checked(&answer[..]).expect("it is a frame");
        assert_eq!(ethernet.dst_addr(), GUEST_MAC);
        let packet = Ipv4Packet::new_checked(ethernet.payload()).expect("it is a packet");
        let datagram = UdpPacket::new_checked(packet.payload()).expect("it is a datagram");
        assert!(
            packet.verify_checksum()
                && datagram.verify_checksum(&GATEWAY.into(), &Ipv4Addr::BROADCAST.into())
        );
        let packet = DhcpPacket::new_checked(datagram.payload()).expect("it is a message");
        let answer = DhcpRepr::parse(&packet).expect("it is a message");
        assert_eq!((answer.message_type, answer.transaction_id), (expected, 7));
        if expected != DhcpMessageType::Nak {
            assert_eq!((answer.your_ip, answer.router), (GUEST, Some(GATEWAY)));
            assert_eq!(answer.dns_servers.expect("it names one")[..], [DNS]);
        }
    }
}

#[test]
fn datagrams_reach_the_outside_and_their_answers_the_guest() {
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let to = SocketAddrV4::new(GATEWAY, server.local_addr().expect("it is bound").port());
    let from = SocketAddrV4::new(GUEST, 5000);
    let mut guest = Guest::new(&loopback());
    let mut frame = wire::datagram(GATEWAY_MAC, from, to, b"question").expect("it is short");
    EthernetFrame::new_unchecked(&mut frame[..]).set_src_addr(GUEST_MAC);
    assert!(guest.answers(frame).is_empty());
    let mut buffer = [0; 16];
    let (bytes, outside) = server.recv_from(&mut buffer).expect("the network sends");
    assert_eq!(&buffer[..bytes], b"question");
    server.send_to(b"answer", outside).expect("the network receives");
    // This datagram is too long for a frame.
    server.send_to(&[0; 3000], outside).expect("the network receives");
    guest.network.exchange(&mut guest.frames, 0, Duration::from_secs(10));
    let frame = guest.frames.take().expect("the answer has arrived");
    assert_eq!(frame[14 + 20 + 8..], *b"answer");
    assert_eq!(
        UdpPacket::new_checked(&frame[34..]).map(|it| (it.src_port(), it.dst_port())),
        Ok((to.port(), 5000))
    );
    guest.network.exchange(&mut guest.frames, 0, Duration::ZERO);
    assert!(guest.frames.take().is_none());
}

#[test]
fn only_the_networks_own_addresses_have_an_ethernet_address() {
    let mut guest = Guest::new(&UserOptions::default());
    for (address, answers) in [(GATEWAY, 1), (DNS, 1), (GUEST, 0), (Ipv4Addr::new(10, 0, 2, 9), 0)] {
        let request = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: GUEST_MAC,
            source_protocol_addr: GUEST,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: address,
        };
        let mut frame = vec![0; 14 + request.buffer_len()];
        let (head, packet) = frame.split_at_mut(14);
        let ethernet = EthernetRepr {
            src_addr: GUEST_MAC,
            dst_addr: EthernetAddress::BROADCAST,
            ethertype: EthernetProtocol::Arp,
        };
        ethernet.emit(&mut EthernetFrame::new_unchecked(head));
        request.emit(&mut ArpPacket::new_unchecked(packet));
        assert_eq!(guest.answers(frame).len(), answers, "{address}");
    }
}

#[test]
fn the_first_ipv4_server_of_the_resolver_is_used() {
    let text = "# comment\nsearch example\nnameserver ::1\nnameserver 192.0.2.7\nnameserver 192.0.2.8\n";
    assert_eq!(name_server(text), Some("192.0.2.7:53".parse().expect("it is an address")));
    assert_eq!(name_server("options x\n"), None);
}

proptest! {
    #[test]
    fn any_frame_is_harmless(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0..4u8,
        protocol in prop::sample::select(&[1u8, 6, 17, 50][..]),
    ) {
        let mut guest = Guest::new(&UserOptions::default());
        let mut frame = GATEWAY_MAC.0.to_vec();
        frame.extend(GUEST_MAC.0);
        frame.extend(match kind { 0 => [8, 6], 1 => [0x86, 0xdd], _ => [8, 0] });
        if kind == 3 {
            // A packet with a correct header.
            let repr = Ipv4Repr {
                src_addr: GUEST, dst_addr: GATEWAY, next_header: protocol.into(), payload_len: bytes.len(), hop_limit: 9,
            };
            let mut packet = vec![0; 20];
            repr.emit(&mut Ipv4Packet::new_unchecked(&mut packet[..]), &Default::default());
            frame.extend(packet);
        }
        frame.extend(bytes);
        guest.answers(frame);
    }
}
