//! Timing model of one host's memory: caches, coherence, interconnect, DRAM and TLBs. It tracks which caches hold each
//! line and when each access completes, but no data: guest programs run functionally on host memory.
//!
//! Parameters come from the machine file. The book's page on timing describes the models.

mod build_error;
mod cache;
mod coherence;
pub mod dram;
mod host;
pub mod interconnect;
pub mod placement;
mod port;
mod prefetch;
mod system;
pub mod translation;

pub use build_error::BuildError;
pub use cache::{LockWindow, Requester};
pub use coherence::Violation;

pub use port::{Answer, FixedLatency, MemoryPort, Source};
pub use system::{Allocate, CorePort, Detail, LockError, MemorySystem, StoreWindow, Traffic};
