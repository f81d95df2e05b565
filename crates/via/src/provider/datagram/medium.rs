//! What carries datagrams: a socket, or a ring shared with a driver.
//! Not reliable, and not trusted: anybody may have sent what arrives.
//! Source: our own.

use crate::error::Error;
use std::net::SocketAddr;
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
    /// The same of every port: who has one can have them all.
    pub fn of_host(self) -> Peer {
        match self {
            Peer::Socket(address) => Peer::Socket(SocketAddr::new(address.ip(), 0)),
            Peer::Hardware(_) => self,
        }
    }
}

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

    /// The peer that a program means by the host part of an address.
    ///
    /// # Errors
    /// What is wrong with it, and how it is written.
    fn peer(&self, host: &[u8]) -> Result<Peer, Error>;

    /// The host part of a peer's address.
    fn host(&self, peer: Peer) -> Vec<u8>;
}
