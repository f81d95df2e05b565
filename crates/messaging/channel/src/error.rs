//! Errors of connections and listeners.

use longma_via::EndReason;
use std::io;

/// An error of a connection or a listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The time limit expired. A receive can be repeated. A send can be repeated unless a part of the message has been
    /// sent; the next send then returns [`Error::Abandoned`].
    #[error("timed out")]
    TimedOut,
    /// The connection has ended.
    #[error("the connection has ended: {0}")]
    Ended(EndReason),
    /// The peer violated the protocol of this crate. The connection has been closed.
    #[error("the peer violated the protocol: {0}")]
    Protocol(&'static str),
    /// A message is longer than the limit: [`Options::max_message`](crate::Options::max_message) when receiving, 4 GiB
    /// when sending.
    #[error("a message of {bytes} bytes exceeds the limit of {limit} bytes")]
    TooLong {
        /// The length of the message, bytes.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// An earlier send was given up after a part of its message had been sent: its time limit expired, or its future was
    /// dropped. Nothing more can be sent on this connection.
    #[error("an earlier send was given up in the middle of a message")]
    Abandoned,
    /// The call does not fit the state of the connection, such as a send after [`Stream::finish`](crate::Stream::finish).
    #[error("{0}")]
    InvalidCall(&'static str),
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
    /// Another error of the VI or the NIC.
    #[error(transparent)]
    Via(longma_via::Error),
}

impl From<longma_via::Error> for Error {
    fn from(error: longma_via::Error) -> Self {
        match error {
            longma_via::Error::Timeout => Self::TimedOut,
            longma_via::Error::ConnectionEnded(reason) => Self::Ended(reason),
            error => Self::Via(error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::Ended(_) => io::ErrorKind::ConnectionReset,
            Error::Protocol(_) | Error::TooLong { .. } => io::ErrorKind::InvalidData,
            Error::Abandoned => io::ErrorKind::BrokenPipe,
            Error::InvalidCall(_) | Error::InvalidOption { .. } => io::ErrorKind::InvalidInput,
            Error::Via(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
