//! Operations of the program: sends, receives, accesses to remote memory.

use super::buffer::Buffer;
use super::wire::AtomicRequest;

/// The report of a completed operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intent {
    /// The program's `context`.
    pub(crate) context: usize,
    /// The flags of the completion: the type of operation.
    pub(crate) flags: u64,
    /// Whether success is reported to the completion queue. Failures are always reported.
    pub(crate) reports: bool,
}

/// The bytes to send.
pub(crate) enum Source {
    /// In the program's memory, until the operation is complete.
    Buffer(Buffer),
    /// In a copy, because the program may reuse its memory when the call returns.
    Copied(Vec<u8>),
}

impl Source {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// Copies the bytes, which then no longer depend on the buffer.
    pub(crate) fn copied(self) -> Self {
        let mut bytes = vec![0; self.len()];
        self.read(&mut bytes);
        Self::Copied(bytes)
    }

    /// Copies all bytes to `into`, which must have the same length.
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) {
        match self {
            Self::Buffer(buffer) => buffer.read(into),
            Self::Copied(bytes) => into.copy_from_slice(bytes),
        }
    }
}

/// Memory of a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) key: u64,
    pub(crate) address: u64,
}

/// The type of an operation.
pub(crate) enum Action {
    /// Sends a message. If `acknowledged` is set, it completes when a receive has matched it.
    Message { tag: Option<u64>, data: Option<u64>, acknowledged: bool },
    /// Writes to a peer's memory.
    Write { target: Target, data: Option<u64> },
    /// Reads `result.len()` bytes from a peer's memory.
    Read { target: Target, result: Buffer },
    /// Combines a peer's memory with operands; the previous values are written to `result`.
    Atomic { target: Target, request: AtomicRequest, result: Buffer },
}

/// An operation that involves a peer.
pub(crate) struct Operation {
    pub(crate) action: Action,
    pub(crate) source: Source,
    pub(crate) intent: Intent,
    /// Whether the program may change the source when the call returns.
    pub(crate) is_transient: bool,
    /// Whether the operation begins only when all earlier operations with the peer are complete.
    pub(crate) fenced: bool,
}

/// A posted receive.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) buffer: Buffer,
    pub(crate) intent: Intent,
    /// For a buffer of several messages (`FI_MULTI_RECV`): it is released when less than this many bytes are free.
    pub(crate) releases_below: Option<usize>,
}
