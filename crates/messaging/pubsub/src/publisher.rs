//! Publishers of bytes. `typed.rs` has the typed interface.

use crate::error::Error;
use crate::folder::{Folder, Ownership};
use crate::layout::{INLINE, INLINE_BYTES, INLINE_WORDS, place};
use crate::message::MessageType;
use crate::options::{Options, Overflow};
use crate::pool::Pool;
use crate::ring;
use crate::service::{Member, Service, Shared};
use crate::shared::TopicMemory;
use crate::socket;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long a call may wait for space in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitLimit {
    /// Do not wait.
    None,
    /// Wait until this time.
    Until(Instant),
    /// Wait without limit.
    Unlimited,
}

impl WaitLimit {
    /// The limit for a timeout that starts now. `None`, and timeouts beyond the range of the clock, mean no limit.
    pub fn within(limit: Option<Duration>) -> Self {
        limit.and_then(|limit| Instant::now().checked_add(limit)).map_or(Self::Unlimited, Self::Until)
    }
}

/// A publisher of bytes, of a type described at run time. Programs in Rust use [`Publisher`](crate::Publisher).
pub struct RawPublisher {
    service: Service,
    members: Vec<Arc<Member>>,
    /// The version of `members`.
    version: u64,
    pool: Pool,
    /// The slot of each entry, or [`INLINE`].
    slots: Vec<u32>,
    /// The number of the next message, and its entry.
    next: u64,
    index: u32,
    /// Messages with lower numbers have space in the ring.
    free_until: u64,
    /// The number of the last message for which the publisher has waited.
    wanted: u64,
    loan: Option<Loaned>,
    topic: String,
    _ownership: Ownership,
}

/// Keeps a topic's memory mapped after its publisher was dropped.
#[derive(Clone)]
pub struct MemoryGuard {
    _shared: Arc<Shared>,
}

/// A slot that the program writes.
#[derive(Clone, Copy)]
struct Loaned {
    slot: u32,
    elements: u32,
    bytes: usize,
}

impl RawPublisher {
    /// Creates a topic. It exists until the publisher is dropped, or its process ends.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Folder`], [`Error::Taken`], [`Error::InvalidOption`]; if the system has no memory or no
    /// descriptors.
    pub fn create(topic: &str, message: MessageType, options: Options) -> Result<Self, Error> {
        let geometry = options.geometry(&message)?;
        let folder = Folder::open(options.folder.as_deref())?;
        let ownership = folder.take(topic)?;
        let memory = TopicMemory::create(geometry)?;
        let listener = socket::listen(ownership.socket())?;
        let service = Service::start(listener, memory, message, options)?;
        Ok(Self {
            service,
            members: Vec::new(),
            version: 0,
            pool: Pool::new(geometry.slots),
            slots: vec![INLINE; geometry.depth as usize],
            next: 0,
            index: 0,
            free_until: u64::from(geometry.depth),
            wanted: 0,
            loan: None,
            topic: topic.into(),
            _ownership: ownership,
        })
    }

    /// The name of the topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The type of the topic's messages.
    pub fn message(&self) -> &MessageType {
        &self.service.shared.message
    }

    /// The topic's options.
    pub fn options(&self) -> &Options {
        &self.service.shared.options
    }

    /// The number of messages published so far.
    pub fn published(&self) -> u64 {
        self.next
    }

    /// The number of subscribers at present.
    pub fn subscribers(&self) -> usize {
        self.service.shared.members().len()
    }

    fn memory(&self) -> &TopicMemory {
        &self.service.shared.memory
    }

    /// Keeps the topic's memory mapped after the publisher is dropped, for code that still uses addresses from
    /// [`loan`](Self::loan).
    pub fn keep_memory(&self) -> MemoryGuard {
        MemoryGuard { _shared: self.service.shared.clone() }
    }

    /// Updates the copy of the subscriber list.
    fn refresh_members(&mut self) {
        let shared = &self.service.shared;
        if shared.version.load(Ordering::Acquire) != self.version {
            let members = shared.members();
            self.version = shared.version.load(Ordering::Acquire);
            self.members.clone_from(&members);
        }
    }

    /// Whether the next message can be published without overwriting a message that must not be lost.
    fn has_room(&mut self) -> bool {
        let shared = &self.service.shared;
        if shared.options.overflow == Overflow::Overwrite {
            return true;
        }
        if self.next < self.free_until && shared.version.load(Ordering::Acquire) == self.version {
            return true;
        }
        self.refresh_members();
        let next = self.next;
        let consumed = self.members.iter().map(|member| member.consumed(next)).min().unwrap_or(next);
        self.free_until = consumed + u64::from(self.memory().geometry.depth);
        next < self.free_until
    }

