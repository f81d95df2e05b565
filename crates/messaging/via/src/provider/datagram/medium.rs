//! What carries datagrams: a socket, or a ring shared with a driver.
//! Not reliable, and not trusted: anybody may have sent what arrives.

use crate::error::Error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// Where a datagram goes or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// An address and port (UDP).
    Socket(SocketAddr),
    /// A hardware address (Ethernet).
    Hardware([u8; 6]),
}

impl Peer {
    /// The same of every port, and of every address of an IPv6 network: who has one can have them all.
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

/// Says which peer a program means by the host part of an address; that may take as long as a name service does. An error: what is wrong
/// with it, and how it is written.
pub type Resolve = fn(&[u8]) -> Result<Peer, Error>;

/// Carries datagrams.
pub trait Medium: Send {
    /// Sends one, or drops it if there is no room.
    fn send(&mut self, to: Peer, datagram: &[u8]);

    /// The next one that came, into `datagram`; says from whom.
    fn receive(&mut self, datagram: &mut Vec<u8>) -> Option<Peer>;

    /// Readable when something has come.
    fn readable(&self) -> RawFd;

    /// The largest datagram that gets through to `peer`, bytes.
    fn max_datagram(&self, peer: Peer) -> u16;

    /// Bytes that may wait to be received before some are dropped.
    fn room(&self) -> usize;

    /// How hosts are called there.
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
        // As a socket for both kinds of addresses sees the old ones.
        assert_eq!(host("[::ffff:192.0.2.7]:1"), host("192.0.2.7:5"));
        assert_ne!(host("[::ffff:192.0.2.7]:1"), host("[::ffff:192.0.2.8]:1"));
    }
}
