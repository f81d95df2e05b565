//! The messages between publishers and clients on a topic's socket. All numbers are little-endian.
//!
//! ```text
//! client:     hello(subscribe, history) or hello(query)
//! publisher:  offer, with the topic's memory and a control page; or a refusal; or a report
//! then:       single bytes, which wake a sleeping subscriber or tell a waiting publisher that messages were consumed
//! ```

use crate::error::Error;
use crate::layout::{Geometry, MAX_HELD};
use crate::message::{MAX_TYPE_NAME, MessageType};
use crate::options::{MAX_SUBSCRIBERS, Overflow};

const MAGIC: u32 = 0x5054_4d4c;
/// Both sides must have the same version.
const VERSION: u16 = 1;
/// Length of a frame's header: magic, version, kind, length of the rest.
pub(crate) const HEADER_BYTES: usize = 12;
/// The longest frame without its header.
const MAX_BODY: usize = 8192;
/// The longest reason for a refusal, bytes.
const MAX_REASON: usize = 500;

/// A client's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hello {
    /// Subscribe, with this many of the latest messages.
    Subscribe {
        /// The number of messages.
        history: u32,
    },
    /// Report the state of the topic.
    Query,
}

/// A publisher's offer to a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The type of the topic's messages.
    pub message: MessageType,
    /// The number of messages in the ring.
    pub depth: u32,
    /// The number of slots.
    pub slots: u32,
    /// The maximum number of elements of a message.
    pub max_elements: u32,
    /// The number of samples that the subscriber can keep.
    pub max_samples: u32,
    /// Whether messages can be lost.
    pub overflow: Overflow,
    /// The number of the first message for this subscriber.
    pub start: u64,
}

/// The state of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The type of its messages.
    pub message: MessageType,
    /// The publisher's process.
    pub process: u32,
    /// The number of messages in the ring.
    pub depth: u32,
    /// The number of earlier messages available to a late subscriber.
    pub history: u32,
    /// Whether messages can be lost.
    pub overflow: Overflow,
    /// The number of messages published so far.
    pub published: u64,
    /// The sum of the lengths of these messages, bytes.
    pub bytes: u64,
    /// The subscribers.
    pub subscribers: Vec<SubscriberReport>,
}

/// The state of a subscriber. Most of it comes from the subscriber and is not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriberReport {
    /// Its process.
    pub process: u32,
    /// The number of messages by which the subscriber lags behind.
    pub lag: u64,
    /// The number of messages that it has lost.
    pub lost: u64,
    /// The number of slots that its samples occupy.
    pub held: u32,
}

/// A publisher's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Hello::Subscribe`].
    Offer(Offer),
    /// To [`Hello::Subscribe`], with the reason.
    Refusal(String),
    /// To [`Hello::Query`].
    Report(Report),
}

/// Appends to a frame.
struct Frame(Vec<u8>);

impl Frame {
    fn new(kind: u16) -> Self {
        let mut frame = Self(Vec::with_capacity(256));
        frame.0.extend(MAGIC.to_le_bytes());
        frame.0.extend(VERSION.to_le_bytes());
        frame.0.extend(kind.to_le_bytes());
        frame.u32(0)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut frame = self.u32(text.len() as u32);
        frame.0.extend(text.as_bytes());
        frame
    }

    fn message(self, message: &MessageType) -> Self {
        let frame = self.text(&message.name).u64(message.element_bytes as u64);
        frame.u32(message.alignment as u32).u32(message.is_slice.into())
    }

    fn end(mut self) -> Vec<u8> {
        let length = (self.0.len() - HEADER_BYTES) as u32;
        self.0[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Reads a frame's body.
struct Fields<'a>(&'a [u8]);

const SHORT: Error = Error::Protocol("a frame is too short");

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.bytes(N)?.try_into().map_err(|_| SHORT)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, max: usize) -> Result<String, Error> {
        let length = self.u32()? as usize;
        if length > max {
            return Err(Error::Protocol("a text is too long"));
        }
        String::from_utf8(self.bytes(length)?.to_vec()).map_err(|_| Error::Protocol("a text is not UTF-8"))
    }

    fn message(&mut self) -> Result<MessageType, Error> {
        let name = self.text(MAX_TYPE_NAME)?;
        let (bytes, alignment, is_slice) = (self.u64()?, self.u32()?, self.flag()?);
        let element_bytes = usize::try_from(bytes).map_err(|_| Error::Protocol("a type is too large"))?;
        let message = MessageType { name, element_bytes, alignment: alignment as usize, is_slice };
        message.check().map(|()| message)
    }

    fn flag(&mut self) -> Result<bool, Error> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Protocol("a flag is neither 0 nor 1")),
        }
    }

    fn overflow(&mut self) -> Result<Overflow, Error> {
        Ok(if self.flag()? { Overflow::Block } else { Overflow::Overwrite })
    }

    fn end(self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Protocol("a frame is too long")) }
    }
}

/// The kind of a frame and the length of its body, from the header.
pub(crate) fn header(bytes: [u8; HEADER_BYTES]) -> Result<(u16, usize), Error> {
    let mut fields = Fields(&bytes);
    if fields.u32()? != MAGIC {
        return Err(Error::Protocol("it is not a topic of longma-pubsub"));
    }
    if u16::from_le_bytes(fields.array()?) != VERSION {
        return Err(Error::Protocol("it has another version of longma-pubsub"));
    }
    let kind = u16::from_le_bytes(fields.array()?);
    let length = fields.u32()? as usize;
    if length > MAX_BODY {
        return Err(Error::Protocol("a frame is too long"));
    }
    Ok((kind, length))
}

