//! Established TCP connections of a network namespace with the bytes transferred, its UDP sockets, and the addresses of its
//! interfaces.
//!
//! Source: sock_diag(7); Linux include/uapi/linux/tcp.h (struct tcp_info), include/uapi/linux/sock_diag.h
//! (SK_MEMINFO_DROPS); proc(5) (/proc/net/tcp) for kernels without sock_diag.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags};
use netlink_sys::{Socket as Netlink, SocketAddr as NetlinkAddress, protocols::NETLINK_SOCK_DIAG};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An established TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Inode number, to which descriptors refer; 0 if no process has it open.
    pub inode: u32,
    /// Bytes received; `None` if the kernel does not report them.
    pub received: Option<u64>,
    /// Bytes sent and acknowledged; `None` if the kernel does not report them.
    pub sent: Option<u64>,
}

/// A UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramSocket {
    /// Local address; unspecified if it receives on all interfaces.
    pub local: SocketAddr,
    /// Remote address of a connected socket.
    pub remote: Option<SocketAddr>,
    /// Inode number, to which descriptors refer; 0 if no process has it open.
    pub inode: u32,
    /// Datagrams dropped because the socket's buffer was full; `None` if the kernel does not report them.
    pub dropped: Option<u32>,
}

/// Size of the receive buffer. The kernel fills at most 32 KiB per call during a dump.
const BUFFER: usize = 64 << 10;
/// Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info`.
const ACKED: usize = 120;
const RECEIVED: usize = 128;

/// Queries the kernel by netlink.
///
/// # Errors
/// The kernel's error.
pub fn dump() -> io::Result<Vec<Socket>> {
    Ok(responses(IPPROTO_TCP, ExtensionFlags::INFO, StateFlags::ESTABLISHED)?
        .iter()
        .map(of_response)
        .collect())
}

/// Queries the kernel for UDP sockets by netlink.
///
/// # Errors
/// The kernel's error.
pub fn dump_datagrams() -> io::Result<Vec<DatagramSocket>> {
    // A connected socket is ESTABLISHED, any other CLOSE.
    let states = StateFlags::ESTABLISHED | StateFlags::CLOSE;
    Ok(responses(IPPROTO_UDP, ExtensionFlags::SKMEMINFO, states)?.iter().map(datagram_socket).collect())
}

/// All sockets of a protocol in these states.
fn responses(protocol: u8, extensions: ExtensionFlags, states: StateFlags) -> io::Result<Vec<InetResponse>> {
    let mut netlink = Netlink::new(NETLINK_SOCK_DIAG)?;
    netlink.bind_auto()?;
    netlink.connect(&NetlinkAddress::new(0, 0))?;
    let mut sockets = Vec::new();
    for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let (extensions, states) = (extensions.clone(), states.clone());
        send_request(&netlink, InetRequest { family, protocol, extensions, states, socket_id })?;
        while receive(&netlink, &mut sockets)? {}
    }
    Ok(sockets)
}

fn send_request(netlink: &Netlink, request: InetRequest) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    netlink.send(&bytes, 0).map(drop)
}

/// Receives some sockets. Returns whether there are more.
fn receive(netlink: &Netlink, sockets: &mut Vec<InetResponse>) -> io::Result<bool> {
    let mut buffer = Vec::with_capacity(BUFFER);
    netlink.recv(&mut buffer, 0)?;
    let broken = |error: netlink_packet_core::DecodeError| {
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    };
    let mut rest = &buffer[..];
    while !rest.is_empty() {
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(broken)?;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(false),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                sockets.push(*response);
            }
            _ => {}
        }
        // Messages are aligned to four bytes.
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        rest = rest.get(length..).unwrap_or_default();
    }
    // Stop on an empty message, to avoid an endless loop.
    Ok(!buffer.is_empty())
}

fn of_response(response: &InetResponse) -> Socket {
    let id = &response.header.socket_id;
    let info = response.nlas.iter().find_map(|nla| match nla {
        Nla::TcpInfo(bytes) => Some(bytes.as_slice()),
        _ => None,
    });
    // The structure is shorter on older kernels.
    let number = |at: usize| Some(u64::from_ne_bytes(info?.get(at..at + 8)?.try_into().ok()?));
    Socket {
        local: SocketAddr::new(id.source_address.to_canonical(), id.source_port),
        remote: SocketAddr::new(id.destination_address.to_canonical(), id.destination_port),
        inode: response.header.inode,
        received: number(RECEIVED),
        sent: number(ACKED),
    }
}

fn datagram_socket(response: &InetResponse) -> DatagramSocket {
    let id = &response.header.socket_id;
    let remote = SocketAddr::new(id.destination_address.to_canonical(), id.destination_port);
    let dropped = response.nlas.iter().find_map(|nla| match nla {
        Nla::MemInfo(info) => Some(info.drops),
        _ => None,
    });
    DatagramSocket {
        local: SocketAddr::new(id.source_address.to_canonical(), id.source_port),
        remote: (id.destination_port > 0).then_some(remote),
        inode: response.header.inode,
        dropped,
    }
}

/// Reads the connections from /proc/net/tcp and tcp6, which do not report bytes.
pub fn from_proc(read: impl Fn(&str) -> io::Result<String>) -> Vec<Socket> {
    let tables = ["proc/net/tcp", "proc/net/tcp6"].map(|path| read(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<Socket> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, "01", ..] = words[..] else { return None };
    let (local, remote) = (address(local)?, address(remote)?);
    Some(Socket { local, remote, inode: words.get(9)?.parse().ok()?, received: None, sent: None })
}

/// Parses an address: hexadecimal 32-bit words in host byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

/// Addresses of an interface; empty if the system does not report any.
pub fn addresses(interface: &str) -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let of_interface = all.filter(|one| one.interface_name == interface);
    let address = |one: nix::ifaddrs::InterfaceAddress| {
        let address = one.address?;
        let four = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        four.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    of_interface.filter_map(address).collect()
}

#[cfg(test)]
mod tests;
