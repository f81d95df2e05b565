//! The messages between VIs over a reliable connection: a 32-byte header followed by data; and the greetings exchanged
//! while connecting. Parsing validates the format; the engine validates the meaning.

use crate::address::Address;
use crate::attributes::{Reliability, ViAttributes};
use crate::descriptor::{RemoteSegment, Status};
use crate::protection::{MemoryHandle, ProtectionTag};
use crate::provider::{Header, Request};
use longma_reliable::MAX_OPENING_BYTES;

/// The size of a message header, bytes.
pub const HEAD_BYTES: usize = 32;

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageHeader {
    /// A send or an RDMA write, with its token if the sender waits for the reception.
    Data(Header, Option<u32>),
    /// An RDMA read with this token.
    Read(Header, u32),
    /// The data for the RDMA read with this token.
    ReadData(u32),
    /// The message with this token has been received into memory.
    Received(u32),
    /// A message was refused: the sender's token, if it waits, and the status for its descriptor. The connection ends.
    Refused(Option<u32>, Status),
}

impl MessageHeader {
    /// Encodes the header in network byte order: kind, flags, two zero bytes, token, length, immediate, address,
    /// handle, status.
    pub fn write(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        let (kind, token) = match self {
            MessageHeader::Data(header, token) => match header.request {
                Request::RdmaWrite(_) => (2, *token),
                _ => (1, *token),
            },
            MessageHeader::Read(_, token) => (3, Some(*token)),
            MessageHeader::ReadData(token) => (4, Some(*token)),
            MessageHeader::Received(token) => (5, Some(*token)),
            MessageHeader::Refused(token, _) => (6, *token),
        };
        let mut flags = u8::from(token.is_some());
        put(4, &token.unwrap_or(0).to_be_bytes());
        if let MessageHeader::Data(header, _) | MessageHeader::Read(header, _) = self {
            put(8, &header.length.to_be_bytes());
            put(12, &header.immediate.unwrap_or(0).to_be_bytes());
            flags |= u8::from(header.immediate.is_some()) << 1;
            if let Request::RdmaWrite(remote) | Request::RdmaRead(remote) = header.request {
                put(16, &remote.address.to_be_bytes());
                put(24, &remote.handle.0.to_be_bytes());
            }
        }
        if let MessageHeader::Refused(_, status) = self {
            put(28, &status.0.to_be_bytes());
        }
        put(0, &[kind, flags]);
        bytes
    }

    /// Decodes the header of a message and returns it with the data. `None` if it is invalid.
    pub fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, data) = message.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let address = u64::from(word(16)) << 32 | u64::from(word(20));
        let remote = RemoteSegment { address, handle: MemoryHandle(word(24)) };
        let token = (head[1] & 1 != 0).then(|| word(4));
        let immediate = (head[1] & 2 != 0).then(|| word(12));
        let header = |request| Header { request, length: word(8), immediate };
        let head = match head[0] {
            1 => MessageHeader::Data(header(Request::Send), token),
            2 => MessageHeader::Data(header(Request::RdmaWrite(remote)), token),
            3 => MessageHeader::Read(header(Request::RdmaRead(remote)), token?),
            4 => MessageHeader::ReadData(token?),
            5 => MessageHeader::Received(token?),
            6 => MessageHeader::Refused(token, Status(word(28) & Status::ERROR_MASK.0)),
            _ => return None,
        };
        let announced = match head {
            MessageHeader::Data(header, _) => header.length as usize,
            MessageHeader::ReadData(_) => data.len(),
            _ => 0,
        };
        (announced == data.len()).then_some((head, data))
    }
}

/// The maximum discriminator length. Connection parameters hold two discriminators.
pub const MAX_DISCRIMINATOR: usize = 200;

/// The data exchanged when a VI requests or accepts a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// The discriminator of the requested VI.
    pub requested: Vec<u8>,
    /// The discriminator of the requesting VI.
    pub requesting: Vec<u8>,
    /// The attributes of the sender's VI, without its tag.
    pub attributes: ViAttributes,
}

