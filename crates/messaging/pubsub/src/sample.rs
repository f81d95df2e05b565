//! Received messages of bytes. `typed.rs` has the typed interface.

use crate::error::Error;
use crate::layout::INLINE_WORDS;
use crate::memory::copy_shared;
use crate::ring;
use crate::shared::{ControlPage, TopicMemory};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The state that a subscriber shares with its samples.
pub(crate) struct Channel {
    pub(crate) memory: TopicMemory,
    pub(crate) control: ControlPage,
    pub(crate) socket: OwnedFd,
    /// One bit for each hold in use.
    pub(crate) taken: AtomicU32,
}

/// A held slot, which the publisher does not reuse until the guard is dropped.
pub(crate) struct SlotGuard {
    pub(crate) channel: Arc<Channel>,
    /// The index of the hold in the control page.
    pub(crate) index: u32,
    pub(crate) slot: u32,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        ring::release(&self.channel.control.words().holds[self.index as usize]);
        self.channel.taken.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

/// The bytes of a short message.
#[repr(C, align(64))]
pub(crate) struct Inline(pub(crate) [u64; INLINE_WORDS]);

pub(crate) enum Body {
    /// A copy, private to this process.
    Inline(Inline),
    /// In the topic's memory.
    Slot(SlotGuard),
}

/// A message of bytes. A message of more than 48 bytes stays in the topic's memory, and the publisher does not
/// overwrite it before the sample is dropped. A publisher that violates the protocol may overwrite it at any time, so
/// treat the bytes like any other untrusted input, and copy them before use.
pub struct RawSample {
    pub(crate) body: Body,
    pub(crate) number: u64,
    pub(crate) elements: u32,
    pub(crate) bytes: usize,
    pub(crate) lost: u64,
}

impl RawSample {
    /// The number of the message: the first of a topic has 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of messages that were lost directly before this one.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The number of elements: 1 if the message is not a slice.
    pub fn elements(&self) -> usize {
        self.elements as usize
    }

    /// The length of the message, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the bytes, aligned to 64 and valid for reading while the sample lives. A publisher that violates
    /// the protocol may change the payload at any time.
    pub fn address(&self) -> *const u8 {
        match &self.body {
            Body::Inline(inline) => inline.0.as_ptr().cast(),
            Body::Slot(hold) => hold.channel.memory.payload(hold.slot),
        }
    }

    /// Whether all bytes that were read until now belong to this message. It is false only if the publisher violates
    /// the protocol.
    pub fn is_intact(&self) -> bool {
        match &self.body {
            Body::Inline(_) => true,
            Body::Slot(hold) => {
                fence(Ordering::Acquire);
                let stamp = &hold.channel.memory.slot_head(hold.slot).stamp;
                stamp.load(Ordering::Relaxed) == self.number + 1
            }
        }
    }

    /// Copies bytes from `offset` on. `to` must be inside of the message.
    ///
    /// # Errors
    /// [`Error::Overwritten`] if the publisher violates the protocol.
    ///
    /// # Panics
    /// If the range exceeds the message.
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        self.copy_unchecked(offset, to);
        if self.is_intact() { Ok(()) } else { Err(Error::Overwritten) }
    }

    /// [`copy`](Self::copy) without the check for changes.
    pub(crate) fn copy_unchecked(&self, offset: usize, to: &mut [u8]) {
        let fits = offset.checked_add(to.len()).is_some_and(|end| end <= self.bytes);
        assert!(fits, "the range exceeds the message");
        // SAFETY: the range is inside of the message, which is readable while the sample lives; `to` is not shared.
        unsafe { copy_shared(self.address().add(offset), to.as_mut_ptr(), to.len()) };
    }
}
