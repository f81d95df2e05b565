//! The parts of a machine file, one module per kind of part. `layout` expands them into instances.

mod cache;
mod chip;
mod core;
mod device;
mod file;
mod host;
mod memory;
mod source;

pub use cache::*;
pub use chip::*;
pub use core::*;
pub use device::*;
pub use file::*;
pub use host::*;
pub use memory::*;
pub use source::*;
