//! Types of messages, and how they are described to other processes.

use crate::error::Error;
use crate::layout::{LINE_BYTES, MAX_MESSAGE_BYTES};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type whose values can be published. It has no padding and no pointers, and every sequence of bytes is a valid value,
/// because subscribers do not trust the publisher. `zerocopy` derives the required traits:
///
/// ```
/// use longma_pubsub::Message;
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Position {
///     x: f64,
///     y: f64,
/// }
///
/// impl Message for Position {
///     const NAME: &str = "robot.Position";
/// }
/// ```
pub trait Message: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {
    /// The name that publisher and subscriber must agree on: 1 to 100 bytes. Change it whenever the meaning of the bytes
    /// changes; size and alignment are compared too.
    const NAME: &str;
}

macro_rules! messages {
    ($($name:ident)*) => { $(impl Message for $name { const NAME: &str = stringify!($name); })* };
}

messages!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

/// The payload of a topic's messages: a [`Message`] `T`, or a slice `[T]` of variable length.
pub trait Payload: sealed::Sealed {
    /// The type of the message, or of the slice's elements.
    type Element: Message;
    /// Whether it is a slice.
    const IS_SLICE: bool;
}

impl<T: Message> Payload for T {
    type Element = T;
    const IS_SLICE: bool = false;
}

impl<T: Message> Payload for [T] {
    type Element = T;
    const IS_SLICE: bool = true;
}

mod sealed {
    pub trait Sealed {}
    impl<T: super::Message> Sealed for T {}
    impl<T: super::Message> Sealed for [T] {}
}

/// The longest name of a type, bytes.
pub(crate) const MAX_TYPE_NAME: usize = 100;

/// A type as other processes see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageType {
    /// The name of the message, or of the slice's elements.
    pub name: String,
    /// The size of the message or element, bytes.
    pub element_bytes: usize,
    /// Its alignment, bytes, at most 64.
    pub alignment: usize,
    /// Whether messages are slices.
    pub is_slice: bool,
}

impl MessageType {
    /// The description of a payload.
    pub fn of<P: Payload + ?Sized>() -> Self {
        Self {
            name: P::Element::NAME.into(),
            element_bytes: size_of::<P::Element>(),
            alignment: align_of::<P::Element>(),
            is_slice: P::IS_SLICE,
        }
    }

    /// Checks the ranges of all parts, which may come from another process.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let within = |name, value: usize, max: u64| {
            let value = value as u64;
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::InvalidOption { name, value, min: 1, max })
        };
        within("the length of the type's name", self.name.len(), MAX_TYPE_NAME as u64)?;
        within("the size of the type", self.element_bytes, MAX_MESSAGE_BYTES)?;
        within("the alignment of the type", self.alignment, LINE_BYTES as u64)?;
        if !self.alignment.is_power_of_two() || !self.element_bytes.is_multiple_of(self.alignment) {
            return Err(Error::Protocol("a type whose size is not a multiple of its alignment"));
        }
        if self.name.chars().any(char::is_control) {
            return Err(Error::Protocol("a type whose name has control characters"));
        }
        Ok(())
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.is_slice { ("[", "]") } else { ("", "") };
        write!(
            f,
            "`{open}{}{close}` ({} bytes, aligned to {})",
            self.name, self.element_bytes, self.alignment
        )
    }
}
