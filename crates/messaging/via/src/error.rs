//! What goes wrong: errors that a call returns, and errors that come later, to the error callback.
//! Not the status of a descriptor, which is in `descriptor.rs`.
//! Source: VIA, error handling; VIPL's return codes and error codes.

use std::io;

/// Why a call did not do what was asked. The names are VIPL's return codes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument makes no sense; the text says which and why.
    #[error("invalid parameter: {0}")]
    InvalidParameter(String),
    /// Something is used up: memory, queue entries, file descriptors; the text says what.
    #[error("out of resources: {0}")]
    Resource(String),
    /// The time given passed first.
    #[error("timed out")]
    Timeout,
    /// The peer refused the connection.
    #[error("the peer rejected the connection")]
    Rejected,
    /// The connection was refused by a limit or a policy, of the peer or of this side; the text says which.
    #[error("the connection was refused: {0}")]
    Refused(String),
    /// The reliability level is not one that the NIC has, or differs from the peer's.
    #[error("invalid reliability level: {0}")]
    InvalidReliability(String),
    /// The transfer size exceeds what the NIC, or the peer's VI, takes.
    #[error("invalid transfer size: {0}")]
    InvalidTransferSize(String),
    /// No such quality of service.
    #[error("invalid quality of service")]
    InvalidQualityOfService,
    /// The protection tag is not one of this NIC, or is still in use.
    #[error("invalid protection tag: {0}")]
    InvalidProtectionTag(String),
    /// RDMA read was asked of a NIC or reliability level that has none.
    #[error("RDMA read is not available: {0}")]
    InvalidRdmaRead(String),
    /// The call does not fit the state that the VI is in.
    #[error("invalid state: {0}")]
    InvalidState(String),
    /// A name could not be resolved.
    #[error("name service: {0}")]
    NameService(String),
    /// Nobody waits at that address.
    #[error("nobody waits for a connection at {0}")]
    NoMatch(String),
    /// The address cannot be reached at all.
    #[error("not reachable: {0}")]
    NotReachable(String),
    /// The NIC does not have this function.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// The operating system refused; the text says what was being done.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Wraps what the system said with what was being done.
    pub fn system(what: &'static str, source: io::Error) -> Error {
        Error::System { what, source }
    }

    /// The system's last error, with what was being done.
    pub fn last_system(what: &'static str) -> Error {
        Error::system(what, io::Error::last_os_error())
    }
}

/// What an asynchronous error is about. The numbers are those of VIPL's resource codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// The NIC as a whole.
    Nic = 0,
    /// One VI.
    Vi,
    /// A completion queue.
    CompletionQueue,
    /// One descriptor.
    Descriptor,
}

/// Which asynchronous error. Names and numbers are those of VIPL's error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// A descriptor was posted that could not be read.
    PostDescriptor = 0,
    /// The connection is gone: the peer disconnected, died or broke the protocol.
    ConnectionLost,
    /// A message came and no receive descriptor was there.
    ReceiveQueueEmpty,
    /// More was posted than the queue or completion queue holds.
    ViOverrun,
    /// A remote write would have touched memory that it may not.
    RdmaWriteProtection,
    /// A remote write's data did not arrive whole.
    RdmaWriteData,
    /// A remote write was given up half way.
    RdmaWriteAbort,
    /// A remote read would have touched memory that it may not.
    RdmaReadProtection,
    /// A completion could not be stored: its memory is no longer registered.
    CompletionProtection,
    /// The network failed under a remote transfer.
    RdmaTransport,
    /// The NIC no longer works.
    Catastrophic,
}

/// An error that belongs to no call: what the error callback is given (VIA, asynchronous errors).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsynchronousError {
    /// What it is about.
    pub resource: Resource,
    /// Which error.
    pub code: ErrorCode,
    /// The number of the VI concerned, if one is.
    pub vi: Option<u32>,
    /// The context of the descriptor concerned, if one is.
    pub context: Option<u64>,
}