    /// Waits until the next message can be published without overwriting a message that must not be lost.
    fn wait_for_room(&mut self, patience: WaitLimit) -> Result<(), Error> {
        let mut interval = Duration::from_millis(1);
        let depth = u64::from(self.memory().geometry.depth);
        while !self.has_room() {
            let limit = match patience {
                WaitLimit::None => return Err(Error::Full),
                WaitLimit::Until(deadline) => deadline.saturating_duration_since(Instant::now()),
                WaitLimit::Unlimited => interval,
            };
            if limit.is_zero() {
                return Err(Error::TimedOut);
            }
            // Wait for a quarter of the ring, so that the two sides do not wake each other for every message.
            let wanted = self.next + 1 - depth + depth / 4;
            let shared = self.service.shared.clone();
            let members = shared.members();
            if wanted > self.wanted {
                self.wanted = wanted;
                shared.waits.fetch_add(1, Ordering::SeqCst);
            }
            ring::announce_wait(&shared.memory.head().wanted, wanted);
            let next = self.next;
            if members.iter().all(|member| member.consumed(next) + depth > next) {
                continue;
            }
            // A subscriber that has consumed less than a quarter does not notify the publisher, so the wait is repeated at
            // increasing intervals.
            shared.wait(members, limit.min(interval));
            interval = (interval * 2).min(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Loans a slot for a message of this many elements and returns the address of its bytes, aligned to 64. The contents
    /// are unspecified, but initialized. The address is valid until [`publish_loan`](Self::publish_loan) or
    /// [`cancel_loan`](Self::cancel_loan).
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::InvalidCall`] if there is a loan already; [`Error::Full`] without patience, or
    /// [`Error::TimedOut`], if a subscriber has not received the oldest message of a topic with [`Overflow::Block`].
    pub fn loan(&mut self, elements: usize, patience: WaitLimit) -> Result<NonNull<u8>, Error> {
        let shared = &self.service.shared;
        let limit = shared.options.elements(&shared.message) as usize;
        let is_one = shared.message.is_slice || elements == 1;
        if elements > limit || !is_one {
            return Err(Error::TooLong { elements, limit });
        }
        if self.loan.is_some() {
            return Err(Error::InvalidCall("another loan of this publisher is not published yet"));
        }
        let bytes = elements * shared.message.element_bytes;
        self.wait_for_room(patience)?;
        let slot = self.take_slot()?;
        let loaned = Loaned { slot, elements: elements as u32, bytes };
        let memory = self.memory();
        // Because of the fence, a reader that sees a later store to the payload also sees that the stamp has changed.
        memory.slot_head(slot).stamp.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let payload = NonNull::new(memory.payload(slot)).ok_or(Error::InvalidCall("no memory"))?;
        self.loan = Some(loaned);
        Ok(payload)
    }

    fn take_slot(&mut self) -> Result<u32, Error> {
        let (shared, known, version) = (&self.service.shared, &mut self.members, &mut self.version);
        let slot = self.pool.take(|| {
            ring::before_collecting_holds();
            let members = shared.members();
            *version = shared.version.load(Ordering::Acquire);
            known.clone_from(&members);
            members.iter().flat_map(|member| member.holds(shared.options.max_samples)).collect()
        });
        slot.ok_or(Error::InvalidCall("all slots are in use"))
    }

    /// Returns the loaned slot without publishing it.
    pub fn cancel_loan(&mut self) {
        if let Some(loaned) = self.loan.take() {
            self.pool.free(loaned.slot);
        }
    }

    /// Publishes the loaned slot and returns the number of the message. Wakes subscribers that sleep.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] without a loan.
    pub fn publish_loan(&mut self) -> Result<u64, Error> {
        let Loaned { slot, elements, bytes } =
            self.loan.take().ok_or(Error::InvalidCall("there is no loan to publish"))?;
        let (number, shared) = (self.next, &self.service.shared);
        let memory = &shared.memory;
        let (entry, published) = (memory.entry(self.index), &memory.head().published);
        ring::withdraw(entry);
        let old = std::mem::replace(&mut self.slots[self.index as usize], INLINE);
        if old != INLINE {
            self.pool.retire(old);
        }
        if bytes <= INLINE_BYTES {
            let mut words = [0u64; INLINE_WORDS];
            // SAFETY: the slot has at least `bytes` bytes, which only this process writes, and the array has 48.
            unsafe { std::ptr::copy_nonoverlapping(memory.payload(slot), words.as_mut_ptr().cast(), bytes) };
            ring::publish(entry, published, number, place(INLINE, elements), &words[..bytes.div_ceil(8)]);
            // The slot was never visible to subscribers.
            self.pool.free(slot);
        } else {
            memory.slot_head(slot).stamp.store(number + 1, Ordering::Relaxed);
            ring::publish(entry, published, number, place(slot, elements), &[]);
            self.slots[self.index as usize] = slot;
        }
        self.next += 1;
        self.index = if self.index + 1 == memory.geometry.depth { 0 } else { self.index + 1 };
        // Only the publisher writes the count of bytes.
        let sum = shared.bytes.load(Ordering::Relaxed) + bytes as u64;
        shared.bytes.store(sum, Ordering::Relaxed);
        self.wake_subscribers();
        Ok(number)
    }

    fn wake_subscribers(&mut self) {
        ring::before_waking();
        // Only after the barrier are all sleeping subscribers certain to be in the list.
        self.refresh_members();
        self.members.iter().for_each(|member| member.wake());
    }
}

impl Drop for RawPublisher {
    fn drop(&mut self) {
        if self.service.is_at_home() {
            self.memory().head().closed.store(1, Ordering::Release);
        }
    }
}