/// The length of a client's first message.
pub(crate) const HELLO_BYTES: usize = HEADER_BYTES + 4;

impl Hello {
    /// The frame.
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Subscribe { history } => Frame::new(1).u32(history).end(),
            Self::Query => Frame::new(2).u32(0).end(),
        }
    }

    /// Parses a frame.
    ///
    /// # Errors
    /// [`Error::Protocol`].
    pub fn decode(frame: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields(frame);
        let (kind, length) = header(fields.array()?)?;
        let history = fields.u32()?;
        fields.end()?;
        match (kind, length) {
            (1, 4) => Ok(Self::Subscribe { history }),
            (2, 4) => Ok(Self::Query),
            _ => Err(Error::Protocol("an unknown request")),
        }
    }
}

impl Answer {
    /// The frame.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Offer(offer) => {
                let frame = Frame::new(3).message(&offer.message).u32(offer.depth).u32(offer.slots);
                let frame = frame.u32(offer.max_elements).u32(offer.max_samples);
                frame.u32((offer.overflow == Overflow::Block).into()).u64(offer.start).end()
            }
            Self::Refusal(reason) => Frame::new(4).text(reason).end(),
            Self::Report(report) => {
                let frame = Frame::new(5).message(&report.message).u32(report.process).u32(report.depth);
                let frame = frame.u32(report.history).u32((report.overflow == Overflow::Block).into());
                let frame =
                    frame.u64(report.published).u64(report.bytes).u32(report.subscribers.len() as u32);
                let add = |frame: Frame, one: &SubscriberReport| {
                    frame.u32(one.process).u64(one.lag).u64(one.lost).u32(one.held)
                };
                report.subscribers.iter().fold(frame, add).end()
            }
        }
    }

    /// Parses a frame and checks all ranges.
    ///
    /// # Errors
    /// [`Error::Protocol`]; [`Error::InvalidOption`] for a number outside of its range.
    pub fn decode(frame: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields(frame);
        let (kind, length) = header(fields.array()?)?;
        if fields.0.len() != length {
            return Err(SHORT);
        }
        let answer = match kind {
            3 => Self::Offer(Offer::decode(&mut fields)?),
            4 => Self::Refusal(fields.text(MAX_REASON)?.escape_debug().collect()),
            5 => Self::Report(Report::decode(&mut fields)?),
            _ => return Err(Error::Protocol("an unknown answer")),
        };
        fields.end()?;
        Ok(answer)
    }
}

impl Offer {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, Error> {
        let message = fields.message()?;
        let (depth, slots, max_elements, max_samples) =
            (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (overflow, start) = (fields.overflow()?, fields.u64()?);
        let offer = Self { message, depth, slots, max_elements, max_samples, overflow, start };
        offer.geometry()?;
        if max_samples == 0 || max_samples > MAX_HELD || max_elements == 0 || start > u64::MAX / 2 {
            return Err(Error::Protocol("an offer with a number outside of its range"));
        }
        Ok(offer)
    }

    /// The layout of the memory.
    pub(crate) fn geometry(&self) -> Result<Geometry, Error> {
        let elements = if self.message.is_slice { self.max_elements } else { 1 };
        let bytes = u64::from(elements).saturating_mul(self.message.element_bytes as u64);
        Geometry::new(self.depth, self.slots, bytes)
    }
}

impl Report {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, Error> {
        let message = fields.message()?;
        let (process, depth, history) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (overflow, published, bytes) = (fields.overflow()?, fields.u64()?, fields.u64()?);
        let count = fields.u32()?;
        if count > MAX_SUBSCRIBERS {
            return Err(Error::Protocol("a report with too many subscribers"));
        }
        let mut one = || {
            let (process, lag, lost, held) = (fields.u32()?, fields.u64()?, fields.u64()?, fields.u32()?);
            Ok(SubscriberReport { process, lag, lost, held })
        };
        let subscribers = (0..count).map(|_| one()).collect::<Result<_, Error>>()?;
        Ok(Self { message, process, depth, history, overflow, published, bytes, subscribers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(subscribers: u32) -> Report {
        let one = |process| SubscriberReport { process, lag: 1, lost: 2, held: 3 };
        Report {
            message: MessageType::of::<[f32]>(),
            process: 1,
            depth: 2,
            history: 1,
            overflow: Overflow::Block,
            published: 3,
            bytes: 4,
            subscribers: (0..subscribers).map(one).collect(),
        }
    }

    #[test]
    fn frames_arrive_as_they_were() {
        let message = MessageType::of::<u64>();
        let offer = Offer {
            message,
            depth: 7,
            slots: 9,
            max_elements: 1,
            max_samples: 4,
            overflow: Overflow::Overwrite,
            start: 5,
        };
        for answer in [Answer::Offer(offer), Answer::Refusal("full".into()), Answer::Report(report(64))] {
            assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer);
        }
        assert!(Answer::decode(&Answer::Report(report(65)).encode()).is_err());
        for hello in [Hello::Query, Hello::Subscribe { history: 3 }] {
            assert_eq!(hello.encode().len(), HELLO_BYTES);
            assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        }
    }

    proptest! {
        #[test]
        fn a_changed_frame_is_an_error_or_has_valid_numbers(at in any::<prop::sample::Index>(), to: u8, cut in 0usize..9) {
            let mut frame = Answer::Report(report(2)).encode();
            let at = at.index(frame.len());
            frame[at] = to;
            frame.truncate(frame.len() - cut);
            if let Ok(Answer::Report(report)) = Answer::decode(&frame) {
                prop_assert!(report.message.check().is_ok() && report.subscribers.len() <= 64);
            }
        }
    }
}
