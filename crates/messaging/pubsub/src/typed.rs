//! Publishers and subscribers of Rust types.

use crate::error::Error;
use crate::message::{Message, MessageType, Payload};
use crate::options::Options;
use crate::publisher::{RawPublisher, WaitLimit};
use crate::sample::RawSample;
use crate::subscriber::{RawSubscriber, SubscribeOptions};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::time::Duration;

/// Publishes messages of type `P`: a [`Message`] or a slice of messages. The topic exists until the publisher is
/// dropped, or its process ends.
pub struct Publisher<P: Payload + ?Sized> {
    raw: RawPublisher,
    payload: PhantomData<fn(&P)>,
}

/// A slot for the next message in the topic's memory, written like a `&mut P`. [`publish`](Self::publish) publishes it;
/// dropping it returns the slot. Its initial contents are unspecified.
pub struct Loan<'a, P: Payload + ?Sized> {
    raw: &'a mut RawPublisher,
    payload: NonNull<P>,
}

// SAFETY: the loan is the only access of this process to its bytes, and elements of a payload are Send and Sync.
unsafe impl<P: Payload + ?Sized> Send for Loan<'_, P> {}
// SAFETY: as above.
unsafe impl<P: Payload + ?Sized> Sync for Loan<'_, P> {}

impl<P: Payload + ?Sized> Publisher<P> {
    /// Creates a topic with default options: the ring holds 16 messages, and the oldest are overwritten.
    ///
    /// # Errors
    /// Those of [`RawPublisher::create`](crate::raw::RawPublisher::create).
    pub fn create(topic: &str) -> Result<Self, Error> {
        Self::create_with(topic, Options::default())
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// Those of [`RawPublisher::create`](crate::raw::RawPublisher::create).
    pub fn create_with(topic: &str, options: Options) -> Result<Self, Error> {
        let raw = RawPublisher::create(topic, MessageType::of::<P>(), options)?;
        Ok(Self { raw, payload: PhantomData })
    }

    /// The number of messages published so far.
    pub fn published(&self) -> u64 {
        self.raw.published()
    }

    /// The number of subscribers at present.
    pub fn subscribers(&self) -> usize {
        self.raw.subscribers()
    }
}

impl<T: Message> Publisher<T> {
    /// Loans a slot for the next message.
    ///
    /// # Errors
    /// [`Error::Full`] if the topic does not overwrite messages and has no space.
    pub fn loan(&mut self) -> Result<Loan<'_, T>, Error> {
        self.loan_with(WaitLimit::None)
    }

    /// Like [`loan`](Self::loan), but waits for space, without limit if `timeout` is `None`.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn loan_wait(&mut self, timeout: Option<Duration>) -> Result<Loan<'_, T>, Error> {
        self.loan_with(WaitLimit::within(timeout))
    }

    fn loan_with(&mut self, patience: WaitLimit) -> Result<Loan<'_, T>, Error> {
        let payload = self.raw.loan(1, patience)?.cast();
        Ok(Loan { raw: &mut self.raw, payload })
    }

    /// Copies a message into the topic and returns its number.
    ///
    /// # Errors
    /// [`Error::Full`] if the topic does not overwrite messages and has no space.
    pub fn publish(&mut self, message: &T) -> Result<u64, Error> {
        let mut loan = self.loan()?;
        *loan = *message;
        loan.publish()
    }

    /// Like [`publish`](Self::publish), but waits for space, without limit if `timeout` is `None`.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn publish_wait(&mut self, message: &T, timeout: Option<Duration>) -> Result<u64, Error> {
        let mut loan = self.loan_wait(timeout)?;
        *loan = *message;
        loan.publish()
    }
}

