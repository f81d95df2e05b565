//! Reassembles messages from their parts, as a state machine without I/O.

use crate::error::Error;
use crate::wire::{FrameKind, Header};

/// The type of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message that needs no answer.
    Message,
    /// A request, to be answered by [`Connection::respond`](crate::Connection::respond).
    Request,
    /// The response to one of this side's requests.
    Response,
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Whether it is a message, a request or a response.
    pub kind: Kind,
    /// The number of the request; 0 for a message.
    pub id: u64,
    /// The contents.
    pub bytes: Vec<u8>,
}

/// A message of which some parts have not arrived.
#[derive(Debug)]
struct Partial {
    message: Incoming,
    /// The length of the whole message.
    total: usize,
}

/// Reassembles messages.
#[derive(Debug)]
pub struct Assembly {
    max_message: u32,
    partial: Option<Partial>,
}

/// The memory reserved for a message when its first part arrives, bytes. The rest is reserved as it arrives, so that a
/// peer that announces a long message and does not send it costs little.
const MAX_RESERVED: usize = 1 << 20;

impl Assembly {
    /// Accepts messages of up to `max_message` bytes.
    pub fn new(max_message: u32) -> Self {
        Self { max_message, partial: None }
    }

    /// Whether a part of a message has arrived, but not all of it.
    pub fn is_partial(&self) -> bool {
        self.partial.is_some()
    }

    /// Adds a part of `length` bytes, which `read` copies. Returns the message if this is its last part.
    ///
    /// # Errors
    /// [`Error::Protocol`] and [`Error::TooLong`].
    pub fn push(
        &mut self,
        header: &Header,
        length: usize,
        read: impl FnOnce(&mut [u8]),
    ) -> Result<Option<Incoming>, Error> {
        let kind = match header.kind {
            FrameKind::Message => Kind::Message,
            FrameKind::Request => Kind::Request,
            FrameKind::Response => Kind::Response,
            _ => return Err(Error::Protocol("bytes of a stream where a message was expected")),
        };
        let mut partial = match self.partial.take() {
            None => {
                if header.total > self.max_message {
                    return Err(Error::TooLong {
                        bytes: header.total.into(),
                        limit: self.max_message.into(),
                    });
                }
                let total = header.total as usize;
                let bytes = Vec::with_capacity(total.min(MAX_RESERVED));
                Partial { message: Incoming { kind, id: header.id, bytes }, total }
            }
            Some(partial)
                if header.total != 0 || (partial.message.kind, partial.message.id) != (kind, header.id) =>
            {
                return Err(Error::Protocol("a message inside of another"));
            }
            Some(_) if length == 0 => return Err(Error::Protocol("an empty part of a message")),
            Some(partial) => partial,
        };
        let bytes = &mut partial.message.bytes;
        let before = bytes.len();
        if length > partial.total - before || length == 0 && partial.total != 0 {
            return Err(Error::Protocol("parts of a message that do not add up to its length"));
        }
        let needed = before + length;
        if needed > bytes.capacity() {
            // At least double the capacity, up to the length of the message.
            let capacity = needed.max(bytes.capacity().saturating_mul(2)).min(partial.total);
            bytes.reserve_exact(capacity - before);
        }
        bytes.resize(needed, 0);
        read(&mut bytes[before..]);
        if bytes.len() == partial.total {
            return Ok(Some(partial.message));
        }
        self.partial = Some(partial);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(assembly: &mut Assembly, header: &Header, part: &[u8]) -> Result<Option<Incoming>, Error> {
        assembly.push(header, part.len(), |bytes| bytes.copy_from_slice(part))
    }

    fn header(kind: FrameKind, total: usize, id: u64) -> Header {
        Header { kind, credits: 0, total: total as u32, id }
    }

    proptest! {
        #[test]
        fn parts_become_the_message(bytes in prop::collection::vec(any::<u8>(), 0..200), part in 1usize..70, id in any::<u64>()) {
            let mut assembly = Assembly::new(200);
            for (kind, expected, id) in [
                (FrameKind::Message, Kind::Message, 0),
                (FrameKind::Request, Kind::Request, id),
                (FrameKind::Response, Kind::Response, id),
            ] {
                let mut parts: Vec<_> = bytes.chunks(part).collect();
                if parts.is_empty() {
                    parts.push(&[]);
                }
                let (mut total, mut received) = (bytes.len(), None);
                for part in parts {
                    prop_assert_eq!(&received, &None);
                    received = push(&mut assembly, &header(kind, total, id), part).unwrap();
                    total = 0;
                }
                prop_assert_eq!(received, Some(Incoming { kind: expected, id, bytes: bytes.clone() }));
                prop_assert!(!assembly.is_partial());
            }
        }

        #[test]
        fn any_parts_are_accepted_or_refused(parts in prop::collection::vec((2u8..6, 0u32..90, 0u64..3, prop::collection::vec(any::<u8>(), 0..40)), 0..30)) {
            let mut assembly = Assembly::new(80);
            for (kind, total, id, part) in parts {
                let mut bytes = header(FrameKind::Request, total as usize, id).encode();
                bytes[0] = kind;
                let Ok(header) = Header::decode(&bytes) else { continue };
                match push(&mut assembly, &header, &part) {
                    Ok(Some(message)) => prop_assert!(message.bytes.len() <= 80),
                    Ok(None) => prop_assert!(assembly.is_partial()),
                    Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn a_message_reserves_no_more_than_its_length() {
        let total = 5 * MAX_RESERVED / 2;
        let mut assembly = Assembly::new(u32::MAX);
        let part = vec![7; 1000];
        let (mut first, mut sent, mut received) = (total, 0, None);
        while sent < total {
            let length = part.len().min(total - sent);
            received = push(&mut assembly, &header(FrameKind::Message, first, 0), &part[..length]).unwrap();
            (first, sent) = (0, sent + length);
            if let Some(partial) = &assembly.partial {
                assert!(partial.message.bytes.capacity() <= total);
            }
        }
        let bytes = received.unwrap().bytes;
        assert_eq!((bytes.len(), bytes.capacity()), (total, total));
    }

    #[test]
    fn messages_that_do_not_add_up_are_refused() {
        let whole = header(FrameKind::Message, 10, 0);
        let rest = header(FrameKind::Message, 0, 0);
        for (second, part) in [
            (rest, &[0; 7][..]),
            (rest, &[]),
            (whole, &[0; 6]),
            (header(FrameKind::Request, 0, 0), &[0; 6]),
            (header(FrameKind::Bytes, 0, 0), &[0; 6]),
        ] {
            let mut assembly = Assembly::new(100);
            assert!(push(&mut assembly, &whole, &[0; 4]).unwrap().is_none());
            assert!(matches!(push(&mut assembly, &second, part), Err(Error::Protocol(_))), "{second:?}");
        }
        let mut assembly = Assembly::new(9);
        assert!(matches!(push(&mut assembly, &whole, &[0; 4]), Err(Error::TooLong { bytes: 10, limit: 9 })));
    }
}
