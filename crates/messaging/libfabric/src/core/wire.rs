//! The format of frames, the messages of a connection. All numbers are little-endian.
//!
//! A frame begins with its type, flags and credits, 4 bytes; the fields of its type and the payload follow. A tagged
//! message of up to 36 bytes and its header fit into the 48 bytes that `longma-via` transfers in one cache line.

use super::buffer::MAX_SEGMENTS;

/// The longest header.
pub(crate) const MAX_HEADER_BYTES: usize = 4 + 4 + 8 * 4 + 1 + MAX_SEGMENTS * PART_BYTES;
const PART_BYTES: usize = 16;

const HAS_TAG: u8 = 1;
const HAS_DATA: u8 = 2;

/// A part of memory that the peer may read by RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) handle: u32,
    pub(crate) length: u32,
}

/// Memory that the peer may read by RDMA, in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Window {
    parts: [Part; MAX_SEGMENTS],
    count: u8,
}

impl Window {
    /// A window of up to [`MAX_SEGMENTS`] parts.
    pub(crate) fn new(parts: &[Part]) -> Self {
        let mut window = Self { count: parts.len() as u8, ..Self::default() };
        window.parts[..parts.len()].copy_from_slice(parts);
        window
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts[..self.count.into()]
    }

    /// The total length, bytes.
    pub(crate) fn len(&self) -> usize {
        self.parts().iter().map(|part| part.length as usize).sum()
    }
}

/// The operation of an atomic on remote memory. The numbers are libfabric's; the target checks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AtomicRequest {
    pub(crate) operation: u8,
    pub(crate) datatype: u8,
    /// Whether the previous values are returned.
    pub(crate) fetches: bool,
}

/// A frame without its payload. `id` numbers the requests of the side that sends them; replies repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Returns credits only.
    Credit,
    /// A message; its bytes are the payload.
    Message { tag: Option<u64>, data: Option<u64> },
    /// A message whose bytes the receiver reads from the window. When a receive has matched it, the receiver answers
    /// with `Taken`.
    Offer { id: u32, tag: Option<u64>, data: Option<u64>, window: Window },
    /// The answer to an offer. It needs a credit, since any number of offers may wait for receives.
    Taken { id: u32 },
    /// The answer to a write.
    Done { id: u32, status: u16 },
    /// Writes the payload to memory. The target answers with `Done`.
    Write { id: u32, key: u64, address: u64, data: Option<u64> },
    /// Like `Write`, but the target reads the bytes from the window.
    WriteOffer { id: u32, key: u64, address: u64, data: Option<u64>, window: Window },
    /// Reads memory. The target answers with `Reply` or `Grant`.
    Read { id: u32, key: u64, address: u64, length: u64 },
    /// The result of a read or an atomic is the payload.
    Reply { id: u32, status: u16 },
    /// The result of a read is in the window, until the reader answers with `Done` and the number of the grant.
    Grant { id: u32, grant: u32, window: Window },
    /// The reader has finished with a grant.
    Granted { grant: u32 },
    /// Combines memory with operands. The payload contains the operands, and after them the values to compare with, if
    /// the operation compares.
    Atomic { id: u32, key: u64, address: u64, request: AtomicRequest },
}

