//! Errors returned by calls, and asynchronous errors delivered to the error callback.
//!
//! Source: VIA, error handling; VIPL's return codes and error codes.

use std::io;

/// An error returned by a call. The variants correspond to VIPL's return codes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid.
    #[error("invalid parameter: {0}")]
    InvalidParameter(String),
    /// This NIC, another NIC or another process already listens at the address.
    #[error("the address is in use: {0}")]
    AddressInUse(String),
    /// A resource is exhausted: memory, queue entries, file descriptors.
    #[error("out of resources: {0}")]
    Resource(String),
    /// The timeout expired.
    #[error("timed out")]
    Timeout,
    /// The peer rejected the connection.
    #[error("the peer rejected the connection")]
    Rejected,
    /// A limit or policy of the peer or of this side refused the connection.
    #[error("the connection was refused: {0}")]
    Refused(String),
    /// The NIC does not support the reliability level, or it differs from the peer's.
    #[error("invalid reliability level: {0}")]
    InvalidReliability(String),
    /// The transfer size exceeds the limit of the NIC or of the peer's VI.
    #[error("invalid transfer size: {0}")]
    InvalidTransferSize(String),
    /// The quality of service is not supported.
    #[error("invalid quality of service")]
    InvalidQualityOfService,
    /// The protection tag does not belong to this NIC, or is still in use.
    #[error("invalid protection tag: {0}")]
    InvalidProtectionTag(String),
    /// The NIC or the reliability level does not support RDMA read.
    #[error("RDMA read is not available: {0}")]
    InvalidRdmaRead(String),
    /// The call is not permitted in the current state of the VI.
    #[error("invalid state: {0}")]
    InvalidState(String),
    /// A name could not be resolved.
    #[error("name service: {0}")]
    NameService(String),
    /// No process is waiting for a connection at the address.
    #[error("no process is waiting for a connection at {0}")]
    NoMatch(String),
    /// The address is unreachable.
    #[error("not reachable: {0}")]
    NotReachable(String),
    /// The VI's connection has ended, and no descriptor is left to wait for.
    #[error("the connection has ended: {0}")]
    ConnectionEnded(EndReason),
    /// The NIC does not support this function.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl Error {
    /// Creates an [`Error::System`].
    pub fn system(what: &'static str, source: io::Error) -> Error {
        Error::System { what, source }
    }

    /// The error of a wait at an address at which the NIC no longer listens.
    pub(crate) fn not_listening(address: &impl std::fmt::Display) -> Error {
        Error::InvalidState(format!("the NIC no longer listens at {address}"))
    }

    /// Whether a later attempt may succeed because the error is a shortage of descriptors, memory or threads.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Error::Resource(_) => true,
            Error::System { source, .. } => is_shortage(source),
            _ => false,
        }
    }

    /// Creates an [`Error::System`] from `errno`.
    pub fn last_system(what: &'static str) -> Error {
        Error::system(what, io::Error::last_os_error())
    }
}

/// Whether a system call failed for a shortage that may pass. Other errors, such as a call that a seccomp filter
/// refuses, are permanent.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let passing = [
        libc::EAGAIN,
        libc::EINTR,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::ENOSPC,
        libc::ETOOMANYREFS,
    ];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndReason {
    /// The peer disconnected.
    #[error("the peer disconnected")]
    Disconnected,
    /// The program disconnected this VI.
    #[error("this side disconnected")]
    DisconnectedHere,
    /// The peer's process exited or was killed, or no longer knows the connection.
    #[error("the peer's process ended without disconnecting")]
    PeerExited,
    /// The peer violated the protocol.
    #[error("the peer violated the protocol")]
    ProtocolViolation,
    /// One side refused a message of the other. The status of the message's descriptor has the cause.
    #[error("a message was refused")]
    MessageRefused,
    /// The peer exceeded a limit of this side.
    #[error("the peer exceeded a limit of this side")]
    LimitExceeded,
    /// The peer was silent for too long.
    #[error("the peer has not answered in time")]
    TimedOut,
    /// The peer answers, but large packets do not arrive.
    #[error("large packets do not reach the peer: the path's MTU is smaller than that of its ends")]
    PathMtu,
    /// An error on this side, which the error callback reports too.
    #[error("{0}")]
    Error(ErrorCode),
}

/// The object that an asynchronous error concerns. The values are VIPL's resource codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// The NIC as a whole.
    Nic = 0,
    /// A VI.
    Vi,
    /// A completion queue.
    CompletionQueue,
    /// A descriptor.
    Descriptor,
}

/// The code of an asynchronous error. Names and values are VIPL's error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ErrorCode {
    /// A posted descriptor could not be read.
    #[error("a posted descriptor is invalid")]
    PostDescriptor = 0,
    /// The connection was lost: the peer disconnected, exited or violated the protocol.
    #[error("the connection was lost")]
    ConnectionLost,
    /// A message arrived and no receive descriptor was posted.
    #[error("a message arrived and no receive was posted")]
    ReceiveQueueEmpty,
    /// A work queue or completion queue overflowed.
    #[error("a queue overflowed")]
    ViOverrun,
    /// A remote write addressed memory that it may not access.
    #[error("a remote write addressed memory that it may not access")]
    RdmaWriteProtection,
    /// The data of a remote write arrived incompletely.
    #[error("the data of a remote write arrived incompletely")]
    RdmaWriteData,
    /// A remote write was aborted.
    #[error("a remote write was aborted")]
    RdmaWriteAbort,
    /// A remote read addressed memory that it may not access.
    #[error("a remote read addressed memory that it may not access")]
    RdmaReadProtection,
    /// A completion could not be stored because its memory is no longer registered.
    #[error("the memory for a completion is no longer registered")]
    CompletionProtection,
    /// The network failed during a remote transfer.
    #[error("the network failed during a remote transfer")]
    RdmaTransport,
    /// The NIC has failed permanently.
    #[error("the NIC has failed")]
    Catastrophic,
}

/// An asynchronous error, delivered to the error callback (VIA, asynchronous errors).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsynchronousError {
    /// The object concerned.
    pub resource: Resource,
    /// The error code.
    pub code: ErrorCode,
    /// The number of the VI concerned, if any.
    pub vi: Option<u32>,
    /// The context of the descriptor concerned, if any.
    pub context: Option<u64>,
}
