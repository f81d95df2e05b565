//! The modelled memory of one host: caches, coherence, interconnect, DRAM, TLBs. It knows where lines are and when they
//! arrive.
//! Not what they hold: guest memory is the host's own, and programs run on it functionally.
//! Source: parameters from machine files; the book's chapter on the models.

mod build_error;
pub mod dram;
pub mod placement;
mod port;

pub use build_error::BuildError;
pub use port::{Answer, FixedLatency, MemoryPort, Source};
