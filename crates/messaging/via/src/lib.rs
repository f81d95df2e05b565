//! The Virtual Interface Architecture 1.0: messages and remote memory access from user space, without system calls on
//! the data path. A program registers memory, posts descriptors and collects completions.
//!
//! Source: Virtual Interface Architecture Specification 1.0 (Compaq, Intel, Microsoft, December 1997), cited below as
//! VIA.

mod address;
mod allocation;
mod attributes;
mod completion_queue;
mod connection;
mod descriptor;
mod engine;
mod error;
mod futex;
mod listener;
mod memory;
mod nic;
mod protection;
pub mod provider;
mod shared_bytes;
mod vi;

/// The asymmetric barriers of the engine's lock, for the C interface. Not part of the public interface.
#[doc(hidden)]
pub mod barriers {
    pub use crate::engine::asymmetric::{heavy_barrier, is_available, light_barrier};
}

pub use address::{Address, Credentials};
pub use allocation::AllocationOptions;
pub use attributes::{NicAttributes, Reliability, ViAttributes, ViState};
pub use completion_queue::CompletionQueue;
pub use connection::ConnectionRequest;
pub use descriptor::{Completion, Descriptor, Operation, RemoteSegment, Segment, Status};
pub use engine::completion_ring::Queue;
pub use engine::connect::PeerRequest;
pub use error::{AsynchronousError, EndReason, Error, ErrorCode, Resource};
pub use listener::Listener;
pub use memory::MemoryRegion;
pub use nic::Nic;
pub use protection::{MemoryAttributes, MemoryHandle, ProtectionTag};
pub use vi::Vi;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
