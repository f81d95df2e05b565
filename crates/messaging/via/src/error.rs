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

    /// Creates an [`Error::System`] from `errno`.
    pub fn last_system(what: &'static str) -> Error {
        Error::system(what, io::Error::last_os_error())
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// A posted descriptor could not be read.
    PostDescriptor = 0,
    /// The connection was lost: the peer disconnected, exited or violated the protocol.
    ConnectionLost,
    /// A message arrived and no receive descriptor was posted.
    ReceiveQueueEmpty,
    /// A work queue or completion queue overflowed.
    ViOverrun,
    /// A remote write addressed memory that it may not access.
    RdmaWriteProtection,
    /// The data of a remote write arrived incompletely.
    RdmaWriteData,
    /// A remote write was aborted.
    RdmaWriteAbort,
    /// A remote read addressed memory that it may not access.
    RdmaReadProtection,
    /// A completion could not be stored because its memory is no longer registered.
    CompletionProtection,
    /// The network failed during a remote transfer.
    RdmaTransport,
    /// The NIC has failed permanently.
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