impl<T: Message> Publisher<[T]> {
    /// Loans a slot for a slice of `length` elements.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Full`] if the topic does not overwrite messages and has no space.
    pub fn loan_slice(&mut self, length: usize) -> Result<Loan<'_, [T]>, Error> {
        self.loan_with(length, WaitLimit::None)
    }

    /// Like [`loan_slice`](Self::loan_slice), but waits for space, without limit if `timeout` is `None`.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::TimedOut`].
    pub fn loan_slice_wait(
        &mut self,
        length: usize,
        timeout: Option<Duration>,
    ) -> Result<Loan<'_, [T]>, Error> {
        self.loan_with(length, WaitLimit::within(timeout))
    }

    fn loan_with(&mut self, length: usize, patience: WaitLimit) -> Result<Loan<'_, [T]>, Error> {
        let first = self.raw.loan(length, patience)?.cast();
        Ok(Loan { payload: NonNull::slice_from_raw_parts(first, length), raw: &mut self.raw })
    }

    /// Copies a slice into the topic and returns its number.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Full`] if the topic does not overwrite messages and has no space.
    pub fn publish_slice(&mut self, message: &[T]) -> Result<u64, Error> {
        let mut loan = self.loan_slice(message.len())?;
        loan.copy_from_slice(message);
        loan.publish()
    }

    /// Like [`publish_slice`](Self::publish_slice), but waits for space, without limit if `timeout` is `None`.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::TimedOut`].
    pub fn publish_slice_wait(&mut self, message: &[T], timeout: Option<Duration>) -> Result<u64, Error> {
        let mut loan = self.loan_slice_wait(message.len(), timeout)?;
        loan.copy_from_slice(message);
        loan.publish()
    }
}

impl<P: Payload + ?Sized> Loan<'_, P> {
    /// Publishes the message, wakes sleeping subscribers, and returns the number of the message.
    ///
    /// # Errors
    /// None at present.
    pub fn publish(self) -> Result<u64, Error> {
        self.raw.publish_loan()
    }
}

impl<P: Payload + ?Sized> Deref for Loan<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        // SAFETY: the memory is aligned and initialized, and any bytes are a valid payload. No other process can write
        // it, and the loan is this process's only access.
        unsafe { self.payload.as_ref() }
    }
}

impl<P: Payload + ?Sized> DerefMut for Loan<'_, P> {
    fn deref_mut(&mut self) -> &mut P {
        // SAFETY: as for `deref`. Subscribers do not read a slot before it is published.
        unsafe { self.payload.as_mut() }
    }
}

impl<P: Payload + ?Sized> Drop for Loan<'_, P> {
    fn drop(&mut self) {
        // After publication, there is no loan to cancel.
        self.raw.cancel_loan();
    }
}

/// Receives messages of type `P`: a [`Message`] or a slice of messages.
pub struct Subscriber<P: Payload + ?Sized> {
    raw: RawSubscriber,
    payload: PhantomData<fn() -> Box<P>>,
}

impl<P: Payload + ?Sized> Subscriber<P> {
    /// Subscribes to a topic that has a publisher, from its next message on.
    ///
    /// # Errors
    /// [`Error::TypeMismatch`]; those of [`RawSubscriber::connect`](crate::raw::RawSubscriber::connect).
    pub fn connect(topic: &str) -> Result<Self, Error> {
        Self::connect_with(topic, &SubscribeOptions::default())
    }

    /// Like [`connect`](Self::connect), but waits up to `wait` for a publisher.
    ///
    /// # Errors
    /// Those of [`Subscriber::connect`].
    pub fn connect_within(topic: &str, wait: Duration) -> Result<Self, Error> {
        Self::connect_with(topic, &SubscribeOptions { wait, ..SubscribeOptions::default() })
    }

