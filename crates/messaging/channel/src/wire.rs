//! The format of frames. A frame is one message of the VI: a header of 16 bytes and a payload.
//!
//! | bytes | contents |
//! | --- | --- |
//! | 0 | kind |
//! | 1 | 0 |
//! | 2–3 | credits: the number of slots that the sender of the frame has freed since its last frame |
//! | 4–7 | the length of the whole message in its first frame, else 0 |
//! | 8–15 | the number of the request, for requests and responses, else 0 |
//!
//! Numbers are little-endian.

/// The length of a header, bytes.
pub const HEADER_BYTES: usize = 16;
/// The length of the payload of a hello frame, bytes.
pub const HELLO_BYTES: usize = 12;
/// The smallest slot, bytes.
pub const MIN_SLOT_BYTES: u32 = 64;
/// The largest slot, bytes.
pub const MAX_SLOT_BYTES: u32 = 1 << 20;
/// The smallest number of receive slots: a single credit would be used up before it could be returned.
pub const MIN_SLOTS: u32 = 2;
/// The largest number of slots. A work queue of a VI has at least 1024 entries, some of which control frames use.
pub const MAX_SLOTS: u32 = 1000;

/// The magic number and version at the start of a hello.
const MAGIC: [u8; 4] = *b"LMC1";

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of each side.
    Hello = 1,
    /// A part of a message.
    Message = 2,
    /// A part of a request.
    Request = 3,
    /// A part of a response.
    Response = 4,
    /// Bytes of a stream.
    Bytes = 5,
    /// The sender sends no more messages, requests, responses or bytes.
    End = 6,
    /// Only returns credits.
    Credit = 7,
}

impl FrameKind {
    const ALL: [Self; 7] =
        [Self::Hello, Self::Message, Self::Request, Self::Response, Self::Bytes, Self::End, Self::Credit];

    /// Whether a frame of this kind occupies a slot until the program has received it, and so costs its sender a credit.
    pub fn is_data(self) -> bool {
        !matches!(self, Self::Hello | Self::End | Self::Credit)
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The type of the frame.
    pub kind: FrameKind,
    /// The credits that the frame returns.
    pub credits: u16,
    /// The length of the message that begins with the frame, bytes; else 0.
    pub total: u32,
    /// The number of the request, for requests and responses; else 0.
    pub id: u64,
}

impl Header {
    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.credits.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.total.to_le_bytes());
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// A description of the violation.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, &'static str> {
        let kind = FrameKind::ALL.into_iter().find(|kind| *kind as u8 == bytes[0]);
        let [_, reserved, c0, c1, t0, t1, t2, t3, id @ ..] = *bytes;
        let header = Self {
            kind: kind.ok_or("a frame of unknown kind")?,
            credits: u16::from_le_bytes([c0, c1]),
            total: u32::from_le_bytes([t0, t1, t2, t3]),
            id: u64::from_le_bytes(id),
        };
        let has_id = matches!(header.kind, FrameKind::Request | FrameKind::Response);
        let has_total = has_id || header.kind == FrameKind::Message;
        if reserved != 0 || header.id != 0 && !has_id || header.total != 0 && !has_total {
            return Err("a frame with a value in an unused field");
        }
        Ok(header)
    }
}

/// The contents of the first frame of each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The size of its receive slots, bytes, with the header.
    pub slot_bytes: u32,
    /// The number of its receive slots: the credits of the other side.
    pub slots: u32,
}

impl Hello {
    /// The payload of a hello frame.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.slot_bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.slots.to_le_bytes());
        bytes
    }

    /// Reads the payload of a hello frame.
    ///
    /// # Errors
    /// A description of the violation.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let Ok(bytes) = <[u8; HELLO_BYTES]>::try_from(bytes) else {
            return Err("a hello of the wrong length");
        };
        let [m0, m1, m2, m3, s0, s1, s2, s3, n0, n1, n2, n3] = bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err("it speaks another protocol, or another version of this one");
        }
        let hello = Self {
            slot_bytes: u32::from_le_bytes([s0, s1, s2, s3]),
            slots: u32::from_le_bytes([n0, n1, n2, n3]),
        };
        let is_valid = (MIN_SLOT_BYTES..=MAX_SLOT_BYTES).contains(&hello.slot_bytes)
            && (MIN_SLOTS..=MAX_SLOTS).contains(&hello.slots);
        if is_valid { Ok(hello) } else { Err("a hello with impossible sizes") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_decoded_header_encodes_to_the_same_bytes(bytes in any::<[u8; HEADER_BYTES]>(), kind in 0u8..9) {
            for bytes in [bytes, { let mut bytes = bytes; (bytes[0], bytes[1]) = (kind, 0); bytes }] {
                if let Ok(header) = Header::decode(&bytes) {
                    prop_assert_eq!(header.encode(), bytes);
                }
            }
        }

        #[test]
        fn a_decoded_hello_encodes_to_the_same_bytes(rest in any::<[u8; 8]>(), length in 0usize..14) {
            let mut bytes = [b"LMC1", &rest[..], b"xx"].concat();
            bytes.truncate(length);
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(hello.encode().to_vec(), bytes);
            }
        }
    }

    #[test]
    fn headers_with_values_in_unused_fields_are_refused() {
        let header = |kind| Header { kind, credits: 3, total: 0, id: 0 };
        for kind in FrameKind::ALL {
            assert_eq!(Header::decode(&header(kind).encode()), Ok(header(kind)));
            let has_id = [FrameKind::Request, FrameKind::Response].contains(&kind);
            let has_total = has_id || kind == FrameKind::Message;
            assert_eq!(
                Header::decode(&Header { id: 1, ..header(kind) }.encode()).is_ok(),
                has_id,
                "{kind:?}"
            );
            assert_eq!(
                Header::decode(&Header { total: 1, ..header(kind) }.encode()).is_ok(),
                has_total,
                "{kind:?}"
            );
        }
        let valid = Hello { slot_bytes: 64, slots: 2 };
        assert_eq!(Hello::decode(&valid.encode()), Ok(valid));
        for (slot_bytes, slots) in [(63, 2), (64, 1), (u32::MAX, 2), (64, 1001), (0, 0)] {
            assert!(Hello::decode(&Hello { slot_bytes, slots }.encode()).is_err());
        }
    }
}
