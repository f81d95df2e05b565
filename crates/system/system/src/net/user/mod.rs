//! A network in user mode. It has the addresses of QEMU's user-mode network: the guest is 10.0.2.15, the gateway with a
//! DHCP server is 10.0.2.2, and the DNS server is 10.0.2.3. To the outside, the guest's TCP connections and UDP
//! datagrams come from this process. The crate smoltcp is the other end of the guest's TCP connections, answers ARP,
//! and answers echo requests to the gateway.
//!
//! The guest is not trusted: frames are checked before use, connections and flows are limited in number, and loopback,
//! link-local, multicast and reserved addresses are refused.

mod dhcp;
mod tcp;
mod udp;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpCidr, IpProtocol, Ipv4Packet,
    TcpPacket, UdpPacket,
};

use super::{Carrier, Frames, NetworkError};
use tcp::Connections;
use udp::Flows;
use wire::Wire;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
const PREFIX: u8 = 24;
const GATEWAY_MAC: EthernetAddress = EthernetAddress([0x52, 0x55, 0x0a, 0, 2, 2]);

/// Options of a user-mode network.
#[derive(Clone, Debug, Default)]
pub struct UserOptions {
    /// Ports of the host that are forwarded to the guest.
    pub forwards: Vec<Forward>,
    /// Whether connections to the gateway reach the host's loopback interface; otherwise the gateway refuses them.
    pub loopback: bool,
    /// Whether the guest reaches only the gateway and peers that connect to forwarded ports.
    pub isolated: bool,
}

/// A TCP port of the host whose connections are forwarded to a port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where to listen.
    pub host: SocketAddr,
    /// The guest's port.
    pub port: u16,
}

impl Forward {
    /// Parses `tcp:ADDRESS:PORT-:PORT`, in which 10.0.2.15 may precede the guest's port. No port is 0.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, guest) = text.strip_prefix("tcp:")?.split_once('-')?;
        let (address, port) = guest.split_once(':')?;
        let is_guest = address.is_empty() || address.parse() == Ok(GUEST);
        let host = host.parse().ok().filter(|host: &SocketAddr| host.port() != 0)?;
        Some(Self { host, port: port.parse().ok().filter(|port| is_guest && *port != 0)? })
    }
}

/// Maps the guest's destinations to addresses of the outside.
#[derive(Debug)]
struct Routes {
    loopback: bool,
    isolated: bool,
    /// The host's DNS server.
    resolver: Option<SocketAddrV4>,
}

impl Routes {
    /// The host's address for a destination of the guest; `None` if the guest may not reach it.
    fn outside(&self, to: SocketAddrV4) -> Option<SocketAddrV4> {
        let address = *to.ip();
        let is_inside = address.octets()[..3] == GATEWAY.octets()[..3];
        let is_refused = address.is_loopback()
            || address.is_link_local()
            || address.is_multicast()
            || address.octets()[0] == 0
            || address.octets()[0] >= 240;
        match address {
            GATEWAY if self.loopback => Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, to.port())),
            DNS if to.port() == 53 && !self.isolated => self.resolver,
            _ if self.isolated || is_inside || is_refused => None,
            _ => Some(to),
        }
    }
}

/// The first IPv4 name server of a resolver configuration (resolv.conf).
fn name_server(configuration: &str) -> Option<SocketAddrV4> {
    let servers = configuration.lines().filter_map(|line| line.strip_prefix("nameserver"));
    servers
        .filter_map(|server| server.trim().parse().ok())
        .map(|address| SocketAddrV4::new(address, 53))
        .next()
}

/// The network.
pub struct UserNetwork {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    connections: Connections,
    flows: Flows,
    routes: Routes,
    guest_mac: EthernetAddress,
}