impl ConnectionParameters {
    /// Encodes the parameters.
    pub fn write(&self) -> Vec<u8> {
        let ViAttributes { reliability, max_transfer_bytes, rdma_write, rdma_read, .. } = self.attributes;
        let mut bytes = vec![reliability as u16 as u8, u8::from(rdma_write) | u8::from(rdma_read) << 1];
        bytes.extend(max_transfer_bytes.to_be_bytes());
        for name in [&self.requested, &self.requesting] {
            bytes.push(name.len().min(MAX_DISCRIMINATOR) as u8);
            bytes.extend(&name[..name.len().min(MAX_DISCRIMINATOR)]);
        }
        debug_assert!(bytes.len() <= MAX_OPENING_BYTES);
        bytes
    }

    /// Decodes connection parameters. `None` if they are invalid.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let ([reliability, flags, m0, m1, m2, m3], rest) = bytes.split_first_chunk()?;
        let (requested, rest) = name(rest)?;
        let (requesting, rest) = name(rest)?;
        let attributes = ViAttributes {
            reliability: Reliability::from_bits(u16::from(*reliability))?,
            max_transfer_bytes: u32::from_be_bytes([*m0, *m1, *m2, *m3]),
            tag: ProtectionTag::default(),
            rdma_write: flags & 1 != 0,
            rdma_read: flags & 2 != 0,
        };
        rest.is_empty().then_some(Self { requested, requesting, attributes })
    }

    /// The address of the requesting VI on the given host.
    pub fn address(&self, host: Vec<u8>) -> Address {
        Address { host, discriminator: self.requesting.clone() }
    }
}

fn name(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    if name.len() > MAX_DISCRIMINATOR {
        return None;
    }
    Some((name.to_vec(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heads() -> impl Strategy<Value = MessageHeader> {
        let remote = (any::<u64>(), any::<u32>())
            .prop_map(|(address, handle)| RemoteSegment { address, handle: MemoryHandle(handle) });
        let token = proptest::option::of(any::<u32>());
        let immediate = proptest::option::of(any::<u32>());
        prop_oneof![
            (token.clone(), immediate.clone()).prop_map(|(t, immediate)| MessageHeader::Data(
                Header { request: Request::Send, length: 3, immediate },
                t
            )),
            (remote.clone(), token.clone(), immediate).prop_map(|(remote, t, immediate)| {
                MessageHeader::Data(Header { request: Request::RdmaWrite(remote), length: 3, immediate }, t)
            }),
            (remote, any::<u32>(), any::<u32>()).prop_map(|(remote, t, length)| {
                MessageHeader::Read(Header { request: Request::RdmaRead(remote), length, immediate: None }, t)
            }),
            any::<u32>().prop_map(MessageHeader::ReadData),
            any::<u32>().prop_map(MessageHeader::Received),
            token.prop_map(|t| MessageHeader::Refused(t, Status::RDMA_PROTECTION_ERROR)),
        ]
    }

    proptest! {
        #[test]
        fn headers_round_trip(head in heads()) {
            let data: &[u8] = if matches!(head, MessageHeader::Data(..) | MessageHeader::ReadData(_)) { b"abc" } else { b"" };
            let message = [&head.write()[..], data].concat();
            prop_assert_eq!(MessageHeader::read(&message), Some((head, data)));
        }

        #[test]
        fn connection_parameters_round_trip(
            requested in proptest::collection::vec(any::<u8>(), 0..=MAX_DISCRIMINATOR),
            requesting in proptest::collection::vec(any::<u8>(), 0..=MAX_DISCRIMINATOR),
            level in 0usize..3, max_transfer_bytes: u32, rdma_write: bool, rdma_read: bool,
        ) {
            let reliability = Reliability::ALL[level];
            let tag = ProtectionTag::default();
            let attributes = ViAttributes { reliability, max_transfer_bytes, tag, rdma_write, rdma_read };
            let parameters = ConnectionParameters { requested, requesting, attributes };
            prop_assert_eq!(ConnectionParameters::read(&parameters.write()), Some(parameters));
        }

        #[test]
        fn parameters_with_an_overlong_name_are_invalid(length in MAX_DISCRIMINATOR + 1..=255) {
            let mut bytes = vec![2, 3, 0, 0, 1, 0, length as u8];
            bytes.resize(7 + length, b'x');
            bytes.push(0);
            prop_assert_eq!(ConnectionParameters::read(&bytes), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (MessageHeader::read(&bytes), ConnectionParameters::read(&bytes));
        }
    }
}