    /// Subscribes to a topic.
    ///
    /// # Errors
    /// Those of [`Subscriber::connect`].
    pub fn connect_with(topic: &str, options: &SubscribeOptions) -> Result<Self, Error> {
        let (raw, expected) = (RawSubscriber::connect(topic, options)?, MessageType::of::<P>());
        if *raw.message() != expected {
            let (published, expected) = (raw.message().to_string(), expected.to_string());
            return Err(Error::TypeMismatch { topic: topic.into(), published, expected });
        }
        Ok(Self { raw, payload: PhantomData })
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Died`] after the last message; [`Error::TooManySamples`]; [`Error::Protocol`] if
    /// the publisher misbehaves.
    pub fn receive(&mut self) -> Result<Option<Sample<P>>, Error> {
        Ok(self.raw.receive()?.map(Sample::new))
    }

    /// Waits for the next message, without limit if `timeout` is `None`. Polls for 20 us, then sleeps.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; those of [`receive`](Self::receive).
    pub fn receive_wait(&mut self, timeout: Option<Duration>) -> Result<Sample<P>, Error> {
        self.raw.receive_wait(timeout).map(Sample::new)
    }

    /// The next message, on any executor. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub async fn receive_async(&mut self) -> Result<Sample<P>, Error> {
        self.raw.receive_async().await.map(Sample::new)
    }

    /// The number of messages lost so far: overwritten before they were received.
    pub fn lost(&self) -> u64 {
        self.raw.lost()
    }
}

/// A received message. A message of more than 48 bytes stays in the topic's memory, and the publisher does not
/// overwrite it before the sample is dropped.
///
/// The publisher need not be trusted: the methods return copies, which it cannot change afterwards. [`read`](Self::read), [`copy_to`](Self::copy_to)
/// and [`to_vec`](Self::to_vec) also report a message that was overwritten in violation of the protocol. [`get`](Self::get) and [`iter`](Self::iter)
/// process a slice in place, element by element; afterwards, [`is_intact`](Self::is_intact) shows whether all of them belonged to this message.
pub struct Sample<P: Payload + ?Sized> {
    raw: RawSample,
    payload: PhantomData<fn() -> Box<P>>,
}

impl<P: Payload + ?Sized> Sample<P> {
    fn new(raw: RawSample) -> Self {
        Self { raw, payload: PhantomData }
    }

    /// The number of the message: the first of a topic has 0.
    pub fn number(&self) -> u64 {
        self.raw.number()
    }

    /// The number of messages that were lost directly before this one.
    pub fn lost(&self) -> u64 {
        self.raw.lost()
    }

    /// Whether everything read so far belongs to this message. It is false only if the publisher violates the protocol.
    pub fn is_intact(&self) -> bool {
        self.raw.is_intact()
    }

    fn element(&self, index: usize) -> P::Element {
        let mut value = MaybeUninit::<P::Element>::zeroed();
        // SAFETY: all bytes are initialized.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<P::Element>())
        };
        self.raw.copy_unchecked(index * size_of::<P::Element>(), bytes);
        // SAFETY: a message's type is valid for all bytes.
        unsafe { value.assume_init() }
    }
}

impl<T: Message> Sample<T> {
    /// The message.
    ///
    /// # Errors
    /// [`Error::Overwritten`] if the publisher violates the protocol.
    pub fn read(&self) -> Result<T, Error> {
        let value = self.element(0);
        if self.is_intact() { Ok(value) } else { Err(Error::Overwritten) }
    }

    /// The message in place, without a copy.
    ///
    /// # Safety
    /// The publisher must keep to the protocol: it must not change the message while the reference lives. A publisher
    /// that uses this crate satisfies this.
    pub unsafe fn as_ref(&self) -> &T {
        // SAFETY: aligned memory, readable while the sample lives, of a type that all bytes are valid for. The caller
        // guarantees that it does not change.
        unsafe { &*self.raw.address().cast() }
    }
}

impl<T: Message> Sample<[T]> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.raw.elements()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An element.
    pub fn get(&self, index: usize) -> Option<T> {
        (index < self.len()).then(|| self.element(index))
    }

    /// Iterates over copies of the elements, each made when it is returned.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        (0..self.len()).map(|index| self.element(index))
    }

    /// Copies the elements.
    ///
    /// # Errors
    /// [`Error::Overwritten`] if the publisher violates the protocol. `to` may then have changed.
    ///
    /// # Panics
    /// If `to` has another length than the message.
    pub fn copy_to(&self, to: &mut [T]) -> Result<(), Error> {
        assert_eq!(to.len(), self.len(), "the message has another length");
        // SAFETY: a message's type is valid for all bytes, and has no padding, so it may be written as bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to)) };
        self.raw.copy(0, bytes)
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::Overwritten`] if the publisher violates the protocol.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut elements = vec![T::new_zeroed(); self.len()];
        self.copy_to(&mut elements)?;
        Ok(elements)
    }

    /// The message in place, without a copy.
    ///
    /// # Safety
    /// The publisher must keep to the protocol: it must not change the message while the reference lives. A publisher
    /// that uses this crate satisfies this.
    pub unsafe fn as_ref(&self) -> &[T] {
        // SAFETY: as for a single message, for each element.
        unsafe { std::slice::from_raw_parts(self.raw.address().cast(), self.len()) }
    }
}
