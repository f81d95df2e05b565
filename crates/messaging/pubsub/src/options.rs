//! Options of a topic, chosen by its publisher.

use crate::error::Error;
use crate::layout::{Geometry, MAX_DEPTH, MAX_HELD};
use crate::message::MessageType;
use crate::pool::BATCH;
use std::path::PathBuf;

/// The behaviour when the ring is full and a subscriber has not received the oldest message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The oldest message is overwritten. The subscriber continues with the newest three quarters of the ring and gets
    /// the number of lost messages.
    #[default]
    Overwrite,
    /// No message is lost: `publish` fails with [`Error::Full`], and `publish_wait` waits. A subscriber that stops
    /// receiving therefore stops the topic for all subscribers.
    Block,
}

/// Options of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The number of messages in the ring, and so the maximum lag of a subscriber: 1 to 1,048,576, by default 16.
    pub depth: u32,
    /// The number of earlier messages that a new subscriber can request: 0 to `depth`, by default 0.
    pub history: u32,
    /// By default the oldest message is overwritten.
    pub overflow: Overflow,
    /// The maximum length of a slice, in elements, by default 1. Ignored for messages that are not slices.
    pub max_elements: u32,
    /// The maximum number of subscribers: 1 to 64, by default 8.
    pub max_subscribers: u32,
    /// The number of samples that a subscriber can keep at once: 1 to 32, by default 4. Samples of at most 48 bytes are
    /// copies and do not count.
    pub max_samples: u32,
    /// The folder of the topics. By default `longma-topics` in `$XDG_RUNTIME_DIR`, in `/run/user/UID`, or
    /// `/tmp/longma-topics-UID`. It must belong to this user, and no other user may have rights to it.
    pub folder: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            depth: 16,
            history: 0,
            overflow: Overflow::Overwrite,
            max_elements: 1,
            max_subscribers: 8,
            max_samples: 4,
            folder: None,
        }
    }
}

/// The largest number of subscribers of a topic.
pub(crate) const MAX_SUBSCRIBERS: u32 = 64;

impl Options {
    /// Checks the ranges and computes the layout of the memory.
    pub(crate) fn geometry(&self, message: &MessageType) -> Result<Geometry, Error> {
        message.check()?;
        let within = |name, value: u32, min: u32, max: u32| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::InvalidOption { name, value: value.into(), min: min.into(), max: max.into() })
        };
        within("depth", self.depth, 1, MAX_DEPTH)?;
        within("history", self.history, 0, self.depth)?;
        within("max_elements", self.max_elements, 1, u32::MAX - 1)?;
        within("max_subscribers", self.max_subscribers, 1, MAX_SUBSCRIBERS)?;
        within("max_samples", self.max_samples, 1, MAX_HELD)?;
        // One slot is being written; all others can be in the ring or held.
        let slots = self.depth + 1 + self.max_subscribers * self.max_samples + BATCH;
        Geometry::new(self.depth, slots, self.elements(message) * message.element_bytes as u64)
    }

    /// The maximum number of elements of a message.
    pub(crate) fn elements(&self, message: &MessageType) -> u64 {
        if message.is_slice { self.max_elements.into() } else { 1 }
    }
}
