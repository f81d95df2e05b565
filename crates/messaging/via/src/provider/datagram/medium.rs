//! The transport for datagrams: a socket, or rings shared with a driver. It is unreliable, and incoming datagrams are
//! untrusted.

use crate::error::Error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// The source or destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// An address and port (UDP).
    Socket(SocketAddr),
    /// A hardware address (Ethernet).
    Hardware([u8; 6]),
}

impl Peer {
    /// The host of the peer, for limits: the address without its port, and for IPv6 only the network part, because a
    /// host can use all ports and all addresses of its network.
    pub fn of_host(self) -> Peer {
        match self {
            Peer::Socket(address) => {
                let ip = match address.ip().to_canonical() {
                    IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
                    ip => ip,
                };
                Peer::Socket(SocketAddr::new(ip, 0))
            }
            Peer::Hardware(_) => self,
        }
    }
}

/// Resolves the host part of an address. This may take as long as a name service lookup. The error describes the
/// problem and the expected format.
pub type Resolve = fn(&[u8]) -> Result<Peer, Error>;

/// A transport for datagrams.
pub trait Medium: Send {
    /// Sends a datagram, or drops it if there is no space.
    fn send(&mut self, to: Peer, datagram: &[u8]);

    /// Receives the next datagram into `datagram` and returns its source.
    fn receive(&mut self, datagram: &mut Vec<u8>) -> Option<Peer>;

    /// A file descriptor that is readable when a datagram has arrived.
    fn readable(&self) -> RawFd;

    /// The maximum size of a datagram to `peer`, bytes.
    fn max_datagram(&self, peer: Peer) -> u16;

    /// Called when datagrams of the maximum size do not reach the peer. Later connections should use smaller ones.
    fn shrink(&mut self, peer: Peer) {
        let _ = peer;
    }

    /// The size of the receive buffer, bytes. Datagrams that do not fit into it are dropped.
    fn send_capacity(&self) -> usize;

    /// The function that resolves host names for this medium.
    fn resolve(&self) -> Resolve;

    /// The host part of a peer's address.
    fn host(&self, peer: Peer) -> Vec<u8>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_and_all_addresses_of_an_ipv6_network_are_one_host_and_no_others_are() {
        let host = |text: &str| Peer::Socket(text.parse().unwrap()).of_host();
        assert_eq!(host("192.0.2.7:1"), host("192.0.2.7:2"));
        assert_ne!(host("192.0.2.7:1"), host("192.0.2.8:1"));
        assert_eq!(host("[2001:db8::1]:1"), host("[2001:db8::ffff:2]:9"));
        assert_ne!(host("[2001:db8:0:1::1]:1"), host("[2001:db8::1]:1"));
        // IPv4 peers of a dual-stack socket appear as mapped addresses.
        assert_eq!(host("[::ffff:192.0.2.7]:1"), host("192.0.2.7:5"));
        assert_ne!(host("[::ffff:192.0.2.7]:1"), host("[::ffff:192.0.2.8]:1"));
    }
}
