//! The packet format. The checksum detects accidental damage. The tags protect against attackers that cannot observe
//! the path, but not against attackers that can.
//!
//! Source: selective acknowledgement after RFC 2018; verification tags after RFC 9260 (8.5), but with 64 bits; CRC-32C
//! after RFC 3385.

/// "LM" and the version of the format.
const MAGIC: [u8; 3] = [b'L', b'M', 3];

/// The size of a packet without selective acknowledgements and payload, bytes.
pub const HEADER_BYTES: usize = 48;

/// The maximum number of selective-acknowledgement words. They cover 256 packets after the first missing one.
pub const MAX_SACK_WORDS: usize = 4;

/// The maximum size of the header and the selective acknowledgements, bytes.
pub const MAX_HEADER_BYTES: usize = HEADER_BYTES + 8 * MAX_SACK_WORDS;

const FLAG_FIRST: u8 = 1;
const FLAG_LAST: u8 = 2;

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Requests a connection. Its tag `to` is 0, or the cookie of an `Again`.
    Open = 1,
    /// Answers `Open`: the connection is accepted.
    Accept = 2,
    /// Answers `Open`: the connection is rejected.
    Reject = 3,
    /// A fragment of a message.
    Data = 4,
    /// An acknowledgement without data.
    Ack = 5,
    /// Requests an `Ack`.
    Probe = 6,
    /// Closes the connection.
    Close = 7,
    /// Answers `Close`.
    Closed = 8,
    /// Answers a packet for an unknown connection.
    Reset = 9,
    /// Answers `Open`: it must be repeated with this packet's `from` as a cookie, which proves that the peer receives
    /// packets at its source address.
    Again = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Open,
    Kind::Accept,
    Kind::Reject,
    Kind::Data,
    Kind::Ack,
    Kind::Probe,
    Kind::Close,
    Kind::Closed,
    Kind::Reset,
    Kind::Again,
];

/// A packet. Numbers are in network order on the wire.
///
/// | bytes | field |
/// | --- | --- |
/// | 0..3 | magic and version |
/// | 3 | kind |
/// | 4..8 | CRC-32C of the packet with these four bytes zero |
/// | 8..16, 16..24 | tags `to` and `from` |
/// | 24..32 | sequence |
/// | 32..40 | acknowledged |
/// | 40..42 | window |
/// | 42 | number of selective-acknowledgement words |
/// | 43 | flags: 1 first fragment, 2 last |
/// | 44..46 | payload size, bytes; padding may follow the packet in its frame |
/// | 46..48 | zero |
/// | 48.. | selective acknowledgements, then the payload |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The type.
    pub kind: Kind,
    /// The receiver's tag. A packet with the tag of an earlier connection is stale.
    pub to: u64,
    /// The sender's tag; never 0.
    pub from: u64,
    /// The number of this packet (`Data`), or of the next data packet (all others).
    pub sequence: u64,
    /// All packets below this number have arrived.
    pub acknowledged: u64,
    /// The receive window: the sender of this packet accepts this many packets, starting with number `acknowledged`.
    pub window: u16,
    /// Bit `i` of word `w` is set if packet `acknowledged + 1 + 64 w + i` has arrived. Words after the last set bit are
    /// not sent.
    pub sack: [u64; MAX_SACK_WORDS],
    /// Whether a message begins in this packet.
    pub first: bool,
    /// Whether a message ends in this packet.
    pub last: bool,
    /// The payload.
    pub payload: &'a [u8],
}

/// The reason why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// There are fewer bytes than the header requires.
    #[error("the packet is truncated")]
    Short,
    /// The magic number or version is wrong.
    #[error("not a packet of this protocol and version")]
    Magic,
    /// The type is unknown.
    #[error("unknown packet type {0}")]
    Kind(u8),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// A field is invalid: too many selective-acknowledgement words, unknown flags, tag 0, or nonzero reserved bytes.
    #[error("a field has an invalid value")]
    Field,
}

impl<'a> Packet<'a> {
    /// Creates a packet of a kind between two tags, with all other fields zero.
    pub const fn new(kind: Kind, to: u64, from: u64) -> Self {
        Self {
            kind,
            to,
            from,
            sequence: 0,
            acknowledged: 0,
            window: 0,
            sack: [0; MAX_SACK_WORDS],
            first: false,
            last: false,
            payload: &[],
        }
    }

