//! Selection of the receive queue, and checksum verification.
//!
//! Source: receive-side scaling as in Intel's 82599 data sheet, section 7.1.2.8: Toeplitz hash of addresses and ports,
//! an indirection table of 128 entries; checksums as in 7.1.11.

use super::super::Frame;
use super::registers as r;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Length of the hash key, bytes.
const KEY_BYTES: usize = 40;
/// Length of the key in 64-bit words.
pub(super) const KEY_WORDS: usize = KEY_BYTES / 8;
/// Length of the indirection table in 64-bit words; an entry is a byte.
pub(super) const TABLE_WORDS: usize = 128 / 8;

/// Key and indirection table as written by software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RssTable {
    /// The key. The first byte is the lowest of the first word.
    pub key: [u64; KEY_WORDS],
    /// The queue for each of 128 hashes. The first entry is the lowest byte of the first word.
    pub table: [u64; TABLE_WORDS],
}

impl RssTable {
    /// The queue of a frame; queue 0 if it is not IPv4 or if the table names a queue that does not exist.
    pub fn queue_of(&self, frame: &Frame, queues: usize) -> usize {
        let key = self.key.map(u64::to_le_bytes);
        let Some(hash) = hash(key.as_flattened(), frame) else { return 0 };
        let entry = hash as usize % (8 * TABLE_WORDS);
        let queue = usize::from(self.table[entry / 8].to_le_bytes()[entry % 8]);
        if queue < queues { queue } else { 0 }
    }
}

/// The hash of a frame: over its IPv4 addresses and, for TCP, the ports.
fn hash(key: &[u8], frame: &Frame) -> Option<u32> {
    let packet = SlicedPacket::from_ethernet(frame.payload().ok()?).ok()?;
    let Some(NetSlice::Ipv4(ip)) = &packet.net else { return None };
    let ports = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
        _ => None,
    };
    let (from, to) = ports.unwrap_or_default();
    let end = |address, port| SocketAddr::new(IpAddr::V4(address), port);
    let (from, to) = (end(ip.header().source_addr(), from), end(ip.header().destination_addr(), to));
    longma_rss::of_connection(key, from, to, ports.is_some())
}

/// Status bits for a frame's checksums: those of the IPv4 header and of TCP, or of the header only; none if it is not
/// an IPv4 packet or is a fragment.
pub(super) fn checksum_status(frame: &Frame) -> u64 {
    let packet = frame.payload().ok().and_then(|payload| SlicedPacket::from_ethernet(payload).ok());
    let Some((NetSlice::Ipv4(ip), transport)) =
        packet.and_then(|packet| Some((packet.net?, packet.transport)))
    else {
        return 0;
    };
    let header = ip.header();
    let of_header = header.header_checksum() == header.to_header().calc_header_checksum();
    let of_segment = match &transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
            Some(sum.is_ok_and(|sum| sum == tcp.checksum()))
        }
        _ => None,
    };
    let good = of_header && of_segment.unwrap_or(true);
    let checked = r::IP_SUMMED.mask() | if of_segment.is_some() { r::TCP_SUMMED.mask() } else { 0 };
    checked | if good { 0 } else { r::SUM_WRONG.mask() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::tcp::{Endpoint, Segment};

    /// The key in Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; KEY_BYTES] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// An address and a port.
    type End = ([u8; 4], u16);

    fn frame(from: End, to: End) -> Frame {
        let end = |(address, port): End| Endpoint { station: [2; 6], address, port };
        let segment = Segment { data: vec![7; 100], ..Segment::default() };
        segment.frame(&end(from), &end(to)).unwrap()
    }

    /// Values from the table in that document.
    #[test]
    fn ports_are_hashed_only_for_tcp() {
        let frame = frame(([66, 9, 149, 187], 2794), ([161, 142, 100, 80], 1766));
        assert_eq!(hash(&KEY, &frame), Some(0x51cc_c178));
        let mut bytes = frame.payload().unwrap().to_vec();
        // A protocol number for experiments (RFC 3692).
        bytes[14 + 9] = 253;
        assert_eq!(hash(&KEY, &Frame::new(&bytes)), Some(0x323e_8fc2));
        assert_eq!(hash(&KEY, &Frame::new(&[0; 60])), None);
    }

    #[test]
    fn the_table_selects_the_queue_and_missing_queues_fall_back_to_queue_0() {
        let mut spread = RssTable::default();
        let (words, _) = KEY.as_chunks::<8>();
        words.iter().zip(&mut spread.key).for_each(|(bytes, word)| *word = u64::from_le_bytes(*bytes));
        spread.table =
            std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|at| (word * 8 + at) as u8)));
        let frame = frame(([66, 9, 149, 187], 2794), ([161, 142, 100, 80], 1766));
        assert_eq!(spread.queue_of(&frame, 128), 0x78);
        assert_eq!(spread.queue_of(&frame, 0x78), 0, "there are fewer queues");
        assert_eq!(spread.queue_of(&Frame::new(&[0; 60]), 128), 0, "no packet");
    }

    #[test]
    fn verified_checksums_are_reported() {
        let is_valid = frame(([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2));
        assert_eq!(checksum_status(&is_valid), r::IP_SUMMED.mask() | r::TCP_SUMMED.mask());
        for at in [24, 60] {
            let mut bytes = is_valid.payload().unwrap().to_vec();
            bytes[at] ^= 1;
            assert!(r::SUM_WRONG.is_set(checksum_status(&Frame::new(&bytes))), "byte {at}");
        }
        assert_eq!(checksum_status(&Frame::new(&[0; 60])), 0);
    }
}
