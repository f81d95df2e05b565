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

    /// The same for datagrams; `None` also if the driver does not report their hash.
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

/// Header fields hashed for a kind of connection; `None` if the driver does not report them.
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
mod tests {
    use super::*;

    /// The key from "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// From the same document, for each address family: destination, source, hash of the addresses, hash including the
    /// ports. `longma-rss` tests all of its values.
    const PUBLISHED: [(&str, &str, u32, u32); 2] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
    ];

    fn ends(to: &str, from: &str) -> (SocketAddr, SocketAddr) {
        (to.parse().unwrap(), from.parse().unwrap())
    }

    /// A table with 2^16 entries, so that the queue equals the low 16 bits of the hash.
    fn rss_table(ports: bool) -> RssTable {
        let datagram_ports = [Some(ports), None];
        RssTable { key: KEY.to_vec(), table: (0..1 << 16).collect(), ports: [ports; 2], datagram_ports }
    }

    #[test]
    fn the_queue_is_that_of_the_published_hashes() {
        for (to, from, addresses, all) in PUBLISHED {
            let (local, remote) = ends(to, from);
            assert_eq!(rss_table(true).queue_of(local, remote), Some(all & 0xffff), "{to}");
            assert_eq!(rss_table(false).queue_of(local, remote), Some(addresses & 0xffff), "{to}");
            let datagrams = |ports| rss_table(ports).queue_of_datagrams(local, remote);
            let is_reported = local.is_ipv4();
            assert_eq!(datagrams(true), is_reported.then_some(all & 0xffff), "{to}");
            assert_eq!(datagrams(false), is_reported.then_some(addresses & 0xffff), "{to}");
        }
        let (local, remote) = ends("[::ffff:161.142.100.80]:1766", "[::ffff:66.9.149.187]:2794");
        assert_eq!(
            rss_table(true).queue_of(local, remote),
            Some(0x51cc_c178 & 0xffff),
            "as the packets have it"
        );
    }

    #[test]
    fn without_a_key_a_table_or_one_family_no_queue_is_predicted() {
        let (local, remote) = ends(PUBLISHED[0].0, PUBLISHED[0].1);
        let (six, _) = ends(PUBLISHED[1].0, PUBLISHED[1].1);
        assert_eq!(RssTable { key: KEY[..15].to_vec(), ..rss_table(true) }.queue_of(local, remote), None);
        assert_eq!(RssTable { table: Vec::new(), ..rss_table(true) }.queue_of(local, remote), None);
        assert_eq!(rss_table(true).queue_of(six, remote), None);
    }

    #[test]
    fn a_driver_with_another_hash_function_or_other_fields_has_no_prediction() {
        let words = |function: u8, transformed: u8| {
            let mut words =
                vec![GET_HASH, 0, 2, 8, u32::from_ne_bytes([function, transformed, 0, 0]), 0, 7, 9];
            words.extend([u32::from_ne_bytes([1, 2, 3, 4]), u32::from_ne_bytes([5, 6, 7, 8])]);
            words
        };
        let found = read(&words(1, 0), [None, Some(ADDRESSES)]).unwrap();
        assert_eq!((found.table, found.ports), (vec![7, 9], [true, false]));
        assert_eq!(found.key, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(read(&words(2, 0), [None; 2]).is_err(), "exclusive or");
        assert!(read(&words(1, 1), [None; 2]).is_err(), "made symmetric");
        assert!(read(&words(1, 0), [Some(0x20), None]).is_err(), "one address alone");
        assert!(read(&[], [None; 2]).is_err());
    }

    #[test]
    fn interrupts_say_which_receive_queue_they_are_of() {
        for (name, queue) in [
            ("eth0-TxRx-3", Some(3)),
            ("i40e-ens1f0-TxRx-11", Some(11)),
            ("ens5-Tx-Rx-2", Some(2)),
            ("eth0-rx-0", Some(0)),
            ("virtio0-input.1", Some(1)),
            ("mlx5_comp7@pci:0000:01:00.0", Some(7)),
            ("virtio0-output.1", None),
            ("eth0-tx-1", None),
            ("mlx5_async0@pci:0000:01:00.0", None),
            ("eth0", None),
            ("", None),
        ] {
            assert_eq!(queue_of_irq(name), queue, "{name}");
        }
    }

    #[test]
    fn an_interface_without_a_hash_is_reported() {
        for name in ["lo", "no-such-interface-at-all", ""] {
            assert!(get(name).is_err(), "{name}");
        }
    }
}
