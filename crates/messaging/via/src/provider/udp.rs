//! UDP as a NIC: VIs of processes on any hosts that reach each other by IP; no privilege, no special hardware.
//! Not fast: a system call a packet. Not secret: anybody on the path can read, and can break a connection; anybody else would have to
//! guess two tags of 64 bits.
//! Source: udp(7), ip(7).

use super::datagram::medium::{Medium, Peer, Resolve};
use super::datagram::{DatagramNic, OverDatagrams};
use crate::error::Error;
use longma_reliable::USUAL_PACKET_BYTES;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Bytes asked for to hold datagrams until they are received.
const RECEIVE_BUFFER: i32 = 4 << 20;

/// IP and UDP headers (IPv6's are the longer).
const HEADERS: u32 = 40 + 8;

/// More than this in a datagram costs more, when one is lost, than it saves.
const LARGEST_DATAGRAM: u32 = 16 << 10;

/// A NIC over a UDP socket.
pub struct Udp {
    nic: DatagramNic,
}

impl Udp {
    /// Binds a socket to `address`; port 0 takes any that is free.
    ///
    /// # Errors
    /// If the address is not one of this host's, or the port is taken.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let failed = |error| Error::system("binding the UDP socket", error);
        let socket = UdpSocket::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let room = widen(&socket);
        let host = local.to_string().into_bytes();
        let medium =
            UdpMedium { socket, room, datagrams: Mutex::new(BTreeMap::new()), buffer: vec![0; 1 << 16] };
        let nic = DatagramNic::new(Box::new(medium), "udp".into(), host, LARGEST_DATAGRAM)?;
        Ok(Self { nic })
    }
}

/// Asks for a large receive buffer; says how large it is.
fn widen(socket: &UdpSocket) -> usize {
    let wanted = RECEIVE_BUFFER;
    let mut got = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the pointers are to integers of our own, of the length said.
    unsafe {
        for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            libc::setsockopt(fd, level, option, (&raw const wanted).cast(), length);
        }
        libc::getsockopt(fd, level, libc::SO_RCVBUF, (&raw mut got).cast(), &raw mut length);
    }
    // The kernel counts its own bookkeeping too.
    (got.max(0) as usize) / 4
}

struct UdpMedium {
    socket: UdpSocket,
    room: usize,
    /// The largest datagram to each host that was asked about.
    datagrams: Mutex<BTreeMap<IpAddr, u16>>,
    buffer: Vec<u8>,
}

impl UdpMedium {
    /// What the route to `address` takes in one packet, by the kernel's knowledge.
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
            // SAFETY: the pointers are to integers of our own.
            let status =
                unsafe { libc::getsockopt(fd, level, option, (&raw mut mtu).cast(), &raw mut length) };
            if status < 0 { Err(io::Error::last_os_error()) } else { Ok(mtu) }
        });
        let mtu = mtu
            .ok()
            .and_then(|mtu| u32::try_from(mtu).ok())
            .filter(|mtu| *mtu >= 1280)
            .unwrap_or(USUAL_PACKET_BYTES);
        (mtu.saturating_sub(HEADERS)).min(LARGEST_DATAGRAM) as u16
    }
}

impl Medium for UdpMedium {
    fn send(&mut self, to: Peer, datagram: &[u8]) {
        if let Peer::Socket(address) = to {
            // What cannot be sent now is as good as lost, and comes again.
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
                // A peer's port that is closed is reported by the next call; the datagrams behind it count.
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
        let mut known = self.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(address.ip()).or_insert_with(|| Self::measure(address))
    }

    fn room(&self) -> usize {
        self.room
    }

    fn resolve(&self) -> Resolve {
        |host| {
            let text = String::from_utf8_lossy(host);
            let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
            let why =
                || format!("\"{text}\" is no address and port, such as 192.168.0.7:7471 or server:7471");
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