impl std::fmt::Debug for UserNetwork {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("UserNetwork").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl UserNetwork {
    /// Creates a network and listens at the forwarded ports.
    pub fn new(options: &UserOptions) -> Result<Self, NetworkError> {
        let resolver = std::fs::read_to_string("/etc/resolv.conf").ok().and_then(|text| name_server(&text));
        let mut wire = Wire::default();
        let mut interface = Interface::new(Config::new(GATEWAY_MAC.into()), &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            for address in [GATEWAY, DNS] {
                // The push does not fail: the interface can hold two addresses.
                let _ = addresses.push(IpCidr::new(address.into(), PREFIX));
            }
        });
        // The interface is the other end of connections to any address.
        interface.set_any_ip(true);
        // The call does not fail: the table of routes is empty.
        let _ = interface.routes_mut().add_default_ipv4_route(GATEWAY);
        Ok(Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            wire,
            connections: Connections::new(&options.forwards)?,
            flows: Flows::default(),
            routes: Routes { loopback: options.loopback, isolated: options.isolated, resolver },
            guest_mac: EthernetAddress::BROADCAST,
        })
    }

    /// Handles a frame from the guest. Drops malformed and unsupported frames.
    fn take(&mut self, frame: Vec<u8>, frames: &mut Frames) {
        let Ok(ethernet) = EthernetFrame::new_checked(&frame[..]) else { return };
        if !ethernet.src_addr().is_unicast() {
            return;
        }
        self.guest_mac = ethernet.src_addr();
        let is_for_wire = match ethernet.ethertype() {
            EthernetProtocol::Arp => is_answered(ethernet.payload()),
            EthernetProtocol::Ipv4 => self.take_packet(ethernet.payload(), &frame, frames),
            _ => false,
        };
        if is_for_wire {
            self.wire.receive(frame);
        }
    }

    /// Handles an IPv4 packet. Returns whether its frame is for the interface.
    fn take_packet(&mut self, packet: &[u8], frame: &[u8], frames: &mut Frames) -> bool {
        let Ok(packet) = Ipv4Packet::new_checked(packet) else { return false };
        let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
        if !is_whole || !packet.verify_checksum() {
            return false;
        }
        let (from, to) = (packet.src_addr(), packet.dst_addr());
        match packet.next_header() {
            IpProtocol::Icmp => from == GUEST && [GATEWAY, DNS].contains(&to),
            IpProtocol::Tcp if from == GUEST => {
                let Ok(segment) = TcpPacket::new_checked(packet.payload()) else { return false };
                if !segment.verify_checksum(&from.into(), &to.into()) {
                    return false;
                }
                let to = SocketAddrV4::new(to, segment.dst_port());
                let is_first = segment.syn() && !segment.ack();
                !is_first || !self.connections.open(segment.src_port(), to, frame, &self.routes)
            }
            IpProtocol::Udp => {
                let Ok(datagram) = UdpPacket::new_checked(packet.payload()) else { return false };
                if !datagram.verify_checksum(&from.into(), &to.into()) {
                    return false;
                }
                let to = SocketAddrV4::new(to, datagram.dst_port());
                if to.port() == dhcp::SERVER_PORT {
                    if let Some(answer) = dhcp::answer(datagram.payload()) {
                        self.deliver(frames, dhcp::SERVER, dhcp::CLIENT, &answer);
                    }
                } else if from == GUEST {
                    self.flows.send(datagram.src_port(), to, datagram.payload(), &self.routes);
                }
                false
            }
            _ => false,
        }
    }

    /// Delivers a datagram to the guest, unless it is too long for a frame.
    fn deliver(&self, frames: &mut Frames, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        if let Some(frame) = wire::datagram(self.guest_mac, from, to, payload) {
            frames.deliver(frame);
        }
    }

    /// Moves data between the guest and the outside.
    fn advance(&mut self, frames: &mut Frames, now: Instant) {
        for frame in std::mem::take(&mut frames.to_network) {
            self.take(frame, frames);
        }
        // The second round sends the data that connections received in the first.
        for _ in 0..2 {
            self.connections.advance(&mut self.interface, &mut self.sockets, &mut self.wire);
            self.interface.poll(now, &mut self.wire, &mut self.sockets);
        }
        let mut received = Vec::new();
        self.flows.receive(|port, from, payload| received.push((port, from, payload.to_vec())));
        for (port, from, payload) in received {
            self.deliver(frames, from, SocketAddrV4::new(GUEST, port), &payload);
        }
        while frames.has_room() {
            let Some(frame) = self.wire.take_sent() else { break };
            frames.deliver(frame);
        }
    }

    /// Waits until a socket of the host is ready, or for `wait`.
    fn wait(&self, wait: Duration) {
        let mut wanted: Vec<PollFd<'_>> =
            self.connections.wanted(&self.sockets).chain(self.flows.wanted()).collect();
        let limit = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        // An error or a signal ends the wait.
        let _ = poll(&mut wanted, Some(&limit));
    }
}

impl Carrier for UserNetwork {
    fn exchange(&mut self, frames: &mut Frames, now_ns: u64, wait: Duration) {
        let now = Instant::from_micros(i64::try_from(now_ns / 1000).unwrap_or(i64::MAX));
        self.advance(frames, now);
        if frames.to_guest.is_empty() && !wait.is_zero() {
            self.wait(wait);
            self.advance(frames, now);
        }
    }
}

/// Whether the interface answers an ARP packet: it asks for one of the interface's addresses.
fn is_answered(packet: &[u8]) -> bool {
    let parsed = ArpPacket::new_checked(packet).and_then(|packet| ArpRepr::parse(&packet));
    match parsed {
        Ok(ArpRepr::EthernetIpv4 { target_protocol_addr, .. }) => {
            [GATEWAY, DNS].contains(&target_protocol_addr)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
