//! Subscribers to bytes. `typed.rs` has the typed interface.

use crate::error::Error;
use crate::folder::Folder;
use crate::layout::{INLINE, INLINE_BYTES, slot_and_elements};
use crate::message::MessageType;
use crate::options::Overflow;
use crate::reactor::Registration;
use crate::ring::{self, Reading};
use crate::sample::{Body, Channel, Inline, RawSample, SlotGuard};
use crate::shared::{ControlPage, TopicMemory};
use crate::socket;
use crate::wire::{Answer, Hello, Offer};
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long a publisher may take to answer.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Maximum number of times that a call skips a message that is overwritten while it is read.
const ATTEMPTS: u32 = 8;
/// Number of calls without a message after which the subscriber reads the clock.
const CLOCK_CHECK: u32 = 64;
/// Minimum interval between checks whether the publisher is alive.
const LIFE_CHECK: Duration = Duration::from_millis(1);
/// How long a waiter polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// Options of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscribeOptions {
    /// The number of earlier messages to receive first, limited by the topic's history. By default 0.
    pub history: u32,
    /// How long to wait for a publisher. By default 0.
    pub wait: Duration,
    /// The folder of the topics, by default as in [`Options::folder`](crate::Options::folder).
    pub folder: Option<PathBuf>,
}

/// A subscriber to bytes, of a type described at run time. Programs in Rust use [`Subscriber`](crate::Subscriber).
pub struct RawSubscriber {
    channel: Arc<Channel>,
    topic: String,
    message: MessageType,
    max_samples: u32,
    overflow: Overflow,
    /// The number of the next message, and its entry.
    next: u64,
    index: u32,
    /// The number of all lost messages, and of those lost directly before the next sample.
    lost: u64,
    lost_before: u64,
    /// The last wait of the publisher to which this subscriber has responded.
    answered: u64,
    /// Calls without a message since the clock was last read.
    empty: u32,
    /// The time of the last check whether the publisher is alive.
    checked: Instant,
    /// The process that may use the subscriber.
    creator_pid: u32,
    has_ended: bool,
    registration: Option<Registration>,
}

impl RawSubscriber {
    /// Subscribes to a topic of any type.
    ///
    /// # Errors
    /// [`Error::NoPublisher`], [`Error::Name`], [`Error::Folder`]; [`Error::Refused`] if the topic has as many
    /// subscribers as it permits; [`Error::Protocol`] if the publisher misbehaves; [`Error::TimedOut`] if it does not
    /// answer within five seconds.
    pub fn connect(topic: &str, options: &SubscribeOptions) -> Result<Self, Error> {
        let folder = Folder::open(options.folder.as_deref())?;
        let path = folder.socket(topic)?;
        let deadline = Instant::now().checked_add(options.wait);
        let mut pause = Duration::from_millis(1);
        loop {
            match connect_once(topic, &path, options.history) {
                Err(Error::NoPublisher(_)) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                other => return other,
            }
        }
    }

    fn new(topic: &str, offer: Offer, socket: OwnedFd, files: [OwnedFd; 2]) -> Result<Self, Error> {
        let [memory, control] = files;
        let memory = TopicMemory::map(memory, offer.geometry()?)?;
        let control = ControlPage::map(control)?;
        control.words().consumed.store(offer.start, Ordering::Release);
        let channel = Channel { memory, control, socket, taken: AtomicU32::new(0) };
        Ok(Self {
            topic: topic.into(),
            message: offer.message,
            max_samples: offer.max_samples,
            overflow: offer.overflow,
            next: offer.start,
            index: channel.memory.index_of(offer.start),
            channel: Arc::new(channel),
            lost: 0,
            lost_before: 0,
            answered: 0,
            empty: 0,
            checked: Instant::now(),
            creator_pid: std::process::id(),
            has_ended: false,
            registration: None,
        })
    }

    /// The name of the topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The type of the topic's messages.
    pub fn message(&self) -> &MessageType {
        &self.message
    }

