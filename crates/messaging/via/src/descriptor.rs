//! Descriptors, their status, and completions. The 64-byte-aligned memory layout for C programs is in `longma-vipl`.
//!
//! Source: VIA, descriptor processing model and format of a descriptor.

use crate::protection::MemoryHandle;
use std::fmt;

/// The operation of a descriptor, or of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Sends a message. The peer must have posted a receive.
    Send,
    /// Receives a message.
    Receive,
    /// Writes to the peer's memory.
    RdmaWrite,
    /// Only in completions of receives: an RDMA write by the peer with immediate data consumed this receive.
    RemoteRdmaWrite,
    /// Reads from the peer's memory.
    RdmaRead,
}

/// A segment of local registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The virtual address in this process.
    pub address: u64,
    /// The memory region that contains the address.
    pub handle: MemoryHandle,
    /// The length, bytes.
    pub length: u32,
}

/// The start of an RDMA transfer in the peer's registered memory. Programs exchange it in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteSegment {
    /// The virtual address in the peer's process.
    pub address: u64,
    /// The peer's memory region that contains the address.
    pub handle: MemoryHandle,
}

/// A work request. Posting copies it, so it can be reused when the call returns.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor<'a> {
    /// The operation.
    pub operation: Operation,
    /// Local memory in order: gathered by sends and writes, scattered to by receives and reads.
    pub segments: &'a [Segment],
    /// The peer's memory, for RDMA.
    pub remote: RemoteSegment,
    /// 32 bits that accompany a send or an RDMA write and are delivered in the completion of a receive.
    pub immediate: Option<u32>,
    /// Delays the operation until all earlier RDMA reads of this VI are complete (VIA, queue fence).
    pub fence: bool,
    /// An arbitrary value, returned in the completion.
    pub context: u64,
    /// For VIs with a completion callback ([`crate::Vi::on_completion`]): the registered memory that holds the
    /// program's own form of the descriptor at address `context`. The callback is not called if that memory is no
    /// longer registered.
    pub context_memory: MemoryHandle,
}

impl<'a> Descriptor<'a> {
    fn new(operation: Operation, segments: &'a [Segment], remote: RemoteSegment) -> Descriptor<'a> {
        Descriptor {
            operation,
            segments,
            remote,
            immediate: None,
            fence: false,
            context: 0,
            context_memory: MemoryHandle(0),
        }
    }

    /// A message made of `segments`.
    pub fn send(segments: &'a [Segment]) -> Descriptor<'a> {
        Descriptor::new(Operation::Send, segments, RemoteSegment::default())
    }

    /// A buffer for one message.
    pub fn receive(segments: &'a [Segment]) -> Descriptor<'a> {
        Descriptor::new(Operation::Receive, segments, RemoteSegment::default())
    }

    /// An RDMA write of `segments` to `remote`.
    pub fn rdma_write(segments: &'a [Segment], remote: RemoteSegment) -> Descriptor<'a> {
        Descriptor::new(Operation::RdmaWrite, segments, remote)
    }

    /// An RDMA read from `remote` into `segments`.
    pub fn rdma_read(segments: &'a [Segment], remote: RemoteSegment) -> Descriptor<'a> {
        Descriptor::new(Operation::RdmaRead, segments, remote)
    }

    /// Adds 32 bits of immediate data.
    pub fn with_immediate(self, immediate: u32) -> Descriptor<'a> {
        Descriptor { immediate: Some(immediate), ..self }
    }

    /// Sets the context.
    pub fn with_context(self, context: u64) -> Descriptor<'a> {
        Descriptor { context, ..self }
    }

    /// Sets the fence.
    pub fn fenced(self) -> Descriptor<'a> {
        Descriptor { fence: true, ..self }
    }
}

/// The status word of a descriptor, with the bits of the specification. If no error bit is set, the operation
/// succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(pub u32);

impl Status {
    /// The descriptor is complete.
    pub const DONE: Status = Status(0x1);
    /// The descriptor is invalid: operation, segment count or lengths.
    pub const FORMAT_ERROR: Status = Status(0x2);
    /// A local segment is not registered, has another tag than the VI, or extends beyond its region.
    pub const PROTECTION_ERROR: Status = Status(0x4);
    /// The message exceeds the maximum transfer size or the segments of the receive.
    pub const LENGTH_ERROR: Status = Status(0x8);
    /// Only a part of the data arrived.
    pub const PARTIAL_ERROR: Status = Status(0x10);
    /// The operation was not started because the VI left the connected state.
    pub const FLUSHED: Status = Status(0x20);
    /// The network or the peer failed.
    pub const TRANSPORT_ERROR: Status = Status(0x40);
    /// The peer's memory does not permit this transfer.
    pub const RDMA_PROTECTION_ERROR: Status = Status(0x80);
    /// The peer had no receive descriptor, or its receive descriptor failed.
    pub const REMOTE_DESCRIPTOR_ERROR: Status = Status(0x100);
    /// All error bits.
    pub const ERROR_MASK: Status = Status(0x1fe);
    /// The completion carries immediate data.
    pub const IMMEDIATE: Status = Status(0x8_0000);

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Status) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any error bit is set.
    pub fn is_error(self) -> bool {
        self.0 & Status::ERROR_MASK.0 != 0
    }

    /// The union of both.
    pub fn with(self, other: Status) -> Status {
        Status(self.0 | other.0)
    }
}

const STATUS_WORDS: [(Status, &str); 9] = [
    (Status::FORMAT_ERROR, "format error"),
    (Status::PROTECTION_ERROR, "protection error"),
    (Status::LENGTH_ERROR, "length error"),
    (Status::PARTIAL_ERROR, "partial error"),
    (Status::FLUSHED, "flushed"),
    (Status::TRANSPORT_ERROR, "transport error"),
    (Status::RDMA_PROTECTION_ERROR, "RDMA protection error"),
    (Status::REMOTE_DESCRIPTOR_ERROR, "remote descriptor error"),
    (Status::IMMEDIATE, "immediate"),
];

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.contains(Status::DONE) { "done" } else { "not done" })?;
        for (bit, word) in STATUS_WORDS {
            if self.contains(bit) {
                write!(f, ", {word}")?;
            }
        }
        Ok(())
    }
}

/// The result of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The operation performed.
    pub operation: Operation,
    /// The status. `Status::DONE` is always set.
    pub status: Status,
    /// The bytes moved. For a receive, the length of the message.
    pub length: u32,
    /// The peer's immediate data, in the completion of a receive.
    pub immediate: Option<u32>,
    /// The context of the descriptor.
    pub context: u64,
}

impl Completion {
    /// Whether the operation succeeded.
    pub fn is_success(&self) -> bool {
        !self.status.is_error()
    }
}
