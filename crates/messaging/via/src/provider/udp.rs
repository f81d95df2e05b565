//! The UDP provider: connects processes on any hosts that reach each other by IP, without privileges or special
//! hardware. It costs a system call per packet and does not encrypt. An attacker on the path can read data and break
//! connections; an attacker elsewhere would have to guess two 64-bit tags.
//!
//! Source: udp(7), ip(7).

pub use super::datagram::TimeLimits;
use super::datagram::medium::{Medium, Peer, Resolve};
use super::datagram::{DatagramNic, OverDatagrams};
use crate::error::Error;
use longma_locks::IgnorePoison;
use longma_reliable::USUAL_PACKET_BYTES;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;

/// The requested size of the socket's receive buffer, bytes.
const RECEIVE_BUFFER: i32 = 4 << 20;

/// The size of the IP and UDP headers, for IPv6, which has the longer header.
const HEADERS: u32 = 40 + 8;

/// The MTU that every IPv6 path supports (RFC 8200, section 5), and practically every IPv4 path.
const MIN_MTU: u32 = 1280;

/// The maximum datagram size, bytes. With longer datagrams, losses would cost more than fewer packets save.
const MAX_DATAGRAM_BYTES: u32 = 16 << 10;

/// A NIC that uses a UDP socket.
pub struct Udp {
    nic: DatagramNic,
}

impl Udp {
    /// Binds a socket to `address`. Port 0 selects any free port.
    ///
    /// # Errors
    /// If the address does not belong to this host, or the port is in use.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        Self::open_with(address, TimeLimits::default())
    }

    /// Like [`Udp::open`], with other time limits.
    ///
    /// # Errors
    /// Those of [`Udp::open`].
    pub fn open_with(address: SocketAddr, limits: TimeLimits) -> Result<Self, Error> {
        let failed = |error| Error::system("binding the UDP socket", error);
        let socket = UdpSocket::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let send_capacity = widen(&socket);
        let host = local.to_string().into_bytes();
        let medium = UdpMedium {
            socket,
            send_capacity,
            datagrams: Mutex::new(BTreeMap::new()),
            buffer: vec![0; 1 << 16],
        };
        let nic = DatagramNic::new(Box::new(medium), limits, "udp".into(), host, MAX_DATAGRAM_BYTES)?;
        Ok(Self { nic })
    }
}

/// Requests a large receive buffer and returns its usable size.
fn widen(socket: &UdpSocket) -> usize {
    let wanted = RECEIVE_BUFFER;
    let mut got = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the pointers refer to local integers of the given length.
    unsafe {
        for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            libc::setsockopt(fd, level, option, (&raw const wanted).cast(), length);
        }
        libc::getsockopt(fd, level, libc::SO_RCVBUF, (&raw mut got).cast(), &raw mut length);
    }
    // Assumes that the kernel's bookkeeping, which its value includes, takes at most three quarters.
    (got.max(0) as usize) / 4
}

struct UdpMedium {
    socket: UdpSocket,
    send_capacity: usize,
    /// The maximum datagram size for each known host.
    datagrams: Mutex<BTreeMap<IpAddr, u16>>,
    buffer: Vec<u8>,
}

impl UdpMedium {
    /// The datagram size that the route to `address` supports, according to the kernel.
    fn measure(address: SocketAddr) -> u16 {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let mtu = UdpSocket::bind(any).and_then(|probe| {
            probe.connect(address)?;
            let (level, option) = match address {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
            };
            let (mut mtu, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
            let fd = probe.as_raw_fd();
            // SAFETY: the pointers refer to local integers.
            let status =
                unsafe { libc::getsockopt(fd, level, option, (&raw mut mtu).cast(), &raw mut length) };
            if status < 0 { Err(io::Error::last_os_error()) } else { Ok(mtu) }
        });
        let mtu = mtu
            .ok()
            .and_then(|mtu| u32::try_from(mtu).ok())
            .filter(|mtu| *mtu >= MIN_MTU)
            .unwrap_or(USUAL_PACKET_BYTES);
        (mtu.saturating_sub(HEADERS)).min(MAX_DATAGRAM_BYTES) as u16
    }
}

impl Medium for UdpMedium {
    fn send(&mut self, to: Peer, datagram: &[u8]) {
        if let Peer::Socket(address) = to {
            // A datagram that cannot be sent is treated as lost and retransmitted.
            let _ = self.socket.send_to(datagram, address);
        }
    }

    fn receive(&mut self, datagram: &mut Vec<u8>) -> Option<Peer> {
        loop {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((bytes, from)) => {
                    datagram.clear();
                    datagram.extend_from_slice(&self.buffer[..bytes]);
                    return Some(Peer::Socket(from));
                }
                // An ICMP error of an earlier datagram is reported once; later datagrams are unaffected.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }

    fn readable(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn max_datagram(&self, peer: Peer) -> u16 {
        let Peer::Socket(address) = peer else { return 0 };
        let mut known = self.datagrams.lock().ignore_poison();
        *known.entry(address.ip()).or_insert_with(|| Self::measure(address))
    }

    fn shrink(&mut self, peer: Peer) {
        if let Peer::Socket(address) = peer {
            // The kernel may not know the smaller MTU, so do not ask it.
            let known = self.datagrams.get_mut().ignore_poison();
            known.insert(address.ip(), (MIN_MTU - HEADERS) as u16);
        }
    }

    fn send_capacity(&self) -> usize {
        self.send_capacity
    }

    fn resolve(&self) -> Resolve {
        |host| {
            let text = String::from_utf8_lossy(host);
            let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
            let why =
                || format!("\"{text}\" is not an address and port such as 192.168.0.7:7471 or server:7471");
            found.map(Peer::Socket).ok_or_else(|| Error::NotReachable(why()))
        }
    }

    fn host(&self, peer: Peer) -> Vec<u8> {
        match peer {
            Peer::Socket(address) => address.to_string().into_bytes(),
            Peer::Hardware(_) => Vec::new(),
        }
    }
}

impl OverDatagrams for Udp {
    fn nic(&self) -> &DatagramNic {
        &self.nic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_drops_large_datagrams_gets_small_ones_in_the_next_connection() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = Peer::Socket(socket.local_addr().unwrap());
        let (datagrams, buffer) = (Mutex::default(), Vec::new());
        let mut medium = UdpMedium { socket, send_capacity: 0, datagrams, buffer };
        assert_eq!(medium.max_datagram(peer), MAX_DATAGRAM_BYTES as u16);
        medium.shrink(peer);
        assert_eq!(medium.max_datagram(peer), 1232);
    }
}