    /// Decodes a packet at the start of a datagram; bytes after the payload are padding. Never panics.
    ///
    /// # Errors
    /// If the packet is invalid.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketError> {
        let (header, rest) = datagram.split_first_chunk::<HEADER_BYTES>().ok_or(PacketError::Short)?;
        if header[..3] != MAGIC {
            return Err(PacketError::Magic);
        }
        let words = usize::from(header[42]);
        let payload_bytes = usize::from(u16::from_be_bytes([header[44], header[45]]));
        if words > MAX_SACK_WORDS {
            return Err(PacketError::Field);
        }
        let (sack_bytes, rest) = rest.split_at_checked(8 * words).ok_or(PacketError::Short)?;
        let payload = rest.get(..payload_bytes).ok_or(PacketError::Short)?;
        if checksum(&datagram[..HEADER_BYTES + 8 * words + payload_bytes]) != be32(header, 4) {
            return Err(PacketError::Checksum);
        }
        let kind = KINDS.get(usize::from(header[3]).wrapping_sub(1)).ok_or(PacketError::Kind(header[3]))?;
        let (flags, from) = (header[43], be64(header, 16));
        if flags & !(FLAG_FIRST | FLAG_LAST) != 0 || header[46..] != [0, 0] || from == 0 {
            return Err(PacketError::Field);
        }
        let mut sack = [0; MAX_SACK_WORDS];
        for (word, bytes) in sack.iter_mut().zip(sack_bytes.as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Ok(Self {
            kind: *kind,
            to: be64(header, 8),
            from,
            sequence: be64(header, 24),
            acknowledged: be64(header, 32),
            window: u16::from_be_bytes([header[40], header[41]]),
            sack,
            first: flags & FLAG_FIRST != 0,
            last: flags & FLAG_LAST != 0,
            payload,
        })
    }

    /// Appends the encoded packet to `out`.
    ///
    /// # Panics
    /// If the payload is longer than 65,535 bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let words = MAX_SACK_WORDS - self.sack.iter().rev().take_while(|w| **w == 0).count();
        let payload_bytes = u16::try_from(self.payload.len()).expect("a datagram holds less than 64 KiB");
        out.extend(MAGIC);
        out.push(self.kind as u8);
        out.extend([0; 4]);
        out.extend(self.to.to_be_bytes());
        out.extend(self.from.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        out.extend(self.acknowledged.to_be_bytes());
        out.extend(self.window.to_be_bytes());
        out.push(words as u8);
        out.push(if self.first { FLAG_FIRST } else { 0 } | if self.last { FLAG_LAST } else { 0 });
        out.extend(payload_bytes.to_be_bytes());
        out.extend([0; 2]);
        for word in &self.sack[..words] {
            out.extend(word.to_be_bytes());
        }
        out.extend(self.payload);
        let sum = checksum(&out[start..]);
        out[start + 4..start + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The CRC-32C of a packet, with the checksum field taken as zero.
fn checksum(packet: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&packet[..4]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &packet[8..])
}

fn be32(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"))
}

fn be64(header: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> impl Strategy<Value = (Packet<'static>, Vec<u8>)> {
        let numbers = (any::<u64>(), 1u64.., any::<u64>(), any::<u64>(), any::<u16>(), any::<[u64; 4]>());
        let words = 0usize..=MAX_SACK_WORDS;
        let rest = (0usize..9, any::<bool>(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300));
        (numbers, words, rest).prop_map(|(numbers, words, (kind, first, last, payload))| {
            let (to, from, sequence, acknowledged, window, mut sack) = numbers;
            sack[words..].fill(0);
            let payload_of_none: &'static [u8] = &[];
            let kind = KINDS[kind];
            let packet = Packet {
                kind,
                to,
                from,
                sequence,
                acknowledged,
                window,
                sack,
                first,
                last,
                payload: payload_of_none,
            };
            (packet, payload)
        })
    }

    proptest! {
        #[test]
        fn packets_round_trip((packet, payload) in packets(), padding in 0usize..50) {
            let packet = Packet { payload: &payload, ..packet };
            let mut bytes = Vec::new();
            packet.write(&mut bytes);
            prop_assert!(bytes.len() <= MAX_HEADER_BYTES + payload.len());
            bytes.resize(bytes.len() + padding, 0xee);
            prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
        }

        #[test]
        fn a_flipped_bit_is_found((packet, payload) in packets(), bit in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            Packet { payload: &payload, ..packet }.write(&mut bytes);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Packet::parse(&bytes).is_err());
        }

        #[test]
        fn a_packet_cut_short_is_refused((packet, payload) in packets(), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            Packet { payload: &payload, ..packet }.write(&mut bytes);
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(Packet::parse(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Packet::parse(&bytes);
            let mut with_magic = MAGIC.to_vec();
            with_magic.extend(bytes);
            let _ = Packet::parse(&with_magic);
        }
    }
}
