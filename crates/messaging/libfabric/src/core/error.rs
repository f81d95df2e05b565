//! Errors of operations, as libfabric's error numbers.

use crate::abi::constants;
use longma_via::{EndReason, Error};

/// Why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    /// libfabric's error number, positive.
    pub(crate) code: i32,
    /// The provider's: an index into [`REASONS`].
    pub(crate) reason: i32,
}

/// The texts of the provider's error numbers.
const REASONS: [&str; 13] = [
    "success",
    "the peer disconnected",
    "the peer's process ended without disconnecting",
    "the peer violated the protocol",
    "the connection ended",
    "no endpoint listens at the address",
    "the peer refused the connection",
    "the peer did not answer in time",
    "the system refused a resource",
    "the message is longer than the receive buffer",
    "the peer's memory does not permit this access",
    "the operation was cancelled",
    "no message matches",
];

/// The text of one of the provider's error numbers.
pub(crate) fn reason_text(reason: i32) -> &'static str {
    usize::try_from(reason).ok().and_then(|reason| REASONS.get(reason)).copied().unwrap_or("unknown")
}

impl Failure {
    pub(crate) const DISCONNECTED: Self = Self { code: libc::ECONNRESET, reason: 1 };
    pub(crate) const PROTOCOL: Self = Self { code: libc::ECONNABORTED, reason: 3 };
    pub(crate) const TRUNCATED: Self = Self { code: constants::ETRUNC, reason: 9 };
    pub(crate) const NO_ACCESS: Self = Self { code: libc::EACCES, reason: 10 };
    pub(crate) const CANCELLED: Self = Self { code: libc::ECANCELED, reason: 11 };
    pub(crate) const NO_MESSAGE: Self = Self { code: libc::ENOMSG, reason: 12 };

    /// The failure of operations on a connection that has ended.
    pub(crate) fn of_end(reason: Option<EndReason>) -> Self {
        let (code, reason) = match reason {
            Some(EndReason::Disconnected | EndReason::DisconnectedHere) => return Self::DISCONNECTED,
            Some(EndReason::PeerExited) => (libc::ECONNRESET, 2),
            Some(EndReason::ProtocolViolation | EndReason::MessageRefused) => return Self::PROTOCOL,
            _ => (libc::ECONNABORTED, 4),
        };
        Self { code, reason }
    }

    /// The failure of operations that wait for a connection.
    pub(crate) fn of_connect(error: &Error) -> Self {
        let (code, reason) = match error {
            Error::NoMatch(_) => (libc::ECONNREFUSED, 5),
            Error::Rejected | Error::Refused(_) => (libc::ECONNREFUSED, 6),
            // The peer ended during the request.
            Error::NotReachable(_) => (libc::ECONNRESET, 2),
            Error::Timeout => (libc::ETIMEDOUT, 7),
            Error::Resource(_) | Error::System { .. } => (libc::ENOBUFS, 8),
            _ => (libc::ECONNABORTED, 4),
        };
        Self { code, reason }
    }

    /// The failure that a peer reports in a frame.
    pub(crate) fn of_status(status: u16) -> Option<Self> {
        match i32::from(status) {
            0 => None,
            constants::ETRUNC => Some(Self::TRUNCATED),
            libc::EACCES => Some(Self::NO_ACCESS),
            libc::ECANCELED => Some(Self::CANCELLED),
            code => Some(Self { code, reason: 4 }),
        }
    }
}
