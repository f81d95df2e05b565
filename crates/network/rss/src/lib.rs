//! The Toeplitz hash that NICs use to distribute connections over receive queues (RSS). The driver supplies the key and
//! the indirection table.
//!
//! Source: Microsoft, "RSS hashing functions" (Toeplitz) and "Verifying the RSS hash calculation".

use std::net::{IpAddr, SocketAddr};

/// Hash of packets that arrive `from` a peer `to` a local address, with or without ports. `None` if the addresses
/// belong to different families, or if the key is shorter than the input plus four bytes (with ports: 16 bytes for IPv4
/// and 40 for IPv6).
pub fn of_connection(key: &[u8], from: SocketAddr, to: SocketAddr, has_ports: bool) -> Option<u32> {
    let mut input = Vec::with_capacity(36);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => input.extend([from.octets(), to.octets()].concat()),
        (IpAddr::V6(from), IpAddr::V6(to)) => input.extend([from.octets(), to.octets()].concat()),
        _ => return None,
    }
    if has_ports {
        input.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
    }
    toeplitz(key, &input)
}

/// The Toeplitz hash: the exclusive or of the 32-bit windows of the key that start at the positions of the input's one
/// bits. `None` if the key is too short.
pub fn toeplitz(key: &[u8], input: &[u8]) -> Option<u32> {
    let mut hash = 0;
    for (number, byte) in input.iter().enumerate() {
        let five = key.get(number..number + 5)?;
        let window = five.iter().fold(0u64, |window, byte| window << 8 | u64::from(*byte));
        for bit in (0..8).filter(|bit| byte & (0x80 >> bit) != 0) {
            hash ^= (window >> (8 - bit)) as u32;
        }
    }
    Some(hash)
}

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    /// The key from "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Test vectors from the same document: destination, source, hash of the addresses, hash including the ports.
    const PUBLISHED: [(&str, &str, u32, u32); 8] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
        ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
        ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
        ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    #[test]
    fn the_hashes_are_the_published_ones() {
        for (to, from, addresses, all) in PUBLISHED {
            let (to, from) = (to.parse().unwrap(), from.parse().unwrap());
            assert_eq!(of_connection(&KEY, from, to, true), Some(all), "{to}");
            assert_eq!(of_connection(&KEY, from, to, false), Some(addresses), "{to}");
        }
    }

    #[test]
    fn a_short_key_and_two_families_have_no_hash() {
        let end = |text: &str| text.parse().unwrap();
        let (four, six) = (end("10.0.0.1:80"), end("[::1]:80"));
        assert_eq!(of_connection(&KEY[..15], four, four, true), None);
        assert!(of_connection(&KEY[..16], four, four, true).is_some());
        assert_eq!(of_connection(&KEY[..39], six, six, true), None);
        assert!(of_connection(&KEY, six, six, true).is_some());
        assert_eq!(of_connection(&KEY, four, six, true), None);
    }
}
