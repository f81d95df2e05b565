//! The modelled memory of one host: caches, coherence, interconnect, DRAM, TLBs. It knows where lines are and when they
//! arrive.
//! Not what they hold: guest memory is the host's own, and programs run on it functionally.
//! Source: parameters from machine files; the book's chapter on the models.

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
