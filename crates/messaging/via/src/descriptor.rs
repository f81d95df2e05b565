//! Descriptors: what is to be moved, from where to where, and how it ended.
//! Not the 64-byte-aligned form in memory that C programs use; that is in `longma-vipl`.
//! Source: VIA, descriptor processing model and format of a descriptor.

use crate::protection::MemoryHandle;
use std::fmt;

/// What a descriptor asks for, or, in a completion, what was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Send a message; the peer must have posted a receive.
    Send,
    /// Take a message.
    Receive,
    /// Store into the peer's memory.
    RdmaWrite,
    /// In a completion of a receive descriptor: the peer's RDMA write carried immediate data and used this receive.
    RemoteRdmaWrite,
    /// Load from the peer's memory.
    RdmaRead,
}

/// A piece of local registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address in this process.
    pub address: u64,
    /// The registration that the address lies in.
    pub handle: MemoryHandle,
    /// Bytes.
    pub length: u32,
}

/// Where in the peer's registered memory an RDMA transfer begins. The peer has to say it, in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteSegment {
    /// Virtual address in the peer's process.
    pub address: u64,
    /// The peer's registration that the address lies in.
    pub handle: MemoryHandle,
}

/// A work request: built, posted by reference, and free for reuse when the call returns.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor<'a> {
    /// What is to be done.
    pub operation: Operation,
    /// Local memory, in order: gathered for a send or write, scattered to for a receive or read.
    pub segments: &'a [Segment],
    /// The peer's memory, for RDMA.
    pub remote: RemoteSegment,
    /// 32 bits that travel with a send or an RDMA write and arrive in the completion of a receive.
    pub immediate: Option<u32>,
    /// Not to be begun before all earlier RDMA reads of this VI are complete (VIA, queue fence).
    pub fence: bool,
    /// The program's own; comes back in the completion.
    pub context: u64,
    /// For a VI that tells completions at once ([`crate::Vi::tell_completions`]): the registered memory that holds the program's own
    /// form of the descriptor, of which `context` is then the address. What is no longer registered is not told of.
    pub home: MemoryHandle,
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
            home: MemoryHandle(0),
        }
    }

    /// A message made of `segments`.
    pub fn send(segments: &'a [Segment]) -> Descriptor<'a> {
        Descriptor::new(Operation::Send, segments, RemoteSegment::default())
    }

    /// Room for one message.
    pub fn receive(segments: &'a [Segment]) -> Descriptor<'a> {
        Descriptor::new(Operation::Receive, segments, RemoteSegment::default())
    }

    /// A store of `segments` at `remote`.
    pub fn rdma_write(segments: &'a [Segment], remote: RemoteSegment) -> Descriptor<'a> {
        Descriptor::new(Operation::RdmaWrite, segments, remote)
    }

    /// A load from `remote` into `segments`.
    pub fn rdma_read(segments: &'a [Segment], remote: RemoteSegment) -> Descriptor<'a> {
        Descriptor::new(Operation::RdmaRead, segments, remote)
    }

    /// With 32 bits of immediate data.
    pub fn with_immediate(self, immediate: u32) -> Descriptor<'a> {
        Descriptor { immediate: Some(immediate), ..self }
    }

    /// With the program's own 64 bits.
    pub fn with_context(self, context: u64) -> Descriptor<'a> {
        Descriptor { context, ..self }
    }

    /// Behind all earlier RDMA reads.
    pub fn fenced(self) -> Descriptor<'a> {
        Descriptor { fence: true, ..self }
    }
}

/// The status word of a descriptor, bit for bit as the specification has it. No error bit set means success.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(pub u32);

impl Status {
    /// The descriptor is complete.
    pub const DONE: Status = Status(0x1);
    /// The descriptor contradicts itself: operation, segment count, lengths.
    pub const FORMAT_ERROR: Status = Status(0x2);
    /// A local segment is not registered, not under the VI's tag, or longer than its registration.
    pub const PROTECTION_ERROR: Status = Status(0x4);
    /// More bytes than the transfer size or the receive's segments allow.
    pub const LENGTH_ERROR: Status = Status(0x8);
    /// Part of the data arrived.
    pub const PARTIAL_ERROR: Status = Status(0x10);
    /// Not begun, because the VI left the connected state.
    pub const FLUSHED: Status = Status(0x20);
    /// The network or the peer failed.
    pub const TRANSPORT_ERROR: Status = Status(0x40);
    /// The peer's memory does not allow this transfer.
    pub const RDMA_PROTECTION_ERROR: Status = Status(0x80);
    /// The peer's receive descriptor failed, or there was none.
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

    /// The bits of both.
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

/// How a descriptor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What was done.
    pub operation: Operation,
    /// With which outcome; `Status::DONE` is always set.
    pub status: Status,
    /// Bytes moved; for a receive, the message's length.
    pub length: u32,
    /// Immediate data of the peer, in the completion of a receive.
    pub immediate: Option<u32>,
    /// The descriptor's context.
    pub context: u64,
}

impl Completion {
    /// Whether the descriptor did what it asked for.
    pub fn is_success(&self) -> bool {
        !self.status.is_error()
    }
}