    /// The number of messages lost so far: overwritten before they were received.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The control page and the socket, with which tests act as a misbehaving subscriber.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&ControlPage, &OwnedFd) {
        (&self.channel.control, &self.channel.socket)
    }

    /// The next message, if there is one. Makes no system call if there is a message, otherwise at most one per
    /// millisecond.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Died`] after the last message; [`Error::TooManySamples`]; [`Error::Protocol`] if
    /// the publisher misbehaves.
    #[inline]
    pub fn receive(&mut self) -> Result<Option<RawSample>, Error> {
        for _ in 0..ATTEMPTS {
            let memory = &self.channel.memory;
            match ring::read(memory.entry(self.index), &memory.head().published, self.next) {
                Reading::Empty => return self.without_message(),
                Reading::Lost(published) => self.skip(published)?,
                Reading::Message { place, words } => {
                    if let Some(sample) = self.take(place, Inline(words))? {
                        return Ok(Some(sample));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The message in the current entry. `None` if it was overwritten meanwhile.
    fn take(&mut self, place: u64, words: Inline) -> Result<Option<RawSample>, Error> {
        let (slot, elements) = slot_and_elements(place);
        let bytes = u64::from(elements) * self.message.element_bytes as u64;
        let longest = self.channel.memory.geometry.message_bytes as u64;
        if bytes > longest || (elements != 1 && !self.message.is_slice) {
            return Err(Error::Protocol("a message has a length that its type does not permit"));
        }
        let body = if slot == INLINE {
            if bytes > INLINE_BYTES as u64 {
                return Err(Error::Protocol("a long message is not in a slot"));
            }
            Body::Inline(words)
        } else {
            if slot >= self.channel.memory.geometry.slots {
                return Err(Error::Protocol("a message is outside of the topic's memory"));
            }
            match self.hold(slot)? {
                Some(hold) => Body::Slot(hold),
                None => return Ok(None),
            }
        };
        let (number, lost) = (self.next, std::mem::take(&mut self.lost_before));
        self.advance_to(number + 1);
        Ok(Some(RawSample { body, number, elements, bytes: bytes as usize, lost }))
    }

    /// Holds a slot of the current message. `None` if the message was overwritten meanwhile.
    fn hold(&self, slot: u32) -> Result<Option<SlotGuard>, Error> {
        let channel = &self.channel;
        let index = channel.taken.load(Ordering::Acquire).trailing_ones();
        if index >= self.max_samples {
            return Err(Error::TooManySamples(self.max_samples));
        }
        let word = &channel.control.words().holds[index as usize];
        if !ring::hold(word, slot, channel.memory.entry(self.index), self.next) {
            return Ok(None);
        }
        channel.taken.fetch_or(1 << index, Ordering::Relaxed);
        Ok(Some(SlotGuard { channel: channel.clone(), index, slot }))
    }

    /// Continues after lost messages.
    #[cold]
    fn skip(&mut self, published: u64) -> Result<(), Error> {
        if published > u64::MAX / 2 {
            return Err(Error::Protocol("it claims to have published more messages than possible"));
        }
        // Skip the oldest quarter, which would be overwritten next.
        let depth = u64::from(self.channel.memory.geometry.depth);
        let next = (published + depth / 4).saturating_sub(depth).max(self.next + 1);
        self.lost += next - self.next;
        self.lost_before += next - self.next;
        self.channel.control.words().lost.store(self.lost, Ordering::Relaxed);
        self.advance_to(next);
        Ok(())
    }

    fn advance_to(&mut self, next: u64) {
        let channel = &self.channel;
        let (consumed, depth) = (&channel.control.words().consumed, channel.memory.geometry.depth);
        self.index = match next - self.next {
            1 if self.index + 1 < depth => self.index + 1,
            1 => 0,
            _ => channel.memory.index_of(next),
        };
        self.next = next;
        if self.overflow == Overflow::Overwrite {
            consumed.store(next, Ordering::Release);
        } else if ring::consume(consumed, &channel.memory.head().wanted, next, &mut self.answered) {
            socket::nudge(channel.socket.as_fd());
        }
    }

    /// Checks at intervals whether the publisher is alive.
    fn without_message(&mut self) -> Result<Option<RawSample>, Error> {
        self.empty += 1;
        if self.empty >= CLOCK_CHECK {
            self.empty = 0;
            if self.checked.elapsed() >= LIFE_CHECK {
                self.check_life();
                self.checked = Instant::now();
            }
        }
        if !self.has_ended {
            return Ok(None);
        }
        // Return messages that were published before the end.
        let memory = &self.channel.memory;
        if ring::read(memory.entry(self.index), &memory.head().published, self.next) != Reading::Empty {
            return Ok(None);
        }
        Err(if memory.head().closed.load(Ordering::Acquire) == 1 { Error::Closed } else { Error::Died })
    }

    /// Receives the publisher's bytes, and detects its end.
    fn check_life(&mut self) {
        if !self.has_ended && socket::take_nudges(self.channel.socket.as_fd()).is_none() {
            self.has_ended = true;
        }
    }

    /// Waits for the next message, without limit if `timeout` is `None`. Polls for 20 us, then sleeps.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; those of [`receive`](Self::receive).
    pub fn receive_wait(&mut self, timeout: Option<Duration>) -> Result<RawSample, Error> {
        if let Some(sample) = self.receive()? {
            return Ok(sample);
        }
        let begin = Instant::now();
        let deadline = timeout.and_then(|timeout| begin.checked_add(timeout));
        while begin.elapsed() < SPIN {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
            if let Some(sample) = self.receive()? {
                return Ok(sample);
            }
        }
        loop {
            if let Some(sample) = self.announce_sleep()? {
                return Ok(sample);
            }
            let woken = socket::wait_readable(self.channel.socket.as_fd(), deadline);
            ring::awake(&self.channel.control.words().asleep);
            if !woken? {
                return Err(Error::TimedOut);
            }
            self.check_life();
            if let Some(sample) = self.receive()? {
                return Ok(sample);
            }
        }
    }

    /// Notifies the publisher that this subscriber is about to sleep. Returns a message if there is one after all.
    fn announce_sleep(&mut self) -> Result<Option<RawSample>, Error> {
        ring::fall_asleep(&self.channel.control.words().asleep);
        let received = self.receive();
        if !matches!(received, Ok(None)) {
            ring::awake(&self.channel.control.words().asleep);
        }
        received
    }

    /// The next message, on any executor. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub async fn receive_async(&mut self) -> Result<RawSample, Error> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<RawSample, Error>> {
        ring::awake(&self.channel.control.words().asleep);
        self.check_life();
        if let Some(received) = self.receive().transpose() {
            return Poll::Ready(received);
        }
        let socket = self.channel.socket.as_fd();
        let registration = match self.registration.take() {
            Some(registration) => registration,
            None => Registration::new(socket)?,
        };
        let armed = registration.arm(socket, context.waker());
        self.registration = Some(registration);
        armed?;
        self.announce_sleep().transpose().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for RawSubscriber {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            registration.end(self.channel.socket.as_fd());
        }
        // Samples may outlive the subscriber and keep their slots, but the publisher must not wait for a dropped
        // subscriber. In a forked child, the subscription still belongs to the parent.
        if self.creator_pid == std::process::id() {
            let (consumed, wanted) =
                (&self.channel.control.words().consumed, &self.channel.memory.head().wanted);
            if ring::consume(consumed, wanted, u64::MAX, &mut self.answered) {
                socket::nudge(self.channel.socket.as_fd());
            }
        }
    }
}

fn connect_once(topic: &str, path: &Path, history: u32) -> Result<RawSubscriber, Error> {
    let deadline = Instant::now() + HANDSHAKE;
    let socket = socket::connect(path, deadline)?.ok_or_else(|| Error::NoPublisher(topic.into()))?;
    socket::send(&socket, &Hello::Subscribe { history }.encode(), &[])?;
    match socket::receive_answer(&socket, deadline)? {
        (Answer::Offer(offer), files) => {
            let files = files.try_into().map_err(|_| Error::Protocol("an offer without its memory"))?;
            RawSubscriber::new(topic, offer, socket, files)
        }
        (Answer::Refusal(reason), _) => Err(Error::Refused(reason)),
        (Answer::Report(_), _) => Err(Error::Protocol("it answered a subscription with a report")),
    }
}