impl Frame {
    /// Whether the frame needs a credit.
    pub(crate) fn needs_credit(&self) -> bool {
        !matches!(
            self,
            Self::Credit | Self::Done { .. } | Self::Reply { .. } | Self::Grant { .. } | Self::Granted { .. }
        )
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Credit => 0,
            Self::Message { .. } => 1,
            Self::Offer { .. } => 2,
            Self::Done { .. } => 3,
            Self::Write { .. } => 4,
            Self::WriteOffer { .. } => 5,
            Self::Read { .. } => 6,
            Self::Reply { .. } => 7,
            Self::Grant { .. } => 8,
            Self::Granted { .. } => 9,
            Self::Atomic { .. } => 10,
            Self::Taken { .. } => 11,
        }
    }

    /// Writes the header to the start of `into`, which has room for [`MAX_HEADER_BYTES`]. Returns its length.
    #[inline]
    pub(crate) fn encode(&self, credits: u16, into: &mut [u8]) -> usize {
        let (tag, data) = match self {
            Self::Message { tag, data } | Self::Offer { tag, data, .. } => (*tag, *data),
            Self::Write { data, .. } | Self::WriteOffer { data, .. } => (None, *data),
            _ => (None, None),
        };
        let flags = if tag.is_some() { HAS_TAG } else { 0 } | if data.is_some() { HAS_DATA } else { 0 };
        let mut out = Writer { bytes: into, length: 0 };
        out.put(&[self.kind(), flags]);
        out.put(&credits.to_le_bytes());
        tag.into_iter().chain(data).for_each(|value| out.u64(value));
        match *self {
            Self::Credit | Self::Message { .. } => {}
            Self::Offer { id, window, .. } => {
                out.u32(id);
                out.window(&window);
            }
            Self::Done { id, status } | Self::Reply { id, status } => {
                out.u32(id);
                out.put(&status.to_le_bytes());
            }
            Self::Write { id, key, address, .. } => out.target(id, key, address),
            Self::WriteOffer { id, key, address, window, .. } => {
                out.target(id, key, address);
                out.window(&window);
            }
            Self::Read { id, key, address, length } => {
                out.target(id, key, address);
                out.u64(length);
            }
            Self::Grant { id, grant, window } => {
                out.u32(id);
                out.u32(grant);
                out.window(&window);
            }
            Self::Granted { grant } | Self::Taken { id: grant } => out.u32(grant),
            Self::Atomic { id, key, address, request } => {
                out.target(id, key, address);
                out.put(&[request.operation, request.datatype, request.fetches.into()]);
            }
        }
        out.length
    }

    /// The frame at the start of `bytes`, its credits, and the start of its payload.
    ///
    /// # Errors
    /// A violation of the format.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u16, usize), &'static str> {
        let mut from = Reader { bytes, position: 0 };
        let [kind, flags] = from.take()?;
        let credits = u16::from_le_bytes(from.take()?);
        if flags & !(HAS_TAG | HAS_DATA) != 0 {
            return Err("an unknown flag");
        }
        let tag = if flags & HAS_TAG != 0 { Some(from.u64()?) } else { None };
        let data = if flags & HAS_DATA != 0 { Some(from.u64()?) } else { None };
        let frame = match kind {
            0 => Self::Credit,
            1 => Self::Message { tag, data },
            2 => Self::Offer { id: from.u32()?, tag, data, window: from.window()? },
            3 => Self::Done { id: from.u32()?, status: u16::from_le_bytes(from.take()?) },
            4 => Self::Write { id: from.u32()?, key: from.u64()?, address: from.u64()?, data },
            5 => Self::WriteOffer {
                id: from.u32()?,
                key: from.u64()?,
                address: from.u64()?,
                data,
                window: from.window()?,
            },
            6 => Self::Read { id: from.u32()?, key: from.u64()?, address: from.u64()?, length: from.u64()? },
            7 => Self::Reply { id: from.u32()?, status: u16::from_le_bytes(from.take()?) },
            8 => Self::Grant { id: from.u32()?, grant: from.u32()?, window: from.window()? },
            9 => Self::Granted { grant: from.u32()? },
            10 => {
                let (id, key, address) = (from.u32()?, from.u64()?, from.u64()?);
                let [operation, datatype, fetches] = from.take()?;
                let request = AtomicRequest { operation, datatype, fetches: fetches != 0 };
                Self::Atomic { id, key, address, request }
            }
            11 => Self::Taken { id: from.u32()? },
            _ => return Err("an unknown kind of frame"),
        };
        Ok((frame, credits, from.position))
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl Writer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    #[inline]
    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn target(&mut self, id: u32, key: u64, address: u64) {
        self.u32(id);
        self.u64(key);
        self.u64(address);
    }

    fn window(&mut self, window: &Window) {
        self.put(&[window.count]);
        for part in window.parts() {
            self.u64(part.address);
            self.u32(part.handle);
            self.u32(part.length);
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Reader<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let bytes =
            self.bytes.get(self.position..).and_then(|rest| rest.first_chunk()).ok_or("a short frame")?;
        self.position += N;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.take().map(u32::from_le_bytes)
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, &'static str> {
        self.take().map(u64::from_le_bytes)
    }

    fn window(&mut self) -> Result<Window, &'static str> {
        let [count] = self.take()?;
        if usize::from(count) > MAX_SEGMENTS {
            return Err("a window of too many parts");
        }
        let mut window = Window { count, ..Window::default() };
        for part in &mut window.parts[..count.into()] {
            *part = Part { address: self.u64()?, handle: self.u32()?, length: self.u32()? };
        }
        Ok(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let window = prop::collection::vec(any::<(u64, u32, u32)>(), 0..=MAX_SEGMENTS).prop_map(|parts| {
            let part = |(address, handle, length)| Part { address, handle, length };
            Window::new(&parts.into_iter().map(part).collect::<Vec<_>>())
        });
        let numbers = any::<(u32, u64, u64, u64)>();
        let options = any::<(Option<u64>, Option<u64>)>();
        (0..12u8, numbers, options, window, any::<(u16, u8, u8, bool)>()).prop_map(
            |(
                kind,
                (id, key, address, length),
                (tag, data),
                window,
                (status, operation, datatype, fetches),
            )| {
                let request = AtomicRequest { operation, datatype, fetches };
                match kind {
                    0 => Frame::Credit,
                    1 => Frame::Message { tag, data },
                    2 => Frame::Offer { id, tag, data, window },
                    3 => Frame::Done { id, status },
                    4 => Frame::Write { id, key, address, data },
                    5 => Frame::WriteOffer { id, key, address, data, window },
                    6 => Frame::Read { id, key, address, length },
                    7 => Frame::Reply { id, status },
                    8 => Frame::Grant { id, grant: length as u32, window },
                    9 => Frame::Granted { grant: id },
                    10 => Frame::Taken { id },
                    _ => Frame::Atomic { id, key, address, request },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(frame in frames(), credits: u16, payload: Vec<u8>) {
            let mut bytes = [0; MAX_HEADER_BYTES].to_vec();
            let length = frame.encode(credits, &mut bytes);
            bytes.truncate(length);
            bytes.extend(&payload);
            prop_assert_eq!(Frame::decode(&bytes), Ok((frame, credits, length)));
        }

        #[test]
        fn any_bytes_are_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..150), kind in 0u8..14) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok((_, _, payload)) = Frame::decode(&bytes) {
                prop_assert!(payload <= bytes.len());
            }
        }
    }
}
