//! Errors of publishers and subscribers.

use std::path::PathBuf;

/// An error of a publisher or a subscriber.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that cannot be a topic.
    #[error("`{name}` cannot be the name of a topic: {reason}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The folder with the topics cannot be used.
    #[error("the folder of the topics, {}, cannot be used: {reason}", path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another publisher has the topic.
    #[error("topic `{0}` already has a publisher")]
    Taken(String),
    /// The topic has no publisher.
    #[error("topic `{0}` has no publisher; start it first, or wait for it with `Subscriber::connect_within`")]
    NoPublisher(String),
    /// The topic carries messages of another type.
    #[error("topic `{topic}` carries {published}, but the subscriber expects {expected}")]
    TypeMismatch {
        /// The topic.
        topic: String,
        /// The publisher's type.
        published: String,
        /// The subscriber's type.
        expected: String,
    },
    /// The publisher refused the subscriber, with this reason.
    #[error("the publisher refused: {0}")]
    Refused(String),
    /// The other process violated the protocol, or runs another version of it.
    #[error("the other process violated the protocol: {0}")]
    Protocol(&'static str),
    /// The publisher closed the topic, and all its messages have been received.
    #[error("the publisher has closed the topic")]
    Closed,
    /// The publisher ended without closing the topic, and all its messages have been received.
    #[error("the publisher's process has died")]
    Died,
    /// The time limit expired.
    #[error("timed out")]
    TimedOut,
    /// The topic must not overwrite the oldest message, because a subscriber has not yet received it
    /// ([`Overflow::Block`]).
    ///
    /// [`Overflow::Block`]: crate::Overflow::Block
    #[error("the topic is full: a subscriber has not received the oldest message")]
    Full,
    /// A message has more elements than the topic's maximum.
    #[error("{elements} elements exceed the topic's maximum of {limit}")]
    TooLong {
        /// The number of elements.
        elements: usize,
        /// The topic's maximum.
        limit: usize,
    },
    /// The subscriber already keeps as many samples as the topic permits.
    #[error("the subscriber keeps {0} samples, the topic's maximum; drop one before the next receive")]
    TooManySamples(u32),
    /// The publisher overwrote the message while it was read: the publisher violates the protocol.
    #[error("the message was overwritten while it was read")]
    Overwritten,
    /// An option is outside of its range.
    #[error("{name} is {value}; it must be between {min} and {max}")]
    InvalidOption {
        /// The name of the option.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The smallest possible value.
        min: u64,
        /// The largest possible value.
        max: u64,
    },
    /// The call does not fit the state of the publisher, such as a second loan.
    #[error("{0}")]
    InvalidCall(&'static str),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Converts an error of a system call.
pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::System { what, source: errno.into() }
}
