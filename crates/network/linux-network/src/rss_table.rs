//! Receive-side scaling of a NIC: reads the hash key and the indirection table from the driver and computes the queue
//! of a connection. `longma-rss` computes the hash.
//!
//! Flow director, n-tuple filters and accelerated RFS override the hash and are not queried.
//!
//! Source: Linux include/uapi/linux/ethtool.h (struct ethtool_rxfh, struct ethtool_rxnfc).

use crate::ethtool::exchange;
use std::io;
use std::net::SocketAddr;

const GET_HASH: u32 = 0x46;
const GET_FIELDS: u32 = 0x29;
/// ETH_RSS_HASH_TOP: the Toeplitz hash function.
const TOEPLITZ: u8 = 1;
const TCP_V4: u32 = 1;
const TCP_V6: u32 = 5;
const UDP_V4: u32 = 2;
const UDP_V6: u32 = 6;
/// RXH_IP_SRC and RXH_IP_DST, RXH_L4_B_0_1 and RXH_L4_B_2_3: addresses and ports of source and destination.
const ADDRESSES: u64 = 0x30;
const PORTS: u64 = 0xc0;
/// Number of words before the table in the structure.
const HEAD: usize = 6;
/// Maximum plausible number of table entries and of key bytes.
const MAX_WORDS: u32 = 1 << 16;

/// RSS configuration of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// Hash key, at least four bytes longer than the hashed data.
    pub key: Vec<u8>,
    /// Indirection table: the queue for each hash value modulo the table's length.
    pub table: Vec<u32>,
    /// Whether ports are hashed, for TCP over IPv4 and IPv6.
    pub ports: [bool; 2],
    /// Whether ports are hashed, for UDP over IPv4 and IPv6; `None` if the driver does not report it. Many drivers hash
    /// only the addresses, because fragments have no ports.
    pub datagram_ports: [Option<bool>; 2],
}

impl RssTable {
    /// The queue that receives segments from `remote` to `local`; `None` if the key is too short or the table is empty.
    pub fn queue_of(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.queue(local, remote, self.ports.map(Some))
    }

    /// Like [`queue_of`](Self::queue_of), for datagrams; `None` also if the driver does not report their hash.
    pub fn queue_of_datagrams(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.queue(local, remote, self.datagram_ports)
    }

    fn queue(&self, local: SocketAddr, remote: SocketAddr, ports: [Option<bool>; 2]) -> Option<u32> {
        // A dual-stack socket reports IPv4 addresses as IPv4-mapped IPv6 addresses.
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let (from, to) = (plain(remote), plain(local));
        let has_ports = ports[usize::from(to.is_ipv6())]?;
        let hash = longma_rss::of_connection(&self.key, from, to, has_ports)?;
        let entries = u32::try_from(self.table.len()).ok().filter(|entries| *entries > 0)?;
        self.table.get((hash % entries) as usize).copied()
    }
}

/// Queries the driver of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error: EOPNOTSUPP if the driver does not report it; `Unsupported` if it uses another hash function than
/// Toeplitz or transforms its input.
pub fn get(interface: &str) -> io::Result<RssTable> {
    let mut head = vec![0u32; HEAD];
    head[0] = GET_HASH;
    exchange(interface, &mut head)?;
    let (entries, key_bytes) = (head[2], head[3]);
    if entries == 0 || key_bytes == 0 || entries > MAX_WORDS || key_bytes > MAX_WORDS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut words = vec![0u32; HEAD + entries as usize + key_bytes.div_ceil(4) as usize];
    (words[0], words[2], words[3]) = (GET_HASH, entries, key_bytes);
    exchange(interface, &mut words)?;
    let fields = |kind| fields(interface, kind);
    let mut table = read(&words, [fields(TCP_V4), fields(TCP_V6)])?;
    table.datagram_ports = [UDP_V4, UDP_V6].map(|kind| has_ports(fields(kind)?));
    Ok(table)
}

/// Decodes the structure. `fields` are the hashed header fields; `None` if the driver does not report them, which means
/// all of them.
fn read(words: &[u32], fields: [Option<u64>; 2]) -> io::Result<RssTable> {
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    let [function, transformed, ..] = words.get(4).ok_or_else(unsupported)?.to_ne_bytes();
    // Old drivers report 0: Toeplitz was the only function.
    if !matches!(function, 0 | TOEPLITZ) || transformed != 0 {
        return Err(unsupported());
    }
    let (entries, key_bytes) = (words[2] as usize, words[3] as usize);
    let table = words.get(HEAD..HEAD + entries).ok_or_else(unsupported)?.to_vec();
    let key: Vec<u8> =
        words[HEAD + entries..].iter().flat_map(|word| word.to_ne_bytes()).take(key_bytes).collect();
    let mut ports = [true; 2];
    for (ports, fields) in ports.iter_mut().zip(fields) {
        *ports = has_ports(fields.unwrap_or(ADDRESSES | PORTS)).ok_or_else(unsupported)?;
    }
    Ok(RssTable { key, table, ports, datagram_ports: [None; 2] })
}

/// Whether these header fields include the ports; `None` if they are neither the addresses alone nor with both ports.
fn has_ports(fields: u64) -> Option<bool> {
    match fields & (ADDRESSES | PORTS) {
        ADDRESSES => Some(false),
        all if all == ADDRESSES | PORTS => Some(true),
        _ => None,
    }
}

/// Header fields hashed for a type of connection; `None` if the driver does not report them.
fn fields(interface: &str, kind: u32) -> Option<u64> {
    // struct ethtool_rxnfc: command, kind, and the fields as 64 bits, followed by space for the rest.
    let mut words = [0u32; 64];
    (words[0], words[1]) = (GET_FIELDS, kind);
    exchange(interface, &mut words).ok()?;
    let [low, high] = [words[2].to_ne_bytes(), words[3].to_ne_bytes()];
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low);
    bytes[4..].copy_from_slice(&high);
    Some(u64::from_ne_bytes(bytes)).filter(|fields| *fields != 0)
}

/// Number of the receive queue from an interrupt's name: `eth0-TxRx-3`, `virtio0-input.3`,
/// `mlx5_comp3@pci:0000:01:00.0`. `None` for interrupts for sending or events, and for names without a number.
pub fn queue_of_irq(name: &str) -> Option<u32> {
    let name = name.split('@').next()?.trim();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let lower = stem.to_ascii_lowercase();
    let receives = ["rx", "input", "comp"].iter().any(|word| lower.contains(word));
    if !receives || stem.len() == name.len() {
        return None;
    }
    name[stem.len()..].parse().ok()
}

#[cfg(test)]
mod tests;
